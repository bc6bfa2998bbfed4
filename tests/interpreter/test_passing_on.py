"""What the loop does not know it passes on: other items and their events, annotations, refusals, unknown fields."""

from __future__ import annotations

import contextlib
import dataclasses
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
from servers.asking import PNG, TOOL, Scripted, asking, read_chunks, read_events
from servers.http_server import Answer, HTTPServer
from servers.http_server import Request as HTTPRequest
from servers.model_server import Code, Scenario

from ipy_sandbox.errors import FileTransferError, OutputTruncatedError
from ipy_sandbox.interpreter.catalog import CUSTOM, PROVIDERS, Provider, Route
from ipy_sandbox.interpreter.interpreter import Interpreter, Request
from ipy_sandbox.interpreter.upstream import Upstream
from ipy_sandbox.sandbox.session import Session

pytestmark = pytest.mark.anyio

Json = dict[str, Any]


@contextlib.asynccontextmanager
async def playing(
    *answers: list[Json], provider: Provider = CUSTOM
) -> AsyncIterator[tuple[Interpreter, Route, list[Json]]]:
    """A model server that sends these events, answer after answer, and records the requests."""
    bodies: list[Json] = []

    async def handle(request: HTTPRequest, answer: Answer) -> None:
        await answer.start(200, {"Content-Type": "text/event-stream"})
        for event in answers[len(bodies)]:
            await answer.chunk(b"data: %b\n\n" % json.dumps(event).encode())
        bodies.append(request.json())
        await answer.end()

    sandboxes = Scripted()
    async with (
        HTTPServer(handle) as server,
        contextlib.aclosing(Upstream()) as upstream,
        Interpreter(lambda: Session(sandboxes), upstream=upstream) as interpreter,
    ):
        yield interpreter, Route(provider, "m", f"{server.url}/v1", "k"), bodies


def ask(surface: Any, route: Route) -> Request:
    body: Json = {"model": "m", "stream": True, "tools": [TOOL], "include": ["code_interpreter_call.outputs"]}
    said = {"input": "go"} if surface == "responses" else {"messages": [{"role": "user", "content": "go"}]}
    return Request(surface, {**body, **said}, route)


def completed(*output: Json) -> Json:
    return {"type": "response.completed", "response": {"status": "completed", "output": list(output)}}


async def test_other_items_pass_with_their_events_renumbered() -> None:
    search = {
        "id": "ws_1",
        "type": "web_search_call",
        "status": "completed",
        "action": {"type": "search", "query": "q"},
    }
    cited = {"type": "url_citation", "url": "https://a.example", "start_index": 0, "end_index": 2, "title": "A"}
    text = {"type": "output_text", "text": "Hi", "annotations": [cited], "logprobs": []}
    message = {"id": "msg_1", "type": "message", "role": "assistant", "status": "completed", "content": [text]}
    item: Json = {"item_id": "ws_1", "output_index": 7}
    said: Json = {"item_id": "msg_1", "output_index": 8, "content_index": 0}
    turn = [
        {"type": "response.output_item.added", "output_index": 7, "item": {**search, "status": "in_progress"}},
        {"type": "response.web_search_call.searching", **item},
        {"type": "response.web_search_call.completed", **item},
        {"type": "response.output_item.done", "output_index": 7, "item": search},
        {"type": "response.output_item.added", "output_index": 8, "item": {**message, "content": []}},
        {"type": "response.output_text.delta", **said, "delta": "Hi"},
        {"type": "response.output_text.annotation.added", **said, "annotation_index": 0, "annotation": cited},
        {"type": "response.output_item.done", "output_index": 8, "item": message},
        completed(search, message),
    ]
    async with playing(turn) as (interpreter, route, _):
        events = [event async for event in interpreter.stream(ask("responses", route)) if event]
    answer = read_events(events)
    assert answer.raw["output"] == [search, message]
    searching = next(event for event in events if event["type"] == "response.web_search_call.searching")
    assert (searching["output_index"], searching["item_id"]) == (0, "ws_1")
    assert [event["annotation"] for event in events if "annotation" in event] == [cited]


async def test_a_refusal_is_a_refusal_on_both_surfaces() -> None:
    part = {"type": "refusal", "refusal": "I will not."}
    message = {"id": "msg_1", "type": "message", "role": "assistant", "status": "completed", "content": [part]}
    turn = [
        {"type": "response.output_item.added", "output_index": 0, "item": {**message, "content": []}},
        {
            "type": "response.refusal.delta",
            "item_id": "msg_1",
            "output_index": 0,
            "content_index": 0,
            "delta": "I will not.",
        },
        {"type": "response.output_item.done", "output_index": 0, "item": message},
        completed(message),
    ]
    async with playing(turn) as (interpreter, route, _):
        events = [event async for event in interpreter.stream(ask("responses", route)) if event]
    assert events[-1]["response"]["output"][0]["content"] == [part]
    assert "response.refusal.done" in [event["type"] for event in events]
    delta = {"choices": [{"index": 0, "delta": {"refusal": "I will not."}, "finish_reason": "stop"}]}
    async with playing([delta]) as (interpreter, route, _):
        answer = read_chunks([chunk async for chunk in interpreter.stream(ask("chat", route)) if chunk])
    assert answer.raw["choices"][0]["message"]["refusal"] == "I will not."


