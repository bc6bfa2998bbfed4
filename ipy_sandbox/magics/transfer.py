"""Variables and files between the notebook and its sandboxes."""

from __future__ import annotations

import asyncio
import glob
import os
import posixpath
from collections.abc import Awaitable, Callable, Sequence
from fnmatch import fnmatch
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from ..errors import FileTransferError, VariableTransferError
from ..models import FileInfo
from ..sandbox.session import Session
from ..sandbox.variables import apull, apush
from .bridge import wait
from .run import CellRunner
from .sessions import NotebookSession
from .settings import Settings
from .status import Status

if TYPE_CHECKING:
    from IPython.core.interactiveshell import InteractiveShell

T = TypeVar("T")


class Transfer:
    """Moves variables and files, with a status line when it takes long.

    Arguments:
        shell: whose variables they are.
        runner: starts the sandboxes.
        settings: the limits.
    """

    def __init__(self, shell: InteractiveShell, runner: CellRunner, settings: Settings) -> None:
        self._shell = shell
        self._runner = runner
        self._settings = settings

    def push(self, target: NotebookSession, names: Sequence[str]) -> None:
        """Set variables of the notebook in the sandbox."""
        missing = [name for name in names if name not in self._shell.user_ns]
        if missing:
            raise VariableTransferError(f"There is no variable {', '.join(missing)} in this notebook.")
        values = {name: self._shell.user_ns[name] for name in names}
        self._runner.start(target)
        work = apush(target.session, values, limit=self._settings.max_variable_mb * 1_000_000)
        self._watch(work, f"sending {', '.join(names)} to {target.name}")

    def pull(self, target: NotebookSession, names: Sequence[str]) -> None:
        """Set variables of the sandbox in the notebook."""
        self._runner.start(target)
        work = apull(target.session, names, limit=self._settings.max_variable_mb * 1_000_000)
        self._shell.push(self._watch(work, f"getting {', '.join(names)} from {target.name}"))

    def put(self, target: NotebookSession, patterns: Sequence[str], remote: str | None) -> list[str]:
        """Copy local files into the sandbox and return their paths there.

        Arguments:
            patterns: local paths, `*`, `?` and `**` match; a directory is copied with all that is in it.
            remote: a directory if it ends with / or several files are copied, else the file; None: the working
                directory.
        """
        files = _local_files(patterns)
        into = remote is None or remote.endswith("/") or len(files) > 1
        paths = {path: posixpath.join(remote or "", name) if into else str(remote) for path, name in files.items()}
        self._runner.start(target)

        async def send(path: Path) -> str:
            data = await asyncio.to_thread(path.read_bytes)
            await target.session.aupload(paths[path], data)
            return paths[path]

        return self._each(list(files), send, "sending")

    def get(
        self, target: NotebookSession, patterns: Sequence[str], local: str | None, *, force: bool = False
    ) -> list[str]:
        """Copy files of the sandbox here and return their local paths.

        Arguments:
            patterns: paths in the sandbox, `*` and `?` match in the last part.
            local: a directory if it is one, ends with / or several files are copied, else the file; None: here.
            force: let files that a pattern found replace local ones: it is the sandbox that chose their names.
        """
        self._runner.start(target)
        names = self._watch(_remote_files(target.session, patterns), "listing files")
        into = local is None or local.endswith("/") or len(names) > 1 or Path(local).is_dir()
        # The name is the sandbox's word: only its last part counts, and never as a way out of the directory.
        paths = {name: Path(local or ".") / _safe_name(name) if into else Path(str(local)) for name in names}
        replaced = [str(path) for name, path in paths.items() if name not in patterns and path.exists()]
        if replaced and not force:
            raise FileTransferError(f"{', '.join(replaced)} would be replaced: get it by its name, or use --force.")

        async def receive(name: str) -> str:
            data = await target.session.adownload(name)
            await asyncio.to_thread(_write, paths[name], data)
            return str(paths[name])

        return self._each(names, receive, "getting")

    def _each(self, items: list[T], move: Callable[[T], Awaitable[str]], what: str) -> list[str]:
        """Move one after the other, and say how far it is."""
        status = Status(self._shell, what, self._settings.progress_after)

        async def work() -> list[str]:
            moved = []
            for n, item in enumerate(items):
                status.text = f"{what} {n + 1} of {len(items)}: {item}"
                moved.append(await move(item))
            return moved

        try:
            return wait(work(), status.idle)
        finally:
            status.hide()

    def _watch(self, work: Any, what: str) -> Any:
        status = Status(self._shell, what, self._settings.progress_after)
        try:
            return wait(work, status.idle)
        finally:
            status.hide()


def _local_files(patterns: Sequence[str]) -> dict[Path, str]:
    """The files that match, with the names they shall have: below a directory, with its name in front."""
    found: dict[Path, str] = {}
    for pattern in patterns:
        matches = sorted(glob.glob(os.path.expanduser(pattern), recursive=True))
        if not matches:
            raise FileTransferError(f"There is no file {pattern!r} here.")
        for match in map(Path, matches):
            inside = sorted(path for path in match.rglob("*") if path.is_file()) if match.is_dir() else [match]
            found |= {path: path.relative_to(match.parent).as_posix() for path in inside}
    return found


async def _remote_files(session: Session, patterns: Sequence[str]) -> list[str]:
    names: list[str] = []
    for pattern in patterns:
        if not any(sign in pattern for sign in "*?["):
            names.append(pattern)
            continue
        directory, last = posixpath.split(pattern)
        entries = await session.alist_files(directory or ".")
        matches = [entry.path for entry in entries if not entry.is_dir and _matches(entry, last)]
        if not matches:
            raise FileTransferError(f"There is no file {pattern!r} in session {session.name!r}.")
        names += matches
    return names


def _matches(entry: FileInfo, pattern: str) -> bool:
    name = posixpath.basename(entry.path)
    return fnmatch(name, pattern) and (pattern.startswith(".") or not name.startswith("."))


def _safe_name(path: str) -> str:
    name = posixpath.basename(path.rstrip("/"))
    name = "".join(c if c.isprintable() and c != "\\" else "_" for c in name)
    if name in ("", ".", ".."):
        raise FileTransferError(f"{path!r} does not name a file.")
    return name


def _write(path: Path, data: bytes) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    except OSError as error:
        reason = error.strerror
    else:
        return
    raise FileTransferError(f"Cannot write {path}: {reason}.")
