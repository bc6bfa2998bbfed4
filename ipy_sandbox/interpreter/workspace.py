"""Where the code of one request runs: a sandbox of its own, a sticky session, or one that the caller brought."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import logging
import posixpath
import weakref
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterable
from contextlib import AbstractAsyncContextManager
from typing import Any, Protocol, TypeAlias, TypeVar

from ..errors import InvalidRequestError, SandboxError, SandboxLostError
from ..models import ContainerHandle, Event
from ..sandbox.session import Session
from .calls import new_id

T = TypeVar("T")

logger = logging.getLogger("ipy_sandbox")

DATA_DIRECTORY = "/mnt/data"
"""Where OpenAI's containers keep files for the user."""

MOST_FILES = 100
"""Files that one answer can cite."""

NEW_SANDBOX = "[note: this ran in a new, empty sandbox; variables and files of earlier calls are gone]"


class Spawn(Protocol):
    """Starts a task that may outlive the request."""

    def __call__(self, work: Coroutine[Any, Any, T], /) -> asyncio.Task[T]:
        """Start `work`."""
        ...


Lease: TypeAlias = Callable[[], AbstractAsyncContextManager[Session]]


class Containers:
    """The container ids that clients see, and the files behind them; forgotten with their session.

    An id stands for one sandbox: when a session had to make a new one, the id changes too.
    """

    def __init__(self) -> None:
        self._ids: weakref.WeakKeyDictionary[Session, tuple[str, str | None]] = weakref.WeakKeyDictionary()
        self._paths: weakref.WeakKeyDictionary[Session, dict[str, str]] = weakref.WeakKeyDictionary()

    def id_of(self, session: Session) -> str:
        """The `cntr_…` id of the session's sandbox, also of one that is yet to be made."""
        sandbox = session.handle.id if session.handle is not None else None
        container, known = self._ids.get(session, ("", None))
        if not container or (known is not None and known != sandbox):
            container = new_id("cntr")
        self._ids[session] = container, sandbox
        return container

    def forget(self, session: Session) -> None:
        """The session's sandbox is gone: the next one has another id, and its files are not there."""
        self._ids.pop(session, None)
        self._paths.pop(session, None)

    def find(self, sessions: dict[str, Session], container_id: str) -> str:
        """The key of the session with that container.

        Raises:
            InvalidRequestError: none of `sessions` has it (another caller's looks the same as none).
        """
        for key, session in sessions.items():
            if session in self._ids and self.id_of(session) == container_id:
                return key
        message = "Container not found: one lasts as long as the session that metadata.session_id names."
        raise InvalidRequestError(message, status=404, param="container", code="container_not_found")

    def file_id(self, session: Session, path: str) -> str:
        """The `cfile_…` id of a file in the session's sandbox."""
        digest = hashlib.sha256(f"{self.id_of(session)} {path}".encode()).hexdigest()
        file_id = f"cfile_{digest[:32]}"
        self._paths.setdefault(session, {})[file_id] = path
        return file_id

    def path(self, session: Session, file_id: str) -> str:
        """The file with that id; raises InvalidRequestError if there is none."""
        try:
            return self._paths[session][file_id]
        except KeyError:
            raise InvalidRequestError("File not found.", status=404, param="file_id", code="file_not_found") from None


