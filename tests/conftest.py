"""What every test shares: a clean environment."""

from __future__ import annotations

import os
from collections.abc import Iterator

import hypothesis
import pytest

# Timings on a shared machine say nothing, and what one run found must not decide about the next.
hypothesis.settings.register_profile("shared", deadline=None, database=None)
hypothesis.settings.load_profile("shared")

OURS = ("IPY_SANDBOX", "E2B_", "OPEN_SANDBOX", "OPENAI_")


@pytest.fixture(autouse=True)
def clean_environ() -> Iterator[None]:
    """No key or setting of the developer's reaches a test, and none of a test's reaches the next."""
    before = dict(os.environ)
    for name in [n for n in os.environ if n.startswith(OURS)]:
        del os.environ[name]
    yield
    os.environ.clear()
    os.environ.update(before)


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"
