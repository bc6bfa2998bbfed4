"""HTML of a sandbox: sanitised inline, or in a frame that cannot reach the page."""

from __future__ import annotations

import re
from collections.abc import Sequence
from html import unescape

from ..surrogates import encodable
from .cost import too_costly
from .css import safe_style, table_sheet
from .frame import frame
from .latex import disarm_latex

_TAGS = set(
    """a abbr b blockquote br caption cite code col colgroup dd del details dfn div dl dt em figcaption figure h1 h2 h3
    h4 h5 h6 hr i img ins kbd li mark ol p pre q s samp small span strong sub summary sup table tbody td tfoot th thead
    tr u ul var""".split()
)
_ATTRIBUTES = {
    "*": {"style", "title", "class", "id", "align", "dir"},
    "a": {"href"},
    "img": {"src", "alt", "width", "height"},
    "td": {"colspan", "rowspan"},
    "th": {"colspan", "rowspan", "scope"},
    "table": {"border"},
    "ol": {"start"},
    "details": {"open"},
}
_CLASS = re.compile(r"dataframe|data|blank|index_name|(row|col)_heading|(level|row|col)\d+|language-\w+")
_ID = re.compile(r"T_\w+")
_IMAGE = re.compile(r"data:image/(png|jpeg|gif|webp|svg\+xml)[;,]", re.IGNORECASE)
_STYLE_START = re.compile(r"<style(?=[\s>])[^<>]*>", re.IGNORECASE)
_STYLE_END = re.compile(r"</style\s*>", re.IGNORECASE)
_NEEDS_FRAME = re.compile(
    r"<(script|style|svg|iframe|canvas|object|embed|video|audio|link|button|input|select|textarea)\b", re.IGNORECASE
)
_INLINE_LIMIT = 1_000_000


def safe_html(html: str, *, hosts: Sequence[str] = ()) -> str:
    """`html` sanitised, or, where it needs scripts, its own style sheet or drawing elements, in an isolated frame.

    Arguments:
        hosts: origins (`https://cdn.example.org`) that the frame may load from; the reader's own choice.
    """
    html = encodable(html)
    without, styles = _take_styles(html)
    sheets = [table_sheet(style) for style in styles]
    plain = html if None in sheets else without
    if _NEEDS_FRAME.search(plain) or len(html) > _INLINE_LIMIT or too_costly(plain):
        return frame(html, hosts=hosts)
    sheet = "\n".join(s for s in sheets if s)
    style = f"<style>\n{sheet}\n</style>\n" if sheet else ""
    return style + clean_html(plain)


def _take_styles(html: str) -> tuple[str, list[str]]:
    """The HTML without its style elements, and their contents."""
    rest, styles, at = [], [], 0
    while (start := _STYLE_START.search(html, at)) and (end := _STYLE_END.search(html, start.end())):
        rest.append(html[at : start.start()])
        styles.append(html[start.end() : end.start()])
        at = end.end()
    return "".join([*rest, html[at:]]), styles


def text_of(html: str) -> str:
    """The text of sanitised HTML, a line for each block and table row; nothing for a frame."""
    if "<iframe" in html:
        return ""
    text = re.sub(r"<style>.*?</style>", "", html, flags=re.DOTALL)
    text = re.sub(r"</t[dh]>\s*(?=<t[dh])", "\t", text)
    text = re.sub(r"</?(p|div|h\d|li|tr|br|pre|table|ul|ol|dt|dd|blockquote|caption)\b[^>]*>", "\n", text)
    lines = (line.strip(" ") for line in unescape(re.sub(r"<[^>]*>", "", text)).splitlines())
    return "\n".join(line for line in lines if line)


def clean_html(html: str) -> str:
    """`html` without anything that runs, fetches, submits, or reaches out of its place on the page."""
    import nh3

    cleaned = nh3.clean(
        html,
        tags=_TAGS,
        clean_content_tags={"script", "style", "template", "title", "noscript", "iframe", "noembed", "noframes"},
        attributes=_ATTRIBUTES,
        attribute_filter=_attribute,
        url_schemes={"https", "mailto", "data"},
        set_tag_attribute_values={"a": {"target": "_blank"}},
        link_rel="noopener noreferrer",
    )
    # What it draws stays in its own box, whatever its sizes.
    boxed = f'<div style="contain:paint;overflow-x:auto">{cleaned}</div>' if "style=" in cleaned else cleaned
    return disarm_latex(boxed)


def _attribute(tag: str, name: str, value: str) -> str | None:
    match name:
        case "style":
            return safe_style(value) or None
        case "class":
            return " ".join(c for c in value.split() if _CLASS.fullmatch(c)) or None
        case "id":
            return value if _ID.fullmatch(value) else None
        case "src":
            return value if _IMAGE.match(value) else None
        case "href":
            return value if re.match(r"https://|mailto:", value, re.IGNORECASE) else None
    return value
