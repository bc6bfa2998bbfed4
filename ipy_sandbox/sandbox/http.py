"""What the providers behind HTTP share: one client, errors as ours, careful retries, capped streams.

    http = HTTPClient("e2b")
    response = await http.request("GET", url, headers=headers, expect={404})
    async with http.stream("POST", url, separator=b"\\n", json=body) as frames:
        async for frame in frames: ...

A stream has a connection of its own (HTTP/1.1); leaving its block early closes that connection.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import random
import re
import time
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Iterator, Mapping
from typing import Any

import httpx

from .._version import __version__
from ..errors import (
    AuthenticationError,
    ConfigurationError,
    OutputTruncatedError,
    ProviderError,
    RateLimitError,
    SandboxError,
)
from ..transport import client_over, fast_transport, parsed_url, ssl_context
from .frames import STREAM_CAP, Frames, MiB, one_line

BODY_CAP = 64 * MiB
ATTEMPTS = 3
BACKOFF = 0.2
LONGEST_WAIT = 30.0
"""Seconds of `Retry-After` that are waited for; a longer one is the caller's to decide."""

_IDEMPOTENT = {"GET", "HEAD", "PUT", "DELETE"}
_TIMEOUT = httpx.Timeout(60, connect=10)
_PUBLIC_HEADERS = {"host", "accept", "accept-encoding", "connection", "user-agent", "content-type", "content-length",
                   "transfer-encoding", "e2b-sandbox-id", "e2b-sandbox-port"}  # fmt: skip
_BAD_SECRET = "{} cannot be asked: its key or token has a character that no HTTP header can hold."
_BAD_URL = "{} cannot be asked: its base URL is wrong. Give it as https://host."
_SECRET_PARAMETER = re.compile(r"sign|token|key|secret|auth", re.IGNORECASE)


