"""The status line: what is going on while nothing comes, gone with the first output."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable
from typing import TYPE_CHECKING

from .frontend import is_watched, line_bundle

if TYPE_CHECKING:
    from IPython.core.interactiveshell import InteractiveShell


class Status:
    """One line that appears after a while, counts the seconds, and vanishes. Only where somebody watches.

    Arguments:
        shell: where to show it.
        text: what is going on.
        after: seconds before it appears.
        clock: monotonic seconds.
    """

    def __init__(
        self, shell: InteractiveShell, text: str, after: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.text = text
        self._shell = shell
        self._clock = clock
        self._begun = clock()
        self._next: float | None = self._begun + after if is_watched(shell) else None
        self._display_id: str | None = None

    @property
    def seconds(self) -> float:
        """Since it was made."""
        return self._clock() - self._begun

    def idle(self) -> float | None:
        """Show or update the line if due; return the seconds until the next time, None for never."""
        if self._next is None:
            return None
        if (left := self._next - self._clock()) > 0:
            return left
        self._next = self._clock() + 1
        self._show(f"{self.text} · {self.seconds:.0f} s")
        return 1.0

    def hide(self) -> None:
        """Take the line away for good."""
        self._next = None
        if self._display_id is not None:
            self._show("")
            self._display_id = None

    def _show(self, text: str) -> None:
        update = self._display_id is not None
        self._display_id = self._display_id or f"ipy-sandbox-{uuid.uuid4()}"
        self._shell.display_pub.publish(
            line_bundle(text), {}, transient={"display_id": self._display_id}, update=update
        )