async def test_a_clients_call_keeps_what_its_provider_put_beside_it() -> None:
    extra = {"google": {"thought_signature": "c2ln"}}
    call = {"index": 0, "id": "c1", "type": "function", "function": {"name": "get_weather", "arguments": "{}"}}
    delta = {"tool_calls": [{**call, "extra_content": extra}]}
    turn = [{"choices": [{"index": 0, "delta": delta, "finish_reason": "tool_calls"}]}]
    async with playing(turn) as (interpreter, route, _):
        chunks = [chunk async for chunk in interpreter.stream(ask("chat", route)) if chunk]
    calls = [c for chunk in chunks for choice in chunk["choices"] for c in choice["delta"].get("tool_calls", [])]
    assert {c["index"] for c in calls} == {0}
    assert [c["extra_content"] for c in calls if "extra_content" in c] == [extra]
    chat_only = dataclasses.replace(CUSTOM, responses="none")
    async with playing(turn, provider=chat_only) as (interpreter, route, _):
        answer = read_events([event async for event in interpreter.stream(ask("responses", route)) if event])
    assert answer.raw["output"][0]["extra_content"] == extra


async def test_text_that_only_the_last_event_has_is_not_lost() -> None:
    part = {"type": "output_text", "text": "all at once", "annotations": []}
    message = {"id": "msg_1", "type": "message", "role": "assistant", "status": "completed", "content": [part]}
    async with playing([completed(message)]) as (interpreter, route, _):
        answer = read_events([event async for event in interpreter.stream(ask("responses", route)) if event])
    assert answer.text == "all at once"


async def test_openai_gets_pictures_inside_the_functions_output() -> None:
    arguments = json.dumps({"code": "plot"})
    call = {
        "id": "fc_1",
        "type": "function_call",
        "call_id": "c1",
        "name": "litellm_code_execution",
        "arguments": arguments,
    }
    text = {"type": "output_text", "text": "seen", "annotations": []}
    message = {"id": "msg_1", "type": "message", "role": "assistant", "status": "completed", "content": [text]}
    turns = [
        [{"type": "response.output_item.done", "output_index": 0, "item": item}, completed(item)]
        for item in (call, message)
    ]
    async with playing(*turns, provider=PROVIDERS["openai"]) as (interpreter, route, bodies):
        request = ask("responses", route)
        request.body["store"] = False
        answer = read_events([event async for event in interpreter.stream(request) if event])
    assert answer.text == "seen"
    output = bodies[1]["input"][-1]["output"]
    assert output[0] == {"type": "input_text", "text": "plotted"}
    assert output[1]["image_url"] == f"data:image/png;base64,{PNG}"
    assert bodies[0]["include"] == ["reasoning.encrypted_content"]


@pytest.mark.parametrize("way", ["responses", "chat-stream"])
async def test_an_output_that_was_cut_is_said_to_be(way: str) -> None:
    async with asking({"go": Scenario([[Code("a")]])}) as kit:
        kit.provider.script = lambda code: [OutputTruncatedError("The answer of the sandbox was cut.")]
        answer = await kit.ask(way, "go")
        assert answer.statuses == ["failed"]
        assert answer.seen() == ["[the output was cut off; the code may have run to its end]"]


async def test_files_that_cannot_be_listed_are_not_cited(monkeypatch: pytest.MonkeyPatch) -> None:
    async with asking({"go": Scenario([[Code("write")]], final="[x](sandbox:/mnt/data/out.csv)")}) as kit:

        async def fail(*args: object) -> Any:
            raise FileTransferError("no such directory")

        monkeypatch.setattr(kit.provider, "list_files", fail)
        answer = await kit.ask("responses", "go", metadata={"session_id": "s"})
        assert answer.raw["output"][-1]["content"][0]["annotations"] == []


async def test_endpoints_that_number_their_items_anew_in_each_turn_do_not_confuse_clients() -> None:
    def turn(*items: Json) -> list[Json]:
        done = [{"type": "response.output_item.done", "output_index": i, "item": item} for i, item in enumerate(items)]
        return [*done, completed(*items)]

    def say(text: str) -> Json:
        part = {"type": "output_text", "text": text, "annotations": []}
        return {"id": "msg_0", "type": "message", "role": "assistant", "status": "completed", "content": [part]}

    arguments = json.dumps({"code": "a"})
    call = {
        "id": "fc_0",
        "type": "function_call",
        "call_id": "c0",
        "name": "litellm_code_execution",
        "arguments": arguments,
    }
    thought = {"id": "rs_0", "type": "reasoning", "summary": []}
    turns = [turn(thought, say("one"), call), turn(thought, say("two"), call), turn(say("three"))]
    async with playing(*turns) as (interpreter, route, _):
        answer = read_events([event async for event in interpreter.stream(ask("responses", route)) if event])
    ids = [item["id"] for item in answer.raw["output"]]
    assert len(set(ids)) == len(ids) == 7
    assert answer.text == "three"
