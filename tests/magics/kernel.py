"""A real Jupyter kernel, and what its cells gave."""

from __future__ import annotations

import contextlib
import inspect
import os
import signal
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from queue import Empty
from typing import Any, NoReturn

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


def write_stacks(path: str) -> None:
    """Write where the threads and the unfinished tasks of this process are, down to what they wait for."""
    import asyncio
    import faulthandler
    import gc

    def awaited(thing: object) -> object:
        for name in ("cr_await", "ag_await", "gi_yieldfrom"):
            if (inner := getattr(thing, name, None)) is not None:
                return inner
        # What `async for` waits on tells its generator to the garbage collector only.
        return next((found for found in gc.get_referents(thing) if hasattr(found, "ag_frame")), None)

    with open(path, "w") as file:
        faulthandler.dump_traceback(file)
        for task in [thing for thing in gc.get_objects() if isinstance(thing, asyncio.Task) and not thing.done()]:
            print(task, file=file)
            thing: object = task.get_coro()
            for _ in range(50):
                for name in ("cr_frame", "ag_frame", "gi_frame"):
                    if (frame := getattr(thing, name, None)) is not None:
                        print(f"  {frame.f_code.co_filename}:{frame.f_lineno} in {frame.f_code.co_name}", file=file)
                thing = awaited(thing)


def _ended(cell: Cell) -> bool:
    return any(content["execution_state"] == "idle" for content in cell.contents("status"))


class Kernel:
    """A kernel with a client; messages are sorted by the cell they belong to.

    `stuck` is set once a cell did not end in time.
    """

    def __init__(self, manager: KernelManager, client: BlockingKernelClient, stacks: str) -> None:
        self.manager = manager
        self.client = client
        self.stuck = False
        self._stacks = stacks
        self._cells: dict[str, Cell] = {}

    def send(self, code: str, *, allow_stdin: bool = False, **content: Any) -> str:
        message_id: str = self.client.execute(code, allow_stdin=allow_stdin, stop_on_error=True, **content)
        self._cells[message_id] = Cell()
        return message_id

    def wait(self, message_id: str, timeout: float = TIMEOUT) -> Cell:
        cell = self._cells[message_id]
        self._read(lambda: _ended(cell), timeout)
        deadline = time.monotonic() + timeout
        while not cell.reply:
            try:
                reply = self.client.get_shell_msg(timeout=max(0.1, deadline - time.monotonic()))
            except Empty:
                self._fail_as_stuck()
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

        def printed() -> bool:
            return text in cell.stream() + cell.stream("stderr")

        self._read(lambda: printed() or _ended(cell), timeout)
        assert printed(), cell.error or cell.stream()

    def read_until(self, message_id: str, until: Callable[[Cell], bool], timeout: float = TIMEOUT) -> None:
        """Wait until the cell has sent what `until` looks for."""
        cell = self._cells[message_id]
        self._read(lambda: until(cell), timeout)

    def _read(self, until: Any, timeout: float) -> None:
        deadline = time.monotonic() + timeout
        while not until():
            if time.monotonic() > deadline:
                self._fail_as_stuck()
            try:
                message = self.client.get_iopub_msg(timeout=1)
            except Empty:
                assert self.manager.is_alive(), "the kernel died"
                continue
            if cell := self._cells.get(message["parent_header"].get("msg_id", "")):
                cell.messages.append(message)

    def _fail_as_stuck(self) -> NoReturn:
        self.stuck = True
        pid = self.manager.provisioner.pid  # type: ignore[union-attr]
        os.kill(pid, signal.SIGUSR1)
        time.sleep(2)
        theirs = Path(self._stacks).read_text() or "it does not even answer a signal"
        write_stacks(self._stacks)
        raise AssertionError(
            f"the cell did not end\n--- the kernel, {pid} ---\n{theirs}\n--- the test ---\n"
            f"{Path(self._stacks).read_text()}"
        )

    def interrupt(self) -> None:
        self.manager.interrupt_kernel()


_ANSWER_SIGNAL = f"""
{inspect.getsource(write_stacks)}
__import__("signal").signal({int(signal.SIGUSR1)}, lambda *_, write=write_stacks: write("{{path}}"))
del write_stacks
"""


@contextmanager
def kernel(*, load: bool = True, **env: str) -> Iterator[Kernel]:
    manager = KernelManager(kernel_name="python3")
    manager.start_kernel(env={**os.environ, **env})
    client = manager.client()
    client.start_channels()
    with tempfile.NamedTemporaryFile() as stacks:
        try:
            client.wait_for_ready(timeout=TIMEOUT)
            started = Kernel(manager, client, stacks.name)
            if load:
                started.ok(_ANSWER_SIGNAL.replace("{path}", stacks.name), silent=True)
                started.ok("%load_ext ipy_sandbox")
            yield started
        finally:
            client.stop_channels()
            manager.shutdown_kernel()
            manager.cleanup_resources()


@contextmanager
def shared_kernel(*first: str, **env: str) -> Iterator[Callable[[], Kernel]]:
    """Gives a kernel in which the cells `first` ran: always the same one, but for another in place of a stuck one."""
    environment = {**os.environ, **env}
    with contextlib.ExitStack() as opened:
        current: Kernel | None = None

        def get() -> Kernel:
            nonlocal current
            if current is None or current.stuck:
                opened.close()
                current = opened.enter_context(kernel(**environment))
                for cell in first:
                    current.ok(cell)
            return current

        get()
        yield get
