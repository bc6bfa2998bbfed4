"""The local sandboxes of this process, whichever instance of the provider made them."""

from __future__ import annotations

import os

from ...errors import SandboxLostError
from .sandbox import LocalSandbox
from .watchdog import WATCHDOG

SANDBOXES: dict[str, LocalSandbox] = {}
_GRAVES: dict[str, str] = {}
"""What to say of sandboxes that have ended by themselves."""
_MAX_GRAVES = 100


def add(sandbox: LocalSandbox) -> None:
    """Let `sandbox` be found by its id, until it has ended."""
    SANDBOXES[sandbox.id] = sandbox
    sandbox.on_end = _bury


def find(sandbox_id: str) -> LocalSandbox:
    """The sandbox with that id; raises SandboxLostError, with the reason, if it has ended or never was."""
    sandbox = SANDBOXES.get(sandbox_id)
    if sandbox is None:
        unknown = (
            f"There is no local sandbox {sandbox_id!r} in this process: it was deleted, or belongs to another process."
        )
        raise SandboxLostError(_GRAVES.get(sandbox_id, unknown), provider="local", sandbox_id=sandbox_id)
    if sandbox.ended:
        raise sandbox.lost()
    return sandbox


def _bury(sandbox: LocalSandbox) -> None:
    if SANDBOXES.pop(sandbox.id, None) is not None:
        _GRAVES[sandbox.id] = str(sandbox.lost())
        while len(_GRAVES) > _MAX_GRAVES:
            del _GRAVES[next(iter(_GRAVES))]


def _forget_in_child() -> None:
    # They are the parent's. The sockets are closed so that they end with the parent, even if this child lives on.
    for sandbox in WATCHDOG.watched:
        sandbox.process.forget()
    WATCHDOG.forget()
    SANDBOXES.clear()
    _GRAVES.clear()


os.register_at_fork(after_in_child=_forget_in_child)
