"""The model endpoint over a real connection: retries, errors in every envelope, cuts, silence, cancellation."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import email.utils
import json
import pickle
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from typing import Any

import pytest

from ipy_sandbox import UpstreamError
from ipy_sandbox.interpreter import transport, upstream
from ipy_sandbox.interpreter.catalog import Route, resolve
from ipy_sandbox.interpreter.sse import DONE, KEEPALIVE, encode
from ipy_sandbox.interpreter.turn import ArgumentsDelta, CallStarted, TextDelta, Turn
from ipy_sandbox.interpreter.upstream import Upstream, shared

from .model_server import Answer, Connection, ModelServer, answer, refuse, serve

pytestmark = pytest.mark.anyio

ASK = {"messages": [{"role": "user", "content": "hi"}]}
KEY = "sk-very-secret"


@pytest.fixture(params=["aiohttp", "httpx"], autouse=True)
def which_transport(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything holds on the fast transport and without it."""
    if request.param == "httpx":
        monkeypatch.setattr(transport, "fast_transport", lambda: None)
    else:
        assert transport.fast_transport() is not None


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(upstream, "_backoff", lambda attempt: 0.0)


@pytest.fixture
async def client() -> AsyncIterator[Upstream]:
    made = Upstream(idle_timeout=30)
    yield made
    await made.aclose()


def route_to(server: ModelServer, model: str = "m", key: str | None = KEY) -> Route:
    return resolve(model, base_url=server.base_url, api_key=key, env={})


def chunk(delta: dict[str, Any], finish: str | None = None) -> bytes:
    return encode({"id": "c", "model": "m", "choices": [{"index": 0, "delta": delta, "finish_reason": finish}]})


HELLO = chunk({"role": "assistant", "content": "Hello"}) + chunk({}, "stop") + DONE


async def ask(client: Upstream, server: ModelServer, *, stream: bool = True, **extra: Any) -> Turn:
    async with client.turn(route_to(server), "chat", {**ASK, **extra}, stream=stream) as call:
        async for _ in call:
            pass
    return call.turn


# Asking.


async def test_a_streamed_turn(client: Upstream) -> None:
    headers = "x-request-id: r1\r\nopenai-processing-ms: 5\r\nserver: s\r\n"
    async with (
        serve(answer(HELLO, headers=headers)) as server,
        client.turn(route_to(server), "chat", {**ASK, "seed": 1}) as call,
    ):
        deltas = [delta async for delta in call]
    assert deltas == [TextDelta(0, "Hello")]
    assert (call.turn.text, call.turn.finish_reason) == ("Hello", "stop")
    assert call.headers == {"x-request-id": "r1", "openai-processing-ms": "5"}
    [sent] = server.requests
    assert (sent.method, sent.target) == ("POST", "/v1/chat/completions")
    assert sent.json == {**ASK, "seed": 1, "model": "m", "stream": True, "stream_options": {"include_usage": True}}
    assert sent.headers["authorization"] == f"Bearer {KEY}"


async def test_a_whole_turn_gives_the_same_deltas(client: Upstream) -> None:
    call = {"id": "call_1", "type": "function", "function": {"name": "python", "arguments": '{"code": "1"}'}}
    body = {"choices": [{"message": {"role": "assistant", "content": "Hm", "tool_calls": [call]}}], "usage": {"x": 1}}
    async with serve(answer(body)) as server:
        asked = {**ASK, "stream_options": {"include_usage": True}}
        async with client.turn(route_to(server), "chat", asked, stream=False) as answered:
            deltas = [delta async for delta in answered]
    assert deltas == [TextDelta(0, "Hm"), CallStarted(1, "call_1", "python"), ArgumentsDelta(1, '{"code": "1"}')]
    assert answered.turn.usage == {"x": 1}
    assert server.requests[0].json == {**ASK, "model": "m", "stream": False}


async def test_the_responses_api_has_its_own_address(client: Upstream) -> None:
    body = {"id": "r", "object": "response", "status": "completed", "output": []}
    async with serve(answer(body)) as server, client.turn(route_to(server), "responses", {"input": "hi"}) as call:
        assert [delta async for delta in call] == []
    assert call.turn.complete
    assert server.requests[0].target == "/v1/responses"
    assert "stream_options" not in server.requests[0].json


