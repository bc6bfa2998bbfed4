"""Pictures: what may be shown as one, and files of them."""

from __future__ import annotations

import base64
import binascii
import itertools
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

_STARTS = {
    "image/png": rb"\x89PNG\r\n\x1a\n",
    "image/jpeg": rb"\xff\xd8\xff",
    "image/gif": rb"GIF8[79]a",
    "image/webp": rb"RIFF....WEBP",
}


def is_image_type(mime: str) -> bool:
    """Whether `mime` is a bitmap type that pages may show."""
    return mime in _STARTS


def checked_image(mime: str, encoded: str) -> str:
    """The base64 of an image without line breaks.

    Raises:
        ValueError: it is not base64, or does not begin as such a file does.
    """
    encoded = "".join(encoded.split())
    try:
        start = base64.b64decode(encoded, validate=True)[:16]
    except binascii.Error:
        raise ValueError("not base64") from None
    if not re.match(_STARTS[mime], start, re.DOTALL):
        raise ValueError("not such an image")
    return encoded


def save_images(bundles: Iterable[Mapping[str, Any]], directory: str | Path) -> list[Path]:
    """Write the picture of each MIME bundle that has one to `image-1.png`, ...; no file is overwritten."""
    directory = Path(directory)
    directory.mkdir(parents=True, exist_ok=True)
    return [_write_new(directory, *found) for bundle in bundles if (found := _file_of(bundle))]


def _file_of(bundle: Mapping[str, Any]) -> tuple[str, bytes] | None:
    for mime in _STARTS:
        if mime in bundle:
            return mime.partition("/")[2], base64.b64decode(checked_image(mime, str(bundle[mime])))
    if "image/svg+xml" in bundle:
        return "svg", str(bundle["image/svg+xml"]).encode(errors="replace")
    return None


def _write_new(directory: Path, suffix: str, content: bytes) -> Path:
    for number in itertools.count(1):
        path = directory / f"image-{number}.{suffix}"
        try:
            with path.open("xb") as file:
                file.write(content)
        except FileExistsError:
            continue
        return path
    raise AssertionError("unreachable")
