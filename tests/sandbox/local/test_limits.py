"""Bombs: each is stopped by the limit that is named, and the next cell works."""

from __future__ import annotations

import resource

import pytest

from ipy_sandbox import Session
from ipy_sandbox.errors import SandboxLostError
from ipy_sandbox.models import SandboxOptions
from ipy_sandbox.sandbox.local.limits import Limits


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


def test_many_small_files_end_the_sandbox(small: Session) -> None:
    with pytest.raises(SandboxLostError, match=r"files, more than the limit files=2000"):
        small.run("for i in range(10 ** 7): open(f'/tmp/{i}', 'w').close()")
    assert small.run("1 + 1").text == "2"


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
