"""Internet for a sandbox by pasta: its own network, from which the host's loopback and sockets cannot be reached.

The local network can; the addresses where clouds keep a machine's credentials cannot.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import shutil
import subprocess
import sys
import tempfile
from typing import IO

from ...errors import IsolationUnavailableError, SandboxCreationError
from . import leftovers
from .bubblewrap import DNS
from .pidfd import PidFd
from .probe import CLEAN

_NS_GET_USERNS = 0xB701
_READY_SECONDS = 10
# Neither the host's ports here nor its gateway address there.
_OPTIONS = ("--config-net", "--foreground", "--quiet", "-t", "none", "-u", "none", "-T", "none", "-U", "none",
            "--no-map-gw", "--dns-forward", DNS)  # fmt: skip

# The metadata services of AWS, Google, Azure (with its wire server), Alibaba and Oracle: addresses with prefix lengths.
_CREDENTIALS = (
    ("169.254.0.0", 16), ("168.63.129.16", 32), ("100.100.100.200", 32), ("192.0.0.192", 32),
    ("fd00:ec2::254", 128), ("fd20:ce::254", 128),
)  # fmt: skip

# Run in the sandbox's network: routes to nowhere for these (rtnetlink, RTM_NEWROUTE).
_BLOCK = """
import ctypes, os, socket, struct, sys
libc = ctypes.CDLL(None, use_errno=True)
for fd, kind in zip(sys.argv[1:], (0x10000000, 0x40000000)):
    if libc.setns(int(fd), kind): sys.exit("setns: " + os.strerror(ctypes.get_errno()))
link = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0)
for text, bits in CREDENTIALS:
    family = socket.AF_INET6 if ":" in text else socket.AF_INET
    address = socket.inet_pton(family, text)
    route = struct.pack("8BI", family, bits, 0, 0, 254, 4, 0, 7, 0) + struct.pack("HH", 4 + len(address), 1) + address
    link.send(struct.pack("IHHII", 16 + len(route), 24, 0x605, 1, 0) + route)
    error = struct.unpack_from("i", link.recv(4096), 16)[0]
    if error and family == socket.AF_INET: sys.exit("route: " + os.strerror(-error))
"""


def check() -> str:
    """The path of pasta.

    Raises:
        IsolationUnavailableError: it is not installed.
    """
    path = shutil.which("pasta")
    if path is None or shutil.which("setpriv") is None:
        raise IsolationUnavailableError(
            "allow_internet_access=True needs pasta, which is not installed: run apt install passt (dnf, pacman, apk "
            "alike), or share the host's network, its loopback services included, with host_network=True.",
            provider="local",
        )
    return path


async def attach(init_pid: int) -> subprocess.Popen[bytes]:
    """Connect the network of the sandbox whose first process is `init_pid`; the process returned keeps it so.

    Raises:
        IsolationUnavailableError, SandboxCreationError.
    """
    pasta = check()
    with contextlib.ExitStack() as opened:
        net = os.open(f"/proc/{init_pid}/ns/net", os.O_RDONLY)
        opened.callback(os.close, net)
        # Not the user namespace that the code is in, which has no rights over the network.
        user = fcntl.ioctl(net, _NS_GET_USERNS)
        opened.callback(os.close, user)
        output = opened.enter_context(tempfile.TemporaryFile())
        await _block(user, net)
        argv = ["setpriv", "--pdeathsig", "KILL", *_as_owner(init_pid), "--", pasta, *_OPTIONS]
        argv += ["--userns", f"/proc/self/fd/{user}", "--netns", f"/proc/self/fd/{net}"]
        process = _start(argv, (user, net), output)
        try:
            await _connected(process, init_pid)
        except BaseException:
            process.kill()
            process.wait()
            raise
        finally:
            output.seek(0)
            said = " ".join(output.read(2000).decode(errors="replace").split())
        if process.returncode is not None:
            raise SandboxCreationError(
                f"pasta could not connect the sandbox to the internet: {said or 'no reason given'}. "
                "It needs /dev/net/tun; host_network=True shares the host's network instead.",
                provider="local",
            )
    return process


def _start(argv: list[str], fds: tuple[int, ...], output: IO[bytes]) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        argv, pass_fds=fds, env=CLEAN | leftovers.mark(), cwd="/", stdin=subprocess.DEVNULL, stdout=output,
        stderr=output, start_new_session=True,
    )  # fmt: skip


def _as_owner(init_pid: int) -> list[str]:
    """Options of setpriv: what root gave the sandbox to, pasta runs as."""
    if os.geteuid() != 0:
        return []
    uid = str(os.stat(f"/proc/{init_pid}").st_uid)
    return ["--reuid", uid, "--regid", uid, "--clear-groups", "--inh-caps=-all"]


async def _connected(process: subprocess.Popen[bytes], init_pid: int) -> None:
    """Wait until the sandbox has a route, or pasta has ended."""
    async with asyncio.timeout(_READY_SECONDS):
        while process.poll() is None:
            for family in ("route", "ipv6_route"):
                if _has_route(f"/proc/{init_pid}/net/{family}"):
                    return
            await asyncio.sleep(0.01)


def _has_route(table: str) -> bool:
    with open(table) as routes:
        return any(not line.startswith(("Iface", "lo", "*")) and " lo" not in line for line in routes)


async def _block(user: int, net: int) -> None:
    argv = [sys.executable, "-I", "-S", "-c", _BLOCK.replace("CREDENTIALS", repr(_CREDENTIALS)), str(user), str(net)]
    with tempfile.TemporaryFile() as output:
        process = _start(argv, (user, net), output)
        done = PidFd(os.pidfd_open(process.pid))
        try:
            await done.ended()
        finally:
            done.close()
            process.kill()
            process.wait()
        if process.returncode:
            output.seek(0)
            raise SandboxCreationError(
                "The sandbox's network could not be closed towards the cloud's credentials: "
                f"{output.read(200).decode(errors='replace').strip()}.",
                provider="local",
            )
