"""The commands of `%ai`: what one can do with a conversation besides asking."""

from __future__ import annotations

import argparse
import functools
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from IPython.core.error import UsageError

from .ai_conversation import Exchange, Usage
from .bridge import wait
from .frontend import count, show_line
from .table import Table

if TYPE_CHECKING:
    from ..interpreter.catalog import Route
    from .ai_ask import Asker

Command = Callable[[], "Table | None"]


def find_command(ai: Asker, line: str, args: argparse.Namespace) -> Command | None:
    """The command that `line` is; None if it is a question: a command has exactly its own number of words."""
    words = line.split()
    if not words or words[0] not in COMMANDS:
        return None
    function, arity = COMMANDS[words[0]]
    if len(words) == 1 and 0 not in arity:
        raise UsageError(f"%ai {words[0]} needs more: see `%ai --help`.")
    if len(words) - 1 not in arity:
        return None
    return functools.partial(function, ai, args, *words[1:])


def reset(ai: Asker, args: argparse.Namespace) -> None:
    """Forget the conversation; the sandbox keeps its state."""
    ai.conversations.pop(ai.target(args).name, None)


def history(ai: Asker, args: argparse.Namespace) -> Table:
    """The questions and answers so far."""
    exchanges = ai.conversation(args).exchanges
    rows = [
        [str(i), _short(e.prompt), _short(e.text), e.model, str(e.usage.turns), str(e.usage.runs)]
        for i, e in enumerate(exchanges, 1)
    ]
    return Table(["", "question", "answer", "model", "turns", "runs"], rows, "Nothing was asked in this session yet.")


def usage(ai: Asker, args: argparse.Namespace) -> Table:
    """Tokens, calls and seconds by model, over all conversations of this notebook."""
    by_model: dict[str, list[Exchange]] = {}
    for conversation in ai.conversations.values():
        for exchange in conversation.exchanges:
            by_model.setdefault(exchange.model, []).append(exchange)
    rows = [_usage_row(ai, model, exchanges) for model, exchanges in sorted(by_model.items())]
    header = ["model", "questions", "turns", "runs", "input tokens", "output tokens", "seconds", "price"]
    return Table(header, rows, "Nothing was asked yet.")


def _usage_row(ai: Asker, model: str, exchanges: list[Exchange]) -> list[str]:
    total = sum((exchange.usage for exchange in exchanges), Usage())
    price = ai.price(model, total)
    tokens = ["-" if n is None else str(n) for n in (total.input_tokens, total.output_tokens)]
    cost = "-" if price is None else f"${price:.4f}"
    return [model, str(len(exchanges)), str(total.turns), str(total.runs), *tokens, f"{total.seconds:.1f}", cost]


def model(ai: Asker, args: argparse.Namespace, name: str | None = None) -> None:
    """Use another model from now on, or say which one it is."""
    if name is not None:
        args.model = name
    route = ai.route(args)
    if name is not None:
        ai.settings.model = name
    show_line(ai.shell, f"Model: {route.model} at {route.host}.")


def models(ai: Asker, args: argparse.Namespace) -> Table:
    """What the model's server offers."""
    route = ai.route(args)
    offered = wait(_offered(route))
    names = sorted(str(entry.get("id")) for entry in offered)
    return Table([f"models of {route.host}"], [[name] for name in names], f"{route.host} offers no model.")


async def _offered(route: Route) -> list[dict[str, Any]]:
    from ..interpreter.upstream import shared

    return await shared().models(route)  # those of the loop that runs this


def fix(ai: Asker, args: argparse.Namespace) -> None:
    """Ask for an explanation and a repair of the last error, local or in the sandbox."""
    errors = ai.errors
    if not errors:
        raise UsageError("There is no error to fix: no cell has failed since the extension was loaded.")
    number = max(errors)
    code = ai.shell.user_ns["In"][number]
    ai.ask(
        "Explain this error in a sentence or two, then give the corrected code, run it to check that it works, and "
        f"show it.\n\nThe cell:\n```python\n{code}\n```\n\nThe error:\n```\n{errors[number].traceback}\n```",
        args,
    )


def insert(ai: Asker, args: argparse.Namespace) -> None:
    """Put the last code that the model ran into a new cell."""
    code = [code for exchange in ai.conversation(args).exchanges for code in exchange.code]
    if not code:
        raise UsageError("There is no code to insert: the model has run none in this session.")
    ai.shell.set_next_input(f"%%sandbox\n{code[-1]}")


def export(ai: Asker, args: argparse.Namespace, path: str) -> None:
    """Write the conversation to a notebook."""
    from .export import write_notebook

    conversation = ai.conversation(args)
    write_notebook(Path(path).expanduser(), conversation.cells())
    show_line(ai.shell, f"The conversation ({count(len(conversation.exchanges), 'question')}) is in {path}.")


def _short(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= 60 else f"{line[:59]}…"


COMMANDS: dict[str, tuple[Callable[..., Table | None], range]] = {
    "reset": (reset, range(1)),
    "history": (history, range(1)),
    "usage": (usage, range(1)),
    "model": (model, range(2)),
    "models": (models, range(1)),
    "fix": (fix, range(1)),
    "insert": (insert, range(1)),
    "export": (export, range(1, 2)),
}
