"""Files in a sandbox, opened by its own supervisor: what the code there may not reach is not reached from here."""

from __future__ import annotations

import asyncio
import contextlib
import os
import stat
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime
from typing import Concatenate, ParamSpec, TypeVar

from ...errors import FileTransferError, SandboxLostError
from ...models import FileInfo
from .sandbox import LocalSandbox

T = TypeVar("T")
P = ParamSpec("P")


async def read(sandbox: LocalSandbox, path: str) -> bytes:
    """The content of a file."""
    async with _opened(sandbox, path, os.O_RDONLY) as (fd, _):
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise _error("read", path, "it is not a file")
        return await _in_thread(_read_all, fd, sandbox.box.limits.file_size)


async def write(sandbox: LocalSandbox, path: str, data: bytes) -> None:
    """Make or replace a file."""
    async with _opened(sandbox, path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, parents=True) as (fd, _):
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise _error("write", path, "it is not a file")
        await _in_thread(_write_all, fd, data)


async def entries(sandbox: LocalSandbox, path: str) -> list[FileInfo]:
    """The entries of a directory, sorted; a symlink is listed as itself."""
    async with _opened(sandbox, path, os.O_RDONLY | os.O_DIRECTORY) as (fd, full):
        return await _in_thread(_list, fd, full)


@contextlib.asynccontextmanager
async def _opened(
    sandbox: LocalSandbox, path: str, flags: int, *, parents: bool = False
) -> AsyncIterator[tuple[int, str]]:
    if sandbox.ended:
        raise sandbox.lost()
    if not path or "\0" in path:
        raise _error("open", path, "that is no file name")
    sandbox.touch()
    verb = "write" if flags & os.O_CREAT else "read"
    try:
        answer, fds = await sandbox.process.request("open", path=path, flags=flags, parents=parents)
    except SandboxLostError:
        sandbox.kill("its supervisor does not answer")
        raise sandbox.lost() from None
    except OSError as error:
        raise _error(verb, path, error.strerror or str(error)) from None
    try:
        yield fds[0], answer["path"]
    except OSError as error:
        raise _error(verb, path, error.strerror or str(error)) from None
    finally:
        os.close(fds[0])


async def _in_thread(work: Callable[Concatenate[int, P], T], fd: int, *args: P.args, **kwargs: P.kwargs) -> T:
    """Run `work` with a descriptor of its own: the caller may go away, and `fd` with it, while it still runs."""
    own = os.dup(fd)

    def run() -> T:
        try:
            return work(own, *args, **kwargs)
        finally:
            os.close(own)

    return await asyncio.shield(asyncio.ensure_future(asyncio.to_thread(run)))


def _error(verb: str, path: str, why: str) -> FileTransferError:
    return FileTransferError(f"Could not {verb} {path!r} in the sandbox: {why}.", provider="local")


def _read_all(fd: int, limit: int) -> bytes:
    chunks = []
    while limit > 0 and (chunk := os.read(fd, min(limit, 1 << 20))):
        chunks.append(chunk)
        limit -= len(chunk)
    return b"".join(chunks)


def _write_all(fd: int, data: bytes) -> None:
    left = memoryview(data)
    while left:
        left = left[os.write(fd, left) :]


def _moment(seconds: float) -> datetime | None:
    try:
        return datetime.fromtimestamp(seconds, UTC)
    except (ValueError, OverflowError):
        return None  # the code there may set any time


def _list(fd: int, directory: str) -> list[FileInfo]:
    found = []
    with os.scandir(fd) as listing:
        for entry in listing:
            with contextlib.suppress(FileNotFoundError):
                status = entry.stat(follow_symlinks=False)
                found.append(
                    FileInfo(
                        path=os.path.join(directory, entry.name),
                        is_dir=stat.S_ISDIR(status.st_mode),
                        size=status.st_size,
                        modified_at=_moment(status.st_mtime),
                    )
                )
    return sorted(found, key=lambda info: info.path)
