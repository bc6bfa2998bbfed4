"""e2b with a real kernel behind a server that drops what the real one drops, and has its bugs."""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
from servers.e2b_server import API_KEY, E2BServer
from servers.http_server import in_thread

import ipy_sandbox
from ipy_sandbox.errors import ExecutionTimeoutError, KernelDiedError, SandboxBusyError, SandboxLostError
from ipy_sandbox.models import (
    ClearOutput,
    ContainerHandle,
    Display,
    End,
    Event,
    ExecutionCount,
    ExecutionError,
    SandboxOptions,
    Stdout,
)
from ipy_sandbox.sandbox import execution
from ipy_sandbox.sandbox.e2b import E2BProvider
from ipy_sandbox.sandbox.e2b_code import _KERNELS, CodeInterpreter, Timing
from ipy_sandbox.sandbox.execution import collect

pytestmark = pytest.mark.anyio


@pytest.fixture(scope="module")
def running_server() -> Iterator[E2BServer]:
    with in_thread(lambda: E2BServer(keepalive=0.3)) as server:
        yield server


@pytest.fixture
def server(running_server: E2BServer, monkeypatch: pytest.MonkeyPatch) -> E2BServer:
    monkeypatch.setenv("E2B_API_KEY", API_KEY)
    monkeypatch.setenv("E2B_API_URL", running_server.url)
    monkeypatch.setenv("E2B_SANDBOX_URL", running_server.url)
    return running_server


@pytest.fixture
async def provider(server: E2BServer) -> AsyncIterator[E2BProvider]:
    opened = E2BProvider()
    yield opened
    await opened.aclose()


@pytest.fixture
async def handle(provider: E2BProvider) -> AsyncIterator[ContainerHandle]:
    made = await provider.create(SandboxOptions(env_vars={"SECRET": "it's a s3cr3t\nvalue"}))
    yield made
    await provider.delete(made)


async def shown(provider: E2BProvider, handle: ContainerHandle, code: str) -> list[Event]:
    """The events that show something."""
    events = [event async for event in provider.run(handle, code)]
    assert events[-1] == End()
    return [event for event in events if not isinstance(event, ExecutionCount | End)]


async def value(provider: E2BProvider, handle: ContainerHandle, code: str) -> str:
    return (await execution.run(provider, handle, code)).text


async def until(events: AsyncIterator[Event], wanted: Event) -> None:
    async for event in events:
        if event == wanted:
            return
    raise AssertionError(f"{wanted} did not come")


async def test_the_first_cell_is_number_one_with_the_users_lines_and_no_secret(
    provider: E2BProvider, handle: ContainerHandle
) -> None:
    result = await execution.run(provider, handle, "import os\n\nos.environ['SECRET'] / 0")
    assert result.execution_count == 1
    assert result.error is not None
    assert "s3cr3t" not in result.model_dump_json()
    traceback = re.sub(r"\x1b\[[0-9;]*m", "", result.error.traceback)
    assert traceback.splitlines()[1:4] == [
        "TypeError                                 Traceback (most recent call last)",
        "Cell In[1], line 3",
        "      1 import os",
    ]
    assert await value(provider, handle, "os.environ['SECRET']") == repr("it's a s3cr3t\nvalue")
    assert await value(provider, handle, "[n for n in globals() if 'prelude' in n], len(In)") == "([], 4)"


