"""A scripted, strict OpenAI-compatible model server over real HTTP: both APIs, streamed and not.

    model = ModelServer({"hello": Scenario([[Code("print(1)")]])})
    async with HTTPServer(model) as server: ...        # base URL: f"{server.url}/v1"

The last user message names the scenario. A scenario is the model's turns; when they are used up it answers with
`final`, by default "FINAL " and the JSON list of everything that the tools gave back in this conversation.

It refuses what a real server refuses: hosted tools, choices that name no tool, unpaired calls, unknown fields.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Any

from .http_server import Answer, Request

Json = dict[str, Any]


@dataclass(frozen=True)
class Say:
    """Text for the user."""

    text: str


@dataclass(frozen=True)
class Think:
    """Reasoning."""

    text: str


@dataclass(frozen=True)
class Code:
    """A proper call of the code tool."""

    code: str

    @property
    def arguments(self) -> str:
        return json.dumps({"code": self.code})


@dataclass(frozen=True)
class Raw:
    """A call of the code tool with these arguments, perhaps under another name."""

    arguments: str
    name: str | None = None


@dataclass(frozen=True)
class Fn:
    """A call of a function of the client's."""

    name: str
    arguments: str = "{}"


@dataclass(frozen=True)
class Pause:
    """The stream stops here until the event is set, or the client is gone."""

    until: asyncio.Event


@dataclass(frozen=True)
class Fail:
    """Instead of a turn: an error status."""

    status: int
    code: str | None = None


@dataclass(frozen=True)
class Cut:
    """The connection breaks here; `error` says so in an event first."""

    error: bool = False


@dataclass(frozen=True)
class Length:
    """The turn ends here for lack of tokens."""


Part = Say | Think | Code | Raw | Fn | Pause | Fail | Cut | Length
Call = (Code, Raw, Fn)


@dataclass
class Scenario:
    """The model's turns; `endless` repeats the last one for ever, `obedient` obeys forced choices even then.

    Arguments:
        stubborn: calls the tool whatever tool_choice says, as long as it is declared.
        usage: input and output tokens of each turn, None: it reports none.
    """

    turns: list[list[Part]] = field(default_factory=list)
    final: str | None = None
    endless: bool = False
    obedient: bool = True
    stubborn: bool = False
    usage: tuple[int, int] | None = (100, 10)


class Refused(Exception):
    """The request is wrong."""


@dataclass
class ModelServer:
    """The handler for `HTTPServer`.

    Attributes:
        bodies: the requests of model calls, as they came.
        gone: set when a client has left in the middle of an answer.
    """

    scenarios: dict[str, Scenario]
    blind: bool = False
    responses_status: int | None = None
    piece: int = 7
    bodies: list[Json] = field(default_factory=list)
    gone: asyncio.Event = field(default_factory=asyncio.Event)
    served: int = 0

    async def __call__(self, request: Request, answer: Answer) -> None:
        if request.method == "GET":
            await answer.send(body={"object": "list", "data": [{"id": "scripted", "object": "model"}]})
            return
        body = request.json()
        self.bodies.append(body)
        dialect: Dialect = Chat() if request.path.endswith("/chat/completions") else Responses()
        try:
            if isinstance(dialect, Responses) and self.responses_status:
                await answer.send(self.responses_status, _error(self.responses_status, "no such API"))
                return
            dialect.check(body, self.blind)
            scenario = self._scenario(dialect.prompt(body))
            parts = self._turn(scenario, dialect, body)
        except (Refused, KeyError, IndexError, TypeError, AttributeError, ValueError) as problem:
            await answer.send(400, _error(400, str(problem)))
            return
        if isinstance(parts[0], Fail):
            await answer.send(parts[0].status, _error(parts[0].status, "scripted failure", parts[0].code))
            return
        await self._reply(dialect, body, scenario, parts, answer)
        self.served += 1

    def _scenario(self, prompt: str) -> Scenario:
        if prompt not in self.scenarios:
            raise Refused(f"no scenario {prompt!r}")
        return self.scenarios[prompt]

    def _turn(self, scenario: Scenario, dialect: Dialect, body: Json) -> list[Part]:
        number, choice, tool = dialect.turn_number(body), body.get("tool_choice"), dialect.code_tool(body)
        may_call = bool(body.get("tools")) and (choice != "none" or scenario.stubborn)
        if isinstance(choice, dict) and choice.get("type") == "function" and scenario.obedient:
            name = choice["function"]["name"] if "function" in choice else choice["name"]
            if name == tool:
                return [Code(f"forced({number})")]
            return [Fn(name)]
        if number < len(scenario.turns) and (may_call or not any(isinstance(p, Call) for p in scenario.turns[number])):
            return scenario.turns[number]
        if choice == "required" and scenario.obedient:
            return [Code(f"required({number})")]
        if scenario.endless and may_call:
            return scenario.turns[-1]
        if scenario.stubborn and not may_call and scenario.final is None:
            return [Say("")]
        final = scenario.final
        return [Say("FINAL " + json.dumps(dialect.outputs(body)) if final is None else final)]

    async def _reply(self, dialect: Dialect, body: Json, scenario: Scenario, parts: list[Part], answer: Answer) -> None:
        tool = dialect.code_tool(body) or "no_code_tool"
        number = dialect.turn_number(body)
        usage = None if scenario.usage is None else (scenario.usage[0] + number, scenario.usage[1] + number)
        if not body.get("stream"):
            for part in parts:
                if isinstance(part, Pause):
                    await self._pause(part, answer)
                if isinstance(part, Cut):
                    await answer.start(200, {"Content-Type": "application/json"})
                    await answer.chunk(b'{"id": "x", ')
                    return
            await answer.send(body=dialect.whole(body, parts, tool, number, usage))
            return
        await answer.start(200, {"Content-Type": "text/event-stream"})
        async for event in dialect.events(body, parts, tool, number, usage, self.piece):
            if isinstance(event, Pause):
                if await self._pause(event, answer):
                    return
            elif isinstance(event, Cut):
                return
            else:
                await answer.chunk(event)
        await answer.end()

    async def _pause(self, pause: Pause, answer: Answer) -> bool:
        waits = [asyncio.ensure_future(pause.until.wait()), asyncio.ensure_future(answer.gone.wait())]
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        for wait in waits:
            wait.cancel()
        if answer.gone.is_set():
            self.gone.set()
        return answer.gone.is_set()


