"""The Responses surface: the events of the loop as one response, streamed or whole."""

from __future__ import annotations

import time
from typing import Any, ClassVar

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
from .items import CodeItem, Event, FunctionItem, PartsItem, RawItem
from .request import INCLUDE_OUTPUTS, Json
from .turn import (
    API,
    ArgumentsDelta,
    CallStarted,
    Delta,
    ItemDone,
    ItemStarted,
    OtherEvent,
    ReasoningDelta,
    RefusalDelta,
    TextDelta,
    Turn,
)
from .usage import usage_for

AnyItem = PartsItem | FunctionItem | RawItem | CodeItem

ENCRYPTED = "reasoning.encrypted_content"


def skeleton(body: Json, response_id: str, model: str) -> Json:
    """A response that has just begun, with the client's own values, keys in OpenAI's order."""
    return {
        "id": response_id,
        "object": "response",
        "created_at": int(time.time()),
        "status": "in_progress",
        "background": False,
        "error": None,
        "incomplete_details": None,
        "instructions": body.get("instructions"),
        "max_output_tokens": body.get("max_output_tokens"),
        "max_tool_calls": body.get("max_tool_calls"),
        "model": model,
        "output": [],
        "parallel_tool_calls": body.get("parallel_tool_calls", True),
        "previous_response_id": body.get("previous_response_id"),
        "prompt_cache_key": body.get("prompt_cache_key"),
        "reasoning": body.get("reasoning") or {"effort": None, "summary": None},
        "safety_identifier": body.get("safety_identifier"),
        "service_tier": body.get("service_tier", "auto"),
        "store": body.get("store", True) is not False,
        "temperature": body.get("temperature", 1.0),
        "text": body.get("text") or {"format": {"type": "text"}},
        "tool_choice": body.get("tool_choice", "auto"),
        "tools": body.get("tools") or [],
        "top_logprobs": body.get("top_logprobs", 0),
        "top_p": body.get("top_p", 1.0),
        "truncation": body.get("truncation", "disabled"),
        "usage": None,
        "user": body.get("user"),
        "metadata": body.get("metadata") or {},
    }


def shown(response: Json, include: list[str], *, always_outputs: bool) -> Json:
    """A finished response with what the client asked to `include`, as when it was made."""
    hidden = [] if always_outputs or INCLUDE_OUTPUTS in include else [("code_interpreter_call", "outputs")]
    hidden += [] if ENCRYPTED in include else [("reasoning", "encrypted_content")]
    output = []
    for item in response["output"]:
        output.append(item | {name: None for kind, name in hidden if item.get("type") == kind and name in item})
    return {**response, "output": output}


