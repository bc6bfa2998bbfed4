"""Attempts to get out of a local sandbox: everything here must fail, and the same code succeeds outside of one."""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import platform
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ipy_sandbox import Session
from ipy_sandbox.models import SandboxOptions
from ipy_sandbox.sandbox.local.seccomp import _DENIED

CANARY = "canary-5f0e"

PRELUDE = """
import ctypes, fcntl, glob, os, resource, signal, socket, stat, struct, subprocess, sys
libc = ctypes.CDLL(None, use_errno=True)
def checked(result):
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return result
def call(name, *args):
    return checked(libc.syscall(C["numbers"][name], *args))
def leak(*what):
    print("LEAK", *what)
def connect(address):
    s = socket.socket(socket.AF_UNIX)
    s.connect(address)
    leak(s.recv(99))
"""

# Everybody can do this on the host.
ANYBODY = {
    "read a file of the user": "leak(open(C['secret']).read())",
    "list the user's directory": "leak(os.listdir(C['directory']))",
    "see that a file exists": "leak(os.stat(C['secret']))",
    "read the environment of a process": """
for path in glob.glob("/proc/[0-9]*/environ"):
    try:
        if C["canary"] in open(path).read(): leak(path)
    except OSError: pass""",
    "see the processes of the host": """
for path in glob.glob("/proc/[0-9]*/cmdline"):
    try:
        if C["canary"] in open(path).read(): leak(path)
    except OSError: pass""",
    "signal a process": "os.kill(C['pid'], 0); leak()",
    "limit a process": "leak(resource.prlimit(C['pid'], resource.RLIMIT_NOFILE))",
    "renice a process": "os.setpriority(os.PRIO_PROCESS, C['pid'], 1); leak()",
    "trace a process": "checked(libc.ptrace(0x4206, C['pid'], 0, 0)); leak()",
    "enter the root of another process": "leak(open(f\"/proc/{C['pid']}/root{C['secret']}\").read())",
    "connect to a TCP service on loopback": "leak(socket.create_connection(('127.0.0.1', C['tcp']), 2).recv(99))",
    "connect to a TCP service on IPv6 loopback": "leak(socket.create_connection(('::1', C['tcp6']), 2).recv(99))",
    "connect to an abstract socket": "connect('\\0' + C['abstract'])",
    "connect to a socket file": "connect(C['unix'])",
    "talk to the host over vsock": "socket.socket(socket.AF_VSOCK, socket.SOCK_STREAM); leak()",
    "read the session keyring": """
buffer = ctypes.create_string_buffer(99)
key = call("request_key", b"user", C["canary"].encode(), None, 0)
leak(call("keyctl", 11, key, buffer, 99), buffer.value)""",
    "change a file of the user": "open(C['secret'], 'a').close(); leak()",
    "hold memory outside of all limits (memfd)": "leak(os.memfd_create('x'))",
    "hold memory outside of all limits (SysV)": "leak(call('shmget', 0, 4096, 0o1600))",
    "hold memory outside of all limits (SysV semaphores)": "leak(call('semget', 0, 32000, 0o1600))",
    "hold memory outside of all limits (SysV messages)": "leak(call('msgget', 0, 0o1600))",
}