def _error(status: int, message: str, code: str | None = None) -> Json:
    kind = "invalid_request_error" if status < 429 else "server_error"
    return {"error": {"message": message, "type": kind, "param": None, "code": code}}


def text_of(content: Any) -> str:
    """The text of a content in any of its forms."""
    if isinstance(content, str):
        return content
    parts = content if isinstance(content, list) else []
    return "".join(str(part.get("text", f"<{part.get('type')}>")) for part in parts)


def pieces(text: str, size: int) -> list[str]:
    return [text[i : i + size] for i in range(0, len(text), size)]


class Dialect:
    """What differs between the two APIs."""

    def check(self, body: Json, blind: bool) -> None: ...
    def prompt(self, body: Json) -> str: ...
    def turn_number(self, body: Json) -> int: ...
    def outputs(self, body: Json) -> list[str]: ...
    def whole(self, body: Json, parts: list[Part], tool: str, number: int, usage: tuple[int, int] | None) -> Json: ...
    def events(
        self, body: Json, parts: list[Part], tool: str, number: int, usage: tuple[int, int] | None, size: int
    ) -> AsyncIterator[bytes | Pause | Cut]: ...

    def functions(self, body: Json) -> list[Json]:
        raise NotImplementedError

    def code_tool(self, body: Json) -> str | None:
        """The function that has a `code` parameter."""
        for function in self.functions(body):
            if "code" in ((function.get("parameters") or {}).get("properties") or {}):
                return str(function["name"])
        return None

    def check_choice(self, body: Json) -> None:
        choice, names = body.get("tool_choice"), {f["name"] for f in self.functions(body)}
        if choice is not None and not body.get("tools"):
            raise Refused("tool_choice without tools")
        if isinstance(choice, dict):
            listed = (choice.get("allowed_tools") or choice).get("tools") or [choice]
            for entry in listed:
                name = entry["function"]["name"] if "function" in entry else entry.get("name")
                if name not in names:
                    raise Refused(f"tool_choice names no tool: {choice}")
        elif choice not in (None, "auto", "none", "required"):
            raise Refused(f"tool_choice {choice!r}")


CHAT_FIELDS = {
    "model", "messages", "tools", "tool_choice", "stream", "stream_options", "max_tokens", "max_completion_tokens",
    "temperature", "parallel_tool_calls", "metadata", "reasoning_effort", "response_format", "n", "user", "store",
}  # fmt: skip
MESSAGE_FIELDS = {
    "role",
    "content",
    "tool_calls",
    "tool_call_id",
    "name",
    "refusal",
    "annotations",
    "reasoning_content",
}
RESPONSES_FIELDS = {
    "model", "input", "tools", "tool_choice", "stream", "instructions", "max_output_tokens", "include", "temperature",
    "metadata", "store", "reasoning", "text", "parallel_tool_calls", "user",
}  # fmt: skip


