"""Variables to and from real local sandboxes, and from ones that lie."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import re
import threading
from collections.abc import AsyncIterator, Callable, Iterable
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from servers.e2b_server import e2b_server
from servers.opensandbox_server import opensandbox

from ipy_sandbox.errors import ProviderError, SandboxLostError, VariableTransferError
from ipy_sandbox.models import Event, ExecutionError, Stdout
from ipy_sandbox.sandbox import variables
from ipy_sandbox.sandbox.fake import FakeProvider
from ipy_sandbox.sandbox.helper import ask
from ipy_sandbox.sandbox.session import Session
from ipy_sandbox.sandbox.variable_codec import MAGIC, encode
from ipy_sandbox.sandbox.variables import INLINE, apull, apush

pytestmark = pytest.mark.anyio


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="module")
async def session(anyio_backend: str) -> AsyncIterator[Session]:
    async with Session("local") as started:
        yield started


@pytest.fixture
def requests(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What the kernel's helper is asked."""
    asked: list[str] = []

    async def noted(session: Session, *, do: str, **request: Any) -> Any:
        asked.append(do)
        return await ask(session, do=do, **request)

    monkeypatch.setattr(variables, "ask", noted)
    return asked


async def test_there_and_back(session: Session) -> None:
    frame = pd.DataFrame({"a": [1, 2], "b": ["x", None]})
    big = np.arange(INLINE, dtype="float64")
    await apush(session, {"frame": frame, "big": big, "few": {"k": (1, None)}})
    result = await session.arun("frame.a.sum(), big.sum(), few['k'], type(frame).__name__")
    assert str(big.sum()) in result.text
    assert "'DataFrame'" in result.text
    got = await apull(session, ["frame", "big", "few"])
    pd.testing.assert_frame_equal(got["frame"], frame)
    np.testing.assert_array_equal(got["big"], big)
    assert got["few"] == {"k": (1, None)}


TEXT = pd.DataFrame({"text": ["a", None] * 1000, "name": pd.Series(["b", "c"] * 1000, dtype=object)})
KINDS = pd.Series([1, None, 3], dtype=pd.ArrowDtype(pa.int8()))


async def test_text_and_arrow_columns_travel_as_arrow(session: Session, requests: list[str]) -> None:
    await apush(session, {"text": TEXT, "kinds": KINDS})
    await apush(session, {"kinds": KINDS})
    assert requests == ["arrow", "push", "push"]
    assert (await session.arun("str(kinds.dtype), len(text)")).text == "('int8[pyarrow]', 2000)"
    got = await apull(session, ["text", "kinds"])
    pd.testing.assert_frame_equal(got["text"], TEXT)
    pd.testing.assert_series_equal(got["kinds"], KINDS)


async def test_a_sandbox_without_pyarrow_takes_and_gives_what_needs_none(requests: list[str]) -> None:
    async with Session("local") as session:
        await session.arun("import sys; sys.modules['pyarrow'] = None")
        await apush(session, {"text": TEXT})
        assert requests == ["arrow", "push"]
        back = (await apull(session, ["text"]))["text"]
        assert str(back.to_dict("list")) == str(TEXT.to_dict("list"))
        assert [str(dtype) for dtype in back.dtypes] == ["str", "object"]
        with pytest.raises(VariableTransferError, match=r"Cannot send kinds: .*int8\[pyarrow\] cannot cross"):
            await apush(session, {"kinds": KINDS})


