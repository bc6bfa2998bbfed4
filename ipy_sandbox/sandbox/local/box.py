"""One started sandbox: its processes, and the socket to the supervisor inside."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

from ...errors import SandboxCreationError, SandboxLostError
from . import internet, leftovers
from .bubblewrap import CODE, Box, Isolation, command, environment, python
from .pidfd import PidFd, readable
from .probe import CLEAN, explain
from .usage import processes

PRELOAD = ("numpy", "pandas", "matplotlib.pyplot", "matplotlib_inline.backend_inline")
_ANSWER_SECONDS = 30
_MESSAGE = 1 << 20


class BoxProcess:
    """The process tree of a sandbox.

    Attributes:
        init: the process whose end takes all others with it.
        monitor: our own child.
    """

    def __init__(self, popen: subprocess.Popen[bytes], link: socket.socket, errors: int) -> None:
        self.popen = popen
        self.monitor = PidFd(os.pidfd_open(popen.pid))
        self.init = self.monitor
        self.init_pid = popen.pid
        self.home: str | None = None
        self.pasta: subprocess.Popen[bytes] | None = None
        self._link = link
        self._turn = asyncio.Lock()
        self._errors = errors
        self._said = b""
        os.set_blocking(errors, False)
        asyncio.get_running_loop().add_reader(errors, self._read_errors)

    def _read_errors(self) -> None:
        data = b""
        with contextlib.suppress(BlockingIOError):
            data = os.read(self._errors, 65536)
            if not data:
                asyncio.get_running_loop().remove_reader(self._errors)
        self._said = (self._said + data)[-8192:]

    @property
    def said(self) -> str:
        """The last of what the processes outside of a kernel wrote to standard error."""
        return self._said.decode(errors="replace").strip()

    @property
    def ended(self) -> bool:
        """Whether the sandbox is gone."""
        return not self.monitor.alive

    async def request(
        self, op: str, fds: list[int] | None = None, **arguments: Any
    ) -> tuple[dict[str, Any], list[int]]:
        """Ask the supervisor; returns its answer and the descriptors that came with it.

        Raises:
            OSError: the supervisor says so.
            SandboxLostError: it is gone, or does not answer.
        """
        message = json.dumps({"op": op, **arguments}).encode()
        # A caller that goes away must not leave the answer to the next one.
        exchange = asyncio.ensure_future(self._exchange(message, [os.dup(fd) for fd in fds or []]))
        try:
            return await asyncio.shield(exchange)
        except asyncio.CancelledError:
            exchange.add_done_callback(_close_received)
            raise

    async def _exchange(self, message: bytes, fds: list[int]) -> tuple[dict[str, Any], list[int]]:
        async with self._turn:
            try:
                socket.send_fds(self._link, [message], fds)
                async with asyncio.timeout(_ANSWER_SECONDS):
                    await readable(self._link.fileno())
                data, received, _, _ = socket.recv_fds(self._link, _MESSAGE, 8)
            except (OSError, ValueError) as error:  # a closed socket has no valid number
                self.kill()
                raise SandboxLostError(f"The sandbox does not answer: {error!r}.", provider="local") from None
            finally:
                for fd in fds:
                    os.close(fd)
        if not data:
            raise SandboxLostError("The sandbox has ended.", provider="local")
        answer = json.loads(data)
        if "errno" in answer:
            raise OSError(answer["errno"], answer["error"])
        return answer, received

    async def setup(self, box: Box, *, isolated: bool) -> None:
        """Tell the supervisor what it is for, and wait until it can fork."""
        try:
            await self.request("setup", rlimits=box.limits.rlimits(), isolated=isolated, preload=list(PRELOAD))
        except SandboxLostError:
            await asyncio.sleep(0)
            self._read_errors()
            raise SandboxCreationError(
                f"The local sandbox did not start: {' '.join(self.said.split())[-500:] or 'no reason given'}.",
                provider="local",
            ) from None

    def kill(self) -> None:
        """End everything in the sandbox."""
        if self.home is not None:
            # No namespace that takes its processes along.
            for pid in processes(self.init_pid)[1:]:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        self.init.send(signal.SIGKILL)

    async def close(self) -> None:
        """End a sandbox that did not get ready."""
        self.kill()
        await self.monitor.ended()
        self.release()

    def release(self) -> None:
        """Forget an ended sandbox."""
        if self.pasta is not None:
            self.pasta.kill()
            self.pasta.wait()
        self.popen.wait()
        with contextlib.suppress(RuntimeError):
            asyncio.get_running_loop().remove_reader(self._errors)
        self.forget()
        if self.home is not None:
            shutil.rmtree(self.home, ignore_errors=True)

    def forget(self) -> None:
        """Close what this process holds of the sandbox, without ending it."""
        self._link.close()
        for fd in (self.init, self.monitor):
            fd.close()
        if self._errors >= 0:
            os.close(self._errors)
            self._errors = -1


def _close_received(exchange: asyncio.Future[tuple[dict[str, Any], list[int]]]) -> None:
    if not exchange.cancelled() and exchange.exception() is None:
        for fd in exchange.result()[1]:
            os.close(fd)


async def start_isolated(isolation: Isolation, box: Box) -> BoxProcess:
    """Start a sandbox; its supervisor can fork kernels when this returns.

    Raises:
        IsolationUnavailableError, SandboxCreationError.
    """
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    info, info_out = os.pipe()
    with theirs, contextlib.ExitStack() as opened, contextlib.ExitStack() as on_failure:
        opened.callback(os.close, info_out)
        on_failure.callback(ours.close)
        on_failure.callback(os.close, info)
        payload = [python(), "-I", "-B", f"{CODE}/supervisor.py", str(theirs.fileno())]
        start = command(isolation, box, payload, ["--info-fd", str(info_out)])
        opened.callback(start.close)
        process = _start(start.argv, [*start.fds, theirs.fileno(), info_out], CLEAN | leftovers.mark(), ours)
        on_failure.pop_all()
    try:
        pid = await _child_pid(info)
        if pid is None:
            await process.monitor.ended()
            process._read_errors()
            raise explain(isolation.bwrap, process.said)
        process.init_pid, process.init = pid, PidFd(os.pidfd_open(pid))
        if box.network == "internet":
            process.pasta = await internet.attach(pid)
        await process.setup(box, isolated=True)
    except BaseException:
        await process.close()
        raise
    finally:
        os.close(info)
    return process


async def start_unsafe(box: Box) -> BoxProcess:
    """Start a supervisor as a plain process: no isolation at all."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    home = leftovers.directory("home")
    with theirs, contextlib.ExitStack() as on_failure:
        on_failure.callback(ours.close)
        on_failure.callback(shutil.rmtree, home)
        argv = [sys.executable, "-I", "-B", str(Path(__file__).parent / "supervisor.py"), str(theirs.fileno())]
        process = _start(argv, [theirs.fileno()], environment(home), ours, cwd=home)
        on_failure.pop_all()
    process.home = home
    try:
        await process.setup(box, isolated=False)
    except BaseException:
        await process.close()
        raise
    return process


def _start(argv: list[str], fds: list[int], env: dict[str, str], link: socket.socket, cwd: str = "/") -> BoxProcess:
    link.setblocking(False)
    errors, errors_in = os.pipe()
    try:
        # A session of its own: the notebook's stop button signals a whole process group.
        popen = subprocess.Popen(
            argv, pass_fds=fds, env=env, cwd=cwd, stdin=subprocess.DEVNULL, stdout=errors_in, stderr=errors_in,
            start_new_session=True,
        )  # fmt: skip
    except OSError as error:
        os.close(errors)
        if error.errno == errno.EAGAIN:
            raise SandboxCreationError("No sandbox could be started: too many processes.", provider="local") from None
        raise SandboxCreationError(f"No sandbox could be started: {error}.", provider="local") from None
    finally:
        os.close(errors_in)
    return BoxProcess(popen, link, errors)


async def _child_pid(info: int) -> int | None:
    """The sandbox's init as bubblewrap reports it; None if it ended before."""
    os.set_blocking(info, False)
    data = b""
    while True:
        await readable(info)
        chunk = os.read(info, 4096)
        data += chunk
        if not chunk:
            return None
        with contextlib.suppress(ValueError):
            return int(json.loads(data)["child-pid"])
