"""What the interpreter adds to a loop written by hand: time, CPU, the first word, a thousand at once.

    IPY_SANDBOX_BENCH=1 python -m pytest -s tests/benchmarks/test_interpreter.py

Both do the same work in the same run, interleaved: two calls of a scripted model in another process, one run in a
fake sandbox between them. The loop by hand uses aiohttp without anything else. Figures are printed, never asserted.
"""

from __future__ import annotations

import asyncio
import json
import os
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import aiohttp
import pytest

from ipy_sandbox.interpreter.catalog import resolve
from ipy_sandbox.interpreter.interpreter import Interpreter, Request
from ipy_sandbox.models import SandboxOptions, Stdout
from ipy_sandbox.sandbox.execution import collect
from ipy_sandbox.sandbox.fake import FakeProvider
from ipy_sandbox.sandbox.session import Session

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.timeout(600),
    pytest.mark.skipif(not os.environ.get("IPY_SANDBOX_BENCH"), reason="IPY_SANDBOX_BENCH is not set"),
]

API = Literal["chat", "responses"]
apis = pytest.mark.parametrize("api", ["chat", "responses"])
FUNCTION = {"name": "run", "parameters": {"type": "object", "properties": {"code": {"type": "string"}}}}
PROMPT = {"role": "user", "content": "What is six times seven?"}
LAST_WORD = "word19"
One = Callable[[], Awaitable[float]]
"""Does one request; returns the seconds until the first word of the answer."""


