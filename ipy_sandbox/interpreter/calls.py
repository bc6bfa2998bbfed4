"""One run of code that a model asked for, and the events of the loop around it."""

from __future__ import annotations

import secrets
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

from ..models import CodeExecutionResult, Event
from .render import Rendering
from .turn import Delta, FinishReason, Turn

Status: TypeAlias = Literal["in_progress", "interpreting", "completed", "incomplete", "failed"]


def new_id(prefix: str) -> str:
    """A fresh id such as `ci_…`; OpenAI's are opaque, at most 64 characters of [A-Za-z0-9_-]."""
    return f"{prefix}_{secrets.token_hex(24)}"


@dataclass(slots=True, eq=False)
class CodeCall:
    """A call of the code tool and what became of it.

    `id` is the client's (`ci_…`), `call_id` the model's. `code` is what ran, None if the arguments held none. `note`
    says in words what kept the code from running to its end. `notice` is for the model alone.
    """

    call_id: str
    name: str
    turn: int
    container_id: str
    id: str = field(default_factory=lambda: new_id("ci"))
    arguments: str = ""
    code: str | None = None
    status: Status = "in_progress"
    result: CodeExecutionResult | None = None
    note: str | None = None
    notice: str | None = None
    _rendering: Rendering | None = None

    @property
    def rendering(self) -> Rendering:
        """What model and client see of it; to be asked for when the call is over."""
        if self._rendering is None:
            self._rendering = Rendering(self.result, self.note)
        return self._rendering


@dataclass(frozen=True, slots=True)
class TurnStarted:
    """The model endpoint has accepted turn `number` (from 1)."""

    number: int


@dataclass(frozen=True, slots=True)
class TurnDelta:
    """Something of the model's own that the client shall see: text, reasoning, its own function calls."""

    delta: Delta


@dataclass(frozen=True, slots=True)
class CodeStarted:
    """The model begins to write code; `slot` is the call's place in its turn."""

    call: CodeCall
    slot: int


@dataclass(frozen=True, slots=True)
class CodeDelta:
    """More of the code, as the model writes it."""

    call: CodeCall
    text: str


@dataclass(frozen=True, slots=True)
class CodeWritten:
    """The code is complete; `call.code` has it."""

    call: CodeCall


@dataclass(frozen=True, slots=True)
class FilesCited:
    """Files in the sandbox that the model's text links: the links' paths and the ids for `container_file`."""

    container_id: str
    ids: dict[str, str]


@dataclass(frozen=True, slots=True)
class TurnEnded:
    """The turn is over, its code not yet run."""

    turn: Turn


@dataclass(frozen=True, slots=True)
class RunStarted:
    """The code begins to run."""

    call: CodeCall


@dataclass(frozen=True, slots=True)
class RunOutput:
    """An event of the running code."""

    call: CodeCall
    event: Event


@dataclass(frozen=True, slots=True)
class CallEnded:
    """The call is over, run or not: `call` has its status, result and note."""

    call: CodeCall


@dataclass(frozen=True, slots=True)
class LoopEnded:
    """The last event. `usage` is summed over the turns, in the words of the API that was called."""

    finish: FinishReason
    turn: Turn
    usage: dict[str, Any] | None
    calls: list[CodeCall]
    messages: list[dict[str, Any]]
    """What the loop appended to the conversation: chat messages, text only."""


LoopEvent: TypeAlias = (
    TurnStarted
    | TurnDelta
    | CodeStarted
    | CodeDelta
    | CodeWritten
    | FilesCited
    | TurnEnded
    | RunStarted
    | RunOutput
    | CallEnded
    | LoopEnded
)