async def test_displays_updates_clears_and_charts_come_through(provider: E2BProvider, handle: ContainerHandle) -> None:
    code = """
from IPython.display import HTML, clear_output, display
d = display(HTML('1'), display_id='d')
d.update(HTML('2'))
print('x')
clear_output(wait=True)
display({'image/png': 'aGk='}, metadata={'image/png': {'width': 5}}, raw=True)
'text'
"""
    events = await shown(provider, handle, code)
    text = {"text/plain": "<IPython.core.display.HTML object>"}
    bare = [Display(e.data, e.metadata, e.display_id, e.update, e.is_result) if isinstance(e, Display) else e
            for e in events]  # fmt: skip
    assert bare == [
        Display({**text, "text/html": "1"}, display_id="d"),
        Display({**text, "text/html": "2"}, display_id="d", update=True),
        Stdout("x\n"),
        ClearOutput(wait=True),
        Display({"image/png": "aGk="}, metadata={"image/png": {"width": 5}}),
        Display({"text/plain": "'text'"}, is_result=True),
    ]
    last = events[-1]
    assert isinstance(last, Display)
    assert last.raw == {"type": "result", "text": "text", "extra": {}, "is_main_result": True}
    (chart,) = await shown(provider, handle, "%matplotlib inline\nimport matplotlib.pyplot as p\np.plot([1]); p.show()")
    assert isinstance(chart, Display)
    assert chart.data["image/png"].startswith("iVBOR")


@pytest.mark.parametrize("sleeping", ["time.sleep(600)", "await asyncio.sleep(600)"])
async def test_an_interrupt_from_another_instance_stops_the_code_and_the_next_run_follows_at_once(
    provider: E2BProvider, handle: ContainerHandle, sleeping: str
) -> None:
    events = provider.run(handle, f"import asyncio, time\nx = 7\nprint('go', flush=True)\n{sleeping}")
    await until(events, Stdout("go\n"))
    await ipy_sandbox.ainterrupt("e2b", handle)
    error, end = [event async for event in events]
    assert isinstance(error, ExecutionError)
    assert error.name == "KeyboardInterrupt"
    assert end == End()
    assert await value(provider, handle, "x") == "7"


@pytest.mark.parametrize("how", ["close", "cancel"])
async def test_a_run_that_is_left_stops_and_the_next_follows_at_once(
    provider: E2BProvider, handle: ContainerHandle, how: str
) -> None:
    for _ in range(3):
        events = provider.run(handle, "import time\nprint('go', flush=True)\ntime.sleep(600)")
        if how == "close":
            await until(events, Stdout("go\n"))
            await events.aclose()
        else:
            reading = asyncio.ensure_future(collect(events))
            await asyncio.sleep(0.1)
            reading.cancel()
            with pytest.raises(asyncio.CancelledError):
                await reading
        assert await value(provider, handle, "1 + 1") == "2"


async def test_a_run_past_its_limit_is_stopped_and_the_kernel_stays(
    provider: E2BProvider, handle: ContainerHandle
) -> None:
    with pytest.raises(ExecutionTimeoutError, match=r"ran longer than 0\.5 s") as caught:
        await execution.run(provider, handle, "y = 5\nprint('so far', flush=True)\nwhile True: pass", timeout=0.5)
    assert caught.value.result.stdout == "so far\n"
    assert await value(provider, handle, "y") == "5"


async def test_runs_queue_here_and_stopping_one_does_not_touch_the_next(
    provider: E2BProvider, handle: ContainerHandle
) -> None:
    first = provider.run(handle, "import time\nprint('go', flush=True)\ntime.sleep(600)")
    await until(first, Stdout("go\n"))
    second = asyncio.ensure_future(execution.run(provider, handle, "'second'"))
    left = asyncio.ensure_future(execution.run(provider, handle, "never = 1"))
    await asyncio.sleep(0.05)
    left.cancel()
    await provider.interrupt(handle)
    assert [type(event) for event in [event async for event in first]] == [ExecutionError, End]
    assert (await second).text == "'second'"
    assert await value(provider, handle, "'never' in globals()") == "False"


async def test_the_limit_of_a_run_that_waits_does_not_stop_another(
    provider: E2BProvider, handle: ContainerHandle
) -> None:
    first = provider.run(handle, "import time\nprint('go', flush=True)\ntime.sleep(0.6)\nprint('whole')")
    await until(first, Stdout("go\n"))
    with pytest.raises(ExecutionTimeoutError):
        await execution.run(provider, handle, "never = 1", timeout=0.1)
    assert [event async for event in first] == [Stdout("whole\n"), End()]
    assert await value(provider, handle, "'never' in globals()") == "False"


