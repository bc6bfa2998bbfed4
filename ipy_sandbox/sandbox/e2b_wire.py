"""What e2b's code interpreter sends, made into events: one JSON object per line, see `POST /execute` of its template
server (github.com/e2b-dev/code-interpreter, template/server)."""

from __future__ import annotations

import json
import re
import time
from collections.abc import AsyncGenerator, Collection, Iterable
from typing import Any

from ..errors import OutputTruncatedError, SandboxBusyError, SandboxError
from ..models import Display, End, Event, ExecutionCount, ExecutionError, Stderr, Stdout
from .frames import Frames, MiB, SilentStreamError, cut_text
from .prelude import OPERATION, unpack

_MIME = {
    "text": "text/plain",
    "html": "text/html",
    "markdown": "text/markdown",
    "svg": "image/svg+xml",
    "png": "image/png",
    "jpeg": "image/jpeg",
    "pdf": "application/pdf",
    "latex": "text/latex",
    "json": "application/json",
    "javascript": "application/javascript",
}
_SHORTEST_MASKED = 4
STOPPED = (ExecutionError("KeyboardInterrupt", "", "KeyboardInterrupt: the code was stopped"), End())
"""How a run ends that was stopped by closing its connection: the server says nothing."""


class Unstarted(Exception):
    """The server sends keepalives, but lets the run lie."""


class NothingCame(Exception):
    """The answer ended before its first line."""


class KernelRestarted(Exception):
    """The kernel died, before or after it `started` the code, and the server has started it again."""

    def __init__(self, started: bool) -> None:
        self.started = started


class Answer:
    """The answer to one run, as events.

    `started` tells whether the kernel has begun with the code, `ended` whether the server said that the run is over,
    `kernel_lost` whether it lost its line to the kernel, which may be a fresh one after that.

    Arguments:
        secrets: texts that must not show in errors.
        unstarted: seconds that keepalives may come without the run having been started.
    """

    def __init__(self, frames: Frames, secrets: Collection[str], unstarted: float) -> None:
        self.started = False
        self.ended = False
        self.kernel_lost = False
        self._frames = frames
        self._secrets = secrets
        self._unstarted = unstarted
        self._began = time.monotonic()
        self._heard = False

    async def events(self) -> AsyncGenerator[Event, None]:
        """The events; raises the three exceptions above, SandboxBusyError and OutputTruncatedError."""
        problem: SandboxError | None = None
        try:
            async for line in self._frames:
                for event in self._take(line):
                    yield event
        except (OutputTruncatedError, SilentStreamError) as error:
            problem = error
        if not self._heard and not self._frames.stopped:
            raise self._busy() if isinstance(problem, SilentStreamError) else NothingCame
        for event in self._last(problem):
            yield event

    def _take(self, line: bytes) -> list[Event]:
        message = _parse(line)
        kind = message.get("type")
        self._heard = True
        if kind == "end_of_execution":
            self.ended = True
        elif kind == "keepalive":
            if not self.started and time.monotonic() - self._began > self._unstarted:
                raise Unstarted
        elif kind == "error" and message.get("name") == "ContextRestarting":
            raise KernelRestarted(self.started)
        elif kind is not None:
            self.started = True
            self.kernel_lost |= kind == "error" and message.get("name") in (
                "UnexpectedEndOfExecution",
                "WebSocketError",
            )
        if self._frames.truncated and kind in ("stdout", "stderr", "result"):
            return []
        return events(message, self._secrets)

    def _last(self, problem: SandboxError | None) -> list[Event]:
        frames = self._frames
        shown = _shown_part(frames.partial)
        if self.ended or frames.exhausted:
            return [*shown, End(self._left_out() if frames.truncated else None)]
        if frames.stopped:
            return [*shown, *STOPPED]
        raise problem or OutputTruncatedError(
            "The answer was cut before its end: the code may have run, and nothing was run again."
        )

    def _left_out(self) -> str:
        limit = f"output beyond {self._frames.cap / MiB:g} MiB was left out"
        return f"{limit}, and the code was stopped" if self._frames.exhausted else limit

    def _busy(self) -> SandboxError:
        return SandboxBusyError("Other code, of another process, is running in the sandbox: try again when it ended.")


def _shown_part(line: bytes) -> list[Event]:
    """What can be shown of a line that was too long."""
    text = cut_text(line)
    if text is None or (kind := re.match(rb'\{"type": ?"(stdout|stderr)"', line)) is None:
        return []
    return [Stdout(text) if kind[1] == b"stdout" else Stderr(text)]


def _parse(line: bytes) -> dict[str, Any]:
    """The message of one line; nothing if it was cut, or is none of this protocol."""
    try:
        message = json.loads(line)
    except (ValueError, RecursionError):
        return {}
    return message if isinstance(message, dict) else {}


def events(message: dict[str, Any], secrets: Iterable[str] = ()) -> list[Event]:
    """The events of a message; none for keepalives and for kinds that are not known.

    Arguments:
        secrets: texts that must not show in errors; the server quotes the environment variables it pastes into code.
    """
    text = message.get("text")
    match message.get("type"):
        case "stdout" if isinstance(text, str):
            return [Stdout(text)]
        case "stderr" if isinstance(text, str):
            return [Stderr(text)]
        case "result":
            return _result(message)
        case "error":
            return [_error(message, secrets)]
        case "number_of_executions" if isinstance(message.get("execution_count"), int):
            return [ExecutionCount(message["execution_count"])]
    return []


def _result(message: dict[str, Any]) -> list[Event]:
    extra = message.get("extra")
    extra = dict(extra) if isinstance(extra, dict) else {}
    operation = extra.pop(OPERATION, None)
    raw = {**message, "extra": extra} if "extra" in message else message
    data = {mime: message[name] for name, mime in _MIME.items() if message.get(name) is not None}
    return unpack(Display({**data, **extra}, is_result=bool(message.get("is_main_result")), raw=raw), operation)


def _error(message: dict[str, Any], secrets: Iterable[str]) -> ExecutionError:
    name, value, traceback = (str(message.get(key) or "") for key in ("name", "value", "traceback"))
    for secret in secrets:
        if len(secret) >= _SHORTEST_MASKED:
            value, traceback = value.replace(secret, "***"), traceback.replace(secret, "***")
    return ExecutionError(name, value, restore_lines(traceback))


def restore_lines(traceback: str) -> str:
    """Put back the line breaks that the server drops when it joins the parts of a traceback without any.

    They are missing after the line of dashes and before the place of the first frame. A traceback that has them, as
    the prelude sends it, stays as it is.
    """
    traceback = re.sub(r"^(-{20,})(?=[^-\s])", r"\1\n", traceback)
    return re.sub(r"(\(most recent call last\))(?=Cell In\[|File )", r"\1\n", traceback)
