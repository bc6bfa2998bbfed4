"""Responses of before: read, deleted, cancelled, their input listed; each one by its owner only.

Those that the interpreter gave are in its store; those that passed through are at the model endpoint that made them.
"""

from __future__ import annotations

import hashlib
from typing import Any
from urllib.parse import parse_qs

from ..interpreter.catalog import Route
from ..interpreter.responses import shown
from ..interpreter.store import Stored
from .auth import Caller
from .disconnect import unless_gone
from .errors import ApiError, json_response
from .exchange import Exchange
from .passthrough import relay
from .service import Proxy


async def get_response(proxy: Proxy, exchange: Exchange) -> None:
    """`GET /v1/responses/{id}`."""
    stored = await _find(proxy, exchange, "GET", "")
    if stored is not None:
        query = _query(exchange)
        if "true" in query.get("stream", []):
            raise ApiError(400, "Only background responses can be streamed again.", param="stream")
        include = query.get("include", []) + query.get("include[]", [])
        always = proxy.service.config.interception.include_outputs
        await exchange.respond(json_response(shown(stored.response, include, always_outputs=always)))


async def delete_response(proxy: Proxy, exchange: Exchange) -> None:
    """`DELETE /v1/responses/{id}`."""
    stored = await _find(proxy, exchange, "DELETE", "")
    if stored is not None:
        response_id = stored.response["id"]
        await proxy.shared.store.delete(_caller(proxy, exchange).identity, response_id)
        await exchange.respond(json_response({"id": response_id, "object": "response", "deleted": True}))


async def cancel_response(proxy: Proxy, exchange: Exchange) -> None:
    """`POST /v1/responses/{id}/cancel`."""
    if await _find(proxy, exchange, "POST", "/cancel") is not None:
        raise ApiError(400, "Cannot cancel a synchronous response: close its connection instead.")


async def list_input_items(proxy: Proxy, exchange: Exchange) -> None:
    """`GET /v1/responses/{id}/input_items`."""
    stored = await _find(proxy, exchange, "GET", "/input_items")
    if stored is not None:
        await exchange.respond(json_response(_page(_input_items(stored), _query(exchange))))


def _caller(proxy: Proxy, exchange: Exchange) -> Caller:
    return exchange.identify(proxy.service.keyring)


async def _find(proxy: Proxy, exchange: Exchange, method: str, suffix: str) -> Stored | None:
    """The caller's response; None if it was passed on to the endpoint that has it.

    Raises:
        ApiError: 404, it is not there, or not the caller's.
    """
    caller, response_id = _caller(proxy, exchange), exchange.path_params["id"]
    if stored := await proxy.shared.store.get(caller.identity, response_id):
        return stored
    place = await proxy.shared.owners.find(response_id, caller.identity)
    route = proxy.service.router.at(place) if place else None
    if route is None:
        raise ApiError(404, f"Response with id '{response_id[:200]}' not found.")
    await unless_gone(exchange.receive, _pass_on(proxy, exchange, route, method, f"responses/{response_id}{suffix}"))
    return None


async def _pass_on(proxy: Proxy, exchange: Exchange, route: Route, method: str, path: str) -> None:
    await relay(proxy.upstream, exchange, route, method, path)


def _query(exchange: Exchange) -> dict[str, list[str]]:
    return parse_qs(exchange.scope["query_string"].decode("latin-1"))


def _input_items(stored: Stored) -> list[dict[str, Any]]:
    items = [*stored.context, *stored.items]
    return [_with_id(item, f"{stored.response['id']} {number}") for number, item in enumerate(items)]


def _with_id(item: dict[str, Any], name: str) -> dict[str, Any]:
    kind = item.get("type", "message")
    content = item.get("content")
    if kind == "message" and isinstance(content, str):
        part = "output_text" if item.get("role") == "assistant" else "input_text"
        item = {**item, "content": [{"type": part, "text": content}]}
    return {"id": f"msg_{hashlib.sha256(name.encode()).hexdigest()[:48]}", "type": kind, **item}


def _page(items: list[dict[str, Any]], query: dict[str, list[str]]) -> dict[str, Any]:
    limit = query.get("limit", ["20"])[0]
    if not limit.isdecimal() or not 1 <= int(limit) <= 100:
        raise ApiError(400, "limit must be between 1 and 100.", param="limit")
    if query.get("order", ["desc"])[0] == "desc":
        items = items[::-1]
    if after := query.get("after", [""])[0]:
        ids = [item["id"] for item in items]
        if after not in ids:
            raise ApiError(400, "after names no item of this list.", param="after")
        items = items[ids.index(after) + 1 :]
    page = items[: int(limit)]
    first, last = (page[0]["id"], page[-1]["id"]) if page else (None, None)
    return {"object": "list", "data": page, "first_id": first, "last_id": last, "has_more": len(items) > len(page)}
