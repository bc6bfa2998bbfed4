"""What providers do, told through one path: the logger `ipy_sandbox.operations`, callbacks, and OpenTelemetry spans
where its API is installed.

    ipy_sandbox.add_callback(print)

Told are the provider, the operation, the sandbox's id, the duration and how it failed: no code, no output, no key.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from ..errors import SandboxError
from ..models import ContainerHandle, Event, FileInfo, SandboxInfo, SandboxOptions

if TYPE_CHECKING:
    from .provider import Provider

T = TypeVar("T")

logger = logging.getLogger("ipy_sandbox.operations")
# Without it Python prints warnings to a notebook's stderr where nobody has set up logging.
logger.addHandler(logging.NullHandler())


@dataclass(frozen=True)
class Operation:
    """One step of an operation of a provider.

    Arguments:
        operation: the name of the provider's method, like `create` or `run`.
        phase: start, success or failure.
        duration: seconds it took; None at the start.
        error: how it failed, as `Class: message`; of foreign exceptions the class alone, they may quote secrets.
    """

    provider: str
    operation: str
    phase: Literal["start", "success", "failure"]
    sandbox_id: str | None = None
    duration: float | None = None
    error: str | None = None


Callback = Callable[[Operation], object]

_CALLBACKS: list[Callback] = []


def add_callback(callback: Callback) -> None:
    """Call `callback` at the start and the end of every operation, on the thread that does it; it must be quick."""
    _CALLBACKS.append(callback)


def remove_callback(callback: Callback) -> None:
    """Undo `add_callback`; nothing happens if it is not there."""
    with contextlib.suppress(ValueError):
        _CALLBACKS.remove(callback)


class _Watch:
    """An operation that is going on; set `sandbox_id` once it is known."""

    def __init__(self, provider: str, operation: str, sandbox_id: str | None) -> None:
        self.step = Operation(provider, operation, "start", sandbox_id)
        self._began = time.perf_counter()
        self._span = _start_span(self.step)
        _tell(self.step)

    def end(self, error: BaseException | None = None) -> None:
        duration = time.perf_counter() - self._began
        if error is None:
            step = replace(self.step, phase="success", duration=duration)
        else:
            step = replace(self.step, phase="failure", duration=duration, error=_described(error))
        _end_span(self._span, step)
        _tell(step)


@contextlib.contextmanager
def _watching(provider: str, operation: str, sandbox_id: str | None = None) -> Iterator[_Watch]:
    watch = _Watch(provider, operation, sandbox_id)
    try:
        yield watch
    except GeneratorExit:
        # The reader has left; that is how code is stopped.
        watch.end()
        raise
    except BaseException as error:
        watch.end(error)
        raise
    watch.end()


def _described(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}" if isinstance(error, SandboxError) else type(error).__name__


def _tell(step: Operation) -> None:
    text, values = "%s %s of sandbox %s: %s", [step.provider, step.operation, step.sandbox_id or "-", step.phase]
    if step.phase == "start":
        logger.debug(text, *values)
    elif step.error is None:
        logger.info(text + " in %.3f s", *values, step.duration)
    else:
        logger.warning(text + " after %.3f s (%s)", *values, step.duration, step.error)
    for callback in list(_CALLBACKS):
        try:
            callback(step)
        except Exception:
            logger.exception("the callback %r failed", callback)


@functools.cache
def _tracer() -> Any:
    try:
        from opentelemetry import trace
    except ImportError:
        return None
    return trace.get_tracer("ipy_sandbox")


def _start_span(step: Operation) -> Any:
    if (tracer := _tracer()) is None:
        return None
    span = tracer.start_span(f"sandbox {step.operation}")
    span.set_attribute("ipy_sandbox.provider", step.provider)
    span.set_attribute("ipy_sandbox.operation", step.operation)
    return span


def _end_span(span: Any, step: Operation) -> None:
    if span is None:
        return
    if step.sandbox_id is not None:
        span.set_attribute("ipy_sandbox.sandbox_id", step.sandbox_id)
    if step.error is not None:
        from opentelemetry.trace import StatusCode

        span.set_attribute("error.type", step.error.partition(":")[0])
        span.set_status(StatusCode.ERROR, step.error)
    span.end()


class ObservedProvider:
    """A provider whose operations are told; everything else of it passes through."""

    def __init__(self, provider: Provider) -> None:
        self._provider = provider
        self.name = provider.name

    def __getattr__(self, name: str) -> Any:
        return getattr(self._provider, name)

    def __repr__(self) -> str:
        return f"<observed {self._provider!r}>"

    async def _told(self, operation: str, sandbox_id: str | None, work: Awaitable[T]) -> T:
        with _watching(self.name, operation, sandbox_id):
            return await work

    async def create(self, options: SandboxOptions) -> ContainerHandle:
        with _watching(self.name, "create") as watch:
            handle = await self._provider.create(options)
            watch.step = replace(watch.step, sandbox_id=handle.id)
            return handle

    async def connect(self, sandbox_id: str, *, timeout: float | None = None) -> ContainerHandle:
        return await self._told("connect", sandbox_id, self._provider.connect(sandbox_id, timeout=timeout))

    async def run(self, handle: ContainerHandle, code: str) -> AsyncGenerator[Event, None]:
        events = self._provider.run(handle, code)
        with _watching(self.name, "run", handle.id):
            async with _closing(events):
                async for event in events:
                    yield event

    async def interrupt(self, handle: ContainerHandle) -> None:
        await self._told("interrupt", handle.id, self._provider.interrupt(handle))

    async def restart(self, handle: ContainerHandle) -> None:
        await self._told("restart", handle.id, self._provider.restart(handle))

    async def renew(self, handle: ContainerHandle, timeout: float) -> None:
        await self._told("renew", handle.id, self._provider.renew(handle, timeout))

    async def delete(self, handle: ContainerHandle) -> bool:
        return await self._told("delete", handle.id, self._provider.delete(handle))

    async def upload(self, handle: ContainerHandle, path: str, data: bytes) -> None:
        await self._told("upload", handle.id, self._provider.upload(handle, path, data))

    async def download(self, handle: ContainerHandle, path: str) -> bytes:
        return await self._told("download", handle.id, self._provider.download(handle, path))

    async def list_files(self, handle: ContainerHandle, path: str = ".") -> list[FileInfo]:
        return await self._told("list_files", handle.id, self._provider.list_files(handle, path))

    async def list_sandboxes(self) -> list[SandboxInfo]:
        return await self._told("list_sandboxes", None, self._provider.list_sandboxes())

    async def info(self, handle: ContainerHandle) -> SandboxInfo:
        return await self._told("info", handle.id, self._provider.info(handle))

    def delete_at_exit(self, handles: list[ContainerHandle], budget: float) -> None:
        with _watching(self.name, "delete_at_exit"):
            self._provider.delete_at_exit(handles, budget)

    async def aclose(self) -> None:
        await self._provider.aclose()


def observed(provider: Provider) -> Provider:
    """`provider` with its operations told; one that is observed already stays as it is."""
    return provider if isinstance(provider, ObservedProvider) else ObservedProvider(provider)


@contextlib.asynccontextmanager
async def _closing(events: Any) -> AsyncGenerator[None, None]:
    try:
        yield
    finally:
        if close := getattr(events, "aclose", None):
            await close()