async def test_a_notebook_without_pyarrow_gets_what_needs_none(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    await session.arun("import pandas as pd; text = pd.Series(['a', None] * 1000)")
    await session.arun("kinds = pd.Series([1], dtype='int8[pyarrow]')")
    monkeypatch.setattr(pa, "__version__", "14.0.0")
    assert (await apull(session, ["text"]))["text"][0] == "a"
    with pytest.raises(VariableTransferError, match=r"int8\[pyarrow\] cannot cross"):
        await apull(session, ["kinds"])


SERVERS = {"local": contextlib.nullcontext, "e2b": e2b_server, "opensandbox": opensandbox}


@pytest.mark.parametrize("name", SERVERS)
async def test_variables_may_be_the_first_that_a_kernel_sees(name: str) -> None:
    with SERVERS[name]():
        async with Session(name) as session:
            await apush(session, {"x": 5})
            assert await apull(session, ["x"]) == {"x": 5}
            result = await session.arun("x, len(In)")
            assert (result.text, result.execution_count) == ("(5, 2)", 1)


async def test_it_leaves_no_trace_in_the_kernel(session: Session) -> None:
    before = await session.arun("x = 5\nnames = set(dir())\n(len(In), sorted(_oh), _i)")
    await apush(session, {"y": 1})
    await apull(session, ["x"])
    with pytest.raises(VariableTransferError):
        await apull(session, ["nope"])
    after = await session.arun("set(dir()) - names, len(In), In[-2][:5], Out, _i[:5]")
    assert after.execution_count == (before.execution_count or 0) + 1
    names = re.findall(r"'(\w+)'", after.text.partition("}")[0])
    assert set(names) <= {
        "y",
        "names",
        "_i",
        "_ii",
        "_iii",
        "_",
        f"_i{after.execution_count}",
        f"_i{before.execution_count}",
    } | {f"_{before.execution_count}"}
    assert "'x = 5'" in after.text
    files = await session.arun("import os; [f for f in os.listdir('/tmp') if f.startswith('ipy-sandbox')]")
    assert files.text == "[]"
    modules = await session.arun("import sys; [name for name in sys.modules if name.startswith('_ipy_sandbox')]")
    assert modules.text == "[]"


@pytest.mark.parametrize(
    ("code", "told"),
    [
        ("value = object()", "type object cannot cross"),
        ("value = lambda: 0", "function"),
        ("import numpy as np; value = np.zeros(1_000_000)", "over the limit of 1 MB"),
        ("class Evil:\n    def __reduce__(self): return (print, ('x',))\nvalue = [Evil()]", "Evil"),
        ("del value", "no variable 'value'"),
    ],
)
async def test_what_cannot_come_is_told_by_name_and_reason(session: Session, code: str, told: str) -> None:
    await session.arun("value = 1")
    await session.arun(code)
    with pytest.raises(VariableTransferError, match=told):
        await apull(session, ["value"], limit=1_000_000)


async def test_nothing_is_sent_if_one_cannot_go(session: Session) -> None:
    with pytest.raises(VariableTransferError, match="Cannot send bad"):
        await apush(session, {"good_one": 1, "bad": object()})
    assert (await session.arun("'good_one' in dir()")).text == "False"


def liar(answer: Any) -> Callable[[str], Iterable[Event]]:
    """A sandbox that answers the helper as `answer` says."""

    def script(code: str) -> Iterable[Event]:
        marks = re.findall(r"'(ipy-sandbox-\w+:)'", code)
        text = answer if isinstance(answer, str) else json.dumps(answer)
        return [Stdout(f"noise\n{marks[-1]}{text}\nmore noise\n")] if marks else []

    return script


def inline(data: bytes) -> dict[str, Any]:
    return {"answer": {"x": {"inline": base64.b64encode(data).decode()}}}


@pytest.mark.parametrize(
    "answer",
    [
        "{",
        "[" * 100_000,
        "[]",
        "null",
        "{}",
        {"answer": None},
        {"answer": {"y": {"inline": ""}}},
        {"answer": {"x": None}},
        {"answer": {"x": {}}},
        {"answer": {"x": {"inline": "!!!"}}},
        {"answer": {"x": {"inline": 3}}},
        {"answer": {"x": {"file": "/etc/passwd", "size": 1}}},
        {"answer": {"x": {"file": 3, "size": "many"}}},
        {"error": "\x1b]0;evil\x07\x1b[2Jnext\nline " + "x" * 100_000},
        {"error": None},
        inline(b""),
        inline(b"\x80\x04\x95pickle"),
        inline(MAGIC + b"\xff" * 8),
        inline(encode(1)[:-1]),
    ],
)
async def test_a_sandbox_that_lies_gives_a_clear_error(answer: Any) -> None:
    session = Session(FakeProvider(script=liar(answer)))
    with pytest.raises((VariableTransferError, ProviderError)) as caught:
        await apull(session, ["x"])
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 1000


async def test_a_true_answer_of_the_same_kind_is_taken() -> None:
    session = Session(FakeProvider(script=liar(inline(encode([1, 2])))))
    assert await apull(session, ["x"]) == {"x": [1, 2]}


@pytest.mark.parametrize("answer", [{"answer": "yes"}, {"answer": None}, {"error": "no"}])
async def test_a_sandbox_that_does_not_say_it_has_pyarrow_gets_no_arrow(answer: Any) -> None:
    codes: list[str] = []

    def script(code: str) -> Iterable[Event]:
        codes.append(code)
        return liar(answer if "'do': 'arrow'" in code else {"answer": None})(code)

    await apush(Session(FakeProvider(script=script)), {"text": TEXT.head(1001)})
    assert len(codes) == 2
    sent = re.findall(r"'inline': '([^']+)'", codes[1])
    assert base64.b64decode(sent[0]).startswith(MAGIC)


async def test_a_kernel_that_is_not_ipython_is_said() -> None:
    session = Session(FakeProvider(script=lambda code: [ExecutionError("NameError", "get_ipython", "")]))
    with pytest.raises(ProviderError, match=r"NameError.*IPython"):
        await apush(session, {"x": 1})


async def test_a_file_larger_than_it_claimed_is_refused() -> None:
    provider = FakeProvider()

    def script(code: str) -> Iterable[Event]:
        path = re.findall(r"'path': '([^']+)'", code)
        if path:
            provider.files["fake1"][f"{path[0]}-0"] = b"x" * 2000
            return liar({"answer": {"x": {"file": f"{path[0]}-0", "size": 10}}})(code)
        return liar({"answer": None})(code)

    provider.script = script
    with pytest.raises(VariableTransferError, match="over the limit"):
        await apull(Session(provider), ["x"], limit=1000)


async def test_a_lost_sandbox_stays_a_lost_sandbox() -> None:
    provider = FakeProvider()
    session = Session(provider)
    await session.astart()
    provider.lose("fake1")
    with pytest.raises(SandboxLostError):
        await apull(session, ["x"])


async def test_a_value_that_takes_long_to_read_keeps_nobody_else_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    begun, go_on = threading.Event(), threading.Event()

    def slow(data: bytes) -> int:
        begun.set()
        go_on.wait(20)
        return 5

    monkeypatch.setattr(variables, "decode", slow)
    pulling = asyncio.ensure_future(apull(Session(FakeProvider(script=liar(inline(encode(5))))), ["x"]))
    await asyncio.to_thread(begun.wait, 20)
    other = Session(FakeProvider(script=lambda code: [Stdout("other")]))
    assert (await other.arun("x")).stdout == "other"
    assert not pulling.done()
    go_on.set()
    assert await pulling == {"x": 5}
