"""What execd sends, byte for byte, and what becomes of it."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from servers.http_server import Answer, Request, serve
from servers.replay_server import Recording, byte_by_byte, load, replaying

from ipy_sandbox.errors import (
    ExecutionTimeoutError,
    KernelDiedError,
    OutputTruncatedError,
    ProviderError,
    SandboxBusyError,
    SandboxLostError,
)
from ipy_sandbox.models import ContainerHandle, Display, End, Event, ExecutionCount, Stdout
from ipy_sandbox.sandbox import execd, execution, frames
from ipy_sandbox.sandbox.execd_wire import CodeStream
from ipy_sandbox.sandbox.frames import SilentStreamError
from ipy_sandbox.sandbox.opensandbox import OpenSandboxProvider
from ipy_sandbox.sandbox.prelude import OPERATION

pytestmark = pytest.mark.anyio

GOLDEN = Path(__file__).parents[1] / "golden" / "opensandbox"


@contextlib.asynccontextmanager
async def attached(url: str, context: str | None = "c") -> AsyncIterator[tuple[OpenSandboxProvider, ContainerHandle]]:
    """A provider, and the handle of a sandbox whose execd is at `url` and has had the prelude."""
    provider = OpenSandboxProvider(api_base=url)
    try:
        yield provider, ContainerHandle(id="s", provider="opensandbox", endpoint=url, context=context)
    finally:
        await provider.aclose()


def html(body: str) -> dict[str, str]:
    return {"text": "<IPython.core.display.HTML object>", "text/html": body}


# What the user sees for each recording; what is left out is empty. The comment says where a bug of the server shows.
EXPECTED: dict[str, dict[str, Any]] = {
    "after_disconnect_and_interrupt": {"stdout": "recovered\n"},
    "ansi_colours": {"stdout": "\x1b[1;31mred\x1b[0m \x1b[38;5;82mgreen\x1b[0m \x1b[2K\x1b[1A\n"},
    "bash_echo": {"stdout": "out\nerr\n1\n2\n3\n"},
    "bash_fail": {
        "stdout": "ls: cannot access '/nonexistent-dir': No such file or directory\n",
        "error": ("", "2", ""),
    },
    "bash_set_var": {},
    "big_result_12mb": {},  # lost by Jupyter's rate limit; with our prelude in the kernel its loss is told
    "busy_first": {"stdout": "first done\n"},
    "clear_output": {"stdout": "step 0\nstep 1\nstep 2\n"},  # without the prelude the clearing is lost
    "comment_only": {},
    "default_context": {"results": [{"text": "42"}], "execution_count": 1},
    "display_dataframe": {},  # without the prelude every display is lost
    "display_html": {},
    "display_markdown": {},
    "error_chained": {"error": ("RuntimeError", "outer", "\x1b[31mRuntimeError\x1b[39m: outer")},
    "error_raise_unicode": {
        "error": ("ValueError", '无效 🚫 <tag> & "q"', '\x1b[31mValueError\x1b[39m: 无效 🚫 <tag> & "q"')
    },
    "error_syntax": {
        "error": (
            "SyntaxError",
            "invalid syntax (1850221797.py, line 1)",
            "\x1b[31mSyntaxError\x1b[39m\x1b[31m:\x1b[39m invalid syntax\n",
        )
    },
    "error_zero_division": {
        "stdout": "before\n",
        "error": ("ZeroDivisionError", "division by zero", "\x1b[31mZeroDivisionError\x1b[39m: division by zero"),
    },
    "expression_none": {},
    "expression_result": {"results": [{"text": "{'a': 1, 'b': [1, 2, 3]}"}], "execution_count": 2},
    "first_run_fresh_context": {"stdout": "first\n", "results": [{"text": "2"}], "execution_count": 1},
    "hook_display_html": {"stdout": "later\n", "results": [html("<b>1</b>"), html("<b>2</b>")]},
    "hook_error": {
        "error": ("ZeroDivisionError", "division by zero", "\x1b[31mZeroDivisionError\x1b[39m: division by zero")
    },
    "hook_expression": {"results": [{"text": "42"}], "execution_count": 5},
    "hook_install": {},
    "hook_plotly": {
        "results": [
            {
                "application/vnd.plotly.v1+json": {
                    "data": [{"type": "scatter", "x": [1, 2], "y": [2, 1]}],
                    "layout": {"template": {"data": {"scatter": [{"type": "scatter"}]}}},
                }
            }
        ]
    },
    "input_call": {
        "error": (
            "StdinNotImplementedError",
            "raw_input was called, but this frontend does not support input requests.",
            "but this frontend does not support input requests.",
        )
    },
    "interrupt_keyboard": {
        "stdout": "start\n",
        "error": ("KeyboardInterrupt", "", "\x1b[31mKeyboardInterrupt\x1b[39m: "),
    },
    "interrupt_then_reuse": {"stdout": "alive after interrupt\n"},
    "ipywidgets_slider": {
        "results": [
            {
                "application/vnd.jupyter.widget-view+json": {
                    "model_id": "4281932cb956434082de81f848a38009",
                    "version_major": 2,
                    "version_minor": 0,
                },
                "text": "IntSlider(value=3)",
            }
        ],
        "execution_count": 2,
    },
    "isolation_other": {
        "error": (
            "NameError",
            "name 'secret' is not defined",
            "\x1b[31mNameError\x1b[39m: name 'secret' is not defined",
        )
    },
    "isolation_same": {"results": [{"text": "1"}], "execution_count": 2},
    "isolation_set": {},
    "late_thread_output": {"stdout": "main done\n"},
    "late_thread_output_next": {"stdout": "from thread\nsecond cell\n"},  # the first line is the cell's before
    "magic_and_shell": {
        "stdout": "CPU times: user 3 μs, sys: 1 μs, total: 4 μs\nWall time: 5.48 μs\nfrom-shell\r\n",
        "results": [{"text": "'/workspace'"}],
        "execution_count": 2,
    },
    # The code wrote 5000: the rest was lost, and without our prelude in the kernel nothing tells.
    "many_small_writes": {"stdout": "".join(f"{i}," for i in range(2838))},
    "matplotlib_show": {},
    "matplotlib_two_figures": {"stdout": "done\n"},
    "multiple_results": {"results": [{"text": "1"}, {"text": "'two'"}], "execution_count": 3},  # 'mid' and [3] are lost
    "multiple_results_all": {},
    "no_language_runs_shell": {"stdout": "shell bash", "error": ("CommandExecError", "7", "exit status 7")},
    "parallel_a": {"stdout": "a\n"},
    "parallel_b": {"stdout": "b\n"},
    "ping_keepalive": {"stdout": "ok\n"},
    "plotly_show": {},
    "print_stdout": {"stdout": "hello\nworld\n"},
    "progress_cr": {"stdout": "\r  0%\r 20%\r 40%\r 60%\r 80%\r100%\n"},
    "result_custom_mime": {
        "results": [{"application/vnd.example+json": {"n": 1}, "text": "R", "text/x-thing": "raw"}],
        "execution_count": 2,
    },
    "result_html": {"results": [html("<b>bold & <i>it</i></b>")], "execution_count": 2},
    "result_javascript": {
        "results": [{"application/javascript": "console.log(1)", "text": "<IPython.core.display.Javascript object>"}],
        "execution_count": 2,
    },
    "result_json": {
        "results": [{"application/json": {"k": [1, 2, {"z": None}]}, "text": "<IPython.core.display.JSON object>"}],
        "execution_count": 2,
    },
    "result_latex": {
        "results": [{"text": "<IPython.core.display.Latex object>", "text/latex": "$\\frac{a}{b}$"}],
        "execution_count": 2,
    },
    "result_markdown": {
        "results": [{"text": "<IPython.core.display.Markdown object>", "text/markdown": "# Title\n\n- a\n- b"}],
        "execution_count": 2,
    },
    "result_png": {
        "results": [
            {
                "image/png": "iVBORw0KGgoAAAANSUhEUgAAAAgAAAAICAIAAABLbSncAAAAFElEQVR4nGOUOyHHgA0wYRUdtBIA0CABFNh"
                "HGyMAAAAASUVORK5CYII=",
                "text": "<IPython.core.display.Image object>",
            }
        ],
        "execution_count": 2,
    },
    "result_svg": {
        "results": [
            {
                "image/svg+xml": '<svg xmlns="http://www.w3.org/2000/svg" width="10" height="10">'
                '<circle cx="5" cy="5" r="4"/></svg>',
                "text": "<IPython.core.display.SVG object>",
            }
        ],
        "execution_count": 2,
    },
    "slow_result": {"results": [{"text": "'late result'"}], "execution_count": 2},
    "streaming_sleep": {"stdout": "tick 0\ntick 1\ntick 2\ntick 3\ntick 4\n"},
    "sys_exit": {
        "stdout": "bye\n",
        "stderr": "/usr/lib/python3/site-packages/IPython/core/interactiveshell.py:3831: UserWarning: To exit: use "
        "'exit', 'quit', or Ctrl-D.\n  (library source line removed)\n",
        "error": ("SystemExit", "3", "\x1b[31mSystemExit\x1b[39m\x1b[31m:\x1b[39m 3\n"),
    },
    "unicode_mix": {
        "stdout": "ascii é ñ ü — 你好，世界 日本語 한국어 🎉👩\u200d👩\u200d👧\u200d👦🏳️\u200d🌈 "
        "\u202eRTL\u202c \x00nul \x07bel <b>&amp;</b> \u2028ls\n",
        "results": [{"text": "'结果 🎉'"}],
        "execution_count": 2,
    },
    "update_display": {"stdout": "ok\n"},
    "warnings_logging": {
        "stderr": "/tmp/ipykernel_1/1.py:2: UserWarning: careful\n  warnings.warn('careful')\nWARNING:root:logged\n"
    },
}
# Too long to write down whole: what their bundles are.
BUNDLES = {
    "hook_matplotlib_show": [{"image/png", "text"}, {"image/png", "text"}],
    "matplotlib_figure_expr": [{"image/png", "text"}],
    "pandas_dataframe": [{"text", "text/html"}],
    "result_jpeg": [{"image/jpeg", "text"}],
}
BUSY = "Sandbox s runs other code: wait for its end, interrupt it, or restart the kernel."
OTHER_KERNEL = "Sandbox s has lost its kernel: variables are lost"
FAILING: dict[str, tuple[type[Exception], str]] = {
    "after_client_disconnect": (SandboxBusyError, BUSY),
    "busy_second": (SandboxBusyError, BUSY),
    "kernel_death_then_reuse": (SandboxBusyError, BUSY),
    "deleted_context": (KernelDiedError, OTHER_KERNEL),
    "unknown_context": (KernelDiedError, OTHER_KERNEL),
    "bad_json": (ProviderError, "did not run the code (400: error parsing request"),
    "empty_code": (ProviderError, "did not run the code (400: invalid request"),
    "unknown_language": (ProviderError, "did not run the code (500: error running codes unknown language: ruby)"),
    "proxy_cut_partial": (OutputTruncatedError, "closed the stream before the code gave anything"),
}
ENDLESS = {"kernel_death": "dying\n", "whitespace_code": ""}
WRITTEN_ELSEWHERE = {"big_output_12mb"}

chunkings = pytest.mark.parametrize("chunked", [lambda recording: recording, byte_by_byte], ids=["recorded", "bytes"])


def golden(name: str) -> Recording:
    return load(next(path for path in GOLDEN.glob(f"{name}.jsonl*")))


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(execd, "_KERNELS", {})
    monkeypatch.setattr(execd, "BUSY_PATIENCE", 0.1)
    monkeypatch.setattr(execution, "INTERRUPT_GRACE", 0.1)


def test_every_recording_has_its_expectation() -> None:
    names = {path.name.split(".")[0] for path in GOLDEN.iterdir() if ".wire." not in path.name}
    assert names == {*EXPECTED, *BUNDLES, *FAILING, *ENDLESS, *WRITTEN_ELSEWHERE}


@chunkings
@pytest.mark.parametrize("name", EXPECTED)
async def test_a_recording_gives_what_the_code_gave(name: str, chunked: Callable[[Recording], Recording]) -> None:
    async with replaying(chunked(golden(name))) as server, attached(server.url) as (provider, handle):
        result = await execution.run(provider, handle, "x")
    shown = result.model_dump(exclude={"object", "error"}, exclude_defaults=True)
    expected = dict(EXPECTED[name])
    error = expected.pop("error", None)
    assert shown == expected
    if error is None:
        assert result.error is None
    else:
        assert result.error is not None
        assert (result.error.name, result.error.value) == error[:2]
        assert result.error.traceback.endswith(error[2])


@chunkings
@pytest.mark.parametrize("name", BUNDLES)
async def test_pictures_and_tables_come_through(name: str, chunked: Callable[[Recording], Recording]) -> None:
    async with replaying(chunked(golden(name))) as server, attached(server.url) as (provider, handle):
        result = await execution.run(provider, handle, "x")
    assert [set(bundle) for bundle in result.results] == BUNDLES[name]
    assert all(value for bundle in result.results for value in bundle.values())
    for display, raw in zip(result.displays, result.results, strict=True):
        assert display.data == {"text/plain" if key == "text" else key: value for key, value in raw.items()}


@pytest.mark.parametrize("pieces", ["as read", "bytes"])
@pytest.mark.parametrize("name", ["print_stdout", "streaming_sleep", "busy_second", "unknown_context"])
async def test_the_bytes_of_the_wire(name: str, pieces: str) -> None:
    lines = (GOLDEN / f"{name}.wire.jsonl").read_text("utf-8").splitlines()
    reads = [base64.b64decode(json.loads(line)["b64"]) for line in lines]
    if pieces == "bytes":
        reads = [bytes([byte]) for byte in b"".join(reads)]

    async def handle(request: Request, answer: Answer) -> None:
        if request.method != "POST":
            await answer.send(200, {"id": "s", "status": {"state": "Running"}})
            return
        for read in reads:
            await answer.raw(read)

    async with serve(handle) as server, attached(server.url) as (provider, sandbox):
        if name in FAILING:
            with pytest.raises(FAILING[name][0]):
                await execution.run(provider, sandbox, "x")
        else:
            assert (await execution.run(provider, sandbox, "x")).stdout == EXPECTED[name]["stdout"]


async def test_a_long_traceback_keeps_all_its_lines() -> None:
    async with replaying(golden("error_zero_division")) as server, attached(server.url) as (provider, handle):
        result = await execution.run(provider, handle, "x")
    assert result.error is not None
    lines = result.error.traceback.splitlines()
    assert set(lines[0].removeprefix("\x1b[31m").removesuffix("\x1b[39m")) == {"-"}
    assert "Traceback (most recent call last)" in lines[1]
    assert sum("f(" in line or "/" in line for line in lines) >= 2


@chunkings
@pytest.mark.parametrize("name", FAILING)
async def test_a_recording_of_a_refusal_is_the_right_error(
    name: str, chunked: Callable[[Recording], Recording]
) -> None:
    kind, message = FAILING[name]
    async with replaying(chunked(golden(name))) as server, attached(server.url) as (provider, handle):
        with pytest.raises(kind) as caught:
            await execution.run(provider, handle, "x")
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ENDLESS)
async def test_a_recording_without_end_ends_with_the_time_limit(name: str) -> None:
    async with replaying(golden(name)) as server, attached(server.url) as (provider, handle):
        with pytest.raises(ExecutionTimeoutError) as caught:
            await execution.run(provider, handle, "x", timeout=0.3)
    assert caught.value.result.stdout == ENDLESS[name]


async def test_the_rate_limit_of_jupyter_is_seen_as_what_it_says() -> None:
    async with replaying(golden("big_output_12mb")) as server, attached(server.url) as (provider, handle):
        result = await execution.run(provider, handle, "x")
    assert result.stderr.startswith("IOPub data rate exceeded.\nThe Jupyter server will temporarily stop sending")
    assert result.stdout == ""


def frame(**message: Any) -> bytes:
    return json.dumps(message, ensure_ascii=False).encode() + b"\n\n"


INIT = frame(type="init", text="c") + frame(type="ping", text="pong")
COMPLETE = frame(type="execution_complete", execution_time=50)
START = frame(type="result", results={OPERATION: {"op": "start", "cell": 2, "pid": 7}})
FINISH = frame(type="result", results={OPERATION: {"op": "end", "cell": 2, "count": 1}})


def playing(*chunks: bytes, ended: bool = True) -> Any:
    return replaying(Recording(200, "text/event-stream", list(chunks), ended))


async def test_separators_that_python_takes_for_line_breaks_stay_in_the_text() -> None:
    text = "a\x85b\u2028c\x0bd\x1ce\r\nf\r"
    for body in ([INIT, frame(type="stdout", text=text)], [INIT + frame(type="stdout", text=text)[:-2]]):
        async with playing(*body) as server, attached(server.url) as (provider, handle):
            assert (await execution.run(provider, handle, "x")).stdout == text


async def test_a_standard_sse_prefix_is_taken_too() -> None:
    chunks = [b"data: " + INIT[: INIT.index(b"\n")] + b"\n\n", b"data:" + frame(type="stdout", text="hi")]
    async with playing(*chunks) as server, attached(server.url) as (provider, handle):
        assert (await execution.run(provider, handle, "x")).stdout == "hi"


async def test_twelve_megabytes_are_cut_at_ten_and_the_end_is_seen() -> None:
    print_12mb = frame(type="stdout", text="0123456789abcdef" * (12 * 1024 * 64))
    body = [INIT, START, print_12mb, FINISH]
    async with playing(*body) as server, attached(server.url) as (provider, handle):
        result = await execution.run(provider, handle, "x")
    assert result.truncated == "output beyond 10 MiB was left out"
    assert 9 * frames.MiB < len(result.stdout) <= 10 * frames.MiB
    assert result.stdout.startswith("0123456789abcdef")
    assert result.execution_count == 1


async def test_a_result_that_is_too_long_is_not_shown_as_text() -> None:
    too_long = frame(type="result", results={"text": "x" * 12 * frames.MiB})
    async with playing(INIT, START, too_long, FINISH) as server, attached(server.url) as (provider, handle):
        result = await execution.run(provider, handle, "x")
    assert (result.stdout, result.results) == ("", [])
    assert result.truncated == "output beyond 10 MiB was left out"


async def test_output_past_the_cap_is_dropped_but_an_error_is_not() -> None:
    lines = [f"{i:08}\n" for i in range(250_000)]
    written = b"".join(frame(type="stdout", text=line) for line in lines)
    assert len(written) > 10 * frames.MiB
    error = frame(type="error", error={"ename": "E", "evalue": "v", "traceback": ["t"]})
    async with playing(INIT, written, error) as server, attached(server.url) as (provider, handle):
        result = await execution.run(provider, handle, "x")
    assert result.truncated
    assert result.error is not None
    assert 0 < len(result.stdout) < 9 * len(lines)
    assert "".join(lines).startswith(result.stdout)


async def test_a_line_of_300_kb_is_whole() -> None:
    text = "y" * 300_000 + "\nend\n"
    body = INIT + COMPLETE + frame(type="stdout", text=text)
    chunks = [body[i : i + 32768] for i in range(0, len(body), 32768)]
    async with playing(*chunks) as server, attached(server.url) as (provider, handle):
        result = await execution.run(provider, handle, "x")
    assert result.stdout == text
    assert result.truncated is None


async def test_blank_code_is_answered_without_a_request() -> None:
    async with playing(INIT) as server, attached(server.url) as (provider, handle):
        for code in ("", "  \n\t\n"):
            assert [event async for event in provider.run(handle, code)] == [End()]
        assert not server.requests


async def test_the_end_of_a_marked_run_that_does_not_come_is_told() -> None:
    async with playing(INIT, START, frame(type="stdout", text="1\n")) as server, attached(server.url) as (p, handle):
        result = await execution.run(p, handle, "x")
    assert result.stdout == "1\n"
    assert result.truncated is not None
    assert "end of the output was lost" in result.truncated


async def test_marks_are_not_shown() -> None:
    body = [INIT, START, frame(type="stdout", text="1\n"), frame(type="execution_count", execution_count=1), FINISH]
    async with playing(*body) as server, attached(server.url) as (provider, handle):
        events = [event async for event in provider.run(handle, "x")]
    assert events == [Stdout("1\n"), ExecutionCount(1), End()]


async def test_the_late_end_of_another_cell_is_not_taken_for_ours() -> None:
    other = frame(type="result", results={OPERATION: {"op": "end", "cell": 1, "count": 1}})
    for body in ([INIT, other, START], [INIT, START, other]):
        async with playing(*body) as server, attached(server.url) as (provider, handle):
            events = [event async for event in provider.run(handle, "x")]
        assert len(events) == 1
        assert isinstance(events[0], End)
        assert events[0].truncated is not None


async def test_an_error_makes_a_missing_mark_no_matter() -> None:
    error = frame(type="error", error={"ename": "E", "evalue": "v", "traceback": ["t"]})
    async with playing(INIT, START, error) as server, attached(server.url) as (provider, handle):
        result = await execution.run(provider, handle, "x")
    assert result.truncated is None


async def test_a_stream_that_execd_forgot_to_end_ends_with_the_mark() -> None:
    body = [INIT, START, frame(type="stdout", text="1\n"), FINISH, frame(type="ping", text="pong")]
    async with playing(*body, ended=False) as server, attached(server.url) as (provider, handle):
        result = await execution.run(provider, handle, "x")
    assert (result.stdout, result.truncated) == ("1\n", None)


def interrupts(server: Any) -> list[str]:
    return [r.query.get("id", "") for r in server.requests if (r.method, r.path) == ("DELETE", "/code")]


@pytest.mark.parametrize("body", [b"", INIT], ids=["nothing", "init only"])
async def test_a_stream_that_ends_with_nothing_was_cut(body: bytes) -> None:
    async with playing(body or b"\n\n") as server, attached(server.url) as (provider, handle):
        with pytest.raises(OutputTruncatedError, match="nothing was run again"):
            await execution.run(provider, handle, "x")
        assert interrupts(server) == ["c"]
        assert sum(r.path == "/code" and r.method == "POST" for r in server.requests) == 1


async def test_a_broken_connection_keeps_what_came_and_stops_the_code() -> None:
    async def handle(request: Request, answer: Answer) -> None:
        if request.method == "POST":
            await answer.start(200, {"Content-Type": "text/event-stream"})
            await answer.chunk(INIT + frame(type="stdout", text="half\n"))
        else:
            await answer.send(200, {"id": "s", "status": {"state": "Running"}})

    async with serve(handle) as server, attached(server.url) as (provider, sandbox):
        with pytest.raises(OutputTruncatedError) as caught:
            await execution.run(provider, sandbox, "x")
        assert interrupts(server) == ["c"]
    assert caught.value.result.stdout == "half\n"


async def test_a_broken_connection_of_a_sandbox_that_is_gone_is_its_loss() -> None:
    async def handle(request: Request, answer: Answer) -> None:
        if request.method == "POST":
            await answer.start(200, {"Content-Type": "text/event-stream"})
            await answer.chunk(INIT + frame(type="stdout", text="half\n"))
        else:
            await answer.send(404, {"code": "DOCKER::SANDBOX_NOT_FOUND", "message": "Sandbox s not found."})

    async with serve(handle) as server, attached(server.url) as (provider, sandbox):
        with pytest.raises(SandboxLostError, match=r"Sandbox s is gone \(deleted, or its lifetime ended\)"):
            await execution.run(provider, sandbox, "x")


async def test_a_silent_stream_ends_with_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(execd, "IDLE", 0.2)
    async with playing(INIT, ended=False) as server, attached(server.url) as (provider, handle):
        with pytest.raises(SilentStreamError):
            await execution.run(provider, handle, "x")
        assert interrupts(server) == ["c"]


async def test_a_closed_iterator_stops_the_code() -> None:
    body = [INIT, START, frame(type="stdout", text="1\n")]
    async with playing(*body, ended=False) as server, attached(server.url) as (provider, handle):
        events = provider.run(handle, "x")
        assert await anext(events) == Stdout("1\n")
        await events.aclose()
        assert interrupts(server) == ["c"]


async def test_a_cancelled_run_stops_the_code() -> None:
    body = [INIT, START, frame(type="stdout", text="1\n")]
    async with playing(*body, ended=False) as server, attached(server.url) as (provider, handle):
        shown = asyncio.Event()

        async def run() -> None:
            async for _ in provider.run(handle, "x"):
                shown.set()

        task = asyncio.create_task(run())
        await shown.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert interrupts(server) == ["c"]


async def test_only_execds_clear_word_makes_a_kernel_dead() -> None:
    answers: list[tuple[int, Any]] = [
        (500, {"code": "RUNTIME_ERROR", "message": "error accessing file: lookup owner"}),
        (404, b"404 page not found"),
        (200, {"/proc/7": {}}),
        (404, {"code": "FILE_NOT_FOUND", "message": "file not found"}),
    ]
    probes: list[str] = []

    async def handle(request: Request, answer: Answer) -> None:
        if (request.method, request.path) == ("POST", "/code"):
            await answer.start(200, {"Content-Type": "text/event-stream"})
            await answer.chunk(INIT + START + frame(type="stdout", text="dying\n"))
            for _ in range(len(answers) + 1):
                await answer.chunk(frame(type="ping", text="pong"))
            await answer.gone.wait()
        elif request.path == "/files/info":
            probes.append(request.query["path"])
            await answer.send(*answers[len(probes) - 1])
        else:
            await answer.send(200, {"id": "s", "status": {"state": "Running"}})

    async with serve(handle) as server, attached(server.url) as (provider, sandbox):
        events: list[Event] = []

        async def run() -> None:
            async for event in provider.run(sandbox, "x"):
                events.append(event)

        with pytest.raises(KernelDiedError, match="variables are lost, files are kept"):
            await run()
        assert ("DELETE", "/code/contexts/c") in [(r.method, r.path) for r in server.requests]
        assert not interrupts(server)
        assert sandbox.context is None
    assert events == [Stdout("dying\n")]
    assert probes == ["/proc/7"] * 4


async def test_a_kernel_that_was_replaced_before_the_run_is_told() -> None:
    async def handle(request: Request, answer: Answer) -> None:
        if request.method == "POST":
            await answer.start(200, {"Content-Type": "text/event-stream"})
            await answer.chunk(INIT + COMPLETE + frame(type="stdout", text="from a new kernel\n"))
            await answer.end()
        elif request.path == "/files/info":
            await answer.send(404, {"code": "FILE_NOT_FOUND", "message": "file not found"})
        else:
            await answer.send(200, {"id": "s", "status": {"state": "Running"}})

    async with serve(handle) as server, attached(server.url, "c/7") as (provider, sandbox):
        with pytest.raises(KernelDiedError, match="had lost its kernel before this code, which a new one ran"):
            await execution.run(provider, sandbox, "x")
        assert sandbox.context is None


def test_broken_and_unknown_frames_are_left_out() -> None:
    wire = CodeStream()
    for junk in (b"", b"{", b"[" * 100_000, b"[1]", b"null", b"\xff\xfe",
                 frame(type="later"), frame(type="result", results=None),
                 frame(type="error"), frame(type="execution_count", execution_count="x"), b": comment"):  # fmt: skip
        assert wire.read(junk) == []
    assert wire.problem is None


def test_a_display_of_our_prelude_is_unpacked() -> None:
    wire = CodeStream()
    results = {"text": "f", "image/png": "AA", OPERATION: {"op": "update", "id": "d", "metadata": {"w": 1}}}
    (shown,) = wire.read(frame(type="result", results=results))
    raw = {"text": "f", "image/png": "AA"}
    assert shown == Display({"text/plain": "f", "image/png": "AA"}, {"w": 1}, "d", update=True, raw=raw)
