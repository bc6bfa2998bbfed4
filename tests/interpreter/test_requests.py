"""What a request may say: wrong values, echo, include, stored responses, requests that go on from others."""

from __future__ import annotations

import contextlib
import json
from typing import Any

import pytest
from servers.asking import TOOL, asking
from servers.model_server import Code, Fn, Say, Scenario

from ipy_sandbox.errors import InvalidRequestError, UpstreamError

pytestmark = pytest.mark.anyio

HELLO = {"hello": Scenario([[Code("a")]]), "plot": Scenario([[Code("plot")]])}
RESPONSES = pytest.mark.parametrize("way", ["responses", "responses-stream", "bridged", "bridged-stream"])


@pytest.mark.parametrize(
    ("param", "body"),
    [
        ("background", {"background": True}),
        ("conversation", {"conversation": "conv_1"}),
        ("n", {"n": 2}),
        ("max_tool_calls", {"max_tool_calls": "many"}),
        ("max_output_tokens", {"max_output_tokens": -1}),
        ("metadata", {"metadata": [1]}),
        ("include", {"include": 5}),
        ("include", {"include": [5]}),
        ("tools", {"tools": "code_interpreter"}),
        ("tools", {"tools": ["code_interpreter"]}),
        ("reasoning", {"reasoning": "high"}),
        ("text", {"text": []}),
        ("tools.container", {"tools": [{"type": "code_interpreter", "container": 5}]}),
        ("tools.container.file_ids", {"tools": [{**TOOL, "container": {"type": "auto", "file_ids": ["file-1"]}}]}),
        (
            "tools.container.network_policy",
            {"tools": [{**TOOL, "container": {"type": "auto", "network_policy": {"type": "disabled"}}}]},
        ),
        ("input", {"input": 7}),
        ("input", {"input": ["hello"]}),
        ("previous_response_id", {"previous_response_id": "resp_unknown"}),
        ("previous_response_id", {"previous_response_id": 7}),
    ],
)
@RESPONSES
async def test_a_wrong_request_names_the_parameter_and_is_not_sent(way: str, param: str, body: dict[str, Any]) -> None:
    async with asking(HELLO) as kit:
        with pytest.raises(InvalidRequestError) as caught:
            await kit.ask(way, "hello", **body)
        assert (caught.value.status, caught.value.param) == (400, param)
        assert not kit.model.bodies


@pytest.mark.parametrize("messages", [None, "hello", ["hello"]])
async def test_messages_must_be_messages(messages: Any) -> None:
    async with asking(HELLO) as kit:
        with pytest.raises(InvalidRequestError) as caught:
            await kit.ask("chat", "hello", messages=messages)
        assert caught.value.param == "messages"


@pytest.mark.parametrize("key", ["input", "tools", "tool_choice", "text", "messages"])
@pytest.mark.parametrize(
    "value", [[{}], [{"type": 5}], {"type": "x"}, [{"content": {"a": 1}}], [{"role": "user", "content": [7]}]]
)
async def test_nonsense_is_refused_and_breaks_nothing(key: str, value: Any) -> None:
    async with asking(HELLO) as kit:
        for way in ("responses", "bridged", "chat"):
            # What is the endpoint's to judge is sent to it, and it refuses.
            with contextlib.suppress(InvalidRequestError, UpstreamError):
                await kit.ask(way, "hello", **{key: value})
        assert not kit.provider.alive or await kit.clean()


@RESPONSES
async def test_the_client_reads_its_own_words_back(way: str) -> None:
    said = {
        "instructions": "Be brief.",
        "tool_choice": {"type": "code_interpreter"},
        "metadata": {"session_id": "s", "tag": "x"},
        "max_tool_calls": 5,
    }
    async with asking(HELLO) as kit:
        answer = await kit.ask(way, "hello", **said)
        assert {key: answer.raw[key] for key in said} == said
        assert answer.raw["tools"] == [TOOL]
        assert answer.raw["model"] == "scripted-1"
        assert "litellm_code_execution" not in json.dumps(answer.raw)
        sent = json.dumps(kit.model.bodies)
        assert "session_id" not in sent
        assert "code_interpreter_call" not in sent
        assert "Be brief." in sent


