"""A server shaped like OpenSandbox that answers at once and fails now and then, to see what a proxy leaves behind."""

from __future__ import annotations

import asyncio
import json
import random
import uuid
from collections.abc import AsyncIterator
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route


class FaultySandboxes:
    """The server; `chance` of a fault at each step is 5 %.

    Attributes:
        url: its own address, to be set.
        alive: the ids of the sandboxes that exist.
        faults: how many there were.
        silent: whether deletions get no answer.
    """

    def __init__(self, seed: int, chance: float = 0.05) -> None:
        self.url = ""
        self.alive: set[str] = set()
        self.faults = 0
        self.silent = False
        self._random = random.Random(seed)
        self._chance = chance
        self.app = Starlette(
            routes=[
                Route("/v1/sandboxes", self.create, methods=["POST"]),
                Route("/v1/sandboxes/{id}", self.get, methods=["GET"]),
                Route("/v1/sandboxes/{id}", self.delete, methods=["DELETE"]),
                Route("/v1/sandboxes/{id}/endpoints/{port}", self.endpoint),
                Route("/v1/sandboxes/{id}/renew-expiration", self.renew, methods=["POST"]),
                Route("/execd/{id}/code", self.code, methods=["POST"]),
                Route("/execd/{id}/code", self.interrupt, methods=["DELETE"]),
                Route("/execd/{id}/{path:path}", self.other, methods=["GET", "POST", "DELETE"]),
            ]
        )

    def _fails(self) -> bool:
        fails = self._random.random() < self._chance
        self.faults += fails
        return fails

    def _refusal(self, status: int) -> Response:
        return JSONResponse({"code": "FAULT", "message": "scripted"}, status)

    async def create(self, request: Request) -> Response:
        await asyncio.sleep(self._random.random() * 0.02)
        if self._fails():
            return self._refusal(500)
        sandbox = uuid.uuid4().hex
        self.alive.add(sandbox)
        return JSONResponse({"id": sandbox, "status": {"state": "Running"}}, 202)

    async def get(self, request: Request) -> Response:
        sandbox = request.path_params["id"]
        if sandbox not in self.alive:
            return self._refusal(404)
        return JSONResponse({"id": sandbox, "status": {"state": "Running"}})

    async def endpoint(self, request: Request) -> Response:
        if self._fails():
            return self._refusal(500)
        return JSONResponse({"endpoint": f"{self.url.removeprefix('http://')}/execd/{request.path_params['id']}"})

    async def renew(self, request: Request) -> Response:
        found = request.path_params["id"] in self.alive
        return JSONResponse({"expiresAt": "2099-01-01T00:00:00Z"}) if found else self._refusal(404)

    async def delete(self, request: Request) -> Response:
        if self.silent:
            await asyncio.sleep(3600)
        if self._fails():
            return self._refusal(500)
        found = request.path_params["id"] in self.alive
        self.alive.discard(request.path_params["id"])
        return Response(status_code=204 if found else 404)

    async def interrupt(self, request: Request) -> Response:
        return Response(status_code=200)

    async def other(self, request: Request) -> Response:
        return JSONResponse({}, 200)

    async def code(self, request: Request) -> Response:
        sandbox, body = request.path_params["id"], await request.json()
        if sandbox not in self.alive:
            return self._refusal(404)
        if self._fails():
            self.alive.discard(sandbox)
            return self._refusal(404)
        return StreamingResponse(self._events(body["code"], self._fails()), media_type="text/event-stream")

    async def _events(self, code: str, breaks: bool) -> AsyncIterator[bytes]:
        def event(**fields: Any) -> bytes:
            return json.dumps({**fields, "timestamp": 1}).encode() + b"\n\n"

        yield event(type="init", text=uuid.uuid4().hex)
        await asyncio.sleep(self._random.random() * 0.02)
        if "get_ipython" in code:
            # What prepares an IPython kernel fails on others, such as this one, and is not missed.
            yield event(type="error", error={"ename": "NameError", "evalue": "get_ipython", "traceback": []})
        else:
            yield event(type="stdout", text=code)
        if breaks:
            raise ConnectionResetError("scripted")
        yield event(type="execution_complete", execution_time=1)
        yield event(type="execution_count", execution_count=1)
