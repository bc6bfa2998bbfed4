"""Nothing outlives a sandbox, and no sandbox outlives its process."""

from __future__ import annotations

import asyncio
import contextlib
import glob
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

import ipy_sandbox
from ipy_sandbox import Session
from ipy_sandbox.background import BACKGROUND
from ipy_sandbox.errors import SandboxLostError
from ipy_sandbox.models import SandboxOptions, Stdout
from ipy_sandbox.sandbox.local import leftovers
from ipy_sandbox.sandbox.local.provider import SPARE, LocalProvider
from ipy_sandbox.sandbox.local.watchdog import WATCHDOG

SOAK = bool(os.environ.get("IPY_SANDBOX_SOAK"))

# A process that does all it can to survive.
SURVIVOR = """
import ctypes, os, signal, subprocess, sys
code = '''
import ctypes, os, signal, time
ctypes.CDLL(None).prctl(1, 0)
for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT): signal.signal(number, signal.SIG_IGN)
time.sleep(1000)  # {mark}
'''
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0: os.execv(sys.executable, [sys.executable, "-c", code])
    os._exit(0)
"""


def processes(mark: str) -> list[int]:
    """Those that run and have `mark` in their command line or environment."""
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            text = (path / "cmdline").read_bytes() + (path / "environ").read_bytes()
            if mark.encode() in text and "Z" not in (path / "stat").read_text().rsplit(")", 1)[1].split()[0]:
                found.append(int(path.name))
    return found


def gone(mark: str, seconds: float = 20) -> bool:
    """Whether all processes with `mark` end within a generous time."""
    until = time.monotonic() + seconds
    while processes(mark):
        if time.monotonic() > until:
            return False
        time.sleep(0.02)
    return True


def state() -> dict[str, object]:
    """What this process holds of the system."""
    children = Path(f"/proc/self/task/{os.getpid()}/children").read_text()
    children += "".join(Path(p).read_text() for p in glob.glob("/proc/self/task/*/children"))
    return {
        "children": sorted(set(children.split())),
        "descriptors": len(os.listdir("/proc/self/fd")),
        "mounts": Path("/proc/self/mountinfo").read_text().count("\n"),
        "directories": glob.glob(f"{tempfile.gettempdir()}/ipy-sandbox-*-{os.getpid()}-*"),
    }


def test_starting_and_stopping_leaves_nothing() -> None:
    mark = f"cycle-{random.randrange(10**9)}"
    ipy_sandbox.delete_sandbox("local", ipy_sandbox.create_sandbox("local"))
    before = state()
    for _ in range(50 if SOAK else 3):
        with Session("local") as session:
            session.run(SURVIVOR.format(mark=mark) + "\nopen('f', 'w').write('x' * 10 ** 6)")
            assert processes(mark) or session.run("import time; time.sleep(0.5)").error is None
    assert gone(mark)
    assert state() == before


def test_deleting_ends_what_runs() -> None:
    provider = LocalProvider()

    async def scenario() -> None:
        handle = await provider.create(SandboxOptions())
        async for event in provider.run(handle, "print('on', flush=True)\nwhile True: pass"):
            if isinstance(event, Stdout):
                assert await provider.delete(handle)

    with pytest.raises(SandboxLostError, match="was deleted"):
        asyncio.run(scenario())


def test_leaving_python_ends_the_sandboxes(tmp_path: Path) -> None:
    mark = f"leaving-{random.randrange(10**9)}"
    survivor = SURVIVOR.format(mark=mark)
    code = f"import ipy_sandbox as s\nh = s.create_sandbox('local')\ns.run_code('local', h, {survivor!r})"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert (run.returncode, run.stdout, run.stderr) == (0, "", "")
    assert gone(mark)


def test_deleting_at_exit_needs_no_loop() -> None:
    provider = LocalProvider()
    handles = [ipy_sandbox.create_sandbox("local") for _ in range(2)]
    watched = {s.id: s for s in WATCHDOG.watched}
    inits = [watched[h.id].process.init_pid for h in handles]
    provider.delete_at_exit(handles, 2)
    assert not any(os.path.exists(f"/proc/{pid}/root/home") for pid in inits)
    provider.delete_at_exit(handles, 2)


HOST = """
import os, sys, threading
import ipy_sandbox as s
from ipy_sandbox.sandbox.local.provider import SPARE
SPARE.policy = "off"
print("go", flush=True)
for _ in range(3):
    handle = s.create_sandbox("local")
    s.run_code("local", handle, sys.argv[2])
print("done", flush=True)
threading.Event().wait()
"""


