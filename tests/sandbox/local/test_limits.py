"""Bombs: each is stopped by the limit that is named, and the next cell works."""

from __future__ import annotations

import resource

import pytest

from ipy_sandbox import Session
from ipy_sandbox.errors import SandboxLostError
from ipy_sandbox.models import ExecutionError, SandboxOptions
from ipy_sandbox.sandbox.local import watchdog
from ipy_sandbox.sandbox.local.limits import Limits
from ipy_sandbox.sandbox.local.registry import SANDBOXES
from ipy_sandbox.sandbox.local.usage import Usage


def error_name(session: Session, code: str) -> str | None:
    error = session.run(code).error
    return None if error is None else error.name


@pytest.mark.parametrize(
    ("bomb", "error"),
    [
        ("x = bytearray(10 ** 10)", "MemoryError"),
        ("x = []\nwhile True: x.append(bytes(10 ** 6))", "MemoryError"),
        ("import numpy; x = numpy.ones(10 ** 9)", "MemoryError"),
        ("open('big', 'wb').write(b'x' * (1 << 25))", "OSError"),
        ("for i in range(9): open(f'{i}', 'wb').write(b'x' * (10 << 20))", "OSError"),
        ("for i in range(9): open(f'/tmp/{i}', 'wb').write(b'x' * (10 << 20))", "OSError"),
        ("open('/dev/shm/x', 'wb').write(b'x' * (11 << 20))", "OSError"),
        ("import os\nwhile True: os.dup(0)", "OSError"),
        ("import os, time\nwhile True:\n    if os.fork() == 0: time.sleep(100)", "BlockingIOError"),
        (
            "import threading, time\nwhile True: threading.Thread(target=time.sleep, args=(100,)).start()",
            "RuntimeError",
        ),
    ],
)
def test_a_bomb_is_an_error_of_the_cell_and_the_kernel_survives(small: Session, bomb: str, error: str) -> None:
    small.run("state = 41")
    assert error_name(small, f"try:\n    exec({bomb!r}, {{}})\nfinally: x = None") in (error, "MemoryError")
    assert small.run("state + 1").text == "42"


def test_an_error_is_shown_though_the_code_holds_all_descriptors(small: Session) -> None:
    error = small.run("import os\nheld = []\nwhile True: held.append(os.dup(0))").error
    assert error is not None
    assert error.name == "OSError"
    assert "Too many open files" in error.traceback
    assert "Traceback (most recent call last)" in error.traceback
    assert small.run("print('said')").stdout == "said\n"
    assert error_name(small, "open('x', 'w')") == "OSError"
    assert error_name(small, "[os.close(fd) for fd in held]; open('x', 'w')") is None


def test_many_processes_together_may_not_use_more_memory_than_one(small: Session) -> None:
    bomb = """
import os, time
for _ in range(8):
    if os.fork() == 0:
        x = bytearray(80 << 20)
        for i in range(0, len(x), 4096): x[i] = 1
        time.sleep(100)
time.sleep(100)"""
    with pytest.raises(SandboxLostError, match=r"MiB of memory, more than the limit memory=400 MiB"):
        small.run(bomb)
    assert small.run("1 + 1").text == "2"


def test_memory_for_page_tables_counts() -> None:
    bomb = """
import mmap, os, time
for _ in range(60):
    if os.fork() == 0:
        x = mmap.mmap(-1, 4 << 30, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, mmap.PROT_READ)
        x.madvise(mmap.MADV_NOHUGEPAGE)
        for i in range(0, len(x), 2 << 20): x[i]
        time.sleep(100)
time.sleep(100)"""
    session = Session("local", SandboxOptions(limits={"memory": 400 << 20, "process_memory": 1000 << 20}))
    with session, pytest.raises(SandboxLostError, match=r"MiB of memory, more than the limit memory=400 MiB"):
        session.run(bomb)


def test_many_small_files_end_the_sandbox(small: Session) -> None:
    with pytest.raises(SandboxLostError, match=r"files, more than the limit files=2000"):
        small.run("for i in range(10 ** 7): open(f'/tmp/{i}', 'w').close()")
    assert small.run("1 + 1").text == "2"


def test_memory_in_sockets_ends_the_sandbox() -> None:
    bomb = """
import os, socket, time
for _ in range(4):
    if os.fork() == 0:
        pairs = [socket.socketpair() for _ in range(100)]
        time.sleep(100)
time.sleep(100)"""
    session = Session("local", SandboxOptions(limits={"sockets": 300}))
    with session, pytest.raises(SandboxLostError, match=r"sockets, more than the limit sockets=300"):
        session.run(bomb)


def test_a_process_with_a_strange_name_does_not_blind_the_watchdog(small: Session) -> None:
    small.run("import ctypes; ctypes.CDLL(None).prctl(15, b'\\xff\\n(', 0, 0, 0)")
    with pytest.raises(SandboxLostError, match="files, more than the limit"):
        small.run("for i in range(10 ** 7): open(f'/tmp/{i}', 'w').close()")


