"""execd, the server inside an OpenSandbox sandbox: runs code, stops it, keeps files.

All code of a sandbox runs in execd's default Python context: another process that knows no more than the sandbox's id
finds the same variables there. Source of the protocol: components/execd/pkg/web of the OpenSandbox repository, and
recordings of version 1.0.19.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncGenerator, Collection
from typing import Any, Protocol, TypeVar

import httpx

from ..errors import (
    AuthenticationError,
    FileTransferError,
    KernelDiedError,
    OutputTruncatedError,
    ProviderError,
    RateLimitError,
    SandboxBusyError,
    SandboxError,
)
from ..models import ContainerHandle, Display, End, Event, FileInfo, Stderr, Stdout
from .execd_wire import SEPARATOR, CodeStream
from .frames import STREAM_CAP, Frames, MiB, cut_text
from .http import HTTPClient
from .prelude import prelude

PORT = 44772
JUPYTER_PORT = 44771
FIRST_BYTE = 110.0
"""Seconds until execd must begin to answer in a new context: it does so when the kernel has started."""
IDLE = 20.0
"""Seconds without a byte after which a run is given up: execd sends a keepalive every three."""
BUSY_PATIENCE = 5.0
"""Seconds in which code that was just stopped has to make room."""
NO_IPYTHON = "ipy-sandbox: this kernel is not IPython"
PRELUDE = f"{prelude('execute_result')}\ntry:\n    get_ipython\nexcept NameError:\n    print({NO_IPYTHON!r})\n"
OWN_404 = {"CONTEXT_NOT_FOUND", "FILE_NOT_FOUND"}
"""What execd itself does not find; any other 404 is of somebody on the way to it."""
REFUSALS = {400, 404, 405, 422, 500}

ErrorT = TypeVar("ErrorT", bound=SandboxError)


class ControlPlane(Protocol):
    """What execd's client needs of the server that made the sandbox."""

    async def check(self, handle: ContainerHandle) -> None:
        """Raise SandboxLostError if the sandbox is gone."""
        ...

    async def locate(self, handle: ContainerHandle) -> None:
        """Set the handle's endpoint and its headers."""
        ...

    def headers(self, handle: ContainerHandle) -> dict[str, str]:
        """Headers of ours for the endpoint."""
        ...


class _Busy(Exception):
    """Other code runs in the context; ours was not started."""


