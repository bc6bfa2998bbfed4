"""The watchdog: ends a sandbox that passes a limit which no rlimit or file system enforces."""

from __future__ import annotations

import threading
import time

from ...background import BACKGROUND
from .limits import Limits, MiB
from .sandbox import LocalSandbox
from .usage import sockets, usage

BUSY_SECONDS, IDLE_SECONDS = 0.1, 0.25
"""Between two looks, while code runs in some sandbox and while none does."""


class Watchdog:
    """A thread that looks at every sandbox of this process, and none while there is none."""

    def __init__(self) -> None:
        self.watched: set[LocalSandbox] = set()
        self._thread: threading.Thread | None = None

    def watch(self, sandbox: LocalSandbox) -> None:
        """Watch `sandbox` until it has ended. To be called on the background loop."""
        self.watched.add(sandbox)
        if self._thread is None:
            self._thread = threading.Thread(target=self._look, name="ipy-sandbox-watchdog", daemon=True)
            self._thread.start()

    def forget(self) -> None:
        """Start over in a forked child, where the sandboxes are not ours and the thread does not run."""
        self.watched.clear()
        self._thread = None

    def _look(self) -> None:
        loop = BACKGROUND.loop
        while True:
            for sandbox in [sandbox for sandbox in list(self.watched) if sandbox.ended]:
                self.watched.discard(sandbox)
            watched = list(self.watched)
            for sandbox in watched:
                if reason := _verdict_or_doubt(sandbox):
                    # On the loop, where it cannot be closed at the same moment.
                    loop.call_soon_threadsafe(sandbox.kill, reason)
            time.sleep(BUSY_SECONDS if any(sandbox.busy for sandbox in watched) else IDLE_SECONDS)


def _verdict_or_doubt(sandbox: LocalSandbox) -> str | None:
    try:
        return verdict(sandbox)
    except Exception as error:
        # It must not end the thread that watches the others, nor live on unwatched.
        return f"what it uses could not be measured ({type(error).__name__})"


def verdict(sandbox: LocalSandbox) -> str | None:
    """Why `sandbox` must end now, if it must."""
    if time.monotonic() > sandbox.deadline:
        return f"its lifetime of {sandbox.options.timeout:g} s since its last use is over (timeout=)"
    limits: Limits = sandbox.box.limits
    used = usage(sandbox.process.init_pid, sandbox.mounts)
    if used.memory > limits.memory and (memory := sandbox.memory()) > limits.memory:
        return f"it used {memory // MiB} MiB of memory, more than the limit memory={limits.memory // MiB} MiB"
    if used.files > limits.files:
        return f"it made {used.files} files, more than the limit files={limits.files}"
    if used.processes > limits.processes:
        return f"it ran {used.processes} processes, more than the limit processes={limits.processes}"
    if (
        not sandbox.unsafe
        and sandbox.box.network != "host"
        and (open_ := sockets(sandbox.process.init_pid)) > limits.sockets
    ):
        return f"it opened {open_} sockets, more than the limit sockets={limits.sockets}"
    return None


WATCHDOG = Watchdog()
