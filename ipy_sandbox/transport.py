"""How httpx sends its requests: over aiohttp where that is installed, as the `proxy` extra does.

httpx's own pool spends its time on bookkeeping when many calls are open, see `interpreter/transport.py` for numbers,
and its client does more for each request than is used here. Milliseconds of CPU for one request, 32 at a time:
httpx with httpx-aiohttp 0.39, its client with this transport 0.30, straight through this transport 0.18, aiohttp 0.10.
"""

from __future__ import annotations

import contextlib
import functools
import os
import re
import ssl
import urllib.request
from collections.abc import AsyncIterable, AsyncIterator, Iterator
from typing import TYPE_CHECKING, Any

import httpx

if TYPE_CHECKING:
    import aiohttp

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
        import aiohttp  # noqa: F401
    except ImportError:
        return None
    return _AiohttpTransport(reuse)


def client_over(transport: httpx.AsyncBaseTransport | None, **options: Any) -> httpx.AsyncClient:
    """A client for requests without authentication, redirects, cookies or hooks of httpx's.

    Arguments:
        transport: what `fast_transport` gave.
        options: those of httpx.AsyncClient.
    """
    if transport is None:
        return httpx.AsyncClient(verify=ssl_context(), **options)
    return _StraightClient(transport, **options)


class _StraightClient(httpx.AsyncClient):
    def __init__(self, transport: httpx.AsyncBaseTransport, **options: Any) -> None:
        super().__init__(transport=transport, **options)
        self._straight = transport

    async def send(self, request: httpx.Request, *, stream: bool = False, **unused: Any) -> httpx.Response:
        response = await self._straight.handle_async_request(request)
        if not stream:
            await response.aread()
        return response


class _AiohttpTransport(httpx.AsyncBaseTransport):
    """Errors tell a connection that was never made from one that broke: only after the former may one repeat."""

    def __init__(self, reuse: bool) -> None:
        self._reuse = reuse
        self._session: aiohttp.ClientSession | None = None

    def _open(self) -> aiohttp.ClientSession:
        import aiohttp

        if self._session is None:
            keeping: dict[str, Any] = {"keepalive_timeout": KEEPALIVE} if self._reuse else {"force_close": True}
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=0, ssl=ssl_context(), **keeping),
                cookie_jar=aiohttp.DummyCookieJar(),
                auto_decompress=False,
            )
        return self._session

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        import aiohttp
        from yarl import URL

        if any(_UNSENDABLE.search(value) for _, value in request.headers.raw):
            raise httpx.LocalProtocolError("a header holds a control character")
        timeout = request.extensions.get("timeout", {})
        with _errors_of_httpx():
            response = await self._open().request(
                request.method,
                URL(str(request.url), encoded=True),
                headers=[(name.decode("latin-1"), value.decode("latin-1")) for name, value in request.headers.raw],
                data=_body(request),
                # httpx has put in all other headers that aiohttp would add.
                skip_auto_headers=None if "content-type" in request.headers else ("content-type",),
                allow_redirects=False,
                timeout=aiohttp.ClientTimeout(
                    sock_connect=timeout.get("connect"), sock_read=timeout.get("read"), connect=timeout.get("pool")
                ),
            )
        extensions = {"http_version": b"HTTP/1.1", "reason_phrase": (response.reason or "").encode()}
        return httpx.Response(
            response.status,
            headers=list(response.raw_headers),
            stream=_Stream(response),
            request=request,
            extensions=extensions,
        )

    async def aclose(self) -> None:
        if self._session is not None:
            await self._session.close()


def _body(request: httpx.Request) -> bytes | AsyncIterable[bytes] | None:
    try:
        return request.content or None
    except httpx.RequestNotRead:
        # aiohttp says itself how long a stream is, or that it does not know.
        request.headers.pop("transfer-encoding", None)
        assert isinstance(request.stream, AsyncIterable)
        return request.stream


class _Stream(httpx.AsyncByteStream):
    def __init__(self, response: aiohttp.ClientResponse) -> None:
        self._response = response

    async def __aiter__(self) -> AsyncIterator[bytes]:
        with _errors_of_httpx():
            async for chunk in self._response.content.iter_any():
                yield chunk

    async def aclose(self) -> None:
        # What was not read to its end must not go on: the server sees that nobody listens.
        if self._response.content.at_eof():
            self._response.release()
        else:
            self._response.close()


@contextlib.contextmanager
def _errors_of_httpx() -> Iterator[None]:
    import aiohttp

    try:
        yield
    except (aiohttp.ClientError, TimeoutError) as error:
        raise _kind(error)(_reason(error)) from error


def _reason(error: Exception) -> str:
    import aiohttp

    # Its own text repeats the host and tells of TLS before it comes to the reason.
    if isinstance(error, aiohttp.ClientConnectorError) and error.strerror:
        return os.strerror(error.errno or 0) if error.strerror.startswith("Connect call failed") else error.strerror
    return str(error)


def _kind(error: Exception) -> type[httpx.TransportError]:
    import aiohttp

    match error:
        case aiohttp.ConnectionTimeoutError():
            return httpx.ConnectTimeout
        case TimeoutError():
            return httpx.ReadTimeout
        case aiohttp.ClientConnectorError() | aiohttp.ClientProxyConnectionError():
            return httpx.ConnectError
        case aiohttp.ServerDisconnectedError() | aiohttp.ClientResponseError():
            return httpx.RemoteProtocolError
        case aiohttp.InvalidURL():
            return httpx.UnsupportedProtocol
    return httpx.ReadError