class HTTPClient:
    """An HTTP client for one provider; it belongs to the event loop that first uses it.

    Proxies and certificates of the environment are honoured, redirects and cookies are not.

    Arguments:
        provider: its name, for messages.
    """

    def __init__(self, provider: str) -> None:
        self._provider = provider
        self._client: httpx.AsyncClient | None = None
        self._stream_client: httpx.AsyncClient | None = None

    async def request(
        self,
        method: str,
        url: str,
        *,
        expect: Collection[int] = (),
        idempotent: bool | None = None,
        cap: int = BODY_CAP,
        sandbox_id: str | None = None,
        timeout: httpx.Timeout | float | None = None,
        **request: Any,
    ) -> httpx.Response:
        """Send a request and return the whole answer, if its status is a success or in `expect`.

        Tried again, up to three times in all: when nothing was sent, when the server says to come back soon
        (429 with Retry-After), and, only if `idempotent`, when the connection broke or the server was unavailable
        (502, 503, 504).

        Arguments:
            expect: further statuses to return instead of raising.
            idempotent: whether doing it twice is harmless; None: by method.
            cap: bytes of body that are read at most.
            sandbox_id: whom it concerns, for errors.
            request: what `httpx.AsyncClient.build_request` takes (headers, json, params, content, files).

        Raises:
            AuthenticationError, RateLimitError, ProviderError, ConfigurationError.
        """
        if self._client is None:
            self._client = self._make_client()
        repeat = method in _IDEMPOTENT if idempotent is None else idempotent
        built = self._build(self._client, method, url, timeout=timeout or _TIMEOUT, **request)
        for attempt in range(1, ATTEMPTS + 1):
            response, error = await self._attempt(self._client, built, cap)
            if response is not None and (response.is_success or response.status_code in expect):
                return response
            wait = _pause(response, error, repeat, attempt)
            if wait is None:
                break
            await asyncio.sleep(wait)
        raise self._error(built, response, error, sandbox_id)

    async def _attempt(
        self, client: httpx.AsyncClient, request: httpx.Request, cap: int
    ) -> tuple[httpx.Response | None, Exception | None]:
        try:
            response = await client.send(request, stream=True)
            try:
                return await _read_capped(response, cap), None
            finally:
                await response.aclose()
        except (httpx.HTTPError, OutputTruncatedError, UnicodeError) as error:
            return None, error

    @contextlib.asynccontextmanager
    async def stream(
        self,
        method: str,
        url: str,
        *,
        separator: bytes,
        expect: Collection[int] = (),
        cap: int = STREAM_CAP,
        first_byte: float = 30,
        idle: float = 60,
        silence: float | None = None,
        is_progress: Callable[[bytes], bool] | None = None,
        sandbox_id: str | None = None,
        **request: Any,
    ) -> AsyncIterator[Frames]:
        """Send a request and read its answer frame by frame; leaving the block closes the connection.

        Sent again only when no connection could be made: never when the request may have arrived.

        Arguments:
            separator: the bytes between two frames.
            expect: statuses to hand out besides 200; their `frames.response` has its body read.
            cap: bytes after which output is refused, see `Frames`.
            first_byte: seconds until the first byte of the body must have come.
            idle: seconds that may pass without a byte.
            silence: seconds that may pass without a frame for which `is_progress` is true; None: no limit.

        Raises:
            AuthenticationError, RateLimitError, ProviderError, ConfigurationError.
            frames.SilentStreamError: while reading, when a time limit passed.
            OutputTruncatedError: while reading, when the connection broke.
        """
        if self._stream_client is None:
            # No kept connections: one that the server has just closed would leave open whether the run was started.
            self._stream_client = self._make_client(reuse=False)
        timeout = httpx.Timeout(None, connect=10, write=60)
        built = self._build(self._stream_client, method, url, timeout=timeout, **request)
        built.headers["Connection"] = "close"
        built.headers["Accept-Encoding"] = "identity"
        response = await self._open(self._stream_client, built, first_byte, sandbox_id)
        try:
            answer = response
            if response.status_code != 200:
                answer = await _read_capped(response, BODY_CAP)
                if answer.status_code not in expect:
                    raise self._error(built, answer, None, sandbox_id)
            where = f"{self._provider} sandbox {sandbox_id}" if sandbox_id else self._provider
            yield Frames(answer, separator, cap, first_byte, idle, silence, is_progress, where)
        finally:
            await response.aclose()

    async def _open(
        self, client: httpx.AsyncClient, request: httpx.Request, first_byte: float, sandbox_id: str | None
    ) -> httpx.Response:
        error: Exception | None = None
        for attempt in range(1, ATTEMPTS + 1):
            try:
                async with asyncio.timeout(10 + first_byte):
                    return await client.send(request, stream=True)
            except TimeoutError:
                error = httpx.ReadTimeout(f"no answer within {10 + first_byte:g} s")
                break
            except (httpx.HTTPError, UnicodeError) as reason:
                error = reason
            wait = _pause(None, error, False, attempt)
            if wait is None:
                break
            await asyncio.sleep(wait)
        raise self._error(request, None, error, sandbox_id)

    def _make_client(self, *, reuse: bool = True) -> httpx.AsyncClient:
        headers = {"User-Agent": f"ipy-sandbox/{__version__}", "Accept": "application/json"}
        reason = ""
        try:
            limits = httpx.Limits(max_keepalive_connections=None if reuse else 0)
            return client_over(fast_transport(reuse=reuse), headers=headers, timeout=_TIMEOUT, limits=limits)
        except (ImportError, ValueError, httpx.InvalidURL) as error:
            reason = one_line(error)
        raise ConfigurationError(f"The proxy settings of the environment cannot be used: {reason}.")

    def _build(self, client: httpx.AsyncClient, method: str, url: str, **request: Any) -> httpx.Request:
        message = _BAD_SECRET
        try:
            built = client.build_request(method, parsed_url(url), **request)
            if built.url.scheme in ("http", "https") and built.url.host:
                return built
            message = _BAD_URL
        except httpx.InvalidURL:
            message = _BAD_URL
        except UnicodeError:
            pass
        raise ConfigurationError(message.format(self._provider), provider=self._provider)

    def _error(
        self, request: httpx.Request, response: httpx.Response | None, error: Exception | None, sandbox_id: str | None
    ) -> SandboxError:
        made = self._status_error(response) if response is not None else self._transport_error(request, error)
        made.args = (_without_secrets(str(made), request),)
        made.provider, made.sandbox_id = self._provider, sandbox_id
        return made

    def _status_error(self, response: httpx.Response) -> SandboxError:
        status, said = response.status_code, _said(response)
        match status:
            case 401 | 403:
                return AuthenticationError(f"{self._provider} refused the key or token ({status}{said}): check it.")
            case 429:
                wait = retry_after(response)
                when = "delete a sandbox or try again later" if wait is None else f"try again in {wait:g} s"
                return RateLimitError(f"{self._provider} allows no more now (429{said}): {when}.", retry_after=wait)
        blame = "failed" if status >= 500 else "refused the request"
        where = f"{response.request.method} {response.request.url.path}"
        return ProviderError(f"{self._provider} {blame}: {where} gave {status}{said}.", status=status)

    def _transport_error(self, request: httpx.Request, error: Exception | None) -> SandboxError:
        host = request.url.netloc.decode("ascii", "replace").rpartition("@")[2]
        if isinstance(error, (httpx.LocalProtocolError, UnicodeError)):
            # Its own text quotes the value.
            return ConfigurationError(_BAD_SECRET.format(self._provider))
        if isinstance(error, (httpx.ConnectError, httpx.ConnectTimeout)):
            return ProviderError(
                f"Cannot connect to {self._provider} at {host}: {one_line(error) or 'timed out'}. "
                "Check the address and the network."
            )
        return ProviderError(f"{self._provider} at {host} did not answer in full: {one_line(error)}.")

    async def aclose(self) -> None:
        """Close all connections."""
        clients, self._client, self._stream_client = (self._client, self._stream_client), None, None
        # Both, even if the first is cancelled.
        async with contextlib.AsyncExitStack() as closing:
            for client in filter(None, clients):
                closing.push_async_callback(client.aclose)