def test_a_killed_host_leaves_nothing_that_runs_code() -> None:
    for attempt in range(40 if SOAK else 4):
        mark = f"killed-{random.randrange(10**9)}"
        host = subprocess.Popen(
            [sys.executable, "-c", HOST, mark, SURVIVOR.format(mark=mark)], stdout=subprocess.PIPE, text=True
        )
        with host:
            assert host.stdout is not None
            host.stdout.readline()
            if attempt % 4 == 3:
                host.stdout.readline()
            else:
                time.sleep(random.random())
            owner = f"IPY_SANDBOX_HOST={host.pid}-"
            host.send_signal(signal.SIGKILL)
        assert gone(mark)
        # What bubblewrap had not yet tied to its parent has run nothing, and the next process removes it.
        leftovers.sweep()
        assert gone(owner)
    assert not glob.glob(f"{tempfile.gettempdir()}/ipy-sandbox-*-{host.pid}-*")


def test_the_sweep_takes_only_what_the_dead_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leftovers, "_parent", lambda: str(tmp_path))
    dead = subprocess.Popen(["true"])
    dead.wait()
    mine = leftovers.directory("sockets")
    theirs = tmp_path / f"ipy-sandbox-sockets-{dead.pid}-12345-abc"
    other = tmp_path / f"something-{dead.pid}-1-abc"
    for path in (theirs, other):
        path.mkdir()
    orphan = subprocess.Popen(["sleep", "1000"], env={"IPY_SANDBOX_HOST": f"{dead.pid}-12345", "PATH": "/usr/bin:/bin"})
    kept = subprocess.Popen(["sleep", "1000"], env={**leftovers.mark(), "PATH": "/usr/bin:/bin"})
    try:
        leftovers.sweep()
        assert orphan.wait(20) == -signal.SIGKILL
        assert kept.poll() is None
        assert sorted(tmp_path.iterdir()) == sorted([Path(mine), other])
    finally:
        kept.kill()
        kept.wait()


def test_the_stop_button_of_the_notebook_does_not_reach_the_sandbox(session: Session) -> None:
    session.run("x = 1")
    sandbox = next(s for s in WATCHDOG.watched if session.handle and s.id == session.handle.id)
    assert os.getpgid(sandbox.process.popen.pid) != os.getpgid(0)
    assert os.getsid(sandbox.process.popen.pid) != os.getsid(0)


def test_a_sandbox_that_is_killed_from_outside_is_lost_and_the_session_goes_on(session: Session) -> None:
    session.run("x = 1")
    sandbox = next(s for s in WATCHDOG.watched if session.handle and s.id == session.handle.id)
    os.kill(sandbox.process.init_pid, signal.SIGKILL)
    with pytest.raises(SandboxLostError, match="ended by itself"):
        session.run("while True: pass")
    assert session.run("1 + 1").text == "2"


def test_a_spare_is_ready_for_the_next_who_asks() -> None:
    SPARE.policy = "after_use"
    try:
        first = ipy_sandbox.create_sandbox("local")
        BACKGROUND.run(SPARE.filled())
        spare = SPARE._ready
        assert spare is not None
        assert spare.id not in [info.id for info in ipy_sandbox.list_sandboxes("local")]
        second = ipy_sandbox.create_sandbox("local", env_vars={"A": "1"}, timeout=77)
        assert second.id == spare.id
        assert second.timeout == 77
        seen = ipy_sandbox.run_code("local", second, "import os, sys; os.environ['A'], 'pandas' in sys.modules")
        assert seen.text == "('1', True)"
        drawn = [ipy_sandbox.run_code("local", h, "import numpy; numpy.random.rand()").text for h in (first, second)]
        assert drawn[0] != drawn[1]
        # One of another kind is made for whoever asks for it.
        other = ipy_sandbox.create_sandbox("local", limits={"processes": 100})
        BACKGROUND.run(SPARE.filled())
        for handle in (first, second, other):
            assert ipy_sandbox.delete_sandbox("local", handle)
        SPARE.set_policy("off")
        BACKGROUND.run(SPARE.discard())
        assert SPARE._ready is None
    finally:
        SPARE.policy = "off"


def test_a_start_that_is_cancelled_leaves_nothing() -> None:
    provider = LocalProvider()

    async def scenario() -> None:
        for delay in (0, 0.01, 0.05, 0.1, 0.2, 0.4):
            start = asyncio.create_task(provider.create(SandboxOptions()))
            await asyncio.sleep(delay)
            if not start.cancel():
                await provider.delete(start.result())
            await asyncio.wait([start])

    known = {info.id for info in ipy_sandbox.list_sandboxes("local")}
    watched = set(WATCHDOG.watched)
    asyncio.run(scenario())
    until = time.monotonic() + 20
    while any(not s.ended for s in WATCHDOG.watched - watched) and time.monotonic() < until:
        time.sleep(0.02)
    assert not [s for s in WATCHDOG.watched - watched if not s.ended]
    assert {info.id for info in ipy_sandbox.list_sandboxes("local")} <= known
