from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator
from typing import Any
from unittest import mock

import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from servers.http_server import Answer, HTTPServer, Request, serve

from ipy_sandbox.errors import (
    AuthenticationError,
    ConfigurationError,
    OutputTruncatedError,
    ProviderError,
    RateLimitError,
    SandboxError,
)
from ipy_sandbox.sandbox import frames as frames_module
from ipy_sandbox.sandbox import http as http_module
from ipy_sandbox.sandbox.frames import Frames, SilentStreamError, cut_text
from ipy_sandbox.sandbox.http import HTTPClient

pytestmark = pytest.mark.anyio

SECRET = "sk-very-secret-7c1f"


@pytest.fixture(params=["aiohttp", "httpx"])
async def http(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[HTTPClient]:
    """A client, once over each of the two transports."""
    if request.param == "httpx":
        monkeypatch.setattr(http_module, "fast_transport", lambda **options: None)
    else:
        pytest.importorskip("aiohttp")
    client = HTTPClient("e2b")
    yield client
    await client.aclose()


@pytest.fixture(autouse=True)
def no_backoff(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_module, "BACKOFF", 0)


def answering(*answers: tuple[int, Any, dict[str, str]] | None) -> HTTPServer:
    """A server that gives these answers in turn, the last one for ever; None cuts the connection."""
    left = list(answers)

    async def handler(request: Request, answer: Answer) -> None:
        now = left.pop(0) if len(left) > 1 else left[0]
        if now is not None:
            await answer.send(*now)

    return HTTPServer(handler)


def streaming(*chunks: bytes | float, end: bool = True) -> HTTPServer:
    """A server that streams these chunks, with pauses in seconds."""

    async def handler(request: Request, answer: Answer) -> None:
        await answer.start()
        for chunk in chunks:
            if isinstance(chunk, bytes):
                await answer.chunk(chunk)
            else:
                await asyncio.sleep(chunk)
        if end:
            await answer.end()

    return HTTPServer(handler)


@pytest.mark.parametrize(
    ("status", "body", "headers", "kind", "said"),
    [
        (401, {"code": 401, "message": f"bad key {SECRET}\nsorry"}, {}, AuthenticationError, "bad key *** sorry"),
        (403, b"no", {}, AuthenticationError, "403: no"),
        (404, {"message": "not here"}, {}, ProviderError, "GET /x gave 404: not here"),
        (409, {"message": "being killed"}, {}, ProviderError, "409: being killed"),
        (
            422,
            {"detail": [{"loc": ["body", "n"], "msg": "too big", "input": SECRET[:9]}]},
            {},
            ProviderError,
            "too big",
        ),
        (429, {"message": "20 sandboxes"}, {}, RateLimitError, "20 sandboxes): delete a sandbox or try again later"),
        (429, b"", {"Retry-After": "90"}, RateLimitError, "try again in 90 s"),
        (429, b"[" * 100_000, {"Retry-After": "inf"}, RateLimitError, "try again later"),
        (500, b"<html>oops</html>", {}, ProviderError, "e2b failed: GET /x gave 500: Internal Server Error."),
        (501, b"<html>oops</html>", {}, ProviderError, "gave 501: Not Implemented, so the address may be wrong."),
        (302, b"", {"Location": "http://127.0.0.1:1/"}, ProviderError, "gave 302"),
    ],
)
async def test_a_status_becomes_one_clear_line_without_secrets(
    http: HTTPClient, status: int, body: Any, headers: dict[str, str], kind: type[SandboxError], said: str
) -> None:
    async with answering((status, body, headers)) as server:
        with pytest.raises(kind) as caught:
            await http.request(
                "GET", f"{server.url}/x?signature={SECRET}", headers={"X-API-Key": SECRET}, sandbox_id="i1"
            )
    text = str(caught.value)
    assert said in text
    assert "\n" not in text
    assert SECRET[:9] not in text
    assert (caught.value.provider, caught.value.sandbox_id) == ("e2b", "i1")
    assert getattr(caught.value, "status", status) == status
    assert getattr(caught.value, "retry_after", None) == (90 if headers.get("Retry-After") == "90" else None)


async def test_an_expected_status_is_returned(http: HTTPClient) -> None:
    async with answering((404, {"message": "gone"}, {})) as server:
        response = await http.request("DELETE", server.url, expect={404})
    assert response.status_code == 404
    assert response.json() == {"message": "gone"}


OK = (200, {"ok": True}, {})
DOWN = (503, b"", {})


@pytest.mark.parametrize(
    ("method", "idempotent", "answers", "requests", "ok"),
    [
        ("GET", None, [DOWN, DOWN, OK], 3, True),
        ("GET", None, [DOWN], 3, False),
        ("GET", None, [None, OK], 2, True),
        ("DELETE", None, [None, OK], 2, True),
        ("POST", None, [DOWN, OK], 1, False),
        ("POST", None, [None, OK], 1, False),
        ("POST", True, [None, OK], 2, True),
        ("POST", None, [(429, b"", {"Retry-After": "0"}), OK], 2, True),
        ("POST", None, [(429, b"", {}), OK], 1, False),
        ("GET", None, [(429, b"", {"Retry-After": "90"}), OK], 1, False),
        ("GET", None, [(500, b"", {}), OK], 1, False),
    ],
)
async def test_only_what_is_harmless_is_sent_again(
    http: HTTPClient, method: str, idempotent: bool | None, answers: list[Any], requests: int, ok: bool
) -> None:
    async with answering(*answers) as server:
        try:
            await http.request(method, server.url, idempotent=idempotent)
            succeeded = True
        except SandboxError:
            succeeded = False
        assert (len(server.requests), succeeded) == (requests, ok)


async def test_no_server_is_one_clear_line(http: HTTPClient) -> None:
    with pytest.raises(ProviderError, match=r"^Cannot connect to e2b at 127\.0\.0\.1:1: [^\n]+$"):
        await http.request("GET", "http://127.0.0.1:1/")
    with pytest.raises(ProviderError, match="Cannot connect to e2b"):
        async with http.stream("POST", "http://127.0.0.1:1/", separator=b"\n"):
            pass


@pytest.mark.parametrize("key", [f"{SECRET}\n", f"{SECRET}é", f"{SECRET}\x00"])
async def test_a_key_that_is_no_header_does_not_show(http: HTTPClient, key: str) -> None:
    async with answering(OK) as server:
        with pytest.raises(ConfigurationError, match="no HTTP header can hold") as caught:
            await http.request("GET", server.url, headers={"X-API-Key": key})
    assert SECRET not in str(caught.value)
    assert caught.value.__context__ is None


@pytest.mark.parametrize("url", ["localhost:3000", "ftp://host/", "https://", "http://[::1"])
async def test_a_wrong_url_is_a_configuration_error(http: HTTPClient, url: str) -> None:
    with pytest.raises(ConfigurationError, match="base URL is wrong"):
        await http.request("GET", url)


async def test_unusable_proxy_settings_are_a_configuration_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ALL_PROXY", "nonsense://x")
    with pytest.raises(ConfigurationError, match="proxy settings"):
        await HTTPClient("e2b").request("GET", "https://e2b.invalid/")


async def test_a_body_beyond_the_cap_is_refused(http: HTTPClient) -> None:
    async with streaming(*[b"x" * 1000] * 5) as server:
        with pytest.raises(ProviderError, match="longer than"):
            await http.request("GET", server.url, cap=4000)
        assert len((await http.request("GET", server.url, cap=5000)).content) == 5000


async def frames_of(http: HTTPClient, server: HTTPServer, separator: bytes, **options: Any) -> list[bytes]:
    async with http.stream("POST", server.url, separator=separator, **options) as frames:
        return [frame async for frame in frames]


BODY = 'a\x85b\n\n{"c": "é\u2028\r"}\n\n\nd\n\nlast'.encode()


@pytest.mark.parametrize("separator", [b"\n", b"\n\n"])
async def test_frames_are_the_same_however_the_bytes_arrive(http: HTTPClient, separator: bytes) -> None:
    expected = BODY.split(separator)
    for size in (1, 2, 3, 7, len(BODY)):
        async with streaming(*[BODY[i : i + size] for i in range(0, len(BODY), size)]) as server:
            assert await frames_of(http, server, separator) == expected


async def test_the_stream_ends_with_its_separator(http: HTTPClient) -> None:
    async with streaming(b"a\n", b"b\n") as server:
        assert await frames_of(http, server, b"\n") == [b"a", b"b"]


async def test_beyond_the_cap_small_frames_pass_and_the_long_one_shows_its_beginning(http: HTTPClient) -> None:
    long = b'{"text": "' + b"x" * 300_000 + b'"}'
    async with (
        streaming(b"first\n", *[long[i : i + 50_000] for i in range(0, len(long), 50_000)], b"\nend\n") as server,
        http.stream("POST", server.url, separator=b"\n", cap=100_000) as frames,
    ):
        assert [frame async for frame in frames] == [b"first", b"end"]
        assert frames.truncated
        assert not frames.exhausted
        assert frames.partial == long[:100_000]
        assert cut_text(frames.partial) == "x" * (100_000 - len(b'{"text": "'))


@pytest.mark.parametrize(
    ("frame", "text"),
    [
        (b'{"text": "abc', "abc"),
        (b'{"type":"stdout","text":"a\\n\\u00e9\\ud83d\\ude00\\u00', "a\né\U0001f600"),
        (b'{"text":"a\\', "a"),
        (b'{"text":"done", "x": "y', "done"),
        ('{"text":"é'.encode()[:-1], ""),
        (b'{"other": 1', None),
        (rb'{"text":"no \x escape', None),
    ],
)
def test_cut_text_reads_what_is_whole(frame: bytes, text: str | None) -> None:
    assert cut_text(frame) == text


async def test_silence_before_the_first_byte(http: HTTPClient) -> None:
    async with streaming(30.0) as server:
        with pytest.raises(SilentStreamError, match="does not answer"):
            await frames_of(http, server, b"\n", first_byte=0.05, idle=20)


async def test_silence_after_a_byte(http: HTTPClient) -> None:
    async with streaming(b"a\n", 30.0) as server:
        with pytest.raises(SilentStreamError, match="sandbox i1"):
            await frames_of(http, server, b"\n", first_byte=20, idle=0.05, sandbox_id="i1")


async def test_pings_are_no_progress(http: HTTPClient) -> None:
    async with streaming(b"a\n", *[0.02, b"ping\n"] * 500) as server:
        with pytest.raises(SilentStreamError):
            await frames_of(http, server, b"\n", silence=0.2, is_progress=lambda frame: frame != b"ping")


async def test_progress_resets_the_silence_and_a_slow_reader_is_none(http: HTTPClient) -> None:
    async with (
        streaming(*[0.05, b"a\n"] * 6) as server,
        http.stream("POST", server.url, separator=b"\n", silence=0.25) as frames,
    ):
        async for _ in frames:
            await asyncio.sleep(0.06)


async def test_a_broken_connection_is_a_truncated_output(http: HTTPClient) -> None:
    async with streaming(b"a\nb", end=False) as server:
        with pytest.raises(OutputTruncatedError, match="broke before the end"):
            await frames_of(http, server, b"\n")


async def test_a_stream_is_never_sent_twice_when_it_may_have_arrived(http: HTTPClient) -> None:
    async with answering(None) as server:
        with pytest.raises(ProviderError, match="did not answer in full"):
            await frames_of(http, server, b"\n")
        assert len(server.requests) == 1
    async with answering(DOWN) as server:
        with pytest.raises(ProviderError):
            await frames_of(http, server, b"\n")
        assert len(server.requests) == 1


@pytest.mark.parametrize("how", ["leave", "stop", "cancel"])
async def test_the_connection_closes_when_the_reader_goes(http: HTTPClient, how: str) -> None:
    gone, first = asyncio.Event(), asyncio.Event()

    async def handler(request: Request, answer: Answer) -> None:
        await answer.start()
        await answer.chunk(b"a\n")
        await answer.gone.wait()
        gone.set()

    async def read(url: str) -> None:
        async with http.stream("POST", url, separator=b"\n") as frames:
            if how == "stop":
                asyncio.get_running_loop().call_later(0.05, frames.stop)
            async for _ in frames:
                first.set()
                if how == "leave":
                    break
            assert frames.stopped == (how == "stop")

    async with serve(handler) as server:
        reading = asyncio.ensure_future(read(server.url))
        await first.wait()
        if how == "cancel":
            reading.cancel()
        await asyncio.wait_for(gone.wait(), 10)
        await asyncio.gather(reading, return_exceptions=True)


class Chunks(httpx.AsyncByteStream):
    def __init__(self, chunks: list[bytes]) -> None:
        self._chunks = chunks

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for chunk in self._chunks:
            yield chunk


@settings(deadline=None, max_examples=200)
@given(
    frames=st.lists(st.binary(max_size=12).map(lambda b: b.replace(b"\n", b"x"))),
    cuts=st.lists(st.integers(0, 200)),
    separator=st.sampled_from([b"\n", b"\n\n"]),
    tail=st.sampled_from([b"", b"tail"]),
    cap=st.integers(1, 60),
)
def test_any_cutting_and_any_cap(frames: list[bytes], cuts: list[int], separator: bytes, tail: bytes, cap: int) -> None:
    body = b"".join(frame + separator for frame in frames) + tail
    places = [0, *sorted(min(c, len(body)) for c in cuts), len(body)]
    chunks = [body[a:b] for a, b in itertools.pairwise(places) if a < b]

    async def read(cap: int) -> tuple[list[bytes], Frames]:
        response = httpx.Response(200, stream=Chunks(chunks))
        reader = Frames(response, separator, cap, 5, 5, None, None, "here")
        return [frame async for frame in reader], reader

    whole, reader = asyncio.run(read(10**6))
    assert whole == frames + ([tail] if tail else [])
    assert not reader.truncated
    with mock.patch.object(frames_module, "SMALL_FRAME", 6):
        some, reader = asyncio.run(read(cap))
    assert reader.truncated == (len(body) > cap)
    left = iter(whole)
    assert all(frame in left for frame in some), "a frame that was handed out is none, or is out of order"
    assert [f for f in whole if len(f) <= 6] == [f for f in some if len(f) <= 6]
    assert len(reader.partial) <= cap
    # Half a separator may be at its end.
    assert not reader.partial or any(f.startswith(reader.partial.rstrip(b"\n")) for f in whole)
