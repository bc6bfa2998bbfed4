"""Running code in an e2b sandbox: `POST /execute` of the template's server, and what it takes to live with it.

The server knows no interrupt but a closed connection. A run that arrives within a moment of one, or behind a cancelled
one, is never started and gets keepalives for ever. So runs queue on our side, wait a moment after a closed connection,
and are sent again when the server lets them lie.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import Any

import httpx

from ..errors import KernelDiedError, OutputTruncatedError, ProviderError, SandboxBusyError
from ..models import ContainerHandle, Event, ExecutionError
from .e2b_address import CODE_PORT, sandbox_headers, sandbox_url
from .e2b_wire import STOPPED, Answer, KernelRestarted, NothingCame, Unstarted
from .frames import STREAM_CAP
from .http import HTTPClient, understanding
from .lanes import Lane, Running
from .prelude import prelude

DEFAULT_CONTEXT = "default"


@dataclass(frozen=True)
class Timing:
    """Seconds. The server sends a keepalive after every 5 s of silence while code runs.

    settle: rest after a closed connection, until the kernel takes code again.
    first_byte, idle: silence after which the server, or the connection, counts as dead.
    unstarted: how long a run may get keepalives without having been started, before it is sent again.
    patience: the same for the second time, before the kernel is restarted; code that was stopped may still end.
    start: how long the server of a new sandbox may need until it listens.
    """

    settle: float = 0.4
    first_byte: float = 30
    idle: float = 30
    unstarted: float = 9
    patience: float = 29
    start: float = 20


class _Kernel(Lane):
    """What this process knows of the kernel of a sandbox."""

    def __init__(self) -> None:
        super().__init__()
        self.prepared: bool | None = None
        """Whether the prelude ran in it; None: not in this process, the handle knows."""
        self.context: str | None = None
        """The server's name of the kernel, where it is not the handle's."""
        self.rest_until = 0.0


_KERNELS: dict[str, _Kernel] = {}


class CodeInterpreter:
    """Runs code in sandboxes, over one HTTP client.

    Raises, beside the errors of the client: KernelDiedError, SandboxBusyError (another process runs code there) and
    OutputTruncatedError. Whether the sandbox is gone altogether is the provider's to find out.
    """

    timing = Timing()
    output_cap = STREAM_CAP

    def __init__(self, http: HTTPClient) -> None:
        self._http = http

    async def run(self, handle: ContainerHandle, code: str) -> AsyncGenerator[Event, None]:
        """Run `code` and yield its events, as `Provider.run` has to."""
        kernel = _kernel(handle)
        async with kernel.turn() as running:
            await self._prepare(handle, kernel, running)
            async with contextlib.aclosing(self._start(handle, kernel, running, code)) as run:
                async for event in run:
                    yield event

    async def prepare(self, handle: ContainerHandle) -> None:
        """Wait until a new sandbox runs code, and run the prelude in it."""
        kernel = _kernel(handle)
        end = time.monotonic() + self.timing.start
        async with kernel.turn() as running:
            while True:
                try:
                    return await self._prepare(handle, kernel, running)
                except ProviderError as error:
                    failure = error
                # The machine runs before its server listens.
                if failure.status != 502 or time.monotonic() > end:
                    break
                await asyncio.sleep(0.2)
        raise failure

    def interrupt(self, handle: ContainerHandle) -> None:
        """Stop what this process runs in the sandbox now."""
        _kernel(handle).stop()

    async def restart(self, handle: ContainerHandle) -> None:
        """Stop what runs, and make the kernel a fresh one."""
        kernel = _kernel(handle)
        kernel.stop()
        async with kernel.turn():
            await self._revive(handle, kernel)

    def forget(self, handle: ContainerHandle) -> None:
        """Drop what is known of the sandbox: it is gone."""
        _KERNELS.pop(handle.id, None)

    async def _prepare(self, handle: ContainerHandle, kernel: _Kernel, running: Running) -> None:
        if handle.context is not None if kernel.prepared is None else kernel.prepared:
            return
        code = prelude("display_data", _env_vars(handle))
        # A first run may fail on the variables that the server pastes into it as code; it does so only once.
        for _ in range(2):
            ran = [event async for event in self._start(handle, kernel, running, code)]
            if not any(isinstance(event, ExecutionError) for event in ran):
                break
        if not running.stopped.is_set():
            kernel.prepared = True
            handle.context = _context(handle, kernel)

    async def _start(
        self, handle: ContainerHandle, kernel: _Kernel, running: Running, code: str
    ) -> AsyncGenerator[Event, None]:
        """Run `code`, once more if the server did not start it, and make sense of a server that does neither."""
        for patience in (self.timing.unstarted, self.timing.patience):
            await asyncio.sleep(max(0.0, kernel.rest_until - time.monotonic()))
            if running.stopped.is_set():
                for stopped in STOPPED:
                    yield stopped
                return
            run = self._execute(handle, kernel, running, code, patience)
            try:
                async with contextlib.aclosing(run):
                    async for event in run:
                        yield event
                return
            except Unstarted:
                continue
            except NothingCame:
                pass
            except KernelRestarted as restarted:
                what = "" if restarted.started else "; this code was not run"
                raise self._died(handle, kernel, f"died and was started again{what}") from None
            if await self._answers(handle, kernel):
                raise self._cut(handle)
            break
        await self._revive(handle, kernel)
        raise self._died(handle, kernel, "did not take code any more and was restarted; this code was not run")

    async def _execute(
        self,
        handle: ContainerHandle,
        kernel: _Kernel,
        running: Running,
        code: str,
        patience: float,
        first_byte: float | None = None,
    ) -> AsyncGenerator[Event, None]:
        context = _context(handle, kernel)
        body = {"code": code} if context == DEFAULT_CONTEXT else {"code": code, "context_id": context}
        ended = False
        try:
            async with self._http.stream(
                "POST",
                sandbox_url(handle, CODE_PORT, "/execute"),
                separator=b"\n",
                expect={404},
                cap=self.output_cap,
                first_byte=first_byte or self.timing.first_byte,
                idle=self.timing.idle,
                sandbox_id=handle.id,
                headers=sandbox_headers(handle, CODE_PORT) | {"Content-Type": "application/json"},
                content=json.dumps(body),
            ) as frames:
                if frames.response.status_code == 404:
                    kernel.context = DEFAULT_CONTEXT
                    raise self._died(handle, kernel, "is not there any more; this code was not run")
                answer = Answer(frames, _env_vars(handle).values(), patience)
                with running.on_stop(frames.stop):
                    async for event in answer.events():
                        ended = answer.ended
                        if answer.kernel_lost:
                            kernel.prepared = False
                        yield event
        finally:
            if not ended:
                kernel.rest_until = time.monotonic() + self.timing.settle

    async def _answers(self, handle: ContainerHandle, kernel: _Kernel) -> bool:
        """Whether the kernel answers to nothing at all; one that is busy with other code counts as alive."""
        running = Running()
        try:
            async for _ in self._execute(handle, kernel, running, "", self.timing.unstarted, first_byte=5):
                pass
        except NothingCame:
            return False
        except (SandboxBusyError, Unstarted, KernelRestarted):
            return True
        return True

    async def _revive(self, handle: ContainerHandle, kernel: _Kernel) -> None:
        """Restart the kernel; where that fails use a new one, and call it by name from now on."""
        context = _context(handle, kernel)
        try:
            if context == DEFAULT_CONTEXT:
                known = await self._contexts(handle, "GET", "")
                with understanding("e2b", "its kernels"):
                    context = str(next(c["id"] for c in known.json() if c["language"] == "python"))
            await self._contexts(handle, "POST", f"/{context}/restart")
        except ProviderError:
            made = await self._contexts(handle, "POST", "", json={"language": "python"})
            with understanding("e2b", "a kernel"):
                context = str(made.json()["id"])
        kernel.context, kernel.prepared, kernel.rest_until = context, False, 0.0

    async def _contexts(self, handle: ContainerHandle, method: str, path: str, **request: Any) -> httpx.Response:
        url = sandbox_url(handle, CODE_PORT, "/contexts" + path)
        headers = sandbox_headers(handle, CODE_PORT)
        return await self._http.request(method, url, headers=headers, sandbox_id=handle.id, **request)

    def _died(self, handle: ContainerHandle, kernel: _Kernel, what: str) -> KernelDiedError:
        kernel.prepared = False
        return KernelDiedError(
            f"The kernel of the e2b sandbox {handle.id} {what}: its variables are lost, its files are kept.",
            provider="e2b",
            sandbox_id=handle.id,
        )

    def _cut(self, handle: ContainerHandle) -> OutputTruncatedError:
        return OutputTruncatedError(
            f"The answer of the e2b sandbox {handle.id} was cut before its end: the code may have run, and nothing was "
            "run again.",
            provider="e2b",
            sandbox_id=handle.id,
        )


def _kernel(handle: ContainerHandle) -> _Kernel:
    return _KERNELS.setdefault(handle.id, _Kernel())


def _context(handle: ContainerHandle, kernel: _Kernel) -> str:
    return kernel.context or handle.context or DEFAULT_CONTEXT


def _env_vars(handle: ContainerHandle) -> dict[str, str]:
    return dict(json.loads(handle.secret("env_vars") or "{}"))
