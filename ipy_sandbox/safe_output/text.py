"""Text for terminals and notebooks: colours stay, every other control sequence goes."""

from __future__ import annotations

import re

from ..surrogates import encodable

_C1 = dict.fromkeys(range(0x80, 0xA0)) | {
    0x90: "\x1bP", 0x98: "\x1bX", 0x9B: "\x1b[", 0x9C: "\x1b\\", 0x9D: "\x1b]", 0x9E: "\x1b^", 0x9F: "\x1b_",
}  # fmt: skip
"""The 8-bit controls: those that open a sequence, written as the 7-bit pair; the others are nothing."""

_SEQUENCE = re.compile(
    r"""
    (?P<colour> \x1b\[ [0-9;:]* m )
    | \x1b\[ [0-?]* [\ -/]* [@-~]                           # cursor, screen, modes
    | \x1b\[ [0-?]*+ [\ -/]*+ (?=[^@-~])                     # a sequence that something else broke off
    | (?P<string> \x1b[]PX^_] )                             # OSC, DCS, SOS, PM, APC: until their end
    | \x1b [\ -/]* [0-Z\\`-~]                               # two characters, or more with intermediates
    | (?P<partial> \x1b (?: \[ [0-?]* [\ -/]* | [\ -/]* ) \Z )
    | [\x00-\x07\x0b\x0c\x0e-\x1f\x7f]                      # all controls but \b \t \n \r
    """,
    re.VERBOSE,
)
_STRING_END = re.compile(r"\x07|\x1b\\|\n|\x1b(?=[^\\])")
_LONGEST_PARTIAL = 64
_RESET = "\x1b[0m"


class TextFilter:
    """Cleans text that comes in chunks; a sequence cut by the end of a chunk is recognised in the next one.

    Kept: SGR (colours, bold, ...), newline, tab, carriage return, backspace. Gone: titles, links and clipboard
    (OSC), cursor movement, screen and mode changes, device queries, C0 and C1 controls (ECMA-48).
    """

    def __init__(self) -> None:
        self._rest = ""
        self._in_string = False
        self._coloured = False

    def feed(self, text: str) -> str:
        """The part of `text` that may be shown now."""
        text = self._rest + encodable(text).translate(_C1)
        self._rest = ""
        shown: list[str] = []
        at = 0
        while at < len(text):
            if self._in_string:
                at = self._skip_string(text, at)
                continue
            match = _SEQUENCE.search(text, at)
            if match is None:
                shown.append(text[at:])
                break
            shown.append(text[at : match.start()])
            at = match.end()
            shown.append(self._take(match))
        return "".join(shown)

    def close(self) -> str:
        """What is still to be shown at the end: the reset of colours left on."""
        self._rest, self._in_string = "", False
        coloured, self._coloured = self._coloured, False
        return _RESET if coloured else ""

    def _take(self, match: re.Match[str]) -> str:
        if match["colour"]:
            self._coloured = match["colour"] not in ("\x1b[m", _RESET, "\x1b[00m")
            return match["colour"]
        if match["string"]:
            self._in_string = True
        elif match["partial"] and len(match["partial"]) < _LONGEST_PARTIAL:
            self._rest = match["partial"]
        return ""

    def _skip_string(self, text: str, at: int) -> int:
        """Where the text goes on after a string sequence; a newline ends one that was never closed."""
        match = _STRING_END.search(text, at)
        if match is None:
            self._rest = "\x1b" if text.endswith("\x1b") else ""
            return len(text)
        self._in_string = False
        return match.start() if match[0] in ("\n", "\x1b") else match.end()


def safe_text(text: str) -> str:
    """`text` as `TextFilter` shows it, colours reset at the end; for results, error messages and tracebacks."""
    filter_ = TextFilter()
    return filter_.feed(text) + filter_.close()
