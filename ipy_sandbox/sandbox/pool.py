"""SessionPool: sticky sessions by identity and key, with a cap, a time to live and a sweep."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from types import TracebackType

from ..errors import SandboxBusyError, SandboxError
from .session import Session


@dataclass
class _Entry:
    session: Session
    users: int = 0
    used_at: float = field(default_factory=time.monotonic)


class SessionPool:
    """Maps (identity, key) to a session.

    One session per key even when two ask at once, and runs in it one after another; per identity at most `cap`
    sessions, of which a new one evicts the least recently used idle one; `ttl` seconds after its last use a session
    is closed.

    Arguments:
        make: makes the session for a new key.
        cap: sessions per identity.
        ttl: seconds an idle session lives.
        clock: monotonic seconds.
    """

    def __init__(
        self,
        make: Callable[[], Session],
        *,
        cap: int = 10,
        ttl: float = 900,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._make = make
        self._cap = cap
        self._ttl = ttl
        self._clock = clock
        self._entries: dict[tuple[str, str], _Entry] = {}
        self._closing: set[asyncio.Task[None]] = set()
        self._sweeper: asyncio.Task[None] | None = None

    def __len__(self) -> int:
        return len(self._entries)

    def sessions(self, identity: str) -> dict[str, Session]:
        """The identity's sessions by key."""
        return {key: entry.session for (owner, key), entry in self._entries.items() if owner == identity}

    @contextlib.asynccontextmanager
    async def lease(self, identity: str, key: str) -> AsyncIterator[Session]:
        """The session of `key`, safe from eviction inside the block.

        Raises:
            SandboxBusyError: the identity has `cap` sessions and all are running.
        """
        entry = self._entry(identity, key)
        entry.users += 1
        try:
            yield entry.session
        finally:
            entry.users -= 1
            entry.used_at = self._clock()

    def _entry(self, identity: str, key: str) -> _Entry:
        # No await in here: that is what makes two simultaneous requests share one session.
        self.sweep()
        self._start_sweeper()
        if entry := self._entries.get((identity, key)):
            return entry
        mine = {k: e for k, e in self._entries.items() if k[0] == identity}
        if len(mine) >= self._cap:
            self._evict(mine)
        session = self._make()
        # Its sandbox shall live as long as the pool keeps it.
        lifetime = max(session.options.timeout, self._ttl)
        session.options = session.options.model_copy(update={"timeout": lifetime})
        entry = self._entries[identity, key] = _Entry(session, used_at=self._clock())
        return entry

    def _evict(self, mine: dict[tuple[str, str], _Entry]) -> None:
        idle = [k for k, e in mine.items() if not e.users]
        if not idle:
            raise SandboxBusyError(f"All {self._cap} sessions are running code: wait for one to end, then try again.")
        self._close(min(idle, key=lambda k: mine[k].used_at))

    def sweep(self) -> None:
        """Close the sessions whose time to live is over."""
        limit = self._clock() - self._ttl
        for key in [k for k, e in self._entries.items() if not e.users and e.used_at < limit]:
            self._close(key)

    def _close(self, key: tuple[str, str]) -> None:
        task = asyncio.ensure_future(_close_quietly(self._entries.pop(key).session))
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)

    def _start_sweeper(self) -> None:
        if self._sweeper is None:
            self._sweeper = asyncio.ensure_future(self._sweep_for_ever())

    async def _sweep_for_ever(self) -> None:
        while True:
            await asyncio.sleep(min(self._ttl / 4, 30))
            self.sweep()

    async def aclose(self) -> None:
        """Delete every sandbox."""
        if self._sweeper is not None:
            self._sweeper.cancel()
            self._sweeper = None
        for key in list(self._entries):
            self._close(key)
        await asyncio.gather(*self._closing)

    async def __aenter__(self) -> SessionPool:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.aclose()


async def _close_quietly(session: Session) -> None:
    # A sandbox that cannot be deleted ends with its own lifetime.
    with contextlib.suppress(SandboxError):
        await session.aclose()
