"""`POST /v1/responses` and `/v1/chat/completions`: through the code interpreter, or straight through."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, Literal

from ..errors import UpstreamError
from ..interpreter.interpreter import Interpreter, Request
from ..interpreter.sse import KEEPALIVE, encode
from .auth import Caller
from .body import model_of, parse_object, read_body, without_internal_metadata
from .disconnect import unless_gone
from .errors import ApiError, json_response
from .exchange import Exchange
from .passthrough import forward, may_try_another
from .router import Choice
from .service import Proxy, Service

Surface = Literal["responses", "chat"]

PATHS: dict[Surface, str] = {"responses": "responses", "chat": "chat/completions"}
SESSION_HEADER = "x-litellm-session-id"
SSE_HEADERS = [
    ("content-type", "text/event-stream; charset=utf-8"),
    ("cache-control", "no-cache"),
    ("x-accel-buffering", "no"),
]
QUIET_STARTS = 3
"""Keepalives that are kept back before the status is sent: until then a failure can still be a status."""


@dataclass(frozen=True, slots=True)
class Job:
    """One request, read and understood."""

    proxy: Proxy
    service: Service
    exchange: Exchange
    caller: Caller
    content: bytes
    body: dict[str, Any]
    choices: list[Choice]

    @property
    def streams(self) -> bool:
        """Whether the client wants events."""
        return self.body.get("stream") is True


async def create_response(proxy: Proxy, exchange: Exchange) -> None:
    """`POST /v1/responses`."""
    await _serve(proxy, exchange, "responses")


async def create_completion(proxy: Proxy, exchange: Exchange) -> None:
    """`POST /v1/chat/completions`."""
    await _serve(proxy, exchange, "chat")


async def _serve(proxy: Proxy, exchange: Exchange, surface: Surface) -> None:
    service = proxy.service
    caller = exchange.identify(service.keyring)
    settings = service.config.general_settings
    with proxy.gate.enter(caller, settings.global_max_parallel_requests), service.backend.in_use():
        content = await read_body(exchange.headers, exchange.receive, int(settings.max_request_size_mb * 1e6))
        body = parse_object(content)
        cleaned = without_internal_metadata(body)
        if cleaned is not body:
            content = json.dumps(cleaned).encode()
        model = model_of(cleaned)
        exchange.notes["model"] = model[:100]
        job = Job(proxy, service, exchange, caller, content, cleaned, service.router.choices(model))
        exchange.notes["stream"] = job.streams or None
        await unless_gone(exchange.receive, _within_time(job, surface))


async def _within_time(job: Job, surface: Surface) -> None:
    limit = job.service.config.litellm_settings.request_timeout
    try:
        async with asyncio.timeout(limit):
            await _answer(job, surface)
    except TimeoutError:
        error = ApiError(408, f"The request took longer than {limit:g} s.", code="request_timeout")
        if not job.exchange.notes.get("interpreter") or not job.exchange.status:
            raise error from None
        # The stream is ours to end, and between two events now.
        await job.exchange.finish(encode({"type": "error", **error.body}, "error" if surface == "responses" else None))


async def _answer(job: Job, surface: Surface) -> None:
    if await _is_for_the_interpreter(job):
        job.exchange.notes["interpreter"] = True
        job.proxy.metrics.loops.inc()
        await _interpret(job, surface)
    else:
        await forward(job.proxy, job.exchange, job.caller, job.choices, PATHS[surface], job.content, job.body)


async def _is_for_the_interpreter(job: Job) -> bool:
    if not job.service.intercepts(job.choices[0].route):
        return False
    if Interpreter.wants(job.body):
        return True
    previous = job.body.get("previous_response_id")
    return isinstance(previous, str) and await job.proxy.shared.store.get(job.caller.identity, previous) is not None


async def _interpret(job: Job, surface: Surface) -> None:
    for left, choice in zip(range(len(job.choices) - 1, -1, -1), job.choices, strict=True):
        session = job.exchange.headers.get(SESSION_HEADER)
        request = Request(surface, job.body, choice.route, job.caller.identity, session)
        try:
            await (_stream if job.streams else _respond)(job, request)
            return
        except UpstreamError as error:
            nothing_ran = getattr(error, "turn_number", None) == 0
            if not (left and nothing_ran and not job.exchange.status and may_try_another(error.status)):
                raise
            choice.deployment.failed()
        finally:
            job.exchange.notes.update(turns=request.report.turns, runs=request.report.calls)


async def _respond(job: Job, request: Request) -> None:
    answer = await job.service.backend.interpreter.respond(request)
    await job.exchange.respond(json_response(answer, headers=dict(_telling_headers(request))))


async def _stream(job: Job, request: Request) -> None:
    exchange = job.exchange
    async with aclosing(job.service.backend.interpreter.stream_bytes(request)) as chunks:
        head = [chunk async for chunk in _head(chunks)]
        await exchange.start(200, SSE_HEADERS + _telling_headers(request))
        for chunk in head:
            await exchange.write(chunk)
        async for chunk in chunks:
            await exchange.write(chunk)
    await exchange.finish()


def _telling_headers(request: Request) -> list[tuple[str, str]]:
    """What the endpoint says about itself and its limits."""
    return [(n, v) for n, v in request.report.headers.items() if n.lower().startswith(("openai-", "x-ratelimit-"))]


async def _head(chunks: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """The first event, or only keepalives if it takes long."""
    kept = 0
    async for chunk in chunks:
        yield chunk
        kept += 1
        if chunk != KEEPALIVE or kept >= QUIET_STARTS:
            return
