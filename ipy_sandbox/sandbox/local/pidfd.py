"""Processes by file descriptor: their number cannot be taken by another process."""

from __future__ import annotations

import asyncio
import contextlib
import os
import select
import signal


class PidFd:
    """A process that can be signalled and waited for on the running loop."""

    def __init__(self, fd: int) -> None:
        self.fd = fd

    @property
    def alive(self) -> bool:
        """Whether it runs still; False once closed."""
        return self.fd >= 0 and not _readable(self.fd, 0)

    def send(self, number: signal.Signals) -> None:
        """Signal the process, if it still runs."""
        with contextlib.suppress(ProcessLookupError, OSError):
            signal.pidfd_send_signal(self.fd, number)

    async def ended(self) -> None:
        """Wait until the process has ended."""
        fd = os.dup(self.fd)  # a loop takes one waiter for each descriptor
        try:
            await readable(fd)
        finally:
            os.close(fd)

    def wait(self, timeout: float) -> bool:
        """Block until the process has ended; False if that takes more than `timeout` seconds."""
        return self.fd < 0 or _readable(self.fd, timeout)

    def close(self) -> None:
        """Let go of it."""
        fd, self.fd = self.fd, -1
        if fd >= 0:
            os.close(fd)


def _readable(fd: int, timeout: float) -> bool:
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    return bool(poll.poll(timeout * 1000))


async def readable(fd: int) -> None:
    """Wait until `fd` can be read; one waiter for each descriptor."""
    loop = asyncio.get_running_loop()
    future = loop.create_future()
    loop.add_reader(fd, lambda: None if future.done() else future.set_result(None))
    try:
        await future
    finally:
        loop.remove_reader(fd)
