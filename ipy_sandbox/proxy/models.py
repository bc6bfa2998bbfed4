"""`GET /v1/models`: what the configuration names, and what the endpoints behind a `*` offer."""

from __future__ import annotations

import asyncio
from typing import Any

from ..errors import UpstreamError
from .errors import json_response
from .exchange import Exchange
from .router import Choice
from .service import Proxy


async def list_models(proxy: Proxy, exchange: Exchange) -> None:
    """`GET /v1/models`."""
    service = proxy.service
    exchange.identify(service.keyring)
    behind = await asyncio.gather(*(_offered(proxy, choice) for choice in service.router.wildcards()))
    models = {name: _model(name) for name in service.router.names()}
    for offer in behind:
        models = offer | models
    await exchange.respond(json_response({"object": "list", "data": list(models.values())}))


async def get_model(proxy: Proxy, exchange: Exchange) -> None:
    """`GET /v1/models/{id}`."""
    service = proxy.service
    exchange.identify(service.keyring)
    name = exchange.path_params["id"]
    service.router.choices(name)
    await exchange.respond(json_response(_model(name)))


def _model(name: str) -> dict[str, Any]:
    return {"id": name, "object": "model", "created": 0, "owned_by": "ipy-sandbox"}


async def _offered(proxy: Proxy, choice: Choice) -> dict[str, dict[str, Any]]:
    """The models of an endpoint, under the names that reach it; none if it does not say."""
    try:
        models = await proxy.upstream.models(choice.route)
    except UpstreamError:
        return {}
    named = ((choice.deployment.public_name(str(m.get("id"))), m) for m in models)
    return {name: {**model, "id": name} for name, model in named if name is not None}
