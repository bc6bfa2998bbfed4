"""What a process that was killed in the middle of starting a sandbox left behind.

bubblewrap arranges to die with its parent a moment after it starts. One whose parent is killed before that waits for
ever, without having run any code; its mark in the environment says whose it was.
"""

from __future__ import annotations

import contextlib
import functools
import os
import re
import shutil
import signal
import tempfile

_MARK = "IPY_SANDBOX_HOST"


def directory(kind: str) -> str:
    """A new private directory whose name says which process it belongs to."""
    return tempfile.mkdtemp(prefix=f"ipy-sandbox-{kind}-{os.getpid()}-{_started(os.getpid())}-", dir=_parent())


def mark() -> dict[str, str]:
    """What to add to the environment of bubblewrap."""
    return {_MARK: f"{os.getpid()}-{_started(os.getpid())}"}


@functools.cache
def _parent() -> str:
    # A unix socket's path has at most 107 bytes.
    places = (os.environ.get("XDG_RUNTIME_DIR"), tempfile.gettempdir(), "/tmp")
    return next((p for p in places if p and len(p) < 40 and os.access(p, os.W_OK)), "/tmp")


def _started(pid: int) -> str | None:
    """When the process started, in clock ticks since boot; None if there is none."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as stat:
            return stat.read().rsplit(b")", 1)[1].split()[19].decode()
    except OSError:
        return None


def sweep() -> None:
    """Remove what dead processes of this user left behind."""
    for name in os.listdir(_parent()):
        if owner := re.match(r"ipy-sandbox-[a-z]+-(\d+)-(\d+)-", name):
            path = os.path.join(_parent(), name)
            with contextlib.suppress(OSError):
                if _is_dead(*owner.groups()) and os.lstat(path).st_uid == os.geteuid():
                    shutil.rmtree(path, ignore_errors=True)
    mark = re.compile(rf"(?:^|\0){_MARK}=(\d+)-(\d+)\0".encode())
    for pid in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError), open(f"/proc/{pid}/environ", "rb") as environ:
            found = mark.search(environ.read())
            if found and _is_dead(found[1].decode(), found[2].decode()):
                os.kill(int(pid), signal.SIGKILL)


def _is_dead(pid: str, start: str) -> bool:
    return _started(int(pid)) != start
