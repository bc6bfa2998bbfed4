"""A scripted provider for tests and documentation: it runs no code."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Callable, Iterable

from ..errors import FileTransferError, SandboxLostError
from ..models import (
    ContainerHandle,
    End,
    Event,
    ExecutionCount,
    ExecutionError,
    FileInfo,
    SandboxInfo,
    SandboxOptions,
    Stdout,
)

Script = Callable[[str], Iterable[Event | float | BaseException]]


def echo(code: str) -> Iterable[Event]:
    """The default script: print the code."""
    return [Stdout(code)]


class FakeProvider:
    """Answers each run from `script`, and records what was asked of it.

    Arguments:
        script: takes the code, gives events, pauses (seconds, as float; an interrupt ends them) and exceptions to
            raise. `ExecutionCount` and `End` are added if the script leaves them out.
        create_error: raised by `create`, if set.

    Attributes:
        calls: every call, as tuples like `("run", id, code)`.
        alive: the ids of the sandboxes that exist.
    """

    name = "fake"

    def __init__(self, api_key: str | None = None, api_base: str | None = None, *, script: Script = echo) -> None:
        self.script = script
        self.create_error: BaseException | None = None
        self.calls: list[tuple[object, ...]] = []
        self.alive: dict[str, ContainerHandle] = {}
        self.files: dict[str, dict[str, bytes]] = {}
        self._ids = itertools.count(1)
        self._counts: dict[str, int] = {}
        self._locks: dict[str, asyncio.Lock] = {}
        self._stops: dict[str, asyncio.Event] = {}

    async def create(self, options: SandboxOptions) -> ContainerHandle:
        self.calls.append(("create", options))
        await asyncio.sleep(0)
        if self.create_error is not None:
            raise self.create_error
        handle = ContainerHandle(id=f"fake{next(self._ids)}", provider=self.name, timeout=options.timeout)
        self.alive[handle.id] = handle
        self.files[handle.id] = {}
        return handle

    async def connect(self, sandbox_id: str, *, timeout: float | None = None) -> ContainerHandle:
        self.calls.append(("connect", sandbox_id))
        if sandbox_id not in self.alive:
            raise self._lost(sandbox_id)
        return self.alive[sandbox_id]

    async def run(self, handle: ContainerHandle, code: str) -> AsyncIterator[Event]:
        async with self._locks.setdefault(handle.id, asyncio.Lock()):
            self.calls.append(("run", handle.id, code))
            self._check(handle)
            stop = self._stops[handle.id] = asyncio.Event()
            self._counts[handle.id] = self._counts.get(handle.id, 0) + 1
            yield ExecutionCount(self._counts[handle.id])
            try:
                async for event in self._play(self.script(code), stop):
                    self._check(handle)
                    yield event
            except (GeneratorExit, asyncio.CancelledError):
                self.calls.append(("stopped", handle.id))
                raise
            yield End()

    async def _play(self, script: Iterable[Event | float | BaseException], stop: asyncio.Event) -> AsyncIterator[Event]:
        for item in script:
            if isinstance(item, BaseException):
                raise item
            if isinstance(item, (int, float)):
                try:
                    await asyncio.wait_for(stop.wait(), item)
                except TimeoutError:
                    continue
                yield ExecutionError("KeyboardInterrupt", "", "KeyboardInterrupt")
                return
            if not isinstance(item, End):
                yield item

    async def interrupt(self, handle: ContainerHandle) -> None:
        self.calls.append(("interrupt", handle.id))
        if stop := self._stops.get(handle.id):
            stop.set()

    async def restart(self, handle: ContainerHandle) -> None:
        self.calls.append(("restart", handle.id))
        self._check(handle)
        self._counts.pop(handle.id, None)

    async def renew(self, handle: ContainerHandle, timeout: float) -> None:
        self.calls.append(("renew", handle.id, timeout))
        self._check(handle)
        handle.timeout = timeout

    async def delete(self, handle: ContainerHandle) -> bool:
        self.calls.append(("delete", handle.id))
        return self.alive.pop(handle.id, None) is not None

    async def upload(self, handle: ContainerHandle, path: str, data: bytes) -> None:
        self._check(handle)
        self.files[handle.id][path] = data

    async def download(self, handle: ContainerHandle, path: str) -> bytes:
        self._check(handle)
        try:
            return self.files[handle.id][path]
        except KeyError:
            raise FileTransferError(f"There is no file {path!r} in sandbox {handle.id}.") from None

    async def list_files(self, handle: ContainerHandle, path: str = ".") -> list[FileInfo]:
        self._check(handle)
        return [FileInfo(path=p, size=len(data)) for p, data in sorted(self.files[handle.id].items())]

    async def list_sandboxes(self) -> list[SandboxInfo]:
        return [SandboxInfo(id=h.id, provider=self.name, created_at=h.created_at) for h in self.alive.values()]

    async def info(self, handle: ContainerHandle) -> SandboxInfo:
        self._check(handle)
        return SandboxInfo(id=handle.id, provider=self.name, created_at=handle.created_at)

    def delete_at_exit(self, handles: list[ContainerHandle], budget: float) -> None:
        for handle in handles:
            self.alive.pop(handle.id, None)

    async def aclose(self) -> None:
        self.calls.append(("aclose",))

    def lose(self, sandbox_id: str) -> None:
        """Make the sandbox vanish, as when its lifetime ends."""
        self.alive.pop(sandbox_id, None)

    def _check(self, handle: ContainerHandle) -> None:
        if handle.id not in self.alive:
            raise self._lost(handle.id)

    def _lost(self, sandbox_id: str) -> SandboxLostError:
        message = f"Sandbox {sandbox_id} is gone: the next use makes a new one."
        return SandboxLostError(message, provider=self.name, sandbox_id=sandbox_id)
