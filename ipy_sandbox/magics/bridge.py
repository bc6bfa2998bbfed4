"""The bridge from asynchronous work to plain magics: items are published on the calling thread, and stopping works.

The work runs on the background loop and puts its items into a queue; the calling thread takes them out and publishes
them. That alone gives right order, `%%capture`, the right cell and a stop button that works at the same time. SIGINT
becomes an item of the queue too: an exception in the middle of a write would tear output, and in a cell that contains
`await` ipykernel's own handler only schedules a callback on the loop which this thread blocks.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import queue
import signal
import sys
import time
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterator
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from ..background import BACKGROUND
from .problems import SandboxInterrupted, plain

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)
T_contra = TypeVar("T_contra", contravariant=True)

_STOP: Any = object()
_DONE: Any = object()

MAX_SILENCE = 0.1
"""Seconds after which `Sink.idle` is called even though items keep coming."""

STOP_GRACE = 5.0
"""Seconds to wait at the end for a stop request on its way, so that it cannot hit what runs next."""


class Sink(Protocol[T_contra]):
    """Where the items go, on the calling thread."""

    def publish(self, item: T_contra) -> None:
        """Show `item`, or keep it until `idle`."""
        ...

    def idle(self) -> float | None:
        """Show what is due; return the seconds after which to be called again, None to wait for the next item."""
        ...


class Source(Protocol[T_co]):
    """Work that yields items and can be stopped, for example an execution."""

    def items(self) -> AsyncGenerator[T_co, None]:
        """The items, as they happen; called once."""
        ...

    async def stop(self) -> bool:
        """Ask the work to end, items go on until it did; False if there is nothing to ask, then it is cancelled."""
        ...


@dataclass(frozen=True, slots=True)
class Outcome:
    """How the work ended: `error` is what it raised, `stopped` whether the user asked it to stop."""

    stopped: bool = False
    error: BaseException | None = None


def pump(source: Source[T], sink: Sink[T]) -> Outcome:
    """Publish the items of `source` on the calling thread until its end.

    The first Ctrl-C asks `source` to stop, the second leaves it. Nothing is raised for either: raise what `Outcome`
    says outside of any `except` block, since IPython shows no error with an ExceptionGroup in its context.
    """
    items: queue.SimpleQueue[T] = queue.SimpleQueue()
    stopping: concurrent.futures.Future[None] | None = None
    with _stop_as_item(items):
        work = BACKGROUND.submit(_feed(source, items.put))
        work.add_done_callback(lambda _: items.put(_DONE))
        try:
            for item in _take(items, sink.idle):
                if item is not _STOP:
                    sink.publish(item)
                elif stopping is None:
                    stopping = BACKGROUND.submit(_stop(source, work))
                else:
                    work.cancel()
        finally:
            work.cancel()
        if stopping is not None:
            concurrent.futures.wait([stopping], STOP_GRACE)
        # A stop that came with the very end counts: Run All is to end too.
        stopped = stopping is not None or (work.done() and not items.empty())
    return _outcome(work, stopped)


def wait(work: Coroutine[Any, Any, T], idle: Callable[[], float | None] = lambda: None) -> T:
    """Run `work` on the background loop and wait for it.

    Raises:
        SandboxInterrupted: Ctrl-C or the stop button; `work` was cancelled.
    """
    items: queue.SimpleQueue[Any] = queue.SimpleQueue()
    with _stop_as_item(items):
        future = BACKGROUND.submit(work)
        future.add_done_callback(lambda _: items.put(_DONE))
        try:
            for _ in _take(items, idle):
                break
        finally:
            future.cancel()
    if (error := _outcome(future, stopped=False).error) is not None:
        raise error
    return future.result()


async def _feed(source: Source[T], put: Callable[[T], None]) -> None:
    async with contextlib.aclosing(source.items()) as items:
        async for item in items:
            put(item)


async def _stop(source: Source[Any], work: concurrent.futures.Future[Any]) -> None:
    if work.done():
        return
    accepted = False
    try:
        accepted = await source.stop()
    finally:
        if not accepted:
            work.cancel()


@contextlib.contextmanager
def _stop_as_item(items: queue.SimpleQueue[Any]) -> Iterator[None]:
    """For the length of the block, SIGINT is an item."""
    if (previous := signal.getsignal(signal.SIGINT)) is None:  # a handler that Python cannot put back
        yield
        return
    try:
        # SimpleQueue.put is reentrant, so a signal handler may call it.
        signal.signal(signal.SIGINT, lambda *_: items.put(_STOP))
    except ValueError:  # a subshell: signals go to the main thread only
        yield
        return
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, previous)


def _take(items: queue.SimpleQueue[T], idle: Callable[[], float | None]) -> Iterator[T]:
    """The items until the end of the work, and `_STOP` for each SIGINT; calls `idle` whenever nothing waits."""
    called_at = 0.0
    while True:
        timeout: float | None = None
        if items.empty() or time.monotonic() - called_at > MAX_SILENCE:
            timeout = idle()
            called_at = time.monotonic()
        if sys.platform == "win32":  # where Ctrl-C does not wake the wait
            timeout = min(timeout or MAX_SILENCE, MAX_SILENCE)
        try:
            item = items.get(timeout=timeout)
        except queue.Empty:
            continue
        if item is _DONE:
            return
        yield item


def _outcome(work: concurrent.futures.Future[Any], stopped: bool) -> Outcome:
    if work.cancelled():
        return Outcome(stopped=True, error=SandboxInterrupted())
    error = work.exception()
    return Outcome(stopped=stopped, error=None if error is None else plain(error))
