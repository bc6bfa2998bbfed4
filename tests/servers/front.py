"""The interpreter behind HTTP, as small as it gets, for the official clients: model server, sandboxes and all."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import AsyncIterator

from ipy_sandbox.interpreter.catalog import CUSTOM, Route
from ipy_sandbox.interpreter.interpreter import Request

from .asking import asking
from .http_server import Answer, HTTPServer
from .http_server import Request as HTTPRequest
from .model_server import Scenario


@contextlib.asynccontextmanager
async def front(scenarios: dict[str, Scenario], *, chat_only: bool = False) -> AsyncIterator[str]:
    """Serve the interpreter over the scripted model; gives the base URL."""
    async with asking(scenarios) as kit:
        kind = dataclasses.replace(CUSTOM, responses="none" if chat_only else "unknown", images=True)
        route = Route(kind, "scripted", f"{kit.url}/v1", "key")

        async def handle(request: HTTPRequest, answer: Answer) -> None:
            surface = "chat" if request.path.endswith("/chat/completions") else "responses"
            asked = Request(surface, request.json(), route)  # type: ignore[arg-type]
            if not asked.body.get("stream"):
                await answer.send(body=await kit.interpreter.respond(asked))
                return
            await answer.start(200, {"Content-Type": "text/event-stream"})
            async for chunk in kit.interpreter.stream_bytes(asked):
                await answer.chunk(chunk)
            await answer.end()

        async with HTTPServer(handle) as server:
            yield f"{server.url}/v1"
