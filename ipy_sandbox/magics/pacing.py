"""Pacing of events: what would be overwritten at once is not shown.

A loop that updates a display or clears and redraws a thousand times a second would flood the front end (each message
costs about 1 ms, and Jupyter servers cut at 1000 a second). A display is updated, and a cleared output redrawn, at
most ten times a second; the last state is always shown, and nothing that stays is held back.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from ..models import ClearOutput, Display, Event

INTERVAL = 0.1
"""Seconds between two states of the same display."""


class Pacer:
    """Passes events on to `emit`, in order, without the states that nobody would see.

    Arguments:
        emit: takes the events that are to be shown.
        interval: seconds between two states of the same display.
        clock: monotonic seconds.
    """

    def __init__(
        self,
        emit: Callable[[Event], None],
        *,
        interval: float = INTERVAL,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._emit = emit
        self._interval = interval
        self._clock = clock
        self._updates: dict[str | None, Display] = {}
        self._updated_at: dict[str | None, float] = {}
        self._frame: list[Event] | None = None
        self._cleared_at = float("-inf")

    def add(self, event: Event) -> None:
        """Take one more event; it is emitted now or when due."""
        if isinstance(event, Display) and event.update:
            self._update(event)
        elif isinstance(event, ClearOutput):
            self._clear(event)
        elif self._frame is not None:
            self._frame.append(event)
        else:
            self._emit(event)

    def _update(self, display: Display) -> None:
        # Behind a held frame: the display may be in it.
        self._updates[display.display_id] = display
        if self._frame is None and self._wait_for(display.display_id) <= 0:
            self._emit_update(display.display_id)

    def _clear(self, clear: ClearOutput) -> None:
        if self._clock() - self._cleared_at < self._interval:
            self._frame = [clear]  # what the frame before held is cleared unseen
        else:
            self._frame = None
            self._cleared_at = self._clock()
            self._emit(clear)

    def _wait_for(self, display_id: str | None) -> float:
        return self._updated_at.get(display_id, float("-inf")) + self._interval - self._clock()

    def _emit_update(self, display_id: str | None) -> None:
        self._updated_at[display_id] = self._clock()
        self._emit(self._updates.pop(display_id))

    def emit_due(self) -> float | None:
        """Emit what is due; return the seconds until the next is, None if nothing is held."""
        if self._frame is not None:
            left = self._cleared_at + self._interval - self._clock()
            if left > 0:
                return left
            self._emit_frame()
        for display_id in [i for i in self._updates if self._wait_for(i) <= 0]:
            self._emit_update(display_id)
        return min(map(self._wait_for, self._updates), default=None)

    def _emit_frame(self) -> None:
        frame, self._frame = self._frame or [], None
        self._cleared_at = self._clock()
        for event in frame:
            self._emit(event)

    def flush(self) -> None:
        """Emit all that is held."""
        self._emit_frame()
        for display_id in list(self._updates):
            self._emit_update(display_id)
