"""The attempts and the bombs once more, as an ordinary user: root's rights hide mistakes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

UID = 54321
TESTS = ["test_escapes.py", "test_limits.py"]


def as_user(home: Path, command: list[str]) -> list[str]:
    """`command` run by a user who owns nothing; where the interpreter is below a closed directory, that is opened."""
    interpreter = os.path.dirname(os.path.dirname(os.path.realpath(sys.executable)))
    closed = next((p for p in Path(interpreter).parents if not p.stat().st_mode & 0o001), None)
    script = [f"mkdir -p {home}", f"chown {UID} {home}"]
    if closed is not None:
        script += ["mount -t tmpfs tmpfs /mnt", "mkdir /mnt/python", f"mount --bind {interpreter} /mnt/python"]
        script += [f"mount -t tmpfs -o mode=755 tmpfs {closed}", f"mkdir -p {interpreter}"]
        script += [f"mount --bind /mnt/python {interpreter}"]
    drop = f'exec setpriv --reuid {UID} --regid {UID} --clear-groups env HOME={home} TMPDIR={home} "$@"'
    return ["unshare", "--mount", "--propagation", "private", "sh", "-ec", "; ".join([*script, drop]), "sh", *command]


@pytest.mark.timeout(300)
@pytest.mark.skipif(os.geteuid() != 0, reason="this run is one of an ordinary user already")
def test_everything_holds_for_an_ordinary_user(tmp_path: Path) -> None:
    here = Path(__file__).parent
    home = Path("/tmp") / f"ipy-sandbox-test-{os.getpid()}"
    pytest_args = ["-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", f"--basetemp={home}/t", *TESTS]
    command = as_user(home, [sys.executable, "-B", *pytest_args])
    check = as_user(home, [sys.executable, "-c", f"import pytest, os; os.listdir({str(here)!r})"])
    try:
        if (reason := subprocess.run(check, capture_output=True, text=True)).returncode:
            pytest.skip(f"an ordinary user cannot run the tests here: {reason.stderr.splitlines()[-1]}")
        run = subprocess.run(command, cwd=here, capture_output=True, text=True)
        assert run.returncode == 0, run.stdout[-5000:] + run.stderr[-2000:]
        assert " passed" in run.stdout
    finally:
        subprocess.run(["rm", "-rf", str(home)], check=True)