class Chat(Dialect):
    def functions(self, body: Json) -> list[Json]:
        return [tool["function"] for tool in body.get("tools") or []]

    def check(self, body: Json, blind: bool) -> None:
        if unknown := set(body) - CHAT_FIELDS:
            raise Refused(f"unknown fields {unknown}")
        for tool in body.get("tools") or []:
            if tool["type"] != "function" or "function" not in tool:
                raise Refused(f"Invalid value: {tool['type']!r}. Supported values are: 'function' and 'custom'.")
        self.check_choice(body)
        pending: set[str] = set()
        for message in body["messages"]:
            if unknown := set(message) - MESSAGE_FIELDS:
                raise Refused(f"unknown fields {unknown} in a message")
            if message["role"] == "tool":
                if message["tool_call_id"] not in pending:
                    raise Refused("a tool message answers no call")
                pending.remove(message["tool_call_id"])
                if not isinstance(message["content"], str):
                    raise Refused("tool messages have text only")
            elif pending:
                raise Refused(f"calls without an answer: {pending}")
            for call in message.get("tool_calls") or []:
                pending.add(call["id"])
                if not isinstance(json.loads(call["function"]["arguments"]), dict):
                    raise Refused("arguments are no object")
            if blind and isinstance(message["content"], list) and "<image_url>" in text_of(message["content"]):
                raise Refused("image input is not supported")
        if pending:
            raise Refused(f"calls without an answer: {pending}")

    def _since_prompt(self, body: Json) -> list[Json]:
        users = [i for i, m in enumerate(body["messages"]) if m["role"] == "user" and isinstance(m["content"], str)]
        return body["messages"][users[-1] :]  # type: ignore[no-any-return]

    def prompt(self, body: Json) -> str:
        return text_of(self._since_prompt(body)[0]["content"])

    def turn_number(self, body: Json) -> int:
        return sum(1 for m in self._since_prompt(body) if m.get("tool_calls"))

    def outputs(self, body: Json) -> list[str]:
        return [text_of(m["content"]) for m in self._since_prompt(body)[1:] if m["role"] in ("tool", "user")]

    def _call(self, part: Code | Raw | Fn, tool: str, number: int, index: int) -> Json:
        name = part.name if isinstance(part, (Fn, Raw)) and part.name else tool
        function = {"name": name, "arguments": part.arguments}
        return {"id": f"call_{number}_{index}", "type": "function", "function": function}

    def _usage(self, usage: tuple[int, int] | None) -> Json | None:
        if usage is None:
            return None
        read, written = usage
        return {"prompt_tokens": read, "completion_tokens": written, "total_tokens": read + written}

    def _finish(self, parts: list[Part]) -> str:
        if any(isinstance(part, Length) for part in parts):
            return "length"
        return "tool_calls" if any(isinstance(part, Call) for part in parts) else "stop"

    def whole(self, body: Json, parts: list[Part], tool: str, number: int, usage: tuple[int, int] | None) -> Json:
        calls = [p for p in parts if isinstance(p, Call)]
        message: Json = {"role": "assistant", "content": "".join(p.text for p in parts if isinstance(p, Say)) or None}
        if calls:
            message["tool_calls"] = [self._call(p, tool, number, i) for i, p in enumerate(calls)]
        if thoughts := "".join(p.text for p in parts if isinstance(p, Think)):
            message["reasoning_content"] = thoughts
        return {
            "id": f"chatcmpl-{number}",
            "object": "chat.completion",
            "created": 1,
            "model": "scripted-1",
            "system_fingerprint": "fp_scripted",
            "choices": [{"index": 0, "message": message, "logprobs": None, "finish_reason": self._finish(parts)}],
            "usage": self._usage(usage),
        }

    async def events(
        self, body: Json, parts: list[Part], tool: str, number: int, usage: tuple[int, int] | None, size: int
    ) -> AsyncIterator[bytes | Pause | Cut]:
        base = {"id": f"chatcmpl-{number}", "object": "chat.completion.chunk", "created": 1, "model": "scripted-1"}

        def chunk(delta: Json, finish: str | None = None) -> bytes:
            choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}
            return b"data: " + json.dumps({**base, "choices": [choice]}).encode() + b"\n\n"

        yield chunk({"role": "assistant", "content": None})
        index = 0
        for part in parts:
            if isinstance(part, Say):
                for piece in pieces(part.text, size):
                    yield chunk({"content": piece})
            elif isinstance(part, Think):
                yield chunk({"reasoning_content": part.text})
            elif isinstance(part, Call):
                call = self._call(part, tool, number, index)
                head = {**call, "function": {**call["function"], "arguments": ""}}
                yield chunk({"tool_calls": [{"index": index, **head}]})
                for piece in pieces(part.arguments, size):
                    yield chunk({"tool_calls": [{"index": index, "function": {"arguments": piece}}]})
                index += 1
            elif isinstance(part, Pause):
                yield part
            elif isinstance(part, Cut):
                if part.error:
                    yield b'data: {"error": {"message": "overloaded", "type": "server_error", "code": "503"}}\n\n'
                yield part
        yield chunk({}, self._finish(parts))
        if (body.get("stream_options") or {}).get("include_usage") and usage is not None:
            yield b"data: " + json.dumps({**base, "choices": [], "usage": self._usage(usage)}).encode() + b"\n\n"
        yield b"data: [DONE]\n\n"


