"""A producer in a task of its own, read as an async iterator that says when nothing happens."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine
from dataclasses import dataclass
from typing import Any, TypeAlias, TypeVar

from ..errors import SandboxError

T = TypeVar("T")
Send: TypeAlias = Callable[[T], Awaitable[None]]

ROOM = 16
"""Items that may wait for a slow reader before the producer has to."""


@dataclass(frozen=True, slots=True)
class _End:
    error: BaseException | None


async def relay(
    work: Callable[[Send[T]], Coroutine[Any, Any, None]],
    start: Callable[[Coroutine[Any, Any, None]], asyncio.Task[None]],
    keepalive: float,
) -> AsyncGenerator[T | None, None]:
    """What `work` sends, and None whenever it has sent nothing for `keepalive` seconds; raises what it raises.

    Leaving early cancels `work`, whose clean-up may then await as it likes: it runs in the task that `start` made,
    which no cancellation of the reader's reaches.
    """
    queue: asyncio.Queue[T | _End] = asyncio.Queue(ROOM)

    async def produce() -> None:
        try:
            await work(queue.put)
        except Exception as error:
            await queue.put(_End(error))
        except asyncio.CancelledError:
            # Not by the reader, if there is one that still reads; a full queue it will find abandoned.
            with contextlib.suppress(asyncio.QueueFull):
                queue.put_nowait(_End(stopped()))
            raise
        else:
            await queue.put(_End(None))

    task = start(produce())
    try:
        while True:
            item = await _get(queue, keepalive)
            if item is None and task.done() and queue.empty():
                raise stopped()
            if not isinstance(item, _End):
                yield item
            elif item.error is not None:
                raise item.error
            else:
                return
    finally:
        task.cancel()
        await asyncio.wait({task})


def stopped() -> SandboxError:
    """What a reader is told when somebody else ended the work."""
    return SandboxError("The answer was stopped: whoever gave it is closing down.")


async def _get(queue: asyncio.Queue[T | _End], seconds: float) -> T | _End | None:
    if not queue.empty():
        return queue.get_nowait()
    try:
        async with asyncio.timeout(seconds):
            return await queue.get()
    except TimeoutError:
        return None
