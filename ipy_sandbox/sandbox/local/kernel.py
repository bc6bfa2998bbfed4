"""The ipykernel of a local sandbox, on sockets that it was given.

This file runs by itself inside the sandbox, see supervisor.py; it must not import this package.
"""

# mypy: disable-error-code="no-untyped-call,untyped-decorator,override,arg-type"
import asyncio
import contextlib
import functools
import inspect
import json
import os
import re
import resource
import signal
import sys
import time
from collections.abc import Iterator
from typing import Any, ClassVar

import zmq
from ipykernel.iostream import OutStream
from ipykernel.ipkernel import IPythonKernel
from ipykernel.kernelapp import IPKernelApp
from IPython.core.interactiveshell import InteractiveShell
from traitlets.config import Config

FLUSH_BYTES = 1 << 20
"""Text that may wait before the writer does: ipykernel itself buffers without limit."""


class Stream(OutStream):
    """A stdout or stderr that makes the writer wait for the reader, and stops sending past the output limit."""

    limit = 0
    flush_timeout = 2  # after that the writer goes on, though the reader does not

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self._sent = 0
        self._waiting = 0
        self._run: Any = None
        super().__init__(*args, **kwargs)

    def write(self, string: str) -> int:
        if not isinstance(string, str):
            raise TypeError(f"write() argument must be str, not {type(string)}")
        size = len(string)
        if (run := self.parent_header.get("msg_id")) != self._run:
            self._run, self._sent = run, 0
        if self._sent > self.limit:
            return size  # the host has what it shows, and knows that there is more
        self._sent += size
        for start in range(0, size, FLUSH_BYTES):
            super().write(string[start : start + FLUSH_BYTES])
            self._waiting += min(FLUSH_BYTES, size - start)
            if self._waiting >= FLUSH_BYTES:
                self._waiting = 0
                self.flush()
            if start > self.limit:
                break
        return size

    def flush(self) -> None:
        # The kernel flushes several times in each cell, and each time waits for another thread.
        if self._buffers:
            super().flush()


class SandboxKernel(IPythonKernel):
    """An IPython kernel that an interrupt stops wherever its code is, and nowhere else.

    ipykernel's own handlers have no effect on code that sleeps in an `await` or blocks between two, and end the whole
    kernel when they hit its event loop.
    """

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._execute_sleep = 0  # for clients that take the reply for the end; ours waits for all outputs
        self._cell: asyncio.Task[Any] | None = None
        self._deaf_until = 0.0
        self.memory: _Memory
        self.cancelled = False
        signal.signal(signal.SIGINT, self._interrupt)

    def pre_handler_hook(self) -> None:
        """Be ready for an interrupt; our handler is always there."""
        self._deaf_until = 0.0

    def post_handler_hook(self) -> None:
        """Leave our handler where it is."""

    @functools.wraps(IPythonKernel.do_execute)
    async def do_execute(self, *args: Any, **kwargs: Any) -> Any:
        try:
            return await super().do_execute(*args, **kwargs)
        except asyncio.CancelledError:
            # An interrupt in the last moment of a cell with `await`: let out, it would end the kernel's own loop.
            count = None if self.shell is None else self.shell.execution_count - 1
            error = {"ename": "KeyboardInterrupt", "evalue": "", "traceback": []}
            return {"status": "error", **error, "execution_count": count, "user_expressions": {}, "payload": []}

    @contextlib.contextmanager
    def _cancel_on_sigint(self, future: "asyncio.Task[Any]") -> Iterator[None]:
        self._cell, self.cancelled = future, False
        try:
            yield
        finally:
            self._cell = None

    def _interrupt(self, signum: int, frame: Any) -> None:
        # The host repeats an interrupt that seems to be lost; code that reacts to one is left to it.
        if time.monotonic() < self._deaf_until:
            return
        assert self.shell is not None
        where = _place(frame, self.shell.user_global_ns)
        if where == "cell":
            self._deaf_until = time.monotonic() + 1.5
            raise KeyboardInterrupt
        if self._cell is not None and inspect.getcoroutinestate(self._cell.get_coro()) != inspect.CORO_CREATED:
            self.cancelled = True
            self._cell.cancel()
            self._cell.get_loop().call_soon_threadsafe(lambda: None)
        if where == "task":
            self._deaf_until = time.monotonic() + 1.5
            raise asyncio.CancelledError  # KeyboardInterrupt would end the loop itself


