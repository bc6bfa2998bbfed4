"""Sandboxes with a network, which they have only when asked for it."""

from __future__ import annotations

import os
import shutil
import socket
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from ipy_sandbox import Session
from ipy_sandbox.errors import IsolationUnavailableError, SandboxCreationError
from ipy_sandbox.models import SandboxOptions
from ipy_sandbox.sandbox.local.watchdog import WATCHDOG

TRY = """
import socket
def reach(host, port):
    try: socket.create_connection((host, port), 3).close(); return "reached"
    except OSError as error: return error.strerror or str(error)
"""


@pytest.fixture
def service() -> Iterator[int]:
    """A service on the host's loopback."""
    with closing(socket.create_server(("127.0.0.1", 0))) as server:
        yield server.getsockname()[1]


def test_internet_without_the_hosts_loopback(service: int) -> None:
    if not shutil.which("pasta"):
        pytest.skip("pasta is not installed")
    try:
        session = Session("local", SandboxOptions(allow_internet_access=True))
        session.start()
    except SandboxCreationError as error:
        pytest.skip(str(error))
    with session:
        session.run(TRY)
        assert session.run("len(socket.if_nameindex())").text == "2"
        assert session.run(f"reach('127.0.0.1', {service})").text == "'Connection refused'"
        for address in (socket.gethostbyname(socket.gethostname()), "169.254.169.254"):
            assert session.run(f"reach({address!r}, {service})").text != "'reached'"
        abstract = f"test-{os.getpid()}"
        with closing(socket.socket(socket.AF_UNIX)) as server:
            server.bind(f"\0{abstract}")
            server.listen()
            error = session.run(f"s = socket.socket(socket.AF_UNIX); s.connect('\\0{abstract}')").error
            assert error is not None
            assert error.name == "ConnectionRefusedError"
        for credentials in ("169.254.169.254", "168.63.129.16", "100.100.100.200", "192.0.0.192"):
            assert session.run(f"reach({credentials!r}, 80)").text in ("'No route to host'", "'Network is unreachable'")
        routes = session.run("open('/proc/net/route').read()").text
        assert routes.count("\\n") > 1
        sandbox = next(s for s in WATCHDOG.watched if session.handle and s.id == session.handle.id)
        assert sandbox.process.pasta is not None
        pasta = sandbox.process.pasta.pid
        assert Path(f"/proc/{pasta}").exists()
    assert not Path(f"/proc/{pasta}").exists()


def test_without_pasta_internet_is_refused_with_the_cure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: None)
    with pytest.raises(IsolationUnavailableError, match=r"apt install passt.*host_network=True"):
        Session("local", SandboxOptions(allow_internet_access=True)).start()


def test_the_hosts_network_is_shared_only_by_name(service: int) -> None:
    with Session("local", SandboxOptions(host_network=True)) as session:
        session.run(TRY)
        assert session.run(f"reach('127.0.0.1', {service})").text == "'reached'"
    with Session("local") as session:
        session.run(TRY)
        assert session.run(f"reach('127.0.0.1', {service})").text == "'Connection refused'"
