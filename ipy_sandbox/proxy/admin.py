"""For the operator: health, numbers, and the reload of the configuration."""

from __future__ import annotations

from prometheus_client import CONTENT_TYPE_LATEST
from starlette.responses import Response

from ..errors import ConfigurationError
from .errors import ApiError, json_response
from .exchange import Exchange
from .service import Proxy


async def health(proxy: Proxy, exchange: Exchange) -> None:
    """`GET /health`: the process lives."""
    await exchange.respond(json_response({"status": "ok"}))


async def ready(proxy: Proxy, exchange: Exchange) -> None:
    """`GET /health/ready`: requests are welcome."""
    if proxy.gate.closed:
        raise ApiError(503, "The proxy is shutting down.")
    try:
        await proxy.shared.check()
    except ConfigurationError as error:
        raise ApiError(503, str(error)) from None
    await exchange.respond(json_response({"status": "ready", "warm_sandboxes": proxy.service.backend.sandboxes.ready}))


async def metrics(proxy: Proxy, exchange: Exchange) -> None:
    """`GET /metrics`, in Prometheus' text format."""
    await exchange.respond(Response(proxy.metrics.text(), headers={"content-type": CONTENT_TYPE_LATEST}))


async def reload(proxy: Proxy, exchange: Exchange) -> None:
    """`POST /admin/reload`: read the configuration again, for the master key."""
    if not exchange.identify(proxy.service.keyring).admin:
        raise ApiError(403, "Only the master key may do this.")
    try:
        await proxy.reload()
    except ConfigurationError as error:
        raise ApiError(400, f"Nothing has changed: {error}", code="wrong_configuration") from None
    if proxy.announce is not None:
        proxy.announce()
    await exchange.respond(json_response({"status": "reloaded"}))
