"""Shows an answer while it is given: text and code as they are written, output live, charts inline."""

from __future__ import annotations

import dataclasses
import functools
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from ..interpreter.calls import (
    CallEnded,
    CodeCall,
    CodeDelta,
    CodeStarted,
    CodeWritten,
    LoopEnded,
    LoopEvent,
    RunOutput,
    RunStarted,
    TurnDelta,
    TurnEnded,
    TurnStarted,
)
from ..interpreter.turn import ReasoningDelta, RefusalDelta, TextDelta
from ..models import ClearOutput, Display, Event, ExecutionError, Stderr, Stdout
from .ai_blocks import Block, CodeBlock, TerminalCode, TerminalText, TextBlock
from .ai_conversation import Exchange, Usage
from .frontend import count, in_kernel, is_watched, show_line
from .output import Publisher
from .record import CellRecord
from .run import left_out_line, started_line
from .safety import EventFilter
from .status import Status

if TYPE_CHECKING:
    from IPython.core.interactiveshell import InteractiveShell

    from .sessions import NotebookSession


class Run:
    """One execution of the model's code: its printed text goes into the block, its displays stand on their own.

    Arguments:
        publish: shows the displays.
    """

    def __init__(
        self, block: CodeBlock, target: NotebookSession, publish: Callable[[Display], None], record: CellRecord
    ) -> None:
        self.dropped: list[str] = []
        self._block = block
        self._publish = publish
        self._record = record
        self._target = target
        self._begun = time.monotonic()
        self._shown: list[str] = []
        self._cleared: list[str] = []
        self._clear_next = False

    @functools.cached_property
    def _safe(self) -> EventFilter:
        # Made with the first event: only then is there a sandbox for sure.
        handle = self._target.session.handle
        return EventFilter(self._target.policy, handle.id if handle else self._target.name)

    def add(self, event: Event) -> None:
        """Take one more event as the sandbox sent it."""
        if (safe := self._safe(event)) is not None:
            self._record.add(safe)
            self._show(safe)

    def _show(self, event: Event) -> None:
        if isinstance(event, ClearOutput):
            self._clear_next = True
            if event.wait:
                return
        if self._clear_next and isinstance(event, ClearOutput | Stdout | Stderr | Display):
            self._clear()
        match event:
            case Stdout(text) | Stderr(text):
                self._block.add_output(text)
            case ExecutionError(name, _, traceback):
                self._block.error = self._block.error or name
                self._block.add_output(f"{traceback}\n")
            case Display() if set(event.data) <= {"text/plain"} and event.display_id is None:
                self._block.add_output(f"{event.data.get('text/plain', '')}\n")
            case Display():
                self._display(event)

    def _clear(self) -> None:
        # Clearing the cell would take the answer away too: what was shown is overwritten instead.
        self._clear_next = False
        self._block.clear_output()
        self._cleared, self._shown = self._shown + self._cleared, []

    def _display(self, display: Display) -> None:
        if display.update:
            self._publish(display)
            return
        again = display.display_id is None and bool(self._cleared)
        name = self._cleared.pop(0) if again else display.display_id or f"{id(self)}:{len(self._shown)}"
        self._shown.append(name)
        self._publish(dataclasses.replace(display, is_result=False, display_id=name, update=again))

    def end(self, call: CodeCall) -> None:
        """The call is over: fold the code away and take away what was cleared and not drawn again."""
        for event in self._safe.close():
            self._show(event)
        self.dropped = self._safe.dropped
        for name in self._cleared:
            self._publish(Display({"text/plain": "", "text/html": ""}, display_id=name, update=True))
        if call.note:
            self._block.add_output(f"{call.note.strip('[]')}\n")
        self._block.end(_summary(call, time.monotonic() - self._begun), folded=True)


def _summary(call: CodeCall, seconds: float) -> str:
    lines = (call.code or "").strip().count("\n") + 1
    what = f"{count(lines, 'line')} of Python"
    return f"ran {what} · {seconds:.1f} s" if call.status == "completed" else f"{what} · did not run to its end"


