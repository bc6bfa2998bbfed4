"""Applies the output policy to the events of an execution, before anything of them is kept or shown."""

from __future__ import annotations

from ..models import Display, Event, ExecutionError, Stderr, Stdout
from ..safe_output import OutputPolicy, TextFilter, safe_text

MOST_NAMED = 20
"""Types left out that are named: their names are the sandbox's."""


class EventFilter:
    """Turns events as a sandbox sent them into events that may be shown; `dropped` names the types left out.

    Arguments:
        policy: what may be shown.
        scope: makes display ids unique, so that two sandboxes cannot overwrite each other's displays.
    """

    def __init__(self, policy: OutputPolicy, scope: str) -> None:
        self.dropped: list[str] = []
        self._policy = policy
        self._scope = scope
        self._out = TextFilter()
        self._err = TextFilter()

    def __call__(self, event: Event) -> Event | None:
        """The event in its safe form; None if nothing of it may or need be shown."""
        match event:
            case Stdout(text):
                return event if self._policy.trusted else Stdout(self._out.feed(text))
            case Stderr(text):
                return event if self._policy.trusted else Stderr(self._err.feed(text))
            case ExecutionError(name, value, traceback):
                return ExecutionError(safe_text(name), safe_text(value), safe_text(traceback))
            case Display():
                return self._display(event)
            case _:
                return event

    def _display(self, display: Display) -> Display | None:
        bundle = self._policy.bundle(display.data, display.metadata)
        self.dropped += [name for name in bundle.dropped if name not in self.dropped][: MOST_NAMED - len(self.dropped)]
        if not bundle.data:
            return None
        return Display(
            bundle.data,
            bundle.metadata,
            display_id=None if display.display_id is None else f"{self._scope}:{display.display_id}",
            update=display.update,
            is_result=display.is_result,
        )

    def close(self) -> list[Event]:
        """What is still to be shown at the end: colours left on are reset."""
        return [event for event in (Stdout(self._out.close()), Stderr(self._err.close())) if event.text]
