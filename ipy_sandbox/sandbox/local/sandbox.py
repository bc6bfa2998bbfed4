"""LocalSandbox: one sandbox of this process, from its start to its end."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import AsyncGenerator, Callable, Coroutine
from datetime import UTC, datetime, timedelta
from typing import Any

from ...errors import KernelDiedError, SandboxLostError
from ...models import End, Event, ExecutionError, SandboxInfo, SandboxOptions, Stderr
from .box import BoxProcess
from .bubblewrap import Box
from .conversation import Conversation, Run
from .kernel_manager import SandboxKernelManager
from .usage import MOUNTS, exact_memory

PAUSES = (0.3, 0.7, 1.0, 2.5)
"""Seconds after each interrupt, the first of which may come too early, and after the last until the end."""

_END_SECONDS = 0.2
"""How long after a kernel's death its last words, and the end of the whole sandbox, may still come."""

UNSAFE_NOTE = "No isolation: this code runs as an ordinary process of yours (unsafe=True).\n"


class LocalSandbox:
    """A sandbox and its kernel. Lives on the background loop."""

    def __init__(self, process: BoxProcess, box: Box, *, unsafe: bool = False) -> None:
        self.id = new_id()
        self.process = process
        self.box = box
        self.unsafe = unsafe
        self.mounts = () if unsafe else MOUNTS
        self.options = SandboxOptions()
        self.created_at = datetime.now(UTC)
        self.deadline = float("inf")
        self.reason: str | None = None
        """Why it was ended, once it was."""
        self.on_end: Callable[[LocalSandbox], None] = lambda sandbox: None
        """Called once when it has ended, by itself or by the watchdog."""
        self._manager = SandboxKernelManager(process, box.limits)
        self._conversation: Conversation | None = None
        self._death_told = False
        self._lock = asyncio.Lock()
        self._starting: list[bool] | None = None
        self._escalation: asyncio.Task[None] | None = None
        self._watchers: list[asyncio.Task[None]] = [asyncio.ensure_future(self._watch_box())]

    async def start_kernel(self, *, warm: bool = False) -> None:
        """Give it a fresh kernel; files stay."""
        self._stop_kernel()
        self._death_told = False
        try:
            await self._manager.start(self.options.env_vars, warm=warm)
        except SandboxLostError:
            raise self.lost() from None
        assert self._manager.client is not None
        self._conversation = Conversation(self._manager.client, self.box.limits)
        self._watchers.append(asyncio.ensure_future(self._watch_kernel(self._conversation)))
        self._watchers.append(asyncio.ensure_future(self._watch_connection()))

    def adopt(self, sandbox_id: str, options: SandboxOptions) -> None:
        """Begin its life for a caller."""
        self.id = sandbox_id
        self.options = options
        self.created_at = datetime.now(UTC)
        self.live(options.timeout)

    def live(self, timeout: float) -> None:
        """Let it live `timeout` seconds from now, and after each use."""
        self.options = self.options.model_copy(update={"timeout": timeout})
        self.deadline = time.monotonic() + timeout

    def renew(self, timeout: float) -> None:
        """Let it live `timeout` seconds from now, and after each use; never shorter than it would have."""
        deadline = self.deadline
        self.live(timeout)
        self.deadline = max(deadline, self.deadline)

    def touch(self) -> None:
        """Count its lifetime from now."""
        self.deadline = max(self.deadline, time.monotonic() + self.options.timeout)

    @property
    def busy(self) -> bool:
        """Whether code runs now."""
        return self._conversation is not None and self._conversation.run is not None

    @property
    def ended(self) -> bool:
        """Whether it is gone."""
        return self.reason is not None or self.process.ended

    async def run(self, code: str) -> AsyncGenerator[Event, None]:
        """Run `code`; see `Provider.run`."""
        async with self._lock:
            stopped = self._starting = [False]
            try:
                conversation = await self._ready()
            finally:
                self._starting = None
            if self.unsafe:
                yield Stderr(UNSAFE_NOTE)
            if stopped[0]:
                yield ExecutionError("KeyboardInterrupt", "", "KeyboardInterrupt")
                yield End()
                return
            try:
                run = conversation.execute(code)
            except UnicodeEncodeError as error:
                yield ExecutionError("UnicodeEncodeError", str(error), f"UnicodeEncodeError: {error}")
                yield End()
                return
            try:
                async for event in run.events():
                    yield event
            finally:
                if not run.finished.is_set():
                    self._interrupt(run)
                    await run.finished.wait()
                self.touch()

    async def _ready(self) -> Conversation:
        if self.ended:
            raise self.lost()
        self.touch()
        if self._conversation is not None and (left := self._conversation.run) is not None:
            await left.finished.wait()  # its reader went away in the middle of stopping it
        if self._conversation is None or not self._manager.alive:
            if self._conversation is not None and not self._death_told:
                await self._tell_death()
            await self.start_kernel()
        assert self._conversation is not None
        return self._conversation

    async def _tell_death(self) -> None:
        """Raise that the kernel died between two runs: the next one must not go on as if nothing were lost."""
        # Perhaps with the whole sandbox, which ends a moment later.
        await asyncio.sleep(_END_SECONDS)
        if self.ended:
            raise self.lost()
        self._death_told = True
        raise self._kernel_died()

    async def complete(self, code: str, cursor: int) -> list[str]:
        """What could stand at the cursor; nothing while code runs or no kernel does."""
        if self._conversation is None or self._starting is not None or not self._manager.alive:
            return []
        return await self._conversation.complete(code, cursor)

    async def interrupt(self) -> None:
        """Stop the code that runs now; a no-op when none does."""
        if self._starting is not None:
            self._starting[0] = True
        elif self._conversation is not None and (run := self._conversation.run) is not None:
            self._interrupt(run)

    def _interrupt(self, run: Run) -> None:
        run.interrupted = True
        if self._escalation is not None and not self._escalation.done():
            self._manager.interrupt()
            return
        self._escalation = asyncio.ensure_future(self._escalate(run))

    async def _escalate(self, run: Run) -> None:
        """Interrupt `run`, again if it goes on, and end the sandbox if that has no effect either."""
        # Before the code has begun there is nothing to stop; code that holds the interpreter cannot say that it has.
        await _within(0.2, run.started.wait())
        for pause in PAUSES:
            if run.finished.is_set():
                return
            self._manager.interrupt()
            await _within(pause, run.finished.wait())
        if not run.finished.is_set():
            self.kill(f"its code did not react to an interrupt within {sum(PAUSES):g} s")

    async def restart(self) -> None:
        """Give it a fresh kernel in place of what runs now; files stay."""
        if self._conversation is not None:
            self._conversation.fail(
                KernelDiedError("The kernel was restarted: variables are gone, files are kept.", **self._concerns)
            )
        async with self._lock:
            if self.ended:
                raise self.lost()
            self.touch()
            await self.start_kernel()

    def kill(self, reason: str) -> None:
        """End it, for a reason that its user is told."""
        self.reason = self.reason or reason
        self.process.kill()

    def lost(self) -> SandboxLostError:
        """The error that says why it is gone."""
        reason = self.reason or "it ended by itself, perhaps because the system ran out of memory"
        return SandboxLostError(
            f"Sandbox {self.id} is lost: {reason}. Its variables and files are gone; the next use makes a new one.",
            **self._concerns,
        )

    @property
    def _concerns(self) -> dict[str, str]:
        return {"provider": "local", "sandbox_id": self.id}

    async def _watch_box(self) -> None:
        await self.process.monitor.ended()
        self.reason = self.reason or "it ended by itself, perhaps because the system ran out of memory"
        if self._conversation is not None:
            self._conversation.fail(self.lost())
        self._stop_kernel()
        self.process.release()
        self.on_end(self)

    async def _watch_kernel(self, conversation: Conversation) -> None:
        await self._manager.died()
        # What it published last may still be on its way, and so may the end of the whole sandbox.
        await asyncio.sleep(_END_SECONDS)
        if not self.ended and conversation.run is not None:
            self._death_told = True
            conversation.fail(self._kernel_died())

    def _kernel_died(self) -> KernelDiedError:
        return KernelDiedError(
            f"The kernel of sandbox {self.id} died: variables are gone, files are kept; "
            "the next run gets a fresh kernel.",
            **self._concerns,
        )

    async def _watch_connection(self) -> None:
        await self._manager.disconnected()
        await asyncio.sleep(0.2)
        if self._manager.alive:
            self.kill("it sent a message larger than all that one run may show")

    def _stop_kernel(self) -> None:
        if self._conversation is not None:
            self._conversation.close()
            self._conversation = None
        for watcher in self._watchers[1:]:
            watcher.cancel()
        del self._watchers[1:]
        self._manager.stop()

    async def close(self) -> None:
        """End it, and leave nothing behind."""
        self.kill("it was deleted")
        await asyncio.wait([self._watchers[0]])

    def memory(self) -> int:
        """Bytes that its processes and files use now."""
        return exact_memory(self.process.init_pid, self.mounts)

    def info(self) -> SandboxInfo:
        """What is known of it now."""
        left = timedelta(seconds=max(self.deadline - time.monotonic(), 0))
        return SandboxInfo(
            id=self.id,
            provider="local",
            created_at=self.created_at,
            expires_at=datetime.now(UTC) + left,
            metadata=self.options.metadata,
            memory_bytes=self.memory(),
        )


def new_id() -> str:
    """An id for a sandbox, hard to guess."""
    return f"local-{secrets.token_hex(8)}"


async def _within(seconds: float, wait: Coroutine[Any, Any, object]) -> bool:
    """Whether `wait` was over within that time."""
    try:
        await asyncio.wait_for(wait, seconds)
    except TimeoutError:
        return False
    return True
