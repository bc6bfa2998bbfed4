"""One asyncio loop in a daemon thread: where synchronous code waits for asynchronous work.

Notebooks already run a loop on the main thread, so a second one in a thread of its own is what lets a plain function
wait there.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import contextvars
import functools
import os
import signal
import socket
import sys
import threading
import weakref
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from typing import Any, ParamSpec, TypeVar

T = TypeVar("T")
P = ParamSpec("P")


class LoopThread:
    """An asyncio loop in a daemon thread, started on first use; a forked child starts its own."""

    def __init__(self, name: str = "ipy-sandbox") -> None:
        self._name = name
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._pid: int | None = None

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """The running loop."""
        with self._lock:
            if self._loop is None or self._loop.is_closed() or self._pid != os.getpid():
                self._loop, self._pid = asyncio.new_event_loop(), os.getpid()
                threading.Thread(target=self._loop.run_forever, name=self._name, daemon=True).start()
            return self._loop

    def submit(self, coro: Coroutine[Any, Any, T]) -> concurrent.futures.Future[T]:
        """Start `coro` on the loop; it does not inherit the caller's context (a cell's parent header)."""
        return contextvars.Context().run(asyncio.run_coroutine_threadsafe, coro, self.loop)

    def run(self, coro: Coroutine[Any, Any, T]) -> T:
        """Run `coro` on the loop and wait for it; Ctrl-C cancels it."""
        if self._pid == os.getpid() and _running_loop() is self._loop:
            coro.close()
            raise RuntimeError(
                "the synchronous functions cannot be called from the background loop: use the async ones"
            )
        future = self.submit(coro)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def sync(self, function: Callable[P, Coroutine[Any, Any, T]]) -> Callable[P, T]:
        """The plain twin of an `a…` function: the same signature, without the `a` and the await."""

        @functools.wraps(function)
        def twin(*args: P.args, **kwargs: P.kwargs) -> T:
            return self.run(function(*args, **kwargs))

        twin.__name__ = function.__name__.removeprefix("a")
        twin.__qualname__ = twin.__name__
        return twin

    def iterate(self, source: AsyncIterator[T]) -> Iterator[T]:
        """Iterate over `source`, which lives on the loop; leaving early closes it."""
        try:
            while True:
                item = self.run(_next(source))
                if isinstance(item, _Exhausted):
                    return
                yield item
        finally:
            if close := getattr(source, "aclose", None):
                self.run(close())


class _Exhausted:
    """What `_next` gives after the last item: StopAsyncIteration does not pass through a future."""


async def _next(source: AsyncIterator[T]) -> T | _Exhausted:
    return await anext(source, _Exhausted())


def _running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


_WOKEN: weakref.WeakSet[asyncio.AbstractEventLoop] = weakref.WeakSet()
_LEFT: list[tuple[socket.socket, socket.socket]] = []
"""Of loops that are gone; only the main thread can put them away."""


def wake_on_signals() -> None:
    """Let signals wake the running loop of a Jupyter kernel, so that the stop button ends an `await` at once.

    ipykernel's own SIGINT handler cancels the cell by `add_callback`, which the sleeping loop of the same thread does
    not notice until something else wakes it (ipykernel issue 881). Elsewhere this does nothing.
    """
    if "ipykernel" not in sys.modules or threading.current_thread() is not threading.main_thread():
        return
    while _LEFT:
        _stop_waking(*_LEFT.pop())
    loop = asyncio.get_running_loop()
    if loop in _WOKEN:
        return
    if (other := signal.set_wakeup_fd(-1)) != -1:
        signal.set_wakeup_fd(other)
        return
    reader, writer = socket.socketpair()
    _WOKEN.add(loop)
    weakref.finalize(loop, _stop_waking, reader, writer)
    reader.setblocking(False)
    writer.setblocking(False)
    with contextlib.suppress(NotImplementedError):  # the proactor loop of Windows
        loop.add_reader(reader, reader.recv, 4096)
        signal.set_wakeup_fd(writer.fileno(), warn_on_full_buffer=False)


def _stop_waking(reader: socket.socket, writer: socket.socket) -> None:
    if threading.current_thread() is not threading.main_thread():
        _LEFT.append((reader, writer))
        return
    # The number of a closed file may soon be another file's, which would get the bytes.
    if (present := signal.set_wakeup_fd(-1)) not in (-1, writer.fileno()):
        signal.set_wakeup_fd(present)
    reader.close()
    writer.close()


BACKGROUND = LoopThread()
