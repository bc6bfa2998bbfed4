"""The chat surface: the events of the loop as one chat completion, streamed or whole."""

from __future__ import annotations

import time
from typing import Any

from ..errors import UpstreamError
from .calls import (
    CallEnded,
    CodeCall,
    CodeDelta,
    CodeStarted,
    CodeWritten,
    FilesCited,
    LoopEnded,
    LoopEvent,
    RunStarted,
    TurnDelta,
    TurnEnded,
    TurnStarted,
    new_id,
)
from .citations import file_citations
from .executed_tools import executed_tool
from .request import Json
from .turn import ArgumentsDelta, CallStarted, Delta, ReasoningDelta, RefusalDelta, TextDelta, Turn
from .usage import usage_for

_STREAMED = ("role", "content", "refusal", "tool_calls", "reasoning", "reasoning_content", "function_call")


class ChatView:
    """Folds the events of the loop into `response`, and gives the chunks that its client sees.

    What executed is told once, in the chunk with the finish reason: the official clients merge lists by index, each
    in its own way. While it happens, chunks with an empty delta tell of it under `ipy_sandbox`.
    """

    def __init__(self, body: Json, *, model: str, client_chars: int) -> None:
        self._client_chars = client_chars
        self._usage_wanted = bool((body.get("stream_options") or {}).get("include_usage"))
        self._base = {"id": new_id("chatcmpl"), "created": int(time.time()), "model": model}
        self._functions: dict[int, int] = {}
        self._files = FilesCited("", {})
        self._texts_before = False
        self._text_now = False
        self._turn = 0
        self.response: Json = {}
        self.started = False
        """Whether the client has seen anything."""

    def _chunk(self, delta: Json, finish_reason: str | None = None, logprobs: Any = None, **fields: Any) -> Json:
        self.started = True
        choice = {"index": 0, "delta": delta, "logprobs": logprobs, "finish_reason": finish_reason}
        return {**self._base, "object": "chat.completion.chunk", "choices": [choice], **fields}

    def feed(self, event: LoopEvent) -> list[Json]:
        """What the client gets to see of an event of the loop."""
        match event:
            case TurnStarted(number):
                self._functions = {}
                self._texts_before, self._text_now = self._texts_before or self._text_now, False
                return [self._chunk({"role": "assistant", "content": ""})] if number == 1 else []
            case TurnDelta(delta):
                return self._delta(delta)
            case CodeStarted(call):
                return [self._live("in_progress", call)]
            case CodeDelta(call, text):
                return [self._live("code.delta", call, delta=text)]
            case CodeWritten(call):
                return [self._live("code.done", call, code=call.code)]
            case RunStarted(call):
                return [self._live("interpreting", call)]
            case CallEnded(call):
                return [self._live("completed", call, status=call.status)]
            case FilesCited():
                self._files = event
            case TurnEnded(turn):
                return self._end_turn(turn)
            case LoopEnded():
                return self._end(event)
        return []

    def _live(self, kind: str, call: CodeCall, **fields: Any) -> Json:
        joint = "_" if kind.startswith("code.") else "."
        event = {"event": f"code_interpreter_call{joint}{kind}", "item_id": call.id, **fields}
        return self._chunk({}, ipy_sandbox=event)

    def _delta(self, delta: Delta) -> list[Json]:
        match delta:
            case TextDelta(_, text, logprobs):
                # The turns' texts are separate messages to the model; here they share one.
                apart = "\n\n" if self._texts_before and not self._text_now else ""
                self._text_now = True
                return [self._chunk({"content": apart + text}, logprobs=_content_logprobs(logprobs))]
            case RefusalDelta(_, text):
                return [self._chunk({"refusal": text})]
            case ReasoningDelta(_, text):
                return [self._chunk({"reasoning_content": text})]
            case CallStarted(slot, call_id, name):
                number = self._functions[slot] = len(self._functions)
                call = {"id": call_id, "type": "function", "function": {"name": name, "arguments": ""}}
                return [self._chunk({"tool_calls": [{"index": number, **call}]})]
            case ArgumentsDelta(slot, text) if slot in self._functions:
                fragment = {"index": self._functions[slot], "function": {"arguments": text}}
                return [self._chunk({"tool_calls": [fragment]})]
        return []

    def _end_turn(self, turn: Turn) -> list[Json]:
        extras = [
            {"index": self._functions[call.slot], **call.extra}
            for call in turn.tool_calls
            if call.slot in self._functions and call.extra
        ]
        return [self._chunk({"tool_calls": extras})] if extras else []

    def _end(self, ended: LoopEnded) -> list[Json]:
        turn = ended.turn
        tools = [executed_tool(call, i, self._client_chars) for i, call in enumerate(ended.calls)]
        cited = file_citations(turn.text, self._files.container_id, self._files.ids)
        message = self._message(turn)
        message |= {"executed_tools": tools} if tools else {}
        message |= {"annotations": [*(message.get("annotations") or []), *cited]} if cited else {}
        usage = None if ended.usage is None else usage_for("chat", ended.usage)
        extras = {k: v for k, v in turn.envelope.items() if k not in ("id", "object", "created", "choices", "usage")}
        about = {**extras, "messages": ended.messages} if ended.calls else extras
        self.response = {
            **self._base,
            "object": "chat.completion",
            "choices": [{"index": 0, "message": message, "logprobs": turn.logprobs, "finish_reason": ended.finish}],
            "usage": usage,
            **about,
        }
        last = {key: value for key, value in message.items() if key not in _STREAMED and value}
        chunks = [self._chunk(last, ended.finish, **{**about, "model": self._base["model"]})]
        if self._usage_wanted:
            chunks.append({**self._base, "object": "chat.completion.chunk", "choices": [], "usage": usage})
        return chunks

    def _message(self, turn: Turn) -> Json:
        shown = {call.id for call in turn.tool_calls if call.slot in self._functions}
        message: Json = {"role": "assistant", "content": None, "refusal": None, "annotations": [], **turn.message}
        message["content"] = turn.text or None
        theirs = [call for call in message.pop("tool_calls", None) or [] if call.get("id") in shown]
        return {**message, "tool_calls": theirs} if theirs else message

    def fail(self, error: UpstreamError) -> list[Json]:
        """The event that ends a completion whose model endpoint failed."""
        failure = getattr(error, "failure", None)
        details = {
            "message": failure.message if failure is not None else str(error),
            "type": (failure.type if failure is not None else None) or "server_error",
            "param": failure.param if failure is not None else None,
            "code": failure.code if failure is not None else None,
        }
        return [{"error": details}]


def _content_logprobs(logprobs: Any) -> Any:
    return {"content": logprobs} if isinstance(logprobs, list) else logprobs