class Responses(Dialect):
    def functions(self, body: Json) -> list[Json]:
        return list(body.get("tools") or [])

    def _items(self, body: Json) -> list[Json]:
        given = body["input"]
        return [{"role": "user", "content": given}] if isinstance(given, str) else given

    def check(self, body: Json, blind: bool) -> None:
        if unknown := set(body) - RESPONSES_FIELDS:
            raise Refused(f"unknown fields {unknown}")
        for tool in body.get("tools") or []:
            if tool["type"] != "function" or "name" not in tool:
                raise Refused(f"unknown tool type {tool['type']!r}")
        self.check_choice(body)
        called: set[str] = set()
        answered: set[str] = set()
        for item in self._items(body):
            kind = item.get("type", "message")
            if kind not in ("message", "function_call", "function_call_output", "reasoning"):
                raise Refused(f"unknown item type {kind!r}")
            if kind == "function_call":
                called.add(item["call_id"])
                if not isinstance(json.loads(item["arguments"]), dict):
                    raise Refused("arguments are no object")
            if kind == "function_call_output":
                if item["call_id"] not in called:
                    raise Refused("No tool call found for function call output")
                answered.add(item["call_id"])
            if blind and "<input_image>" in text_of(item.get("content") or item.get("output")):
                raise Refused("image input is not supported")
            if "cntr_" in json.dumps(item.get("content")):
                raise Refused("unknown container")
        if called - answered:
            raise Refused(f"No tool output found for function call {called - answered}")

    def _since_prompt(self, body: Json) -> list[Json]:
        items = self._items(body)
        users = [i for i, item in enumerate(items) if item.get("role") == "user" and isinstance(item["content"], str)]
        return items[users[-1] :]

    def prompt(self, body: Json) -> str:
        return text_of(self._since_prompt(body)[0]["content"])

    def turn_number(self, body: Json) -> int:
        kinds = ["out" if i.get("type") == "function_call_output" else "in" for i in self._since_prompt(body)[1:]]
        return sum(1 for before, now in zip(["in", *kinds], kinds, strict=False) if (before, now) == ("in", "out"))

    def outputs(self, body: Json) -> list[str]:
        items = self._since_prompt(body)[1:]
        return [
            text_of(item["output"] if "output" in item else item["content"])
            for item in items
            if item.get("type") == "function_call_output" or item.get("role") == "user"
        ]

    def _usage(self, usage: tuple[int, int] | None) -> Json | None:
        if usage is None:
            return None
        read, written = usage
        return {
            "input_tokens": read,
            "input_tokens_details": {"cached_tokens": 1},
            "output_tokens": written,
            "output_tokens_details": {"reasoning_tokens": 2},
            "total_tokens": read + written,
        }

    def _item(self, part: Part, tool: str, number: int, index: int) -> Json:
        if isinstance(part, Say):
            content = [{"type": "output_text", "text": part.text, "annotations": [], "logprobs": []}]
            return {
                "id": f"msg_{number}_{index}",
                "type": "message",
                "status": "completed",
                "role": "assistant",
                "content": content,
                "phase": "final_answer",
            }
        if isinstance(part, Think):
            summary = [{"type": "summary_text", "text": part.text}]
            return {"id": f"rs_{number}_{index}", "type": "reasoning", "summary": summary, "encrypted_content": "gAAA"}
        assert isinstance(part, Call)
        name = part.name if isinstance(part, (Fn, Raw)) and part.name else tool
        return {
            "id": f"fc_{number}_{index}",
            "type": "function_call",
            "status": "completed",
            "arguments": part.arguments,
            "call_id": f"call_{number}_{index}",
            "name": name,
        }

    def _response(self, body: Json, output: list[Json], usage: Json | None, status: str, number: int) -> Json:
        reason = {"reason": "max_output_tokens"} if status == "incomplete" else None
        return {
            "id": f"resp_upstream_{number}",
            "object": "response",
            "created_at": 1,
            "status": status,
            "error": None,
            "incomplete_details": reason,
            "model": "scripted-1",
            "output": output,
            "temperature": 0.5,
            "tools": body.get("tools") or [],
            "tool_choice": body.get("tool_choice", "auto"),
            "usage": usage,
        }

    def whole(self, body: Json, parts: list[Part], tool: str, number: int, usage: tuple[int, int] | None) -> Json:
        shown = [part for part in parts if not isinstance(part, (Pause, Length))]
        status = "incomplete" if any(isinstance(part, Length) for part in parts) else "completed"
        output = [self._item(part, tool, number, index) for index, part in enumerate(shown)]
        return self._response(body, output, self._usage(usage), status, number)

    async def events(
        self, body: Json, parts: list[Part], tool: str, number: int, usage: tuple[int, int] | None, size: int
    ) -> AsyncIterator[bytes | Pause | Cut]:
        sequence = 0

        def event(kind: str, **fields: Any) -> bytes:
            nonlocal sequence
            data = json.dumps({"type": kind, "sequence_number": sequence, **fields})
            sequence += 1
            return f"event: {kind}\ndata: {data}\n\n".encode()

        for kind in ("response.created", "response.in_progress"):
            yield event(kind, response=self._response(body, [], None, "in_progress", number))
        output: list[Json] = []
        for part in parts:
            if isinstance(part, Pause):
                yield part
            elif isinstance(part, Cut):
                if part.error:
                    error = {"type": "server_error", "code": "server_error", "message": "overloaded", "param": None}
                    yield event("error", error=error)
                yield part
            elif not isinstance(part, (Length, Fail)):
                item, index = self._item(part, tool, number, len(output)), len(output)
                for made in self._item_events(event, part, item, index, size):
                    yield made
                output.append(item)
        status = "incomplete" if any(isinstance(part, Length) for part in parts) else "completed"
        response = self._response(body, output, self._usage(usage), status, number)
        yield event(f"response.{status}", response=response)

    def _item_events(self, event: Callable[..., bytes], part: Part, item: Json, index: int, size: int) -> list[bytes]:
        about: Json = {"item_id": item["id"], "output_index": index}
        made: list[bytes] = []
        if isinstance(part, Say):
            empty = {"type": "output_text", "annotations": [], "logprobs": [], "text": ""}
            made.append(event("response.output_item.added", output_index=index, item={**item, "content": []}))
            made.append(event("response.content_part.added", **about, content_index=0, part=empty))
            for piece in pieces(part.text, size):
                made.append(event("response.output_text.delta", **about, content_index=0, delta=piece, logprobs=[]))
            made.append(event("response.output_text.done", **about, content_index=0, text=part.text, logprobs=[]))
            made.append(event("response.content_part.done", **about, content_index=0, part=item["content"][0]))
        elif isinstance(part, Think):
            made.append(event("response.output_item.added", output_index=index, item={**item, "summary": []}))
            empty = {"type": "summary_text", "text": ""}
            made.append(event("response.reasoning_summary_part.added", **about, summary_index=0, part=empty))
            made.append(event("response.reasoning_summary_text.delta", **about, summary_index=0, delta=part.text))
            made.append(event("response.reasoning_summary_text.done", **about, summary_index=0, text=part.text))
            whole = item["summary"][0]
            made.append(event("response.reasoning_summary_part.done", **about, summary_index=0, part=whole))
        else:
            begun = {**item, "arguments": "", "status": "in_progress"}
            made.append(event("response.output_item.added", output_index=index, item=begun))
            for piece in pieces(item["arguments"], size):
                made.append(event("response.function_call_arguments.delta", **about, delta=piece))
            made.append(event("response.function_call_arguments.done", **about, arguments=item["arguments"]))
        made.append(event("response.output_item.done", output_index=index, item=item))
        return made
