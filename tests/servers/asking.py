"""Ask the interpreter in every way a client can, and get the answers in one shape, with the streams checked.

async with asking({"hello": Scenario([[Code("print(1)")]])}) as kit:
    answer = await kit.ask("chat-stream", "hello")
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
from collections.abc import AsyncIterator, Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from ipy_sandbox.errors import KernelDiedError, ProviderError
from ipy_sandbox.interpreter.catalog import CUSTOM, Route
from ipy_sandbox.interpreter.interpreter import Interpreter, Request
from ipy_sandbox.interpreter.upstream import Upstream
from ipy_sandbox.models import ContainerHandle, Display, Event, ExecutionError, Stderr, Stdout
from ipy_sandbox.sandbox.fake import FakeProvider
from ipy_sandbox.sandbox.session import Session

from .http_server import HTTPServer
from .model_server import ModelServer, Scenario

Json = dict[str, Any]

WAYS = ("responses", "responses-stream", "chat", "chat-stream", "bridged", "bridged-stream")
TOOL = {"type": "code_interpreter", "container": {"type": "auto"}}
WEATHER = {"name": "get_weather", "description": "d", "parameters": {"type": "object", "properties": {}}}
PNG = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
TRACEBACK = "\x1b[31mZeroDivisionError\x1b[39m Traceback\nCell In[1], line 2\nZeroDivisionError: division by zero"

SCRIPTS: dict[str, list[Event | float | BaseException]] = {
    "1/0": [Stdout("before\n"), ExecutionError("ZeroDivisionError", "division by zero", TRACEBACK)],
    "40+2": [Display({"text/plain": "42"}, is_result=True)],
    "plot": [Display({"image/png": PNG, "text/plain": "<Figure size 640x480>"}), Stdout("plotted\n")],
    "warn": [Stdout("out\n"), Stderr("err\n")],
    "x = 1": [],
    "300 KB": [Stdout("a" * 300_000 + "THE END")],
    "12 MB": [Stdout("b" * 1_000_000) for _ in range(12)],
    "sleep": [Stdout("begun\n"), 3600.0, Stdout("never\n")],
}  # fmt: skip


FAILURES: dict[str, Callable[[], Exception]] = {
    "bug": lambda: RuntimeError("a provider's own bug"),
    "die": lambda: KernelDiedError("The kernel of fake1 died."),
    "break": lambda: ProviderError("https://inner-host.example answered 502", status=502),
}


class Scripted(FakeProvider):
    """A sandbox that does what SCRIPTS says, else prints the code."""

    def __init__(self) -> None:
        super().__init__(script=self.play)
        self.deleted = asyncio.Event()

    def play(self, code: str) -> Iterable[Event | float | BaseException]:
        if code in FAILURES:
            return [FAILURES[code]()]
        if code == "write":
            self.files = {sandbox: {"/mnt/data/out.csv": b"1,2"} for sandbox in self.alive}
        return SCRIPTS.get(code, [Stdout(f"{code}\n")])

    async def run(self, handle: ContainerHandle, code: str) -> AsyncIterator[Event]:
        if code == "lose":
            self.lose(handle.id)
        async with contextlib.aclosing(super().run(handle, code)) as events:  # type: ignore[type-var]
            async for event in events:
                yield event

    async def delete(self, handle: ContainerHandle) -> bool:
        there = await super().delete(handle)
        self.deleted.set()
        return there


@dataclass
class Answer:
    """What a client got, whatever the way."""

    text: str
    calls: list[Json]
    functions: list[tuple[str, str]]
    finish: str
    tokens: int | None
    raw: Json
    events: list[Json] = field(default_factory=list)

    @property
    def statuses(self) -> list[str]:
        return [call["status"] for call in self.calls]

    @property
    def codes(self) -> list[str]:
        return [call["code"] for call in self.calls]

    @property
    def logs(self) -> list[str]:
        return ["".join(o["logs"] for o in c["outputs"] if o["type"] == "logs") for c in self.calls]

    @property
    def images(self) -> list[str]:
        return [o["url"] for call in self.calls for o in call["outputs"] if o["type"] == "image"]

    def seen(self) -> list[str]:
        """What the model says the tools gave it."""
        found: list[str] = json.loads(self.text[self.text.index("FINAL ") + 6 :])
        return found


@dataclass
class Kit:
    model: ModelServer
    provider: Scripted
    interpreter: Interpreter
    url: str

    def request(self, way: str, prompt: str, *, functions: bool = False, identity: str = "", **body: Any) -> Request:
        surface = "chat" if way.startswith("chat") else "responses"
        kind = dataclasses.replace(CUSTOM, responses="none" if way.startswith("bridged") else "unknown", images=True)
        route = Route(kind, "scripted", f"{self.url}/v1", "key")
        given: Json = {"model": "scripted", "tools": [dict(TOOL)]}
        if surface == "chat":
            given["messages"] = [{"role": "user", "content": prompt}]
            given["tools"] += [{"type": "function", "function": WEATHER}] if functions else []
        else:
            given |= {"input": prompt, "include": ["code_interpreter_call.outputs"]}
            given["tools"] += [{"type": "function", **WEATHER}] if functions else []
        if way.endswith("stream"):
            given["stream"] = True
        if way == "chat-stream":
            given["stream_options"] = {"include_usage": True}
        return Request(surface, {**given, **body}, route, identity)  # type: ignore[arg-type]

    async def ask(self, way: str, prompt: str, **body: Any) -> Answer:
        return await self.answer(self.request(way, prompt, **body))

    async def answer(self, request: Request) -> Answer:
        if not request.body.get("stream"):
            return read(await self.interpreter.respond(request))
        events = [event async for event in self.interpreter.stream(request) if event is not None]
        return read_chunks(events) if request.surface == "chat" else read_events(events)

    def named(self, name: str) -> list[tuple[object, ...]]:
        """The provider's calls of that name."""
        return [call for call in self.provider.calls if call[0] == name]

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait for something that happens in the code under test and has no event."""
        async with asyncio.timeout(10):
            while not condition():  # noqa: ASYNC110
                await asyncio.sleep(0)

    async def clean(self) -> bool:
        """Whether no sandbox is left, once the clean-up had its turn."""
        async with asyncio.timeout(10):
            while self.provider.alive:
                self.provider.deleted.clear()
                await self.provider.deleted.wait()
        return True


@contextlib.asynccontextmanager
async def asking(scenarios: dict[str, Scenario], **options: Any) -> AsyncIterator[Kit]:
    """A model server, a scripted sandbox provider and the interpreter between them."""
    provider = Scripted()
    model = ModelServer(scenarios)
    async with (
        HTTPServer(model) as server,
        contextlib.aclosing(Upstream()) as upstream,
        Interpreter(lambda: Session(provider), upstream=upstream, **options) as interpreter,
    ):
        yield Kit(model, provider, interpreter, server.url)
    assert not provider.alive, "sandboxes were left"


def read(response: Json) -> Answer:
    """A whole answer."""
    if response["object"] == "response":
        return _read_response(response)
    choice = response["choices"][0]
    message = choice["message"]
    assert choice["finish_reason"] in ("stop", "tool_calls", "length", "content_filter")
    functions = [(c["function"]["name"], c["function"]["arguments"]) for c in message.get("tool_calls") or []]
    usage = response["usage"]
    calls = message.get("executed_tools", [])
    total = usage and usage["total_tokens"]
    return Answer(message["content"] or "", calls, functions, choice["finish_reason"], total, response)


def _read_response(response: Json) -> Answer:
    output = response["output"]
    messages = [item for item in output if item["type"] == "message"]
    calls = [item for item in output if item["type"] == "code_interpreter_call"]
    functions = [(item["name"], item["arguments"]) for item in output if item["type"] == "function_call"]
    finish = "tool_calls" if functions else "stop"
    if response["status"] == "incomplete":
        finish = {"max_output_tokens": "length"}.get(*[response["incomplete_details"]["reason"]] * 2)
    elif response["status"] == "failed":
        finish = "error"
    text = "".join(part["text"] for part in (messages[-1]["content"] if messages else []))
    for call in calls:
        assert list(call) == ["id", "type", "status", "code", "container_id", "outputs"]
    usage = response["usage"]
    return Answer(text, calls, functions, finish, usage and usage["total_tokens"], response)


def read_chunks(chunks: list[Json]) -> Answer:
    """A streamed chat completion, put together as simply as its documentation says."""
    message: Json = {"role": "assistant", "content": "", "tool_calls": []}
    finish, usage = None, None
    if "error" in chunks[-1]:
        return Answer("", [], [], "error", None, chunks[-1], chunks)
    assert len({chunk["id"] for chunk in chunks}) == 1
    for chunk in chunks:
        usage = chunk.get("usage") or usage
        for choice in chunk["choices"]:
            assert finish is None, "nothing comes after the finish reason"
            finish = choice["finish_reason"]
            delta = dict(choice["delta"])
            message["content"] += delta.pop("content", None) or ""
            for call in delta.pop("tool_calls", []):
                if call["index"] == len(message["tool_calls"]):
                    message["tool_calls"].append(call)
                else:
                    part = call["function"]["arguments"]
                    message["tool_calls"][call["index"]]["function"]["arguments"] += part
            message |= delta
    whole = {
        "object": "chat.completion",
        "choices": [{"message": message, "finish_reason": finish}],
        "usage": usage,
        "messages": chunks[-2].get("messages") if usage else chunks[-1].get("messages"),
    }
    answer = read(whole)
    answer.events = chunks
    return answer


# Kinds of events of one code call, in the only order they may have.
CODE_ORDER = [
    "response.output_item.added",
    "response.code_interpreter_call.in_progress",
    "response.code_interpreter_call_code.delta",
    "response.code_interpreter_call_code.done",
    "response.code_interpreter_call.interpreting",
    "response.code_interpreter_call.completed",
    "response.output_item.done",
]


def read_events(events: list[Json]) -> Answer:
    """A streamed response, whose events must be in OpenAI's order and agree with the final response."""
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    assert [event["type"] for event in events[:2]] == ["response.created", "response.in_progress"]
    assert events[-1]["type"] in ("response.completed", "response.incomplete", "response.failed")
    response = events[-1]["response"]
    assert {event["response"]["id"] for event in events if "response" in event} == {response["id"]}
    for index, item in enumerate(response["output"]):
        own = [event for event in events if event.get("output_index") == index]
        assert own[0]["type"] == "response.output_item.added"
        assert own[0]["item"]["id"] == item["id"]
        assert {event["item_id"] for event in own if "item_id" in event} <= {item["id"]}
        if own[-1]["type"] == "response.output_item.done":
            assert own[-1]["item"] == item
        else:
            assert response["status"] == "failed"
        if item["type"] == "code_interpreter_call":
            kinds = [event["type"] for event in own]
            assert sorted(kinds, key=CODE_ORDER.index) == kinds
            assert own[0]["item"]["code"] == ""
            if item["status"] == "completed":
                assert "".join(e["delta"] for e in own if e["type"].endswith("code.delta")) == item["code"]
                assert set(kinds) == set(CODE_ORDER)
        if item["type"] == "message" and response["status"] == "completed":
            text = "".join(part["text"] for part in item["content"])
            assert "".join(e["delta"] for e in own if e["type"] == "response.output_text.delta") == text
    answer = _read_response(response)
    answer.events = events
    return answer
