"""How deep HTML may be nested: an HTML5 parser takes time with the square of it, and cannot be interrupted."""

from __future__ import annotations

import re
from collections import Counter

_TAG = re.compile(
    r"""<(?P<end>/?)(?P<name>[a-z][^\s/>]*+)
    (?: [\s/]++ | =?[^\s/>=]++ (?: \s*+=\s*+ (?: "[^"]*+" | '[^']*+' | [^\s>"'][^\s>]*+ )? )?+ )*+ >""",
    re.IGNORECASE | re.VERBOSE,
)
_OPENING = re.compile(r"<[a-z]", re.IGNORECASE)
_HIDES_TAGS = re.compile(
    r"<[!?]|</?[^a-z/]|<(title|textarea|xmp|noembed|noframes|noscript|plaintext|math)\b", re.IGNORECASE
)
_VOID = {"area", "br", "col", "hr", "img", "input", "link", "meta", "wbr"}


def depth(html: str) -> int:
    """At least the depth of the tree that a browser makes of `html`, which may close its tags or not."""
    if _HIDES_TAGS.search(html):
        return len(_OPENING.findall(html))
    still_open: Counter[str] = Counter()
    now = deepest = 0
    for tag in _TAG.finditer(html):
        name = tag["name"].lower()
        if not tag["end"] and name not in _VOID:
            still_open[name] += 1
            now += 1
            deepest = max(deepest, now)
        elif tag["end"] and still_open[name]:
            still_open[name] -= 1
            now -= 1
    return deepest
