"""A timeout for many short waits in a row, as when a stream is read: moving it costs no timer."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import TypeVar

T = TypeVar("T")


class MovingTimeout:
    """`asyncio.timeout` around each of many waits, with one timer that looks now and then instead of one for each.

    It belongs to one event loop and guards one wait at a time.
    """

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._task: asyncio.Task[object] | None = None
        self._expired = False
        self._due = 0.0
        self._timer: asyncio.TimerHandle | None = None

    async def wait(self, work: Awaitable[T], seconds: float) -> T:
        """What `work` gives; TimeoutError after `seconds`, or when `expire` is called."""
        task = asyncio.current_task()
        assert task is not None
        cancelling = task.cancelling()
        self._due = self._loop.time() + seconds
        if self._timer is None or self._timer.when() > self._due:
            self._arm()
        self._task, self._expired = task, False
        try:
            result = await work
        except asyncio.CancelledError:
            if self._expired and task.uncancel() <= cancelling:
                raise TimeoutError from None
            raise
        finally:
            self._task = None
        if self._expired:
            task.uncancel()
        return result

    def expire(self) -> None:
        """End the present wait now, if there is one."""
        if self._task is not None and not self._expired:
            self._expired = True
            self._task.cancel()

    def close(self) -> None:
        """Drop the timer."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _arm(self) -> None:
        self.close()
        self._timer = self._loop.call_at(self._due, self._look)

    def _look(self) -> None:
        self._timer = None
        if self._task is None:
            return
        if self._loop.time() < self._due:
            self._arm()
        else:
            self.expire()
