"""The little CSS that sanitised HTML may keep: looks, never position, never a URL."""

from __future__ import annotations

import re

_PROPERTIES = re.compile(
    r"""(?: color | background(-color)? | opacity | border(-[a-z]+)* | padding(-[a-z]+)* | margin(-[a-z]+)*
    | font(-[a-z]+)* | line-height | text-(align|decoration(-[a-z]+)*|transform) | vertical-align | letter-spacing
    | white-space | word-(break|wrap) | overflow(-[xy]|-wrap)? | (min-|max-)?(width|height) | display | table-layout
    | list-style-type | caption-side )""",
    re.VERBOSE,
)
_VALUE = re.compile(r"[\w\s#.,%()'\"/+!-]*")
_FUNCTIONS = {"rgb", "rgba", "hsl", "hsla", "linear-gradient"}
_BLOCK = re.compile(r"\s*([^{}]+)\{([^{}]*)\}\s*")
_PANDAS = re.compile(r"\.dataframe\b[\w\s.:>-]*")
_STYLER = re.compile(r"#T_\w+[\w\s.:>-]*")


def safe_style(declarations: str) -> str:
    """The declarations that only change looks; the others are left out.

    A value has no backslash, colon or semicolon and calls no function but colours and gradients, so it can neither
    fetch nor grow into another declaration.
    """
    kept = []
    for declaration in declarations.split(";"):
        name, _, value = (part.strip() for part in declaration.lower().partition(":"))
        if _PROPERTIES.fullmatch(name) and _harmless(name, value):
            kept.append(f"{name}:{value}")
    return ";".join(kept)


def _harmless(name: str, value: str) -> bool:
    functions = re.findall(r"([\w-]*)\(", value)
    outside = name.startswith("margin") and "-" in value
    return bool(value) and bool(_VALUE.fullmatch(value)) and _FUNCTIONS.issuperset(functions) and not outside


def table_sheet(sheet: str) -> str | None:
    """The rules of a sheet that only styles its own table, as pandas' Styler writes; None if it does more.

    Rules for `.dataframe`, which pandas and polars send with every table, are left out: front ends style these
    themselves, and they would apply to all tables of the page.
    """
    if _BLOCK.sub("", sheet).strip():
        return None
    rules = []
    for selectors, declarations in _BLOCK.findall(sheet):
        names = [s.strip() for s in selectors.split(",")]
        if all(_PANDAS.fullmatch(n) for n in names):
            continue
        if not all(_STYLER.fullmatch(n) for n in names):
            return None
        rules.append(f"{', '.join(names)} {{{safe_style(declarations)}}}")
    return "\n".join(rules)
