"""What an execution looks like to the model (text, images) and to the client (`outputs` of a code_interpreter_call)."""

from __future__ import annotations

import base64
import binascii
import json
import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Any

from ..models import CodeExecutionResult, Display
from ..safe_output.text import safe_text

IMAGE_TYPES = ("image/png", "image/jpeg", "image/webp", "image/gif")
"""What vision models take, and browsers show."""

MOST_IMAGES = 8
LARGEST_IMAGE = 5_000_000
"""Characters of base64; OpenAI, Anthropic and others take about that much."""

TRACEBACK_LIMIT = 4000
"""Characters of a traceback: the first frames and the last ones say what matters."""

_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff]")
_COLOUR = re.compile(r"\x1b\[[0-9;:]*m")
_OVERWRITTEN = re.compile(r"[^\n]*\r(?!\n|$)")


@dataclass(frozen=True, slots=True)
class Image:
    """A picture that code produced; `data` is base64."""

    mime: str
    data: str
    title: str = ""

    @property
    def url(self) -> str:
        """The picture as a data URL."""
        return f"data:{self.mime};base64,{self.data}"

    @property
    def description(self) -> str:
        """The picture in words, for a model that does not see."""
        size = f"{len(self.data) * 3 // 4 / 1024:.0f} KB"
        return f"[image {', '.join(part for part in (self.title, self.mime, size) if part)}]"


def shorten(text: str, limit: int) -> str:
    """`text` with its middle cut out, and a note in its place, if it is longer than `limit` characters."""
    if len(text) <= limit:
        return text
    head, tail = limit - limit // 2, limit // 2
    return f"{text[:head]}\n[... {len(text) - head - tail} characters left out ...]\n{text[len(text) - tail :]}"


def plain(text: str) -> str:
    """`text` without terminal escapes; of a line that was overwritten with carriage returns, the last state."""
    if not _CONTROL.search(text):
        return text
    text = _COLOUR.sub("", safe_text(text)).replace("\b", "").replace("\r\n", "\n")
    return _OVERWRITTEN.sub("", text)


def images(result: CodeExecutionResult) -> list[Image]:
    """The pictures of a result, in order; data that is no base64 is left out."""
    return [image for display in result.displays if (image := _image(display))]


def _image(display: Display) -> Image | None:
    for mime in IMAGE_TYPES:
        data = display.data.get(mime)
        if isinstance(data, str) and (clean := _base64(data)):
            return Image(mime, clean, plain(str(display.data.get("text/plain", ""))))
    return None


def _base64(data: str) -> str | None:
    clean = "".join(data.split())
    try:
        base64.b64decode(clean, validate=True)
    except (binascii.Error, ValueError):
        return None
    return clean


def sendable(result: CodeExecutionResult) -> list[Image]:
    """Those pictures that a model which sees is sent: a few, and none that endpoints would refuse for its size."""
    return [image for image in images(result) if len(image.data) <= LARGEST_IMAGE][:MOST_IMAGES]


def text(result: CodeExecutionResult, *, beside: Collection[Image]) -> str:
    """All that is text in a result: stdout, stderr, values and displays, the error, what was left out.

    Arguments:
        beside: the pictures that are sent beside it; the others are described.
    """
    return "\n".join(section.strip("\n") for section in _sections(result, beside) if section.strip())


def _sections(result: CodeExecutionResult, beside: Collection[Image]) -> Iterator[str]:
    yield plain(result.stdout)
    if result.stderr.strip():
        yield f"[stderr]\n{plain(result.stderr)}"
    for display in result.displays:
        if (image := _image(display)) is None:
            yield plain(_text_of(display.data))
        elif image not in beside:
            yield image.description
    if result.error is not None:
        yield _error(result.error.name, result.error.value, result.error.traceback)
    if result.truncated:
        yield f"[{result.truncated}]"


def _text_of(data: dict[str, Any]) -> str:
    for mime in ("text/plain", "text/markdown", "text/latex"):
        if mime in data:
            return str(data[mime])
    if "application/json" in data:
        return json.dumps(data["application/json"], ensure_ascii=False)
    return f"[output of type {', '.join(data)}]" if data else ""


def _error(name: str, value: str, traceback: str) -> str:
    last = f"{name}: {value}" if value else name
    trace = plain(traceback).strip("\n")
    if not trace:
        return last
    return shorten(trace if last.splitlines()[0] in trace else f"{trace}\n{last}", TRACEBACK_LIMIT)


def outputs(
    result: CodeExecutionResult | None, note: str | None, limit: int, include_images: bool = True
) -> list[dict[str, Any]]:
    """The `outputs` of a code_interpreter_call: one `logs` entry if there is text, then the images.

    Arguments:
        note: what kept the code from running to its end, if something did.
        limit: characters of the logs.
    """
    shown = [] if result is None else images(result)
    logs = _logs(result, note)
    entries: list[dict[str, Any]] = [{"type": "logs", "logs": shorten(logs, limit)}] if logs else []
    return entries + [{"type": "image", "url": image.url} for image in shown if include_images]


def _logs(result: CodeExecutionResult | None, note: str | None) -> str:
    body = "" if result is None else text(result, beside=images(result))
    # Only-stdout output keeps its final newline, as the kernel wrote it.
    if result is not None and body and plain(result.stdout).rstrip("\n").endswith(body):
        body = plain(result.stdout)
    return "\n".join(part for part in (body.rstrip("\n") if note else body, note) if part)


def for_model(result: CodeExecutionResult | None, note: str | None, limit: int, *, sees: bool) -> str:
    """The text that the model gets back from a call.

    Arguments:
        sees: the pictures are sent beside it, so they need no description.
        limit: characters.
    """
    body = "" if result is None else text(result, beside=sendable(result) if sees else ())
    whole = "\n".join(part for part in (shorten(body, limit), note) if part)
    if whole:
        return whole
    return "[the image is attached]" if result is not None and images(result) else "[no output]"
