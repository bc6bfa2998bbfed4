"""The ASGI application: which address is answered by what, and what is done for every request."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from starlette.exceptions import HTTPException
from starlette.routing import BaseRoute, Route, Router
from starlette.types import Receive, Scope, Send

from ..errors import InvalidRequestError, UpstreamError
from . import admin, completions, containers, models, stored
from .disconnect import ClientGone
from .errors import ApiError, error_response
from .exchange import Exchange
from .service import Proxy

logger = logging.getLogger("ipy_sandbox.proxy")

Handler = Callable[[Proxy, Exchange], Awaitable[None]]

_API: list[tuple[str, str, Handler]] = [
    ("POST", "/responses", completions.create_response),
    ("GET", "/responses/{id}", stored.get_response),
    ("DELETE", "/responses/{id}", stored.delete_response),
    ("POST", "/responses/{id}/cancel", stored.cancel_response),
    ("GET", "/responses/{id}/input_items", stored.list_input_items),
    ("POST", "/chat/completions", completions.create_completion),
    ("GET", "/models", models.list_models),
    ("GET", "/models/{id:path}", models.get_model),
    ("GET", "/containers/{container_id}/files/{file_id}/content", containers.get_file_content),
]
_OURS: list[tuple[str, str, Handler]] = [
    ("GET", "/health", admin.health),
    ("GET", "/health/liveliness", admin.health),
    ("GET", "/health/ready", admin.ready),
    ("GET", "/health/readiness", admin.ready),
    ("GET", "/metrics", admin.metrics),
    ("POST", "/admin/reload", admin.reload),
]
_QUIET = frozenset({"/health", "/health/liveliness", "/health/ready", "/health/readiness", "/metrics"})
"""Addresses that are asked every few seconds: logged for debugging only."""


class _Endpoint:
    """A handler as an ASGI application."""

    def __init__(self, proxy: Proxy, path: str, handler: Handler) -> None:
        self._proxy = proxy
        self._path = path
        self._handler = handler

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        exchange: Exchange = scope["exchange"]
        exchange.route = self._path
        await self._handler(self._proxy, exchange)


def _routes(proxy: Proxy) -> list[BaseRoute]:
    api = [(method, prefix + path, path, handler) for prefix in ("/v1", "") for method, path, handler in _API]
    ours = [(method, path, path, handler) for method, path, handler in _OURS]
    return [
        Route(address, _Endpoint(proxy, path, handler), methods=[method])
        for method, address, path, handler in api + ours
    ]


class App:
    """The application: ids, errors, the log line and the numbers of every request.

    Arguments:
        proxy: what it serves with; started and closed with the application.
    """

    def __init__(self, proxy: Proxy) -> None:
        self._proxy = proxy
        self._router = Router(_routes(proxy), redirect_slashes=False)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._lifespan(receive, send)
        elif scope["type"] == "http":
            await self._http(Exchange(scope, receive, send))

    async def _lifespan(self, receive: Receive, send: Send) -> None:
        await receive()
        await self._proxy.start()
        await send({"type": "lifespan.startup.complete"})
        await receive()
        await self._proxy.aclose()
        await send({"type": "lifespan.shutdown.complete"})

    async def _http(self, exchange: Exchange) -> None:
        # With an "app" in its scope the router raises for what it does not know.
        exchange.scope.update(exchange=exchange, app=self)
        with self._proxy.metrics.running.track_inprogress():
            try:
                await self._router(exchange.scope, exchange.receive, exchange.send)
            except ClientGone:
                exchange.notes["outcome"] = "client gone"
            except asyncio.CancelledError:
                # Only the server's end cancels a request, and nothing is left to do for it.
                exchange.notes["outcome"] = "shut down"
                await self._fail(exchange, ApiError(503, "The proxy is shutting down.", retry_after=1))
            except Exception as error:
                await self._fail(exchange, error)
            finally:
                self._record(exchange)

    async def _fail(self, exchange: Exchange, error: Exception) -> None:
        if isinstance(error, HTTPException):
            words = {404: "There is nothing at this address.", 405: "This address does not take this method."}
            error = ApiError(error.status_code, words.get(error.status_code, error.detail))
        if not isinstance(error, (ApiError, InvalidRequestError)):
            self._proxy.metrics.errors.labels("upstream" if isinstance(error, UpstreamError) else "internal").inc()
            known = isinstance(error, UpstreamError)
            logger.log(logging.WARNING if known else logging.ERROR, "request failed", exc_info=error,
                       extra={"fields": {"request_id": exchange.id}})  # fmt: skip
        if not exchange.status:
            await exchange.respond(error_response(error))
        elif not exchange.complete:
            # The client notices by the missing end: the server closes the connection.
            exchange.notes["outcome"] = "cut"

    def _record(self, exchange: Exchange) -> None:
        path, method = exchange.scope["path"], exchange.scope["method"]
        status = exchange.status or 499
        self._proxy.metrics.requests.labels(exchange.route, str(status)).inc()
        self._proxy.metrics.request_seconds.labels(exchange.route).observe(exchange.seconds)
        level = logging.DEBUG if path in _QUIET else logging.INFO
        if logger.isEnabledFor(level):
            fields = {
                "method": method, "path": path[:200], "status": status, "ms": round(exchange.seconds * 1e3, 1),
                "request_id": exchange.id, **exchange.notes,
            }  # fmt: skip
            logger.log(level, "request", extra={"fields": fields})