@RESPONSES
@pytest.mark.parametrize("included", [True, False])
async def test_outputs_are_null_unless_included(way: str, included: bool) -> None:
    include = ["code_interpreter_call.outputs"] if included else []
    async with asking(HELLO) as kit:
        request = kit.request(way, "hello", include=include)
        if way.endswith("stream"):
            events = [e async for e in kit.interpreter.stream(request) if e]
            items = [e["item"] for e in events if e.get("item", {}).get("type") == "code_interpreter_call"]
            response = events[-1]["response"]
            assert [item["outputs"] for item in items] == (
                [[], [{"type": "logs", "logs": "a\n"}]] if included else [None] * 2
            )
        else:
            response = await kit.interpreter.respond(request)
        expected = [{"type": "logs", "logs": "a\n"}] if included else None
        assert response["output"][0]["outputs"] == expected
        shown = await kit.interpreter.retrieve("", response["id"], ["code_interpreter_call.outputs"])
        assert shown["output"][0]["outputs"] == [{"type": "logs", "logs": "a\n"}]
        assert (await kit.interpreter.retrieve("", response["id"]))["output"][0]["outputs"] is None


async def test_outputs_can_always_be_shown() -> None:
    async with asking(HELLO, always_outputs=True) as kit:
        answer = await kit.ask("responses", "hello", include=[])
        assert answer.logs == ["a\n"]


@RESPONSES
async def test_a_stored_response_belongs_to_its_identity(way: str) -> None:
    async with asking(HELLO) as kit:
        answer = await kit.ask(way, "hello", identity="alice")
        response_id = answer.raw["id"]
        with pytest.raises(InvalidRequestError) as caught:
            await kit.ask(way, "hello", identity="bob", previous_response_id=response_id)
        assert (caught.value.code, caught.value.param) == ("previous_response_not_found", "previous_response_id")
        with pytest.raises(InvalidRequestError) as missing:
            await kit.interpreter.retrieve("bob", response_id)
        assert missing.value.status == 404
        assert (await kit.interpreter.stored("alice", response_id)).items == [{"role": "user", "content": "hello"}]
        assert await kit.interpreter.store.delete("alice", response_id)
        assert not await kit.interpreter.store.delete("alice", response_id)


@RESPONSES
async def test_what_shall_not_be_stored_is_not(way: str) -> None:
    async with asking(HELLO) as kit:
        answer = await kit.ask(way, "hello", store=False)
        assert answer.raw["store"] is False
        with pytest.raises(InvalidRequestError):
            await kit.interpreter.retrieve("", answer.raw["id"])


@RESPONSES
async def test_a_conversation_goes_on_in_the_endpoints_own_words(way: str) -> None:
    async with asking({"one": Scenario([[Say("Well."), Code("a")]]), "two": Scenario(final="two it is")}) as kit:
        first = await kit.ask(way, "one", instructions="Only now.")
        second = await kit.ask(way, "two", previous_response_id=first.raw["id"])
        third = await kit.ask(way, "two", previous_response_id=second.raw["id"])
        assert third.text == "two it is"
        key = "messages" if way.startswith("bridged") else "input"
        replayed = kit.model.bodies[-1][key]
        assert "Only now." not in json.dumps(kit.model.bodies[-1])
        assert replayed[: len(kit.model.bodies[-2][key])] == kit.model.bodies[-2][key]
        assert "Well." in json.dumps(replayed)
        assert '"call_0_' in json.dumps(replayed), "the call ids are the endpoint's own"


