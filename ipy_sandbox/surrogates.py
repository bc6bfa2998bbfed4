"""Lone surrogates: JSON can bring them (`"\\ud800"`), but no message, file or terminal can carry them on.

The thread that publishes for ipykernel does not survive one, and with it the notebook says nothing any more.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import TypeVar

T = TypeVar("T")

_SURROGATE = re.compile("[\ud800-\udfff]")


def encodable(text: str) -> str:
    """`text` with U+FFFD for lone surrogates."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return _SURROGATE.sub("\ufffd", text)
    return text


def encodable_value(value: T) -> T:
    """A JSON value with U+FFFD for lone surrogates in all its texts; the same object if there are none."""
    if all(encodable(text) is text for text in _texts(value)):
        return value
    made: T = json.loads(encodable(json.dumps(value, ensure_ascii=False)))
    return made


def _texts(value: object) -> Iterator[str]:
    # Without recursion: it may be nested deeper than Python allows.
    left = [value]
    while left:
        match left.pop():
            case str(text):
                yield text
            case dict() as mapping:
                left += mapping.keys()
                left += mapping.values()
            case list() | tuple() as items:
                left += items
