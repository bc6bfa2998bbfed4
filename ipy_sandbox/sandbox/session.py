"""Session: a sandbox that is kept between runs. Notebook sessions and the proxy's sticky sessions are this class."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator, Callable, Iterator
from types import TracebackType

from ..background import BACKGROUND, wake_on_signals
from ..errors import SandboxError, SandboxLostError
from ..models import CodeExecutionResult, ContainerHandle, Event, FileInfo, SandboxInfo, SandboxOptions
from . import execution
from .provider import Provider, default_provider_name, open_provider


class Session:
    """A sandbox with a lock and a lifetime: made on first use, kept until `close`, made anew after a loss.

    Runs happen one after another. Every use lets the sandbox live its full timeout again. When the sandbox is lost,
    the run that noticed raises SandboxLostError, `lost` says what is gone, and the next use makes a new sandbox;
    nothing is run twice.

        async with Session("local") as session:          with Session("local") as session:
            await session.arun("x = 1")                      session.run("x = 1")

    A session belongs to the event loop that first uses it; the plain methods all share one in the background.

    Arguments:
        provider: a name (None: the default provider) or an instance, which stays the caller's to close.
        options: how its sandboxes are made, such as `SandboxOptions(timeout=600, allow_internet_access=True)`.
        handle: a sandbox that exists already.
        name: what people call the session.
        api_key, api_base: of a provider that is given by name, instead of its environment variables.
    """

    def __init__(
        self,
        provider: str | Provider | None = None,
        options: SandboxOptions | None = None,
        *,
        handle: ContainerHandle | None = None,
        name: str = "default",
        api_key: str | None = None,
        api_base: str | None = None,
    ) -> None:
        self._owns_provider = provider is None or isinstance(provider, str)
        if provider is None or isinstance(provider, str):
            provider = open_provider(provider or default_provider_name(), api_key=api_key, api_base=api_base)
        self.provider = provider
        self.options = options or SandboxOptions()
        self.name = name
        self.handle = handle
        self.lost: SandboxLostError | None = None
        """Why the previous sandbox is gone, until the next one is made."""
        self.executions = 0
        """Runs in the current sandbox."""
        self.last_used = time.monotonic()
        self._lock = asyncio.Lock()
        self._renewed_at = time.monotonic()
        self._closed = False

    def __repr__(self) -> str:
        sandbox = "closed" if self._closed else self.handle.id if self.handle else "no sandbox yet"
        return f"<Session {self.name!r} on {self.provider.name}: {sandbox}>"

    @property
    def busy(self) -> bool:
        """Whether code runs now."""
        return self._lock.locked()

    async def astart(self) -> ContainerHandle:
        """The sandbox, made if there is none."""
        async with self._lock:
            return await self._ensure()

    async def _ensure(self) -> ContainerHandle:
        if self._closed:
            raise self._is_closed()
        wake_on_signals()
        if self.handle is None:
            handle = await self.provider.create(self.options)
            if self._closed:
                # Closed meanwhile: nobody else knows of this sandbox.
                await self.provider.delete(handle)
                raise self._is_closed()
            self.handle = handle
            self.executions, self.lost, self._renewed_at = 0, None, time.monotonic()
        return self.handle

    def _is_closed(self) -> SandboxError:
        return SandboxError(f"Session {self.name!r} is closed: make a new one.", provider=self.provider.name)

    async def astream(
        self, code: str, timeout: float | None = None, *, on_start: Callable[[], None] | None = None
    ) -> AsyncGenerator[Event, None]:
        """Run `code` and yield its events; closing the iterator early stops the code.

        Arguments:
            timeout: seconds the run may take; None means no limit.
            on_start: called when earlier runs have ended and this code is about to run: from then on `ainterrupt`
                concerns it.
        """
        async with self._lock:
            handle = await self._ensure()
            try:
                with self._noticing_loss():
                    await self._renew_if_due(handle)
                    self.executions += 1
                    if on_start is not None:
                        on_start()
                    events = execution.stream(self.provider, handle, code, timeout)
                    async with contextlib.aclosing(events):
                        async for event in events:
                            yield event
            finally:
                self.last_used = time.monotonic()

    async def arun(self, code: str, timeout: float | None = None) -> CodeExecutionResult:
        """Run `code` and return its result."""
        return await execution.collect(self.astream(code, timeout))

    async def _renew_if_due(self, handle: ContainerHandle) -> None:
        # Not at each run: a tenth of the lifetime is precise enough and saves a request.
        now = time.monotonic()
        if self.executions and now - self._renewed_at > self.options.timeout / 10:
            await self.provider.renew(handle, self.options.timeout)
            self._renewed_at = now

    @contextlib.contextmanager
    def _noticing_loss(self) -> Iterator[None]:
        try:
            yield
        except SandboxLostError as error:
            self.lost, self.handle = error, None
            raise

    async def ainterrupt(self) -> None:
        """Stop the code that runs now, as Ctrl-C would."""
        if self.handle is not None:
            await self.provider.interrupt(self.handle)

    async def arestart(self) -> None:
        """Stop what runs and give the sandbox a fresh kernel; files stay."""
        if self.handle is None:
            return
        await self.ainterrupt()
        async with self._lock:
            with self._noticing_loss():
                await self.provider.restart(self.handle)
            self.executions = 0

    async def arenew(self, timeout: float | None = None) -> None:
        """Let the sandbox live `timeout` seconds from now, and after each later use."""
        if timeout is not None:
            self.options = self.options.model_copy(update={"timeout": timeout})
        if self.handle is not None:
            with self._noticing_loss():
                await self.provider.renew(self.handle, self.options.timeout)
            self._renewed_at = time.monotonic()

    async def aupload(self, path: str, data: bytes) -> None:
        """Write a file in the sandbox."""
        handle = await self.astart()
        with self._noticing_loss():
            await self.provider.upload(handle, path, data)

    async def adownload(self, path: str) -> bytes:
        """Read a file of the sandbox."""
        handle = await self.astart()
        with self._noticing_loss():
            return await self.provider.download(handle, path)

    async def alist_files(self, path: str = ".") -> list[FileInfo]:
        """The entries of a directory of the sandbox."""
        handle = await self.astart()
        with self._noticing_loss():
            return await self.provider.list_files(handle, path)

    async def ainfo(self) -> SandboxInfo | None:
        """What the provider knows of the sandbox now; None while there is none."""
        if self.handle is None:
            return None
        with self._noticing_loss():
            return await self.provider.info(self.handle)

    async def aclose(self, *, keep: bool = False) -> bool:
        """Delete the sandbox (not with `keep`) and end the session; True if a sandbox was deleted."""
        self._closed = True
        handle, self.handle = self.handle, None
        try:
            return handle is not None and not keep and await self.provider.delete(handle)
        finally:
            if self._owns_provider:
                await self.provider.aclose()

    async def __aenter__(self) -> Session:
        try:
            await self.astart()
        except BaseException as error:
            await self._close_without_hiding(error)  # there will be no exit
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self._close_without_hiding(error)

    async def _close_without_hiding(self, error: BaseException | None) -> None:
        try:
            await self.aclose()
        except SandboxError:
            # The sandbox ends with its own lifetime; what the body raised matters more.
            if error is None:
                raise

    def start(self) -> ContainerHandle:
        """`astart`, for plain code."""
        return BACKGROUND.run(self.astart())

    def stream(self, code: str, timeout: float | None = None) -> Iterator[Event]:
        """`astream`, for plain code."""
        return BACKGROUND.iterate(self.astream(code, timeout))

    def run(self, code: str, timeout: float | None = None) -> CodeExecutionResult:
        """`arun`, for plain code."""
        return BACKGROUND.run(self.arun(code, timeout))

    def interrupt(self) -> None:
        """`ainterrupt`, for plain code (from another thread)."""
        BACKGROUND.run(self.ainterrupt())

    def restart(self) -> None:
        """`arestart`, for plain code."""
        BACKGROUND.run(self.arestart())

    def renew(self, timeout: float | None = None) -> None:
        """`arenew`, for plain code."""
        BACKGROUND.run(self.arenew(timeout))

    def upload(self, path: str, data: bytes) -> None:
        """`aupload`, for plain code."""
        BACKGROUND.run(self.aupload(path, data))

    def download(self, path: str) -> bytes:
        """`adownload`, for plain code."""
        return BACKGROUND.run(self.adownload(path))

    def list_files(self, path: str = ".") -> list[FileInfo]:
        """`alist_files`, for plain code."""
        return BACKGROUND.run(self.alist_files(path))

    def info(self) -> SandboxInfo | None:
        """`ainfo`, for plain code."""
        return BACKGROUND.run(self.ainfo())

    def close(self, *, keep: bool = False) -> bool:
        """`aclose`, for plain code."""
        return BACKGROUND.run(self.aclose(keep=keep))

    def __enter__(self) -> Session:
        return BACKGROUND.run(self.__aenter__())

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        BACKGROUND.run(self._close_without_hiding(error))
