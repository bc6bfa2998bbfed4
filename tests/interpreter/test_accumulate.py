"""Streams of many servers, with everything they get wrong, give the turns they mean: tests/golden/llm."""

from __future__ import annotations

import copy
import itertools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ipy_sandbox.interpreter.accumulate import accumulator
from ipy_sandbox.interpreter.sse import DONE, ServerEvent, SSEDecoder, encode
from ipy_sandbox.interpreter.turn import (
    ArgumentsDelta,
    CallStarted,
    Delta,
    ReasoningDelta,
    RefusalDelta,
    TextDelta,
    Turn,
)

GOLDEN = Path(__file__).parents[1] / "golden" / "llm"
MANIFEST = json.loads((GOLDEN / "manifest.json").read_text())
CASES = {case["name"]: case for case in MANIFEST["cases"]}


def events_of(pieces: list[bytes]) -> list[ServerEvent]:
    decoder = SSEDecoder()
    return [event for piece in pieces for event in decoder.feed(piece)] + decoder.flush()


def read(api: str, pieces: list[bytes]) -> tuple[Turn, list[Delta]]:
    """The turn and the deltas of a body that arrives in `pieces`."""
    folded = accumulator(api)
    deltas = [delta for event in events_of(pieces) for delta in folded.feed(event)]
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


def chat(*deltas: dict[str, Any], finish: str | None = "stop", done: bool = True) -> tuple[Turn, list[Delta]]:
    chunks = [{"choices": [{"index": 0, "delta": delta, "finish_reason": None}]} for delta in deltas]
    if finish:
        chunks.append({"choices": [{"index": 0, "delta": {}, "finish_reason": finish}]})
    return read("chat", [encode(chunk) for chunk in chunks] + [DONE] * done)


def call(arguments: Any = None, **fields: Any) -> dict[str, Any]:
    """A delta with one fragment of one call."""
    name = fields.pop("name", None)
    return {"tool_calls": [{**fields, "function": {"name": name, "arguments": arguments}}]}


@pytest.mark.parametrize(
    ("deltas", "arguments"),
    [
        # Interleaved, told apart by index or by id alone.
        (
            [call("", index=0, id="a", name="f"), call("", index=1, id="b", name="f"), call('{"x', index=0),
             call('{"y', index=1), call('":1}', index=0), call('":2}', index=1)],
            ['{"x":1}', '{"y":2}'],
        ),
        (
            [call("", id="a", name="f"), call("", id="b", name="f"), call('{"x":1}', id="a"), call('{"y":2}', id="b")],
            ['{"x":1}', '{"y":2}'],
        ),
        # The id changes with every fragment, or comes late.
        ([call('{"x', index=0, id="a", name="f"), call('":1}', index=0, id="b", name="f")], ['{"x":1}']),
        ([call('{"x', index=0, name="f"), call('":1}', index=0, id="b")], ['{"x":1}']),
        # No id and no index: a name after complete arguments begins a call.
        ([call('{"x":1}', name="f"), call('{"y":2}', name="f")], ['{"x":1}', '{"y":2}']),
        # The name comes after the first arguments.
        ([call('{"x', index=0, id="a"), call('":1}', index=0, name="f")], ['{"x":1}']),
        # Garbage after the arguments, a repetition in fragments, three objects in one.
        ([call('{"x":"}"}</tool_call>', index=0, id="a", name="f")], ['{"x":"}"}']),
        ([call('{"x":1}', index=0, id="a", name="f"), call('{"x"', index=0), call(": 1}", index=0)], ['{"x":1}']),
        ([call('{"x":1}{"y":2}\n{"z":3}', index=0, id="a", name="f")], ['{"x":1}', '{"y":2}', '{"z":3}']),
        # Objects and nothing.
        ([call({"x": "é"}, index=0, id="a", name="f")], ['{"x": "é"}']),
        ([call(None, index=0, id="a", name="f")], [""]),
    ],
)  # fmt: skip
def test_fragments_find_their_call(deltas: list[dict[str, Any]], arguments: list[str]) -> None:
    turn, seen = chat(*deltas)
    assert [c.arguments for c in turn.tool_calls] == arguments
    assert {c.name for c in turn.tool_calls} == {"f"}
    assert turn.finish_reason == "tool_calls"
    check_deltas(turn, seen)
    assert [c["id"] for c in turn.message["tool_calls"]] == [c.id for c in turn.tool_calls]