async def test_deltas_come_as_soon_as_their_bytes(client: Upstream) -> None:
    go_on = asyncio.Event()

    async def slowly(connection: Connection) -> None:
        await connection.head()
        await connection.send(KEEPALIVE + chunk({"content": "first"}))
        await go_on.wait()
        await connection.send(chunk({"content": " second"}, "stop"))
        await connection.end()

    async with serve(slowly) as server, client.turn(route_to(server), "chat", ASK) as call:
        deltas = aiter(call)
        assert await anext(deltas) == TextDelta(0, "first")
        go_on.set()
        assert [delta async for delta in deltas] == [TextDelta(0, " second")]


async def test_connections_are_used_again_and_cookies_are_not_kept(client: Upstream) -> None:
    async with serve(answer(HELLO, headers="Set-Cookie: who=alice; Path=/\r\n")) as server:
        for _ in range(3):
            await ask(client, server)
    assert server.connections == 1
    assert not any("cookie" in request.headers for request in server.requests)


async def test_many_at_once(client: Upstream) -> None:
    async def one(connection: Connection) -> None:
        await connection.head()
        await all_here.wait()
        await connection.send(HELLO)
        await connection.end()

    all_here = asyncio.Event()
    async with serve(one) as server:
        calls = [asyncio.create_task(ask(client, server)) for _ in range(150)]
        await server.has_been_asked(150)
        all_here.set()
        assert [turn.text for turn in await asyncio.gather(*calls)] == ["Hello"] * 150


async def test_a_provider_that_reports_usage_unasked_is_not_asked(client: Upstream) -> None:
    async with (
        serve(answer(HELLO)) as server,
        client.turn(resolve("mistral/m", base_url=server.base_url, env={}), "chat", ASK) as call,
    ):
        _ = [delta async for delta in call]
    assert server.requests[0].json == {**ASK, "model": "m", "stream": True}


async def test_a_server_that_refuses_stream_options_is_asked_once_more_and_remembered(client: Upstream) -> None:
    refused = answer({"detail": [{"loc": ["body", "stream_options"], "msg": "extra inputs"}]}, 422)
    async with serve(refused, answer(HELLO)) as server:
        assert (await ask(client, server)).text == "Hello"
        assert (await ask(client, server)).text == "Hello"
    assert ["stream_options" in request.json for request in server.requests] == [True, False, False]


# Trying again.


@pytest.mark.parametrize("status", [429, 500, 502, 503, 529])
async def test_a_passing_failure_is_tried_again(client: Upstream, status: int) -> None:
    failure = answer({"error": {"message": "busy"}}, status)
    async with serve(failure, failure, answer(HELLO)) as server:
        assert (await ask(client, server)).text == "Hello"
    assert len(server.requests) == 3


async def test_tries_end(client: Upstream) -> None:
    async with serve(answer({"error": {"message": "busy", "type": "t", "code": 7}}, 503)) as server:
        with pytest.raises(UpstreamError, match="answered 503 for m: busy") as caught:
            await ask(client, server)
    assert (len(server.requests), caught.value.status) == (3, 503)
    assert (caught.value.failure.type, caught.value.failure.code) == ("t", "7")


@pytest.mark.parametrize(
    ("status", "error"),
    [(400, {}), (401, {}), (404, {}), (422, {}), (501, {}), (429, {"code": "insufficient_quota"})],
)
async def test_a_lasting_failure_is_not_tried_again(client: Upstream, status: int, error: dict[str, Any]) -> None:
    async with serve(answer({"error": {"message": "no", **error}}, status)) as server:
        with pytest.raises(UpstreamError) as caught:
            await ask(client, server)
    assert (len(server.requests), caught.value.status) == (1, status)


