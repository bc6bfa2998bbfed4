"""Recorded and crafted streams of many servers as the first turn of a loop: what the client gets is always sound.

The manifest says what each stream means; here a second turn answers, and what went back upstream is what was said.
"""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
from servers.asking import TOOL, Scripted, read_chunks, read_events
from servers.http_server import Answer, HTTPServer, Request

from ipy_sandbox.interpreter.catalog import CUSTOM, Route
from ipy_sandbox.interpreter.interpreter import Interpreter
from ipy_sandbox.interpreter.interpreter import Request as Asked
from ipy_sandbox.sandbox.session import Session

pytestmark = pytest.mark.anyio

GOLDEN = Path(__file__).parent.parent / "golden" / "llm"
CASES = {case["name"]: case for case in json.loads((GOLDEN / "manifest.json").read_text())["cases"]}
FINAL = {
    "chat": [{"choices": [{"index": 0, "delta": {"content": "the end"}, "finish_reason": "stop"}]}],
    "responses": [
        {"type": "response.output_text.delta", "output_index": 0, "item_id": "m", "delta": "the end"},
        {"type": "response.completed", "response": {"status": "completed", "output": []}},
    ],
}


class Recorded:
    """A model server that plays the stream first and then answers."""

    def __init__(self, case: dict[str, Any]) -> None:
        self.case = case
        self.bodies: list[dict[str, Any]] = []

    async def __call__(self, request: Request, answer: Answer) -> None:
        self.bodies.append(request.json())
        content = (GOLDEN / self.case["file"]).read_bytes()
        is_json = content.lstrip().startswith(b"{")
        await answer.start(200, {"Content-Type": "application/json" if is_json else "text/event-stream"})
        if len(self.bodies) > 1:
            content = b"".join(b"data: %b\n\n" % json.dumps(event).encode() for event in FINAL[self.case["api"]])
        for start in range(0, len(content), 100):
            await answer.chunk(content[start : start + 100])
        await answer.end()


# Chat requests are never sent to the Responses API.
PAIRS = [(name, "responses") for name in CASES]
PAIRS += [(name, "chat") for name, case in CASES.items() if case["api"] == "chat"]


@pytest.mark.parametrize(("name", "surface"), PAIRS)
async def test_the_client_gets_a_sound_stream(name: str, surface: Any) -> None:
    case = CASES[name]
    server, provider = Recorded(case), Scripted()
    kind = dataclasses.replace(CUSTOM, responses="none" if case["api"] == "chat" else "stateless")
    async with HTTPServer(server) as http, Interpreter(lambda: Session(provider)) as interpreter:
        body: dict[str, Any] = {"model": "m", "stream": True, "tools": [TOOL]}
        include = ["code_interpreter_call.outputs"]
        body |= (
            {"input": "go", "include": include}
            if surface == "responses"
            else {"messages": [{"role": "user", "content": "go"}]}
        )
        asked = Asked(surface, body, Route(kind, "m", f"{http.url}/v1", "k"))
        events = [event async for event in interpreter.stream(asked) if event]
    answer = read_events(events) if surface == "responses" else read_chunks(events)
    expected = case["expected"]
    calls = expected.get("tool_calls") or []
    if expected.get("error") or not expected.get("complete"):
        assert answer.finish == "error"
        assert len(server.bodies) == 1
        assert not [call for call in provider.calls if call[0] == "run"]
        return
    runnable = [call["code"] for call in calls if call["code"] is not None]
    assert answer.codes[: len(runnable)] == runnable
    assert [call[2] for call in provider.calls if call[0] == "run"] == runnable
    if answer.finish == "length":
        assert answer.statuses == ["incomplete"] * len(calls)
    elif calls:
        assert answer.statuses == ["completed"] * len(calls)
        assert answer.text.endswith("the end")
        assert json.dumps(runnable[0])[1:-1] in json.dumps(server.bodies[1]).replace('\\\\"', '"').replace(
            "\\\\n", "\\n"
        )
        if replay := expected.get("replay"):
            assert_contains(server.bodies[1], replay)
    else:
        assert answer.text == (expected.get("content") or expected.get("text"))


def assert_contains(body: Any, part: Any) -> None:
    """Every field that must go back is somewhere in the body."""
    text = json.dumps(body, sort_keys=True)
    for value in part.values() if isinstance(part, dict) else part:
        assert json.dumps(value, sort_keys=True) in text
