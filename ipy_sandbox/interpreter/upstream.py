"""The model endpoint over HTTP: turns, raw pass-through, the list of models.

async with upstream.turn(route, "chat", body) as stream:
    async for delta in stream:
        ...
stream.turn
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import email.utils
import json
import random
import time
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from dataclasses import dataclass
from typing import Any

import httpx

from .._version import __version__
from ..errors import UpstreamError
from ..transport import parsed_url
from .accumulate import accumulator
from .catalog import Route
from .failure import Failure
from .sse import ServerEvent, SSEDecoder
from .transport import make_client
from .turn import API, Delta, Turn

_RETRIED = {429, 500, 502, 503, 504, 529}
_LONGEST_WAIT = 60.0
_BROKEN_OFF = "broke off its answer before the end"
_ERROR_BODY = 2**20  # bytes read of an error's body
_ANSWER = 256 * 2**20  # bytes of one answer, after which a model is not waited for
_LIST = 32 * 2**20  # bytes of a list of models
_SHORTEST_SECRET = 8  # characters of an extra header that may be one
_PASSED_UP = {"accept", "content-type", "idempotency-key", "openai-beta", "traceparent", "tracestate", "x-request-id"}
_NOT_PASSED_DOWN = {
    "connection", "keep-alive", "proxy-authenticate", "proxy-authorization", "proxy-connection", "te", "trailer",
    "transfer-encoding", "upgrade", "content-encoding", "content-length", "set-cookie", "alt-svc",
    "strict-transport-security",
}  # fmt: skip


class TurnStream:
    """One model call under way: iterate over its deltas, then read `turn`.

    `headers` are those of the upstream's that a proxy passes on (x-request-id, openai-*, x-ratelimit-*).
    """

    def __init__(self, route: Route, api: API, response: httpx.Response, idle_timeout: float) -> None:
        self.headers = _telling_headers(response.headers)
        self._route = route
        self._response = response
        self._idle_timeout = idle_timeout
        self._accumulator = accumulator(api)

    @property
    def turn(self) -> Turn:
        """What came so far; all of it after the last delta."""
        return self._accumulator.finish()

    async def __aiter__(self) -> AsyncIterator[Delta]:
        """The deltas as they arrive.

        Raises:
            UpstreamError: the answer broke off, said it failed, or stayed silent too long; `turn` has what came.
        """
        async for event in self._events():
            for delta in self._accumulator.feed(event):
                yield delta
        turn = self.turn
        if turn.error is not None:
            raise self._error(f"failed: {_one_line(turn.error.message)}")
        if not turn.complete:
            raise self._error(_BROKEN_OFF)

    async def _events(self) -> AsyncIterator[ServerEvent]:
        decoder, size = SSEDecoder(), 0
        try:
            async for chunk in self._response.aiter_bytes():
                size += len(chunk)
                if size > _ANSWER:
                    raise self._error(f"sent more than {_ANSWER >> 20} MiB; its answer was not waited for")
                for event in decoder.feed(chunk):
                    yield event
        except (httpx.HTTPError, httpx.StreamError) as error:
            # A server that reports an error may hang up at once; a finished answer is finished.
            if self.turn.error is None and not self.turn.complete:
                is_silence = isinstance(error, httpx.TimeoutException)
                raise self._error(
                    f"sent nothing for {self._idle_timeout:g} seconds" if is_silence else _BROKEN_OFF
                ) from error
        for event in decoder.flush():
            yield event

    def _error(self, what: str) -> UpstreamError:
        turn = self.turn
        code = turn.error.code if turn.error else None
        status = int(code) if code and code.isdecimal() and 400 <= int(code) < 600 else None
        body = turn.error.raw if turn.error else None
        return UpstreamError(
            f"The model {self._route.model} at {self._route.host} {what}.",
            provider=self._route.provider.name,
            status=status,
            body=body,
            failure=turn.error,
            headers=self.headers,
            turn=turn,
        )


@dataclass(slots=True)
class RawResponse:
    """An upstream answer passed through: `body` yields its bytes as they come, headers without hop-by-hop ones."""

    status: int
    headers: list[tuple[str, str]]
    body: AsyncIterator[bytes]


class Upstream:
    """A pool of connections to model endpoints; belongs to the event loop that first uses it.

    It closes itself when `asyncio.run` ends that loop.

    Arguments:
        connect_timeout: seconds for a connection.
        idle_timeout: seconds without a byte after which an answer counts as dead.
        retries: how often connect errors, 429 and 5xx are tried again, before any byte of the answer.
    """

    def __init__(self, *, connect_timeout: float = 10, idle_timeout: float = 600, retries: int = 2) -> None:
        self._connect_timeout = connect_timeout
        self._idle_timeout = idle_timeout
        self._retries = retries
        self._lifetime: AsyncGenerator[httpx.AsyncClient, None] | None = None
        self._client: httpx.AsyncClient | None = None
        self._without_usage: set[str] = set()  # base URLs that refuse stream_options

    @contextlib.asynccontextmanager
    async def turn(
        self, route: Route, api: API, body: Mapping[str, Any], *, stream: bool = True
    ) -> AsyncIterator[TurnStream]:
        """Call the model. Leaving the block closes the connection, which cancels a call under way.

        `model` and `stream` are set here, and `stream_options.include_usage` where the provider takes it.

        Raises:
            UpstreamError: no connection, or an error status: `status`, `body`, `failure`, `headers`, `retry_after`.
        """
        payload = {**body, "model": route.model, "stream": stream}
        if not stream:
            payload.pop("stream_options", None)
        elif api == "chat" and route.provider.include_usage and route.base_url not in self._without_usage:
            payload["stream_options"] = {**(body.get("stream_options") or {}), "include_usage": True}
        headers = {"content-type": "application/json", "accept": "text/event-stream" if stream else "application/json"}
        try:
            response = await self._send(route, "POST", api, headers, json.dumps(payload).encode())
        except UpstreamError as error:
            if error.status not in (400, 422) or not _is_about_stream_options(error, payload):
                raise
            self._without_usage.add(route.base_url)
            del payload["stream_options"]
            response = await self._send(route, "POST", api, headers, json.dumps(payload).encode())
        async with contextlib.aclosing(response):
            yield TurnStream(route, api, response, self._idle_timeout)

    @contextlib.asynccontextmanager
    async def forward(
        self, route: Route, method: str, path: str, *, headers: Mapping[str, str], content: bytes, query: str = ""
    ) -> AsyncIterator[RawResponse]:
        """Pass a request through byte for byte; error statuses are answers like any other.

        Of the caller's headers only those go up that the upstream may know of: no key, no cookie.

        Raises:
            UpstreamError: no connection, or it broke while the body was read.
        """
        passed = {name: value for name, value in headers.items() if name.lower() in _PASSED_UP}
        client = await self._open()
        try:
            response = await client.send(_request(client, route, method, path, passed, content, query), stream=True)
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise _unreachable(route, error, self._idle_timeout) from error
        async with contextlib.aclosing(response):
            kept = [(n, v) for n, v in response.headers.multi_items() if n.lower() not in _NOT_PASSED_DOWN]
            yield RawResponse(response.status_code, kept, _raw_body(route, response))

    async def models(self, route: Route) -> list[dict[str, Any]]:
        """The models the endpoint offers.

        Raises:
            UpstreamError: it did not answer with a list.
        """
        response = await self._send(route, "GET", "models", {"accept": "application/json"}, b"")
        async with contextlib.aclosing(response):
            try:
                body = json.loads(await _beginning(response, _LIST))
            except (httpx.HTTPError, ValueError, RecursionError):
                body = None
        listed = body if isinstance(body, list) else (body or {}).get("data") if isinstance(body, dict) else None
        if not isinstance(listed, list):
            raise UpstreamError(f"{route.host} did not answer with a list of models.", provider=route.provider.name)
        return [model for model in listed if isinstance(model, dict)]

    async def aclose(self) -> None:
        """Close all connections."""
        lifetime, self._lifetime, self._client = self._lifetime, None, None
        if lifetime is not None:
            await lifetime.aclose()

    # Requests.

    async def _send(
        self, route: Route, method: str, path: str, headers: dict[str, str], content: bytes
    ) -> httpx.Response:
        """The answer's head, if its status is a success; retries as `retries` says."""
        client = await self._open()
        for attempt in range(self._retries + 1):
            is_last = attempt == self._retries
            try:
                response = await client.send(_request(client, route, method, path, headers, content), stream=True)
            except (httpx.HTTPError, httpx.InvalidURL) as cause:
                error = _unreachable(route, cause, self._idle_timeout)
                if is_last or isinstance(cause, (httpx.ReadTimeout, httpx.InvalidURL)):
                    raise error from cause
            else:
                if response.is_success:
                    return response
                async with contextlib.aclosing(response):
                    error = await _status_error(route, response)
                if is_last or not _is_passing(error):
                    raise error
            await asyncio.sleep(_backoff(attempt) if error.retry_after is None else error.retry_after)
        raise AssertionError("the last attempt returns or raises")

    async def _open(self) -> httpx.AsyncClient:
        if self._client is None:
            # asyncio.run closes the async generators of its loop, and with this one the connections.
            self._lifetime = self._live()
            self._client = await anext(self._lifetime)
        return self._client

    async def _live(self) -> AsyncGenerator[httpx.AsyncClient, None]:
        async with make_client(connect_timeout=self._connect_timeout, idle_timeout=self._idle_timeout) as client:
            yield client


