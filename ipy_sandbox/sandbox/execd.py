"""Code in an OpenSandbox sandbox, run by execd.

All code of a sandbox runs in execd's default Python context: another process that knows no more than the sandbox's id
finds the same variables there. Source of the protocol: components/execd/pkg/web of the OpenSandbox repository, and
recordings of version 1.0.19.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import time
from collections.abc import AsyncGenerator

from ..errors import (
    AuthenticationError,
    KernelDiedError,
    OutputTruncatedError,
    ProviderError,
    RateLimitError,
    SandboxBusyError,
    SandboxError,
)
from ..models import ContainerHandle, Display, End, Event, Stderr, Stdout
from .execd_client import REFUSALS, ControlPlane, ExecdClient, error_code, said
from .execd_wire import SEPARATOR, CodeStream, shown_part
from .frames import STREAM_CAP, Frames, MiB
from .http import HTTPClient
from .lanes import Lane
from .prelude import prelude

FIRST_BYTE = 110.0
"""Seconds until execd must begin to answer in a new context: it does so when the kernel has started."""
IDLE = 20.0
"""Seconds without a byte after which a run is given up: execd sends a keepalive every three."""
BUSY_PATIENCE = 5.0
"""Seconds in which code that was just stopped has to make room."""
NO_IPYTHON = "ipy-sandbox: this kernel is not IPython"
PRELUDE = f"{prelude('execute_result')}\ntry:\n    get_ipython\nexcept NameError:\n    print({NO_IPYTHON!r})\n"


class _Kernel(Lane):
    """What this process knows of a sandbox's kernel: who has his turn, and whether it has been prepared."""

    def __init__(self) -> None:
        super().__init__()
        self.context: str | None = None
        """As in the handle; None also before anything is known of it."""
        self.known = False
        """Whether it is rather this than what a handle has kept."""
        self.begun: concurrent.futures.Future[None] | None = None
        """Done when the code whose turn it is begins."""
        self.left_running = False
        """Whether code that nobody reads any more may still run."""


_KERNELS: dict[str, _Kernel] = {}


class _Busy(Exception):
    """Other code runs in the context; ours was not started."""


