"""One model call, whatever API and server it went to: `Delta`s while it streams, a `Turn` when it is over."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

from .arguments import parse_code
from .failure import Failure

API: TypeAlias = Literal["chat", "responses"]
FinishReason: TypeAlias = Literal["stop", "tool_calls", "length", "content_filter", "error"]


@dataclass(frozen=True, slots=True)
class TextDelta:
    """More of the answer's text.

    `slot` numbers the items of this turn (messages, reasoning, calls) from 0, without gaps, in order of appearance.
    `event` is the Responses event that said so, untouched; None when the upstream speaks chat completions.
    """

    slot: int
    text: str
    logprobs: Any = None
    event: dict[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class RefusalDelta:
    """More of a refusal."""

    slot: int
    text: str
    event: dict[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class ReasoningDelta:
    """More of the reasoning, or of its summary."""

    slot: int
    text: str
    event: dict[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class CallStarted:
    """A tool call begins: its name is known; `id` is unique in the turn."""

    slot: int
    id: str
    name: str
    event: dict[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class ArgumentsDelta:
    """More of a call's arguments; joined they are `ToolCall.arguments`."""

    slot: int
    text: str
    event: dict[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class ItemStarted:
    """A Responses item other than a function call begins."""

    slot: int
    item: dict[str, Any]
    event: dict[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class ItemDone:
    """A Responses item is complete."""

    slot: int
    item: dict[str, Any]
    event: dict[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class OtherEvent:
    """Any other Responses event of an item (annotations, parts, web search...); `slot` None: of no item."""

    slot: int | None
    event: dict[str, Any]


Delta: TypeAlias = (
    TextDelta | RefusalDelta | ReasoningDelta | CallStarted | ArgumentsDelta | ItemStarted | ItemDone | OtherEvent
)


@dataclass(slots=True)
class ToolCall:
    """A function call of the model.

    `arguments` is the text the model wrote, repaired only where the server garbled it. `cut`: the turn ended inside
    them, so they must not be used.
    """

    slot: int
    id: str
    name: str
    arguments: str = ""
    cut: bool = False
    extra: dict[str, Any] = field(default_factory=dict)

    def code(self, *, bare: bool = False) -> str | None:
        """The `code` argument; None: there is none that may run.

        Arguments:
            bare: take arguments that are no JSON at all for the code itself; only right for the interpreter's tool.
        """
        return None if self.cut else parse_code(self.arguments, bare=bare)


@dataclass(slots=True)
class Turn:
    """What one model call gave.

    `message` (chat) or `output` (Responses) is to be sent back in the next turn, to the same origin only: it holds all
    the fields the upstream sent, unknown ones included, with the repaired calls. `usage` is what the upstream sent,
    None if nothing. `complete` is False when the answer was cut or ended in an `error`. `envelope` holds the other
    top-level fields (id, model, created, system_fingerprint, service_tier, incomplete_details, ...).
    """

    api: API
    text: str = ""
    reasoning: str = ""
    refusal: str | None = None
    tool_calls: list[ToolCall] = field(default_factory=list)
    finish_reason: FinishReason = "stop"
    raw_finish_reason: str | None = None
    status: str = "completed"
    usage: dict[str, Any] | None = None
    error: Failure | None = None
    complete: bool = False
    message: dict[str, Any] = field(default_factory=dict)
    output: list[dict[str, Any]] = field(default_factory=list)
    envelope: dict[str, Any] = field(default_factory=dict)
    logprobs: dict[str, Any] | None = None
