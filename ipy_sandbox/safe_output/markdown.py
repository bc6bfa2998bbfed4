"""Markdown of a sandbox or a model, rendered here: two Markdown parsers never agree, so cleaning the source is not
safe."""

from __future__ import annotations

import functools
import re
from html import escape
from typing import TYPE_CHECKING, Any

from ..surrogates import encodable
from .html import clean_html

if TYPE_CHECKING:
    from markdown_it import MarkdownIt
    from markdown_it.rules_inline import StateInline

_INLINE_MATH = re.compile(r"\$(?![\s\d$])[^$\n]*(?<![\s\\])\$(?!\d)|\$\d[^$\s]*\$(?!\d)")
_LIMIT = 100_000


def safe_markdown(source: str) -> str:
    """`source` (CommonMark, tables, strike-through, formulas) as sanitised HTML; HTML in it is shown as text.

    What is far too long for a text is shown as it is written.
    """
    if len(source) > _LIMIT:
        return f"<pre>{escape(encodable(source))}</pre>"
    return clean_html(_parser().render(encodable(source)))


@functools.cache
def _parser() -> MarkdownIt:
    from markdown_it import MarkdownIt

    parser = MarkdownIt("commonmark", {"html": False}).enable(["table", "strikethrough"])
    parser.inline.ruler.before("escape", "formula", _formula)
    parser.add_render_rule("formula", _render_formula)
    return parser


def _formula(state: StateInline, silent: bool) -> bool:
    """Leave a formula to the page's typesetter: no emphasis, no escapes inside."""
    end = _formula_end(state)
    if end < 0:
        return False
    if not silent:
        state.push("formula", "", 0).content = state.src[state.pos : end]
    state.pos = end
    return True


def _formula_end(state: StateInline) -> int:
    for opening, closing in (("$$", "$$"), (r"\(", r"\)"), (r"\[", r"\]")):
        if state.src.startswith(opening, state.pos):
            # Looked for once: where one formula stays open, all later ones would.
            if closing in state.env:
                return -1
            if (end := state.src.find(closing, state.pos + 2)) < 0:
                state.env[closing] = True
                return -1
            return end + 2
    match = _INLINE_MATH.match(state.src, state.pos, state.posMax)
    return match.end() if match else -1


def _render_formula(renderer: Any, tokens: Any, index: int, options: Any, env: Any) -> str:
    from markdown_it.common.utils import escapeHtml

    return escapeHtml(tokens[index].content)
