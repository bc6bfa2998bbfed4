"""One cell in a sandbox: from code to messages, a value or an error."""

from __future__ import annotations

import concurrent.futures
import contextlib
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..background import BACKGROUND
from ..errors import SandboxError, SandboxLostError
from ..models import CodeExecutionResult, Display, End, Event, ExecutionError, ResultBuilder, Stderr, Stdout
from ..sandbox.session import Session
from .bridge import Outcome, pump, wait
from .frontend import is_watched, show_line
from .output import Publisher, RemoteValue
from .problems import SandboxInterrupted, remote_problem
from .record import CellRecord
from .safety import EventFilter
from .sessions import NotebookSession, Sessions
from .settings import Settings
from .status import Status

if TYPE_CHECKING:
    from IPython.core.interactiveshell import InteractiveShell

INFO_TIMEOUT = 0.5
"""Seconds that the footer waits for the memory figure."""


class Execution:
    """One run of code in a session, as a source for `bridge.pump`.

    A stop concerns this run alone: before it has begun there is nothing to interrupt, and not after its end either.
    """

    def __init__(self, session: Session, code: str, timeout: float | None = None) -> None:
        self._session = session
        self._code = code
        self._timeout = timeout
        self._running = False

    async def items(self) -> AsyncGenerator[Event, None]:
        """The events of the run."""
        events = self._session.astream(self._code, self._timeout, on_start=self._on_start)
        try:
            async with contextlib.aclosing(events):
                async for event in events:
                    yield event
        finally:
            self._running = False

    def _on_start(self) -> None:
        self._running = True

    async def stop(self) -> bool:
        """Interrupt the run; False if it waits for an earlier one."""
        if self._running:
            await self._session.ainterrupt()
            return True
        return False


class CellSink:
    """Shows the events of one execution and keeps them: for the result, and for the record of the session."""

    def __init__(self, publisher: Publisher | None, safe: EventFilter, status: Status, record: CellRecord) -> None:
        self.truncated: str | None = None
        self.error: ExecutionError | None = None
        self._publisher = publisher
        self._safe = safe
        self._status = status
        self._record = record
        self._builder = ResultBuilder()

    def publish(self, event: Event) -> None:
        """Take one event as it came."""
        self._builder.add(event)
        if isinstance(event, End):
            self.truncated = event.truncated
        if (safe := self._safe(event)) is not None:
            self._show(safe)

    def _show(self, event: Event) -> None:
        self._record.add(event)
        if isinstance(event, ExecutionError):
            # A provider may report follow-up errors of its own: the first is the cause.
            self.error = self.error or event
        if self._publisher is not None:
            if isinstance(event, Stdout | Stderr | Display):
                self._status.hide()
            self._publisher.publish(event)

    def idle(self) -> float | None:
        """Show what is due."""
        dues = [self._status.idle(), self._publisher.idle() if self._publisher is not None else None]
        return min((due for due in dues if due is not None), default=None)

    def finish(self) -> None:
        """Show what was held back."""
        self._status.hide()
        for event in self._safe.close():
            self._show(event)
        if self._publisher is not None:
            self._publisher.finish()

    @property
    def result(self) -> CodeExecutionResult:
        """What came so far."""
        return self._builder.result


@dataclass(frozen=True, slots=True)
class CellOutcome:
    """What one cell gave: `problem` is to be raised, outside of any `except` block."""

    value: RemoteValue | None
    result: CodeExecutionResult
    problem: BaseException | None


class CellRunner:
    """Runs cells of a notebook in its sessions.

    Arguments:
        shell: where to publish.
        settings: when to show the status line and the footer.
        sessions: remembers the sandboxes.
    """

    def __init__(self, shell: InteractiveShell, settings: Settings, sessions: Sessions) -> None:
        self.footer: str | None = None
        """A line to show below the cell, after its value."""
        self._shell = shell
        self._settings = settings
        self._sessions = sessions

    def start(self, target: NotebookSession) -> None:
        """Make the sandbox of `target` if there is none, and say so in one line.

        A new session that cannot start is taken off the list: the same line works as soon as the cause is gone.
        """
        session = target.session
        if session.handle is not None:
            return
        status = Status(self._shell, f"starting a sandbox ({target.provider})", self._settings.progress_after)
        lost = session.lost
        try:
            wait(session.astart(), status.idle)
        except BaseException:
            if session.handle is None and lost is None and not session.busy:
                self._sessions.forget(target.name)
            raise
        finally:
            status.hide()
        self._sessions.remember(target)
        show_line(self._shell, started_line(target, lost, status.seconds))

    def run(
        self, target: NotebookSession, code: str, *, timeout: float | None = None, quiet: bool = False
    ) -> CellOutcome:
        """Run `code` in `target` and show what comes; its `problem` is for the caller to raise."""
        self.start(target)
        handle = target.session.handle
        status = Status(self._shell, f"running in {target.name}", self._settings.progress_after)
        publisher = None if quiet else Publisher(self._shell)
        safe = EventFilter(target.policy, handle.id if handle else target.name)
        sink = CellSink(publisher, safe, status, target.record.begin(code))
        outcome = pump(Execution(target.session, code, timeout), sink)
        sink.finish()
        if publisher is not None:
            self._say_what_is_missing(sink.truncated, safe.dropped)
            self._set_footer(target, status.seconds)
        return CellOutcome(publisher.value if publisher else None, sink.result, _problem(outcome, sink.error))

    def _say_what_is_missing(self, truncated: str | None, dropped: list[str]) -> None:
        if truncated:
            show_line(self._shell, truncated)
        if dropped:
            show_line(self._shell, left_out_line(dropped))

    def _set_footer(self, target: NotebookSession, seconds: float) -> None:
        after = self._settings.footer_after
        if after is None or seconds < after or not is_watched(self._shell):
            return
        info = BACKGROUND.submit(target.session.ainfo())
        memory = None
        with contextlib.suppress(SandboxError, concurrent.futures.TimeoutError):
            known = info.result(INFO_TIMEOUT)
            memory = known and known.memory_bytes
        parts = [f"{seconds:.1f} s", target.name] + ([f"{memory / 1e6:.0f} MB"] if memory else [])
        self.footer = " · ".join(parts)

    def show_footer(self) -> None:
        """Show the footer of the last run, once; called when the value of the cell has been shown."""
        if self.footer is not None:
            show_line(self._shell, self.footer)
            self.footer = None


def left_out_line(dropped: list[str]) -> str:
    """What to say of MIME types that were not shown."""
    return f"Left out: {', '.join(dropped)}."


def started_line(target: NotebookSession, lost: SandboxLostError | None, seconds: float | None = None) -> str:
    """What to say of a sandbox that was just made; `lost` is why the one before is gone."""
    session = target.session
    sandbox = f"sandbox {session.handle.id} " if session.handle else ""
    took = "" if seconds is None else f" in {seconds:.1f} s"
    line = (
        f"Session {target.name}: {sandbox}({target.provider}) started{took}, "
        f"ends {session.options.timeout:g} s after its last use"
    )
    if lost is not None:
        line += f"; variables and files of {lost.sandbox_id or 'the one before'} are gone"
    if target.policy.trusted:
        line += "; its output is TRUSTED and can do all that you can here"
    return line + "."


def _problem(outcome: Outcome, error: ExecutionError | None) -> BaseException | None:
    if outcome.error is not None:
        return outcome.error
    if outcome.stopped:
        return SandboxInterrupted(traceback=error.traceback if error else "")
    return remote_problem(error.name, error.value, error.traceback) if error else None