def test_what_cannot_be_measured_ends_and_the_others_are_watched_on(
    small: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    measured = watchdog.usage

    def usage(init: int, mounts: tuple[str, ...]) -> Usage:
        if init == doomed_init:
            raise ZeroDivisionError
        return measured(init, mounts)

    with Session("local") as doomed:
        assert doomed.handle is not None
        doomed_init = SANDBOXES[doomed.handle.id].process.init_pid
        monkeypatch.setattr(watchdog, "usage", usage)
        with pytest.raises(SandboxLostError, match="could not be measured"):
            doomed.run("import time; time.sleep(100)")
    test_many_small_files_end_the_sandbox(small)


def test_a_flood_of_text_is_cut_and_costs_no_memory(session: Session) -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for flood in (
        "for i in range(10 ** 6): print('x' * 1000)",
        "print('x' * 10 ** 9)",
        "import os; os.system('head -c 300000000 /dev/zero | tr \"\\\\0\" x'); None",
        "import sys; _ = sys.stderr.write('x' * 10 ** 8)",
    ):
        result = session.run(flood)
        text = result.stdout + result.stderr
        assert 10_000_000 < len(text) <= 10 << 20
        assert set(text) <= {"x", "\n"}
        assert result.truncated == "Text beyond the first 10 MiB was left out. Print less, or write it to a file."
        assert result.error is None
    assert memory(session) < 400 << 20
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200_000  # kB
    assert session.run("print('next')").stdout == "next\n"


def memory(session: Session) -> int:
    info = session.info()
    assert info is not None
    assert info.memory_bytes is not None
    return info.memory_bytes


def test_a_flood_of_displays_is_cut() -> None:
    with Session("local", SandboxOptions(limits={"display_bytes": 1 << 20})) as session:
        result = session.run(
            "from IPython.display import display, HTML\nfor i in range(50): display(HTML('x' * 100_000))\nprint('end')"
        )
        assert 5 <= len(result.displays) < 11
        assert result.truncated == "Rich output beyond 1 MiB was left out. Print less, or write it to a file."
        assert result.stdout == "end\n"


def test_one_giant_output_is_replaced_by_a_note(session: Session) -> None:
    result = session.run("from IPython.display import HTML\nHTML('x' * (100 << 20))")
    assert result.error is None
    assert "MiB of output left out" in result.text


def test_a_message_that_no_honest_kernel_sends_costs_the_sandbox() -> None:
    code = """
kernel = get_ipython().kernel
kernel.iopub_thread.send_multipart([b"x" * (200 << 20)])
import time; time.sleep(100)"""
    with Session("local") as session:
        session.run("1")
        with pytest.raises(SandboxLostError, match="message larger"):
            session.run(code)


def peak_memory() -> int:
    """Most bytes that this process had since the last call."""
    with open("/proc/self/status") as status:
        peak = next(int(line.split()[1]) for line in status if line.startswith("VmHWM:"))
    with open("/proc/self/clear_refs", "w") as reset:
        reset.write("5")
    return peak << 10


FLOODS = {
    "messages that are never read": """
message = [b"d", b"<IDS|MSG>", b"", b"{}", b"{}", b"{}", bytes(60 << 20)]
for _ in range(60): kernel.iopub_thread.socket.send_multipart(message, copy=False)""",
    "JSON that is far larger once it is parsed": """
message = session.msg("display_data", {}, parent=parent)
body = b'{"metadata": {}, "transient": {}, "data": {"application/json": [' + b"[]," * 20_000_000 + b"0]}}"
parts = [session.pack(message["header"]), session.pack(parent), b"{}", body]
kernel.iopub_socket.send_multipart([b"d", b"<IDS|MSG>", session.sign(parts), *parts])""",
}


@pytest.mark.parametrize("flood", FLOODS)
def test_forged_messages_cost_the_host_little_memory(flood: str) -> None:
    start = "kernel = get_ipython().kernel; session = kernel.session; parent = kernel.get_parent()"
    with Session("local") as session:
        session.run("1")
        before = peak_memory()
        session.run(start + FLOODS[flood])
        assert peak_memory() - before < 900 << 20
        assert session.run("1 + 1").text == "2"


def test_a_flood_of_errors_is_cut() -> None:
    code = """
kernel = get_ipython().kernel
for _ in range(100):
    error = {"ename": "E", "evalue": "v", "traceback": ["x" * 100_000]}
    kernel.session.send(kernel.iopub_socket, "error", error, parent=kernel.get_parent())
raise ValueError"""
    with Session("local", SandboxOptions(limits={"display_bytes": 1 << 20})) as session:
        errors = [event for event in session.stream(code) if isinstance(event, ExecutionError)]
        assert 1 < len(errors) < 20


@pytest.mark.parametrize("count", ["-1", "True", "10 ** 4000", "'1'"])
def test_a_forged_execution_count_is_no_count(session: Session, count: str) -> None:
    code = f"""
kernel = get_ipython().kernel
kernel.session.send(kernel.iopub_socket, "execute_input", {{"execution_count": {count}}}, parent=kernel.get_parent())"""
    number = session.run("1").execution_count
    assert number is not None
    assert session.run(code).execution_count == number + 1


def test_nonsense_from_a_kernel_is_survived(session: Session) -> None:
    code = """
kernel = get_ipython().kernel
parent = kernel.get_parent()
for content in ({"name": 5, "text": [1]}, {"name": "stdout"}, {"data": [], "metadata": 3}, {"traceback": 7}, {}):
    for kind in ("stream", "display_data", "execute_result", "error", "clear_output", "execute_input", "comm_open"):
        kernel.session.send(kernel.iopub_socket, kind, content, parent=parent)
for frames in ([b""], [b"<IDS|MSG>"], [b"a", b"<IDS|MSG>", b"", b"{", b"}", b"", b"[" * 100_000]):
    kernel.iopub_thread.send_multipart(frames)
print("end")"""
    assert session.run(code).stdout.endswith("end\n")
    assert session.run("1 + 1").text == "2"


@pytest.mark.no_sandbox
def test_the_limits_are_named_and_documented() -> None:
    assert Limits.of({"memory": 5}).memory == 5
    assert Limits.of({}) == Limits()
    assert Limits.__doc__ is not None
    for name in vars(Limits()):
        assert f"{name}:" in Limits.__doc__
