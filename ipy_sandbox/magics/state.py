"""The state file: ids of sandboxes that may outlive the kernel, so that a new one can take them back. No secrets."""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

KEPT = 20
MAX_AGE = 7 * 24 * 3600.0


class StateFile:
    """Remembers sandboxes across kernels; several kernels share it. What cannot be read or written is not remembered.

    Arguments:
        path: where (None: `ipy-sandbox/sandboxes.json` below XDG_STATE_HOME or ~/.local/state). Mode 0600.
        clock: seconds since the epoch.
    """

    def __init__(self, path: Path | None = None, clock: Callable[[], float] = time.time) -> None:
        self._path = path or _default_path()
        self._clock = clock

    def entries(self) -> list[dict[str, Any]]:
        """What is remembered, the newest first: `id`, `provider`, `session`, `at` (seconds since the epoch)."""
        try:
            found = json.loads(self._path.read_text(encoding="utf-8"))
            fresh = [entry for entry in found if entry["at"] > self._clock() - MAX_AGE]
            return [e for e in fresh if isinstance(e["id"], str) and isinstance(e["provider"], str)][:KEPT]
        except (OSError, ValueError, TypeError, KeyError):
            return []

    def remember(self, sandbox_id: str, provider: str, session: str) -> None:
        """Remember a sandbox."""
        entry = {"id": sandbox_id, "provider": provider, "session": session, "at": round(self._clock())}
        self._change(lambda entries: [entry, *_without(entries, sandbox_id)])

    def forget(self, sandbox_id: str) -> None:
        """Forget a sandbox that is deleted or lost."""
        if any(entry["id"] == sandbox_id for entry in self.entries()):
            self._change(lambda entries: _without(entries, sandbox_id))

    def _change(self, change: Callable[[list[dict[str, Any]]], list[dict[str, Any]]]) -> None:
        with contextlib.suppress(OSError):
            self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            with _locked(self._path.with_suffix(".lock")):
                partial = self._path.with_suffix(f".{os.getpid()}")
                with open(
                    os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="utf-8"
                ) as file:
                    json.dump(change(self.entries())[:KEPT], file)
                os.replace(partial, self._path)


def _default_path() -> Path:
    base = os.environ.get("XDG_STATE_HOME") or "~/.local/state"
    return Path(base).expanduser() / "ipy-sandbox" / "sandboxes.json"


def _without(entries: list[dict[str, Any]], sandbox_id: str) -> list[dict[str, Any]]:
    return [entry for entry in entries if entry["id"] != sandbox_id]


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    try:
        import fcntl
    except ImportError:  # Windows: the last writer counts
        yield
        return
    with open(os.open(path, os.O_WRONLY | os.O_CREAT, 0o600), "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
