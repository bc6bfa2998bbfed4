"""The events of a streamed response with code, kind by kind, as OpenAI's API sends them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from servers.asking import asking
from servers.model_server import Code, Pause, Raw, Say, Scenario, Think

from ipy_sandbox.interpreter.calls import CallEnded, CodeDelta, LoopEnded, LoopEvent, RunOutput, RunStarted
from ipy_sandbox.models import Stdout

pytestmark = pytest.mark.anyio

Json = dict[str, Any]
REASONING = [
    "output_item.added",
    "reasoning_summary_part.added",
    "reasoning_summary_text.delta",
    "reasoning_summary_text.done",
    "reasoning_summary_part.done",
    "output_item.done",
]
CALL = [
    "output_item.added",
    "code_interpreter_call.in_progress",
    "code_interpreter_call_code.delta",
    "code_interpreter_call_code.done",
    "code_interpreter_call.interpreting",
    "code_interpreter_call.completed",
    "output_item.done",
]
MESSAGE = [
    "output_item.added",
    "content_part.added",
    "output_text.delta",
    "output_text.done",
    "content_part.done",
    "output_item.done",
]


def kinds(events: list[Json]) -> list[str]:
    """The kinds of events, repeated ones once."""
    names = [event["type"].removeprefix("response.") for event in events]
    return [name for name, before in zip(names, [None, *names], strict=False) if name != before]


async def test_reasoning_code_and_answer_come_in_openais_order() -> None:
    turns = [[Think("hm"), Code("a = 1")], [Think("so"), Code("a + 1")]]
    async with asking({"go": Scenario(turns)}) as kit:
        answer = await kit.ask("responses-stream", "go")
        order = ["created", "in_progress", *(REASONING + CALL) * 2, *MESSAGE, "completed"]
        assert kinds(answer.events) == order
        indexes = [event["output_index"] for event in answer.events if event["type"].endswith("item.added")]
        assert indexes == [0, 1, 2, 3, 4]


async def test_over_chat_the_order_is_the_same() -> None:
    reasoning = ["output_item.added", "content_part.added", "reasoning_text.delta", "reasoning_text.done"]
    reasoning += ["content_part.done", "output_item.done"]
    async with asking({"go": Scenario([[Think("hm"), Say("Let me."), Code("a = 1")]])}) as kit:
        answer = await kit.ask("bridged-stream", "go")
        assert kinds(answer.events) == ["created", "in_progress", *reasoning, *MESSAGE, *CALL, *MESSAGE, "completed"]


async def test_a_failed_call_has_no_completed_event() -> None:
    async with asking({"go": Scenario([[Code("lose")]])}) as kit:
        answer = await kit.ask("responses-stream", "go")
        assert "code_interpreter_call.completed" not in kinds(answer.events)
        assert "code_interpreter_call.interpreting" in kinds(answer.events)


Arrived = Callable[[list[Json]], bool]


@pytest.mark.parametrize(
    ("parts", "arrived"),
    [
        ([Say("I am")], lambda events: any(e.get("delta") == "I am" for e in events)),
        ([Raw('{"code": "print(')], lambda events: "".join(e.get("delta", "") for e in events) == "print("),
        ([Think("hm")], lambda events: any(e.get("delta") == "hm" for e in events)),
    ],
)
@pytest.mark.parametrize("way", ["responses-stream", "bridged-stream"])
async def test_what_the_model_writes_is_seen_while_it_still_writes(
    way: str, parts: list[Any], arrived: Arrived
) -> None:
    never = asyncio.Event()
    async with asking({"go": Scenario([[*parts, Pause(never)]])}) as kit:
        kit.model.piece = 100
        events: list[Json] = []
        async with asyncio.timeout(10):
            async for event in kit.interpreter.stream(kit.request(way, "go")):
                events += [event] if event else []
                if arrived(events):
                    break


async def test_in_chat_what_happens_is_told_beside_the_choices() -> None:
    async with asking({"go": Scenario([[Code("a = 1")]])}) as kit:
        kit.model.piece = 100
        answer = await kit.ask("chat-stream", "go")
        live = [chunk for chunk in answer.events if "ipy_sandbox" in chunk]
        assert all(chunk["choices"][0]["delta"] == {} for chunk in live)
        told = [chunk["ipy_sandbox"] for chunk in live]
        assert [event["event"] for event in told] == [
            "code_interpreter_call.in_progress",
            "code_interpreter_call_code.delta",
            "code_interpreter_call_code.done",
            "code_interpreter_call.interpreting",
            "code_interpreter_call.completed",
        ]
        assert {event["item_id"] for event in told} == {answer.calls[0]["id"]}
        assert answer.events[-1]["choices"] == []
        assert sum("executed_tools" in c["choices"][0]["delta"] for c in answer.events[:-1]) == 1


async def test_the_loops_own_events_have_the_output_of_running_code() -> None:
    async with asking({"go": Scenario([[Code("warn")]])}) as kit:
        events: list[LoopEvent | None] = [
            e async for e in kit.interpreter.events(kit.request("responses-stream", "go"))
        ]
        names = [type(event) for event in events if event is not None]
        wanted = [CodeDelta, RunStarted, RunOutput, CallEnded, LoopEnded]
        assert [name for name in dict.fromkeys(names) if name in wanted] == wanted
        assert Stdout("out\n") in [event.event for event in events if isinstance(event, RunOutput)]
        ended = events[-1]
        assert isinstance(ended, LoopEnded)
        assert ended.usage is not None
        assert ended.calls[0].result is not None
        assert ended.calls[0].result.stderr == "err\n"