@pytest.mark.parametrize(
    ("raw", "has_call", "finish"),
    [
        ("stop", False, "stop"), ("eos", False, "stop"), ("tool_calls", False, "stop"), ("STOP", True, "tool_calls"),
        ("length", True, "length"), ("MAX_TOKENS", False, "length"), ("content_filter", True, "content_filter"),
    ],
)  # fmt: skip
def test_finish_reasons(raw: str, has_call: bool, finish: str) -> None:
    turn, _ = chat(*[call("{}", index=0, id="a", name="f")] * has_call, finish=raw)
    assert (turn.finish_reason, turn.raw_finish_reason, turn.complete) == (finish, raw, True)


def test_a_stream_that_just_stops_is_not_complete() -> None:
    turn, _ = chat({"content": "The ans"}, call('print("half', index=0, id="a", name="python"), finish=None, done=False)
    assert (turn.complete, turn.finish_reason, turn.text) == (False, "error", "The ans")
    assert turn.tool_calls[0].code(bare=True) is None


def test_a_finished_call_may_run_although_the_turn_was_cut_in_the_next_one() -> None:
    turn, _ = chat(
        call('{"code": "1"}', index=0, id="a", name="f"),
        call('{"code": "2', index=1, id="b", name="f"),
        finish="length",
    )
    assert [c.code() for c in turn.tool_calls] == ["1", None]


def test_the_message_to_send_back_has_what_was_sent_and_nothing_else() -> None:
    details = [{"type": "reasoning.text", "text": "Hm", "index": 0}]
    turn, _ = chat(
        {"role": "assistant", "content": "", "reasoning": "H", "refusal": None, "index": 0, "x_vendor": {"a": 1}},
        {"content": "Hi", "reasoning": "m", "reasoning_details": details, "annotations": [], "x_vendor": {"b": 2}},
        call('{"code": "1"', index=0, id="a", name="f", type="function"),
        call(None, index=0, extra_content={"google": {"thought_signature": "s"}}),
    )
    assert turn.message == {
        "role": "assistant", "content": "Hi", "reasoning": "Hm", "reasoning_details": details,
        "x_vendor": {"a": 1, "b": 2},
        "tool_calls": [{"id": "a", "type": "function", "function": {"name": "f", "arguments": "{}"},
                        "extra_content": {"google": {"thought_signature": "s"}}}],
    }  # fmt: skip


def test_reasoning_under_two_names_is_told_once_and_sent_back_under_both() -> None:
    turn, deltas = chat({"reasoning": "Hm", "reasoning_content": "Hm"}, {"reasoning_content": "!", "reasoning": "!"})
    assert turn.reasoning == "Hm!"
    assert (turn.message["reasoning"], turn.message["reasoning_content"]) == ("Hm!", "Hm!")
    check_deltas(turn, deltas)


def test_reasoning_that_is_repeated_in_chunks_of_its_own() -> None:
    details = [{"type": "reasoning.text", "text": "Hm", "index": 0}]
    turn, _ = chat({"reasoning": "H"}, {"reasoning": "m"}, {"reasoning_details": details})
    assert (turn.reasoning, turn.message["reasoning_details"]) == ("Hm", details)


def test_reasoning_that_has_only_details() -> None:
    turn, _ = chat({"reasoning_details": [{"type": "reasoning.summary", "summary": "Hm", "index": 0}]})
    assert turn.reasoning == "Hm"


def test_mistrals_thinking_goes_back_in_one_part() -> None:
    def thinking(text: str) -> dict[str, Any]:
        return {"type": "thinking", "thinking": [{"type": "text", "text": text}]}

    turn, _ = chat({"content": [thinking("H")]}, {"content": [thinking("m")]}, {"content": "4"}, {"content": "2"})
    assert (turn.reasoning, turn.text) == ("Hm", "42")
    parts = [{"type": "text", "text": text} for text in ("H", "m")]
    assert turn.message["content"] == [{"type": "thinking", "thinking": parts}, {"type": "text", "text": "42"}]


def test_a_character_cut_between_two_deltas_is_whole() -> None:
    turn, deltas = chat({"content": "a\ud83d"}, {"content": "\ude00b"}, call("\ud83d", name="f"), call("\ude00"))
    assert (turn.text, turn.tool_calls[0].arguments) == ("a😀b", "😀")
    check_deltas(turn, deltas)


