"""`%%sandbox --bg NAME`: cells that run in the background, each with a handle and one line that updates itself.

A job never prints: what a thread prints appears in whatever cell runs. It has one display in its own cell, and only
updates it, by its id and from no cell's context, which front ends and nbclient apply to the right place.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
import uuid
from collections.abc import Generator
from typing import TYPE_CHECKING, Any

from ..background import BACKGROUND, wake_on_signals
from ..models import CodeExecutionResult, ExecutionError, ResultBuilder, Stderr, Stdout
from .bridge import wait
from .frontend import in_kernel, line_bundle
from .problems import SandboxInterrupted, plain, remote_problem
from .run import Execution
from .safety import EventFilter
from .sessions import NotebookSession, Sessions

if TYPE_CHECKING:
    from IPython.core.interactiveshell import InteractiveShell

TICK = 0.5
"""Seconds between two updates of the line."""

TAIL = 20
"""Lines of output below the line."""


class Job:
    """Code that runs in the background of the notebook.

        job.done        whether it is over
        job.stdout      what it has printed so far
        job.result()    wait for the end; the result, or the error that the code raised
        await job       the same, in a cell with await
        job.stop()      stop the code

    Arguments:
        shell: where to show the line.
        sessions: remembers the sandbox.
        name: what it is called.
        target: the session to run in; earlier runs there come first.
        timeout: seconds the code may run.
    """

    def __init__(
        self,
        shell: InteractiveShell,
        sessions: Sessions,
        name: str,
        target: NotebookSession,
        code: str,
        timeout: float | None = None,
    ) -> None:
        self.name = name
        self._shell = shell
        self._target = target
        self._sessions = sessions
        self._execution = Execution(target.session, code, timeout)
        self._builder = ResultBuilder()
        self._error: ExecutionError | None = None
        self._problem: BaseException | None = None
        self._stopped = False
        self._text = ""
        self._state = "running"
        self._begun = time.monotonic()
        self._display_id = f"ipy-sandbox-{uuid.uuid4()}"
        self._show(update=False)
        self._record = target.record.begin(code)
        self._future = BACKGROUND.submit(self._run())

    @property
    def done(self) -> bool:
        """Whether it is over."""
        return self._future.done()

    @property
    def stdout(self) -> str:
        """What it has printed so far."""
        return self._builder.result.stdout

    @property
    def stderr(self) -> str:
        """What it has printed to standard error so far."""
        return self._builder.result.stderr

    def result(self, timeout: float | None = None) -> CodeExecutionResult:
        """Wait for the end and return the result.

        Arguments:
            timeout: seconds to wait at most; raises TimeoutError then, and the job goes on.

        Raises:
            RemoteError: the code raised; of a class named like the remote one.
            SandboxInterrupted: the job was stopped, or the waiting for it.
        """
        wait(self._over(timeout))
        return self._outcome()

    def __await__(self) -> Generator[Any, None, CodeExecutionResult]:
        return self._awaited().__await__()

    async def _awaited(self) -> CodeExecutionResult:
        wake_on_signals()
        await self._over(None)
        return self._outcome()

    async def _over(self, timeout: float | None) -> None:
        # `asyncio.wait` leaves the future alone: who stops waiting does not stop the job.
        _, waiting = await asyncio.wait([asyncio.wrap_future(self._future)], timeout=timeout)
        if waiting:
            raise TimeoutError(f"Job {self.name} is not over after {timeout:g} s.")

    def stop(self) -> None:
        """Stop the code, as Ctrl-C would; a job that waits for earlier runs is taken off the queue."""
        self._stopped = True
        if not self.done and not wait(self._execution.stop()):
            self._future.cancel()

    def _outcome(self) -> CodeExecutionResult:
        error = self._error
        if self._problem is not None:
            raise self._problem
        if self._stopped:
            raise SandboxInterrupted(f"job {self.name} was stopped.", error.traceback if error else "")
        if error is not None:
            raise remote_problem(error.name, error.value, error.traceback)
        return self._builder.result

    async def _run(self) -> None:
        ticks = asyncio.create_task(self._tick())
        try:
            await self._read()
            self._state = "done"
            if self._error is not None:
                self._state = f"failed with {self._error.name}: {self._error.value:.200}"
        except asyncio.CancelledError:
            self._stopped = True
        except Exception as error:
            self._problem = plain(error)
            self._state = f"failed with {type(self._problem).__name__}: {self._problem}"
        finally:
            ticks.cancel()
            if self._stopped:
                self._state = "stopped"
            self._show(update=True)

    async def _read(self) -> None:
        session = self._target.session
        handle = await session.astart()
        self._sessions.remember(self._target)
        safe = EventFilter(self._target.policy, handle.id)
        async with contextlib.aclosing(self._execution.items()) as events:
            async for event in events:
                self._builder.add(event)
                if (shown := safe(event)) is None:
                    continue
                self._record.add(shown)
                if isinstance(shown, Stdout | Stderr):
                    self._text = "\n".join((self._text + shown.text).split("\n")[-TAIL - 1 :])[-10_000:]
                elif isinstance(shown, ExecutionError):
                    self._error = self._error or shown

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(TICK)
            self._show(update=True)

    def __repr__(self) -> str:
        return f"Job {self.name}: {self._state} {time.monotonic() - self._begun:.1f} s · {self._target.name}"

    def _show(self, update: bool) -> None:
        if update and not in_kernel(self._shell):
            return  # a terminal would print it anew
        bundle = line_bundle(repr(self))
        if self._text:
            bundle = {"text/plain": f"{bundle['text/plain']}\n{self._text}"}
        transient = {"display_id": self._display_id}
        self._shell.display_pub.publish(bundle, {}, transient=transient, update=update)
