"""What OpenSandbox's execd writes on `POST /code`, read as events.

Frames are JSON objects with an empty line after each; the last one may lack it. What they mean was read in execd
(components/execd/pkg/web/model/codeinterpreting.go, pkg/jupyter/execute/execute.go) and recorded from version 1.0.19:
`execution_complete` comes at any time, before output too, and only the end of the body ends a run.
"""

from __future__ import annotations

import json
import re
from typing import Any

from ..models import Display, Event, ExecutionCount, ExecutionError, Stderr, Stdout
from .frames import cut_text
from .prelude import OPERATION, unpack

SEPARATOR = b"\n\n"


class CodeStream:
    """Reads the frames of one run.

    Attributes:
        context: the id of the context that runs the code, once known.
        problem: what execd said instead of running on, if it did.
        pid: the kernel's process id, if execd can see it: our prelude's marks tell it.
        running: whether the code may still run.
        started, ended: whether the prelude's marks of the cell's first and last output have come.
        failed: whether the code raised.
        empty: whether nothing came that tells the code has run.
        pinged: whether the last frame was only a keepalive.
        pings: how many keepalives came; the first one comes at once.
    """

    def __init__(self) -> None:
        self.context: str | None = None
        self.problem: str | None = None
        self.pid: int | None = None
        self.running = True
        self.started = False
        self.ended = False
        self.failed = False
        self.empty = True
        self.pinged = False
        self.pings = 0
        self._count: int | None = None
        self._cell: object = None

    def read(self, frame: bytes) -> list[Event]:
        """The events of one frame; unknown and broken frames give none."""
        try:
            message = json.loads(frame.removeprefix(b"data:"))
        except (ValueError, RecursionError):
            return []
        if not isinstance(message, dict):
            return []
        kind = message.get("type")
        self.pinged = kind == "ping"
        self.pings += self.pinged
        if kind is None and "code" in message:
            self.problem = str(message.get("message") or message["code"])
        elif kind == "init":
            self.context = str(message.get("text") or "") or None
        elif not self.pinged:
            self.empty = False
            return [event for event in self._events(kind, message) if not self._known(event)]
        return []

    def _known(self, event: Event) -> bool:
        """The count comes with a value, and again with the mark of the end."""
        if not isinstance(event, ExecutionCount):
            return False
        before, self._count = self._count, event.count
        return before == event.count

    def _events(self, kind: object, message: dict[str, Any]) -> list[Event]:
        match kind:
            case "stdout":
                return [Stdout(str(message.get("text", "")))]
            case "stderr":
                return [Stderr(str(message.get("text", "")))]
            case "result":
                return self._result(message.get("results"))
            case "execution_count" if isinstance(count := message.get("execution_count"), int):
                return [ExecutionCount(count)]
            case "error":
                return self._error(message.get("error"))
        return []

    def _result(self, results: object) -> list[Event]:
        if not isinstance(results, dict):
            return []
        raw = {key: value for key, value in results.items() if key != OPERATION}
        operation = results.get(OPERATION)
        if isinstance(operation, dict) and operation.get("op") in ("start", "end"):
            return self._mark(operation)
        data = {"text/plain" if key == "text" else key: value for key, value in raw.items()}
        return unpack(Display(data, is_result=True, raw=raw), operation)

    def _mark(self, operation: dict[str, Any]) -> list[Event]:
        cell, pid, count = (operation.get(key) for key in ("cell", "pid", "count"))
        if isinstance(pid, int):
            self.pid = pid
        if operation["op"] == "start":
            self.started, self._cell = True, cell
        elif cell in (self._cell, 0):
            # Another cell's end may come late; the prelude's own run, cell 0, has only an end.
            self.ended = True
            return [ExecutionCount(count)] if isinstance(count, int) else []
        return []

    def _error(self, error: object) -> list[Event]:
        if not isinstance(error, dict):
            return []
        self.failed = True
        lines = error.get("traceback") or []
        traceback = "\n".join(map(str, lines)) if isinstance(lines, list) else str(lines)
        return [ExecutionError(str(error.get("ename", "")), str(error.get("evalue", "")), traceback)]


def shown_part(frame: bytes) -> list[Event]:
    """What can be shown of a frame that was cut for its length: the beginning of a text."""
    kind = re.search(rb'"type":\s*"(stdout|stderr)"', frame[:200])
    text = cut_text(frame) if kind is not None else None
    if kind is None or text is None:
        return []
    return [Stdout(text) if kind[1] == b"stdout" else Stderr(text)]
