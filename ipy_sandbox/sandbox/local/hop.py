"""Brings calls to the one loop that local sandboxes live on.

A sandbox dies with the thread that started it (PR_SET_PDEATHSIG), and users call from loops that come and go, such as
`asyncio.run` twice. So all of its work happens on the background loop; a caller that is there already pays nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Callable, Coroutine
from typing import Any, TypeVar

from ...background import BACKGROUND

T = TypeVar("T")


async def call(function: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Await `function()` on the background loop."""
    if asyncio.get_running_loop() is BACKGROUND.loop:
        return await function()
    return await asyncio.wrap_future(BACKGROUND.submit(function()))


async def iterate(function: Callable[[], AsyncGenerator[T, None]]) -> AsyncGenerator[T, None]:
    """Iterate over `function()` on the background loop; leaving early closes it there before it returns."""
    loop = asyncio.get_running_loop()
    if loop is BACKGROUND.loop:
        async with contextlib.aclosing(function()) as items:
            async for item in items:
                yield item
        return
    arrived: asyncio.Queue[T | _End] = asyncio.Queue()
    feeders: list[asyncio.Task[Any]] = []
    left = False

    async def feed() -> None:
        feeders.extend(filter(None, [asyncio.current_task()]))
        try:
            if not left:
                async with contextlib.aclosing(function()) as items:
                    async for item in items:
                        loop.call_soon_threadsafe(arrived.put_nowait, item)
        finally:
            with contextlib.suppress(RuntimeError):  # the caller's loop is gone
                loop.call_soon_threadsafe(arrived.put_nowait, _End())

    # Not cancelled by way of this future: it would say "done" before the iterator has closed.
    future = BACKGROUND.submit(feed())
    try:
        while not isinstance(arriving := await arrived.get(), _End):
            yield arriving
    except BaseException:
        left = True
        BACKGROUND.loop.call_soon_threadsafe(lambda: [feeder.cancel() for feeder in feeders])
        while not isinstance(await arrived.get(), _End):
            pass
        raise
    await asyncio.wrap_future(future)


class _End:
    """Follows the last item."""
