"""Variables to and from real local sandboxes, and from ones that lie."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import AsyncIterator, Callable, Iterable
from typing import Any

import numpy as np
import pandas as pd
import pytest

from ipy_sandbox.errors import ProviderError, SandboxLostError, VariableTransferError
from ipy_sandbox.models import Event, ExecutionError, Stdout
from ipy_sandbox.sandbox.fake import FakeProvider
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
