"""Markdown of a sandbox or a model, rendered here: two Markdown parsers never agree, so cleaning the source is not
safe."""

from __future__ import annotations

import functools
import re
from typing import TYPE_CHECKING, Any

from .html import clean_html
from .text import encodable

if TYPE_CHECKING:
    from markdown_it import MarkdownIt
    from markdown_it.rules_inline import StateInline

_MATH = re.compile(
    r"\$\$.+?\$\$ | \$(?![\s\d$])[^$\n]*(?<![\s\\])\$(?!\d) | \$\d[^$\s]*\$(?!\d) | \\\(.+?\\\) | \\\[.+?\\\]",
    re.DOTALL | re.VERBOSE,
)


def safe_markdown(source: str) -> str:
    """`source` (CommonMark, tables, strike-through, formulas) as sanitised HTML; HTML in it is shown as text."""
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
    match = _MATH.match(state.src, state.pos, state.posMax)
    if match is None:
        return False
    if not silent:
        state.push("formula", "", 0).content = match[0]
    state.pos = match.end()
    return True


def _render_formula(renderer: Any, tokens: Any, index: int, options: Any, env: Any) -> str:
    from markdown_it.common.utils import escapeHtml

    return escapeHtml(tokens[index].content)
