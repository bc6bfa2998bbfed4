"""Sandboxes for the tests of the local provider; all are gone at the end of a module."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest

from ipy_sandbox import Session
from ipy_sandbox.background import BACKGROUND
from ipy_sandbox.errors import IsolationUnavailableError
from ipy_sandbox.models import SandboxOptions
from ipy_sandbox.sandbox.local.probe import probe
from ipy_sandbox.sandbox.local.provider import SPARE


def _why_not() -> str | None:
    if sys.platform != "linux":
        return "local sandboxes need Linux"
    try:
        probe()
    except IsolationUnavailableError as error:
        return str(error)
    return None


WHY_NOT = _why_not()


@pytest.fixture(autouse=True)
def isolation(request: pytest.FixtureRequest) -> None:
    """Skip what needs a real sandbox where there can be none."""
    if WHY_NOT and "no_sandbox" not in request.keywords:
        pytest.skip(WHY_NOT)


@pytest.fixture(scope="module", autouse=True)
def no_spare() -> Iterator[None]:
    """A test sees the sandboxes it made, and no other."""
    SPARE.policy = "off"
    BACKGROUND.run(SPARE.discard())
    yield
    BACKGROUND.run(SPARE.discard())
    SPARE.policy = "after_use"


@pytest.fixture(scope="module")
def session() -> Iterator[Session]:
    """A session that the tests of a module share."""
    with Session("local") as session:
        yield session


@pytest.fixture
def small() -> Iterator[Session]:
    """A sandbox of its own with low limits, which a test may use up."""
    mib = 1 << 20
    limits = {"memory": 400 * mib, "process_memory": 100 * mib, "processes": 60, "files": 2000, "open_files": 200,
              "home_size": 30 * mib, "tmp_size": 20 * mib, "shm_size": 10 * mib, "file_size": 15 * mib}  # fmt: skip
    with Session("local", SandboxOptions(limits=limits)) as session:
        yield session
