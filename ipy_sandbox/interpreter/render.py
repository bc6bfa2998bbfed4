"""What an execution looks like to the model (text, images) and to the client (`outputs` of a code_interpreter_call)."""

from __future__ import annotations

import base64
import binascii
import json
import re
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from ..models import CodeExecutionResult, Display
from ..safe_output.text import safe_text

IMAGE_TYPES = ("image/png", "image/jpeg", "image/webp", "image/gif")
"""What vision models take, and browsers show."""

MOST_IMAGES = 8
LARGEST_IMAGE = 5_000_000
"""Characters of base64; OpenAI, Anthropic and others take about that much."""

LONGEST_TEXT = 1_000_000
"""Characters of one execution that are looked at; a sandbox decides how many there are."""

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


def shorten(text: str, limit: int, missing: int = 0) -> str:
    """`text` with its middle cut out, and a note in its place, if it is longer than `limit` characters.

    Arguments:
        missing: characters that its middle has lost already.
    """
    if len(text) <= limit and not missing:
        return text
    kept = min(len(text), limit)
    head, tail = kept - kept // 2, kept // 2
    gone = len(text) - kept + missing
    return f"{text[:head]}\n[... {gone} characters left out ...]\n{text[len(text) - tail :]}"


def plain(text: str) -> str:
    """`text` without terminal escapes; of a line that was overwritten with carriage returns, the last state."""
    if not _CONTROL.search(text):
        return text
    text = _COLOUR.sub("", safe_text(text)).replace("\b", "").replace("\r\n", "\n")
    return _OVERWRITTEN.sub("", text)


def _image(display: Display) -> Image | None:
    for mime in IMAGE_TYPES:
        data = display.data.get(mime)
        if isinstance(data, str) and (clean := _base64(data)):
            return Image(mime, clean, plain(str(display.data.get("text/plain", ""))[:200]))
    return None


def _base64(data: str) -> str | None:
    clean = "".join(data.split())
    try:
        base64.b64decode(clean, validate=True)
    except (binascii.Error, ValueError):
        return None
    return clean


def _text_of(data: dict[str, Any]) -> str:
    for mime in ("text/plain", "text/markdown", "text/latex"):
        if mime in data:
            return str(data[mime])
    if "application/json" in data:
        return json.dumps(data["application/json"], ensure_ascii=False)
    return f"[output of type {', '.join(data)}]" if data else ""


def _error(name: str, value: str, traceback: str) -> str:
    last = f"{name}: {value}" if value else name
    trace = plain(shorten(traceback, 10 * TRACEBACK_LIMIT)).strip("\n")
    if not trace:
        return shorten(last, TRACEBACK_LIMIT)
    return shorten(trace if last.splitlines()[0] in trace else f"{trace}\n{last}", TRACEBACK_LIMIT)


class Rendering:
    """One execution for model and client. Each part is worked out once, and at most LONGEST_TEXT characters are.

    Arguments:
        result: what it gave, if it ran.
        note: what kept the code from running to its end, if something did.
    """

    def __init__(self, result: CodeExecutionResult | None = None, note: str | None = None) -> None:
        result = result or CodeExecutionResult()
        self._note = note
        self._left = LONGEST_TEXT
        self._missing = 0
        self._stdout = self._plain(result.stdout)
        self._sections: list[str | Image] = [self._stdout]
        if result.stderr.strip():
            self._sections.append(f"[stderr]\n{self._plain(result.stderr)}")
        for display in result.displays:
            self._sections.append(_image(display) or self._plain(_text_of(display.data)))
        if result.error is not None:
            self._sections.append(_error(result.error.name, result.error.value, result.error.traceback))
        if result.truncated:
            self._sections.append(f"[{result.truncated}]")
        self.images = [section for section in self._sections if isinstance(section, Image)]
        """The pictures, in order."""
        self.sendable = [image for image in self.images if len(image.data) <= LARGEST_IMAGE][:MOST_IMAGES]
        """Those that a model which sees is sent."""

    def _plain(self, text: str) -> str:
        if len(text) > self._left:
            # Cleaning takes time in proportion; of more than this nobody sees the middle anyway.
            head, tail = self._left - self._left // 2, self._left // 2
            self._missing += len(text) - self._left
            text = text[:head] + text[len(text) - tail :]
        self._left -= len(text)
        return plain(text)

    def _text(self, beside: Collection[Image]) -> str:
        texts = (s if isinstance(s, str) else "" if s in beside else s.description for s in self._sections)
        return "\n".join(text.strip("\n") for text in texts if text.strip())

    def outputs(self, limit: int) -> list[dict[str, Any]]:
        """The `outputs` of a code_interpreter_call: one `logs` entry if there is text, then the images.

        Arguments:
            limit: characters of the logs.
        """
        logs = self._text(beside=self.images)
        if logs and self._stdout.rstrip("\n").endswith(logs):
            # Only-stdout output keeps its final newline, as the kernel wrote it.
            logs = self._stdout
        logs = shorten(logs, limit, self._missing)
        logs = "\n".join(part for part in (logs.rstrip("\n") if self._note else logs, self._note) if part)
        entries: list[dict[str, Any]] = [{"type": "logs", "logs": logs}] if logs else []
        return entries + [{"type": "image", "url": image.url} for image in self.images]

    def for_model(self, limit: int, *, sees: bool) -> str:
        """The text that the model gets back from a call.

        Arguments:
            limit: characters.
            sees: the pictures are sent beside it, so they need no description.
        """
        body = shorten(self._text(beside=self.sendable if sees else ()), limit, self._missing)
        whole = "\n".join(part for part in (body, self._note) if part)
        return whole or ("[the image is attached]" if self.images else "[no output]")