# Root, or a user of some systems, can do this on the host: no control, but it must fail in a sandbox.
SOME = {
    "read /etc/shadow": "leak(open('/etc/shadow').read())",
    "reach the internet": "leak(socket.create_connection(('1.1.1.1', 53), 2))",
    "resolve a name": "leak(socket.getaddrinfo('example.com', 80))",
    "read the root of init": "leak(open('/proc/1/root' + C['secret']).read())",
    "read the environment of bubblewrap": "assert C['canary'] in open('/proc/1/environ').read(); leak()",
    "find the host's variables": "[leak(k) for k, v in os.environ.items() if C['canary'] in v]",
    "find sockets of the host in /tmp": "[leak(name) for name in os.listdir('/tmp') if 'ipy-sandbox' in name]",
    "read the supervisor's memory": "open('/proc/2/mem', 'rb').close(); leak()",
    "write the supervisor's memory": "open('/proc/2/mem', 'wb').close(); leak()",
    "see the supervisor's descriptors": "leak(os.listdir('/proc/2/fd'))",
    "take the supervisor's descriptors": "fd = os.pidfd_open(2); leak(call('pidfd_getfd', fd, 0, 0))",
    "trace the supervisor": "checked(libc.ptrace(0x4206, 2, 0, 0)); leak()",
    "write into the installed packages": "open(os.path.join(sys.prefix, 'canary'), 'w').close(); leak()",
    "write into /": "open('/canary', 'w').close(); leak()",
    "write into /usr": "open('/usr/canary', 'w').close(); leak()",
    "write into /etc": "open('/etc/canary', 'w').close(); leak()",
    "write into /dev": "open('/dev/canary', 'w').close(); leak()",
    "write into the supervisor's code": "open('/run/ipy-sandbox/supervisor.py', 'a').close(); leak()",
    "set the core pattern": "open('/proc/sys/kernel/core_pattern', 'r+').close(); leak()",
    "write any kernel setting": """
for base, _, names in os.walk("/proc/sys"):
    for name in names:
        try: open(os.path.join(base, name), "r+").close()
        except OSError: continue
        leak(base, name)""",
    "escape the OOM killer": "open('/proc/self/oom_score_adj', 'w').write('-1000'); leak()",
    "trigger sysrq": "open('/proc/sysrq-trigger', 'w').close(); leak()",
    "mount": "checked(libc.mount(b'tmpfs', b'/tmp', b'tmpfs', 0, None)); leak()",
    "remount / writable": "checked(libc.mount(b'none', b'/', None, 32 | 4096, None)); leak()",
    "unmount": "checked(libc.umount2(b'/proc', 2)); leak()",
    "make a block device": "os.mknod('/tmp/disk', 0o666 | stat.S_IFBLK, os.makedev(254, 0)); leak()",
    "change the root": "os.chroot('/tmp'); leak()",
    "enter another namespace": "checked(libc.setns(os.open('/proc/1/ns/mnt', os.O_RDONLY), 0)); leak()",
    "make a user namespace": "checked(libc.unshare(0x10000000)); leak()",
    "make a network namespace": "checked(libc.unshare(0x40000000)); leak()",
    "clone into a user namespace": f"leak(checked(libc.syscall({56 if platform.machine() == 'x86_64' else 220}, "
    "0x10000000 | 17, 0, 0, 0, 0)))",
    "open a raw socket": "socket.socket(socket.AF_INET, socket.SOCK_RAW, 1); leak()",
    "open a packet socket": "socket.socket(socket.AF_PACKET, socket.SOCK_RAW); leak()",
    "configure the network": """
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
fcntl.ioctl(s, 0x8914, struct.pack("16sh", b"lo", 0)); leak()""",
    "become root": "os.setuid(0); leak()",
    "become root by a setuid program": """
path = os.path.expanduser("~/id"); open(path, "wb").write(open("/usr/bin/id", "rb").read()); os.chmod(path, 0o6755)
if os.geteuid() != int(subprocess.run([path, "-u"], capture_output=True).stdout): leak()
os.setgroups([0]); leak()""",
    "have a capability": """
status = dict(line.split(":", 1) for line in open("/proc/self/status"))
if int(status["CapEff"], 16) or int(status["CapPrm"], 16) or int(status["CapBnd"], 16): leak()""",
    "gain privileges by exec": """
if "NoNewPrivs:\\t1" not in open("/proc/self/status").read(): leak()""",
    "raise a limit": "resource.setrlimit(resource.RLIMIT_NPROC, (10**6, 10**6)); leak()",
    "raise the memory limit": "resource.setrlimit(resource.RLIMIT_DATA, (-1, -1)); leak()",
    "set the clock": "import time; time.clock_settime(time.CLOCK_REALTIME, time.time()); leak()",
    "set the host name": "socket.sethostname('canary'); leak()",
    "read the kernel's log": "checked(libc.klogctl(3, ctypes.create_string_buffer(99), 99)); leak()",
    "push input into a terminal": "fcntl.ioctl(0, 0x5412, b'x'); leak()",
    "ignore the seccomp filter": """
if "Seccomp:\\t2" not in open("/proc/self/status").read(): leak()""",
}