@contextlib.contextmanager
def understanding(provider: str, what: str) -> Iterator[None]:
    """Make a ProviderError of whatever goes wrong inside, where an answer is not what the API promises."""
    try:
        yield
        return
    except (KeyError, TypeError, ValueError, AttributeError, IndexError, StopIteration) as error:
        reason = type(error).__name__
    raise ProviderError(f"{provider} answered something unexpected about {what} ({reason}).", provider=provider)


def delete_urls(urls: Iterable[str], headers: Mapping[str, str], budget: float) -> None:
    """Send a DELETE to each URL within `budget` seconds, without asyncio, and without raising: for the exit."""
    end = time.monotonic() + budget
    with contextlib.suppress(Exception), httpx.Client(verify=ssl_context(), headers=dict(headers)) as client:
        for url in urls:
            if (rest := end - time.monotonic()) <= 0:
                return
            with contextlib.suppress(httpx.HTTPError):
                client.delete(url, timeout=rest)


def retry_after(response: httpx.Response) -> float | None:
    """The seconds of a `Retry-After` header, if it has a number."""
    with contextlib.suppress(KeyError, ValueError):
        seconds = float(response.headers["Retry-After"])
        return max(0.0, seconds) if math.isfinite(seconds) else None
    return None


def _pause(response: httpx.Response | None, error: Exception | None, repeat: bool, attempt: int) -> float | None:
    """Seconds to wait before the next attempt; None: no further one."""
    backoff = BACKOFF * 2**attempt * random.uniform(0.5, 1)
    if attempt == ATTEMPTS:
        return None
    if response is None:
        unsent = isinstance(error, (httpx.ConnectError, httpx.ConnectTimeout))
        broken = repeat and isinstance(error, (httpx.NetworkError, httpx.RemoteProtocolError))
        return backoff if unsent or broken else None
    if response.status_code == 429:
        wait = retry_after(response)
        return wait if wait is not None and wait <= LONGEST_WAIT else None
    return backoff if repeat and response.status_code in (502, 503, 504) else None


async def _read_capped(response: httpx.Response, cap: int) -> httpx.Response:
    body = bytearray()
    async for chunk in response.aiter_bytes():
        body += chunk
        if len(body) > cap:
            raise OutputTruncatedError(f"the answer is longer than {cap // MiB} MiB")
    headers = [(k, v) for k, v in response.headers.multi_items() if k.lower() != "content-encoding"]
    return httpx.Response(response.status_code, headers=headers, content=bytes(body), request=response.request)


def _said(response: httpx.Response) -> str:
    """What the server said about an error, as `: text`, or nothing."""
    text = response.text[:10_000]
    if text.lstrip().startswith("<"):
        # A page is for browsers: this may be some other server.
        text = response.reason_phrase + ", so the address may be wrong" * (response.status_code in (404, 405, 501))
    with contextlib.suppress(ValueError, RecursionError):
        body = response.json()
        if isinstance(body, Mapping):
            detail = body.get("detail")
            text = str(body.get("message") or _validation(detail) or body.get("error") or "")
    text = " ".join(text.split()).rstrip(".")
    return f": {text[:300]}" if text else ""


def _validation(detail: object) -> str:
    # A list of complaints quotes the request, with its secrets, as `input`.
    if isinstance(detail, list):
        return "; ".join(f"{d.get('loc')}: {d.get('msg')}" for d in detail if isinstance(d, Mapping))
    return str(detail or "")


def _without_secrets(text: str, request: httpx.Request) -> str:
    headers = [value for name, value in request.headers.items() if name.lower() not in _PUBLIC_HEADERS]
    secrets = headers + [word for value in headers for word in value.split()]
    secrets += [value for name, value in request.url.params.multi_items() if _SECRET_PARAMETER.search(name)]
    for secret in sorted(secrets, key=len, reverse=True):
        if len(secret) >= 4:
            text = text.replace(secret, "***")
    return text