def _request(
    client: httpx.AsyncClient,
    route: Route,
    method: str,
    path: str,
    headers: dict[str, str],
    content: bytes,
    query: str = "",
) -> httpx.Request:
    # Compression would hold a stream back, and without it the bytes stay as the model server wrote them.
    always = {"accept-encoding": "identity", "user-agent": f"ipy-sandbox/{__version__}"}
    url = route.url(path)
    if query:
        url += ("&" if "?" in url else "?") + query
    return client.build_request(
        method, parsed_url(url), headers={**always, **headers, **route.headers()}, content=content or None
    )


def _unreachable(route: Route, error: Exception, idle_timeout: float) -> UpstreamError:
    if isinstance(error, httpx.ReadTimeout):
        what = f"The model server {route.host} sent nothing for {idle_timeout:g} seconds."
    else:
        reason = str(error) or type(error).__name__
        what = (
            f"Cannot reach the model server {route.host} ({reason}); check that it runs and that its address is right."
        )
    return UpstreamError(what, provider=route.provider.name)


async def _raw_body(route: Route, response: httpx.Response) -> AsyncIterator[bytes]:
    if not response.is_success:
        yield await _error_text(route, response)
        return
    try:
        async for chunk in response.aiter_bytes():
            yield chunk
    except (httpx.HTTPError, httpx.StreamError) as error:
        what = f"The model server {route.host} broke off its answer before the end."
        raise UpstreamError(what, provider=route.provider.name) from error