class Execd(ExecdClient):
    """Runs code, stops it, and keeps to one kernel.

    `handle.context` is the id of the context that has had our display prelude, and after a slash the process id of its
    kernel, where that is known.
    """

    def __init__(self, http: HTTPClient, handle: ContainerHandle, control: ControlPlane) -> None:
        super().__init__(http, handle, control)
        self.plain = False
        """Whether the kernel takes no prelude, as it is not IPython."""
        self._kernel = _KERNELS.setdefault(handle.id, _Kernel())
        if not self._kernel.known:
            self._kernel.context = handle.context

    def forget(self) -> None:
        """Drop what is known of the sandbox: it is gone."""
        _KERNELS.pop(self.handle.id, None)

    async def run(self, code: str) -> AsyncGenerator[Event, None]:
        """Run `code` and yield its events; closing the iterator early stops it. Runs queue here."""
        if not code.strip():
            # A context whose first code is blank never answers.
            yield End()
            return
        async with self._kernel.turn():
            await self._prepare()
            async with contextlib.aclosing(self._when_free(code)) as events:
                async for event in events:
                    yield event

    async def prepare(self) -> None:
        """Start the kernel and install the display prelude, once; that it runs also shows that all is ready."""
        async with self._kernel.turn():
            await self._prepare()

    async def _prepare(self) -> None:
        self.handle.context = self._kernel.context
        if self._kernel.context is not None or self.plain:
            return
        try:
            async for event in self._when_free(PRELUDE):
                self.plain = self.plain or event == Stdout(f"{NO_IPYTHON}\n")
        except BaseException:
            self._remember(None)
            raise

    async def _when_free(self, code: str) -> AsyncGenerator[Event, None]:
        end, pause = time.monotonic() + BUSY_PATIENCE, 0.05
        while True:
            try:
                async with contextlib.aclosing(self._explained(code)) as events:
                    async for event in events:
                        yield event
                return
            except _Busy:
                if time.monotonic() > end:
                    break
            if self._kernel.left_running:
                # It may have begun only after it was interrupted.
                await self._interrupt_quietly()
            await asyncio.sleep(pause)
            pause = min(pause * 2, 0.5)
        raise self._error(SandboxBusyError, "runs other code: wait for its end, interrupt it, or restart the kernel")

    async def _explained(self, code: str) -> AsyncGenerator[Event, None]:
        """`_attempt`, with the loss of the sandbox told as such, and again with new headers if those are refused."""
        for last in (False, True):
            try:
                async with contextlib.aclosing(self._attempt(code)) as events:
                    async for event in events:
                        yield event
                return
            except AuthenticationError:
                if last:
                    raise
                await self._control.locate(self.handle)
            except (ProviderError, OutputTruncatedError):
                await self._control.check(self.handle)
                raise

    async def _attempt(self, code: str) -> AsyncGenerator[Event, None]:
        wire = CodeStream()
        begun = self._kernel.begun = concurrent.futures.Future[None]()
        await self._ensure_endpoint()
        context_id, _ = self._context()
        context = {"language": "python"} | ({"id": context_id} if context_id else {})
        try:
            async with (
                self._http.stream(
                    "POST",
                    f"{self.handle.endpoint}/code",
                    separator=SEPARATOR,
                    expect=REFUSALS,
                    first_byte=IDLE if context_id else FIRST_BYTE,
                    idle=IDLE,
                    headers=self._headers(),
                    json={"code": code, "context": context},
                    sandbox_id=self.handle.id,
                ) as frames,
                contextlib.aclosing(self._events(frames, wire)) as events,
            ):
                async for event in events:
                    yield event
        except (AuthenticationError, RateLimitError, ProviderError) as error:
            # An answer is a refusal; without one the request may have arrived.
            wire.running = isinstance(error, ProviderError) and error.status is None and wire.running
            raise
        finally:
            begun.cancel()
            self._kernel.begun = None
            self._kernel.left_running = wire.running
            if wire.running:
                await self._interrupt_quietly()

    async def _events(self, frames: Frames, wire: CodeStream) -> AsyncGenerator[Event, None]:
        if frames.response.status_code != 200:
            wire.running = False
            raise self._refusal(frames.response.status_code, said(frames.response))
        async for frame in frames:
            events = wire.read(frame)
            self._note(wire)
            for event in events:
                if not (frames.truncated and isinstance(event, Stdout | Stderr | Display)):
                    yield event
            if wire.pinged and wire.ended:
                # All has come, but execd did not notice.
                break
            if wire.pinged and wire.pings > 1 and not await self._lives():
                wire.running = False
                raise await self._died()
        for event in await self._last_events(frames, wire):
            yield event

    def _note(self, wire: CodeStream) -> None:
        if wire.problem is not None:
            wire.running = False
            raise self._refusal(200, wire.problem)
        if wire.context is not None:
            known, pid = self._context()
            pid = wire.pid or (pid if known == wire.context else None)
            self._remember(f"{wire.context}/{pid}" if pid else wire.context)
        begun = self._kernel.begun
        if wire.started and begun is not None and not begun.done():
            begun.set_result(None)

    async def _last_events(self, frames: Frames, wire: CodeStream) -> list[Event]:
        if wire.empty:
            raise self._error(
                OutputTruncatedError,
                "closed the stream before the code gave anything: it was stopped, and nothing was run again",
            )
        wire.running = frames.exhausted
        if not wire.started and not wire.ended and not await self._lives():
            self._remember(None)
            raise self._error(
                KernelDiedError,
                "had lost its kernel before this code, which a new one ran: variables are lost, files are kept",
            )
        marked = wire.started or self._context()[1] is not None
        note = None
        if frames.truncated:
            note = f"output beyond {STREAM_CAP // MiB} MiB was left out"
            note += ", and the code was stopped" if frames.exhausted else ""
        elif marked and not wire.ended and not wire.failed:
            await self._control.check(self.handle)
            note = "the end of the output was lost: OpenSandbox closed the stream before it had sent everything"
        return [*shown_part(frames.partial), End(truncated=note)]

    def _refusal(self, status: int, message: str) -> Exception:
        if "session is busy" in message:
            return _Busy()
        if "context not found" in message:
            self._remember(None)
            return self._error(
                KernelDiedError,
                "has lost its kernel: variables are lost, files are kept, and this code was not run: run it again",
            )
        return self._error(ProviderError, f"did not run the code ({status}: {message})", status=status)

    def _remember(self, context: str | None) -> None:
        self.handle.context = self._kernel.context = context
        self._kernel.known = True

    def _context(self) -> tuple[str | None, int | None]:
        """The id of the prepared context, and the process id of its kernel."""
        context, _, pid = (self._kernel.context or "").partition("/")
        return context or None, int(pid) if pid.isdigit() else None

    async def _lives(self) -> bool:
        """Whether the kernel's process exists; only execd's clear word makes it dead."""
        _, pid = self._context()
        if pid is None:
            return True
        with contextlib.suppress(SandboxError):
            response = await self._http.request(
                "GET",
                f"{self.handle.endpoint}/files/info",
                params={"path": f"/proc/{pid}"},
                expect=REFUSALS,
                headers=self._headers(),
                timeout=5,
            )
            return error_code(response) != "FILE_NOT_FOUND"
        return True

    async def _died(self) -> KernelDiedError:
        # execd goes on saying "busy" for ever in the context of a dead kernel.
        with contextlib.suppress(SandboxError):
            await self.restart()
        return self._error(
            KernelDiedError,
            "lives, but its kernel died (out of memory, or the code ended it): variables are lost, files are kept, "
            "and the next run starts a new kernel",
        )

    async def interrupt(self) -> None:
        """Stop the code that runs, as Ctrl-C would."""
        begun = self._kernel.begun
        if begun is not None and not self.plain:
            # The kernel does not remember an interrupt that comes before the code.
            await asyncio.wait([asyncio.wrap_future(begun)], timeout=2)
        await self._interrupt()

    async def _interrupt(self) -> None:
        for context in await self._contexts():
            # execd answers 500 if there is no such context.
            await self._request("DELETE", "/code", params={"id": context}, expect={404, 500})

    async def _interrupt_quietly(self) -> None:
        with contextlib.suppress(SandboxError, TimeoutError):
            async with asyncio.timeout(2):
                await self._interrupt()

    async def _contexts(self) -> list[str]:
        context, _ = self._context()
        if context is not None:
            return [context]
        known = await self._request("GET", "/code/contexts", params={"language": "python"}, expect=REFUSALS)
        return sorted({context["id"] for context in known.json()}) if known.is_success else []

    async def restart(self) -> None:
        """Delete the context with its kernel; the next run makes another."""
        for context in await self._contexts():
            await self._request("DELETE", f"/code/contexts/{context}", expect={404})
        self._remember(None)
