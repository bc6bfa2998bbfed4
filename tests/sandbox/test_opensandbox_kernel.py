"""OpenSandbox with a real kernel behind a server that loses what the real one loses."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import sys
import time
from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest
from servers.opensandbox_server import OpenSandboxServer

from ipy_sandbox.errors import (
    ExecutionTimeoutError,
    KernelDiedError,
    OutputTruncatedError,
    SandboxBusyError,
    SandboxLostError,
)
from ipy_sandbox.models import (
    ClearOutput,
    CodeExecutionResult,
    ContainerHandle,
    Display,
    End,
    Event,
    ExecutionCount,
    SandboxOptions,
    Stdout,
)
from ipy_sandbox.sandbox import execd, execution
from ipy_sandbox.sandbox.api import arun_code
from ipy_sandbox.sandbox.opensandbox import OpenSandboxProvider

pytestmark = pytest.mark.anyio

OFFICIAL = Path(__file__).parents[1] / "servers" / "official_opensandbox.py"


@pytest.fixture(scope="module")
def server() -> Iterator[OpenSandboxServer]:
    with OpenSandboxServer() as server:
        yield server


class Sandbox:
    """A sandbox with its provider, short to use."""

    def __init__(self, provider: OpenSandboxProvider, handle: ContainerHandle) -> None:
        self.provider = provider
        self.handle = handle

    async def run(self, code: str, timeout: float | None = 30) -> CodeExecutionResult:
        return await execution.run(self.provider, self.handle, code, timeout)

    async def events(self, code: str) -> list[Event]:
        return [event async for event in self.provider.run(self.handle, code)]


@pytest.fixture
async def sandbox(server: OpenSandboxServer) -> AsyncIterator[Sandbox]:
    provider = OpenSandboxProvider(api_base=server.api_base)
    handle = await provider.create(SandboxOptions(env_vars={"GREETING": "hello"}))
    try:
        yield Sandbox(provider, handle)
    finally:
        await provider.delete(handle)
        await provider.aclose()


@contextlib.asynccontextmanager
async def from_another_process(server: OpenSandboxServer, sandbox: Sandbox) -> AsyncIterator[Sandbox]:
    """The same sandbox, by its bare id, where nothing else is known of it."""
    provider = OpenSandboxProvider(api_base=server.api_base)
    known = execd._KERNELS.pop(sandbox.handle.id)
    handle = await provider.connect(sandbox.handle.id)
    execd._KERNELS[handle.id] = known
    try:
        yield Sandbox(provider, handle)
    finally:
        await provider.aclose()


async def test_the_first_cell_is_the_first_and_finds_a_clean_kernel(sandbox: Sandbox) -> None:
    result = await sandbox.run("print(len(In), Out, [n for n in dir() if not n.startswith('_')])\n1 + 1")
    assert result.stdout == "2 {} ['In', 'Out', 'exit', 'get_ipython', 'open', 'quit']\n"
    assert (result.execution_count, result.results, result.text) == (1, [{"text": "2"}], "2")
    assert (await sandbox.run("In[1][:5], Out, _")).text == "('print', {1: 2}, 2)"
    failed = await sandbox.run("a = 1\n\n1/0")
    assert failed.error is not None
    assert failed.execution_count in (3, None)
    assert "Cell In[3], line 3" in re.sub("\x1b\\[[0-9;]*m", "", failed.error.traceback)


async def test_displays_updates_and_clears_come_through_in_order(sandbox: Sandbox) -> None:
    code = """