async def test_two_runs_at_once_both_give_their_own_result(provider: E2BProvider, handle: ContainerHandle) -> None:
    codes = [f"import time\nfor i in range(3): print({n}, i, flush=True)\n{n}" for n in range(4)]
    results = await asyncio.gather(*(execution.run(provider, handle, code) for code in codes))
    assert [r.text for r in results] == ["0", "1", "2", "3"]
    assert [r.stdout for r in results] == [f"{n} 0\n{n} 1\n{n} 2\n" for n in range(4)]
    assert [r.execution_count for r in results] == [1, 2, 3, 4]


async def test_runs_of_several_event_loops_queue_too(provider: E2BProvider, handle: ContainerHandle) -> None:
    codes = [f"import time; time.sleep(0.05); {n}" for n in range(4)]
    here = [execution.run(provider, handle, code) for code in codes]
    elsewhere = [asyncio.to_thread(ipy_sandbox.run_code, "e2b", handle, code) for code in codes]
    results = await asyncio.gather(*here, *elsewhere)
    assert [r.text for r in results] == ["0", "1", "2", "3"] * 2
    assert sorted(r.execution_count or 0 for r in results) == list(range(1, 9))


async def test_a_killed_kernel_ends_the_run_with_a_clear_error_and_the_next_has_a_fresh_one(
    provider: E2BProvider, handle: ContainerHandle, server: E2BServer
) -> None:
    events = provider.run(handle, "import time\nprint('bye', flush=True)\ntime.sleep(600)")
    await until(events, Stdout("bye\n"))
    server.kill_kernel(handle.id)
    with pytest.raises(KernelDiedError, match="variables are lost, its files are kept"):
        await anext(events)
    (update,) = await shown(provider, handle, "d = display(1, display_id='d')")
    assert isinstance(update, Display)
    assert update.display_id == "d"
    assert (await execution.run(provider, handle, "2")).execution_count == 2


async def test_a_sandbox_that_is_lost_meanwhile(
    provider: E2BProvider, handle: ContainerHandle, server: E2BServer
) -> None:
    events = provider.run(handle, "import time\nprint('go', flush=True)\ntime.sleep(600)")
    await until(events, Stdout("go\n"))
    server.lose(handle.id)
    with pytest.raises(SandboxLostError, match=f"{handle.id} is gone"):
        await anext(events)


async def test_restart_gives_a_fresh_kernel_and_stops_what_runs(provider: E2BProvider, handle: ContainerHandle) -> None:
    await shown(provider, handle, "x = 1\nopen('kept', 'w').close()")
    events = provider.run(handle, "import time\nprint('go', flush=True)\ntime.sleep(600)")
    await until(events, Stdout("go\n"))
    rest = asyncio.ensure_future(collect(events))
    await provider.restart(handle)
    assert (await rest).error is not None
    result = await execution.run(provider, handle, "import os; 'x' in globals(), os.path.exists('kept')")
    assert (result.text, result.execution_count) == ("(False, True)", 1)