@contextlib.contextmanager
def _serving(family: socket.AddressFamily, address: Any) -> Iterator[socket.socket]:
    with socket.socket(family) as server:
        server.bind(address)
        server.listen()

        def serve() -> None:
            with contextlib.suppress(OSError):
                while True:
                    client, _ = server.accept()
                    client.sendall(CANARY.encode())
                    client.close()

        threading.Thread(target=serve, daemon=True).start()
        yield server
        with contextlib.suppress(OSError):
            server.shutdown(socket.SHUT_RDWR)


def _add_key() -> None:
    libc = ctypes.CDLL(None)
    number = _DENIED["add_key"][0 if platform.machine() == "x86_64" else 1]
    libc.syscall(number, b"user", CANARY.encode(), CANARY.encode(), len(CANARY), -3)


@pytest.fixture(scope="module")
def canaries(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Any]]:
    """Secrets and services of the host, as the attempts find them in `C`."""
    column = 0 if platform.machine() == "x86_64" else 1
    directory = tmp_path_factory.mktemp("host")
    secret = directory / "secret"
    secret.write_text(CANARY)
    _add_key()
    sleeper = subprocess.Popen(["sleep", "1000"], env={"SECRET": CANARY}, executable="/bin/sleep")
    marked = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1000)", CANARY])
    unix, abstract = str(directory / "s"), f"{CANARY}-{os.getpid()}"
    with (
        _serving(socket.AF_INET, ("127.0.0.1", 0)) as tcp,
        _serving(socket.AF_INET6, ("::1", 0)) as tcp6,
        _serving(socket.AF_UNIX, f"\0{abstract}"),
        _serving(socket.AF_UNIX, unix),
    ):
        yield {
            "canary": CANARY, "secret": str(secret), "directory": str(directory), "pid": sleeper.pid,
            "tcp": tcp.getsockname()[1], "tcp6": tcp6.getsockname()[1], "abstract": abstract, "unix": unix,
            "numbers": {name: numbers[column] for name, numbers in _DENIED.items()},
        }  # fmt: skip
    for process in (sleeper, marked):
        process.kill()
        process.wait()


@pytest.fixture(scope="module")
def box(canaries: dict[str, Any]) -> Iterator[Session]:
    """A sandbox made by a process that has the canary in its environment."""
    os.environ["IPY_TEST_SECRET"] = CANARY
    with Session("local") as session:
        session.run(f"C = {canaries!r}\n{PRELUDE}")
        yield session


@pytest.mark.parametrize("attempt", [*ANYBODY, *SOME])
def test_an_attempt_fails_in_the_sandbox(box: Session, attempt: str) -> None:
    result = box.run({**ANYBODY, **SOME}[attempt])
    assert "LEAK" not in result.stdout
    # The sandbox is as good as before.
    assert box.run("1+1").text == "2"


@pytest.mark.parametrize("attempt", ANYBODY)
def test_the_attempt_succeeds_without_a_sandbox(canaries: dict[str, Any], attempt: str) -> None:
    code = f"C = {json.loads(json.dumps(canaries))!r}\n{PRELUDE}\n{ANYBODY[attempt]}"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    if "session keyring" in attempt and "LEAK" not in run.stdout:
        pytest.skip(f"no session keyring here: {run.stderr.splitlines()[-1]}")
    if "vsock" in attempt and "Address family not supported" in run.stderr:
        pytest.skip("this kernel has no vsock")
    assert "LEAK" in run.stdout, run.stderr


