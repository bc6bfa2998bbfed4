"""The blocks of an answer: text and code that grow in place while they are written, plain saved outputs in the end."""

from __future__ import annotations

import html
import time
import uuid
from typing import Any

from ..models import Display, Stdout
from ..safe_output import TextFilter, safe_markdown, safe_text
from .memory import without_colours
from .output import Publisher

INTERVAL = 0.1
"""Seconds between two states of a growing block; longer where making one takes long."""

SHARE = 5
"""So many times as long as making a state takes, the next one waits."""

_BOX = "border-left: 3px solid var(--jp-border-color2, #bbb); padding: 2px 0 2px 10px; margin: 4px 0"
_PRE = (
    "margin: 0; padding: 4px 6px; overflow-x: auto; white-space: pre; line-height: 1.4; "
    "font-family: var(--jp-code-font-family, monospace); font-size: var(--jp-code-font-size, 13px)"
)
_CODE = f"{_PRE}; background: var(--jp-cell-editor-background, rgba(128, 128, 128, 0.1))"
_DIM = "color: var(--jp-ui-font-color2, gray); font-size: 90%"

# Pygments' token types in the colours of JupyterLab's editor, so that light and dark themes both read well.
_COLOURS = {
    "Token.Comment": "comment-color, #408080",
    "Token.Keyword": "keyword-color, #008000",
    "Token.Literal.Number": "number-color, #080",
    "Token.Literal.String": "string-color, #ba2121",
    "Token.Name.Builtin": "builtin-color, #008000",
    "Token.Name.Class": "def-color, #00f",
    "Token.Name.Function": "def-color, #00f",
    "Token.Operator.Word": "keyword-color, #008000",
}


def highlighted(code: str) -> str:
    """Python source as HTML, with colours that follow the theme."""
    from pygments import lex
    from pygments.lexers import PythonLexer

    return "".join(_span(str(kind), text) for kind, text in lex(code, PythonLexer(ensurenl=False, stripnl=False)))


def _span(kind: str, text: str) -> str:
    colour = next((c for prefix, c in _COLOURS.items() if kind.startswith(prefix)), None)
    escaped = html.escape(text)
    return f'<span style="color: var(--jp-mirror-editor-{colour})">{escaped}</span>' if colour else escaped


class Block:
    """One output that is updated in place while it grows; where nobody watches it is shown once, complete.

    Arguments:
        publisher: where to show it.
        live: whether somebody watches.
    """

    def __init__(self, publisher: Publisher, *, live: bool) -> None:
        self._publisher = publisher
        self._live = live
        self._id = f"ipy-sandbox-{uuid.uuid4()}"
        self._published = False
        self._dirty = False
        self._due_at = 0.0

    def bundle(self) -> dict[str, Any]:
        """Its present state as a MIME bundle."""
        raise NotImplementedError

    def changed(self) -> None:
        """It has grown: to be shown when due."""
        self._dirty = True

    def refresh(self) -> float | None:
        """Show its state if due; return the seconds until it is, None if nothing is to be shown."""
        if not (self._live and self._dirty):
            return None
        if (left := self._due_at - time.monotonic()) > 0:
            return left
        self.show()
        return None

    def show(self) -> None:
        """Show its state now."""
        begun = time.monotonic()
        self._publisher.publish(Display(self.bundle(), {}, display_id=self._id, update=self._published))
        self._published, self._dirty = True, False
        now = time.monotonic()
        self._due_at = now + max(INTERVAL, SHARE * (now - begun))


class TextBlock(Block):
    """Markdown that a model writes: rendered by us and sanitized."""

    def __init__(self, publisher: Publisher, *, live: bool) -> None:
        super().__init__(publisher, live=live)
        self.text = ""

    def add(self, text: str) -> None:
        """More of it."""
        self.text += text
        self.changed()

    def bundle(self) -> dict[str, Any]:
        """Its present state as a MIME bundle."""
        return {"text/plain": safe_text(self.text), "text/html": safe_markdown(self.text)}