class ResponsesView:
    """Folds the events of the loop into `response`, and gives the events that its client sees.

    Arguments:
        body: the client's request.
        upstream_api: the API the loop calls.
        client_chars: see Limits.
        always_outputs: show outputs to clients that did not `include` them too.
    """

    # Of the endpoint's own response only what it decides itself is shown; the rest concerns our inner requests.
    _THEIRS: ClassVar = ("model", "temperature", "top_p", "service_tier", "truncation", "reasoning", "text", "billing")

    def __init__(
        self, body: Json, *, model: str, upstream_api: API, client_chars: int, always_outputs: bool = False
    ) -> None:
        include = body.get("include") or []
        self._outputs_shown = always_outputs or INCLUDE_OUTPUTS in include
        self._encrypted_shown = ENCRYPTED in include
        self._chat = upstream_api == "chat"
        self._client_chars = client_chars
        self._sequence = 0
        self._slots: dict[int, AnyItem] = {}
        self._codes: dict[str, CodeItem] = {}
        self._items: list[AnyItem] = []
        self._ids: set[str] = set()
        self._outputs: dict[str, list[Json]] = {}
        self._files = FilesCited("", {})
        self.response = skeleton(body, new_id("resp"), model)

    @property
    def started(self) -> bool:
        """Whether the client has seen anything."""
        return self._sequence > 0

    def stored(self) -> Json:
        """The response with all outputs, whatever the client asked for."""
        output = [{**i, "outputs": self._outputs[i["id"]]} if i["id"] in self._outputs else i for i in self._output()]
        return {**self.response, "output": output}

    def _event(self, kind: str, **fields: Any) -> Event:
        event = {"type": kind, "sequence_number": self._sequence, **fields}
        self._sequence += 1
        return event

    def _output(self) -> list[Json]:
        return [item.data for item in self._items]

    def feed(self, event: LoopEvent) -> list[Event]:
        """What the client gets to see of an event of the loop."""
        match event:
            case TurnStarted(number):
                return self._begin(number)
            case TurnDelta(delta):
                return self._delta(delta)
            case CodeStarted(call, slot):
                self._codes[call.id] = code = CodeItem(
                    self._event, len(self._items), call, [] if self._outputs_shown else None
                )
                return self._append(slot, code)
            case CodeDelta(call, text):
                return self._codes[call.id].write(text)
            case CodeWritten(call):
                return self._codes[call.id].written(call.code or "")
            case RunStarted(call):
                return self._codes[call.id].interpreting()
            case CallEnded(call):
                return self._end_call(call)
            case FilesCited():
                self._files = event
            case TurnEnded(turn):
                return self._end_turn(turn)
            case LoopEnded():
                return self._end(event)
        return []

    def _begin(self, number: int) -> list[Event]:
        self._slots = {}
        if number > 1:
            return []
        kinds = ("response.created", "response.in_progress")
        return [self._event(kind, response={**self.response, "output": []}) for kind in kinds]

    def _append(self, slot: int, item: AnyItem) -> list[Event]:
        # A chat endpoint does not say when its text or reasoning is over: the next item does.
        events = self._close_parts() if self._chat else []
        item.index = len(self._items)
        if item.data["id"] in self._ids:
            # Some endpoints number their items anew in each turn; within one response ids are unique.
            item.data["id"] = new_id(item.data["id"].partition("_")[0][:8] or "item")
        self._ids.add(item.data["id"])
        self._items.append(item)
        self._slots[slot] = item
        return [*events, *item.added()]

    def _close_parts(self) -> list[Event]:
        slots = [slot for slot, item in self._slots.items() if isinstance(item, PartsItem)]
        return [event for slot in slots for event in self._close(slot)]

    def _close(self, slot: int, final: Json | None = None) -> list[Event]:
        item = self._slots.pop(slot)
        if isinstance(item, PartsItem):
            item.container_id, item.files = self._files.container_id, self._files.ids
        return item.close(final)

    def _delta(self, delta: Delta) -> list[Event]:
        match delta:
            case TextDelta(slot, text, logprobs, raw):
                events, item = self._parts(slot, "message")
                source = raw and raw.get("content_index")
                return events + item.write("output_text", text, source=source, logprobs=logprobs)
            case RefusalDelta(slot, text, raw):
                events, item = self._parts(slot, "message")
                return events + item.write("refusal", text, source=raw and raw.get("content_index"))
            case ReasoningDelta(slot, text, None) if self._chat:
                events, item = self._parts(slot, "reasoning")
                return events + item.write("reasoning_text", text)
            case CallStarted(slot, call_id, name, raw):
                base = (raw or {}).get("item") or {}
                return self._append(slot, FunctionItem(self._event, 0, call_id, name, base))
            case ArgumentsDelta(slot, text) if isinstance(function := self._slots.get(slot), FunctionItem):
                return function.write(text)
            case ItemStarted(slot, raw_item):
                return self._start_item(slot, raw_item)
            case ItemDone(slot, raw_item):
                opened = [] if slot in self._slots else self._start_item(slot, raw_item)
                return opened + self._close(slot, self._visible(raw_item))
            case OtherEvent() | ReasoningDelta():
                return self._other(delta.slot, delta.event)
        return []

    def _parts(self, slot: int, kind: str) -> tuple[list[Event], PartsItem]:
        opened = self._slots.get(slot)
        if isinstance(opened, PartsItem):
            return [], opened
        data: Json = {"id": new_id("msg"), "type": "message", "status": "in_progress", "role": "assistant"}
        if kind == "reasoning":
            data = {"id": new_id("rs"), "type": "reasoning", "summary": []}
        item = PartsItem(self._event, 0, data)
        return self._append(slot, item), item

    def _start_item(self, slot: int, raw: Json) -> list[Event]:
        raw = self._visible(raw)
        if raw.get("type") == "message":
            item = {**raw, "id": raw.get("id") or new_id("msg"), "status": "in_progress"}
            return self._append(slot, PartsItem(self._event, 0, {"role": "assistant", **item}))
        if raw.get("type") == "function_call":
            call_id, name = str(raw.get("call_id")), str(raw.get("name"))
            return self._append(slot, FunctionItem(self._event, 0, call_id, name, raw))
        return self._append(slot, RawItem(self._event, 0, raw))

    def _visible(self, raw: Json) -> Json:
        # Asked for on our own behalf, to send it back in the next turn.
        return raw if self._encrypted_shown else {k: v for k, v in raw.items() if k != "encrypted_content"}

    def _other(self, slot: int | None, raw: Event | None) -> list[Event]:
        item = None if slot is None else self._slots.get(slot)
        if raw is None:
            return []
        if isinstance(item, RawItem):
            return item.forward(raw)
        if isinstance(item, PartsItem) and raw.get("type") == "response.output_text.annotation.added":
            return item.annotate(raw.get("annotation") or {})
        # The other events of messages and function calls are made anew, in OpenAI's order.
        return []

    def _end_turn(self, turn: Turn) -> list[Event]:
        calls = {call.slot: call for call in turn.tool_calls}
        cut = turn.finish_reason in ("length", "content_filter")
        events: list[Event] = []
        for slot in sorted(self._slots):
            item = self._slots[slot]
            if isinstance(item, CodeItem):
                continue
            final: Json = {"status": "incomplete"} if cut and not isinstance(item, RawItem) else {}
            if isinstance(item, FunctionItem) and slot in calls:
                final |= {**calls[slot].extra, "arguments": calls[slot].arguments}
            events += self._close(slot, final)
        return events

    def _end_call(self, call: CodeCall) -> list[Event]:
        self._outputs[call.id] = outputs = call.rendering.outputs(self._client_chars)
        return self._codes[call.id].ended(call, outputs if self._outputs_shown else None)

    def _end(self, ended: LoopEnded) -> list[Event]:
        theirs = {k: v for k, v in ended.turn.envelope.items() if k in self._THEIRS and v is not None}
        reason = {"length": "max_output_tokens", "content_filter": "content_filter"}.get(ended.finish)
        self.response |= theirs
        self.response |= {
            "status": "incomplete" if reason else "completed",
            "incomplete_details": {"reason": reason} if reason else None,
            "output": self._output(),
            "usage": None if ended.usage is None else usage_for("responses", ended.usage),
        }
        if not reason:
            self.response["completed_at"] = int(time.time())
        return [self._event(f"response.{self.response['status']}", response=self.response)]

    def fail(self, error: UpstreamError) -> list[Event]:
        """The events that end a response whose model endpoint failed."""
        failure = getattr(error, "failure", None)
        message = failure.message if failure is not None else str(error)
        code = (failure.code if failure is not None else None) or "server_error"
        kind = (failure.type if failure is not None else None) or "server_error"
        self.response |= {
            "status": "failed",
            "error": {"code": code, "message": message},
            "output": self._output(),
        }
        details = {"type": kind, "code": code, "message": message, "param": failure.param if failure else None}
        return [self._event("error", error=details), self._event("response.failed", response=self.response)]