def test_every_filtered_system_call_is_refused(box: Session) -> None:
    result = box.run("""
import errno
for name, number in C["numbers"].items():
    if number is not None and (libc.syscall(number, -1, -1, -1, -1, -1) != -1 or ctypes.get_errno() != errno.EPERM):
        print(name, ctypes.get_errno())
""")
    assert result.stdout == ""
    assert result.error is None


def test_nothing_of_the_host_is_mounted_writable(box: Session) -> None:
    result = box.run("""
for line in open("/proc/self/mounts"):
    _, path, kind, options, *_ = line.split()
    if "rw" in options.split(",") and kind not in ("devtmpfs", "devpts"): print(path, kind)
""")
    assert result.stdout.split("\n")[:-1] == ["/dev/shm tmpfs", "/tmp tmpfs", "/home/user tmpfs"]


def test_the_code_in_the_sandbox_cannot_end_its_init(box: Session) -> None:
    box.run("for number in range(1, 32):\n    try: os.kill(1, number)\n    except OSError: pass")
    assert box.run("1+1").text == "2"


def test_two_sandboxes_do_not_see_each_other(box: Session) -> None:
    box.run("open('mine', 'w').close(); os.symlink('/proc/1', '/tmp/link')")
    with Session("local") as other:
        seen = other.run("import os; os.listdir('/home/user'), os.listdir('/tmp'), os.listdir('/dev/shm')").text
        assert "mine" not in seen
        assert "link" not in seen


def test_the_users_settings_in_the_prefix_are_masked(tmp_path: Path, box: Session) -> None:
    result = box.run("""
import sys
for base in {sys.prefix, sys.base_prefix, "/usr/local"}:
    for name in ("pip.conf", ".condarc", "bin/activate", "conda-meta/state", ".env"):
        try: print(open(os.path.join(base, name)).read(), end="")
        except FileNotFoundError: pass
    jupyter = os.path.join(base, "etc/jupyter")
    if os.path.isdir(jupyter): print(*os.listdir(jupyter), end="")
""")
    assert result.stdout == ""
    assert result.error is None


def test_links_to_settings_are_masked_where_they_lead(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    prefix, outside = tmp_path / "prefix", tmp_path / "outside"
    for directory in (prefix / "conf", prefix / "share/jupyter", outside / "kernels"):
        directory.mkdir(parents=True)
    (prefix / "conf/real").write_text("canary")
    (prefix / "pip.conf").symlink_to("conf/real")
    (outside / "env").write_text("canary")
    (prefix / ".env").symlink_to(outside / "env")
    (prefix / "share/jupyter/kernels").symlink_to(outside / "kernels")
    with Session("local", SandboxOptions(ro_binds=[str(prefix)])) as session:
        found = session.run(
            f"!cat {prefix}/pip.conf {prefix}/conf/real {prefix}/.env; ls {prefix}/share/jupyter/kernels/"
        )
    assert "canary" not in found.stdout
    assert found.stdout.count("No such file") == 2


def test_code_finds_what_it_needs(box: Session) -> None:
    result = box.run("""
import multiprocessing, shutil, sqlite3, ssl, tempfile, threading, urllib.request, http.server, asyncio
assert subprocess.run(["/bin/sh", "-c", "echo hi"], capture_output=True).stdout == b"hi\\n"
thread = threading.Thread(target=lambda: None); thread.start(); thread.join()
server = http.server.HTTPServer(("127.0.0.1", 0), http.server.SimpleHTTPRequestHandler)
threading.Thread(target=server.serve_forever, daemon=True).start()
assert urllib.request.urlopen(f"http://127.0.0.1:{server.server_port}/").status == 200
server.shutdown(); server.server_close()
with multiprocessing.get_context("fork").Pool(2) as pool: assert pool.map(abs, [-1, -2]) == [1, 2]
sqlite3.connect("a.db").execute("create table t (x)"); ssl.create_default_context(); tempfile.mkdtemp()
assert os.getcwd() == "/home/user" and os.access("/mnt/data", os.W_OK)
open("/mnt/data/x.py", "w").write("y = 3"); import x; print(x.y)
""")
    assert result.error is None, result.error
    assert result.stdout.endswith("3\n")
