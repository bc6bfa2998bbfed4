"""Responses events, or a whole response, folded into a `Turn`."""

from __future__ import annotations

import dataclasses
import itertools
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from .accumulate import CallIds
from .arguments import SurrogateJoiner, is_json_object, replayable
from .failure import Failure, is_failure
from .shapes import as_dict, as_dicts, as_str
from .sse import ServerEvent
from .turn import (
    ArgumentsDelta,
    CallStarted,
    Delta,
    FinishReason,
    ItemDone,
    ItemStarted,
    OtherEvent,
    ReasoningDelta,
    RefusalDelta,
    TextDelta,
    ToolCall,
    Turn,
)

_LIFECYCLE = {"queued", "created", "in_progress", "completed", "incomplete", "failed", "cancelled"}
_FINAL = {"completed", "incomplete", "failed", "cancelled"}
# Which items an event can belong to, by the start of its name.
_OWNERS = {
    "output_text.": "message",
    "content_part.": "message",
    "refusal.": "message",
    "reasoning": "reasoning",
    "function_call_arguments.": "function_call",
}
_REASONING_DELTAS = ("reasoning_text.delta", "reasoning_summary_text.delta", "reasoning.delta")
_NOT_OF_THE_ENVELOPE = {"output", "usage", "error"}


@dataclass(eq=False)
class _Item:
    """An output item: `sent` as it was last seen whole, and what its deltas have given so far."""

    slot: int
    index: Any
    sent: dict[str, Any]
    done: bool = False
    call_id: str = ""
    streamed: str = ""  # text of a message, arguments of a call
    refusal: str = ""
    reasoning: str = ""
    joiner: SurrogateJoiner = field(default_factory=SurrogateJoiner)

    @property
    def kind(self) -> str:
        return as_str(self.sent.get("type"))


