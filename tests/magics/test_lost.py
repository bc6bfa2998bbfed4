"""Sandboxes that vanish between two cells, on every provider: said aloud, run once, made anew."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator

import pytest

from ..servers.e2b_server import e2b_server
from ..servers.opensandbox_server import opensandbox
from .kernel import Kernel, kernel

KILL_LOCAL = (
    "import ipy_sandbox\nfor s in ipy_sandbox.list_sandboxes('local'): ipy_sandbox.delete_sandbox('local', s.id)"
)


@contextlib.contextmanager
def local() -> Iterator[Callable[[Kernel, str], object]]:
    yield lambda started, sandbox_id: started.ok(KILL_LOCAL)


@contextlib.contextmanager
def e2b() -> Iterator[Callable[[Kernel, str], object]]:
    with e2b_server() as server:
        yield lambda started, sandbox_id: server.lose(sandbox_id)


@contextlib.contextmanager
def remote() -> Iterator[Callable[[Kernel, str], object]]:
    with opensandbox() as server:
        yield lambda started, sandbox_id: server.kill(sandbox_id)


@pytest.mark.parametrize(("provider", "place"), [("local", local), ("e2b", e2b), ("opensandbox", remote)])
def test_a_lost_sandbox_fails_one_cell_and_the_next_gets_a_new_one(
    provider: str, place: Callable[[], contextlib.AbstractContextManager[Callable[[Kernel, str], object]]]
) -> None:
    with place() as lose, kernel(IPY_SANDBOX_PROVIDER=provider) as started:
        first = started.ok("%%sandbox\nx = 1").displays[0]["text/plain"]
        sandbox_id = re.findall(r"sandbox (\S+) \(", first)[0]
        lose(started, sandbox_id)
        lost = started.run("%%sandbox\nprint(x)")
        assert lost.reply["ename"] == "SandboxLostError"
        assert sandbox_id in lost.error
        assert len(lost.error.splitlines()) == 1
        again = started.run("%%sandbox\nprint('x' in dir())")
        assert again.stream() == "False\n"
        assert f"{sandbox_id} are gone" in again.displays[0]["text/plain"]
        assert not started.ok("%sandbox 1").displays