from IPython.display import HTML, clear_output, display
h = display(HTML('<b>0</b>'), display_id='d', metadata={'isolated': True})
print('between')
h.update(HTML('<b>1</b>'))
clear_output(wait=True)
display({'text/plain': 'p', 'application/json': {'k': [1]}}, raw=True)
'value'
"""
    first, between, update, clear, raw, count, value, end = await sandbox.events(code)
    shown = {"text/plain": "<IPython.core.display.HTML object>", "text/html": "<b>0</b>"}
    assert isinstance(first, Display)
    assert (first.data, first.metadata, first.display_id, first.update) == (shown, {"isolated": True}, "d", False)
    assert not first.is_result
    assert between == Stdout("between\n")
    assert isinstance(update, Display)
    assert (update.data["text/html"], update.display_id, update.update) == ("<b>1</b>", "d", True)
    assert clear == ClearOutput(wait=True)
    assert isinstance(raw, Display)
    assert raw.data == {"text/plain": "p", "application/json": {"k": [1]}}
    assert raw.raw == {"text": "p", "application/json": {"k": [1]}}
    assert count == ExecutionCount(1)
    assert isinstance(value, Display)
    assert (value.is_result, value.data) == (True, {"text/plain": "'value'"})
    assert end == End()


async def test_charts_come_through_with_and_without_show(sandbox: Sandbox) -> None:
    shown = await sandbox.run("import matplotlib.pyplot as plt\nplt.plot([1, 2]); plt.show(); print('after')")
    assert [set(bundle) for bundle in shown.results] == [{"text", "image/png"}]
    assert (shown.stdout, shown.truncated) == ("after\n", None)
    # The figure is drawn after the value of the last line.
    implied = await sandbox.run("plt.plot([2, 1])")
    assert [sorted(bundle) for bundle in implied.results] == [["text"], ["image/png", "text"]]
    assert implied.results[1]["image/png"].startswith("iVBOR")
    plotly = await sandbox.run("import plotly.graph_objects as go\ngo.Figure().show(renderer='plotly_mimetype')")
    assert [set(display.data) for display in plotly.displays] == [{"application/vnd.plotly.v1+json"}]


async def test_the_chart_of_a_failed_cell_is_its_own(sandbox: Sandbox) -> None:
    await sandbox.run("import matplotlib.pyplot as plt")
    failed = await sandbox.run("plt.plot([1, 2])\n1/0")
    assert failed.error is not None
    assert [set(bundle) for bundle in failed.results] == [{"text", "image/png"}]
    assert (await sandbox.run("'next'")).results == [{"text": "'next'"}]


async def test_every_value_of_a_cell_comes_through(sandbox: Sandbox) -> None:
    await sandbox.run("get_ipython().ast_node_interactivity = 'all'")
    result = await sandbox.run("import time\n1\n'two'\ntime.sleep(0.2)\nprint('mid')\n[3]")
    assert [bundle["text"] for bundle in result.results] == ["1", "'two'", "[3]"]
    assert result.stdout == "mid\n"


async def test_errors_and_streams(sandbox: Sandbox) -> None:
    result = await sandbox.run(
        "import sys, os\nprint(os.environ['GREETING'])\nsys.stderr.write('w\\n')\nint('x\\x85y')"
    )
    assert (result.stdout, result.stderr) == ("hello\n", "w\n")
    assert result.error is not None
    assert (result.error.name, result.error.value) == (
        "ValueError",
        "invalid literal for int() with base 10: 'x\\x85y'",
    )
    assert (await sandbox.run("print('a\\x85b\\u2028c')")).stdout == "a\x85b\u2028c\n"
    assert (await sandbox.run("def broken(:")).error is not None
    assert (await sandbox.run("   \n")) == CodeExecutionResult()
    assert (await sandbox.run("# nothing")).error is None
    exited = await sandbox.run("raise SystemExit(3)")
    assert exited.error is not None
    assert exited.error.name == "SystemExit"
    assert (await sandbox.run("1")).text == "1"


async def test_await_at_the_top(sandbox: Sandbox) -> None:
    result = await sandbox.run("import asyncio\nawait asyncio.sleep(0.01)\nprint('a')\n'b'")
    assert (result.stdout, result.text) == ("a\n", "'b'")
    assert (await sandbox.run("2")).execution_count == 2


async def test_cells_run_within_a_cell_do_not_end_it(sandbox: Sandbox) -> None:
    code = """