@pytest.mark.parametrize("asked_for", ["retry-after: 3", "retry-after-ms: 3000", "retry-after: {date}"])
async def test_retry_after_is_honoured(client: Upstream, monkeypatch: pytest.MonkeyPatch, asked_for: str) -> None:
    waits: list[float] = []

    async def note(seconds: float) -> None:
        waits.append(seconds)

    header = asked_for.format(date=email.utils.formatdate(time.time() + 3.5, usegmt=True)) + "\r\n"
    async with serve(answer({}, 429, header), answer(HELLO)) as server:
        with monkeypatch.context() as patch:
            patch.setattr(upstream.asyncio, "sleep", note)
            assert (await ask(client, server)).text == "Hello"
    assert [2 <= seconds <= 4 for seconds in waits] == [True]


async def test_a_long_retry_after_is_the_callers_to_wait(client: Upstream) -> None:
    async with serve(answer({"error": "limit"}, 429, "retry-after: 3600\r\n")) as server:
        with pytest.raises(UpstreamError) as caught:
            await ask(client, server)
    assert (len(server.requests), caught.value.retry_after) == (1, 3600)
    assert caught.value.headers == {"retry-after": "3600"}


async def test_a_connection_closed_without_a_byte_is_tried_again(client: Upstream) -> None:
    async with serve(refuse, refuse, answer(HELLO)) as server:
        assert (await ask(client, server)).text == "Hello"
    async with serve(refuse) as server:
        with pytest.raises(UpstreamError, match=r"Cannot reach the model server 127\.0\.0\.1:\d+ \(.+\); check that"):
            await ask(client, server)
    assert len(server.requests) == 3


async def test_no_server(client: Upstream) -> None:
    async with serve(refuse) as server:
        pass
    with pytest.raises(UpstreamError, match=r"Cannot reach the model server 127\.0\.0\.1:\d+ \([\w ]+") as caught:
        await ask(client, server)
    assert caught.value.status is None
    assert "ssl" not in str(caught.value)


# Errors and cuts.

ENVELOPES: list[tuple[Any, str, str | None, str | None]] = [
    ({"error": {"message": "m", "type": "t", "param": None, "code": "c"}}, "m", "t", "c"),
    ({"error": {"code": 400, "message": "m", "type": "invalid_request_error"}}, "m", "invalid_request_error", "400"),
    ([{"error": {"code": 400, "message": "m", "status": "INVALID_ARGUMENT"}}], "m", "INVALID_ARGUMENT", "400"),
    ({"object": "error", "message": "m", "type": "BadRequestError", "code": 400}, "m", "BadRequestError", "400"),
    ({"type": "error", "error": {"type": "t", "message": "m"}}, "m", "t", None),
    ({"error": "m"}, "m", None, None),
    ({"detail": "m"}, "m", None, None),
    ({"detail": [{"loc": ["body"], "msg": "m"}]}, '[{"loc": ["body"], "msg": "m"}]', None, None),
    ({"message": "m"}, "m", None, None),
    (b"m", "m", None, None),
    (b"<html>nginx</html>", "Status", None, None),
    (b"", "Status", None, None),
    ({}, "{}", None, None),
    ([], "[]", None, None),
]


@pytest.mark.parametrize(("body", "message", "kind", "code"), ENVELOPES)
async def test_an_error_status_in_any_envelope(
    client: Upstream, body: Any, message: str, kind: str | None, code: str | None
) -> None:
    async with serve(answer(body, 400)) as server:
        with pytest.raises(UpstreamError) as caught:
            await ask(client, server)
    failure = caught.value.failure
    assert (failure.message, failure.type, failure.code) == (message, kind, code)
    assert caught.value.body == (body.decode() if isinstance(body, bytes) else body)
    assert pickle.loads(pickle.dumps(caught.value)).failure == failure


@pytest.mark.parametrize(
    ("events", "message"),
    [
        (encode({"error": {"message": "m", "code": 502}}) + DONE, "m"),
        (encode({"message": "m", "type": "overloaded_error"}, "error"), "m"),
        (encode({"object": "error", "message": "m", "code": 400}), "m"),
        (b'data: [{"error": {"message": "m"}}]\n\n', "m"),
        (b'event: error\ndata: {"error": "m"}', "m"),
    ],
)
async def test_an_error_amid_the_stream(client: Upstream, events: bytes, message: str) -> None:
    async with serve(answer(chunk({"content": "The ans"}) + events)) as server:
        with pytest.raises(UpstreamError, match=f"failed: {message}") as caught:
            await ask(client, server)
    assert caught.value.turn.text == "The ans"
    assert len(server.requests) == 1


