"""Sessions and the pool, on the scripted provider."""

from __future__ import annotations

import asyncio
import contextlib

import pytest

from ipy_sandbox.errors import (
    ConfigurationError,
    ExecutionTimeoutError,
    SandboxBusyError,
    SandboxCreationError,
    SandboxError,
    SandboxLostError,
)
from ipy_sandbox.models import Display, ExecutionError, SandboxOptions, Stderr, Stdout
from ipy_sandbox.sandbox.fake import FakeProvider
from ipy_sandbox.sandbox.pool import SessionPool
from ipy_sandbox.sandbox.session import Session

pytestmark = pytest.mark.anyio


def named(provider: FakeProvider, name: str) -> list[tuple[object, ...]]:
    return [call for call in provider.calls if call[0] == name]


async def test_a_session_is_made_on_first_use_and_deleted_at_the_end() -> None:
    provider = FakeProvider()
    session = Session(provider)
    assert not provider.calls
    assert (await session.arun("hello")).stdout == "hello"
    assert (await session.arun("again")).execution_count == 2
    assert await session.aclose()
    assert not provider.alive


def test_the_same_class_works_without_await() -> None:
    with Session("fake") as session:
        assert repr(session) == f"<Session 'default' on fake: {session.start().id}>"
        assert session.run("hello").stdout == "hello"
        assert [type(event).__name__ for event in session.stream("x")] == ["ExecutionCount", "Stdout", "End"]


async def test_two_runs_at_once_happen_one_after_another() -> None:
    provider = FakeProvider(script=lambda code: [Stdout(code), 0.01, Stdout(code)])
    session = Session(provider)
    results = await asyncio.gather(session.arun("a"), session.arun("b"))
    assert [r.stdout for r in results] == ["aa", "bb"]
    assert len(named(provider, "create")) == 1


async def test_a_lost_sandbox_is_named_and_the_next_use_gets_a_new_one() -> None:
    provider = FakeProvider()
    session = Session(provider)
    await session.arun("x = 1")
    provider.lose("fake1")
    with pytest.raises(SandboxLostError, match="fake1"):
        await session.arun("x")
    assert session.lost is not None
    assert session.lost.sandbox_id == "fake1"
    await session.arun("y")
    assert session.handle is not None
    assert session.handle.id == "fake2"
    assert session.lost is None
    assert [code for _, _, code in named(provider, "run")] == ["x = 1", "x", "y"]


async def test_a_failed_start_is_not_remembered() -> None:
    provider = FakeProvider()
    provider.create_error = SandboxCreationError("No room.")
    session = Session(provider)
    with pytest.raises(SandboxCreationError):
        await session.arun("1")
    provider.create_error = None
    assert (await session.arun("1")).stdout == "1"


async def test_a_session_that_cannot_be_entered_is_closed() -> None:
    provider = FakeProvider()
    provider.create_error = SandboxCreationError("No room.")
    session = Session(provider)
    with pytest.raises(SandboxCreationError):
        async with session:
            pass
    with pytest.raises(SandboxError, match="closed"):
        await session.arun("1")


async def test_a_run_past_its_limit_is_interrupted_and_keeps_what_came_before() -> None:
    provider = FakeProvider(script=lambda code: [Stdout("before"), 60.0])
    session = Session(provider)
    with pytest.raises(ExecutionTimeoutError, match=r"longer than 0\.05 s") as caught:
        await session.arun("loop", timeout=0.05)
    assert caught.value.result.stdout == "before"
    assert caught.value.result.error.name == "KeyboardInterrupt"
    assert named(provider, "interrupt") == [("interrupt", "fake1")]
    provider.script = lambda code: []
    assert (await session.arun("next")).error is None


async def test_leaving_the_stream_early_stops_the_code() -> None:
    provider = FakeProvider(script=lambda code: [Stdout("1"), 60.0])
    session = Session(provider)
    async with contextlib.aclosing(session.astream("loop")) as events:
        async for event in events:
            if isinstance(event, Stdout):
                break
    assert named(provider, "stopped") == [("stopped", "fake1")]
    assert not session.busy


async def test_interrupt_lets_the_run_end_with_its_error() -> None:
    provider = FakeProvider(script=lambda code: [Stdout("1"), 60.0])
    session = Session(provider)
    seen = []
    async for event in session.astream("loop"):
        seen.append(event)
        if isinstance(event, Stdout):
            await session.ainterrupt()
    assert any(isinstance(e, ExecutionError) and e.name == "KeyboardInterrupt" for e in seen)


async def test_use_renews_the_lifetime(monkeypatch: pytest.MonkeyPatch) -> None:
    provider = FakeProvider()
    session = Session(provider, SandboxOptions(timeout=100))
    await session.arun("1")
    await session.arun("2")
    assert not named(provider, "renew")
    session._renewed_at -= 11
    await session.arun("3")
    assert named(provider, "renew") == [("renew", "fake1", 100)]


def test_an_unknown_provider_is_named() -> None:
    with pytest.raises(ConfigurationError, match=r"'nope'.*e2b, local, opensandbox"):
        Session("nope")


async def test_the_pool_gives_one_session_per_key_even_when_two_ask_at_once() -> None:
    provider = FakeProvider(script=lambda code: [0.01])
    async with SessionPool(lambda: Session(provider)) as pool:

        async def use() -> None:
            async with pool.lease("me", "k") as session:
                await session.arun("1")

        await asyncio.gather(use(), use())
        assert len(named(provider, "create")) == 1
    assert not provider.alive


async def test_the_pool_evicts_the_least_recently_used_idle_session_of_the_same_identity() -> None:
    provider = FakeProvider()
    now = 0.0
    async with SessionPool(lambda: Session(provider), cap=2, clock=lambda: now) as pool:
        async with pool.lease("other", "x") as session:
            await session.arun("1")
        for key in ("a", "b"):
            now += 1
            async with pool.lease("me", key) as session:
                await session.arun("1")
        now += 1
        async with pool.lease("me", "a"):  # a runs: b, though used later, is the idle one
            async with pool.lease("me", "c") as session:
                await session.arun("1")
            await asyncio.sleep(0.01)
            assert sorted(provider.alive) == ["fake1", "fake2", "fake4"]
            with pytest.raises(SandboxBusyError, match="All 2 sessions"):
                async with pool.lease("me", "c"), pool.lease("me", "d"):
                    pass


async def test_the_pool_closes_sessions_past_their_time_to_live() -> None:
    provider = FakeProvider()
    now = 0.0
    async with SessionPool(lambda: Session(provider), ttl=10, clock=lambda: now) as pool:
        async with pool.lease("me", "a") as session:
            await session.arun("1")
        now = 9
        pool.sweep()
        assert len(pool) == 1
        now = 11
        pool.sweep()
        assert len(pool) == 0


async def test_no_result_holds_what_cannot_be_carried_on() -> None:
    shown = Display({"text/plain": "a\ud800", "application/json": {"\ud800": ["\ud83d\ude00"]}}, raw={"text": "\udfff"})
    script = [Stdout("é\ud800"), Stderr("fine"), shown, ExecutionError("E", "\udc00", "tb \udc00")]
    async with Session(FakeProvider(script=lambda code: script)) as session:
        result = await session.arun("1")
    assert (result.stdout, result.stderr) == ("é\ufffd", "fine")
    assert result.displays[0].data == {"text/plain": "a\ufffd", "application/json": {"\ufffd": ["\ufffd\ufffd"]}}
    assert result.results == [{"text": "\ufffd"}]
    assert "\\ud" not in result.model_dump_json()
