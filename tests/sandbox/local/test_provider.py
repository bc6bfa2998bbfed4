"""The local provider as its callers see it, on real sandboxes."""

from __future__ import annotations

import asyncio
import contextlib
import glob
import io
import multiprocessing
import re
import tempfile
import threading
import time
import zipfile
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

import ipy_sandbox
from ipy_sandbox import Session
from ipy_sandbox.background import BACKGROUND
from ipy_sandbox.errors import (
    ConfigurationError,
    ExecutionTimeoutError,
    FileTransferError,
    KernelDiedError,
    SandboxLostError,
)
from ipy_sandbox.models import (
    ClearOutput,
    ContainerHandle,
    Display,
    End,
    ExecutionCount,
    ExecutionError,
    SandboxOptions,
    Stderr,
    Stdout,
)
from ipy_sandbox.sandbox.local import box
from ipy_sandbox.sandbox.local.provider import LocalProvider

pytestmark = pytest.mark.anyio


def running() -> set[int]:
    """The processes of this machine that are not dead."""
    found = set()
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            if path.read_text().rsplit(")", 1)[1].split()[0] != "Z":
                found.add(int(path.parent.name))
    return found


def command_lines() -> list[str]:
    """How they were started."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            found.append(path.read_text())
    return found


@pytest.fixture
async def handle(provider: LocalProvider) -> AsyncIterator[ContainerHandle]:
    handle = await provider.create(SandboxOptions())
    yield handle
    await provider.delete(handle)


@pytest.fixture
def provider() -> LocalProvider:
    return LocalProvider()


def test_events_come_in_the_order_in_which_the_code_makes_them(session: Session) -> None:
    code = """
