"""The local sandboxes of this process, whichever instance of the provider made them."""

from __future__ import annotations

import os

from ...errors import SandboxLostError
from .sandbox import LocalSandbox

SANDBOXES: dict[str, LocalSandbox] = {}


def find(sandbox_id: str) -> LocalSandbox:
    """The sandbox with that id; raises SandboxLostError if this process has none."""
    sandbox = SANDBOXES.get(sandbox_id)
    if sandbox is None:
        raise SandboxLostError(
            f"There is no local sandbox {sandbox_id!r} in this process: a local sandbox ends with the process that "
            "made it, and after its lifetime.",
            provider="local",
            sandbox_id=sandbox_id,
        )
    return sandbox


def _forget_in_child() -> None:
    # They are the parent's. The sockets are closed so that they end with the parent, even if this child lives on.
    for sandbox in SANDBOXES.values():
        sandbox.process.forget()
    SANDBOXES.clear()


os.register_at_fork(after_in_child=_forget_in_child)
