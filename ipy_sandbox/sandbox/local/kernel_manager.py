"""A kernel in a sandbox and the jupyter_client that drives it."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import shutil
import signal
import socket
from typing import TYPE_CHECKING, Any, cast

from ...errors import KernelDiedError, SandboxCreationError
from . import leftovers
from .box import BoxProcess
from .conversation import notice
from .limits import Limits, MiB
from .pidfd import PidFd

if TYPE_CHECKING:
    from jupyter_client.asynchronous.client import AsyncKernelClient

_CHANNELS = ("shell", "iopub", "stdin", "control")
_START_SECONDS = 60
_WAITING = 8
"""Messages that wait to be read, of any size; the kernel keeps the others."""


class SandboxKernelManager:
    """Forks a kernel from a sandbox's supervisor and connects an ordinary AsyncKernelClient to it.

    The sockets are made and listened on here, in a directory only we can enter, and passed as descriptors, so that
    nothing is shared with the sandbox; the directory is gone as soon as the client is connected.
    """

    def __init__(self, box: BoxProcess, limits: Limits) -> None:
        self._box = box
        self._limits = limits
        self._directory: str | None = None
        self._process = PidFd(-1)
        self.client: AsyncKernelClient | None = None

    @property
    def alive(self) -> bool:
        """Whether the kernel process runs."""
        return self._process.alive

    async def start(self, env: dict[str, str], *, warm: bool = False) -> None:
        """Fork a kernel, in place of the one before if there was one, and wait until it answers.

        Arguments:
            warm: wait first until the supervisor has loaded all libraries.
        """
        self.stop()
        key = secrets.token_hex(32)
        self._directory = leftovers.directory("sockets")
        try:
            await self._fork(key, env, warm)
            async with asyncio.timeout(_START_SECONDS):
                await self._connect(key)
        except TimeoutError:
            raise SandboxCreationError(
                f"The kernel did not answer within {_START_SECONDS} s.", provider="local"
            ) from None
        except KernelDiedError:
            await asyncio.sleep(0.05)
            raise SandboxCreationError(
                f"The kernel did not start: {self._box.said.splitlines()[-1:] or 'no reason given'}.", provider="local"
            ) from None
        finally:
            self._remove_directory()

    async def _fork(self, key: str, env: dict[str, str], warm: bool) -> None:
        sockets = []
        try:
            for number in range(1, len(_CHANNELS) + 1):
                listener = socket.socket(socket.AF_UNIX)
                sockets.append(listener)
                listener.bind(f"{self._directory}/s-{number}")
                listener.listen(16)
            fds = [listener.fileno() for listener in sockets]
            settings = {
                "key": key,
                "output_bytes": self._limits.output_bytes,
                "process_memory": self._limits.process_memory,
                "message_bytes": self._limits.output_bytes + self._limits.display_bytes,
            }
            _, received = await self._box.request("fork", fds, env=env, warm=warm, **settings)
        finally:
            for listener in sockets:
                listener.close()
        self._process = PidFd(received[0])

    async def _connect(self, key: str) -> None:
        from jupyter_client.asynchronous.client import AsyncKernelClient

        self.client = client = AsyncKernelClient(context=_context(self._limits))
        info: dict[str, Any] = {f"{name}_port": number for number, name in enumerate(_CHANNELS, start=1)}
        info |= {"transport": "ipc", "ip": f"{self._directory}/s", "hb_port": 5}
        info |= {"signature_scheme": "hmac-sha256", "key": key.encode()}
        client.load_connection_info(cast("Any", info))
        client.start_channels(shell=True, iopub=True, stdin=False, hb=False, control=True)
        dead = asyncio.ensure_future(self._process.ended())
        ready = asyncio.ensure_future(_handshake(client))
        try:
            await asyncio.wait([dead, ready], return_when=asyncio.FIRST_COMPLETED)
            if not ready.done():
                raise KernelDiedError("The kernel died while it started.", provider="local")
            await ready
        finally:
            for task in (dead, ready):
                task.cancel()

    def interrupt(self) -> None:
        """Ctrl-C, for the kernel process alone."""
        self._process.send(signal.SIGINT)

    async def died(self) -> None:
        """Wait until the kernel process has ended."""
        await self._process.ended()

    async def disconnected(self) -> None:
        """Wait until a connection to the kernel breaks: it ended, or sent a message that is too large."""
        import zmq

        assert self.client is not None
        sockets = [channel.socket for channel in (self.client.iopub_channel, self.client.shell_channel)]
        monitors = [socket.get_monitor_socket(zmq.EVENT_DISCONNECTED) for socket in sockets]
        waiting = [asyncio.ensure_future(monitor.recv_multipart()) for monitor in monitors]
        try:
            await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in waiting:
                task.cancel()

    def stop(self) -> None:
        """End the kernel and close the client."""
        self._process.send(signal.SIGKILL)
        self._process.close()
        if self.client is not None:
            self.client.stop_channels()
            self.client.context.destroy(linger=0)
            self.client = None
        self._remove_directory()

    def _remove_directory(self) -> None:
        if self._directory is not None:
            shutil.rmtree(self._directory, ignore_errors=True)
            self._directory = None


async def _handshake(client: AsyncKernelClient) -> None:
    """Wait until the kernel answers on shell and control, and what it publishes arrives."""
    session = client.session

    def ask(channel: Any) -> Any:
        asked = session.send(channel.socket, "kernel_info_request", {})["header"]["msg_id"]
        notice(channel.socket)
        return asked

    control = ask(client.control_channel)
    while True:
        # A subscription takes effect some time after it is made: ask until the answer is published to us.
        asked = ask(client.shell_channel)
        await _answer(client.shell_channel, asked)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(0.05):
                await _answer(client.iopub_channel, asked)
                break
    await _answer(client.control_channel, control)


async def _answer(channel: Any, msg_id: str) -> None:
    while True:
        message = await channel.get_msg()
        if message["parent_header"].get("msg_id") == msg_id and _is_last(message):
            return


def _is_last(message: dict[str, Any]) -> bool:
    return bool(message["msg_type"] != "status" or message["content"].get("execution_state") == "idle")


def _context(limits: Limits) -> Any:
    """A ZMQ context whose sockets break off a message far larger than one run may show, and let few of them wait."""
    import zmq.asyncio

    context = zmq.asyncio.Context()
    context.setsockopt(zmq.RCVHWM, _WAITING)
    context.setsockopt(zmq.MAXMSGSIZE, 2 * (limits.output_bytes + limits.display_bytes) + MiB)
    return context