def test_logprobs_and_refusal() -> None:
    entry = {"token": "no", "logprob": -1}
    choice = {"index": 0, "delta": {"refusal": "no"}, "logprobs": {"content": None, "refusal": [entry]}}
    turn, deltas = read("chat", [encode({"choices": [choice, {"index": 1, "delta": {"content": "other"}}]}), DONE])
    assert (turn.refusal, turn.logprobs, turn.text) == ("no", {"content": [], "refusal": [entry]}, "")
    assert deltas == [RefusalDelta(0, "no")]


def test_usage_of_groq_and_moonshot() -> None:
    assert read("chat", [encode({"x_groq": {"usage": {"total_tokens": 3}}})])[0].usage == {"total_tokens": 3}
    choice = {"index": 0, "delta": {}, "finish_reason": "stop", "usage": {"total_tokens": 4}}
    assert read("chat", [encode({"choices": [choice]})])[0].usage == {"total_tokens": 4}


def test_azures_empty_first_chunk_hides_no_envelope() -> None:
    turn, _ = read("chat", [body_of(CASES["20_azure_prompt_filter_first"])])
    assert (turn.envelope["id"], turn.envelope["model"], turn.envelope["created"]) == ("chatcmpl-t1", "m-1", 1800000000)
    assert "prompt_filter_results" in turn.envelope


def test_a_turn_read_twice_is_the_same() -> None:
    folded = accumulator("chat")
    folded.feed_body({"choices": [{"message": {"tool_calls": [{"function": {"arguments": "{}"}}]}}]})
    assert folded.finish() == folded.finish()


# Responses.


def responses(*events: dict[str, Any]) -> tuple[Turn, list[Delta]]:
    return read("responses", [encode(event, event["type"]) for event in events])


MESSAGE = {"id": "m", "type": "message", "role": "assistant", "phase": "final_answer"}
PARTS = {"content": [{"type": "output_text", "text": "Hi", "annotations": []}]}
CALL = {"id": "fc", "type": "function_call", "call_id": "c", "name": "f", "arguments": '{"code": "1"}'}


def test_every_event_of_an_item_gives_one_delta_that_has_it() -> None:
    events = [
        {"type": "response.output_item.added", "output_index": 0, "item": MESSAGE},
        {"type": "response.content_part.added", "output_index": 0, "item_id": "m", "part": {}},
        {"type": "response.output_text.delta", "output_index": 0, "item_id": "m", "delta": "Hi", "logprobs": [1]},
        {"type": "response.output_text.annotation.added", "output_index": 0, "item_id": "m", "annotation": {}},
        {"type": "response.output_text.done", "output_index": 0, "item_id": "m", "text": "Hi"},
        {"type": "response.output_item.done", "output_index": 0, "item": MESSAGE | PARTS},
        {"type": "response.output_item.added", "output_index": 1, "item": {"id": "w", "type": "web_search_call"}},
        {"type": "response.web_search_call.searching", "output_index": 1, "item_id": "w"},
        {"type": "response.output_item.done", "output_index": 1, "item": {"id": "w", "type": "web_search_call"}},
        {"type": "response.output_item.added", "output_index": 2, "item": CALL | {"arguments": ""}},
        {"type": "response.function_call_arguments.delta", "output_index": 2, "delta": CALL["arguments"]},
        {"type": "response.output_item.done", "output_index": 2, "item": CALL},
    ]
    final = {"type": "response.completed", "response": {"status": "completed", "id": "r", "x": 1}}
    turn, deltas = responses(
        {"type": "response.created", "response": {"id": "r"}}, {"type": "keepalive"}, *events, final
    )
    assert [delta.event for delta in deltas] == events
    assert [delta.slot for delta in deltas] == [0] * 6 + [1] * 3 + [2] * 3
    assert TextDelta(0, "Hi", [1], events[2]) in deltas
    assert turn.output == [MESSAGE | PARTS, {"id": "w", "type": "web_search_call"}, CALL]
    assert (turn.text, turn.envelope, turn.finish_reason) == (
        "Hi",
        {"status": "completed", "id": "r", "x": 1},
        "tool_calls",
    )


