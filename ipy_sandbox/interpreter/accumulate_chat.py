"""Chat completion chunks, or a whole completion, folded into a `Turn`."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from .accumulate import CallIds
from .arguments import ObjectEnd, SurrogateJoiner, replayable, same_json
from .failure import Failure, is_failure
from .shapes import as_dict, as_dicts, as_list, as_str
from .sse import ServerEvent
from .turn import (
    ArgumentsDelta,
    CallStarted,
    Delta,
    FinishReason,
    ReasoningDelta,
    RefusalDelta,
    TextDelta,
    ToolCall,
    Turn,
)

_FINISH_REASONS: dict[str, FinishReason] = {
    "tool_calls": "tool_calls",
    "tool_use": "tool_calls",
    "function_call": "tool_calls",
    "length": "length",
    "max_tokens": "length",
    "model_length": "length",
    "content_filter": "content_filter",
    "safety": "content_filter",
    "error": "error",
}
# Fields that come in pieces; another string that comes again replaces the one before.
_FRAGMENTED = {"reasoning", "reasoning_content", "refusal", "text", "summary", "data", "thinking", "transcript"}
_NOT_OF_THE_MESSAGE = {"content", "tool_calls", "function_call", "index", "obfuscation", "role"}
_NOT_OF_THE_ENVELOPE = {"choices", "usage", "error", "object", "obfuscation"}


@dataclass
class _Call:
    """A call being written. What follows its complete arguments is either their repetition or another call."""

    slot: int
    index: Any
    sent_id: str
    id: str = ""
    name: str = ""
    arguments: str = ""
    complete: bool = False
    extra: dict[str, Any] = field(default_factory=dict)
    end: ObjectEnd = field(default_factory=ObjectEnd)
    joiner: SurrogateJoiner = field(default_factory=SurrogateJoiner)
    follower: _Call | None = None


class ChatAccumulator:
    """Folds the first choice of chat completion chunks; the others are ignored."""

    def __init__(self) -> None:
        self._slots = 0
        self._message_slot: int | None = None
        self._reasoning_slot: int | None = None
        self._text: list[str] = []
        self._reasoning: list[str] = []
        self._reasoning_field: str | None = None
        self._joiners = {"text": SurrogateJoiner(), "reasoning": SurrogateJoiner()}
        self._parts: list[dict[str, Any]] | None = None  # content, once it came as a list
        self._content: str | None = None
        self._message: dict[str, Any] = {}
        self._calls: list[_Call] = []
        self._ids = CallIds()
        self._logprobs: dict[str, Any] = {}
        self._envelope: dict[str, Any] = {}
        self._usage: dict[str, Any] | None = None
        self._finish: str | None = None
        self._done = False
        self._failure: Failure | None = None

    def feed(self, event: ServerEvent) -> list[Delta]:
        """Take one event and return what it adds."""
        self._done = self._done or event.is_done
        return self._take(event.payload, is_error=event.name == "error")

    def feed_body(self, body: Any) -> list[Delta]:
        """Take the whole JSON body of an answer that was not streamed."""
        return self._take(body)

    def _take(self, payload: Any, is_error: bool = False) -> list[Delta]:
        deltas = list(self._chunk(as_dict(payload)))
        if is_error or is_failure(payload):
            self._failure = self._failure or Failure.from_payload(payload)
        return deltas

    def _chunk(self, chunk: dict[str, Any]) -> Iterator[Delta]:
        for name, value in chunk.items():
            # Azure's first chunk has empty strings where the later ones have the values.
            if name not in _NOT_OF_THE_ENVELOPE and value not in (None, "", 0):
                self._envelope[name] = value
        self._note_usage(chunk.get("usage"), as_dict(chunk.get("x_groq")).get("usage"))
        for choice in as_dicts(chunk.get("choices")):
            if choice.get("index") in (0, None):
                yield from self._choice(choice)

    def _note_usage(self, *usages: Any) -> None:
        """Usage is cumulative: the last one counts."""
        self._usage = next((u for u in usages if isinstance(u, dict) and u), self._usage)

    def _choice(self, choice: dict[str, Any]) -> Iterator[Delta]:
        self._note_usage(choice.get("usage"))
        self._finish = as_str(choice.get("finish_reason")) or self._finish
        logprobs = choice.get("logprobs")
        for name, values in as_dict(logprobs).items():
            self._logprobs.setdefault(name, []).extend(as_list(values))
        self._done = self._done or "message" in choice
        yield from self._delta(as_dict(choice.get("delta") or choice.get("message")), logprobs)

    def _delta(self, delta: dict[str, Any], logprobs: Any) -> Iterator[Delta]:
        for name, value in delta.items():
            if name not in _NOT_OF_THE_MESSAGE and value not in (None, []):
                _merge(self._message, name, value)
        yield from self._reason(*_reasoning_of(delta))
        yield from self._say(delta.get("content"), logprobs)
        if refusal := as_str(delta.get("refusal")):
            yield RefusalDelta(self._slot_of_message(), refusal)
        legacy = delta.get("function_call")
        for call in [{"function": legacy}] if legacy else as_dicts(delta.get("tool_calls")):
            yield from self._call(call)

    # Text and reasoning.

    def _reason(self, source: str, text: str) -> Iterator[Delta]:
        # Some gateways send the same reasoning under two names: the first name that came counts.
        if not text or self._reasoning_field not in (None, source):
            return
        self._reasoning_field = source
        if text := self._joiners["reasoning"].feed(text):
            if self._reasoning_slot is None:
                self._reasoning_slot = self._next_slot()
            self._reasoning.append(text)
            yield ReasoningDelta(self._reasoning_slot, text)

    def _say(self, content: Any, logprobs: Any) -> Iterator[Delta]:
        if isinstance(content, list):
            yield from self._say_parts(content, logprobs)
        elif isinstance(content, str):
            self._content = (self._content or "") + content
            if self._parts is not None and content:
                _append_part(self._parts, {"type": "text", "text": content})
            yield from self._say_text(content, logprobs)

    def _say_parts(self, parts: list[Any], logprobs: Any) -> Iterator[Delta]:
        """Mistral's content parts: thinking and text."""
        if self._parts is None:
            self._parts = [{"type": "text", "text": self._content}] if self._content else []
        for part in as_dicts(parts):
            _append_part(self._parts, part)
            if part.get("type") == "thinking":
                yield from self._reason("thinking", _thinking_text(part.get("thinking")))
            else:
                yield from self._say_text(as_str(part.get("text")), logprobs)

    def _say_text(self, text: str, logprobs: Any) -> Iterator[Delta]:
        if text and (text := self._joiners["text"].feed(text)):
            self._text.append(text)
            yield TextDelta(self._slot_of_message(), text, logprobs)

    def _slot_of_message(self) -> int:
        if self._message_slot is None:
            self._message_slot = self._next_slot()
        return self._message_slot

    def _next_slot(self) -> int:
        self._slots += 1
        return self._slots - 1

    # Calls.

    def _call(self, sent: dict[str, Any]) -> Iterator[Delta]:
        function = as_dict(sent.get("function"))
        sent_id, name, arguments = as_str(sent.get("id")), as_str(function.get("name")), function.get("arguments")
        if isinstance(arguments, (dict, list)):
            arguments = json.dumps(arguments, ensure_ascii=False)
        arguments = as_str(arguments)
        call = self._find(sent.get("index"), sent_id, name, arguments)
        call.sent_id = call.sent_id or sent_id
        for extra, value in sent.items():
            if extra not in ("index", "id", "type", "function") and value is not None:
                _merge(call.extra, extra, value)
        if not call.name and name:
            call.name = name
            yield from self._announce(call)
        if arguments:
            yield from self._argue(call, call.joiner.feed(arguments))

    def _find(self, index: Any, sent_id: str, name: str, arguments: str) -> _Call:
        """The call that a fragment belongs to: by id, then by index, else the last one; or a new one."""
        last = next((c for c in reversed(self._calls) if index is None or c.index in (index, None)), None)
        if sent_id:
            same = [c for c in self._calls if c.sent_id == sent_id and (index is None or c.index in (index, None))]
            last_is_it = last is not None and (not last.sent_id or (_is_open(last) and not _is_start(arguments)))
            found = same[-1] if same else last if last_is_it else None
        elif index is None and name and last is not None and last.complete:
            found = None
        else:
            found = last
        return found or self._open(index, sent_id)

    def _open(self, index: Any, sent_id: str) -> _Call:
        call = _Call(self._next_slot(), index, sent_id)
        self._calls.append(call)
        return call

    def _announce(self, call: _Call) -> Iterator[Delta]:
        call.id = self._ids.take(call.sent_id)
        yield CallStarted(call.slot, call.id, call.name)
        if call.arguments:
            yield ArgumentsDelta(call.slot, call.arguments)

    def _argue(self, call: _Call, text: str) -> Iterator[Delta]:
        if call.complete:
            yield from self._follow(call, text)
            return
        end = call.end.feed(text)
        head, tail = (text, "") if end is None else (text[:end], text[end:])
        call.complete = end is not None
        call.arguments += head
        if call.name and head:
            yield ArgumentsDelta(call.slot, head)
        if tail:
            yield from self._follow(call, tail)

    def _follow(self, call: _Call, text: str) -> Iterator[Delta]:
        """Hold back what follows complete arguments until it is known to be a repetition, or another call."""
        follower = call.follower or _Call(-1, call.index, "")
        if not follower.arguments:
            text = text.lstrip()
            if not text.startswith("{"):
                return
        call.follower = follower
        end = follower.end.feed(text)
        follower.arguments += text if end is None else text[:end]
        if end is None:
            return
        call.follower = None
        if not same_json(call.arguments, follower.arguments):
            follower.slot, follower.name, follower.complete = self._next_slot(), call.name, True
            self._calls.append(follower)
            yield from self._announce(follower)
            call = follower
        if rest := text[end:]:
            yield from self._follow(call, rest)

    # The end.

    def finish(self) -> Turn:
        """The turn as far as it got; may be called at any time."""
        complete = self._failure is None and (self._done or self._finish is not None)
        finish = self._finish_reason(complete)
        is_cut = not complete or finish == "length"
        calls = []
        for call in self._calls:
            call.id = call.id or self._ids.take(call.sent_id)
            cut = is_cut and not call.complete
            calls.append(ToolCall(call.slot, call.id, call.name, call.arguments, cut, dict(call.extra)))
        return Turn(
            api="chat",
            text="".join(self._text),
            reasoning="".join(self._reasoning),
            refusal=as_str(self._message.get("refusal")) or None,
            tool_calls=calls,
            finish_reason=finish,
            raw_finish_reason=self._finish,
            status="completed" if complete else "failed" if self._failure else "in_progress",
            usage=self._usage,
            error=self._failure,
            complete=complete,
            message=self._replay(calls),
            envelope=dict(self._envelope),
            logprobs=self._logprobs or None,
        )

    def _finish_reason(self, complete: bool) -> FinishReason:
        if not complete:
            return "error"
        known = _FINISH_REASONS.get((self._finish or "").lower(), "stop")
        if known in ("stop", "tool_calls"):
            return "tool_calls" if self._calls else "stop"
        return known

    def _replay(self, calls: list[ToolCall]) -> dict[str, Any]:
        content = self._content if self._parts is None else self._parts
        message = {"role": "assistant", "content": content, **self._message}
        if calls:
            message["tool_calls"] = [
                {
                    **c.extra,
                    "id": c.id,
                    "type": "function",
                    "function": {"name": c.name, "arguments": replayable(c.arguments)},
                }
                for c in calls
            ]
        return message