def _one_line(text: str) -> str:
    return " ".join(text.split())[:500]


def _backoff(attempt: int) -> float:
    return float(0.5 * 2**attempt * random.uniform(0.75, 1.25))


def _is_passing(error: UpstreamError) -> bool:
    """Whether a later try may soon succeed."""
    is_worth_it = error.status in _RETRIED and error.failure.code != "insufficient_quota"
    return is_worth_it and (error.retry_after or 0) <= _LONGEST_WAIT


def _is_about_stream_options(error: UpstreamError, payload: dict[str, Any]) -> bool:
    return "stream_options" in payload and "stream_options" in json.dumps(error.body)


async def _beginning(response: httpx.Response, limit: int) -> bytes:
    """The body, as far as it came, cut at the end of the chunk that passes `limit` bytes."""
    text = bytearray()
    with contextlib.suppress(httpx.HTTPError):
        async for chunk in response.aiter_bytes():
            text += chunk
            if len(text) > limit:
                break
    return bytes(text)


async def _error_text(route: Route, response: httpx.Response) -> bytes:
    """The body of an error, cut at a generous length, without what our headers say: some servers repeat it."""
    text = await _beginning(response, _ERROR_BODY)
    secrets = [value for value in route.extra_headers.values() if len(value) >= _SHORTEST_SECRET]
    for secret in sorted([*secrets, *filter(None, [route.api_key])], key=len, reverse=True):
        text = text.replace(secret.encode(), b"***")
    return text


async def _status_error(route: Route, response: httpx.Response) -> UpstreamError:
    text = (await _error_text(route, response)).decode(errors="replace")
    try:
        body: Any = json.loads(text)
    except (ValueError, RecursionError):
        body = text
    status = response.status_code
    is_page = isinstance(body, str) and (not body.strip() or body.lstrip().startswith("<"))
    failure = Failure.from_payload(response.reason_phrase if is_page else body)
    hint = ""
    if status in (401, 403):
        hint = (
            " Check its key."
            if route.api_key
            else " No key was sent: set OPENAI_BASE_URL and OPENAI_API_KEY, or pass api_key=."
        )
    return UpstreamError(
        f"The model server {route.host} answered {status} for {route.model}: {_one_line(failure.message)}{hint}",
        provider=route.provider.name,
        status=status,
        body=body,
        failure=failure,
        headers=_telling_headers(response.headers),
        retry_after=_retry_after(response.headers),
    )


def _retry_after(headers: httpx.Headers) -> float | None:
    """Seconds the server asks to wait: `retry-after-ms`, or `retry-after` as a number or a date."""
    with contextlib.suppress(KeyError, ValueError):
        return max(0.0, float(headers["retry-after-ms"]) / 1000)
    with contextlib.suppress(KeyError, ValueError):
        return max(0.0, float(headers["retry-after"]))
    with contextlib.suppress(KeyError, ValueError, TypeError):
        return max(0.0, email.utils.parsedate_to_datetime(headers["retry-after"]).timestamp() - time.time())
    return None


def _telling_headers(headers: httpx.Headers) -> dict[str, str]:
    wanted = ("openai-", "x-ratelimit-", "x-request-id", "retry-after")
    return {name: value for name, value in headers.items() if name.lower().startswith(wanted)}


_SHARED: dict[asyncio.AbstractEventLoop, Upstream] = {}


def shared() -> Upstream:
    """The `Upstream` of the running event loop."""
    for loop in [loop for loop in _SHARED if loop.is_closed()]:
        del _SHARED[loop]
    return _SHARED.setdefault(asyncio.get_running_loop(), Upstream())


@atexit.register
def _close_shared() -> None:
    """Close what the background loop has open, so that nothing complains while the interpreter leaves."""
    for loop, upstream in _SHARED.items():
        if loop.is_running():
            with contextlib.suppress(Exception):
                asyncio.run_coroutine_threadsafe(upstream.aclose(), loop).result(1)
