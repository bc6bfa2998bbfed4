"""One sandbox that is kept ready for the next who asks: started, libraries loaded, kernel running."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Awaitable, Callable
from typing import Literal

from ...background import BACKGROUND
from ...errors import SandboxError
from .bubblewrap import Box
from .sandbox import LocalSandbox
from .watchdog import WATCHDOG

Policy = Literal["off", "after_use", "at_load"]
Make = Callable[[Box], Awaitable[LocalSandbox]]

DELAY = 1.0
"""Seconds after a sandbox was made before the next spare starts, which would compete with its first code."""


class Spare:
    """Keeps at most one spare sandbox, of the kind that was asked for last. It costs about 110 MB of memory.

    Attributes:
        policy: "off"; "after_use" (the default): from the first sandbox on; "at_load": as soon as it is set.
    """

    def __init__(self, make: Make) -> None:
        self.policy: Policy = "after_use"
        self._make = make
        self._ready: LocalSandbox | None = None
        self._box = Box()
        self._filling: asyncio.Task[None] | None = None

    def set_policy(self, policy: Policy) -> None:
        """Set the policy, from any thread; "off" ends the spare."""
        self.policy = policy
        if policy == "at_load":
            BACKGROUND.loop.call_soon_threadsafe(self.refill, Box(), 0.0)
        elif policy == "off":
            BACKGROUND.submit(self.discard())

    def take(self, box: Box) -> LocalSandbox | None:
        """The spare, if there is one of this kind; its caller owns it."""
        spare = self._ready
        if spare is None or spare.box != box or spare.ended:
            return None
        self._ready = None
        return spare

    def refill(self, box: Box, delay: float = DELAY) -> None:
        """Start a spare like `box` in the background after a while, unless the policy says no."""
        self._box = box
        if self.policy != "off" and box.network == "none" and (self._filling is None or self._filling.done()):
            self._filling = asyncio.ensure_future(self._fill(delay))

    async def _fill(self, delay: float) -> None:
        await asyncio.sleep(delay)
        if delay and any(sandbox.busy for sandbox in WATCHDOG.watched):
            asyncio.get_running_loop().call_later(delay, self.refill, self._box, delay)
            return
        if self._ready is not None and (self._ready.box != self._box or self._ready.ended):
            await self._drop()
        if self._ready is None and self.policy != "off":
            # Without a spare the next sandbox starts as the first did, and says itself what is wrong.
            with contextlib.suppress(SandboxError, OSError):
                self._ready = await self._make(self._box)

    async def filled(self) -> None:
        """Wait until a start that was begun is over."""
        if self._filling is not None:
            await asyncio.wait([self._filling])

    async def discard(self) -> None:
        """End the spare, and a start that was begun."""
        if self._filling is not None:
            self._filling.cancel()
            await asyncio.wait([self._filling])
        await self._drop()

    async def _drop(self) -> None:
        spare, self._ready = self._ready, None
        if spare is not None:
            await spare.close()

    def forget(self) -> None:
        """Start over in a forked child: the spare is the parent's."""
        self._ready = self._filling = None

    def forget_in_children(self) -> Spare:
        """Arrange for that; returns itself."""
        os.register_at_fork(after_in_child=self.forget)
        return self