@pytest.mark.parametrize("streamed", [True, False])
def test_a_whole_response_gives_all_deltas(streamed: bool) -> None:
    thought = {"id": "rs", "type": "reasoning", "summary": [{"type": "summary_text", "text": "Hm"}]}
    refusal = {"id": "m2", "type": "message", "content": [{"type": "refusal", "refusal": "no"}]}
    output = [thought, MESSAGE | PARTS, CALL, CALL | {"arguments": {"code": "2"}}, refusal]
    body = {"id": "r", "object": "response", "status": "completed", "output": output, "usage": {"total_tokens": 1}}
    folded = accumulator("responses")
    deltas = folded.feed(ServerEvent(json.dumps(body))) if streamed else folded.feed_body(body)
    turn = folded.finish()
    assert (turn.text, turn.reasoning, turn.refusal, turn.usage) == ("Hi", "Hm", "no", {"total_tokens": 1})
    assert [c.code() for c in turn.tool_calls] == ["1", "2"]
    assert [c.id == "c" for c in turn.tool_calls] == [True, False]
    assert turn.output[3]["call_id"] == turn.tool_calls[1].id
    assert turn.complete
    check_deltas(turn, deltas)


def test_reasoning_and_refusals_stream() -> None:
    thought, message = {"id": "rs", "type": "reasoning", "summary": []}, {"id": "m", "type": "message", "content": []}
    events = [
        {"type": "response.output_item.added", "output_index": 0, "item": thought},
        {"type": "response.reasoning_summary_part.added", "output_index": 0, "item_id": "rs", "part": {}},
        {"type": "response.reasoning_summary_text.delta", "output_index": 0, "item_id": "rs", "delta": "H"},
        {"type": "response.reasoning_text.delta", "output_index": 0, "item_id": "rs", "delta": "m"},
        {"type": "response.output_item.added", "output_index": 1, "item": message},
        {"type": "response.refusal.delta", "output_index": 1, "item_id": "m", "delta": "n"},
        {"type": "response.refusal.delta", "output_index": 1, "item_id": "m", "delta": "o"},
        {"type": "response.content_part.delta", "output_index": 1, "item_id": "m", "delta": "unknown"},
    ]
    turn, deltas = responses(*events, {"type": "response.completed", "response": {"status": "completed"}})
    assert (turn.reasoning, turn.refusal, turn.text) == ("Hm", "no", "")
    assert [delta.event for delta in deltas] == events
    assert [type(d).__name__ for d in deltas if hasattr(d, "text")] == ["ReasoningDelta"] * 2 + ["RefusalDelta"] * 2
    check_deltas(turn, deltas)


@pytest.mark.parametrize("body", [{"error": {"message": "m"}}, [{"error": {"message": "m"}}]])
def test_a_body_that_is_an_error(body: Any) -> None:
    for api in ("chat", "responses"):
        folded = accumulator(api)
        assert folded.feed_body(body) == []
        turn = folded.finish()
        assert (turn.complete, turn.finish_reason, turn.status) == (False, "error", "failed")
        assert turn.error is not None
        assert turn.error.message == "m"


def parallel_calls() -> list[dict[str, Any]]:
    """Two calls whose events alternate, with every key that tells them apart."""
    events: list[dict[str, Any]] = []
    for kind, fields in [
        ("output_item.added", {"arguments": "", "status": "in_progress"}),
        ("function_call_arguments.delta", {"delta": '{"code": '}),
        ("function_call_arguments.delta", {"delta": '"%d"}'}),
        ("output_item.done", {"arguments": '{"code": "%d"}', "status": "completed"}),
    ]:
        for n in (0, 1):
            filled = {name: value.replace("%d", str(n)) for name, value in fields.items()}
            ids = {"id": f"fc_{n}", "type": "function_call", "call_id": f"call_{n}", "name": "f"}
            inner = {"item": ids | filled} if "item" in kind else {"item_id": f"fc_{n}", **filled}
            events.append({"type": f"response.{kind}", "output_index": n, **inner})
    return events


@pytest.mark.parametrize("known_by", ["index", "id", "call id"])
def test_parallel_calls_are_told_apart_by_any_one_key(known_by: str) -> None:
    events = parallel_calls()
    for number, event in enumerate(events):
        if known_by != "index":
            del event["output_index"]
        if known_by == "index" or (known_by == "call id" and "item" in event):
            event["item_id"] = f"rotates_{number}"
            if "item" in event:
                event["item"]["id"] = f"rotates_{number}"
        if known_by != "call id" and "item" in event:
            event["item"]["call_id"] = "" if event["type"].endswith("added") else f"late_{number}"
    if known_by == "call id":
        events = [event for event in events if "item" in event]
    turn, _ = responses(*events, {"type": "response.completed", "response": {"status": "completed"}})
    assert [c.code() for c in turn.tool_calls] == ["0", "1"]
    assert len(turn.output) == 2


