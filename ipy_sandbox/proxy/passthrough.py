"""Requests that do not concern the code interpreter: to the model endpoint and back, byte for byte."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from ..errors import UpstreamError
from ..interpreter.catalog import Route
from ..interpreter.upstream import Upstream
from .auth import Caller
from .errors import ApiError
from .exchange import Exchange
from .owners import Owners, watched
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
    if place := await _place_of_previous(proxy, caller, body):
        choices = [c for c in choices if c.place == place] or choices
    _refuse_foreign(body)
    for left, choice in zip(range(len(choices) - 1, -1, -1), choices, strict=True):
        route = choice.route
        # Nothing is written anew that needs no change: the model's name is all that may differ.
        sent = content if route.model == body["model"] else json.dumps({**body, "model": route.model}).encode()
        owners = (proxy.shared.owners, caller.identity, choice.place) if path == "responses" else None
        try:
            if await relay(
                proxy.upstream,
                exchange,
                route,
                "POST",
                path,
                sent,
                headers=_headers_of(caller, exchange.headers),
                owners=owners,
                others_are_left=bool(left),
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
    headers: Mapping[str, str] | None = None,
    owners: tuple[Owners, str, str] | None = None,
    others_are_left: bool = False,
) -> bool:
    """Send one request to one endpoint, and its answer to the client as it comes.

    Arguments:
        headers: of the client, in place of those that came.
        owners: where to note that a new response belongs to this identity, at this place.
        others_are_left: whether a failure shall not be passed on; then the result is False.
    """
    query = exchange.scope["query_string"].decode("latin-1")
    sent = exchange.headers if headers is None else headers
    async with upstream.forward(route, method, path, headers=sent, content=content, query=query) as answer:
        if others_are_left and answer.status >= 400 and may_try_another(answer.status):
            return False
        await exchange.start(answer.status, answer.headers)
        chunks = watched(answer.body, *owners) if owners else answer.body
        async for chunk in chunks:
            await exchange.write(chunk)
    await exchange.finish()
    return True


def _headers_of(caller: Caller, headers: Mapping[str, str]) -> dict[str, str]:
    """The client's headers; its idempotency key is its own: the endpoint knows one account, and may answer the second
    one who sends a key with what the first one got.
    """
    own = dict(headers)
    if key := own.get("idempotency-key"):
        own["idempotency-key"] = hashlib.sha256(f"{caller.identity} {key}".encode()).hexdigest()
    return own


async def _place_of_previous(proxy: Proxy, caller: Caller, body: dict[str, Any]) -> str | None:
    """Where the response is that the request goes on from; raises ApiError if it is not the caller's."""
    previous = body.get("previous_response_id")
    if not isinstance(previous, str):
        return None
    place = await proxy.shared.owners.find(previous, caller.identity)
    if place is None:
        message = f"Previous response with id '{previous[:200]}' not found."
        raise ApiError(400, message, code="previous_response_not_found", param="previous_response_id")
    return place


def _refuse_foreign(body: dict[str, Any]) -> None:
    """Raise ApiError for a request that names what the endpoint keeps for somebody.

    All callers share one account there, so the endpoint itself would not mind.
    """
    tools = body.get("tools")
    for tool in tools if isinstance(tools, list) else []:
        if isinstance(tool, dict) and isinstance(tool.get("container"), str):
            raise ApiError(404, "Container not found.", param="tools")
    if body.get("conversation") is not None:
        raise ApiError(404, "Conversation not found.", param="conversation")
