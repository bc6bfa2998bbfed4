"""LaTeX for MathJax and KaTeX, without the commands that link, fetch, style the page or define others."""

from __future__ import annotations

import re

_UNSAFE = frozenset(
    """href url hyperref style class unicode cssId data require bbox mmlToken mmltoken texttip mathtip tooltip toggle
    action includegraphics htmlId htmlClass htmlStyle htmlData html img input include write openout catcode csname
    def gdef edef xdef let futurelet newcommand renewcommand providecommand newenvironment renewenvironment
    DeclareMathOperator DeclarePairedDelimiter Newextarrow""".split()
)
_COMMAND = re.compile(r"\\([A-Za-z]+|.)", re.DOTALL)
_WORD_JOINER = "\u2060"


def safe_latex(source: str) -> str:
    """`source` without unsafe commands; `<` before a letter gets a space, which means the same to TeX and
    nothing to a front end that puts the source into a page unescaped."""
    cleaned = _COMMAND.sub(lambda m: "{}" if m[1] in _UNSAFE else m[0], source)
    return re.sub(r"<(?=[A-Za-z/!?])", "< ", cleaned)


def disarm_latex(html: str) -> str:
    """HTML whose text may hold formulas, with an invisible character inside unsafe commands: prose about them looks
    the same, and a front end that typesets formulas in HTML does not know them."""
    return _COMMAND.sub(lambda m: f"\\{_WORD_JOINER}{m[1]}" if m[1] in _UNSAFE else m[0], html)
