"""One lane for each sandbox of this process: its runs go one after another, and whoever wants can stop the current one.

Providers are opened for each call and used from several event loops, so what must be known of a sandbox between calls
is kept here. Servers behind HTTP refuse, hang or lose a run that is sent while another one is there.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import threading
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator


class Running:
    """The run whose turn it is; `stop` may be called from any thread."""

    def __init__(self) -> None:
        self.stopped = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._on_stop: Callable[[], None] | None = None

    def stop(self) -> None:
        """Stop it, soon."""
        # A loop that is closed has no run any more.
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._stop)

    def _stop(self) -> None:
        self.stopped.set()
        if self._on_stop is not None:
            self._on_stop()

    @contextlib.contextmanager
    def on_stop(self, callback: Callable[[], None]) -> Iterator[None]:
        """Inside the block a stop calls `callback`, on the loop of the run; at once if it came before."""
        self._on_stop = callback
        if self.stopped.is_set():
            callback()
        try:
            yield
        finally:
            self._on_stop = None


class Lane:
    """The queue of the runs in one sandbox, across event loops."""

    def __init__(self) -> None:
        self.current: Running | None = None
        self._mutex = threading.Lock()
        self._taken = False
        self._waiting: deque[concurrent.futures.Future[None]] = deque()

    @contextlib.asynccontextmanager
    async def turn(self) -> AsyncIterator[Running]:
        """Wait until no other run is in the sandbox, and keep others waiting inside the block."""
        await self._acquire()
        try:
            running = self.current = Running()
            yield running
        finally:
            self.current = None
            self._release()

    def stop(self) -> None:
        """Stop the current run, if there is one."""
        if (running := self.current) is not None:
            running.stop()

    async def _acquire(self) -> None:
        with self._mutex:
            if not self._taken:
                self._taken = True
                return
            turn: concurrent.futures.Future[None] = concurrent.futures.Future()
            self._waiting.append(turn)
        try:
            await asyncio.wrap_future(turn)
        except asyncio.CancelledError:
            # Either it is still waiting and is skipped, or it was given the turn just now and hands it on.
            if not turn.cancel() and not turn.cancelled():
                self._release()
            raise

    def _release(self) -> None:
        with self._mutex:
            while self._waiting:
                if self._waiting[0].set_running_or_notify_cancel():
                    self._waiting.popleft().set_result(None)
                    return
                self._waiting.popleft()
            self._taken = False
