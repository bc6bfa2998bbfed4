"""Several processes that share one listening socket: started, told of signals, and started again when they die."""

from __future__ import annotations

import logging
import signal
import socket
import subprocess
import sys
import time
from dataclasses import asdict
from types import FrameType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .server import ServerOptions

logger = logging.getLogger("ipy_sandbox.proxy")

KILL_SECONDS = 10
"""After this long a worker that was told to stop is killed."""
WRONG_CONFIGURATION = 2
"""The exit status of a worker that would not start the next time either."""


class _Workers:
    def __init__(self, command: list[str], listener: socket.socket) -> None:
        self._command = command
        self._listener = listener
        self._processes: dict[int, subprocess.Popen[bytes]] = {}
        self.stopping = False

    def start_one(self) -> None:
        process = subprocess.Popen(self._command, pass_fds=[self._listener.fileno()])
        self._processes[process.pid] = process

    def signal_all(self, number: int, _frame: FrameType | None = None) -> None:
        if number in (signal.SIGTERM, signal.SIGINT):
            self.stopping = True
            signal.alarm(KILL_SECONDS)
        for process in self._processes.values():
            process.send_signal(signal.SIGKILL if number == signal.SIGALRM else number)

    def wait_for_one(self) -> int:
        """The exit status of the next worker that ends."""
        while True:
            for pid, process in list(self._processes.items()):
                if (status := process.poll()) is not None:
                    del self._processes[pid]
                    return status
            time.sleep(0.1)

    @property
    def any_left(self) -> bool:
        return bool(self._processes)


def supervise(options: ServerOptions, listener: socket.socket) -> int:
    """Run `options.workers` workers until a signal says to stop; returns the exit status."""
    listener.set_inheritable(True)
    workers = _Workers(_command(options, listener.fileno()), listener)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGALRM):
        signal.signal(number, workers.signal_all)
    for _ in range(options.workers):
        workers.start_one()
    exit_status = 0
    while workers.any_left:
        status = workers.wait_for_one()
        if workers.stopping:
            continue
        if status == WRONG_CONFIGURATION:
            exit_status = status
            workers.signal_all(signal.SIGTERM)
            continue
        logger.error("a worker ended with status %d, another one is started", status)
        time.sleep(0.5)
        workers.start_one()
    return exit_status


def _command(options: ServerOptions, fd: int) -> list[str]:
    given = {**asdict(options), "fd": fd}
    pairs = [(f"--{name.replace('_', '-')}", str(value)) for name, value in given.items() if value is not None]
    return [sys.executable, "-m", "ipy_sandbox.cli", "proxy", *(word for pair in pairs for word in pair)]