def _place(frame: Any, namespace: dict[str, Any]) -> str | None:
    """What is interrupted: the "cell", where IPython catches, another "task" of its code, or something else."""
    found, called = None, None
    while frame is not None:
        if frame.f_globals is namespace:
            found = "task"
        if frame.f_code is InteractiveShell.run_code.__code__:
            return "cell" if called is not None and called.f_globals is namespace else None
        called, frame = frame, frame.f_back
    return found


def _show_error(shell: Any, etype: Any, value: Any, tb: Any, tb_offset: int | None = None) -> Any:
    """Show what an interrupt did as the KeyboardInterrupt it is, without our handler's frame, and make room first."""
    if etype is asyncio.CancelledError and shell.kernel.cancelled:
        etype, value = KeyboardInterrupt, KeyboardInterrupt()
    if etype is KeyboardInterrupt:
        _cut_own_frames(tb)
    if etype is MemoryError:
        shell.kernel.memory.relieve()
    lines = shell.InteractiveTB.structured_traceback(etype, value, tb, tb_offset=tb_offset)
    shell._showtraceback(etype, value, lines)
    return lines


def _cut_own_frames(tb: Any) -> None:
    while tb.tb_next is not None:
        if tb.tb_next.tb_frame.f_code.co_filename == __file__:
            tb.tb_next = None
        else:
            tb = tb.tb_next


class _NoEndpoint:
    def getsockopt(self, option: int) -> bytes:
        return b""


class SandboxKernelApp(IPKernelApp):
    """An ipykernel application whose listening sockets are inherited, by port number."""

    fds: ClassVar[dict[int, int]] = {}

    def _try_bind_socket(self, s: Any, port: int) -> int:
        s.setsockopt(zmq.USE_FD, self.fds[port])
        s.bind(f"ipc:///s-{port}")
        return port

    def init_control(self, context: Any) -> None:
        # The debugger would connect to the address of the shell socket, which names no file here.
        shell, self.shell_socket = self.shell_socket, _NoEndpoint()
        try:
            super().init_control(context)
        finally:
            self.shell_socket = shell

    def init_iopub(self, context: Any) -> None:
        super().init_iopub(context)
        # Wait for a slow reader instead of dropping messages, the one that says "idle" among them.
        self.iopub_thread.socket.setsockopt(zmq.XPUB_NODROP, 1)
        self.iopub_thread.schedule(self._make_publishing_safe)

    def _make_publishing_safe(self) -> None:
        # An error in this thread would be its end, and nothing that the kernel says would ever arrive again. Its own
        # pipe is made now: when it is needed there may be no descriptor left.
        thread, events = self.iopub_thread, self.iopub_thread._events
        _ = thread._event_pipe

        def handle(message: Any) -> None:
            for _ in range(len(events)):
                with contextlib.suppress(Exception):
                    events.popleft()()

        thread._event_puller.on_recv(handle)

    def init_signal(self) -> None:
        """The kernel has done it."""

    def init_heartbeat(self) -> None:
        """The host watches the process itself."""

    def init_connection_file(self) -> None:
        """There is none, here and below."""

    def write_connection_file(self, **kwargs: Any) -> None: ...

    def cleanup_connection_file(self) -> None: ...

    def log_connection_info(self) -> None: ...


def _page(shell: Any, data: Any, *args: Any, **kwargs: Any) -> None:
    """Show what goes to a pager, such as `x?`, as an output."""
    shell.display_pub.publish(data if isinstance(data, dict) else {"text/plain": str(data)})


def _escape_surrogates(session: Any) -> None:
    """Send lone surrogates, which no message can hold, as the escapes that Python shows for them."""
    pack = session.pack

    def packed(content: Any) -> bytes:
        try:
            return bytes(pack(content))
        except UnicodeEncodeError:
            text = json.dumps(content, default=str, ensure_ascii=False)
            return re.sub("[\ud800-\udfff]", lambda half: rf"\\u{ord(half[0]):x}", text).encode()

    session.pack = packed


