"""What a sandbox uses, read from the host's /proc: no cgroup, no privilege."""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass

from .bubblewrap import HOME

MOUNTS = (HOME, "/tmp", "/dev/shm")
"""The file systems in memory that belong to a sandbox."""
_PAGE_TABLES = (b"VmPTE:",)
"""What it costs to map much and use nothing of it."""


@dataclass(frozen=True)
class Usage:
    """Of all processes of a sandbox together.

    Attributes:
        memory: bytes, files in memory and page tables included; pages that processes share count for each of them.
        files: files and directories it made.
        processes: how many there are.
    """

    memory: int
    files: int
    processes: int


def usage(init: int, mounts: tuple[str, ...] = MOUNTS) -> Usage:
    """The use of the sandbox whose first process is `init`; cheap (0.4 ms for an idle one)."""
    pids = processes(init)
    memory = sum(_kilobytes(f"/proc/{pid}/status", (b"RssAnon:", b"RssShmem:", *_PAGE_TABLES)) for pid in pids) << 10
    files = 0
    for mount in mounts:
        with contextlib.suppress(OSError):
            stat = os.statvfs(f"/proc/{init}/root{mount}")
            memory += (stat.f_blocks - stat.f_bfree) * stat.f_frsize
            files += stat.f_files - stat.f_ffree
    return Usage(memory, files, len(pids))


def exact_memory(init: int, mounts: tuple[str, ...] = MOUNTS) -> int:
    """Like `Usage.memory`, with shared pages counted once; takes about 1 ms for each 100 MB."""
    pids = processes(init)
    memory = sum(_kilobytes(f"/proc/{pid}/smaps_rollup", (b"Pss_Anon:", b"Pss_Shmem:")) for pid in pids) << 10
    memory += sum(_kilobytes(f"/proc/{pid}/status", _PAGE_TABLES) for pid in pids) << 10
    for mount in mounts:
        with contextlib.suppress(OSError):
            stat = os.statvfs(f"/proc/{init}/root{mount}")
            memory += (stat.f_blocks - stat.f_bfree) * stat.f_frsize
    return memory


def processes(init: int) -> list[int]:
    """`init` and all its descendants; orphans become children of `init`, so none is missed."""
    found = [init]
    for pid in found:
        with contextlib.suppress(OSError):
            for task in os.listdir(f"/proc/{pid}/task"):
                with open(f"/proc/{pid}/task/{task}/children") as children:
                    found += map(int, children.read().split())
    return found


def sockets(init: int) -> int:
    """The sockets in the network of `init`; what waits in them is memory that counts for nobody."""
    with contextlib.suppress(OSError), open(f"/proc/{init}/net/sockstat", "rb") as lines:
        return int(lines.readline().split()[2])
    return 0


def _kilobytes(path: str, names: tuple[bytes, ...]) -> int:
    total = 0
    # Not as text: a process gives itself a name, of any bytes.
    with contextlib.suppress(OSError), open(path, "rb") as lines:
        total = sum(int(line.split()[1]) for line in lines if line.startswith(names))
    return total
