"""The first process in a local sandbox: loads libraries once and forks kernels that have them.

It holds one end of a SOCK_SEQPACKET socket, the host the other. A request is one JSON object with an `op` and perhaps
file descriptors; so is the answer. When the host ends, so does the socket, and with it the sandbox.

This file runs by itself inside the sandbox, next to kernel.py; it must not import this package.
"""

import ctypes
import gc
import importlib
import importlib.util
import json
import os
import resource
import select
import signal
import socket
import sys
from collections.abc import Iterator
from typing import Any

MAX_MESSAGE = 1 << 20
PR_SET_PDEATHSIG, PR_SET_DUMPABLE = 1, 4

_prctl = ctypes.CDLL(None).prctl


def main(control: int) -> None:
    """Serve the host over the socket `control`, for ever."""
    link = socket.socket(fileno=control)
    setup, _ = receive(link)
    _prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    # Code in the sandbox has our uid: without this it could write our memory through /proc.
    _prctl(PR_SET_DUMPABLE, 0, 0, 0, 0)
    for name, value in setup["rlimits"].items():
        resource.setrlimit(getattr(resource, name), (value, value))
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # kernels are reaped by themselves
    supervisor = Supervisor(link, isolated=setup["isolated"])
    supervisor.preload = preload(setup["preload"])
    next(supervisor.preload)
    send(link, {"ready": True})
    supervisor.serve()


class Supervisor:
    """Answers the host's requests, and loads libraries while there are none."""

    def __init__(self, link: socket.socket, *, isolated: bool) -> None:
        self.link = link
        self.isolated = isolated
        self.preload: Iterator[None] = iter(())
        self.kernel = 0

    def serve(self) -> None:
        """Serve until the host is gone."""
        loading = True
        while True:
            if loading and not select.select([self.link], [], [], 0)[0]:
                loading = self.load_more()
                continue
            request, fds = receive(self.link)
            try:
                answer, to_send = getattr(self, "do_" + request.pop("op"))(fds=fds, **request)
            except OSError as error:
                answer, to_send = {"error": error.strerror, "errno": error.errno}, []
            finally:
                for fd in fds:
                    os.close(fd)
            send(self.link, answer, to_send)
            for fd in to_send:
                os.close(fd)

    def load_more(self) -> bool:
        """Load one more library; False if there is none left."""
        return next(self.preload, self) is not self

    def do_fork(
        self, *, fds: list[int], warm: bool, env: dict[str, str], **settings: Any
    ) -> tuple[dict[str, Any], list[int]]:
        """Fork a kernel that listens on `fds`, in place of the one before; `warm` waits for all libraries."""
        self.kill_the_rest()
        while warm and self.load_more():
            pass
        gc.collect()
        gc.freeze()
        self.kernel = os.fork()
        if self.kernel == 0:
            become_kernel(self.link, fds, env, settings)
        return {"pid": self.kernel}, [os.pidfd_open(self.kernel)]

    def kill_the_rest(self) -> None:
        """End every other process of the sandbox: what an earlier kernel left behind."""
        try:
            if self.isolated:
                os.kill(-1, signal.SIGKILL)
            elif self.kernel:
                os.killpg(self.kernel, signal.SIGKILL)
        except ProcessLookupError:
            pass

    def do_open(self, *, fds: list[int], path: str, flags: int, parents: bool) -> tuple[dict[str, Any], list[int]]:
        """Open a file with the rights of the sandbox, relative to its home: there a symlink leads to nothing new."""
        path = os.path.join(os.environ["HOME"], path)
        if parents:
            os.makedirs(os.path.dirname(path) or "/", exist_ok=True)
        return {"path": os.path.normpath(path)}, [os.open(path, flags | os.O_NONBLOCK | os.O_CLOEXEC, 0o644)]


def become_kernel(link: socket.socket, fds: list[int], env: dict[str, str], settings: dict[str, Any]) -> None:
    """Run a kernel in this just forked process; never returns."""
    errors = os.dup(2)
    try:
        link.close()
        os.setsid()
        _prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        _prctl(PR_SET_DUMPABLE, 1, 0, 0, 0)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        gc.unfreeze()
        null = os.open(os.devnull, os.O_RDWR)
        for fd in (0, 1, 2):
            os.dup2(null, fd)
        os.environ.update(env)
        if "numpy" in sys.modules:
            # Otherwise all kernels draw the same numbers.
            sys.modules["numpy"].random.seed()
        app = sys.modules["kernel"].make(fds, **settings)
        os.close(errors)
        app.start()
    except BaseException:
        import traceback

        try:
            os.write(errors, traceback.format_exc().encode(errors="replace"))
        finally:
            os._exit(1)
    os._exit(0)


def preload(modules: list[str]) -> Iterator[None]:
    """Import the kernel, then `modules`, one at each step, and draw once, which fills matplotlib's caches."""
    # ipykernel would import it for 0.1 s; a debugger has nothing to connect to here.
    sys.modules["debugpy"] = None  # type: ignore[assignment]
    path = os.path.join(os.path.dirname(os.path.abspath(__file__)), "kernel.py")
    spec = importlib.util.spec_from_file_location("kernel", path)
    assert spec is not None
    assert spec.loader is not None
    sys.modules["kernel"] = module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    yield
    for name in modules:
        try:
            importlib.import_module(name)
        except Exception:
            continue  # not installed, or broken: the code that wants it will see
        yield
    if "matplotlib.pyplot" in sys.modules:
        draw_once()
        yield
    if "pandas" in sys.modules:
        sys.modules["pandas"].DataFrame({"a": [1.5]})._repr_html_()
        yield


def draw_once() -> None:
    """Load the fonts and the PNG writer."""
    import io

    from matplotlib.backends.backend_agg import FigureCanvasAgg  # type: ignore[import-not-found,unused-ignore]
    from matplotlib.figure import Figure  # type: ignore[import-not-found,unused-ignore]

    figure = Figure()
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    axes.plot([1, 2], label="x")
    axes.set_title("x")
    axes.legend()
    figure.savefig(io.BytesIO(), format="png", bbox_inches="tight")


def receive(link: socket.socket) -> tuple[dict[str, Any], list[int]]:
    """The next request and its file descriptors; ends the sandbox when the host is gone."""
    data, fds, _, _ = socket.recv_fds(link, MAX_MESSAGE, 8)
    if not data:
        os._exit(0)
    return json.loads(data), fds


def send(link: socket.socket, answer: dict[str, Any], fds: list[int] | tuple[int, ...] = ()) -> None:
    """Answer the host."""
    socket.send_fds(link, [json.dumps(answer).encode()], list(fds))


if __name__ == "__main__":
    main(int(sys.argv[1]))