async def test_code_that_will_not_stop_costs_the_kernel_and_not_the_sandbox(
    provider: E2BProvider, handle: ContainerHandle, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(CodeInterpreter, "timing", Timing(settle=0.3, unstarted=0.5, patience=1))
    stubborn = """
import time
while True:
    try:
        print('go', flush=True)
        while True: time.sleep(0.01)
    except KeyboardInterrupt:
        pass
"""
    events = provider.run(handle, stubborn)
    await until(events, Stdout("go\n"))
    await provider.interrupt(handle)
    assert (await collect(events)).error is not None
    with pytest.raises(KernelDiedError, match="this code was not run"):
        await execution.run(provider, handle, "ran = 1")
    assert await value(provider, handle, "'ran' in globals()") == "False"


async def test_code_of_another_process_is_told(
    provider: E2BProvider, handle: ContainerHandle, monkeypatch: pytest.MonkeyPatch
) -> None:
    events = provider.run(handle, "import time\nprint('go', flush=True)\ntime.sleep(600)")
    await until(events, Stdout("go\n"))
    monkeypatch.setattr(CodeInterpreter, "timing", Timing(first_byte=0.2))
    # What another process has is a memory of its own.
    mine = _KERNELS.pop(handle.id)
    with pytest.raises(SandboxBusyError, match="of another process"):
        await execution.run(provider, handle, "never = 1")
    _KERNELS[handle.id] = mine
    await events.aclose()
    assert await value(provider, handle, "'never' in globals()") == "False"


async def test_output_beyond_the_cap_is_left_out_and_the_session_stays(
    provider: E2BProvider, handle: ContainerHandle, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(CodeInterpreter, "output_cap", 2**20)
    result = await execution.run(provider, handle, "for i in range(40): print('x' * 100_000)\nz = 3")
    assert 900_000 < len(result.stdout) <= 1_100_000
    assert result.truncated == "output beyond 1 MiB was left out"
    assert await value(provider, handle, "z") == "3"


async def test_a_handle_in_another_process_and_a_bare_id(provider: E2BProvider, handle: ContainerHandle) -> None:
    await shown(provider, handle, "x = 41")
    program = """
import json, sys, ipy_sandbox
handle = ipy_sandbox.ContainerHandle.model_validate(json.load(sys.stdin))
whole = ipy_sandbox.run_code("e2b", handle, "x += 1; x")
bare = ipy_sandbox.run_code("e2b", handle.id, "display(x, display_id='d'); x")
print(json.dumps([whole.text, whole.execution_count, bare.text, bare.execution_count, bare.displays[0].display_id]))
"""
    dumped = json.dumps(handle.dump_with_secrets())
    done = await asyncio.to_thread(
        subprocess.run, [sys.executable, "-c", program], input=dumped, capture_output=True, text=True, check=False
    )
    assert done.stderr == ""
    assert json.loads(done.stdout) == ["42", 2, "42", 3, "d"]
    assert (await execution.run(provider, handle, "x")).execution_count == 4


SNIPPETS = [
    "print('a'); print('b')",
    "import sys; print('e', file=sys.stderr); 1 + 1",
    "1/0",
    "def f():\n    raise ValueError('multi\\nline')\nf()",
    "print('\\x85\\u2028 \\U0001f600 é')",
    "for i in range(3): print(i, end='\\r')",
    "import asyncio\nawait asyncio.sleep(0)\nprint('done')",
    "print('x' * 100_000)",
    "print('a'\n",
    "!echo from a shell",
]


def test_the_official_sdk_sees_the_same(server: E2BServer) -> None:
    e2b = pytest.importorskip("e2b_code_interpreter")
    theirs = e2b.Sandbox.create()
    mine = ipy_sandbox.create_sandbox("e2b")
    try:
        for code in SNIPPETS:
            expected: Any = theirs.run_code(code)
            result = ipy_sandbox.run_code("e2b", mine, code)
            assert result.stdout == "".join(expected.logs.stdout), code
            assert result.stderr == "".join(expected.logs.stderr), code
            assert result.text == (expected.text or ""), code
            error = expected.error and (expected.error.name, re.sub(r"\d{6,}", "N", expected.error.value))
            assert (result.error and (result.error.name, re.sub(r"\d{6,}", "N", result.error.value))) == error, code
    finally:
        assert ipy_sandbox.delete_sandbox("e2b", theirs.sandbox_id)
        ipy_sandbox.delete_sandbox("e2b", mine)
    assert not [t for t in threading.enumerate() if "pyqwest" in t.name and not t.daemon]
