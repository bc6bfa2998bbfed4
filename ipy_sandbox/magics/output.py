"""The publisher: events of a sandbox become the messages that the same code would have sent here."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Any, TextIO

from ..models import ClearOutput, Display, Event, ExecutionError, Stderr, Stdout
from .frontend import in_kernel
from .pacing import Pacer

if TYPE_CHECKING:
    from IPython.core.interactiveshell import InteractiveShell

FLUSH_INTERVAL = 0.05
"""Seconds between two flushes of a stream: without them ipykernel holds text back for 0.2 s, each is a message."""


class RemoteValue:
    """The value of a cell's last expression, as the sandbox showed it: the value itself stays there.

    Attributes:
        text: its text form.
        data, metadata: its MIME bundle.
    """

    def __init__(self, data: dict[str, Any], metadata: dict[str, Any]) -> None:
        self.data = data
        self.metadata = metadata

    @property
    def text(self) -> str:
        return str(self.data.get("text/plain", ""))

    def _repr_mimebundle_(
        self, include: object = None, exclude: object = None
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        return self.data, self.metadata

    def __repr__(self) -> str:
        return self.text or f"<RemoteValue {', '.join(self.data)}>"


class Publisher:
    """Publishes safe events on the calling thread: a sink for `bridge.pump`.

    Streams, displays, updates and clears go out as such. The value of the last expression is not published but kept
    in `value` for the magic to return, unless an error comes after it. Errors are raised, not published.
    `sys.stdout` and the display publisher are looked up at each event: others catch them for `%%capture`.

    Arguments:
        shell: where to publish.
    """

    def __init__(self, shell: InteractiveShell) -> None:
        self.value: RemoteValue | None = None
        self._shell = shell
        self._pacer = Pacer(self._emit)
        self._last_updates: dict[str | None, Display] = {}
        self._unflushed: TextIO | None = None
        self._flushed_at = 0.0

    def publish(self, event: Event) -> None:
        """Show `event`, at once or when it is due."""
        match event:
            case ExecutionError():
                self._pacer.flush()
                self._publish_value()
            case Display(is_result=True):
                self._pacer.flush()
                self._publish_value()
                self.value = RemoteValue(event.data, event.metadata)
            case Display(update=True) if not in_kernel(self._shell):
                self._last_updates[event.display_id] = event  # a terminal would print each anew
            case _:
                self._pacer.add(event)

    def idle(self) -> float | None:
        """Show what is due; return the seconds until something else is."""
        held = self._pacer.emit_due()
        if self._unflushed is not None:
            left = self._flushed_at + FLUSH_INTERVAL - time.monotonic()
            if left > 0:
                return left if held is None else min(left, held)
            self._flush()
        return held

    def finish(self) -> None:
        """Show all that was held back."""
        self._pacer.flush()
        for display in self._last_updates.values():
            self._show(display)
        self._flush()

    def _publish_value(self) -> None:
        if self.value is not None:
            self._emit(Display(self.value.data, self.value.metadata))
            self.value = None

    def _emit(self, event: Event) -> None:
        match event:
            case Stdout(text):
                self._write(sys.stdout, text)
            case Stderr(text):
                self._write(sys.stderr, text)
            case Display():
                self._show(event)
            case ClearOutput(wait):
                self._flush()
                self._shell.display_pub.clear_output(wait)

    def _write(self, stream: TextIO, text: str) -> None:
        if stream is not self._unflushed:
            self._flush()  # or the front end would get stdout and stderr out of order
            self._unflushed = stream
        stream.write(text)

    def _flush(self) -> None:
        if self._unflushed is not None:
            self._unflushed.flush()
            self._unflushed = None
            self._flushed_at = time.monotonic()

    def _show(self, display: Display) -> None:
        self._flush()
        transient = {} if display.display_id is None else {"display_id": display.display_id}
        self._shell.display_pub.publish(display.data, display.metadata, transient=transient, update=display.update)
