"""The reference of settings and options, made from the code: `python -m ipy_sandbox.magics.reference` prints it."""

from __future__ import annotations

import argparse

from traitlets import HasTraits, TraitType

from .ai import ai_parser
from .arguments import MagicParser
from .sandbox import sandbox_parser
from .session import session_parser
from .settings import AISettings, Settings, environment_variable, setting_traits


def settings_table() -> str:
    """All settings as a Markdown table."""
    lines = ["| setting | environment | default | meaning |", "|---|---|---|---|"]
    sections: list[tuple[str, type[HasTraits]]] = [("SandboxMagics", Settings), ("AIMagics", AISettings)]
    for section, settings in sections:
        for name, trait in sorted(setting_traits(settings).items()):
            variable, default = environment_variable(name), _default(trait)
            lines.append(f"| `{section}.{name}` | `{variable}` | {default} | {_cell(trait.help)} |")
    return "\n".join(lines)


def options_table() -> str:
    """All options of the magics, and all commands of `%sandbox_session` with theirs, as a Markdown table."""
    lines = ["| magic | option | meaning |", "|---|---|---|"]
    lines += _options("%%sandbox", sandbox_parser())
    for name, parser in session_parser().commands().items():
        lines += _options(f"%sandbox_session {name}", parser)
    lines += _options("%%ai", ai_parser())
    return "\n".join(lines)


def _options(magic: str, parser: MagicParser) -> list[str]:
    return [
        f"| `{magic}` | `{_name(action)}` | {_cell(action.help or '').replace('%%', '%')} |"
        for action in parser._actions
        if action.dest not in ("help", "command")
    ]


def _name(action: argparse.Action) -> str:
    value = action.metavar or "\\|".join(action.choices or []) or action.dest
    if not action.option_strings:
        return str(value)
    return ", ".join(action.option_strings) + (f" {value}" if action.nargs is None else "")


def _default(trait: TraitType) -> str:  # type: ignore[type-arg]
    return f"`{trait.default()!r}`"


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


if __name__ == "__main__":
    print(f"{settings_table()}\n\n{options_table()}")
