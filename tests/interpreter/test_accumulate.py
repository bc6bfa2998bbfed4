"""Streams of many servers, with everything they get wrong, give the turns they mean: tests/golden/llm."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ipy_sandbox.interpreter.accumulate import accumulator
from ipy_sandbox.interpreter.sse import SSEDecoder
from ipy_sandbox.interpreter.turn import ArgumentsDelta, CallStarted, Delta, ReasoningDelta, TextDelta, Turn

GOLDEN = Path(__file__).parents[1] / "golden" / "llm"
MANIFEST = json.loads((GOLDEN / "manifest.json").read_text())
CASES = {case["name"]: case for case in MANIFEST["cases"]}


def read(api: str, pieces: list[bytes]) -> tuple[Turn, list[Delta]]:
    """The turn and the deltas of a body that arrives in `pieces`."""
    decoder, folded = SSEDecoder(), accumulator(api)
    events = [event for piece in pieces for event in decoder.feed(piece)] + decoder.flush()
    deltas = [delta for event in events for delta in folded.feed(event)]
    return folded.finish(), deltas


def body_of(case: dict[str, Any]) -> bytes:
    return (GOLDEN / case["file"]).read_bytes()


def cut(body: bytes, places: list[int]) -> list[bytes]:
    bounds = sorted({0, len(body), *(p % len(body) for p in places)})
    return [body[a:b] for a, b in itertools.pairwise(bounds)]


def check(case: dict[str, Any], turn: Turn, deltas: list[Delta]) -> None:
    expected = case["expected"]
    aliases = MANIFEST["interpreter_aliases"]
    assert len(turn.tool_calls) == len(expected["tool_calls"])
    for call, wanted in zip(turn.tool_calls, expected["tool_calls"], strict=True):
        assert (call.name, call.arguments) == (wanted["name"], wanted["arguments"])
        assert call.code(bare=call.name in aliases) == wanted["code"]
        assert call.id == wanted["id"] or (wanted["id"] == "<new>" and call.id)
        assert call.extra == wanted.get("extra", {})
    assert len({call.id for call in turn.tool_calls}) == len(turn.tool_calls)
    assert (turn.text or None) == (expected.get("content") if case["api"] == "chat" else expected["text"] or None)
    check_end(case, turn)
    check_deltas(turn, deltas)


def check_end(case: dict[str, Any], turn: Turn) -> None:
    expected = case["expected"]
    assert turn.complete == expected["complete"]
    if (wanted := expected["usage"]) is None:
        assert turn.usage is None
    else:
        assert turn.usage is not None
        assert {name: turn.usage[name] for name in wanted} == wanted
    if (error := expected["error"]) is None:
        assert turn.error is None
    else:
        assert {name: getattr(turn.error, name) for name in error} == error
    if case["api"] == "responses":
        assert turn.status == expected["status"]
        assert turn.output == expected.get("replay", turn.output)
        return
    assert (turn.reasoning or None) == expected["reasoning"]
    assert turn.finish_reason == expected["finish_reason"]
    assert turn.raw_finish_reason == expected.get("raw_finish_reason", turn.raw_finish_reason)
    assert {name: turn.message.get(name) for name in expected.get("replay", {})} == expected.get("replay", {})


def check_deltas(turn: Turn, deltas: list[Delta]) -> None:
    """The deltas alone tell the same as the turn."""
    assert "".join(d.text for d in deltas if isinstance(d, TextDelta)) == turn.text
    assert "".join(d.text for d in deltas if isinstance(d, ReasoningDelta)) == turn.reasoning
    starts = [d for d in deltas if isinstance(d, CallStarted)]
    assert [(d.slot, d.id, d.name) for d in starts] == [(c.slot, c.id, c.name) for c in turn.tool_calls]
    for call in turn.tool_calls:
        pieces = [d.text for d in deltas if isinstance(d, ArgumentsDelta) and d.slot == call.slot]
        assert "".join(pieces) == call.arguments
    slots = list(dict.fromkeys(d.slot for d in deltas if d.slot is not None))
    assert slots == list(range(len(slots)))


@pytest.mark.parametrize("name", CASES)
def test_a_stream_read_whole_or_byte_by_byte(name: str) -> None:
    case, body = CASES[name], body_of(CASES[name])
    check(case, *read(case["api"], [body]))
    check(case, *read(case["api"], [body[i : i + 1] for i in range(len(body))]))


@given(st.sampled_from(sorted(CASES)), st.lists(st.integers(0, 4000), max_size=12))
def test_a_stream_cut_anywhere(name: str, places: list[int]) -> None:
    case = CASES[name]
    check(case, *read(case["api"], cut(body_of(case), places)))