class AnswerView:
    """A sink for `bridge.pump` that shows the events of the loop and keeps the answer in `exchange`.

    Arguments:
        shell: where to publish.
        target: the session in which the model's code runs.
        exchange: gets the answer's parts and numbers.
        progress_after: seconds of silence after which a line says what is going on.
    """

    def __init__(
        self, shell: InteractiveShell, target: NotebookSession, exchange: Exchange, progress_after: float
    ) -> None:
        self.refused: str | None = None
        self._shell = shell
        self._target = target
        self._exchange = exchange
        self._progress_after = progress_after
        self._live = is_watched(shell)
        self._publisher = Publisher(shell)
        self._block: Block | None = None
        self._text_slot: tuple[int, int] | None = None
        self._code: dict[str, CodeBlock] = {}
        self._runs: dict[str, Run] = {}
        self._held: list[Display] = []
        self._begun = time.monotonic()
        self._had_sandbox = target.session.handle is not None
        self._lost = target.session.lost
        self._status = self._new_status()

    def _new_status(self) -> Status:
        return Status(self._shell, f"waiting for {self._exchange.model}", self._progress_after)

    def _new_text(self) -> TextBlock:
        return (TextBlock if in_kernel(self._shell) else TerminalText)(self._publisher, live=self._live)

    def _new_code(self) -> CodeBlock:
        return (CodeBlock if in_kernel(self._shell) else TerminalCode)(self._publisher, live=self._live)

    def publish(self, event: LoopEvent) -> None:
        """Take one more event of the loop."""
        usage = self._exchange.usage
        match event:
            case TurnStarted(number):
                usage.turns = number
                self._status.hide()
                self._status = self._new_status()
            case TurnDelta(TextDelta(slot, text) | RefusalDelta(slot, text)):
                self._add_text((usage.turns, slot), text)
            case TurnDelta(ReasoningDelta()):
                self._status.text = f"{self._exchange.model} is thinking"
            case TurnEnded():
                self._close_text()
            case LoopEnded():
                self._end(event)
            case CodeStarted() | CodeDelta() | CodeWritten() | RunStarted() | RunOutput() | CallEnded():
                self._add_code(event)
            case _:
                pass

    def _add_text(self, slot: tuple[int, int], text: str) -> None:
        if self._text_slot != slot or not isinstance(self._block, TextBlock):
            self._close_text()
            if not text.strip():
                return
            self._open(self._new_text())
            self._text_slot = slot
        assert isinstance(self._block, TextBlock)
        self._block.add(text)

    def _open(self, block: Block) -> None:
        self._close_text()
        self._status.hide()
        self._block = block

    def _close_text(self) -> None:
        if isinstance(self._block, TextBlock):
            self._block.show()
            self._exchange.parts.append(self._block.text)
            self._block = self._text_slot = None

    def _add_code(self, event: CodeStarted | CodeDelta | CodeWritten | RunStarted | RunOutput | CallEnded) -> None:
        call = event.call
        if call.id not in self._code:
            self._code[call.id] = self._new_code()
            self._open(self._code[call.id])
        block = self._code[call.id]
        match event:
            case CodeDelta(_, text):
                block.add_code(text)
            case RunStarted():
                self._start(call, block)
            case RunOutput(_, output):
                self._announce()
                self._runs[call.id].add(output)
            case CallEnded():
                self._end_call(call, block)
            case _:
                pass

    def _start(self, call: CodeCall, block: CodeBlock) -> None:
        self._block = block
        self._exchange.usage.runs += 1
        record = self._target.record.begin(call.code or "")
        self._exchange.parts.append(record)
        # Where the block is shown only when complete, its charts wait for it.
        publish = self._publisher.publish if self._live or not in_kernel(self._shell) else self._held.append
        self._runs[call.id] = Run(block, self._target, publish, record)
        block.run(call.code or "")

    def _announce(self) -> None:
        if not self._had_sandbox and self._target.session.handle is not None:
            self._had_sandbox = True
            show_line(self._shell, started_line(self._target, self._lost))

    def _end_call(self, call: CodeCall, block: CodeBlock) -> None:
        if (run := self._runs.pop(call.id, None)) is not None:
            run.end(call)
            self._release()
            if run.dropped:
                show_line(self._shell, left_out_line(run.dropped))
        else:
            block.add_output((call.note or "").strip("[]"))
            block.end("not run", folded=True)
        if self._block is block:
            self._block = None

    def _release(self) -> None:
        for display in self._held:
            self._publisher.publish(display)
        self._held.clear()

    def _end(self, event: LoopEnded) -> None:
        usage = self._exchange.usage
        numbers = event.usage or {}
        usage.input_tokens = numbers.get("input_tokens", numbers.get("prompt_tokens"))
        usage.output_tokens = numbers.get("output_tokens", numbers.get("completion_tokens"))
        if event.finish == "length":
            self.refused = "The answer ends here because it reached the model's length limit."
        elif event.finish == "content_filter":
            self.refused = "The provider's content filter ended the answer here."

    def idle(self) -> float | None:
        """Show what is due."""
        dues = [self._status.idle(), self._publisher.idle(), self._block.refresh() if self._block else None]
        return min((due for due in dues if due is not None), default=None)

    def finish(self) -> Usage:
        """Show what is left, however the answer ended."""
        self._status.hide()
        self._close_text()
        for name, block in self._code.items():
            if name in self._runs or block.state == "writing":
                block.end("stopped", folded=False)
        self._release()
        self._publisher.finish()
        self._exchange.usage.seconds = time.monotonic() - self._begun
        return self._exchange.usage