def _is_start(arguments: str) -> bool:
    return not arguments or arguments.lstrip().startswith("{")


def _is_open(call: _Call) -> bool:
    return bool(call.arguments) and not call.complete


def _reasoning_of(delta: dict[str, Any]) -> tuple[str, str]:
    """The field that holds this delta's reasoning, and its text."""
    for name in ("reasoning_content", "reasoning"):
        if text := as_str(delta.get(name)):
            return name, text
    details = as_dicts(delta.get("reasoning_details"))
    return "reasoning_details", "".join(as_str(d.get("text") or d.get("summary")) for d in details)


def _thinking_text(thinking: Any) -> str:
    return as_str(thinking) or "".join(as_str(part.get("text")) for part in as_dicts(thinking))


def _append_part(parts: list[dict[str, Any]], part: dict[str, Any]) -> None:
    """Add a content part, joined with the last one if both are text."""
    if part.get("type") == "text" and parts and parts[-1].get("type") == "text":
        parts[-1] = {**parts[-1], **part, "text": as_str(parts[-1].get("text")) + as_str(part.get("text"))}
    elif part.get("type") == "thinking" and parts and parts[-1].get("type") == "thinking":
        _merge(parts[-1], "thinking", part.get("thinking"))
    else:
        parts.append(dict(part))


def _merge(target: dict[str, Any], name: str, value: Any) -> None:
    """Fold one more piece of an unknown field into `target`."""
    before = target.get(name)
    if isinstance(value, dict):
        target[name] = dict(before) if isinstance(before, dict) else {}
        for inner, piece in value.items():
            if piece is not None or inner not in target[name]:
                _merge(target[name], inner, piece)
    elif isinstance(value, list):
        target[name] = list(before) if isinstance(before, list) else []
        for item in value:
            _merge_item(target[name], item)
    elif isinstance(value, str) and isinstance(before, str) and name in _FRAGMENTED:
        target[name] = before + value
    else:
        target[name] = value


def _merge_item(items: list[Any], item: Any) -> None:
    """List entries that carry an `index` come in pieces, too."""
    if isinstance(item, dict):
        index = item.get("index")
        same = (i for i in items if isinstance(i, dict) and index is not None and i.get("index") == index)
        if (known := next(same, None)) is None:
            items.append(known := {})
        for name, value in item.items():
            if value is not None or name not in known:
                _merge(known, name, value)
    else:
        items.append(item)
