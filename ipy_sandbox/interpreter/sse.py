"""Server-sent events: a decoder for what model servers really send, and the encoder.

The grammar is https://html.spec.whatwg.org/multipage/server-sent-events.html. Three things differ on purpose: an event
that the end of the stream cuts off from its blank line still counts, an `id` line alone makes no event, and a whole
JSON body (from servers that ignore `stream: true`) counts as one event.
"""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterable, AsyncIterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from ..errors import UpstreamError

KEEPALIVE = b": keepalive\n\n"
DONE = b"data: [DONE]\n\n"
MAX_EVENT = 64 * 2**20
"""Bytes one event may have; a server that sends more is refused before it fills the memory."""

# Only these end a line: U+0085 and U+2028 may stand inside a JSON string.
_LINE_END = re.compile(rb"\r\n|\n|\r")
_BOM = b"\xef\xbb\xbf"


@dataclass(frozen=True)
class ServerEvent:
    """One event: its `data` (lines joined with newlines) and its name, empty if the server gave none."""

    data: str
    name: str = ""

    @property
    def is_done(self) -> bool:
        """Whether this is OpenAI's `[DONE]`."""
        return self.data.strip() == "[DONE]"

    @cached_property
    def payload(self) -> Any:
        """The data as JSON; None for blanks, keepalives in data, `[DONE]` and whatever else is not JSON."""
        try:
            return json.loads(self.data)
        except ValueError:
            return None


class SSEDecoder:
    """Bytes in, cut anywhere; events out."""

    def __init__(self, max_event: int = MAX_EVENT) -> None:
        self._max_event = max_event
        self._unread: list[bytes] = []
        self._size = 0
        self._skip_newline = False
        self._first = True
        self._name = ""
        self._data: list[bytes] = []
        self._is_json: bool | None = None

    def feed(self, chunk: bytes) -> list[ServerEvent]:
        """The events that `chunk` completes.

        Raises:
            UpstreamError: one event is larger than `max_event` bytes.
        """
        raise NotImplementedError

    def flush(self) -> list[ServerEvent]:
        """The event that the end of the stream completes, if any."""
        raise NotImplementedError


async def decode(chunks: AsyncIterable[bytes]) -> AsyncIterator[ServerEvent]:
    """The events of a body, each as soon as its bytes are there."""
    decoder = SSEDecoder()
    async for chunk in chunks:
        for event in decoder.feed(chunk):
            yield event
    for event in decoder.flush():
        yield event


def encode(payload: Mapping[str, Any], name: str | None = None) -> bytes:
    """One event; with a name as the Responses API sends it, without as chat completions do."""
    head = f"event: {name}\n" if name else ""
    return f"{head}data: {json.dumps(payload, ensure_ascii=False, separators=(',', ':'))}\n\n".encode(errors="replace")
