"""How httpx sends its requests: over aiohttp where `httpx-aiohttp` is installed, as the `proxy` extra does.

httpx's own pool spends its time on bookkeeping when many calls are open, see `interpreter/transport.py` for numbers.
"""

from __future__ import annotations

import contextlib
import functools
import re
import ssl
import urllib.request
from collections.abc import AsyncIterator, Iterator
from typing import Any

import httpx

_UNSENDABLE = re.compile(rb"[\x00\r\n]")

KEEPALIVE = 30.0
"""Seconds an idle connection is kept; servers usually keep them for longer."""


@functools.cache
def ssl_context() -> ssl.SSLContext:
    """The certificates of the system; reading them takes longer than many a request."""
    return httpx.create_ssl_context()


def parsed_url(url: str) -> httpx.URL:
    """`url` for httpx, which parses text anew for each request; one with a query, which may be signed, is not kept."""
    return httpx.URL(url) if "?" in url else _parsed_url(url)


@functools.lru_cache(1024)
def _parsed_url(url: str) -> httpx.URL:
    return httpx.URL(url)


def fast_transport(*, reuse: bool = True) -> httpx.AsyncBaseTransport | None:
    """A transport without limits or cookies; None: httpx's own is to be used.

    Arguments:
        reuse: keep connections for further requests.
    """
    # The environment's proxies only work with httpx's own.
    if urllib.request.getproxies():
        return None
    try:
        import aiohttp
        import httpx_aiohttp
    except ImportError:
        return None

    def session() -> Any:
        keeping: dict[str, Any] = {"keepalive_timeout": KEEPALIVE} if reuse else {"force_close": True}
        connector = aiohttp.TCPConnector(limit=0, ssl=ssl_context(), **keeping)
        return aiohttp.ClientSession(connector=connector, cookie_jar=aiohttp.DummyCookieJar())

    return _Truthful(httpx_aiohttp.AiohttpTransport(client=session, verify=ssl_context()))


class _Truthful(httpx.AsyncBaseTransport):
    """Tells a connection that was never made from one that broke: only after the former a request may be repeated."""

    def __init__(self, transport: httpx.AsyncBaseTransport) -> None:
        self._transport = transport

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        if any(_UNSENDABLE.search(value) for _, value in request.headers.raw):
            raise httpx.LocalProtocolError("a header holds a control character")
        with _truthful_errors():
            response = await self._transport.handle_async_request(request)
        assert isinstance(response.stream, httpx.AsyncByteStream)
        response.stream = _Stream(response.stream)
        return response

    async def aclose(self) -> None:
        await self._transport.aclose()


class _Stream(httpx.AsyncByteStream):
    def __init__(self, stream: httpx.AsyncByteStream) -> None:
        self._stream = stream

    async def __aiter__(self) -> AsyncIterator[bytes]:
        with _truthful_errors():
            async for chunk in self._stream:
                yield chunk

    async def aclose(self) -> None:
        with _truthful_errors():
            await self._stream.aclose()


@contextlib.contextmanager
def _truthful_errors() -> Iterator[None]:
    try:
        yield
    except httpx.TransportError as error:
        kind = _kind(error)
        if kind is type(error):
            raise
        raise kind(str(error)) from error.__cause__


def _kind(error: httpx.TransportError) -> type[httpx.TransportError]:
    import aiohttp

    match error.__cause__:
        case aiohttp.ClientConnectorError() | aiohttp.ClientProxyConnectionError():
            return httpx.ConnectError
        case aiohttp.ConnectionTimeoutError():
            return httpx.ConnectTimeout
        case aiohttp.ServerDisconnectedError():
            return httpx.RemoteProtocolError
        case aiohttp.ClientConnectionError() if isinstance(error, httpx.ConnectTimeout):
            return httpx.ReadError
    return type(error)
