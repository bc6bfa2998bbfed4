"""Accumulators: events of a streamed answer (or one whole body) in, deltas and in the end a `Turn` out.

They repair what servers get wrong; see tests/golden/llm/manifest.json for every deviation and who sends it.
"""

from __future__ import annotations

from typing import Any, Protocol

from .sse import ServerEvent
from .turn import API, Delta, Turn


class Accumulator(Protocol):
    """What both accumulators can do."""

    def feed(self, event: ServerEvent) -> list[Delta]:
        """Take one event and return what it adds."""
        ...

    def feed_body(self, body: dict[str, Any]) -> list[Delta]:
        """Take the whole body of an answer that was not streamed."""
        ...

    def finish(self) -> Turn:
        """The turn; may be called at any time, also after a failure."""
        ...


def accumulator(api: API) -> Accumulator:
    """A fresh accumulator for one answer."""
    raise NotImplementedError
