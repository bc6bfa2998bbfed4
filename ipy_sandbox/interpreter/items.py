"""Output items of a response as they are streamed: messages, reasoning, function calls and code, event by event.

The order of events is that of OpenAI's own streams; its clients' accumulators reject any other.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from .calls import CodeCall, new_id
from .citations import file_citations
from .request import Json

Event = Json
MakeEvent = Callable[..., Event]

# Part type: the stem of its events, and the key of its text.
_PARTS = {
    "output_text": ("response.output_text", "text"),
    "refusal": ("response.refusal", "refusal"),
    "reasoning_text": ("response.reasoning_text", "text"),
}


class _Writer:
    """What all items share: the place in the output, and events that name it."""

    def __init__(self, make: MakeEvent, index: int, data: Json) -> None:
        self._make = make
        self.index = index
        self.data = data

    def added(self) -> list[Event]:
        """The item appears."""
        # Copied: the event may be written out when more content is there already.
        item = {key: list(value) if isinstance(value, list) else value for key, value in self.data.items()}
        return [self._make("response.output_item.added", output_index=self.index, item=item)]

    def done(self) -> list[Event]:
        """The item is complete."""
        return [self._make("response.output_item.done", output_index=self.index, item=self.data)]

    def event(self, kind: str, **fields: Any) -> Event:
        """An event about this item."""
        return self._make(kind, output_index=self.index, item_id=self.data["id"], **fields)


class PartsItem(_Writer):
    """A message, or the reasoning of a chat endpoint: content in parts, of which the last one grows."""

    def __init__(self, make: MakeEvent, index: int, data: Json) -> None:
        first: Json = {key: data[key] for key in ("id", "type", "status", "role") if key in data}
        super().__init__(make, index, {**first, **data, "content": []})
        self._text: list[str] = []
        self._logprobs: list[Any] = []
        self._annotations: list[Json] = []
        self._kind: str | None = None
        self._source: Any = None
        self.container_id = ""
        self.files: Mapping[str, str] = {}
        """Files in the sandbox that the text may link: path to file id."""

    @property
    def has_parts(self) -> bool:
        """Whether anything was written."""
        return bool(self.data["content"]) or self._kind is not None

    def write(self, kind: str, text: str, *, source: Any = None, logprobs: Any = None) -> list[Event]:
        """More text; another `kind` or `source` (the upstream's number of the part) begins a new part."""
        events: list[Event] = []
        if (kind, source) != (self._kind, self._source):
            events += self._end_part()
            self._kind, self._source = kind, source
            events.append(self._part_event("response.content_part.added", part=self._part("")))
        self._text.append(text)
        fields: Json = {"delta": text}
        if kind == "output_text":
            fields["logprobs"] = logprobs or []
            self._logprobs += logprobs or []
        return [*events, self._part_event(f"{_PARTS[kind][0]}.delta", **fields)]

    def annotate(self, annotation: Json) -> list[Event]:
        """An annotation of the text of the current part."""
        self._annotations.append(annotation)
        return [
            self._part_event(
                "response.output_text.annotation.added",
                annotation_index=len(self._annotations) - 1,
                annotation=annotation,
            )
        ]

    def close(self, final: Json | None = None) -> list[Event]:
        """The events that end it; what `final` has beside the content is kept."""
        events: list[Event] = []
        if final and not self.has_parts:
            for number, part in enumerate(final.get("content") or []):
                if part.get("type") in _PARTS:
                    text = str(part.get(_PARTS[part["type"]][1]) or "")
                    events += self.write(part["type"], text, source=number, logprobs=part.get("logprobs"))
        events += self._end_part()
        kept = {key: value for key, value in (final or {}).items() if key not in ("id", "content")}
        self.data |= kept
        if self.data["type"] == "message":
            self.data["status"] = kept.get("status") or "completed"
        return [*events, *self.done()]

    def _part(self, text: str) -> Json:
        assert self._kind is not None
        part: Json = {"type": self._kind}
        if self._kind == "output_text":
            part |= {"annotations": list(self._annotations), "logprobs": list(self._logprobs)}
        return {**part, _PARTS[self._kind][1]: text}

    def _part_event(self, kind: str, **fields: Any) -> Event:
        return self.event(kind, content_index=len(self.data["content"]), **fields)

    def _end_part(self) -> list[Event]:
        if self._kind is None:
            return []
        stem, key = _PARTS[self._kind]
        text = "".join(self._text)
        events: list[Event] = []
        done: Json = {key: text}
        if self._kind == "output_text":
            for annotation in file_citations(text, self.container_id, self.files):
                events += self.annotate(annotation)
            done["logprobs"] = list(self._logprobs)
        part = self._part(text)
        events.append(self._part_event(f"{stem}.done", **done))
        events.append(self._part_event("response.content_part.done", part=part))
        self.data["content"].append(part)
        self._kind, self._text, self._logprobs, self._annotations = None, [], [], []
        return events


class FunctionItem(_Writer):
    """A call of one of the client's own functions."""

    def __init__(self, make: MakeEvent, index: int, call_id: str, name: str, raw: Json) -> None:
        super().__init__(make, index, {})
        self.data = {
            **raw,
            "id": raw.get("id") or new_id("fc"),
            "type": "function_call",
            "status": "in_progress",
            "arguments": "",
            "call_id": call_id,
            "name": name,
        }

    def write(self, text: str) -> list[Event]:
        """More of the arguments."""
        self.data["arguments"] += text
        return [self.event("response.function_call_arguments.delta", delta=text)]

    def close(self, final: Json | None = None) -> list[Event]:
        """The events that end it."""
        kept = {k: v for k, v in (final or {}).items() if k not in ("id", "call_id", "name", "type")}
        self.data |= {"status": "completed", **kept}
        arguments, name = self.data["arguments"], self.data["name"]
        return [
            self.event("response.function_call_arguments.done", arguments=arguments, name=name),
            *self.done(),
        ]


class RawItem(_Writer):
    """Any other item of a Responses endpoint: its events pass, renumbered."""

    def __init__(self, make: MakeEvent, index: int, data: Json) -> None:
        super().__init__(make, index, {**data, "id": data.get("id") or new_id("item")})

    def forward(self, event: Event) -> list[Event]:
        """An event of the upstream about this item."""
        fields = {k: v for k, v in event.items() if k not in ("type", "sequence_number", "output_index", "item_id")}
        return [self.event(event["type"], **fields)]

    def close(self, final: Json | None = None) -> list[Event]:
        """The event that ends it."""
        self.data |= {k: v for k, v in (final or {}).items() if k != "id"}
        return self.done()


class CodeItem(_Writer):
    """A code_interpreter_call; `outputs` gives what the client may see of the call's outputs."""

    def __init__(self, make: MakeEvent, index: int, call: CodeCall, no_outputs: list[Json] | None) -> None:
        data = {
            "id": call.id,
            "type": "code_interpreter_call",
            "status": "in_progress",
            "code": "",
            "container_id": call.container_id,
            "outputs": no_outputs,
        }
        super().__init__(make, index, data)

    def added(self) -> list[Event]:
        """The item appears."""
        return [*super().added(), self.event("response.code_interpreter_call.in_progress")]

    def write(self, text: str) -> list[Event]:
        """More of the code."""
        self.data["code"] += text
        return [self.event("response.code_interpreter_call_code.delta", delta=text)]

    def written(self, code: str) -> list[Event]:
        """The code is complete."""
        self.data["code"] = code
        return [self.event("response.code_interpreter_call_code.done", code=code)]

    def interpreting(self) -> list[Event]:
        """The code begins to run."""
        self.data["status"] = "interpreting"
        return [self.event("response.code_interpreter_call.interpreting")]

    def ended(self, call: CodeCall, outputs: list[Json] | None) -> list[Event]:
        """The call is over."""
        self.data |= {"status": call.status, "container_id": call.container_id, "outputs": outputs}
        events = [self.event("response.code_interpreter_call.completed")] if call.status == "completed" else []
        return [*events, *self.done()]

    def close(self, final: Json | None = None) -> list[Event]:
        """The call never came to its end."""
        self.data["status"] = "incomplete"
        return self.done()
