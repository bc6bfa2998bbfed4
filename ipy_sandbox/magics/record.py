"""What ran in a session and what came of it, kept for the export as a notebook."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Any

from ..models import ClearOutput, Display, Event, ExecutionCount, ExecutionError, Stderr, Stdout


@dataclass
class CellRecord:
    """One execution: the code and its outputs in the form of nbformat 4, as a notebook would hold them."""

    code: str
    execution_count: int | None = None
    outputs: list[dict[str, Any]] = field(default_factory=list)
    size: int = 0
    _ids: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    _clear_next: bool = False

    def add(self, event: Event) -> None:
        """Take one more event, in its safe form."""
        if self._clear_next and isinstance(event, Stdout | Stderr | Display):
            self._clear()
        match event:
            case Stdout(text):
                self._stream("stdout", text)
            case Stderr(text):
                self._stream("stderr", text)
            case Display():
                self._display(event)
            case ClearOutput(wait):
                self._clear_next = True
                if not wait:
                    self._clear()
            case ExecutionError(name, value, traceback):
                error = {"output_type": "error", "ename": name, "evalue": value}
                self._append({**error, "traceback": traceback.splitlines()}, len(traceback))
            case ExecutionCount(count) if type(count) is int and count >= 0:  # nbformat takes no other
                self.execution_count = count

    def _clear(self) -> None:
        self._clear_next = False
        self.outputs.clear()
        self.size = 0

    def _stream(self, name: str, text: str) -> None:
        last = self.outputs[-1] if self.outputs else {}
        if last.get("name") == name:
            last["text"].append(text)
            self.size += len(text)
        else:
            self._append({"output_type": "stream", "name": name, "text": [text]}, len(text))

    def _display(self, display: Display) -> None:
        content = {"data": display.data, "metadata": display.metadata}
        if display.update:
            for earlier in self._ids.get(str(display.display_id), []):
                earlier.update(content)
            return
        output: dict[str, Any] = {"output_type": "display_data", **content}
        if display.is_result:
            output |= {"output_type": "execute_result", "execution_count": self.execution_count}
        if display.display_id is not None:
            self._ids.setdefault(display.display_id, []).append(output)
        self._append(output, sum(len(str(value)) for value in display.data.values()))

    def _append(self, output: dict[str, Any], size: int) -> None:
        self.outputs.append(output)
        self.size += size


class Record:
    """The executions of a session, oldest first; beyond `max_size` characters the oldest lose their outputs."""

    def __init__(self, max_size: int) -> None:
        self.cells: deque[CellRecord] = deque(maxlen=10_000)
        self._max_size = max_size

    def begin(self, code: str) -> CellRecord:
        """The record of a new execution."""
        self._shrink()
        cell = CellRecord(code)
        self.cells.append(cell)
        return cell

    def _shrink(self) -> None:
        size = sum(cell.size for cell in self.cells)
        for cell in self.cells:
            if size <= self._max_size:
                return
            if cell.outputs:
                size -= cell.size
                note = "The outputs of this cell were not kept: the record of the session was full.\n"
                cell.outputs = [{"output_type": "stream", "name": "stderr", "text": [note]}]
                cell.size = 0
