"""The `code` inside a tool call's arguments: read whole, or piece by piece while the model still writes it."""

from __future__ import annotations

import json
import re
from typing import Any

from ..surrogates import encodable

_WHITESPACE = " \t\r\n"
_PLAIN = re.compile(r'[^"\\]+')
_ESCAPE = re.compile(r"\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|\\u[0-9a-fA-F]{4}|\\[^u]")
_CUT_ESCAPE = re.compile(r"(\\u[dD][89abAB][0-9a-fA-F]{2})?(\\(u[0-9a-fA-F]{0,3})?)?\Z")


def parse_code(arguments: str, *, bare: bool = False) -> str | None:
    """The string under `code` in a JSON object (which may be encoded twice); None if there is none.

    Arguments:
        bare: take text that is no JSON at all for the code itself, as models trained on a `python` tool write it.
    """
    text = arguments.strip(_WHITESPACE)
    if not text or text == "null":
        return None
    if text[0] not in '{["':
        return encodable(arguments) if bare else None
    try:
        # Models put raw newlines into strings (strict), and may name `code` twice: the first was already streamed.
        value = json.loads(text, strict=False, object_pairs_hook=lambda pairs: dict(reversed(pairs)))
    except (ValueError, RecursionError):
        return None
    if isinstance(value, str):
        return parse_code(value, bare=bare)
    code = value.get("code") if isinstance(value, dict) else None
    return encodable(code) if isinstance(code, str) else None


def is_json_object(text: str) -> bool:
    """Whether `text` is one JSON object."""
    return _load(text, dict) is not None


def replayable(arguments: str) -> str:
    """Arguments for the history: strict servers answer 400 or 500 there to anything but a JSON object."""
    if is_json_object(arguments):
        return arguments
    code = parse_code(arguments, bare=True)
    return "{}" if code is None else json.dumps({"code": code}, ensure_ascii=False)


def same_json(one: str, other: str) -> bool:
    """Whether two texts are the same JSON object."""
    return one == other or ((value := _load(one, dict)) is not None and value == _load(other, dict))


def _load(text: str, kind: type) -> Any:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, kind) else None


class SurrogateJoiner:
    """Makes characters whole again that were cut between the UTF-16 halves of an escape (`"\\ud83d"`, `"\\ude00"`)."""

    def __init__(self) -> None:
        self._half = ""

    def feed(self, text: str) -> str:
        """`text` with what was held back before it, without a half at its end."""
        if not self._half and text.isascii():
            return text
        text, self._half = self._half + text, ""
        if "\ud800" <= text[-1:] <= "\udbff":
            text, self._half = text[:-1], text[-1]
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


class ObjectEnd:
    """Finds where a JSON object that arrives in fragments ends."""

    _OUTSIDE = re.compile(r'["{}\[\]]')
    _INSIDE = re.compile(r'["\\]')

    def __init__(self) -> None:
        self._started: bool | None = None
        self._depth = 0
        self._in_string = False
        self._escaped = False

    def feed(self, text: str) -> int | None:
        """The position in `text` after the object's end; None if it has not ended, or is no object."""
        i = 0
        if self._started is None and (visible := text.lstrip(_WHITESPACE)):
            self._started = visible[0] == "{"
        if not self._started:
            return None
        if self._escaped and text:
            i, self._escaped = 1, False
        while match := (self._INSIDE if self._in_string else self._OUTSIDE).search(text, i):
            i = match.end()
            if match[0] == "\\":
                self._escaped = i == len(text)
                i += 1
            elif match[0] == '"':
                self._in_string = not self._in_string
            else:
                self._depth += 1 if match[0] in "{[" else -1
                if self._depth == 0:
                    return i
        return None


