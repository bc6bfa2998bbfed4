"""How fast local sandboxes are, as ratios against a bare ipykernel driven by jupyter_client in the same run.

Prints, and asserts nothing: `IPY_SANDBOX_BENCH=1 pytest -s tests/benchmarks/test_local.py`
"""

from __future__ import annotations

import asyncio
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable

import pytest
from jupyter_client.asynchronous.client import AsyncKernelClient
from jupyter_client.manager import AsyncKernelManager, start_new_async_kernel

import ipy_sandbox
from ipy_sandbox.background import BACKGROUND
from ipy_sandbox.models import ContainerHandle
from ipy_sandbox.sandbox.local.provider import SPARE

pytestmark = [
    pytest.mark.skipif(not os.environ.get("IPY_SANDBOX_BENCH"), reason="set IPY_SANDBOX_BENCH=1 to measure"),
    pytest.mark.timeout(900),
]

REPEAT = int(os.environ.get("IPY_SANDBOX_BENCH_REPEAT", "7"))
CHART = "import numpy, pandas, matplotlib.pyplot as plt\nplt.plot([1, 2]);"
TEXT = "for _ in range(100_000): print('x' * 99)"
FIRST = """
import json, time
import jupyter_client.asynchronous, zmq.asyncio  # as a notebook has
start = time.perf_counter()
import ipy_sandbox
handle = ipy_sandbox.create_sandbox("local")
print(time.perf_counter() - start)
"""

Seconds = dict[str, list[float]]


async def timed(seconds: Seconds, name: str, action: Callable[[], Awaitable[object]]) -> None:
    start = time.perf_counter()
    await action()
    seconds.setdefault(name, []).append(time.perf_counter() - start)


async def run_bare(client: AsyncKernelClient, code: str) -> None:
    """As jupyter_client's users do it: until the reply and the idle state have arrived."""
    msg_id = client.execute(code)

    async def idle() -> None:
        while True:
            message = await client.get_iopub_msg()
            if message["parent_header"].get("msg_id") == msg_id and message["content"].get("execution_state") == "idle":
                return

    await asyncio.gather(idle(), client.get_shell_msg())


async def bare(seconds: Seconds) -> None:
    started: list[tuple[AsyncKernelManager, AsyncKernelClient]] = []

    async def start() -> None:
        manager, client = await start_new_async_kernel()
        started.append((manager, client))

    await timed(seconds, "start", start)
    manager, client = started[0]
    await run_bare(client, "1 + 1")
    for _ in range(30):
        await timed(seconds, "1 + 1", lambda: run_bare(client, "1 + 1"))
    await timed(seconds, "first chart", lambda: run_bare(client, CHART))
    await timed(seconds, "10 MB of text", lambda: run_bare(client, TEXT))
    client.stop_channels()
    await manager.shutdown_kernel(now=True)


async def sandboxed(seconds: Seconds) -> None:
    made: list[ContainerHandle] = []
    await asyncio.wrap_future(BACKGROUND.submit(SPARE.filled()))

    async def start() -> None:
        made.append(await ipy_sandbox.acreate_sandbox("local"))

    await timed(seconds, "start", start)
    handle = made[0]

    async def run(code: str) -> None:
        await ipy_sandbox.arun_code("local", handle, code)

    await run("1 + 1")
    for _ in range(30):
        await timed(seconds, "1 + 1", lambda: run("1 + 1"))
    await timed(seconds, "first chart", lambda: run(CHART))
    await timed(seconds, "10 MB of text", lambda: run(TEXT))
    await ipy_sandbox.adelete_sandbox("local", handle)


def first_sandbox() -> float:
    """Seconds for the first sandbox of a process that has imported what a notebook has."""
    run = subprocess.run([sys.executable, "-c", FIRST], capture_output=True, text=True, check=True)
    return float(json.loads(run.stdout))


def test_ratios(capsys: pytest.CaptureFixture[str]) -> None:
    plain: Seconds = {}
    ours: Seconds = {}
    first = []
    ipy_sandbox.delete_sandbox("local", ipy_sandbox.create_sandbox("local"))
    for _ in range(REPEAT):
        asyncio.run(bare(plain))
        asyncio.run(sandboxed(ours))
        first.append(first_sandbox())
    aims = {"start": "0.2", "1 + 1": "1.2", "first chart": "0.2", "10 MB of text": "-"}
    with capsys.disabled():
        print(f"\n{'':32}{'bare ms':>10}{'ours ms':>10}{'ratio':>8}{'aim':>6}")
        for name, aim in aims.items():
            a, b = (1e3 * statistics.median(seconds[name]) for seconds in (plain, ours))
            print(
                f"{name if name != 'start' else 'start of a further sandbox':32}{a:10.1f}{b:10.1f}{b / a:8.2f}{aim:>6}"
            )
        a, b = 1e3 * statistics.median(plain["start"]), 1e3 * statistics.median(first)
        print(f"{'start of the very first':32}{a:10.1f}{b:10.1f}{b / a:8.2f}{'1':>6}")
