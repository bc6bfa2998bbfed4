"""A real model writes the code and a real local sandbox runs it; only on request.

Start any server with a model that calls tools, for example `ollama serve` and `ollama pull qwen3:0.6b`, or
`llama-server --jinja`, and say where it is:

    IPY_SANDBOX_MODEL_URL=http://127.0.0.1:11434/v1 IPY_SANDBOX_MODEL=qwen3:0.6b \
        python -m pytest -m model tests/interpreter/test_real_model.py

`IPY_SANDBOX_MODEL_KEY` is its key, if it wants one; `IPY_SANDBOX_MODEL_SANDBOX` another provider than `local`. Without
`IPY_SANDBOX_MODEL` the first model that the server lists is used. What the code printed and what the protocol promises
is asserted, not the model's wording.
"""

from __future__ import annotations

import json
import os
from typing import Any

import pytest

from ipy_sandbox.interpreter.api import acompletion, aresponses
from ipy_sandbox.interpreter.catalog import resolve
from ipy_sandbox.interpreter.upstream import shared

URL = os.environ.get("IPY_SANDBOX_MODEL_URL", "")
MODEL = os.environ.get("IPY_SANDBOX_MODEL", "")
KEY = os.environ.get("IPY_SANDBOX_MODEL_KEY")
SANDBOX = os.environ.get("IPY_SANDBOX_MODEL_SANDBOX", "local")

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.model,
    pytest.mark.timeout(300),
    pytest.mark.skipif(not URL, reason="IPY_SANDBOX_MODEL_URL is not set"),
]

QUESTIONS = {
    "30030": "Use Python to compute the product of 2, 3, 5, 7, 11 and 13.",
    "500500": "Use Python to compute the sum of the integers from 1 to 1000.",
    "3": "Use Python to count the letter r in 'strawberry'.",
    "1048576": "Use Python to print 2**20.",
    "3628800": "Use Python to compute the factorial of 10.",
}
asked = pytest.mark.parametrize(("number", "question"), QUESTIONS.items())
Json = dict[str, Any]


@pytest.fixture
async def options() -> Json:
    """Where the model and the sandbox are."""
    listed = [] if MODEL else await shared().models(resolve("any", base_url=URL, api_key=KEY))
    model = MODEL or listed[0]["id"]
    return {"model": model, "base_url": URL, "api_key": KEY, "interpreter": SANDBOX, "temperature": 0}


def check_response(response: Any, number: str) -> None:
    """The code ran in one container, printed the number, and an answer followed."""
    calls = [item for item in response.output if item.type == "code_interpreter_call"]
    assert number in "".join(output.logs for call in calls for output in call.outputs)
    assert all(call.status == "completed" and call.code and call.container_id for call in calls)
    assert len({call.container_id for call in calls}) == 1
    assert response.output[-1].type == "message"
    assert response.output_text
    assert (response.status, response.usage.total_tokens > 0) == ("completed", True)


def ask_response(options: Json, question: str, **more: Any) -> Any:
    tools = [{"type": "code_interpreter", "container": {"type": "auto"}}]
    return aresponses(input=question, tools=tools, include=["code_interpreter_call.outputs"], **options, **more)


@asked
async def test_responses(options: Json, number: str, question: str) -> None:
    check_response(await ask_response(options, question), number)


@asked
async def test_streamed_responses(options: Json, number: str, question: str) -> None:
    events = [event async for event in await ask_response(options, question, stream=True)]
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert (events[0].type, events[-1].type) == ("response.created", "response.completed")
    check_response(events[-1].response, number)
    text = "".join(event.delta for event in events if event.type == "response.output_text.delta")
    assert text == events[-1].response.output_text
    code = "".join(event.delta for event in events if event.type == "response.code_interpreter_call_code.delta")
    assert code == "".join(i.code for i in events[-1].response.output if i.type == "code_interpreter_call")
    assert len([e for e in events if e.type == "response.code_interpreter_call_code.delta"]) > 2, "code really streams"


def check_executed(executed: list[Any], content: str, number: str) -> None:
    assert number in "".join(tool.output for tool in executed)
    assert all(json.loads(tool.arguments)["code"] == tool.code for tool in executed)
    assert content


def ask_completion(options: Json, question: str, **more: Any) -> Any:
    messages = [{"role": "user", "content": question}]
    return acompletion(messages=messages, tools=[{"type": "code_interpreter"}], **options, **more)


@asked
async def test_completion(options: Json, number: str, question: str) -> None:
    completion = await ask_completion(options, question)
    [choice] = completion.choices
    check_executed(choice.message.executed_tools, choice.message.content, number)
    assert (choice.finish_reason, "tool_calls" in choice.message.model_dump()) == ("stop", False)
    assert [message.role for message in completion.messages][-2:] == ["tool", "assistant"]


@asked
async def test_streamed_completion(options: Json, number: str, question: str) -> None:
    chunks = [chunk async for chunk in await ask_completion(options, question, stream=True)]
    choices = [chunk.choices[0].model_dump() for chunk in chunks if chunk.choices]
    content = [choice["delta"].get("content") or "" for choice in choices]
    assert len([piece for piece in content if piece]) > 1, "text really streams"
    [last] = [chunk for chunk in chunks if chunk.choices and chunk.choices[0].finish_reason]
    check_executed(last.choices[0].delta.executed_tools, "".join(content), number)
    assert last.choices[0].finish_reason == "stop"
