"""What our client of execd costs over a bare httpx loop that reads the same stream, and what a sandbox costs.

Figures are printed (`IPY_SANDBOX_BENCH=1 pytest -s tests/benchmarks/test_opensandbox.py`); times are never asserted.
"""

from __future__ import annotations

import json
import os
import statistics
import time

import httpx
import pytest
from servers.opensandbox_server import OpenSandboxServer
from servers.replay_server import Recording, replaying

from ipy_sandbox.models import ContainerHandle, SandboxOptions
from ipy_sandbox.sandbox import execution
from ipy_sandbox.sandbox.opensandbox import OpenSandboxProvider

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.skipif(os.environ.get("IPY_SANDBOX_BENCH") != "1", reason="only with IPY_SANDBOX_BENCH=1"),
    pytest.mark.timeout(600),
]


def frame(**message: object) -> bytes:
    return json.dumps(message).encode() + b"\n\n"


INIT = frame(type="init", text="c") + frame(type="ping", text="pong")
STREAMS = {
    "short run": ([INIT, frame(type="stdout", text="hello\n")], 300),
    "200 lines": ([INIT, *(frame(type="stdout", text=f"line {i}\n") for i in range(200))], 100),
    "9 MB result": ([INIT, frame(type="result", results={"image/png": "A" * 9_000_000})], 5),
}


async def bare(client: httpx.AsyncClient, url: str) -> None:
    """The least that reads the same answer: a request, frames, JSON."""
    body = {"code": "x", "context": {"language": "python", "id": "c"}}
    pieces = list[bytes]()
    async with client.stream("POST", f"{url}/code", json=body, headers={"Connection": "close"}) as response:
        async for chunk in response.aiter_bytes():
            pieces.append(chunk)
            if b"\n" in chunk:
                *whole, rest = b"".join(pieces).split(b"\n\n")
                pieces = [rest]
                for one in whole:
                    json.loads(one)


@pytest.mark.parametrize("name", STREAMS)
async def test_overhead_over_a_bare_loop(name: str) -> None:
    chunks, number = STREAMS[name]
    async with replaying(Recording(200, "text/event-stream", chunks)) as server, httpx.AsyncClient() as client:
        provider = OpenSandboxProvider(api_base=server.url)
        handle = ContainerHandle(id="s", provider="opensandbox", endpoint=server.url, context="c")
        times: tuple[list[float], list[float]] = ([], [])
        for _ in range(number):
            for work, taken in ((bare(client, server.url), times[0]), (execution.run(provider, handle, "x"), times[1])):
                began = time.perf_counter()
                await work
                taken.append(time.perf_counter() - began)
        await provider.aclose()
    least, ours = (statistics.median(taken) * 1000 for taken in times)
    print(f"\n{name}: bare httpx {least:.2f} ms, ours {ours:.2f} ms, ratio {ours / least:.2f}")


async def test_the_requests_of_a_sandbox() -> None:
    with OpenSandboxServer() as server:
        provider = OpenSandboxProvider(api_base=server.api_base)
        for which in ("first", "second"):
            server.requests.clear()
            began = time.perf_counter()
            handle = await provider.create(SandboxOptions())
            created = time.perf_counter()
            await execution.run(provider, handle, "1 + 1")
            ran = time.perf_counter()
            await provider.delete(handle)
            print(f"\n{which} sandbox: {len(server.requests)} requests; ready after {created - began:.2f} s", end="")
            print(f" (its kernel included), run {(ran - created) * 1000:.0f} ms")
            assert len(server.requests) <= 6
        await provider.aclose()
