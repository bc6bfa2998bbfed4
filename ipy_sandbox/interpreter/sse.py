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
        """The data as JSON, NaN in it as null; None for blanks, keepalives in data, `[DONE]`, whatever is not JSON."""
        try:
            return json.loads(self.data, parse_constant=lambda name: None)
        except (ValueError, RecursionError):
            return None


class SSEDecoder:
    """Bytes in, cut anywhere; events out.

    Arguments:
        max_event: bytes one event may have.
    """

    def __init__(self, max_event: int = MAX_EVENT) -> None:
        self._max_event = max_event
        self._unread: list[bytes] = []  # of the line, or of the JSON body, that is not complete yet
        self._size = 0  # bytes held back
        self._after_return = False
        self._started = False
        self._is_json: bool | None = None
        self._name = b""
        self._data: list[bytes] = []

    def feed(self, chunk: bytes) -> list[ServerEvent]:
        """The events that `chunk` completes.

        Raises:
            UpstreamError: one event is larger than `max_event`.
        """
        if self._after_return:
            # The line has ended at the carriage return; this is the rest of its CRLF.
            chunk = chunk.removeprefix(b"\n")
        if not chunk:
            return []
        self._after_return = chunk.endswith(b"\r")
        self._unread.append(chunk)
        self._size += len(chunk)
        if self._size > self._max_event:
            raise UpstreamError(f"The model server sent an event of more than {self._max_event} bytes; gave up on it.")
        if self._sniff() or not _LINE_END.search(chunk):
            return []
        *lines, rest = _LINE_END.split(b"".join(self._unread))
        self._unread = [rest]
        events = [event for line in lines if (event := self._line(line))]
        self._size = len(rest) + sum(map(len, self._data))
        return events

    def flush(self) -> list[ServerEvent]:
        """The event that the end of the stream completes, if any."""
        rest = b"".join(self._unread)
        self._unread, self._size = [], 0
        if self._is_json:
            return [ServerEvent(rest.removeprefix(_BOM).decode(errors="replace"))]
        return [event for line in (rest, b"") if (event := self._line(line))]

    def _sniff(self) -> bool:
        """Whether the body is JSON instead of events; not known before its first visible byte."""
        if self._is_json is None:
            start = b"".join(self._unread)
            if not _BOM.startswith(start) and (visible := start.removeprefix(_BOM).lstrip()):
                self._is_json = visible[:1] in (b"{", b"[")
        return bool(self._is_json)

    def _line(self, line: bytes) -> ServerEvent | None:
        if not self._started:
            self._started = True
            line = line.removeprefix(_BOM)
        if not line:
            return self._dispatch()
        field, _, value = line.partition(b":")
        if field == b"data":
            self._data.append(value.removeprefix(b" "))
        elif field == b"event":
            self._name = value.removeprefix(b" ")
        return None

    def _dispatch(self) -> ServerEvent | None:
        name, data = self._name, self._data
        self._name, self._data = b"", []
        if not data:
            return None
        return ServerEvent(b"\n".join(data).decode(errors="replace"), name.decode(errors="replace"))


async def decode(chunks: AsyncIterable[bytes]) -> AsyncIterator[ServerEvent]:
    """The events of a body, each as soon as its bytes are there."""
    decoder = SSEDecoder()
    async for chunk in chunks:
        for event in decoder.feed(chunk):
            yield event
    for event in decoder.flush():
        yield event


def encode(payload: Mapping[str, Any], name: str | None = None) -> bytes:
    """One event: with a name as the Responses API sends it, without as chat completions do.

    Everything is written in ASCII, so that clients which split lines at U+2028 survive.
    """
    head = f"event: {name}\n" if name else ""
    return f"{head}data: {json.dumps(payload, separators=(',', ':'))}\n\n".encode("ascii")
