"""Prompts: `{x}`, `{In[3]}`, `{Out[3]}` and `{Err[3]}` become text; every other character stays as it is."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

_REFERENCE = re.compile(r"\{(?:(In|Out|Err)\[(-?\d+)\]|([A-Za-z_]\w*))\}")

MAX_CHARS = 8000
"""Characters of one value that go to the model."""

HEAD_ROWS = 5


def interpolate(prompt: str, names: Mapping[str, Any]) -> str:
    """`prompt` with its references replaced; what names nothing stays, braces and all.

    Arguments:
        names: the user's namespace, with `In`, `Out` and `Err`.
    """

    def replacement(match: re.Match[str]) -> str:
        history, index, name = match.groups()
        try:
            return describe(names[history][int(index)] if history else names[name])
        except (KeyError, IndexError):
            return match[0]

    return _REFERENCE.sub(replacement, prompt)


def describe(value: Any) -> str:
    """`value` as a model reads it best: text itself, tables by shape, types and first rows, the rest by `repr`."""
    if isinstance(value, str):
        return _cut(value)
    if type(value).__name__ in ("DataFrame", "Series") and hasattr(value, "head"):
        return _cut(_describe_table(value))
    if type(value).__name__ == "CellError":
        return _cut(str(value))
    return _cut(repr(value))


def _describe_table(table: Any) -> str:
    types = ", ".join(f"{name}: {kind}" for name, kind in table.dtypes.items()) if table.ndim == 2 else table.dtype
    head = table.head(HEAD_ROWS).to_string()
    return f"{type(table).__name__} of shape {table.shape}, types: {types}\nFirst rows:\n{head}"


def _cut(text: str) -> str:
    if len(text) <= MAX_CHARS:
        return text
    half = MAX_CHARS // 2
    return f"{text[:half]}\n[... {len(text) - 2 * half} characters left out ...]\n{text[-half:]}"
