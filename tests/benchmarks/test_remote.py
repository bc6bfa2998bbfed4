"""What our client costs over a bare httpx loop that reads the same stream, and what large answers cost.

Figures are printed (`IPY_SANDBOX_BENCH=1 pytest -s tests/benchmarks/test_remote.py`); times are never asserted.
"""

from __future__ import annotations

import json
import os
import resource
import statistics
import time
from collections.abc import Awaitable, Callable

import httpx
import pytest
from pydantic import SecretStr
from servers.http_server import Answer, HTTPServer, Request, in_thread

from ipy_sandbox.models import ContainerHandle
from ipy_sandbox.sandbox import execution
from ipy_sandbox.sandbox.e2b import E2BProvider

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.skipif(os.environ.get("IPY_SANDBOX_BENCH") != "1", reason="only with IPY_SANDBOX_BENCH=1"),
    pytest.mark.timeout(600),
]

COUNT = b'{"type": "number_of_executions", "execution_count": 1}\n'
END = b'{"type": "end_of_execution"}\n'
STAMP = '"timestamp": "2026-11-29T12:47:20.242285+00:00"'


def stdout(text: str) -> bytes:
    return b'{"type": "stdout", "text": %b, %b}\n' % (json.dumps(text).encode(), STAMP.encode())


STREAMS: dict[str, tuple[list[bytes], int]] = {
    "short run": ([COUNT, stdout("hello\n"), END], 1),
    "200 lines": ([COUNT, *[stdout(f"line {i}\n") for i in range(200)], END], 1),
    "10 MB result": ([COUNT, b'{"type": "result", "text": "' + b"x" * 10_000_000 + b'", "extra": {}}\n', END], 1),
    "1 GB of output": ([COUNT, *[stdout("x" * 100_000)] * 100, END], 100),
}


def server_of(chunks: list[bytes], times: int) -> HTTPServer:
    async def handler(request: Request, answer: Answer) -> None:
        await answer.start()
        await answer.chunk(chunks[0])
        for _ in range(times):
            for chunk in chunks[1:-1]:
                await answer.chunk(chunk)
        await answer.chunk(chunks[-1])
        await answer.end()

    return HTTPServer(handler)


async def bare(client: httpx.AsyncClient, url: str) -> int:
    """The least that reads the same answer: a request, lines, JSON."""
    lines, pieces = 0, list[bytes]()
    async with client.stream("POST", f"{url}/execute", json={"code": "x"}, headers={"Connection": "close"}) as response:
        async for chunk in response.aiter_bytes():
            pieces.append(chunk)
            if b"\n" in chunk:
                *whole, rest = b"".join(pieces).split(b"\n")
                pieces = [rest]
                for line in whole:
                    json.loads(line)
                    lines += 1
    return lines


async def rounds(works: list[Callable[[], Awaitable[object]]], number: int) -> list[tuple[float, float]]:
    """Median wall and CPU time of each, in ms; taken in turn, so that other load meets all alike."""
    taken: list[list[tuple[float, float]]] = [[] for _ in works]
    for _ in range(number):
        for work, times in zip(works, taken, strict=True):
            wall, cpu = time.perf_counter(), time.thread_time()
            await work()
            times.append((time.perf_counter() - wall, time.thread_time() - cpu))
    return [tuple(statistics.median(t[i] for t in times) * 1000 for i in (0, 1)) for times in taken]  # type: ignore[misc]


async def test_memory_stays_flat_over_refused_output(monkeypatch: pytest.MonkeyPatch) -> None:
    with in_thread(lambda: server_of(*STREAMS["1 GB of output"])) as server:
        monkeypatch.setenv("E2B_SANDBOX_URL", server.url)
        provider = E2BProvider("e2b_key", server.url)
        handle = ContainerHandle(id="i1", provider="e2b", endpoint=server.url, context="default")
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        began = time.perf_counter()
        result = await execution.run(provider, handle, "x")
        taken = time.perf_counter() - began
        grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
        await provider.aclose()
    print(f"\n1 GB of output: {taken:.1f} s, peak memory grew by {grown / 1024:.0f} MiB")
    assert result.truncated == "output beyond 10 MiB was left out"
    assert 9_000_000 < len(result.stdout) <= 10 * 2**20
    assert grown < 100 * 1024


@pytest.mark.parametrize(("name", "number"), [("short run", 300), ("200 lines", 100), ("10 MB result", 7)])
async def test_overhead_over_a_bare_loop(name: str, number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    with in_thread(lambda: server_of(*STREAMS[name])) as server:
        monkeypatch.setenv("E2B_SANDBOX_URL", server.url)
        provider = E2BProvider("e2b_key", server.url)
        handle = ContainerHandle(
            id="i1", provider="e2b", endpoint=server.url, context="default", secrets={"access_token": SecretStr("t")}
        )
        async with httpx.AsyncClient() as client:
            works = [lambda: bare(client, server.url), lambda: execution.run(provider, handle, "x")]
            (wall, cpu), (our_wall, our_cpu) = await rounds(works, number)
            result = await execution.run(provider, handle, "x")
        await provider.aclose()
    print(f"\n{name}: bare httpx {wall:.2f} ms ({cpu:.2f} CPU), ours {our_wall:.2f} ms ({our_cpu:.2f} CPU)", end="")
    print(f", ratio {our_wall / wall:.2f} ({our_cpu / cpu:.2f} CPU)")
    assert result.execution_count == 1
    assert result.truncated is None
    assert len(result.text) in (0, 10_000_000)