def _limit_messages(session: Any, limit: int) -> None:
    """Send a note in place of an output that is so large that the host would break the connection."""
    serialize = session.serialize

    def limited(msg: dict[str, Any], ident: Any = None) -> Any:
        frames = serialize(msg, ident)
        size = sum(map(len, frames))
        if size <= limit:
            return frames
        note = f"<{size >> 20} MiB of output left out: more than one cell can show>"
        content = {**msg["content"], "data": {"text/plain": note}, "text": note, "evalue": note, "traceback": [note]}
        return serialize({**msg, "content": {k: v for k, v in content.items() if k in msg["content"]}}, ident)

    session.serialize = limited


class _Memory:
    """Limits what this process may allocate, with a reserve for showing a MemoryError and clearing up after it."""

    RESERVE = 64 << 20

    def __init__(self, allocation: int) -> None:
        self.limit = self.used() + allocation
        self.set(self.limit)

    @staticmethod
    def used() -> int:
        with contextlib.suppress(OSError), open("/proc/self/status") as status:
            return next(int(line.split()[1]) << 10 for line in status if line.startswith("VmData:"))
        return 0  # a system where no /proc can be mounted

    def set(self, limit: int) -> None:
        self.reserved = limit == self.limit
        resource.setrlimit(resource.RLIMIT_DATA, (limit, self.limit + self.RESERVE))

    def relieve(self) -> None:
        """Open the reserve."""
        self.set(self.limit + self.RESERVE)

    def restore(self) -> None:
        """Close the reserve again once there is room."""
        if not self.reserved and self.used() < self.limit:
            self.set(self.limit)


class _Descriptors:
    """Keeps some descriptors for the kernel itself while code runs, to show that there are none left."""

    RESERVE = 32

    def __init__(self, shell: Any) -> None:
        self.limit = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        self._show_traceback = shell.showtraceback
        shell.showtraceback = self._show
        shell.events.register("pre_run_cell", lambda info: self.keep())
        shell.events.register("post_run_cell", lambda result: self.release())

    def _show(self, *args: Any, **kwargs: Any) -> None:
        self.release()
        self._show_traceback(*args, **kwargs)

    def keep(self) -> None:
        """Take the reserve from the code."""
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(1, self.limit - self.RESERVE), self.limit))

    def release(self) -> None:
        """Let everything be used."""
        resource.setrlimit(resource.RLIMIT_NOFILE, (self.limit, self.limit))


def make(fds: list[int], *, key: str, output_bytes: int, message_bytes: int, process_memory: int) -> Any:
    """A kernel application that is ready to start.

    Arguments:
        fds: listening unix sockets for shell, iopub, stdin and control.
        key: signs the messages.
        output_bytes: what one run may print.
        message_bytes: how large a message may be.
        process_memory: what it may allocate.
    """
    Stream.limit = output_bytes
    SandboxKernelApp.fds = dict(enumerate(fds, start=1))
    config = Config()
    config.Session.key = key.encode()
    config.HistoryManager.enabled = False
    # It parses whole libraries, for seconds at first; the names that exist are enough.
    config.Completer.use_jedi = False
    app: Any = SandboxKernelApp.instance(
        config=config,
        shell_port=1,
        iopub_port=2,
        stdin_port=3,
        control_port=4,
        transport="ipc",
        ip="/s",
        kernel_class=SandboxKernel,
        outstream_class=f"{__name__}.Stream",
    )
    app.initialize([])
    _escape_surrogates(app.session)
    _limit_messages(app.session, message_bytes)
    # IPython 9 keeps all that is printed in memory.
    app.shell._tee = lambda channel: contextlib.nullcontext()
    app.shell.set_hook("show_in_pager", _page, priority=0)
    app.shell.set_custom_exc((asyncio.CancelledError, KeyboardInterrupt, MemoryError), _show_error)
    if inline := sys.modules.get("matplotlib_inline.backend_inline"):
        # It was loaded before there was a shell to show figures in.
        inline._enable_matplotlib_integration()
    # -I left these out so that starting imports nothing from the home. A directory that is not there when Python first
    # looks would never be looked at again.
    sys.path.insert(0, "")
    for path in filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep)):
        with contextlib.suppress(OSError):
            os.makedirs(path, exist_ok=True)
        sys.path.append(path)
    app.shell.kernel.memory = memory = _Memory(process_memory)
    app.shell.events.register("pre_run_cell", lambda info: memory.restore())
    _Descriptors(app.shell)
    return app
