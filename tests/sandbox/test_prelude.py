from __future__ import annotations

import ast
import contextlib
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
from servers.kernel import Kernel

from ipy_sandbox.models import ClearOutput, Display, Event, ExecutionCount
from ipy_sandbox.sandbox.prelude import OPERATION, Carrier, prelude, unpack

pytestmark = pytest.mark.anyio


@contextlib.asynccontextmanager
async def prepared(carrier: Carrier = "display_data", **env_vars: str) -> AsyncIterator[Kernel]:
    """A kernel configured as e2b's, in which the prelude ran."""
    async with Kernel("--InteractiveShell.colors=NoColor") as kernel:
        assert await run(kernel, prelude(carrier, env_vars)) == []
        yield kernel


async def run(kernel: Kernel, code: str) -> list[dict[str, Any]]:
    """The messages that show something."""
    shown = []
    async with contextlib.aclosing(kernel.execute(code)) as messages:  # type: ignore[type-var]
        async for message in messages:
            content = message["content"]
            if content.get("execution_state") == "idle":
                break
            if message["msg_type"] not in ("status", "execute_input", "execute_reply"):
                shown.append({"type": message["msg_type"], **content})
    return [m for m in shown if m.get("data", {}).get(OPERATION, {}).get("op") not in ("start", "end")]


def events(messages: list[dict[str, Any]]) -> list[Event]:
    made: list[Event] = []
    for message in messages:
        data = dict(message["data"])
        operation = data.pop(OPERATION, None)
        made += unpack(Display(data, is_result=message["type"] == "execute_result"), operation)
    return made


async def test_the_first_cell_is_number_one_and_nothing_is_left_behind() -> None:
    async with prepared() as kernel:
        code = "In, Out, _i, _ii, [n for n in globals() if 'prelude' in n or n == '_i0']"
        (state,) = await run(kernel, code)
        assert state["execution_count"] == 1
        assert ast.literal_eval(state["data"]["text/plain"]) == (["", code], {}, "", "", [])
        history = await run(kernel, "%history -n")
        assert [m["type"] for m in history] == ["stream"]
        assert "def _ipy_sandbox" not in history[0]["text"]
        assert history[0]["text"].startswith("   1:")


async def test_running_it_again_keeps_the_numbers_and_doubles_nothing() -> None:
    async with prepared() as kernel:
        await run(kernel, "x = 1")
        assert await run(kernel, prelude("display_data", {})) == []
        shown = await run(kernel, "display('a', display_id='d'); In, _i")
        assert [m["type"] for m in shown] == ["display_data", "execute_result"]
        assert shown[1]["execution_count"] == 2
        inputs, previous = ast.literal_eval(shown[1]["data"]["text/plain"])
        assert inputs[:2] == ["", "x = 1"]
        assert len(inputs) == 3
        assert previous == "x = 1"


async def test_the_lines_and_cells_of_an_error_are_the_users() -> None:
    async with prepared(SECRET="s3cr3t-value") as kernel:
        await run(kernel, "1")
        (error,) = await run(kernel, "import os\n\ndef f():\n    return os.environ['SECRET'] / 0\nf()")
    (traceback,) = error["traceback"]
    assert error["ename"] == "TypeError"
    assert "In[2]" in traceback
    assert "s3cr3t-value" not in traceback
    lines = [line for line in traceback.split("\n") if "----> " in line]
    assert len(lines) == 2
    assert "5" in lines[0]
    assert "4" in lines[1]


