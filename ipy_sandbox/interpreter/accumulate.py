"""Accumulators: events of a streamed answer (or one whole body) in, deltas and in the end a `Turn` out.

They repair what servers get wrong: tests/golden/llm/manifest.json lists the deviations and who sends them.
"""

from __future__ import annotations

import uuid
from typing import Any, Protocol

from .sse import ServerEvent
from .turn import API, Delta, Turn


class Accumulator(Protocol):
    """What the accumulators of both APIs can do."""

    def feed(self, event: ServerEvent) -> list[Delta]:
        """Take one event and return what it adds."""
        ...

    def feed_body(self, body: Any) -> list[Delta]:
        """Take the whole JSON body of an answer that was not streamed."""
        ...

    def finish(self) -> Turn:
        """The turn as far as it got; may be called at any time."""
        ...


def accumulator(api: API) -> Accumulator:
    """A fresh accumulator for one answer."""
    from .accumulate_chat import ChatAccumulator
    from .accumulate_responses import ResponsesAccumulator

    return ChatAccumulator() if api == "chat" else ResponsesAccumulator()


class CallIds:
    """Gives every call of a turn an id of its own, keeping the server's where it can."""

    def __init__(self) -> None:
        self._taken: set[str] = set()

    def take(self, wanted: str | None) -> str:
        """`wanted` if it is free, else a fresh id."""
        given = wanted if wanted and wanted not in self._taken else f"call_{uuid.uuid4().hex[:24]}"
        self._taken.add(given)
        return given