class Workspace:
    """The sandbox of one request, made when its first code comes.

    Arguments:
        lease: gives the session, and takes it back at the end.
        spawn: starts a task that goes on when the request is over.
        slow_end: taking the session back takes time (its sandbox is deleted): nobody waits for that.
    """

    def __init__(
        self,
        containers: Containers,
        lease: Lease,
        spawn: Spawn,
        *,
        slow_end: bool,
    ) -> None:
        self._containers = containers
        self._lease = lease
        self._spawn = spawn
        self._slow_end = slow_end
        self._stack = contextlib.AsyncExitStack()
        self._session: Session | None = None
        self._starting: asyncio.Task[ContainerHandle] | None = None
        self._failed_container = new_id("cntr")
        self.is_new = True
        """Whether the sandbox that ran the latest code was fresh then."""

    async def container_id(self) -> str:
        """The id of the container that code will run in next."""
        try:
            return self._containers.id_of(await self._open())
        except SandboxError:
            # The run will fail for the same reason and say so; until then the call needs an id.
            return self._failed_container

    async def _open(self) -> Session:
        if self._session is None:
            self._session = await self._stack.enter_async_context(self._lease())
        return self._session

    def prepare(self) -> None:
        """Begin to make the sandbox, while the model still writes the code."""
        if self._session is not None and self._session.handle is None and self._starting is None:
            self._starting = self._spawn(self._session.astart())
            self._starting.add_done_callback(_retrieve)

    async def run(self, code: str, timeout: float | None) -> AsyncGenerator[Event, None]:
        """Run `code` and yield its events; raises the errors of `Session.astream`.

        A sandbox that turns out to be gone before the code was sent to it is replaced; code is never sent twice.
        """
        session = await self._open()
        if self._starting is not None:
            starting, self._starting = self._starting, None
            # Left alone when this request is cancelled: a sandbox half made could not be deleted.
            await asyncio.shield(starting)
        sent = session.executions
        self.is_new = not sent
        try:
            async with contextlib.aclosing(self._events(session, code, timeout)) as events:
                async for event in events:
                    yield event
            return
        except SandboxLostError:
            if not sent or session.executions != sent:
                raise
        self.is_new = True
        async with contextlib.aclosing(self._events(session, code, timeout)) as events:
            async for event in events:
                yield event

    async def _events(self, session: Session, code: str, timeout: float | None) -> AsyncGenerator[Event, None]:
        try:
            async with contextlib.aclosing(session.astream(code, timeout)) as events:
                async for event in events:
                    yield event
        except SandboxLostError:
            self._containers.forget(session)
            raise

    async def cite(self, paths: Iterable[str]) -> dict[str, str]:
        """File ids of those `paths` that are files in the data directory of a sandbox that outlives the request."""
        session = self._session
        if session is None or session.handle is None or self._slow_end:
            return {}
        inside = {path for path in paths if posixpath.normpath(path) == path and path.startswith(f"{DATA_DIRECTORY}/")}
        wanted = set(sorted(inside)[:MOST_FILES])
        try:
            entries = [e for d in {posixpath.dirname(p) for p in wanted} for e in await session.alist_files(d)]
        except SandboxError as error:
            logger.warning("the files that an answer links could not be looked up: %s", error)
            return {}
        there = sorted(wanted & {entry.path for entry in entries if not entry.is_dir})
        return {path: self._containers.file_id(session, path) for path in there}

    async def aclose(self) -> None:
        """Give the session back."""
        if self._session is None:
            return
        if self._slow_end or (self._starting is not None and not self._starting.done()):
            self._spawn(self._finish())
        else:
            await self._stack.aclose()

    async def _finish(self) -> None:
        if self._starting is not None:
            await asyncio.wait({self._starting})
        await self._stack.aclose()


def _retrieve(task: asyncio.Task[Any]) -> None:
    # A failure is raised where the sandbox is needed; if it no longer is, nobody wants to hear of it.
    if not task.cancelled():
        task.exception()


@contextlib.asynccontextmanager
async def ephemeral(make: Callable[[], Session]) -> AsyncGenerator[Session, None]:
    """A session whose sandbox is deleted at the end."""
    session = make()
    try:
        yield session
    finally:
        await _delete(session)


async def _delete(session: Session) -> None:
    handle = session.handle
    try:
        await session.aclose()
    except SandboxError as error:
        logger.warning("a sandbox was not deleted and ends with its own lifetime: %s", error)
    except asyncio.CancelledError:
        # The event loop is being closed, perhaps with the request half sent; it waits for this.
        if handle is not None:
            await session.provider.delete(handle)
        raise


@contextlib.asynccontextmanager
async def borrowed(session: Session) -> AsyncGenerator[Session, None]:
    """A session of the caller's, which stays as it is."""
    yield session
