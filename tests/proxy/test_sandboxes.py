"""The sandboxes that a proxy owns: warm ones, counting, and nothing left behind."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any, cast

import pytest

from ipy_sandbox.errors import ProviderError, SandboxCreationError
from ipy_sandbox.models import ExecutionError, SandboxOptions, Stdout
from ipy_sandbox.proxy import sandboxes as sandboxes_module
from ipy_sandbox.proxy.metrics import Metrics
from ipy_sandbox.proxy.sandboxes import OwnedSandboxes
from ipy_sandbox.sandbox.fake import FakeProvider
from ipy_sandbox.sandbox.provider import Provider
from ipy_sandbox.sandbox.session import Session

pytestmark = pytest.mark.anyio

OPTIONS = SandboxOptions(timeout=60)


class Flaky(FakeProvider):
    """Fails to delete as often as it is told to."""

    refusals = 0

    async def delete(self, handle: Any) -> bool:
        if self.refusals:
            self.refusals -= 1
            raise ProviderError("not now")
        return await super().delete(handle)


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sandboxes_module, "RETRY_SECONDS", (0.001,))


@pytest.fixture
def provider() -> Flaky:
    return Flaky()


@pytest.fixture
async def make(provider: Flaky) -> AsyncIterator[Callable[..., OwnedSandboxes]]:
    made: list[OwnedSandboxes] = []

    def make(warm: int = 0) -> OwnedSandboxes:
        made.append(OwnedSandboxes(provider, OPTIONS, warm, Metrics()))
        made[-1].start()
        return made[-1]

    yield make
    for owned in made:
        await owned.aclose()


def samples(owned: OwnedSandboxes, name: str, **labels: str) -> float | None:
    return owned._metrics.registry.get_sample_value(name, labels)


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not condition():  # noqa: ASYNC110  # what changes has no event to wait for
            await asyncio.sleep(0)


async def test_warm_sandboxes_are_handed_out_and_made_anew(make, provider: Flaky) -> None:
    owned = make(warm=2)
    await until(lambda: owned.ready == 2)
    before = set(provider.alive)
    handle = await owned.create(OPTIONS)
    assert handle.id in before
    await until(lambda: owned.ready == 2)
    assert len(provider.alive) == 3
    assert samples(owned, "ipy_sandbox_sandboxes_live") == 3


async def test_a_warm_sandbox_is_not_given_to_who_wants_another_kind(make) -> None:
    owned = make(warm=1)
    await until(lambda: owned.ready == 1)
    await owned.create(SandboxOptions(timeout=60, allow_internet_access=True))
    assert owned.ready == 1


async def test_a_warm_sandbox_gets_the_life_it_is_wanted_for(make, provider: Flaky) -> None:
    owned = make(warm=1)
    await until(lambda: owned.ready == 1)
    (spare,) = provider.alive
    handle = await owned.create(SandboxOptions(timeout=900))
    assert (handle.id, handle.timeout) == (spare, 900)
    assert ("renew", spare, 900) in provider.calls


async def test_a_warm_sandbox_that_died_is_not_handed_out(make, provider: Flaky) -> None:
    owned = make(warm=1)
    await until(lambda: owned.ready == 1)
    (dead,) = provider.alive
    provider.lose(dead)
    handle = await owned.create(SandboxOptions(timeout=900))
    assert handle.id != dead


async def test_warm_sandboxes_come_back_after_an_outage(make, provider: Flaky) -> None:
    provider.create_error = SandboxCreationError("no")
    owned = make(warm=1)
    await until(lambda: len(provider.calls) > 2)
    provider.create_error = None
    await until(lambda: owned.ready == 1)


async def test_a_session_runs_in_an_owned_sandbox_and_is_counted(make, provider: Flaky) -> None:
    provider.script = lambda code: [ExecutionError("E", "v", "t")] if code == "bad" else [Stdout("x")]
    owned = make()
    session = Session(cast(Provider, owned), OPTIONS)
    assert (await session.arun("good")).stdout == "x"
    assert (await session.arun("bad")).error is not None
    provider.lose(session.handle.id)
    with pytest.raises(Exception, match="is gone"):
        await session.arun("late")
    assert samples(owned, "ipy_sandbox_executions_total", outcome="ok") == 1
    assert samples(owned, "ipy_sandbox_executions_total", outcome="error") == 1
    assert samples(owned, "ipy_sandbox_executions_total", outcome="failed") == 1
    assert samples(owned, "ipy_sandbox_sandboxes_live") == 0


async def test_a_sandbox_that_did_not_become_ready_is_deleted_for_certain(make, provider: Flaky) -> None:
    owned = make()
    handle = await provider.create(OPTIONS)
    provider.create_error = SandboxCreationError("not ready", sandbox_id=handle.id)
    with pytest.raises(SandboxCreationError):
        await owned.create(OPTIONS)
    await until(lambda: not provider.alive)


async def test_who_stops_waiting_for_a_sandbox_leaves_none(make, provider: Flaky) -> None:
    owned = make()
    waiting = asyncio.ensure_future(owned.create(OPTIONS))
    await until(lambda: bool(provider.calls))
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    await until(lambda: ("delete", "fake1") in provider.calls)
    assert not provider.alive


async def test_what_could_not_be_deleted_is_tried_again(make, provider: Flaky) -> None:
    owned = make()
    handle = await owned.create(OPTIONS)
    provider.refusals = 3
    with pytest.raises(ProviderError):
        await owned.delete(handle)
    assert provider.alive
    await until(lambda: not provider.alive)
    await until(lambda: samples(owned, "ipy_sandbox_sandboxes_live") == 0)


async def test_closing_deletes_everything(make, provider: Flaky) -> None:
    owned = make(warm=3)
    await until(lambda: owned.ready == 3)
    await owned.create(OPTIONS)
    await owned.aclose()
    assert not provider.alive
    assert provider.calls[-1] == ("aclose",)


async def test_closing_falls_back_to_the_last_resort(make, provider: Flaky) -> None:
    owned = make()
    await owned.create(OPTIONS)
    provider.refusals = 1000
    await owned.aclose()
    assert not provider.alive
