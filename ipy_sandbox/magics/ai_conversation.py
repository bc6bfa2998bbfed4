"""A conversation with a model: what was asked and answered in one session, and what of it the model is told again."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from ..interpreter.store import Stored
from ..safe_output import safe_markdown
from .record import CellRecord

if TYPE_CHECKING:
    from nbformat import NotebookNode

    from ..interpreter.interpreter import Interpreter


@dataclass(slots=True)
class Usage:
    """What answers took; tokens are the endpoint's own numbers, None where it gave none."""

    turns: int = 0
    runs: int = 0
    input_tokens: int | None = None
    output_tokens: int | None = None
    seconds: float = 0.0

    def __add__(self, other: Usage) -> Usage:
        return Usage(
            self.turns + other.turns,
            self.runs + other.runs,
            _sum(self.input_tokens, other.input_tokens),
            _sum(self.output_tokens, other.output_tokens),
            self.seconds + other.seconds,
        )


def _sum(a: int | None, b: int | None) -> int | None:
    return b if a is None else a + (b or 0)


@dataclass(slots=True)
class Exchange:
    """One question and what came of it: `parts` are the answer's texts and cells, in order."""

    prompt: str
    model: str
    parts: list[str | CellRecord] = field(default_factory=list)
    usage: Usage = field(default_factory=Usage)
    stopped: bool = False

    @property
    def text(self) -> str:
        """The last text of the answer."""
        return next((part for part in reversed(self.parts) if isinstance(part, str)), "")

    @property
    def code(self) -> list[str]:
        """The code that the model wrote."""
        return [part.code for part in self.parts if isinstance(part, CellRecord)]


class Conversation:
    """The exchanges of one session. To the interpreter it is the store of finished responses.

    Arguments:
        max_history: how many earlier exchanges the model is told again; None: all.
    """

    def __init__(self, max_history: int | None = None) -> None:
        self.exchanges: list[Exchange] = []
        self.max_history = max_history
        self.interpreters: dict[int, Interpreter] = {}
        """By turn limit; they remember which models do not see."""
        self._stored: list[Stored] = []

    @property
    def previous_id(self) -> str | None:
        """The response that a follow-up goes on from; None: the model is told nothing of before."""
        return str(self._stored[-1].response["id"]) if self._stored and self.max_history != 0 else None

    @property
    def was_stopped(self) -> bool:
        """Whether the user stopped the last answer."""
        return bool(self.exchanges) and self.exchanges[-1].stopped

    @property
    def usage(self) -> Usage:
        """What all answers took together."""
        return sum((exchange.usage for exchange in self.exchanges), Usage())

    async def put(self, identity: str, stored: Stored) -> None:
        """See ResponseStore."""
        self._stored.append(stored)

    async def get(self, identity: str, response_id: str) -> Stored | None:
        """See ResponseStore."""
        last = self._stored[-1] if self._stored else None
        if last is None or last.response["id"] != response_id:
            return None
        if self.max_history is None or len(self._stored) <= self.max_history:
            return last
        # What is left of a cut history is told in items: the endpoint's own words of it hang together.
        recent = self._stored[-self.max_history : -1]
        context = [item for stored in recent for item in [*stored.items, *stored.response["output"]]]
        return replace(last, context=context, history=[], origin="")

    async def delete(self, identity: str, response_id: str) -> bool:
        """See ResponseStore; nobody deletes single answers here."""
        return False

    def cells(self) -> list[NotebookNode]:
        """The conversation as cells: questions and texts as Markdown, code with its outputs as code."""
        from nbformat.v4 import new_markdown_cell

        from .export import code_cell

        cells = []
        for exchange in self.exchanges:
            cells.append(new_markdown_cell(_quoted(exchange.prompt)))
            for part in exchange.parts:
                cells.append(new_markdown_cell(_inert(part)) if isinstance(part, str) else code_cell(part))
        return cells


def _inert(markdown: str) -> str:
    """A model's Markdown for a cell: as it is while nothing in it could act or load, else sanitized HTML."""
    return safe_markdown(markdown) if re.search(r"[<&\[\]]|:", markdown) else markdown


def _quoted(prompt: str) -> str:
    return "\n".join(f"> {line}" for line in _inert(prompt).splitlines())
