"""A client that leaves, in every phase: the model call is cancelled, the code stopped, the sandbox deleted."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Any

import pytest
from servers.asking import Kit, asking
from servers.model_server import Code, Pause, Raw, Say, Scenario

from ipy_sandbox.errors import ProviderError
from ipy_sandbox.models import ContainerHandle, SandboxOptions

pytestmark = pytest.mark.anyio

each_way = pytest.mark.parametrize("way", ["responses", "responses-stream", "chat", "chat-stream", "bridged-stream"])


async def leave(kit: Kit, way: str, prompt: str, when: Callable[[], bool], **body: Any) -> None:
    """Ask, and leave as soon as `when` says so: by cancelling, and streams also by closing them."""
    request = kit.request(way, prompt, **body)
    task = asyncio.create_task(kit.answer(request))
    await kit.until(when)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    if way.endswith("stream"):
        stream = kit.interpreter.stream(request)
        reading = asyncio.create_task(_read(stream))
        await kit.until(when)
        reading.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await reading
        await stream.aclose()


async def _read(stream: Any) -> None:
    async for _ in stream:
        pass


@each_way
@pytest.mark.parametrize("turn", [1, 2])
async def test_while_the_model_writes(way: str, turn: int) -> None:
    never = asyncio.Event()
    turns: list[Any] = [[Say("I am "), Pause(never)]] if turn == 1 else [[Code("a")], [Say("It is "), Pause(never)]]
    async with asking({"go": Scenario(turns)}) as kit:
        waiting = lambda: len(kit.model.bodies) % turn == 0 and len(kit.model.bodies) > 0  # noqa: E731
        await leave(kit, way, "go", waiting)
        async with asyncio.timeout(10):
            await kit.model.gone.wait()
        assert await kit.clean()
        assert len(kit.model.bodies) <= 2 * turn


@each_way
async def test_while_the_model_writes_code(way: str) -> None:
    never = asyncio.Event()
    async with asking({"go": Scenario([[Raw('{"code": "print(1)"'), Pause(never)]])}) as kit:
        await leave(kit, way, "go", lambda: bool(kit.model.bodies))
        async with asyncio.timeout(10):
            await kit.model.gone.wait()
        assert await kit.clean()
        assert not kit.named("run")


@each_way
async def test_while_the_code_runs(way: str) -> None:
    async with asking({"go": Scenario([[Code("sleep")]])}) as kit:
        await leave(kit, way, "go", lambda: len(kit.named("run")) > len(kit.named("stopped")))
        assert await kit.clean()
        assert len(kit.named("stopped")) == len(kit.named("run"))
        assert len(kit.model.bodies) == len(kit.named("run")), "the model is not asked again"


@each_way
async def test_while_the_code_runs_in_a_session_which_stays_usable(way: str) -> None:
    scenarios = {"go": Scenario([[Code("sleep")]]), "next": Scenario([[Code("a")]])}
    async with asking(scenarios) as kit:
        await leave(kit, way, "go", lambda: bool(kit.named("run")), metadata={"session_id": "s"})
        answer = await kit.ask(way, "next", metadata={"session_id": "s"})
        assert answer.logs == ["a\n"]
        assert list(kit.provider.alive) == ["fake1"]
        assert not kit.interpreter.pool.sessions("")["s"].busy


@each_way
@pytest.mark.parametrize("session", [None, "s"])
async def test_while_the_sandbox_is_made(way: str, session: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    async with asking({"go": Scenario([[Code("a")]])}) as kit:
        making, made = asyncio.Event(), asyncio.Event()
        create = kit.provider.create

        async def slow(options: SandboxOptions) -> ContainerHandle:
            making.set()
            await made.wait()
            return await create(options)

        monkeypatch.setattr(kit.provider, "create", slow)
        await leave(kit, way, "go", making.is_set, metadata={"session_id": session} if session else {})
        made.set()
        if session is None:
            assert await kit.clean()
        assert not kit.named("run")


async def test_keepalives_flow_while_the_code_runs_and_while_the_model_is_silent() -> None:
    go = asyncio.Event()
    scenarios = {"sleep": Scenario([[Code("sleep")]]), "silent": Scenario([[Say("a"), Pause(go)]])}
    async with asking(scenarios, keepalive=0.01) as kit:
        for prompt in scenarios:
            stream = kit.interpreter.stream(kit.request("responses-stream", prompt))
            silent = 0
            async for event in stream:
                silent += event is None
                if silent == 3:
                    break
            await stream.aclose()
            assert silent == 3
        assert await kit.clean()


async def test_a_slow_reader_holds_the_loop_back_and_loses_nothing() -> None:
    async with asking({"go": Scenario(final="x" * 5000)}) as kit:
        kit.model.piece = 1
        stream = kit.interpreter.stream(kit.request("responses-stream", "go"))
        first = await anext(stream)
        assert first is not None
        for _ in range(50):
            await asyncio.sleep(0)
        text = "".join([event["delta"] async for event in stream if event and "delta" in event])
        assert text == "x" * 5000


@each_way
async def test_nobody_waits_for_the_sandbox_to_be_deleted(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async with asking({"go": Scenario([[Code("a")]])}) as kit:
        may_go = asyncio.Event()
        delete = kit.provider.delete

        async def slow(handle: ContainerHandle) -> bool:
            await may_go.wait()
            return await delete(handle)

        monkeypatch.setattr(kit.provider, "delete", slow)
        assert (await kit.ask(way, "go")).logs == ["a\n"]
        assert kit.provider.alive
        may_go.set()
        assert await kit.clean()


async def test_a_sandbox_that_cannot_be_deleted_is_logged_and_costs_no_answer(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with asking({"go": Scenario([[Code("a")]])}) as kit:

        async def fail(handle: ContainerHandle) -> bool:
            kit.provider.alive.clear()
            raise ProviderError("The server answered 500.", status=500)

        monkeypatch.setattr(kit.provider, "delete", fail)
        assert (await kit.ask("chat", "go")).logs == ["a\n"]
        await kit.until(lambda: "ends with its own lifetime" in caplog.text)