class ResponsesAccumulator:
    """Folds the events of one streamed response; items are matched whichever of their keys the server gets right."""

    def __init__(self) -> None:
        self._items: list[_Item] = []
        self._ids = CallIds()
        self._response: dict[str, Any] = {}
        self._status = "in_progress"
        self._failure: Failure | None = None

    def feed(self, event: ServerEvent) -> list[Delta]:
        """Take one event and return what it adds."""
        payload = event.payload
        if isinstance(payload, dict) and isinstance(payload.get("output"), list) and "type" not in payload:
            return self.feed_body(payload)
        if event.name == "error" or is_failure(payload):
            self._fail(payload)
        elif isinstance(payload, dict):
            return list(self._event(as_str(payload.get("type")) or event.name, payload))
        return []

    def feed_body(self, body: Any) -> list[Delta]:
        """Take the whole JSON body of an answer that was not streamed."""
        if isinstance(body, dict) and isinstance(body.get("output"), list):
            return list(self._lifecycle(as_str(body.get("status")) or "completed", body))
        if is_failure(body):
            self._fail(body)
        return []

    def _fail(self, payload: Any) -> None:
        self._status = "failed"
        if self._failure is None:
            failure = Failure.from_payload(payload)
            self._failure = dataclasses.replace(failure, code=failure.code or failure.type)

    def _event(self, kind: str, event: dict[str, Any]) -> Iterator[Delta]:
        name = kind.removeprefix("response.")
        if name in _LIFECYCLE:
            yield from self._lifecycle(name, as_dict(event.get("response")))
        elif name == "output_item.added":
            yield from self._item_added(event.get("output_index"), as_dict(event.get("item")), event)
        elif name == "output_item.done":
            yield from self._item_done(event.get("output_index"), as_dict(event.get("item")), event)
        elif owner := next((o for prefix, o in _OWNERS.items() if name.startswith(prefix)), None):
            yield from self._item_event(name, owner, event)
        elif kind != "keepalive":
            item = self._find(event.get("output_index"), event.get("item_id"))
            yield OtherEvent(item.slot if item else None, event)

    def _lifecycle(self, name: str, response: dict[str, Any]) -> Iterator[Delta]:
        self._response = {**self._response, **response}
        status = as_str(response.get("status")) or name
        self._status = name if name in _FINAL else status
        if self._status in ("queued", "created"):
            self._status = "in_progress"
        if response.get("error"):
            self._fail(response["error"])
        listed = as_dicts(response.get("output"))
        if len(listed) > len(self._items):
            # A whole body, or a server that announces fewer items than it lists in the end.
            unlisted = list(self._items)
            for index, item in enumerate(listed):
                known = self._find(index, item.get("id"), as_str(item.get("type")), item.get("call_id"))
                if known in unlisted:
                    unlisted.remove(known)
                else:
                    yield from self._item_done(index, item, None)

    # Items.

    def _find(self, index: Any, item_id: Any = None, kind: str | None = None, call_id: Any = None) -> _Item | None:
        """The item that an event means: by call id, output index, item id, or else the open one of that kind."""
        items = [i for i in reversed(self._items) if kind in (None, i.kind)]
        by_call = (i for i in items if call_id and i.sent.get("call_id") == call_id)
        by_index = (i for i in items if index is not None and i.index == index)
        by_id = (i for i in items if item_id and i.sent.get("id") == item_id)
        still_open = (i for i in items if kind and not i.done)
        return next(itertools.chain(by_call, by_index, by_id, still_open), None)

    def _item_added(self, index: Any, item: dict[str, Any], event: dict[str, Any] | None) -> Iterator[Delta]:
        added = _Item(len(self._items), index, item)
        self._items.append(added)
        if added.kind != "function_call":
            yield ItemStarted(added.slot, item, event)
            return
        added.call_id = self._ids.take(as_str(item.get("call_id") or item.get("id")))
        yield CallStarted(added.slot, added.call_id, as_str(item.get("name")), event)

    def _item_done(self, index: Any, item: dict[str, Any], event: dict[str, Any] | None) -> Iterator[Delta]:
        found = self._find(index, item.get("id"), as_str(item.get("type")), item.get("call_id"))
        if found is None or found.done:
            yield from self._item_added(index, item, None)
            found = self._items[-1]
        found.sent, found.done = item, True
        yield from self._catch_up(found)
        yield ItemDone(found.slot, item, event)

    def _catch_up(self, item: _Item) -> Iterator[Delta]:
        """What the whole item has and no delta brought."""
        if item.kind == "function_call":
            whole = _arguments(item.sent.get("arguments"))
            if not item.streamed and whole:
                item.streamed = whole
                yield ArgumentsDelta(item.slot, whole)
        elif item.kind == "message":
            text = _text_of(item.sent, "output_text", "text")
            if not item.streamed and text:
                item.streamed = text
                yield TextDelta(item.slot, text)
            refusal = _text_of(item.sent, "refusal", "refusal")
            if not item.refusal and refusal:
                item.refusal = refusal
                yield RefusalDelta(item.slot, refusal)
        elif item.kind == "reasoning" and not item.reasoning and (text := _reasoning_of(item.sent)):
            item.reasoning = text
            yield ReasoningDelta(item.slot, text)

    def _item_event(self, name: str, owner: str, event: dict[str, Any]) -> Iterator[Delta]:
        item = self._find(event.get("output_index"), event.get("item_id"), owner)
        if item is None:
            made = {"type": owner, "id": event.get("item_id") or ""}
            yield from self._item_added(event.get("output_index"), made, None)
            item = self._items[-1]
        delta = event.get("delta")
        if name == "function_call_arguments.delta":
            text = item.joiner.feed(_arguments(delta))
            item.streamed += text
            yield ArgumentsDelta(item.slot, text, event)
        elif not isinstance(delta, str) or not name.endswith(".delta"):
            yield OtherEvent(item.slot, event)
        elif name == "output_text.delta":
            text = item.joiner.feed(delta)
            item.streamed += text
            yield TextDelta(item.slot, text, event.get("logprobs") or None, event)
        elif name == "refusal.delta":
            item.refusal += delta
            yield RefusalDelta(item.slot, delta, event)
        elif name in _REASONING_DELTAS:
            item.reasoning += delta
            yield ReasoningDelta(item.slot, delta, event)
        else:
            yield OtherEvent(item.slot, event)

    # The end.

    def finish(self) -> Turn:
        """The turn as far as it got; may be called at any time."""
        complete = self._status in _FINAL and (self._failure is None or bool(self._response.get("error")))
        items = self._items
        is_cut = self._status != "completed"
        calls = [_tool_call(i, is_cut) for i in items if i.kind == "function_call"]
        details = as_dict(self._response.get("incomplete_details"))
        return Turn(
            api="responses",
            text="".join(i.streamed for i in items if i.kind == "message"),
            reasoning="".join(i.reasoning for i in items),
            refusal="".join(i.refusal for i in items) or None,
            tool_calls=calls,
            finish_reason=self._finish_reason(details.get("reason"), bool(calls)),
            raw_finish_reason=as_str(details.get("reason")) or None,
            status=self._status,
            usage=as_dict(self._response.get("usage")) or None,
            error=self._failure,
            complete=complete,
            output=[_replay(i, calls) for i in items],
            envelope={k: v for k, v in self._response.items() if k not in _NOT_OF_THE_ENVELOPE},
        )

    def _finish_reason(self, reason: Any, has_calls: bool) -> FinishReason:
        if self._status == "incomplete":
            return "content_filter" if reason == "content_filter" else "length"
        if self._status != "completed":
            return "error"
        return "tool_calls" if has_calls else "stop"


def _tool_call(item: _Item, turn_is_cut: bool) -> ToolCall:
    arguments = _arguments(item.sent.get("arguments")) or item.streamed
    cut = (turn_is_cut or item.sent.get("status") == "incomplete") and not is_json_object(arguments)
    return ToolCall(item.slot, item.call_id, as_str(item.sent.get("name")), arguments, cut)


def _replay(item: _Item, calls: list[ToolCall]) -> dict[str, Any]:
    call = next((c for c in calls if c.slot == item.slot), None)
    if call is None:
        return item.sent
    return {**item.sent, "call_id": call.id, "arguments": replayable(call.arguments)}


def _arguments(value: Any) -> str:
    if isinstance(value, (dict, list)):
        return json.dumps(value, ensure_ascii=False)
    return as_str(value)


def _text_of(item: dict[str, Any], kind: str, name: str) -> str:
    content = item.get("content")
    whole = as_str(content) if kind == "output_text" else ""
    return whole or "".join(as_str(part.get(name)) for part in as_dicts(content) if part.get("type") == kind)


def _reasoning_of(item: dict[str, Any]) -> str:
    parts = [*as_dicts(item.get("summary")), *as_dicts(item.get("content"))]
    return "".join(as_str(part.get("text")) for part in parts)