class _StringReader:
    """Decodes the inside of a JSON string that arrives in fragments."""

    def __init__(self) -> None:
        self._cut = ""

    def feed(self, text: str) -> tuple[str, str | None]:
        """What `text` decodes to, and what follows the closing quote (None: it is still to come)."""
        text, self._cut = self._cut + text, ""
        out: list[str] = []
        i = 0
        while i < len(text):
            if plain := _PLAIN.match(text, i):
                out.append(encodable(plain[0]))
                i = plain.end()
            elif text[i] == '"':
                return "".join(out), text[i + 1 :]
            elif _CUT_ESCAPE.match(text, i):
                self._cut = text[i:]
                break
            else:
                escape = _ESCAPE.match(text, i)
                out.append(_unescape(escape[0] if escape else text[i]))
                i = escape.end() if escape else i + 1
        return "".join(out), None


def _unescape(escape: str) -> str:
    try:
        return encodable(json.loads(f'"{escape}"'))
    except ValueError:
        return escape


class CodeDecoder:
    """Turns fragments of arguments into pieces of the code itself, as they arrive.

    The pieces joined are what `parse_code` gives for the joined fragments, wherever they were cut.
    """

    def __init__(self, *, bare: bool = False) -> None:
        self._bare = bare
        self._state = self._start
        self._held = ""
        self._string = _StringReader()
        self._key = ""
        self._depth = 0
        self._inner: CodeDecoder | None = None
        self._out: list[str] = []

    def feed(self, fragment: str) -> str:
        """The code that `fragment` adds, empty if none."""
        rest: str | None = fragment
        while rest:
            rest = self._state(rest)
        code = "".join(self._out)
        self._out.clear()
        return code

    # Each state takes the text at hand and returns what is left for the next one; None or "" waits for more.

    def _start(self, text: str) -> str | None:
        text, self._held = self._held + text, ""
        visible = text.lstrip(_WHITESPACE)
        if not visible:
            self._held = text
        elif visible[0] == "{":
            self._state = self._before_key
            return visible[1:]
        elif visible[0] == '"':
            self._inner = CodeDecoder(bare=self._bare)
            self._state = self._encoded_twice
            return visible[1:]
        else:
            self._state = self._copy if self._bare and visible[0] != "[" else self._ignore
            return text
        return None

    def _copy(self, text: str) -> None:
        self._out.append(encodable(text))

    def _ignore(self, text: str) -> None:
        return None

    def _encoded_twice(self, text: str) -> str | None:
        decoded, rest = self._string.feed(text)
        assert self._inner is not None
        self._out.append(self._inner.feed(decoded))
        if rest is not None:
            self._state = self._ignore
        return rest

    def _before_key(self, text: str) -> str | None:
        text = text.lstrip(_WHITESPACE + ",")
        if not text:
            return None
        self._state = self._in_key if text[0] == '"' else self._ignore
        self._key, self._string = "", _StringReader()
        return text[1:]

    def _in_key(self, text: str) -> str | None:
        decoded, rest = self._string.feed(text)
        self._key += decoded
        if rest is not None:
            self._state = self._before_value
        return rest

    def _before_value(self, text: str) -> str | None:
        text = text.lstrip(_WHITESPACE + ":")
        if not text:
            return None
        self._depth, self._string = 0, _StringReader()
        if self._key != "code":
            self._state = self._skip_value
            return text
        self._state = self._in_code if text[0] == '"' else self._ignore
        return text[1:]

    def _in_code(self, text: str) -> str | None:
        decoded, rest = self._string.feed(text)
        self._out.append(decoded)
        if rest is not None:
            self._state = self._ignore
        return rest

    def _skip_value(self, text: str) -> str | None:
        for i, char in enumerate(text):
            if char == '"':
                self._string, self._state = _StringReader(), self._skip_string
                return text[i + 1 :]
            if char in "{[":
                self._depth += 1
            elif char in "}]":
                self._depth -= 1
            elif char == "," and self._depth == 0:
                self._state = self._before_key
                return text[i + 1 :]
        return None

    def _skip_string(self, text: str) -> str | None:
        _, rest = self._string.feed(text)
        if rest is not None:
            self._state = self._skip_value
        return rest