import sys
from IPython.display import clear_output, display, update_display
print("one"); print("two", file=sys.stderr); print("three")
display({"text/plain": "four", "application/json": {"a": [1]}}, raw=True, metadata={"m": 1}, display_id="d")
update_display({"text/plain": "five"}, raw=True, display_id="d")
clear_output(wait=True)
6"""
    events = [e for e in session.stream(code) if not isinstance(e, ExecutionCount)]
    texts = [e for e in events if isinstance(e, (Stdout, Stderr))]
    assert "".join(t.text for t in texts if isinstance(t, Stdout)) == "one\nthree\n"
    assert "".join(t.text for t in texts if isinstance(t, Stderr)) == "two\n"
    assert events[len(texts) :] == [
        Display({"text/plain": "four", "application/json": {"a": [1]}}, {"m": 1}, "d"),
        Display({"text/plain": "five"}, {}, "d", update=True),
        ClearOutput(wait=True),
        Display({"text/plain": "6"}, is_result=True),
        End(),
    ]


def test_state_and_counters_are_those_of_a_notebook(session: Session) -> None:
    first = session.run("a = 20 + 1")
    second = session.run("a * 2")
    assert second.text == "42"
    assert first.execution_count is not None
    assert second.execution_count == first.execution_count + 1
    assert session.run("_").text == "42"
    assert session.run("").error is None
    assert session.run("print('é\\u2028😀', end='')").stdout == "é\u2028😀"


def test_an_error_is_a_result_with_the_traceback_of_ipython(session: Session) -> None:
    error = session.run("def f():\n    1/0\nf()").error
    assert error is not None
    assert (error.name, error.value) == ("ZeroDivisionError", "division by zero")
    plain = re.sub(r"\x1b\[[\d;]*m", "", error.traceback)
    assert plain.startswith("-----")
    assert "----> 2     1/0" in plain or "----> 2 1/0" in plain
    assert plain.endswith("ZeroDivisionError: division by zero")
    syntax = session.run("for").error
    assert syntax is not None
    assert syntax.name == "SyntaxError"


def test_input_says_that_there_is_nobody_to_ask(session: Session) -> None:
    error = session.run("input('name? ')").error
    assert error is not None
    assert error.name == "StdinNotImplementedError"


def test_charts_and_tables(session: Session) -> None:
    shown = session.run("import matplotlib.pyplot as plt\nplt.plot([1, 2]); plt.show()")
    assert [sorted(d.data) for d in shown.displays] == [["image/png", "text/plain"]]
    table = session.run("import pandas\npandas.DataFrame({'a': [1]})")
    assert "<table" in table.displays[0].data["text/html"]
    # After a restart the kernel comes from the supervisor, which has loaded the libraries before there was a shell.
    session.restart()
    last = session.run("import matplotlib.pyplot as plt\nplt.plot([1, 2]);")
    assert [sorted(d.data) for d in last.displays] == [["image/png", "text/plain"]]


def test_help_is_shown_as_an_output(session: Session) -> None:
    shown = session.run("len?")
    assert "number of items" in shown.displays[0].data["text/plain"]


def test_names_are_completed_by_the_kernel(session: Session) -> None:
    session.run("remarkable = 1")
    provider, handle = LocalProvider(), session.start()
    assert "remarkable" in BACKGROUND.run(provider.complete(handle, "remark", 6))


async def test_interrupts_stop_every_kind_of_code_and_keep_the_state(
    provider: LocalProvider, handle: ContainerHandle
) -> None:
    codes = [
        "while True: pass",
        "import time; time.sleep(100)",
        "import asyncio; await asyncio.sleep(100)",
        "await asyncio.sleep(0); time.sleep(100)",
        "async def f(): time.sleep(100)\nawait asyncio.gather(f(), f())",
        "async def g():\n    while True: await asyncio.sleep(0)\nawait asyncio.gather(g(), g())",
        "import subprocess; subprocess.run(['sleep', '100'])",
        "import threading; threading.Event().wait()",
        "while True: print('x' * 1000)",
    ]
    await _events(provider, handle, "state = 41")
    for code in codes:
        seen = []
        async for event in provider.run(handle, code):
            seen.append(event)
            if isinstance(event, ExecutionCount):
                await provider.interrupt(handle)  # as early as can be
        errors = [e for e in seen if isinstance(e, ExecutionError)]
        assert [e.name for e in errors] == ["KeyboardInterrupt"], code
        assert "ipy-sandbox" not in errors[0].traceback, code
        assert isinstance(seen[-1], End)
    assert Display({"text/plain": "42"}, is_result=True) in await _events(provider, handle, "state + 1")


async def test_an_interrupt_reaches_code_that_holds_the_interpreter(
    provider: LocalProvider, handle: ContainerHandle
) -> None:
    # It cannot even say that it has begun.
    run = asyncio.create_task(_events(provider, handle, "import re; re.match('(a+)+$', 'a' * 45 + 'b')"))
    await asyncio.sleep(0.5)
    await provider.interrupt(handle)
    assert [e.name for e in await run if isinstance(e, ExecutionError)] == ["KeyboardInterrupt"]


async def _events(provider: LocalProvider, handle: ContainerHandle, code: str) -> list[object]:
    return [event async for event in provider.run(handle, code)]


async def test_an_interrupt_is_for_the_run_that_it_finds(provider: LocalProvider, handle: ContainerHandle) -> None:
    await provider.interrupt(handle)
    await _events(provider, handle, "1")
    await provider.interrupt(handle)
    result = await _events(provider, handle, "import time; time.sleep(0.3); 'whole'")
    assert Display({"text/plain": "'whole'"}, is_result=True) in result


async def test_code_that_ignores_interrupts_costs_the_sandbox(provider: LocalProvider, handle: ContainerHandle) -> None:
    code = "import signal, time\nsignal.signal(signal.SIGINT, signal.SIG_IGN); print('on', flush=True)\ntime.sleep(100)"

    async def run_and_interrupt() -> None:
        async for event in provider.run(handle, code):
            if isinstance(event, Stdout):
                await provider.interrupt(handle)

    with pytest.raises(SandboxLostError, match="did not react to an interrupt"):
        await run_and_interrupt()
    with pytest.raises(SandboxLostError, match="did not react to an interrupt"):
        await _events(provider, handle, "1")
    assert await provider.delete(handle) is False


async def test_leaving_a_run_early_stops_its_code(provider: LocalProvider, handle: ContainerHandle) -> None:
    async with contextlib.aclosing(provider.run(handle, "print('on', flush=True)\nwhile True: pass")) as events:
        async for event in events:
            if isinstance(event, Stdout):
                break
    assert Display({"text/plain": "2"}, is_result=True) in await _events(provider, handle, "1 + 1")


async def test_a_run_that_is_cancelled_stops_its_code(provider: LocalProvider, handle: ContainerHandle) -> None:
    started = asyncio.Event()

    async def run() -> None:
        async for event in provider.run(handle, "print('on', flush=True)\nwhile True: pass"):
            if isinstance(event, Stdout):
                started.set()

    task = asyncio.create_task(run())
    await started.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert Display({"text/plain": "2"}, is_result=True) in await _events(provider, handle, "1 + 1")


async def test_two_runs_queue(provider: LocalProvider, handle: ContainerHandle) -> None:
    _, second = await asyncio.gather(
        _events(provider, handle, "import time; time.sleep(0.3); x = 1"), _events(provider, handle, "x + 1")
    )
    assert Display({"text/plain": "2"}, is_result=True) in second


def test_a_time_limit(session: Session) -> None:
    with pytest.raises(ExecutionTimeoutError) as caught:
        session.run("print('before')\nwhile True: pass", timeout=0.5)
    assert caught.value.result.stdout == "before\n"
    assert session.run("1 + 1").text == "2"


@pytest.mark.parametrize(
    "death", ["import os; os._exit(3)", "import ctypes; ctypes.string_at(0)", "import os; os.kill(os.getpid(), 9)"]
)
def test_a_dead_kernel_is_named_and_followed_by_a_fresh_one(session: Session, death: str) -> None:
    session.run("x = 1; open('kept', 'w').write('yes')")
    with pytest.raises(KernelDiedError, match="variables are gone, files are kept"):
        session.run(f"print('before', flush=True)\n{death}")
    assert session.run("open('kept').read()").text == "'yes'"
    gone = session.run("x").error
    assert gone is not None
    assert gone.name == "NameError"


@pytest.mark.parametrize("leaving", ["exit()", "import os, threading; threading.Timer(0.05, os._exit, [1]).start()"])
def test_a_kernel_that_ends_between_two_runs_is_told_once(session: Session, leaving: str) -> None:
    def use(pause: float) -> None:
        deadline = time.monotonic() + 20
        while time.monotonic() < deadline:
            session.run(f"import time; time.sleep({pause})")

    for pause in (0.02, 0.0, 0.1):
        session.run("x = 1")
        session.run(leaving)
        with pytest.raises(KernelDiedError, match="variables are gone"):
            use(pause)
        assert session.run("'x' in globals()").text == "False"


def test_text_that_no_message_can_hold(session: Session) -> None:
    assert session.run("print('a\\ud800b')").stdout == "a\\ud800b\n"
    raised = session.run("raise ValueError('a\\ud800b')").error
    assert raised is not None
    assert (raised.name, raised.value) == ("ValueError", "a\\ud800b")
    assert session.run("display({'text/plain': '\\ud800'}, raw=True)").displays[0].data == {"text/plain": "\\ud800"}
    error = session.run("'\ud800'").error
    assert error is not None
    assert error.name == "UnicodeEncodeError"


def test_a_kernel_that_does_not_answer_or_does_not_tell_says_so(session: Session) -> None:
    spoil = "kernel = get_ipython().kernel; kernel.{} = lambda *args, **kwargs: {}"
    session.run(spoil.format("do_execute", "1 / 0"))
    error = session.run("1 + 1").error
    assert error is not None
    assert error.name == "KernelError"
    assert "restart it" in error.value
    session.restart()
    session.run(spoil.format("iopub_thread.send_multipart", "None"))
    assert "restart the kernel" in str(session.run("print(1)").truncated)
    session.restart()
    assert session.run("1 + 1").text == "2"


def test_an_error_of_the_publishing_thread_loses_one_message_only(session: Session) -> None:
    session.run("get_ipython().kernel.iopub_thread.schedule(lambda: 1 / 0)")
    assert session.run("print('more', flush=True)").stdout == "more\n"


def test_a_restart_keeps_the_files_and_ends_the_processes(session: Session) -> None:
    session.run("x = 1; import subprocess; p = subprocess.Popen(['sleep', '1000'], start_new_session=True)")
    session.upload("kept", b"yes")
    session.restart()
    assert session.download("kept") == b"yes"
    assert "sleep" not in session.run("!ps ax || cat /proc/[0-9]*/cmdline").stdout
    assert session.run("x").error is not None


def wheel(name: str) -> bytes:
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w") as archive:
        archive.writestr(f"{name}.py", "value = 42")
        archive.writestr(f"{name}-1.0.dist-info/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        archive.writestr(
            f"{name}-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        archive.writestr(f"{name}-1.0.dist-info/RECORD", "")
    return data.getvalue()


def test_packages_can_be_installed_into_the_home(session: Session) -> None:
    missing = session.run("import tinything").error
    assert missing is not None
    session.upload("tinything-1.0-py3-none-any.whl", wheel("tinything"))
    assert "Successfully installed tinything-1.0" in session.run("%pip install ./tinything-1.0-py3-none-any.whl").stdout
    assert session.run("import tinything; tinything.value").text == "42"
    assert "42" in session.run("!python -c 'import tinything; print(tinything.value)'").stdout
    session.restart()
    assert session.run("import tinything; tinything.value").text == "42"


def test_pip_says_soon_that_there_is_no_network(session: Session) -> None:
    said = session.run("%pip install tinything-of-the-internet", timeout=20)
    assert "name resolution" in said.stdout + said.stderr


def test_files_go_both_ways(session: Session) -> None:
    data = bytes(range(256)) * 5000
    session.upload("a/b/data.bin", data)
    assert session.run("import hashlib; hashlib.md5(open('a/b/data.bin', 'rb').read()).hexdigest()").error is None
    assert session.download("/home/user/a/b/data.bin") == data
    assert session.download("/mnt/data/a/b/data.bin") == data
    session.run("open('/mnt/data/made.txt', 'w').write('by the code'); open('a/b/data.bin', 'a').write('x')")
    assert session.download("made.txt") == b"by the code"
    listed = session.list_files("a")
    assert [(f.path, f.is_dir) for f in listed] == [("/home/user/a/b", True)]
    session.upload("made.txt", b"")
    assert session.download("made.txt") == b""


def test_a_link_in_the_sandbox_leads_nowhere_else(session: Session, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("the host's")
    tmp_path.chmod(0o777)
    session.run(
        f"import os; os.symlink({str(secret)!r}, 'link'); os.symlink({str(tmp_path)!r}, 'dir'); os.mkfifo('pipe')"
    )
    session.run("os.symlink('/proc/1/root', 'root'); os.symlink('/etc/passwd', 'passwd')")
    for path in (
        "link",
        "dir/secret",
        f"../../..{secret}",
        str(secret),
        f"root{secret}",
        "pipe",
        "dir",
        ".",
        "",
        "a\0b",
    ):
        with pytest.raises(FileTransferError):
            session.download(path)
    # What the link names may be made in the sandbox, and only there.
    with contextlib.suppress(FileTransferError):
        session.upload("dir/new", b"x")
    with contextlib.suppress(FileTransferError):
        session.upload("link", b"x")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["secret"]
    assert secret.read_text() == "the host's"
    assert session.download("passwd").startswith(b"user:x:1000:")
    with pytest.raises(FileTransferError, match=r"Read-only|Permission"):
        session.upload("/usr/canary", b"x")
    assert {f.path for f in session.list_files()} >= {"/home/user/link", "/home/user/pipe"}
    session.run("os.utime('pipe', (1e12, 1e12)); open(b'\\xff\\n', 'w').close()")
    times = {f.path: f.modified_at for f in session.list_files()}
    assert times["/home/user/pipe"] is None
    assert times["/home/user/\udcff\n"] is not None


async def test_transfers_that_are_cancelled_do_not_confuse_the_next(
    provider: LocalProvider, handle: ContainerHandle
) -> None:
    for i in range(20):
        transfer = asyncio.create_task(provider.upload(handle, f"f{i}", b"x" * 1000))
        await asyncio.sleep(0.0003 * i)
        transfer.cancel()
    await asyncio.gather(provider.upload(handle, "a", b"A"), provider.upload(handle, "b", b"B"))
    assert (await provider.download(handle, "a"), await provider.download(handle, "b")) == (b"A", b"B")


async def test_code_that_stops_the_supervisor_costs_its_own_sandbox(
    provider: LocalProvider, handle: ContainerHandle, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(box, "_ANSWER_SECONDS", 0.5)
    await _events(provider, handle, "import os, signal; os.kill(2, signal.SIGSTOP)")
    with pytest.raises(SandboxLostError, match="supervisor does not answer"):
        await provider.upload(handle, "a", b"A")
    with pytest.raises(SandboxLostError):
        await _events(provider, handle, "1")


def test_a_full_disk_is_an_error_of_the_upload(small: Session) -> None:
    with pytest.raises(FileTransferError, match=r"No space left|File too large"):
        small.upload("big", b"x" * (40 << 20))
    assert small.run("1 + 1").text == "2"


async def test_environment_variables_reach_the_code_and_no_command_line(provider: LocalProvider) -> None:
    handle = await provider.create(SandboxOptions(env_vars={"TOKEN": "hush-7c1"}))
    try:
        code = "import os, subprocess; os.environ['TOKEN'], subprocess.getoutput('echo $TOKEN')"
        assert Display({"text/plain": "('hush-7c1', 'hush-7c1')"}, is_result=True) in await _events(
            provider, handle, code
        )
        await provider.restart(handle)
        assert Display({"text/plain": "('hush-7c1', 'hush-7c1')"}, is_result=True) in await _events(
            provider, handle, code
        )
        assert not any("hush-7c1" in line for line in command_lines())
        assert "hush" not in repr(handle)
    finally:
        await provider.delete(handle)


async def test_read_only_directories_of_the_host(provider: LocalProvider, tmp_path: Path) -> None:
    (tmp_path / "data").write_text("given")
    tmp_path.chmod(0o755)  # noqa: ASYNC240
    handle = await provider.create(SandboxOptions(ro_binds=[str(tmp_path)]))
    try:
        read = await _events(provider, handle, f"open('{tmp_path}/data').read()")
        assert Display({"text/plain": "'given'"}, is_result=True) in read
        written = await _events(provider, handle, f"open('{tmp_path}/data', 'w')")
        assert [e.name for e in written if isinstance(e, ExecutionError)] == ["OSError"]
    finally:
        await provider.delete(handle)
    for wrong in ("/", "/proc", str(tmp_path / "none")):
        with pytest.raises(ConfigurationError, match="ro_binds"):
            await provider.create(SandboxOptions(ro_binds=[wrong]))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"template": "x"}, "no option 'template'"),
        ({"resource_limits": {}}, "no option 'resource_limits'"),
        ({"limits": {"nope": 1}}, "Unknown limit 'nope': choose from memory, "),
        ({"limits": {"memory": 0}}, "at least 1"),
    ],
)
async def test_an_option_that_cannot_be_honoured_is_refused(
    provider: LocalProvider, options: dict[str, object], message: str
) -> None:
    with pytest.raises(ConfigurationError, match=message):
        await provider.create(SandboxOptions.model_validate(options))


async def test_unsafe_says_so_at_every_run(provider: LocalProvider) -> None:
    handle = await provider.create(SandboxOptions(unsafe=True, env_vars={"A": "1"}))
    try:
        for _ in range(2):
            events = await _events(provider, handle, "import os; home = os.getcwd(); print(os.environ['A'])")
            assert isinstance(events[0], Stderr)
            assert "No isolation" in events[0].text
            assert Stdout("1\n") in events
        home = next(e.data["text/plain"] for e in await _events(provider, handle, "home") if isinstance(e, Display))
        await _events(
            provider, handle, "import subprocess; p = subprocess.Popen(['sleep', '1000'], start_new_session=True)"
        )
        pid = next(e.data["text/plain"] for e in await _events(provider, handle, "p.pid") if isinstance(e, Display))
    finally:
        assert await provider.delete(handle)
    assert home.strip("'") not in glob.glob(f"{tempfile.gettempdir()}/*")
    assert int(pid) not in running()


async def test_a_sandbox_is_taken_back_by_its_bare_id(provider: LocalProvider, handle: ContainerHandle) -> None:
    await _events(provider, handle, "x = 7")
    again = await LocalProvider().connect(handle.id, timeout=50)
    assert Display({"text/plain": "7"}, is_result=True) in await _events(provider, again, "x")
    assert again.timeout == 50
    with pytest.raises(SandboxLostError, match="no local sandbox 'local-nope'"):
        await provider.connect("local-nope")


async def test_what_is_known_of_a_sandbox(provider: LocalProvider, handle: ContainerHandle) -> None:
    info = await provider.info(handle)
    assert info.id == handle.id
    assert info.memory_bytes is not None
    assert 10 << 20 < info.memory_bytes < 1 << 30
    assert info.expires_at is not None
    assert handle.id in [i.id for i in await provider.list_sandboxes()]
    assert await provider.delete(handle) is True
    assert await provider.delete(handle) is False
    assert handle.id not in [i.id for i in await provider.list_sandboxes()]
    with pytest.raises(SandboxLostError):
        await provider.info(handle)


async def test_the_lifetime_counts_from_the_last_use(provider: LocalProvider) -> None:
    handle = await provider.create(SandboxOptions(timeout=1))
    await provider.renew(handle, 60)
    await asyncio.sleep(1.2)
    await _events(provider, handle, "1")
    assert handle.timeout == 60
    await provider.renew(handle, 0.2)
    await asyncio.sleep(0.6)
    await _events(provider, handle, "1")
    await provider.connect(handle.id, timeout=0.3)
    with pytest.raises(SandboxLostError, match=r"lifetime of 0\.3 s"):
        await _events(provider, handle, "import time; time.sleep(100)")


def test_every_event_loop_may_use_every_sandbox() -> None:
    handle = asyncio.run(ipy_sandbox.acreate_sandbox("local"))
    try:
        assert asyncio.run(ipy_sandbox.arun_code("local", handle, "x = 1; x")).text == "1"
        assert ipy_sandbox.run_code("local", handle.id, "x + 1").text == "2"
        seen: list[str] = []
        thread = threading.Thread(
            target=lambda: seen.append(asyncio.run(ipy_sandbox.arun_code("local", handle, "x + 2")).text)
        )
        thread.start()
        thread.join()
        assert seen == ["3"]
        assert [type(e).__name__ for e in ipy_sandbox.stream_code("local", handle, "print(1)")][-2:] == [
            "Stdout",
            "End",
        ]
    finally:
        assert asyncio.run(ipy_sandbox.adelete_sandbox("local", handle)) is True


def _in_child(handle: ContainerHandle, answers: multiprocessing.SimpleQueue[str]) -> None:
    try:
        answers.put(ipy_sandbox.run_code("local", handle, "1").text)
    except SandboxLostError as error:
        answers.put(type(error).__name__)
    answers.put(ipy_sandbox.code_interpreter_tool("local", "1 + 1").text)


def test_a_forked_child_owns_none_of_them_and_can_make_its_own(session: Session) -> None:
    handle = session.start()
    context = multiprocessing.get_context("fork")
    answers: multiprocessing.SimpleQueue[str] = context.SimpleQueue()
    child = context.Process(target=_in_child, args=(handle, answers))
    child.start()
    child.join(60)
    assert child.exitcode == 0
    assert [answers.get(), answers.get()] == ["SandboxLostError", "2"]
    assert session.run("1 + 1").text == "2"
