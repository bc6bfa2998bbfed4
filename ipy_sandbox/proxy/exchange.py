"""One request and its answer: the id, who asked, what was sent, and what the log says about it."""

from __future__ import annotations

import re
import time
import uuid
from typing import Any

from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from .auth import Caller, Keyring

_SANE_ID = re.compile(r"[A-Za-z0-9_.:-]{1,128}")


class Exchange:
    """A request under way.

    Attributes:
        route: the pattern of the address, for the numbers.
        id: the `x-request-id` of the answer: the client's own if it sent a sane one.
        status: the status that was sent, 0 before that.
        complete: whether the whole answer was sent.
        notes: what the log line says beside method, path, status and time.
    """

    def __init__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.scope = scope
        self.receive = receive
        self.headers = Headers(scope=scope)
        self.notes: dict[str, Any] = {}
        self.route = "other"
        self.status = 0
        self.complete = False
        self._send = send
        self._started = time.perf_counter()
        given = self.headers.get("x-request-id", "")
        self.id = given if _SANE_ID.fullmatch(given) else f"req_{uuid.uuid4().hex}"

    @property
    def path_params(self) -> dict[str, str]:
        """What the route's `{…}` matched."""
        return dict(self.scope.get("path_params", {}))

    @property
    def seconds(self) -> float:
        """Since the request came."""
        return time.perf_counter() - self._started

    def identify(self, keyring: Keyring) -> Caller:
        """Who asks; raises ApiError (401, 403)."""
        caller = keyring.identify(self.headers)
        self.notes["key"] = caller.name
        return caller

    async def send(self, message: Message) -> None:
        """ASGI's `send`, which adds the request's id and takes note of the status."""
        if message["type"] == "http.response.start":
            self.status = message["status"]
            headers = message["headers"]
            if not any(name.lower() == b"x-request-id" for name, _ in headers):
                message["headers"] = [*headers, (b"x-request-id", self.id.encode())]
        elif message["type"] == "http.response.body" and not message.get("more_body"):
            self.complete = True
        await self._send(message)

    async def respond(self, response: Response) -> None:
        """Send a whole answer."""
        await response(self.scope, self.receive, self.send)

    async def start(self, status: int, headers: list[tuple[str, str]]) -> None:
        """Begin a streamed answer."""
        raw = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in headers]
        await self.send({"type": "http.response.start", "status": status, "headers": raw})

    async def write(self, chunk: bytes) -> None:
        """Send the next bytes of a streamed answer; waits while the client does not read."""
        await self.send({"type": "http.response.body", "body": chunk, "more_body": True})

    async def finish(self, chunk: bytes = b"") -> None:
        """End a streamed answer."""
        await self.send({"type": "http.response.body", "body": chunk})
