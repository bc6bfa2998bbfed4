"""The small parts around the loop: the bridge, the store, the relay."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from ipy_sandbox.errors import InvalidRequestError
from ipy_sandbox.interpreter import request as rq
from ipy_sandbox.interpreter.bridge import to_chat, to_messages
from ipy_sandbox.interpreter.catalog import CUSTOM, PROVIDERS
from ipy_sandbox.interpreter.past import expand_items, expand_messages, foreign
from ipy_sandbox.interpreter.relay import Send, relay
from ipy_sandbox.interpreter.store import MemoryStore, Stored

NAME = rq.TOOL_NAME


@pytest.mark.parametrize(
    ("choice", "later"),
    [
        (None, None),
        ("auto", "auto"),
        ("none", "none"),
        ("required", "auto"),
        ({"type": "function", "name": "f"}, "auto"),
        (
            {"type": "allowed_tools", "mode": "required", "tools": []},
            {"type": "allowed_tools", "mode": "auto", "tools": []},
        ),
        (
            {"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": []}},
            {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": []}},
        ),
    ],
)
def test_what_forces_a_call_is_for_the_first_turn(choice: Any, later: Any) -> None:
    assert rq.later_choice(choice) == later


def test_a_function_that_the_client_named_like_the_hosted_tool_is_its_own() -> None:
    choice = {"type": "function", "name": "code_interpreter"}
    assert rq.rewrite_choice(choice, NAME, "responses", {"code_interpreter"}) == choice
    assert rq.rewrite_choice(choice, NAME, "responses", set()) == {"type": "function", "name": NAME}


def test_only_one_function_stands_for_the_tool_wherever_it_was() -> None:
    tools = [{"type": "function", "name": "f"}, {"type": "code_interpreter"}, {"type": "code_interpreter"}]
    assert [tool["name"] for tool in rq.rewrite_tools(tools, NAME, "responses")] == ["f", NAME]


def test_what_concerns_only_us_is_not_sent() -> None:
    body = {
        "model": "m",
        "stream": True,
        "max_tool_calls": 3,
        "previous_response_id": "resp_1",
        "include": [rq.INCLUDE_OUTPUTS, "x"],
        "metadata": {"session_id": "s", "tag": "t"},
        "unknown": 1,
    }
    assert rq.strip(body) == {"model": "m", "include": ["x"], "metadata": {"tag": "t"}, "unknown": 1}
    assert rq.strip({"include": [rq.INCLUDE_OUTPUTS], "metadata": {"session_id": 1}}) == {}


def test_a_responses_request_becomes_a_chat_request() -> None:
    chat = to_chat(
        {
            "model": "m",
            "instructions": "Be brief.",
            "input": [{"role": "user", "content": [{"type": "input_text", "text": "hi"}]}],
            "tools": [{"type": "function", "name": "f", "parameters": {}, "strict": None}],
            "tool_choice": {"type": "function", "name": "f"},
            "max_output_tokens": 9,
            "reasoning": {"effort": "low"},
            "text": {"format": {"type": "json_schema", "name": "n", "schema": {}}},
            "store": True,
            "include": ["x"],
            "truncation": "auto",
            "top_k": 3,
        }
    )
    assert chat == {
        "model": "m",
        "messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "hi"}],
        "tools": [{"type": "function", "function": {"name": "f", "parameters": {}}}],
        "tool_choice": {"type": "function", "function": {"name": "f"}},
        "max_tokens": 9,
        "reasoning_effort": "low",
        "response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": {}}},
        "top_k": 3,
    }


def test_items_become_messages_and_calls_of_one_turn_one_message() -> None:
    call = {"type": "function_call", "call_id": "c1", "name": "f", "arguments": "{}", "extra_content": {"sig": "s"}}
    items = [
        {"role": "developer", "content": "rules"},
        {"type": "reasoning", "id": "rs_1", "summary": []},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "let me"}]},
        call,
        {**call, "call_id": "c2"},
        {"type": "function_call_output", "call_id": "c1", "output": "one"},
        {"type": "function_call_output", "call_id": "c2", "output": [{"type": "input_text", "text": "two"}]},
        {
            "role": "user",
            "content": [{"type": "input_text", "text": "see"}, {"type": "input_image", "image_url": "data:x"}],
        },
    ]
    messages = to_messages(None, items)
    assert [m["role"] for m in messages] == ["system", "assistant", "tool", "tool", "user"]
    assert messages[1]["content"] == "let me"
    assert [(c["id"], c["extra_content"]) for c in messages[1]["tool_calls"]] == [
        ("c1", {"sig": "s"}),
        ("c2", {"sig": "s"}),
    ]
    assert [m["content"] for m in messages[2:4]] == ["one", "two"]
    assert messages[4]["content"][1] == {"type": "image_url", "image_url": {"url": "data:x"}}


@pytest.mark.parametrize("item", [{"type": "web_search_call"}, {"role": "user", "content": [{"type": "input_file"}]}])
def test_what_chat_cannot_say_is_refused_by_name(item: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequestError, match=r"web_search_call|input_file"):
        to_messages(None, [item])


def test_past_calls_are_told_again_with_their_output() -> None:
    outputs = [{"type": "logs", "logs": "a\n"}, {"type": "image", "url": "data:image/png;base64,AAAA"}]
    item = {"type": "code_interpreter_call", "id": "ci_1", "code": "f()", "outputs": outputs}
    call, output = expand_items([item], NAME, CUSTOM)
    assert (call["name"], call["arguments"], call["call_id"]) == (NAME, '{"code": "f()"}', output["call_id"])
    assert output["output"] == "a\n[an image]"
    assert expand_items([{**item, "outputs": None}], NAME, CUSTOM)[1]["output"] == "[the output was not kept]"
    entry = {"type": "code_interpreter", "tool_call_id": "call_long_id", "arguments": '{"code": "g()"}', "output": "b"}
    message = {"role": "assistant", "content": "x", "executed_tools": [entry, {"type": "search"}]}
    asked, answered, said = expand_messages([message], NAME, PROVIDERS["mistral"])
    assert len(asked["tool_calls"][0]["id"]) == 9, "as Mistral wants it"
    assert answered == {"role": "tool", "tool_call_id": asked["tool_calls"][0]["id"], "content": "b"}
    assert said == {"role": "assistant", "content": "x"}


def test_what_one_endpoint_made_is_told_to_another_in_plain_words() -> None:
    items = [
        {"role": "user", "content": "go"},
        {"type": "reasoning", "id": "rs_1", "encrypted_content": "x"},
        {"type": "message", "id": "msg_1", "role": "assistant", "status": "completed", "phase": "x", "content": []},
        {"type": "function_call", "id": "fc_1", "call_id": "c", "name": "f", "arguments": "{}", "status": "completed"},
        {"type": "function_call_output", "call_id": "c", "output": "x"},
    ]
    assert foreign(items) == [
        items[0],
        {"type": "message", "role": "assistant", "content": []},
        {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
        items[4],
    ]


def test_what_clients_make_of_nothing_is_not_sent() -> None:
    said = {"role": "assistant", "content": "x", "refusal": None, "annotations": [], "reasoning_content": "hm"}
    assert expand_messages([said], NAME, CUSTOM) == [{"role": "assistant", "content": "x", "reasoning_content": "hm"}]


def test_citations_are_not_sent_to_who_does_not_know_the_container() -> None:
    citation = {"type": "container_file_citation", "container_id": "cntr_1"}
    part = {"type": "output_text", "text": "x", "annotations": [citation, {"type": "url_citation"}]}
    (item,) = expand_items([{"role": "assistant", "content": [part]}], NAME, CUSTOM)
    assert item["content"][0]["annotations"] == [{"type": "url_citation"}]


def stored(response_id: str, text: str = "") -> Stored:
    return Stored({"id": response_id, "output": [], "text": text}, [], [], [], "here", "chat")


@pytest.mark.anyio
async def test_the_store_forgets_the_oldest_the_large_and_the_old() -> None:
    now = [0.0]
    store = MemoryStore(max_responses=3, max_bytes=400, ttl=10, clock=lambda: now[0])
    for i in range(5):
        await store.put("me", stored(f"r{i}"))
    assert [await store.get("me", f"r{i}") is not None for i in range(5)] == [False, False, True, True, True]
    await store.put("me", stored("large", "x" * 300))
    assert await store.get("me", "r2") is None
    assert await store.get("me", "large") is not None
    await store.put("me", stored("too large", "x" * 500))
    assert await store.get("me", "too large") is None
    await store.put("me", stored("last"))
    now[0] = 11
    assert await store.get("me", "last") is None
    assert not await store.delete("me", "last")


@pytest.mark.anyio
async def test_the_relay_passes_items_and_errors_and_says_when_it_is_quiet() -> None:
    go = asyncio.Event()

    async def work(send: Send[int]) -> None:
        await send(1)
        await go.wait()
        await send(2)
        raise ValueError("the end")

    seen: list[int | None] = []
    with pytest.raises(ValueError, match="the end"):  # noqa: PT012
        async for item in relay(work, asyncio.create_task, 0.01):
            seen.append(item)
            if seen.count(None) == 2:
                go.set()
    assert seen[:3] == [1, None, None]
    assert seen[-1] == 2


@pytest.mark.anyio
async def test_leaving_the_relay_lets_the_work_clean_up() -> None:
    cleaned: list[str] = []

    async def work(send: Send[int]) -> None:
        try:
            for i in range(1000):
                await send(i)
        finally:
            await asyncio.sleep(0)
            cleaned.append("yes")

    items = relay(work, asyncio.create_task, 10)
    assert await anext(items) == 0
    await items.aclose()
    assert cleaned == ["yes"]
