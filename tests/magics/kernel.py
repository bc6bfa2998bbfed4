"""A real Jupyter kernel, and what its cells gave."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from queue import Empty
from typing import Any

from jupyter_client.blocking.client import BlockingKernelClient
from jupyter_client.manager import KernelManager

TIMEOUT = 60.0


@dataclass
class Cell:
    """The reply to one execution and its messages on iopub."""

    reply: dict[str, Any] = field(default_factory=dict)
    messages: list[dict[str, Any]] = field(default_factory=list)

    @property
    def status(self) -> str:
        return str(self.reply.get("status"))

    def contents(self, *kinds: str) -> list[dict[str, Any]]:
        return [m["content"] for m in self.messages if m["msg_type"] in kinds]

    def stream(self, name: str = "stdout") -> str:
        return "".join(c["text"] for c in self.contents("stream") if c["name"] == name)

    @property
    def value(self) -> str:
        return "".join(c["data"]["text/plain"] for c in self.contents("execute_result"))

    @property
    def displays(self) -> list[dict[str, Any]]:
        return [c["data"] for c in self.contents("display_data", "update_display_data")]

    @property
    def error(self) -> str:
        return "\n".join(line for c in self.contents("error") for line in c["traceback"])


class Kernel:
    """A kernel with a client; messages are sorted by the cell they belong to."""

    def __init__(self, manager: KernelManager, client: BlockingKernelClient) -> None:
        self.manager = manager
        self.client = client
        self._cells: dict[str, Cell] = {}

    def send(self, code: str, *, allow_stdin: bool = False, **content: Any) -> str:
        message_id: str = self.client.execute(code, allow_stdin=allow_stdin, stop_on_error=True, **content)
        self._cells[message_id] = Cell()
        return message_id

    def wait(self, message_id: str, timeout: float = TIMEOUT) -> Cell:
        cell = self._cells[message_id]
        self._read(lambda: any(c["execution_state"] == "idle" for c in cell.contents("status")), timeout)
        deadline = time.monotonic() + timeout
        while not cell.reply:
            reply = self.client.get_shell_msg(timeout=max(0.1, deadline - time.monotonic()))
            if parent := self._cells.get(reply["parent_header"].get("msg_id")):
                parent.reply = reply["content"]
        return cell

    def run(self, code: str, timeout: float = TIMEOUT, **options: Any) -> Cell:
        return self.wait(self.send(code, **options), timeout)

    def ok(self, code: str, **options: Any) -> Cell:
        cell = self.run(code, **options)
        if cell.status == "aborted":  # ipykernel 6 turns away what comes within a moment of a failed cell
            cell = self.run(code, **options)
        assert cell.status == "ok", cell.error or cell.stream("stderr")
        return cell

    def wait_for_text(self, message_id: str, text: str, timeout: float = TIMEOUT) -> None:
        """Wait until the cell has printed `text`."""
        cell = self._cells[message_id]
        self._read(lambda: text in cell.stream() + cell.stream("stderr"), timeout)

    def read_until(self, message_id: str, until: Callable[[Cell], bool], timeout: float = TIMEOUT) -> None:
        """Wait until the cell has sent what `until` looks for."""
        cell = self._cells[message_id]
        self._read(lambda: until(cell), timeout)

    def _read(self, until: Any, timeout: float) -> None:
        deadline = time.monotonic() + timeout
        while not until():
            assert time.monotonic() < deadline, "the cell did not end"
            try:
                message = self.client.get_iopub_msg(timeout=1)
            except Empty:
                assert self.manager.is_alive(), "the kernel died"
                continue
            if cell := self._cells.get(message["parent_header"].get("msg_id", "")):
                cell.messages.append(message)

    def interrupt(self) -> None:
        self.manager.interrupt_kernel()


@contextmanager
def kernel(*, load: bool = True, **env: str) -> Iterator[Kernel]:
    manager = KernelManager(kernel_name="python3")
    manager.start_kernel(env={**os.environ, **env})
    client = manager.client()
    client.start_channels()
    try:
        client.wait_for_ready(timeout=TIMEOUT)
        started = Kernel(manager, client)
        if load:
            started.ok("%load_ext ipy_sandbox")
        yield started
    finally:
        client.stop_channels()
        manager.shutdown_kernel()
        manager.cleanup_resources()
