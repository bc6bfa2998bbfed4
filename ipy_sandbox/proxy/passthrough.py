"""Requests that do not concern the code interpreter: to the model endpoint and back, byte for byte."""

from __future__ import annotations

import json
from typing import Any

from ..errors import UpstreamError
from ..interpreter.catalog import Route
from ..interpreter.upstream import RawResponse, Upstream
from .auth import Caller
from .errors import ApiError
from .exchange import Exchange
from .owners import Watch
from .router import Choice
from .service import Proxy


def may_try_another(status: int | None) -> bool:
    """Whether a failure with this status (None: no connection) may go better at another deployment."""
    return status is None or status in (401, 403, 408, 429) or status >= 500


async def forward(
    proxy: Proxy,
    exchange: Exchange,
    caller: Caller,
    choices: list[Choice],
    path: str,
    content: bytes,
    body: dict[str, Any],
) -> None:
    """Send a request on and its answer back, from the first deployment that serves it.

    Raises:
        ApiError: it names what another caller owns.
        UpstreamError: no deployment could be reached.
    """
    refuse_foreign(proxy, caller, body)
    if previous := proxy.owners.find(str(body.get("previous_response_id")), caller.identity):
        choices = [c for c in choices if c.route.base_url == previous.base_url] or choices
    for left, choice in zip(range(len(choices) - 1, -1, -1), choices, strict=True):
        route = choice.route
        # Nothing is written anew that needs no change: the model's name is all that may differ.
        sent = content if route.model == body["model"] else json.dumps({**body, "model": route.model}).encode()
        watch = proxy.owners.watch(caller.identity, route) if path == "responses" else None
        try:
            if await relay(
                proxy.upstream, exchange, route, "POST", path, sent, watch=watch, others_are_left=bool(left)
            ):
                return
        except UpstreamError as error:
            if exchange.status or not left or not may_try_another(error.status):
                raise
        choice.deployment.failed()


async def relay(
    upstream: Upstream,
    exchange: Exchange,
    route: Route,
    method: str,
    path: str,
    content: bytes = b"",
    *,
    watch: Watch | None = None,
    others_are_left: bool = False,
) -> bool:
    """Send one request to one endpoint, and its answer to the client as it comes.

    Arguments:
        others_are_left: whether a failure shall not be passed on; then the result is False.
    """
    query = exchange.scope["query_string"].decode("latin-1")
    async with upstream.forward(route, method, path, headers=exchange.headers, content=content, query=query) as answer:
        if others_are_left and answer.status >= 400 and may_try_another(answer.status):
            return False
        await _pump(exchange, answer, watch)
    return True


async def _pump(exchange: Exchange, answer: RawResponse, watch: Watch | None) -> None:
    await exchange.start(answer.status, answer.headers)
    async for chunk in answer.body:
        if watch is not None:
            watch.feed(chunk)
        await exchange.write(chunk)
    await exchange.finish()


def refuse_foreign(proxy: Proxy, caller: Caller, body: dict[str, Any]) -> None:
    """Raise ApiError for a request that names what the endpoint keeps and this caller was not given.

    All callers share one account there, so the endpoint itself would not mind.
    """
    previous = body.get("previous_response_id")
    if isinstance(previous, str) and proxy.owners.find(previous, caller.identity) is None:
        message = f"Previous response with id '{previous[:200]}' not found."
        raise ApiError(400, message, code="previous_response_not_found", param="previous_response_id")
    tools = body.get("tools")
    for tool in tools if isinstance(tools, list) else []:
        if isinstance(tool, dict) and isinstance(tool.get("container"), str):
            raise ApiError(404, "Container not found.", param="tools")
    if body.get("conversation") is not None:
        raise ApiError(404, "Conversation not found.", param="conversation")