def test_events_without_any_key_belong_to_the_open_item() -> None:
    events = parallel_calls()[::2] + parallel_calls()[1::2]
    for event in events:
        del event["output_index"]
        event["item_id"] = ""
        if "item" in event:
            event["item"]["id"] = event["item"]["call_id"] = ""
    turn, deltas = responses(*events, {"type": "response.completed", "response": {"status": "completed"}})
    assert [c.code() for c in turn.tool_calls] == ["0", "1"]
    check_deltas(turn, deltas)


def test_items_that_only_the_final_event_lists() -> None:
    announced = {"type": "response.output_item.done", "output_index": 0, "item": MESSAGE | PARTS}
    response = {"status": "completed", "output": [MESSAGE | PARTS, CALL]}
    turn, deltas = responses(announced, {"type": "response.completed", "response": response})
    assert ([c.code() for c in turn.tool_calls], turn.text) == (["1"], "Hi")
    assert turn.output == [MESSAGE | PARTS, CALL]
    check_deltas(turn, deltas)


def test_deltas_of_an_item_that_was_never_announced() -> None:
    turn, deltas = responses(
        {"type": "response.output_text.delta", "delta": "Hi"},
        {"type": "response.completed", "response": {"status": "completed"}},
    )
    assert turn.text == "Hi"
    check_deltas(turn, deltas)


@pytest.mark.parametrize(
    ("reason", "finish"), [("max_output_tokens", "length"), ("content_filter", "content_filter"), (None, "length")]
)
def test_incomplete_responses(reason: str | None, finish: str) -> None:
    details = {"status": "incomplete", "incomplete_details": {"reason": reason}}
    turn, _ = responses({"type": "response.incomplete", "response": details})
    assert (turn.finish_reason, turn.status, turn.complete) == (finish, "incomplete", True)


@pytest.mark.parametrize("name", ["llamacpp_chat_tool_call", "llamacpp_responses_tool_call"])
def test_a_recorded_call_of_llamacpp(name: str) -> None:
    body = (GOLDEN / "recorded" / f"{name}.sse").read_bytes()
    turn, deltas = read(name.split("_")[1], [body])
    assert turn.complete
    assert turn.tool_calls[0].code() == "total = 0\nfor i in range(1, 1001):\n    total += i\nprint(total)"
    check_deltas(turn, deltas)
    assert turn.usage is not None
    assert turn.usage["total_tokens"] == 289


@pytest.mark.parametrize("name", ["llamacpp_chat_text", "llamacpp_responses_text"])
def test_a_recorded_text_of_llamacpp(name: str) -> None:
    turn, deltas = read(name.split("_")[1], [(GOLDEN / "recorded" / f"{name}.sse").read_bytes()])
    assert (turn.complete, turn.text) == (True, "Hello! How can I assist you today?")
    check_deltas(turn, deltas)


# Anything.

SCRAPS: list[Any] = [None, "", "x", "{", 0, 1.5, True, [], ["x"], [None], [[1]], {}, {"a": 1}, {"a": ["x"]}]


def places_in(value: Any) -> list[tuple[Any, Any]]:
    """Every container in `value`, with each of its keys."""
    inner = list(value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ())
    return [(value, key) for key, _ in inner] + [place for _, child in inner for place in places_in(child)]


def wrong_shapes(payload: Any) -> Iterator[Any]:
    """`payload` with each of its values, in turn, replaced by each scrap."""
    for position in range(len(places_in(payload))):
        for scrap in SCRAPS:
            changed = copy.deepcopy(payload)
            container, key = places_in(changed)[position]
            container[key] = scrap
            yield changed


@pytest.mark.parametrize("name", CASES)
def test_no_wrong_shape_breaks_an_accumulator(name: str) -> None:
    events = events_of([body_of(CASES[name])])
    for position, event in enumerate(events):
        for changed in wrong_shapes(event.payload):
            folded = accumulator(CASES[name]["api"])
            for other in [*events[:position], ServerEvent(json.dumps(changed), event.name), *events[position + 1 :]]:
                folded.feed(other)
            folded.finish()
