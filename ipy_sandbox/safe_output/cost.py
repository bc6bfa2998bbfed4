"""HTML that would keep a parser busy: HTML5 parsers take time with the square of some sizes, without a way to stop."""

from __future__ import annotations

import re
from collections import Counter

_TAG = re.compile(
    r"""<(?P<end>/?)(?P<name>[a-z][^\s/>]*+)
    (?: [\s/]++ | =?[^\s/>=]++ (?: \s*+=\s*+ (?: "[^"]*+" | '[^']*+' | [^\s>"'][^\s>]*+ )? )?+ )*+ (?:>|\Z)""",
    re.IGNORECASE | re.VERBOSE,
)
_OPENING = re.compile(r"<[a-z]", re.IGNORECASE)
_HIDES_TAGS = re.compile(
    r"<[!?]|</?[^a-z/]|<(title|textarea|xmp|noembed|noframes|noscript|plaintext|math)\b", re.IGNORECASE
)
_QUOTED = re.compile(r"\"[^\"]*+\"|'[^']*+'")
_VOID = {"area", "br", "col", "hr", "img", "input", "link", "meta", "wbr"}
_DEPTH = 1_000
_ATTRIBUTES = 200
_UNCLEAR = 100_000


def too_costly(html: str) -> bool:
    """Whether `html` is nested too deep or has a tag with too many attributes, whatever its tags pretend to be."""
    if _HIDES_TAGS.search(html):
        return len(html) > _UNCLEAR or len(_OPENING.findall(html)) > _DEPTH
    still_open: Counter[str] = Counter()
    depth = 0
    for tag in _TAG.finditer(html):
        if len(tag[0]) > _ATTRIBUTES and len(_QUOTED.sub(" ", tag[0]).split()) > _ATTRIBUTES:
            return True
        name = tag["name"].lower()
        if not tag["end"] and name not in _VOID:
            still_open[name] += 1
            depth += 1
            if depth > _DEPTH:
                return True
        elif tag["end"] and still_open[name]:
            still_open[name] -= 1
            depth -= 1
    return False
