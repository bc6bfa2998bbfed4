"""`Err[n]`: what went wrong in cell n, as text, for people and for models."""

from __future__ import annotations

import re
import traceback
from dataclasses import dataclass
from typing import Any

from IPython.core.error import UsageError

KEPT = 100
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")


@dataclass(frozen=True)
class CellError:
    """The error of one cell, without colours."""

    name: str
    value: str
    traceback: str

    def __str__(self) -> str:
        return self.traceback


class ErrorMemory(dict[int, CellError]):
    """The errors of the last cells by execution count."""

    def remember(self, result: Any) -> None:
        """Keep the error of an IPython `ExecutionResult`, if it has one: for the `post_run_cell` event."""
        error = result.error_before_exec or result.error_in_exec
        if error is None or result.execution_count is None:
            return
        self[result.execution_count] = CellError(type(error).__name__, str(error), _text(error))
        while len(self) > KEPT:
            del self[min(self)]


def without_colours(text: str) -> str:
    """`text` without its colours (SGR sequences)."""
    return _COLOUR.sub("", text)


def _text(error: BaseException) -> str:
    if isinstance(error, UsageError):
        return f"UsageError: {error}"
    if hasattr(error, "_render_traceback_"):
        lines = error._render_traceback_()
    else:
        lines = "".join(traceback.format_exception(error)).splitlines()
    return without_colours("\n".join(lines))