@pytest.mark.parametrize("carrier", ["display_data", "execute_result"])
async def test_displays_updates_clears_and_metadata_come_through_in_order(carrier: Carrier) -> None:
    code = """
from IPython.display import HTML, Image, clear_output, display
h = display(HTML('<b>1</b>'), display_id='mine')
h.update(HTML('<b>2</b>'))
clear_output(wait=True)
display({'text/plain': 'x'}, metadata={'width': 5}, raw=True)
7
"""
    async with prepared(carrier) as kernel:
        shown = await run(kernel, code)
    assert {m["type"] for m in shown} <= {carrier, "execute_result"}
    made = events(shown)
    text = "<IPython.core.display.HTML object>"
    count = [ExecutionCount(1)] if carrier == "execute_result" else []
    assert made == [
        Display({"text/plain": text, "text/html": "<b>1</b>"}, display_id="mine"),
        Display({"text/plain": text, "text/html": "<b>2</b>"}, display_id="mine", update=True),
        ClearOutput(wait=True),
        Display({"text/plain": "x"}, metadata={"width": 5}),
        *count,
        Display({"text/plain": "7"}, is_result=True),
    ]


async def test_a_chart_comes_through_and_so_does_what_a_thread_shows() -> None:
    code = """
%matplotlib inline
import threading
import matplotlib.pyplot as plt
plt.plot([1, 2]); plt.show()
t = threading.Thread(target=lambda: display('from a thread', display_id='t')); t.start(); t.join()
"""
    async with prepared("execute_result") as kernel:
        chart, thread = events(await run(kernel, code))
    assert isinstance(chart, Display)
    assert isinstance(thread, Display)
    assert chart.data["image/png"].startswith("iVBOR")
    assert not chart.is_result
    assert thread.display_id == "t"


@pytest.mark.parametrize("value", ["'it\\'s'", '"a\\nb"', "''", "'\"q\"'", "'''x\"'y'''"])
async def test_texts_keep_their_quotes_though_the_server_cuts_them(value: str) -> None:
    async with prepared() as kernel:
        (message,) = await run(kernel, value)
    cut = message["data"]["text/plain"][1:-1]
    (shown,) = unpack(Display({"text/plain": cut}, is_result=True), message["data"][OPERATION])
    assert shown == Display({"text/plain": repr(ast.literal_eval(value))}, is_result=True)


async def test_a_text_that_is_displayed_keeps_its_quotes_too() -> None:
    async with prepared() as kernel:
        shown = await run(kernel, "display('a', 7); display({'text/plain': 5}, raw=True)")
    assert [m["data"].get(OPERATION) for m in shown] == [{"op": "display", "quote": "'"}, None, None]
    (text,) = unpack(Display({"text/plain": "a"}), shown[0]["data"][OPERATION])
    assert text == Display({"text/plain": "'a'"})


async def test_help_is_shown() -> None:
    async with prepared() as kernel:
        (page,) = await run(kernel, "len?")
    assert "number of items" in page["data"]["text/plain"]


async def test_text_that_no_message_can_hold() -> None:
    async with prepared() as kernel:
        code = "import sys; print('a\\ud800b \\xe9'); sys.stdout.flush(); print('\\udfff', end='', file=sys.stderr)"
        shown = await run(kernel, code)
        assert "".join(m["text"] for m in shown if m["name"] == "stdout") == "a\\ud800b é\n"
        assert "".join(m["text"] for m in shown if m["name"] == "stderr") == "\\udfff"


async def test_environment_variables_are_set_whatever_they_hold() -> None:
    value = 'it\'s "q"\n\\ é \U0001f600 {x}'
    async with prepared(A_VALUE=value) as kernel:
        (message,) = await run(kernel, "import os; ascii(os.environ['A_VALUE'])")
    assert ast.literal_eval(ast.literal_eval(message["data"]["text/plain"])) == value


def test_it_does_nothing_where_the_kernel_is_not_ipython() -> None:
    namespace: dict[str, Any] = {}
    exec(prelude("display_data", {}), namespace)
    assert set(namespace) == {"__builtins__"}


@pytest.mark.parametrize("operation", [None, 5, "no json", [], {}, {"op": "result", "quote": 5, "metadata": []}])
def test_an_operation_that_makes_no_sense_shows_the_message_as_it_is(operation: object) -> None:
    shown = Display({"text/plain": "x"}, is_result=operation != {})
    assert unpack(shown, operation) == [shown]


def test_an_operation_may_come_as_text() -> None:
    assert unpack(Display({}), json.dumps({"op": "clear", "wait": True})) == [ClearOutput(wait=True)]
