"""What the loop costs beside one written by hand over the same HTTP client: latency, CPU, first text, many at once.

Figures are printed (`IPY_SANDBOX_BENCH=1 pytest -s tests/benchmarks/test_interpreter.py`); times are never asserted.
"""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import os
import resource
import statistics
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any

import httpx
import pytest
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request as WebRequest
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route as WebRoute

from ipy_sandbox.interpreter.catalog import CUSTOM, Route
from ipy_sandbox.interpreter.interpreter import Interpreter, Request
from ipy_sandbox.interpreter.transport import make_client
from ipy_sandbox.interpreter.upstream import shared
from ipy_sandbox.models import SandboxOptions
from ipy_sandbox.sandbox.fake import FakeProvider
from ipy_sandbox.sandbox.session import Session

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.skipif(os.environ.get("IPY_SANDBOX_BENCH") != "1", reason="only with IPY_SANDBOX_BENCH=1"),
    pytest.mark.timeout(600),
]

CODE = "print('hello')"
FUNCTION = {"name": "run", "parameters": {"type": "object", "properties": {"code": {"type": "string"}}}}
WORDS, PAUSE = 20, 0.05
USAGE = {"prompt_tokens": 100, "completion_tokens": 10, "total_tokens": 110}


def _chunk(delta: dict[str, Any], finish: str | None = None) -> bytes:
    choice = {"index": 0, "delta": delta, "finish_reason": finish}
    body = {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": [choice]}
    return b"data: " + json.dumps(body).encode() + b"\n\n"


async def _streamed(first_turn: bool, slow: bool) -> AsyncIterator[bytes]:
    yield _chunk({"role": "assistant"})
    if first_turn:
        function = {"name": "litellm_code_execution", "arguments": json.dumps({"code": CODE})}
        yield _chunk({"tool_calls": [{"index": 0, "id": "call_1", "type": "function", "function": function}]})
        yield _chunk({}, "tool_calls")
    else:
        for word in range(WORDS):
            if slow:
                await asyncio.sleep(PAUSE)
            yield _chunk({"content": f"word{word} "})
        yield _chunk({}, "stop")
    yield b"data: [DONE]\n\n"


async def _chat(request: WebRequest) -> Response:
    body = await request.json()
    first_turn = body["messages"][-1]["role"] != "tool"
    if body.get("stream"):
        slow = body["messages"][0]["content"] == "slow"
        return StreamingResponse(_streamed(first_turn, slow), media_type="text/event-stream")
    message: dict[str, Any] = {"role": "assistant", "content": None if first_turn else "done"}
    if first_turn:
        function = {"name": "litellm_code_execution", "arguments": json.dumps({"code": CODE})}
        message["tool_calls"] = [{"id": "call_1", "type": "function", "function": function}]
    choice = {"index": 0, "message": message, "finish_reason": "tool_calls" if first_turn else "stop"}
    return JSONResponse({"id": "c", "model": "m", "created": 1, "choices": [choice], "usage": USAGE})


def _serve(port: multiprocessing.Queue[int]) -> None:
    app = Starlette(routes=[WebRoute("/v1/chat/completions", _chat, methods=["POST"])])
    config = uvicorn.Config(app, port=0, log_level="error", lifespan="off", backlog=4096)
    server = uvicorn.Server(config)

    async def main() -> None:
        serving = asyncio.ensure_future(server.serve())
        while not server.started:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        port.put(server.servers[0].sockets[0].getsockname()[1])
        await serving

    asyncio.run(main())


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    """A keep-alive model server in a process of its own, so that CPU time here is ours."""
    ports: multiprocessing.Queue[int] = multiprocessing.get_context("spawn").Queue()
    process = multiprocessing.get_context("spawn").Process(target=_serve, args=(ports,), daemon=True)
    process.start()
    yield f"http://127.0.0.1:{ports.get(timeout=30)}/v1"
    process.terminate()
    process.join()


async def by_hand(client: httpx.AsyncClient, provider: FakeProvider, url: str) -> None:
    """Two turns and one execution, as short as it can be written."""
    messages: list[Any] = [{"role": "user", "content": "go"}]
    body = {"model": "m", "messages": messages, "tools": [{"type": "function", "function": FUNCTION}]}
    answer = (await client.post(f"{url}/chat/completions", json=body)).json()
    messages.append(answer["choices"][0]["message"])
    (call,) = messages[-1]["tool_calls"]
    handle = await provider.create(SandboxOptions())
    events = [event async for event in provider.run(handle, json.loads(call["function"]["arguments"])["code"])]
    await provider.delete(handle)
    text = "".join(getattr(event, "text", "") for event in events)
    messages.append({"role": "tool", "tool_call_id": call["id"], "content": text})
    (await client.post(f"{url}/chat/completions", json=body)).json()


def request(surface: Any, url: str, prompt: str = "go", stream: bool = False) -> Request:
    body: dict[str, Any] = {"model": "m", "tools": [{"type": "code_interpreter", "container": {"type": "auto"}}]}
    body |= {"input": prompt} if surface == "responses" else {"messages": [{"role": "user", "content": prompt}]}
    if stream:
        body["stream"] = True
    return Request(surface, body, Route(CUSTOM, "m", url, "key"))


async def measure(name: str, once: Callable[[], Awaitable[object]], count: int = 150) -> float:
    for _ in range(20):
        await once()
    cpu, times = time.process_time(), []
    for _ in range(count):
        begun = time.perf_counter()
        await once()
        times.append(time.perf_counter() - begun)
    median, spent = statistics.median(times), (time.process_time() - cpu) / count
    print(f"{name:28} median {median * 1e3:6.2f} ms   best {min(times) * 1e3:6.2f} ms   CPU {spent * 1e3:5.2f} ms")
    return median


async def read(interpreter: Interpreter, asked: Request) -> None:
    async for _ in interpreter.stream_bytes(asked):
        pass


async def test_a_two_turn_request(url: str) -> None:
    provider = FakeProvider()
    print()
    async with (
        make_client(connect_timeout=10, idle_timeout=60) as client,
        Interpreter(lambda: Session(provider)) as interpreter,
    ):
        interpreter._chat_only.add(url)
        hand = await measure("by hand", lambda: by_hand(client, provider, url))
        for surface in ("chat", "responses"):
            ours = await measure(surface, lambda s=surface: interpreter.respond(request(s, url)))
            print(f"{'':28} added {(ours - hand) * 1e3:.2f} ms")
            streamed = f"{surface}, streamed"
            await measure(streamed, lambda s=surface: read(interpreter, request(s, url, stream=True)))
    await shared().aclose()


async def test_the_first_text_of_a_slow_model(url: str) -> None:
    async with Interpreter(lambda: Session(FakeProvider())) as interpreter:
        firsts = []
        for _ in range(5):
            begun = time.perf_counter()
            async for chunk in interpreter.stream(request("chat", url, "slow", stream=True)):
                if chunk and chunk["choices"] and chunk["choices"][0]["delta"].get("content"):
                    firsts.append(time.perf_counter() - begun)
                    break
        print(f"\nfirst text of {WORDS} words, {PAUSE * 1e3:.0f} ms each: {statistics.median(firsts) * 1e3:.0f} ms")
    await shared().aclose()


@pytest.mark.parametrize("count", [32, 1000])
async def test_many_loops_at_once(url: str, count: int) -> None:
    provider = FakeProvider()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    async with Interpreter(lambda: Session(provider)) as interpreter:
        begun, cpu = time.perf_counter(), time.process_time()
        answers = await asyncio.gather(*(interpreter.respond(request("chat", url)) for _ in range(count)))
        took, spent = time.perf_counter() - begun, time.process_time() - cpu
    assert all(answer["choices"][0]["message"]["content"] == "done" for answer in answers)
    assert not provider.alive
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    print(
        f"\n{count} at once: {count / took:.0f} requests/s, CPU {spent / count * 1e3:.2f} ms each, {grown:.0f} MB more"
    )
    await shared().aclose()