@contextmanager
def model_server(delay: float = 0) -> Iterator[str]:
    script = Path(__file__).with_name("scripted_model.py")
    with subprocess.Popen([sys.executable, script, str(delay)], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield f"http://127.0.0.1:{process.stdout.readline().strip()}/v1"
        finally:
            process.terminate()


def fake_provider() -> FakeProvider:
    return FakeProvider(script=lambda code: [Stdout("42\n")])


def request_body(api: API, stream: bool) -> dict[str, Any]:
    asked = {"input": [PROMPT]} if api == "responses" else {"messages": [PROMPT]}
    return {"model": "m", "stream": stream, **asked}


@asynccontextmanager
async def ours(api: API, url: str, stream: bool) -> AsyncIterator[One]:
    provider = fake_provider()
    tool = {"type": "code_interpreter", "container": {"type": "auto"}}
    body = {**request_body(api, stream), "tools": [tool]}
    route = resolve("m" if api == "chat" else "openai/m", base_url=url)

    async def one() -> float:
        started, first, answer = time.perf_counter(), 0.0, ""
        if not stream:
            answer = json.dumps(await interpreter.respond(Request(api, body, route)))
        else:
            async for event in interpreter.stream(Request(api, body, route)):
                answer = json.dumps(event)
                first = first or (time.perf_counter() - started if "word0" in answer else 0.0)
        assert LAST_WORD in answer or stream
        return first

    async with Interpreter(lambda: Session(provider, SandboxOptions())) as interpreter:
        yield one
    assert not provider.alive


@asynccontextmanager
async def by_hand(api: API, url: str, stream: bool) -> AsyncIterator[One]:
    provider = fake_provider()
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as client:

        async def one() -> float:
            started, first, last = time.perf_counter(), 0.0, b""
            messages: list[dict[str, Any]] = [PROMPT]
            call = await _first_turn(client, api, url, messages)
            handle = await provider.create(SandboxOptions())
            output = await collect(provider.run(handle, json.loads(call["arguments"])["code"]))
            if api == "responses":
                messages += [call, {"type": "function_call_output", "call_id": "call_1", "output": output.stdout}]
            else:
                calls = [{"id": "call_1", "type": "function", "function": call}]
                messages += [{"role": "assistant", "tool_calls": calls}]
                messages += [{"role": "tool", "tool_call_id": "call_1", "content": output.stdout}]
            async with _post(client, api, url, messages, stream) as response:
                async for chunk in response.content.iter_any():
                    first = first or (time.perf_counter() - started if b"word0" in chunk else 0.0)
                    last += chunk
            assert LAST_WORD.encode() in last
            await provider.delete(handle)
            return first

        yield one


def _post(client: aiohttp.ClientSession, api: API, url: str, messages: list[dict[str, Any]], stream: bool) -> Any:
    tool = {"type": "function", **(FUNCTION if api == "responses" else {"function": FUNCTION})}
    body = {**request_body(api, stream), "tools": [tool], "input" if api == "responses" else "messages": messages}
    return client.post(f"{url}/{'responses' if api == 'responses' else 'chat/completions'}", json=body)


async def _first_turn(client: aiohttp.ClientSession, api: API, url: str, messages: list[Any]) -> dict[str, Any]:
    async with _post(client, api, url, messages, stream=False) as response:
        body = await response.json()
    call: dict[str, Any] = (
        body["output"][0] if api == "responses" else body["choices"][0]["message"]["tool_calls"][0]["function"]
    )
    return call


@dataclass
class Figures:
    """Milliseconds, one number for each round."""

    latency: list[float]
    cpu: list[float]

    def __str__(self) -> str:
        return f"{statistics.median(self.latency):6.2f} ms, {statistics.median(self.cpu):5.2f} ms CPU"


async def measure(one: One, figures: Figures, requests: int) -> None:
    spent = []
    cpu = time.process_time()
    for _ in range(requests):
        started = time.perf_counter()
        await one()
        spent.append(time.perf_counter() - started)
    figures.cpu.append((time.process_time() - cpu) / requests * 1e3)
    figures.latency.append(statistics.median(spent) * 1e3)


@apis
@pytest.mark.parametrize("stream", [False, True])
async def test_latency_and_cpu_of_a_request_of_two_turns(api: API, stream: bool) -> None:
    hand, mine = Figures([], []), Figures([], [])
    with model_server() as url:
        async with by_hand(api, url, stream) as their_one, ours(api, url, stream) as our_one:
            for one, discarded in ((their_one, Figures([], [])), (our_one, Figures([], []))):
                await measure(one, discarded, 20)
            for _ in range(7):
                await measure(their_one, hand, 40)
                await measure(our_one, mine, 40)
    added = statistics.median(m - h for m, h in zip(mine.latency, hand.latency, strict=True))
    print(f"\n{api:9} {'streamed' if stream else 'whole':8}: by hand {hand}; here {mine}; added {added:.2f} ms")


@apis
async def test_the_first_word_of_a_slow_model(api: API) -> None:
    """Twenty words, 50 ms apart: the first must not wait for the last."""
    with model_server(delay=0.05) as url:
        async with by_hand(api, url, True) as their_one, ours(api, url, True) as our_one:
            firsts = [(await their_one() * 1e3, await our_one() * 1e3) for _ in range(10)]
    hand, mine = (statistics.median(column) for column in zip(*firsts, strict=True))
    print(f"\n{api:9} first word: by hand {hand:.1f} ms; here {mine:.1f} ms; added {mine - hand:.1f} ms")
    assert all(here > 0 for _, here in firsts)


@apis
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("count", [32, 1000])
async def test_many_at_once(api: API, stream: bool, count: int) -> None:
    print(f"\n{api}, {'streamed' if stream else 'whole'}, {count} at once:", end="")
    with model_server() as url:
        for name, make in (("by hand", by_hand), ("here", ours)):
            async with make(api, url, stream) as one:
                await one()
                cpu, started = time.process_time(), time.perf_counter()
                await asyncio.gather(*[one() for _ in range(count)])
                took = time.perf_counter() - started
                cpu = (time.process_time() - cpu) / count * 1e3
            memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
            print(f" {name} {count / took:.0f}/s, {cpu:.2f} ms CPU each, peak {memory:.0f} MB;", end="")