async def test_the_status_within_an_error_event_is_kept(client: Upstream) -> None:
    async with serve(answer(encode({"error": {"message": "m", "code": 429}}))) as server:
        with pytest.raises(UpstreamError) as caught:
            await ask(client, server)
    assert (caught.value.status, caught.value.body) == (429, {"error": {"message": "m", "code": 429}})


async def test_a_failed_response(client: Upstream) -> None:
    error = {"code": "rate_limit_exceeded", "message": "slow down"}
    failed = encode({"type": "response.failed", "response": {"status": "failed", "error": error}}, "response.failed")
    async with serve(answer(failed)) as server, client.turn(route_to(server), "responses", {"input": "hi"}) as call:
        with pytest.raises(UpstreamError, match="slow down") as caught:
            _ = [delta async for delta in call]
    assert caught.value.failure.code == "rate_limit_exceeded"


async def cut_short(connection: Connection) -> None:
    await connection.head()
    await connection.send(chunk({"content": "The ans"}))
    connection.cut()


@pytest.mark.parametrize(
    "how",
    [
        cut_short,
        answer(chunk({"content": "The ans"})),
        answer(chunk({"content": "The ans"}) + chunk({"content": "wer"})[:-9]),
    ],
)
async def test_a_cut_answer_is_an_error_with_what_came(client: Upstream, how: Answer) -> None:
    async with serve(how) as server:
        with pytest.raises(UpstreamError, match="broke off its answer before the end") as caught:
            await ask(client, server)
    assert caught.value.turn.text == "The ans"
    assert len(server.requests) == 1, "an answer that has begun is never asked for again"


async def test_what_the_server_said_before_it_hung_up_counts(client: Upstream) -> None:
    def then_cut(events: bytes) -> Answer:
        async def give(connection: Connection) -> None:
            await connection.head()
            await connection.send(events)
            connection.cut()

        return give

    async with serve(then_cut(encode({"error": {"message": "out of memory"}}))) as server:
        with pytest.raises(UpstreamError, match="failed: out of memory"):
            await ask(client, server)
    async with serve(then_cut(HELLO)) as server:
        assert (await ask(client, server)).text == "Hello"


DEEP = b"[" * 100_000


@pytest.mark.parametrize(
    "body",
    [
        b"hello",
        b"{",
        DEEP,
        b"data: " + DEEP + b"\n\n",
        b'{"choices": 5}',
        b'data: {"choices": [{"delta": 3}]}\n\n',
        b"[]",
    ],
)
async def test_nonsense_with_a_good_status(client: Upstream, body: bytes) -> None:
    async with serve(answer(body)) as server:
        with pytest.raises(UpstreamError):
            await ask(client, server)