class CodeBlock(Block):
    """Code that a model writes and the text it prints, folded away when it has run."""

    def __init__(self, publisher: Publisher, *, live: bool) -> None:
        super().__init__(publisher, live=live)
        self.code = ""
        self.state = "writing"
        self.error: str | None = None
        self._output = PrintedText()
        self._folded = False

    def add_code(self, text: str) -> None:
        """More of the code."""
        self.code += text
        self.changed()

    def run(self, code: str) -> None:
        """The code is complete and begins to run."""
        self.code = code
        self.state = "running"
        self.changed()

    def add_output(self, text: str) -> None:
        """More of what it prints."""
        self._output.add(text)
        self.changed()

    def clear_output(self) -> None:
        """What it printed is to go."""
        self._output = PrintedText()
        self.changed()

    def end(self, state: str, *, folded: bool) -> None:
        """It is over: `state` says how, in words."""
        self.state, self._folded = state, folded
        self.show()

    def bundle(self) -> dict[str, Any]:
        """Its present state as a MIME bundle."""
        code, output = safe_text(self.code), without_colours(str(self._output))
        plain = "\n".join(f"    {line}" for line in code.splitlines())
        if output:
            plain += f"\n{output.rstrip()}"
        return {"text/plain": plain or "    ", "text/html": self._html(code, output)}

    def _html(self, code: str, output: str) -> str:
        body = f'<pre style="{_CODE}">{highlighted(code)}</pre>'
        if output:
            body += f'<pre style="{_PRE}">{html.escape(output)}</pre>'
        opened = "" if self._folded else " open"
        label = html.escape(self.state)
        if self.error:
            label += f' · <span style="color: var(--jp-error-color1, #c00)">{html.escape(self.error)}</span>'
        return (
            f'<div style="{_BOX}"><details{opened}><summary style="{_DIM}; cursor: pointer">{label}</summary>'
            f"{body}</details></div>"
        )


class TerminalText(TextBlock):
    """Text in a terminal: written as it comes."""

    def __init__(self, publisher: Publisher, *, live: bool) -> None:
        super().__init__(publisher, live=live)
        self._safe = TextFilter()

    def add(self, text: str) -> None:
        """More of it."""
        self.text += text
        self._publisher.publish(Stdout(self._safe.feed(text)))

    def show(self) -> None:
        """It is complete."""
        self._publisher.publish(Stdout(self._safe.close() + "\n"))


class TerminalCode(CodeBlock):
    """Code in a terminal: written when it is complete, its output as it comes."""

    def run(self, code: str) -> None:
        """The code is complete and begins to run."""
        super().run(code)
        self._publisher.publish(Stdout("".join(f"  | {line}\n" for line in safe_text(code).splitlines())))

    def add_output(self, text: str) -> None:
        """More of what it prints."""
        self._publisher.publish(Stdout(text))

    def show(self) -> None:
        """Nothing is left to be shown."""


class PrintedText:
    """What code prints, as a terminal would leave it: a carriage return overwrites its line; the middle of much text
    is left out.
    """

    def __init__(self, limit: int = 100_000) -> None:
        self._half = limit // 2
        self._head = ""
        self._tail = ""
        self._line = ""
        self._left_out = 0

    def add(self, text: str) -> None:
        """More of it."""
        complete, newline, line = (self._line + text).replace("\r\n", "\n").rpartition("\n")
        # A return at the very end only takes effect with the next character.
        self._line = line if line.endswith("\r") else _overwritten(line)
        self._keep("".join(_overwritten(part) + "\n" for part in complete.split("\n")) if newline else "")

    def _keep(self, text: str) -> None:
        room = self._half - len(self._head)
        if not self._tail:
            self._head += text[:room]
            text = text[max(room, 0) :]
        self._tail += text
        if (excess := len(self._tail) - self._half) > 0:
            self._left_out += excess
            self._tail = self._tail[excess:]

    def __str__(self) -> str:
        note = f"\n[... {self._left_out} characters not shown ...]\n" if self._left_out else ""
        return self._head + note + self._tail + self._line.rstrip("\r")


def _overwritten(line: str) -> str:
    return line.rpartition("\r")[2]