shell = get_ipython()
shell.run_cell("print('inner'); 1 + 1")
shell.run_cell("  ")
import time
time.sleep(0.3)
print('outer')
'value'
"""
    result = await sandbox.run(code)
    assert result.stdout.startswith("inner\n")
    assert result.stdout.endswith("outer\n")
    assert result.truncated is None
    assert [bundle["text"] for bundle in result.results] == ["2", "'value'"]
    assert (await sandbox.run("'next'")).text == "'next'"


async def test_a_cell_that_takes_the_streams_away_is_marked_all_the_same(sandbox: Sandbox) -> None:
    result = await sandbox.run("import sys, io\nprint('seen')\nkept, sys.stdout = sys.stdout, io.StringIO()")
    assert (result.stdout, result.truncated) == ("seen\n", None)
    assert (await sandbox.run("sys.stdout = kept\nprint('again')")).stdout == "again\n"


async def test_lost_output_is_told(sandbox: Sandbox, server: OpenSandboxServer) -> None:
    server.lag = 0.4
    try:
        result = await sandbox.run("print('gone')")
    finally:
        server.lag = 0
    # The next run may still show what was on its way, as the real server does.
    assert result.stdout == ""
    assert result.truncated is None or "end of the output was lost" in result.truncated


async def test_an_interrupt_stops_the_code_and_keeps_the_kernel(sandbox: Sandbox) -> None:
    events: list[Event] = []
    async for event in sandbox.provider.run(sandbox.handle, "x = 5\nimport time\nprint('on')\ntime.sleep(60)"):
        events.append(event)
        if event == Stdout("on\n"):
            await sandbox.provider.interrupt(sandbox.handle)
    assert [type(event).__name__ for event in events][:2] == ["Stdout", "ExecutionError"]
    after = await sandbox.run("x")
    assert (after.text, after.error, after.truncated) == ("5", None, None)


async def test_an_interrupt_right_at_the_start_is_not_lost(sandbox: Sandbox) -> None:
    running = asyncio.create_task(sandbox.run("import time\ntime.sleep(60)"))
    # As far as the request, before the kernel has the code.
    for _ in range(3):
        await asyncio.sleep(0)
    await sandbox.provider.interrupt(sandbox.handle)
    error = (await running).error
    assert error is not None
    assert error.name == "KeyboardInterrupt"


async def test_a_run_past_its_limit_is_stopped_and_the_kernel_stays(sandbox: Sandbox) -> None:
    with pytest.raises(ExecutionTimeoutError) as caught:
        await sandbox.run("y = 1\nprint('on')\nimport time\ntime.sleep(60)", timeout=1)
    assert caught.value.result.stdout == "on\n"
    assert (await sandbox.run("y")).text == "1"


async def test_a_cancelled_run_makes_room_for_the_next(sandbox: Sandbox) -> None:
    await sandbox.run("import time\nz = 1")
    for code in ("time.sleep(60)", "print('on')\ntime.sleep(60)"):
        running = asyncio.create_task(sandbox.run(code))
        await asyncio.sleep(0.2)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        assert (await sandbox.run("z")).text == "1"


async def test_a_run_left_at_once_makes_room_for_the_next(sandbox: Sandbox) -> None:
    running = asyncio.create_task(sandbox.run("import time; time.sleep(60)"))
    await asyncio.sleep(0)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert (await sandbox.run("1")).text == "1"


async def test_two_runs_at_once_queue(sandbox: Sandbox) -> None:
    slow = "import time\ntime.sleep(0.3)\norder = globals().get('order', []) + ['{}']\norder"
    results = await asyncio.gather(*(sandbox.run(slow.format(name)) for name in "abc"))
    assert [result.text for result in results] == ["['a']", "['a', 'b']", "['a', 'b', 'c']"]


async def test_a_dead_kernel_is_told_and_replaced(sandbox: Sandbox) -> None:
    await sandbox.provider.upload(sandbox.handle, "kept.txt", b"kept")
    await sandbox.run("v = 1")
    began = time.monotonic()
    with pytest.raises(KernelDiedError) as caught:
        await sandbox.run("import os\nprint('dying', flush=True)\nos._exit(1)")
    assert time.monotonic() - began < 20
    assert caught.value.sandbox_id == sandbox.handle.id
    after = await sandbox.run("print(open('kept.txt').read())\n'v' in globals()")
    assert (after.stdout, after.text, after.execution_count) == ("kept\n", "False", 1)
    with pytest.raises(KernelDiedError):
        await sandbox.run("os = __import__('os'); os._exit(1)")
    await sandbox.run("pass")
    # The new kernel has had the prelude too.
    assert len((await sandbox.run("display(1)")).displays) == 1


async def test_a_sleeping_kernel_is_not_taken_for_dead(sandbox: Sandbox, server: OpenSandboxServer) -> None:
    server.ping = 0.05
    try:
        result = await sandbox.run("import time\ntime.sleep(1)\nprint('awake')")
    finally:
        server.ping = 0.3
    assert (result.stdout, result.error) == ("awake\n", None)
    assert server.count("GET", "/files/info") > 3


async def test_a_killed_sandbox_ends_the_run(sandbox: Sandbox, server: OpenSandboxServer) -> None:
    running = asyncio.create_task(sandbox.run("import time\nprint('on')\ntime.sleep(60)"))
    await asyncio.sleep(0.3)
    await asyncio.to_thread(server.kill, sandbox.handle.id)
    with pytest.raises(SandboxLostError, match="the next use makes a new one"):
        await running
    with pytest.raises(SandboxLostError):
        await sandbox.run("1")


async def test_a_lifetime_that_ends_during_a_run(sandbox: Sandbox, server: OpenSandboxServer) -> None:
    running = asyncio.create_task(sandbox.run("import time\nprint('on')\ntime.sleep(60)"))
    await asyncio.sleep(0.3)
    server.boxes[sandbox.handle.id].expires_at = datetime.now(UTC)
    with pytest.raises(SandboxLostError):
        await running


async def test_another_process_finds_the_same_variables(sandbox: Sandbox, server: OpenSandboxServer) -> None:
    await sandbox.run("shared = 7")
    async with from_another_process(server, sandbox) as other:
        result = await other.run("shared")
        assert (result.text, result.execution_count) == ("7", 2)
        assert len((await other.run("display(1)")).displays) == 1
    copy = ContainerHandle.model_validate_json(sandbox.handle.model_dump_json())
    execd._KERNELS.pop(copy.id)
    before = server.count("POST", "/code")
    assert (await execution.run(sandbox.provider, copy, "shared + 1")).text == "8"
    # A handle knows that the prelude has been there.
    assert server.count("POST", "/code") == before + 1


async def test_code_of_another_process_is_waited_for_a_while(
    sandbox: Sandbox, server: OpenSandboxServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with from_another_process(server, sandbox) as other:
        await other.run("import time")
        running = asyncio.create_task(other.run("time.sleep(1)\n'done'"))
        await asyncio.sleep(0.2)
        assert (await sandbox.run("1")).text == "1"
        assert (await running).text == "'done'"
        running = asyncio.create_task(other.run("time.sleep(60)"))
        await asyncio.sleep(0.2)
        monkeypatch.setattr(execd, "BUSY_PATIENCE", 0.2)
        with pytest.raises(SandboxBusyError, match="interrupt it, or restart the kernel"):
            await sandbox.run("1")
        # Not ours to stop by itself, but on request.
        assert not running.done()
        await sandbox.provider.interrupt(sandbox.handle)
        error = (await running).error
        assert error is not None
        assert error.name == "KeyboardInterrupt"


async def test_an_interrupt_by_bare_id_finds_what_runs(sandbox: Sandbox, server: OpenSandboxServer) -> None:
    running = asyncio.create_task(sandbox.run("import time\ntime.sleep(60)"))
    await asyncio.sleep(0.3)
    async with from_another_process(server, sandbox) as other:
        await other.provider.interrupt(other.handle)
    error = (await running).error
    assert error is not None
    assert error.name == "KeyboardInterrupt"


async def test_separate_providers_of_one_process_queue_too(sandbox: Sandbox, server: OpenSandboxServer) -> None:
    slow = "import time\ntime.sleep(0.3)\norder = globals().get('order', []) + ['{}']\norder"

    async def run(name: str) -> str:
        handle = sandbox.handle.model_copy()
        return (await arun_code("opensandbox", handle, slow.format(name), api_base=server.api_base)).text

    assert await asyncio.gather(*map(run, "abc")) == ["['a']", "['a', 'b']", "['a', 'b', 'c']"]


async def test_a_handle_from_before_a_kernel_died_is_as_good_as_another(sandbox: Sandbox) -> None:
    await sandbox.run("1")
    copy = sandbox.handle.model_copy()
    with pytest.raises(KernelDiedError):
        await sandbox.run("import os; os._exit(1)")
    assert (await execution.run(sandbox.provider, copy, "2")).text == "2"
    assert (await sandbox.run("3")).execution_count == 2


async def test_a_restart_gives_a_fresh_kernel(sandbox: Sandbox, server: OpenSandboxServer) -> None:
    await sandbox.run("v = 1")
    await sandbox.provider.restart(sandbox.handle)
    result = await sandbox.run("'v' in globals()")
    assert (result.text, result.execution_count) == ("False", 1)
    async with from_another_process(server, sandbox) as other:
        await other.provider.restart(other.handle)
    # This process did not know.
    with pytest.raises(KernelDiedError, match="this code was not run: run it again"):
        await sandbox.run("1")
    assert (await sandbox.run("1")).execution_count == 1


async def test_a_display_from_a_thread_between_cells_does_no_harm(sandbox: Sandbox) -> None:
    await sandbox.run(
        "import threading, time\n"
        "def late():\n    time.sleep(0.3)\n    display('late')\n    print('late')\n"
        "threading.Thread(target=late).start()"
    )
    await asyncio.sleep(0.5)
    for number in (2, 3):
        result = await sandbox.run("1")
        assert (result.execution_count, result.text, result.truncated) == (number, "1", None)


async def test_many_flushed_writes_arrive_whole(sandbox: Sandbox) -> None:
    result = await sandbox.run("for i in range(1000): print(i, flush=True)")
    assert result.stdout == "".join(f"{i}\n" for i in range(1000))
    assert result.truncated is None


async def test_a_cut_run_says_so_and_the_sandbox_is_usable(sandbox: Sandbox, server: OpenSandboxServer) -> None:
    await sandbox.run("w = 3\nimport time")
    box = server.boxes[sandbox.handle.id]
    running = asyncio.create_task(sandbox.run("print('half', flush=True)\ntime.sleep(60)"))
    await asyncio.sleep(0.4)
    # Its connections break, while it lives on.
    server.boxes[box.id] = type(box)(**{name: getattr(box, name) for name in box.__dataclass_fields__})
    with pytest.raises(OutputTruncatedError) as caught:
        await running
    assert caught.value.result.stdout == "half\n"
    assert (await sandbox.run("w")).text == "3"


SNIPPETS = [
    "print('hello')\nprint('world')",
    "import sys; sys.stderr.write('careful\\n'); print('done')",
    "x = 41\nx + 1",
    "1/0",
    "print('before')\nraise ValueError('无效 <tag> & \"q\"')",
    "def broken(:\n    pass",
    "for i in range(300): print(i)",
    "print('é ñ 你好 🎉 \\u2028 <b>&amp;</b>')",
    "import time\nfor i in range(3):\n    print(i, flush=True)\n    time.sleep(0.05)",
    "undefined_name",
]


async def test_the_official_client_sees_the_same(server: OpenSandboxServer) -> None:
    ours = OpenSandboxProvider(api_base=server.api_base)
    handle = await ours.create(SandboxOptions())
    mine = [await execution.run(ours, handle, code) for code in SNIPPETS]
    await ours.delete(handle)
    await ours.aclose()
    theirs = await official_client(server)
    for code, result, (stdout, stderr, error) in zip(SNIPPETS, mine, theirs, strict=True):
        assert (result.stdout, result.stderr) == (stdout, stderr), code
        assert (None if result.error is None else [result.error.name, result.error.value]) == error, code


async def official_client(server: OpenSandboxServer) -> list[tuple[str, str, list[str] | None]]:
    pipe = asyncio.subprocess.PIPE
    env = {**os.environ, "OPENSANDBOX_DISABLE_METRICS": "1"}
    client = await asyncio.create_subprocess_exec(
        sys.executable, str(OFFICIAL), server.host, stdin=pipe, stdout=pipe, stderr=pipe, env=env
    )
    out, err = await client.communicate(json.dumps(SNIPPETS).encode())
    assert client.returncode == 0, err.decode()
    found: list[tuple[str, str, list[str] | None]] = json.loads(out)
    return found