async def test_an_endless_answer_is_given_up(client: Upstream, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(upstream, "_ANSWER", 2**20)

    async def thinks_for_ever(connection: Connection) -> None:
        await connection.head()
        with contextlib.suppress(ConnectionError):
            while True:
                await connection.send(chunk({"reasoning_content": "hmm " * 5000}))

    async with serve(thinks_for_ever) as server:
        with pytest.raises(UpstreamError, match="sent more than 1 MiB") as caught:
            await ask(client, server)
    assert caught.value.turn.reasoning.startswith("hmm hmm")


async def test_silence_ends() -> None:
    async def fall_silent(connection: Connection) -> None:
        await connection.head()
        await connection.send(chunk({"content": "The ans"}))
        await connection.client_leaves()

    client = Upstream(idle_timeout=0.2)
    async with serve(fall_silent) as server:
        with pytest.raises(UpstreamError, match=r"sent nothing for 0\.2 seconds") as caught:
            await ask(client, server)
        await server.gone.wait()
    assert caught.value.turn.text == "The ans"
    await client.aclose()


async def test_silence_before_the_first_byte_ends_and_is_not_tried_again() -> None:
    client = Upstream(idle_timeout=0.2)
    async with serve(Connection.client_leaves) as server:
        with pytest.raises(UpstreamError, match=r"sent nothing for 0\.2 seconds"):
            await ask(client, server)
    assert len(server.requests) == 1
    await client.aclose()


# Cancelling.


async def endless(connection: Connection) -> None:
    await connection.head()
    await connection.send(chunk({"content": "la"}))
    await connection.client_leaves()


async def test_leaving_the_block_closes_the_connection(client: Upstream) -> None:
    async with serve(endless) as server:
        async with client.turn(route_to(server), "chat", ASK) as call:
            assert await anext(aiter(call)) == TextDelta(0, "la")
        await server.gone.wait()


@pytest.mark.parametrize("server_does", [endless, Connection.client_leaves])
async def test_cancelling_closes_the_connection(client: Upstream, server_does: Answer) -> None:
    async with serve(server_does) as server:
        call = asyncio.create_task(ask(client, server))
        await server.has_been_asked()
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        await server.gone.wait()


# Secrets.


async def test_a_server_that_repeats_the_key_does_not_get_it_to_the_caller(client: Upstream) -> None:
    async with serve(answer({"error": {"message": f"bad key {KEY}"}}, 401)) as server:
        with pytest.raises(UpstreamError, match=r"bad key \*\*\* Check its key") as caught:
            await ask(client, server)
        async with client.forward(route_to(server), "POST", "chat", headers={}, content=b"{}") as raw:
            body = b"".join([piece async for piece in raw.body])
    assert KEY not in f"{caught.value!r} {caught.value.body} {body!r}"


async def test_a_server_that_repeats_other_headers_does_not_get_them_to_the_caller(client: Upstream) -> None:
    async with serve(answer({"error": {"message": "gateway token tok-12345678 of eu is stale"}}, 401)) as server:
        headers = {"x-gateway-token": "tok-12345678", "x-region": "eu"}
        route = dataclasses.replace(route_to(server), extra_headers=headers)
        with pytest.raises(UpstreamError, match=r"gateway token \*\*\* of eu is stale"):
            async with client.turn(route, "chat", ASK):
                pass


async def test_without_a_key_the_error_says_so(client: Upstream) -> None:
    async with serve(answer({"error": "who?"}, 401)) as server:
        with pytest.raises(
            UpstreamError, match="No key was sent: set OPENAI_BASE_URL and OPENAI_API_KEY, or pass api_key="
        ):
            async with client.turn(route_to(server, key=None), "chat", ASK):
                pass


# Passing through.


async def test_pass_through_is_byte_for_byte(client: Upstream) -> None:
    body = b"\xef\xbb\xbf: hi\r\n\r\ndata:  {}\r\n\r\ndata: \xff\x00"
    async with serve(answer(body, 203, "X-Custom: 1\r\nSet-Cookie: a=b\r\nKeep-Alive: 5\r\n")) as server:
        sent = {"Content-Type": "application/json", "Authorization": "Bearer users", "Cookie": "a", "OpenAI-Beta": "b"}
        call = client.forward(
            route_to(server), "POST", "audio/speech", headers=sent, content=b'{"a" : 1}', query="x=%20&y"
        )
        async with call as raw:
            received = b"".join([piece async for piece in raw.body])
    assert (raw.status, received) == (203, body)
    assert [(n.lower(), v) for n, v in raw.headers] == [("content-type", "text/event-stream"), ("x-custom", "1")]
    [request] = server.requests
    assert (request.target, request.content) == ("/v1/audio/speech?x=%20&y", b'{"a" : 1}')
    assert request.headers["authorization"] == f"Bearer {KEY}"
    assert (request.headers["openai-beta"], "cookie" in request.headers) == ("b", False)


async def test_pass_through_does_not_wait_for_the_end(client: Upstream) -> None:
    async with serve(endless) as server:
        async with client.forward(route_to(server), "POST", "chat", headers={}, content=b"{}") as raw:
            assert await anext(raw.body) == chunk({"content": "la"})
        await server.gone.wait()


async def test_pass_through_gives_errors_as_they_are(client: Upstream) -> None:
    async with (
        serve(answer({"error": 1}, 500, "retry-after: 1\r\n")) as server,
        client.forward(route_to(server), "POST", "chat", headers={}, content=b"{}") as raw,
    ):
        assert (raw.status, json.loads(await anext(raw.body))) == (500, {"error": 1})
    assert len(server.requests) == 1


async def test_pass_through_of_a_cut_answer_does_not_look_complete(client: Upstream) -> None:
    async with (
        serve(cut_short) as server,
        client.forward(route_to(server), "POST", "chat", headers={}, content=b"{}") as raw,
    ):
        with pytest.raises(UpstreamError, match="broke off"):
            _ = [piece async for piece in raw.body]


async def test_pass_through_without_a_server(client: Upstream) -> None:
    async with serve(refuse) as server:
        pass
    for path in ("chat", "models\n"):
        with pytest.raises(UpstreamError, match="Cannot reach the model server"):
            async with client.forward(route_to(server), "POST", path, headers={}, content=b"{}"):
                pass


async def test_a_query_of_the_address_is_kept(client: Upstream) -> None:
    async with serve(answer({})) as server:
        route = resolve("m", base_url=f"{server.base_url}?api-version=1", env={})
        async with client.forward(route, "GET", "models", headers={}, content=b"", query="limit=2"):
            pass
    assert server.requests[0].target == "/v1/models?api-version=1&limit=2"


async def test_redirects_are_not_followed(client: Upstream) -> None:
    async with serve(answer({}, 307, "Location: http://127.0.0.1:1/\r\n")) as server:
        with pytest.raises(UpstreamError, match="answered 307"):
            await ask(client, server)
    assert len(server.requests) == 1


# Models.


@pytest.mark.parametrize("body", [{"object": "list", "data": [{"id": "a"}]}, [{"id": "a"}]])
async def test_models(client: Upstream, body: Any) -> None:
    async with serve(answer(body)) as server:
        assert await client.models(route_to(server)) == [{"id": "a"}]
    assert (server.requests[0].method, server.requests[0].target) == ("GET", "/v1/models")


@pytest.mark.parametrize("body", [b"<html>", {"data": 5}, {}])
async def test_something_else_than_models(client: Upstream, body: Any) -> None:
    async with serve(answer(body)) as server:
        with pytest.raises(UpstreamError, match="did not answer with a list of models"):
            await client.models(route_to(server))


# Life and end.


async def test_one_upstream_for_a_loop() -> None:
    assert shared() is shared()
    other = await asyncio.to_thread(asyncio.run, _shared_of_another_loop())
    assert other is not shared()


async def _shared_of_another_loop() -> Upstream:
    return shared()


PROGRAM = """
import asyncio, sys
from ipy_sandbox.background import BACKGROUND
from ipy_sandbox.interpreter.catalog import resolve
from ipy_sandbox.interpreter.upstream import shared

async def ask():
    async with shared().turn(resolve("m", base_url=sys.argv[1]), "chat", {"messages": []}) as call:
        async for _ in call:
            pass
    return call.turn.text

print(asyncio.run(ask()), BACKGROUND.run(ask()))
"""


async def test_a_program_that_ends_leaves_no_complaint() -> None:
    async with serve(answer(HELLO)) as server:
        command = [sys.executable, "-W", "error", "-c", PROGRAM, server.base_url]
        done = await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("Hello Hello\n", "")


async def test_a_proxy_of_the_environment_is_used_but_not_for_this_machine(
    client: Upstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with serve(answer({"data": [{"id": "through the proxy"}]})) as proxy, serve(answer(HELLO)) as server:
        monkeypatch.setenv("HTTP_PROXY", proxy.base_url.removesuffix("/v1"))
        monkeypatch.delenv("NO_PROXY", raising=False)
        models = await client.models(resolve("m", base_url="http://models.example/v1", env={}))
        assert models == [{"id": "through the proxy"}]
        assert (await ask(client, server)).text == "Hello"
    assert [request.target for request in proxy.requests] == ["http://models.example/v1/models"]


async def test_an_error_is_one_line(client: Upstream) -> None:
    async with serve(answer({"error": {"message": "first\n\n second"}}, 400)) as server:
        with pytest.raises(UpstreamError, match=r"for m: first second$"):
            await ask(client, server)