async def test_a_conversation_moves_to_another_endpoint() -> None:
    async with asking({"one": Scenario([[Code("a")]]), "two": Scenario(final="two it is")}) as kit:
        first = await kit.ask("responses", "one")
        second = await kit.ask("bridged", "two", previous_response_id=first.raw["id"])
        assert second.text == "two it is"
        roles = [message["role"] for message in kit.model.bodies[-1]["messages"]]
        assert roles == ["user", "assistant", "tool", "assistant", "user"]
        third = await kit.ask("responses", "two", previous_response_id=second.raw["id"])
        assert third.text == "two it is"


@RESPONSES
@pytest.mark.parametrize("by_id", [True, False])
async def test_the_client_returns_its_functions_output(way: str, by_id: bool) -> None:
    async with asking({"go": Scenario([[Code("a"), Fn("get_weather")]])}) as kit:
        first = await kit.ask(way, "go", functions=True)
        output = {"type": "function_call_output", "call_id": first.raw["output"][-1]["call_id"], "output": "sunny"}
        if by_id:
            again = await kit.ask(way, "x", functions=True, input=[output], previous_response_id=first.raw["id"])
        else:
            items = [{"role": "user", "content": "go"}, *first.raw["output"], output]
            again = await kit.ask(way, "x", functions=True, input=items)
        assert again.seen() == ["a", "sunny"]


@pytest.mark.parametrize("way", ["chat", "chat-stream"])
async def test_executed_tools_come_back_to_the_model(way: str) -> None:
    async with asking({"go": Scenario([[Code("a"), Fn("get_weather")]])}) as kit:
        first = await kit.ask(way, "go", functions=True)
        message = first.raw["choices"][0]["message"]
        back = {"role": "tool", "tool_call_id": message["tool_calls"][0]["id"], "content": "sunny"}
        asked = [{"role": "user", "content": "go"}, message, back]
        again = await kit.ask(way, "x", functions=True, messages=asked)
        assert again.seen() == ["a", "sunny"]


@pytest.mark.parametrize("way", ["chat", "chat-stream"])
async def test_the_transcript_can_be_sent_back_as_it_is(way: str) -> None:
    async with asking({"go": Scenario([[Code("a")], [Code("b")]]), "next": Scenario(final="ok")}) as kit:
        first = await kit.ask(way, "go")
        transcript = first.raw["messages"]
        assert [m["role"] for m in transcript] == ["assistant", "tool", "assistant", "tool", "assistant"]
        assert transcript[0]["tool_calls"][0]["function"]["name"] == "litellm_code_execution"
        assert [m["content"] for m in transcript if m["role"] == "tool"] == ["a", "b"]
        messages = [{"role": "user", "content": "go"}, *transcript, {"role": "user", "content": "next"}]
        assert (await kit.ask(way, "x", messages=messages)).text == "ok"


@RESPONSES
async def test_without_the_tool_an_earlier_response_is_still_known(way: str) -> None:
    async with asking({**HELLO, "next": Scenario(final="ok")}) as kit:
        first = await kit.ask(way, "hello")
        again = await kit.ask(way, "next", previous_response_id=first.raw["id"], tools=[])
        assert again.text == "ok"
        assert "tools" not in kit.model.bodies[-1] or kit.model.bodies[-1]["tools"] == []


async def test_an_endpoint_without_the_responses_api_is_asked_over_chat_from_then_on() -> None:
    async with asking(HELLO) as kit:
        kit.model.responses_status = 404
        for way in ("responses", "responses-stream"):
            answer = await kit.ask(way, "hello")
            assert (answer.codes, answer.seen()) == (["a"], ["a"])
        assert ["messages" in body for body in kit.model.bodies] == [False, True, True, True, True]


async def test_a_bridged_request_cannot_have_other_hosted_tools() -> None:
    async with asking(HELLO) as kit:
        with pytest.raises(InvalidRequestError, match="web_search"):
            await kit.ask("bridged", "hello", tools=[TOOL, {"type": "web_search"}])
