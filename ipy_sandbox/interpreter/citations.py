"""Links such as `[data](sandbox:/mnt/data/out.csv)` in a model's text, and the annotations for them."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import unquote

_LINK = re.compile(r"\(\s*(sandbox:(/mnt/data/[^)\s]+))")


def links(text: str) -> Iterator[tuple[int, int, str]]:
    """Start, end and path of each link to a file: the offsets, end exclusive, are those of the bare URL."""
    for match in _LINK.finditer(text):
        yield match.start(1), match.end(1), unquote(match.group(2))


def file_citations(text: str, container_id: str, ids: Mapping[str, str]) -> list[dict[str, Any]]:
    """One `container_file_citation` per link to a file of `ids` (path to file id), as OpenAI's API writes them."""
    return [
        {
            "type": "container_file_citation",
            "container_id": container_id,
            "start_index": start,
            "end_index": end,
            "file_id": ids[path],
            "filename": posixpath.basename(path),
        }
        for start, end, path in links(text)
        if path in ids
    ]
