"""uvicorn's HTTP/1.1 with limits on headers: how long they are, and how long they may take to come."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from .errors import ApiError

HEADER_BYTES = 65_536
HEADER_SECONDS = 30.0

_TOO_LONG = ApiError(431, f"The headers are longer than {HEADER_BYTES} bytes.")
_TOO_SLOW = ApiError(408, f"The headers did not arrive within {HEADER_SECONDS:g} s.")
_REASONS = {400: "Bad Request", 408: "Request Timeout", 431: "Request Header Fields Too Large"}


class LimitedProtocol(HttpToolsProtocol):
    """Ends connections whose headers are too long or do not come, and says so as the API does."""

    _timer: asyncio.TimerHandle | None = None
    _size = 0

    def connection_made(self, transport: Any) -> None:
        """A client connected: a request is due."""
        super().connection_made(transport)
        self._expect_headers()

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection is gone."""
        self._stop_timer()
        super().connection_lost(exc)

    def on_message_begin(self) -> None:
        """A request begins."""
        self._size = 0
        self._expect_headers()
        super().on_message_begin()

    def on_url(self, url: bytes) -> None:
        """A piece of the address came."""
        self._count(len(url))
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        """A header came."""
        self._count(len(name) + len(value))
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """All headers came."""
        self._stop_timer()
        super().on_headers_complete()

    def _count(self, size: int) -> None:
        self._size += size
        if self._size > HEADER_BYTES:
            # The parser turns this into its own error, after which uvicorn calls `send_400_response`.
            raise ValueError

    def _expect_headers(self) -> None:
        self._stop_timer()
        self._timer = self.loop.call_later(HEADER_SECONDS, self._refuse, _TOO_SLOW)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def send_400_response(self, msg: str) -> None:
        """What uvicorn answers to what is not HTTP."""
        self._refuse(_TOO_LONG if self._size > HEADER_BYTES else ApiError(400, msg))

    def _refuse(self, error: ApiError) -> None:
        if self.transport.is_closing():
            return
        body = json.dumps(error.body).encode()
        head = (
            f"HTTP/1.1 {error.status} {_REASONS[error.status]}\r\ncontent-type: application/json\r\n"
            f"content-length: {len(body)}\r\nconnection: close\r\n\r\n"
        )
        self.transport.write(head.encode() + body)
        self.transport.close()