class Execd:
    """One sandbox's execd, reached at `handle.endpoint` with the headers in `handle.secrets`.

    `handle.context` is the id of the context that has had our display prelude, and after a slash the process id of its
    kernel, where that is known.

    Arguments:
        control: asked when execd does not answer as it should.
    """

    def __init__(self, http: HTTPClient, handle: ContainerHandle, control: ControlPlane) -> None:
        self.handle = handle
        self.plain = False
        """Whether the kernel takes no prelude, as it is not IPython."""
        self._http = http
        self._control = control
        self._lock = asyncio.Lock()
        self._begun: asyncio.Event | None = None
        self._left_running = False

    async def run(self, code: str) -> AsyncGenerator[Event, None]:
        """Run `code` and yield its events; closing the iterator early stops it. Runs queue here."""
        if not code.strip():
            # A context whose first code is blank never answers.
            yield End()
            return
        async with self._lock:
            await self._prepare()
            async with contextlib.aclosing(self._when_free(code)) as events:
                async for event in events:
                    yield event

    async def ping(self) -> None:
        """Raise ProviderError if execd does not answer."""
        await self._request("GET", "/ping", timeout=5)

    async def sees_jupyter(self) -> bool:
        """Whether Jupyter, through which the code runs, has started; True where that cannot be asked."""
        url = f"{self.handle.endpoint}/proxy/{JUPYTER_PORT}/api"
        response = await self._http.request("GET", url, expect=range(400, 600), headers=self._headers(), timeout=5)
        return response.status_code not in (502, 503, 504)

    async def prepare(self) -> None:
        """Start the kernel and install the display prelude, once; that it runs also shows that all is ready."""
        async with self._lock:
            await self._prepare()

    async def _prepare(self) -> None:
        if self.handle.context is not None or self.plain:
            return
        try:
            async for event in self._when_free(PRELUDE):
                self.plain = self.plain or event == Stdout(f"{NO_IPYTHON}\n")
        except BaseException:
            self.handle.context = None
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
            if self._left_running:
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
        self._begun = asyncio.Event()
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
            self._begun = None
            self._left_running = wire.running
            if wire.running:
                await self._interrupt_quietly()

    async def _events(self, frames: Frames, wire: CodeStream) -> AsyncGenerator[Event, None]:
        if frames.response.status_code != 200:
            wire.running = False
            raise self._refusal(frames.response.status_code, _said(frames.response))
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
            self.handle.context = f"{wire.context}/{pid}" if pid else wire.context
        if wire.started and self._begun is not None:
            self._begun.set()

    async def _last_events(self, frames: Frames, wire: CodeStream) -> list[Event]:
        if wire.empty:
            raise self._error(
                OutputTruncatedError,
                "closed the stream before the code gave anything: it was stopped, and nothing was run again",
            )
        wire.running = frames.exhausted
        if not wire.started and not wire.ended and not await self._lives():
            self.handle.context = None
            raise self._error(
                KernelDiedError,
                "had lost its kernel before this code, which a new one ran: variables are lost, files are kept",
            )
        marked = wire.started or self._context()[1] is not None
        note = None
        if frames.exhausted:
            note = "There was far too much output: the code was stopped, and its output is left out from where it grew."
        elif frames.truncated:
            note = f"The output after the first {STREAM_CAP // MiB} MiB is left out."
        elif marked and not wire.ended and not wire.failed:
            await self._control.check(self.handle)
            note = "The end of the output was lost: OpenSandbox closed the stream before it had sent everything."
        text = cut_text(frames.partial)
        kind = Stderr if b'"stderr"' in frames.partial[:50] else Stdout
        return [*([kind(text)] if text else []), End(truncated=note)]

    def _refusal(self, status: int, message: str) -> Exception:
        if "session is busy" in message:
            return _Busy()
        if "context not found" in message:
            self.handle.context = None
            return self._error(
                KernelDiedError,
                "has lost its kernel: variables are lost, files are kept, and this code was not run: run it again",
            )
        return self._error(ProviderError, f"did not run the code ({status}: {message})", status=status)

    def _context(self) -> tuple[str | None, int | None]:
        """The id of the prepared context, and the process id of its kernel."""
        context, _, pid = (self.handle.context or "").partition("/")
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
            return _code(response) != "FILE_NOT_FOUND"
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
        if self._begun is not None and not self.plain:
            # The kernel does not remember an interrupt that comes before the code.
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(2):
                    await self._begun.wait()
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
        self.handle.context = None

    async def upload(self, path: str, data: bytes) -> None:
        """Write a file; parents are made."""
        metadata = json.dumps({"path": path, "mode": 644}).encode()
        # The metadata has to be a file part, with a file name.
        parts = [
            ("metadata", ("metadata", metadata, "application/json")),
            ("file", ("file", data, "application/octet-stream")),
        ]
        await self._file("write", "POST", "/files/upload", path, files=parts, timeout=httpx.Timeout(60, read=300))

    async def download(self, path: str) -> bytes:
        """Read a file."""
        return (await self._file("read", "GET", "/files/download", path, params={"path": path})).content

    async def list_files(self, path: str) -> list[FileInfo]:
        """The entries of a directory, sorted by path."""
        entries = (await self._file("list", "GET", "/directories/list", path, params={"path": path})).json()
        found = [
            FileInfo(
                path=entry["path"],
                is_dir=entry.get("type") == "directory",
                size=entry.get("size", 0),
                modified_at=entry.get("modified_at"),
            )
            for entry in entries
        ]
        return sorted(found, key=lambda file: file.path)

    async def _file(self, verb: str, method: str, route: str, path: str, **request: Any) -> httpx.Response:
        response = await self._request(method, route, expect=REFUSALS, **request)
        if response.is_success:
            return response
        raise self._error(FileTransferError, f"could not {verb} {path!r}: {_said(response)}")

    async def _request(
        self, method: str, route: str, *, expect: Collection[int] = (), **request: Any
    ) -> httpx.Response:
        await self._ensure_endpoint()
        try:
            response = await self._send(method, route, expect, request)
        except AuthenticationError:
            await self._control.locate(self.handle)
            response = await self._send(method, route, expect, request)
        except ProviderError:
            await self._control.check(self.handle)
            raise
        if response.status_code == 404 and _code(response) not in OWN_404:
            await self._control.check(self.handle)
        return response

    async def _send(self, method: str, route: str, expect: Collection[int], request: dict[str, Any]) -> httpx.Response:
        url, headers = f"{self.handle.endpoint}{route}", self._headers()
        return await self._http.request(
            method, url, expect=expect, headers=headers, sandbox_id=self.handle.id, **request
        )

    async def _ensure_endpoint(self) -> None:
        if self.handle.endpoint is None:
            await self._control.locate(self.handle)

    def _headers(self) -> dict[str, str]:
        own = {name: value.get_secret_value() for name, value in self.handle.secrets.items()}
        return self._control.headers(self.handle) | own

    def _error(self, kind: type[ErrorT], message: str, **fields: Any) -> ErrorT:
        handle = self.handle
        return kind(f"Sandbox {handle.id} {message}.", provider=handle.provider, sandbox_id=handle.id, **fields)


def _body(response: httpx.Response) -> dict[str, Any]:
    with contextlib.suppress(ValueError):
        body = response.json()
        if isinstance(body, dict):
            return body
    return {}


def _code(response: httpx.Response) -> str:
    return str(_body(response).get("code", ""))


def _said(response: httpx.Response) -> str:
    return " ".join(str(_body(response).get("message") or response.text).split())[:300] or str(response.status_code)
