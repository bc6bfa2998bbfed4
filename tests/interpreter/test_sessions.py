"""Sticky sessions, containers and identities, and the races between requests."""

from __future__ import annotations

import asyncio
import json

import pytest
from servers.asking import Kit, asking
from servers.model_server import Code, Pause, Say, Scenario

from ipy_sandbox.errors import InvalidRequestError, SandboxError
from ipy_sandbox.interpreter.workspace import NEW_SANDBOX
from ipy_sandbox.sandbox.pool import SessionPool
from ipy_sandbox.sandbox.session import Session

pytestmark = pytest.mark.anyio

BOTH = pytest.mark.parametrize("way", ["responses", "chat-stream"])
HELLO = {"hello": Scenario([[Code("a")]]), "sleep": Scenario([[Code("sleep")]])}


async def in_session(kit: Kit, way: str, name: object, prompt: str = "hello", identity: str = "") -> str:
    """Run code in a session and return the id of the sandbox it ran in."""
    before = len(kit.named("run"))
    answer = await kit.ask(way, prompt, metadata={"session_id": name}, identity=identity)
    assert answer.statuses == ["completed"]
    return str(kit.named("run")[before][1])


@BOTH
async def test_a_session_keeps_its_sandbox_and_a_request_without_one_does_not(way: str) -> None:
    async with asking(HELLO) as kit:
        assert await in_session(kit, way, "s") == await in_session(kit, way, "s") == "fake1"
        await kit.ask(way, "hello")
        assert len(kit.named("create")) == 2
        assert "session_id" not in json.dumps(kit.model.bodies)


@BOTH
async def test_the_sandbox_of_a_session_lives_as_long_as_the_session(way: str) -> None:
    async with asking(HELLO) as kit:
        await in_session(kit, way, "s")
        await kit.ask(way, "hello")
        assert [options.timeout for _, options in kit.named("create")] == [900, 300]  # type: ignore[attr-defined]


@BOTH
async def test_a_session_id_that_is_no_text_counts_as_its_text(way: str) -> None:
    async with asking(HELLO) as kit:
        assert await in_session(kit, way, 7) == await in_session(kit, way, "7")


@BOTH
async def test_another_identity_with_the_same_session_id_never_shares(way: str) -> None:
    async with asking(HELLO) as kit:
        sandboxes = [await in_session(kit, way, "s", identity=who) for who in ("alice", "bob", "alice")]
        assert sandboxes == ["fake1", "fake2", "fake1"]


@BOTH
async def test_two_requests_that_open_a_session_at_once_share_one_sandbox(way: str) -> None:
    async with asking(HELLO) as kit:
        await asyncio.gather(*(kit.ask(way, "hello", metadata={"session_id": "s"}) for _ in range(5)))
        assert len(kit.named("create")) == 1
        assert len(kit.named("run")) == 5


@BOTH
async def test_the_eleventh_session_evicts_the_least_recently_used_one_of_its_identity(way: str) -> None:
    async with asking(HELLO) as kit:
        await in_session(kit, way, "other", identity="bob")
        first = [await in_session(kit, way, f"s{i}", identity="alice") for i in range(10)]
        assert await in_session(kit, way, "s0", identity="alice") == first[0]
        await in_session(kit, way, "s10", identity="alice")
        assert await in_session(kit, way, "s0", identity="alice") == first[0]
        assert await in_session(kit, way, "other", identity="bob") == "fake1"
        assert await in_session(kit, way, "s1", identity="alice") not in first


@BOTH
async def test_many_new_sessions_at_once_never_exceed_the_cap(way: str) -> None:
    async with asking(HELLO) as kit:
        answers = await asyncio.gather(*(kit.ask(way, "hello", metadata={"session_id": f"s{i}"}) for i in range(30)))
        # Some find every session busy: they are told so, like of any sandbox that cannot be had.
        assert {answer.statuses[0] for answer in answers} <= {"completed", "failed"}
        assert len(kit.interpreter.pool) == 10


@BOTH
async def test_a_session_whose_code_runs_is_not_evicted(way: str) -> None:
    async with asking(HELLO) as kit:
        running = asyncio.create_task(kit.ask(way, "sleep", metadata={"session_id": "busy"}))
        await kit.until(lambda: bool(kit.named("run")))
        for i in range(10):
            await in_session(kit, way, f"s{i}")
        assert "fake1" in kit.provider.alive
        await kit.provider.interrupt(kit.provider.alive["fake1"])
        assert (await running).statuses == ["completed"]


@BOTH
async def test_an_expired_session_runs_the_code_in_a_new_sandbox_and_says_so(way: str) -> None:
    async with asking(HELLO) as kit:
        await in_session(kit, way, "s")
        session = kit.interpreter.pool.sessions("")["s"]
        session._renewed_at -= 1000  # idle for longer than it lived
        kit.provider.lose("fake1")
        answer = await kit.ask(way, "hello", metadata={"session_id": "s"})
        assert answer.statuses == ["completed"]
        assert [call[1] for call in kit.named("run")] == ["fake1", "fake2"]


@pytest.mark.parametrize("way", ["responses", "responses-stream", "bridged"])
async def test_code_of_an_earlier_answer_makes_a_new_sandbox_worth_a_note(way: str) -> None:
    async with asking(HELLO) as kit:
        first = await kit.ask(way, "hello")
        assert first.seen() == ["a"]
        again = await kit.ask(way, "hello", previous_response_id=first.raw["id"])
        assert again.seen() == [f"{NEW_SANDBOX}\na"]
        assert again.logs == ["a\n"]


@pytest.mark.parametrize("way", ["responses", "responses-stream"])
async def test_a_container_id_leads_back_to_its_session_for_this_caller_only(way: str) -> None:
    async with asking(HELLO) as kit:
        first = await kit.ask(way, "hello", metadata={"session_id": "s"}, identity="alice")
        container = first.calls[0]["container_id"]
        tools = [{"type": "code_interpreter", "container": container}]
        again = await kit.ask(way, "hello", tools=tools, identity="alice")
        assert again.calls[0]["container_id"] == container
        assert len(kit.named("create")) == 1
        for who, what in (("bob", tools), ("alice", [{"type": "code_interpreter", "container": "cntr_made_up"}])):
            with pytest.raises(InvalidRequestError, match="Container not found") as caught:
                await kit.ask(way, "hello", tools=what, identity=who)
            assert caught.value.status == 404
        assert len(kit.model.bodies) == 4


@pytest.mark.parametrize("way", ["responses", "responses-stream", "bridged", "bridged-stream", "chat", "chat-stream"])
async def test_a_linked_file_is_cited_and_can_be_fetched(way: str) -> None:
    text = "Ünïcode. See [out](sandbox:/mnt/data/out.csv) and [none](sandbox:/mnt/data/none.csv)."
    async with asking({"go": Scenario([[Code("write")]], final=text)}) as kit:
        answer = await kit.ask(way, "go", metadata={"session_id": "s"}, identity="alice")
        message = (
            answer.raw["choices"][0]["message"] if "choices" in answer.raw else answer.raw["output"][-1]["content"][0]
        )
        (citation,) = message["annotations"]
        assert citation["type"] == "container_file_citation"
        assert text[citation["start_index"] : citation["end_index"]] == "sandbox:/mnt/data/out.csv"
        assert citation["filename"] == "out.csv"
        assert citation["container_id"] == answer.calls[0]["container_id"]
        container, file = citation["container_id"], citation["file_id"]
        if way.startswith(("responses-s", "bridged-s")):
            assert [e["annotation"] for e in answer.events if "annotation" in e] == [citation]
        path, data = await kit.interpreter.container_file("alice", container, file)
        assert (path, data) == ("/mnt/data/out.csv", b"1,2")
        for who, where, what in (("bob", container, file), ("alice", "cntr_x", file), ("alice", container, "cfile_x")):
            with pytest.raises(InvalidRequestError) as caught:
                await kit.interpreter.container_file(who, where, what)
            assert caught.value.status == 404


async def test_a_session_that_the_caller_brings_is_used_and_stays() -> None:
    async with asking(HELLO) as kit, Session(kit.provider) as session:
        request = kit.request("responses", "hello")
        request.session = session
        assert (await kit.answer(request)).logs == ["a\n"]
        assert session.handle is not None
        assert session.handle.id in kit.provider.alive


@pytest.mark.parametrize("way", ["responses", "responses-stream", "chat-stream"])
async def test_closing_the_interpreter_stops_and_deletes_everything(way: str) -> None:
    async with asking(HELLO) as kit:
        await in_session(kit, "chat", "s")
        running = asyncio.create_task(kit.ask(way, "sleep"))
        await kit.until(lambda: len(kit.named("run")) == 2)
        await kit.interpreter.aclose()
        assert not kit.provider.alive
        with pytest.raises(SandboxError, match="closing down"):
            await running


async def test_the_pool_may_be_the_callers_own() -> None:
    async with asking(HELLO) as kit, SessionPool(lambda: Session(kit.provider), cap=1) as pool:
        kit.interpreter.pool = pool
        assert await in_session(kit, "responses", "s") == "fake1"
        assert list(pool.sessions("")) == ["s"]


async def test_a_session_waits_for_its_turn_while_the_model_writes_elsewhere() -> None:
    go = asyncio.Event()
    scenarios = {**HELLO, "slow": Scenario([[Code("a")], [Say("…"), Pause(go)]])}
    async with asking(scenarios) as kit:
        slow = asyncio.create_task(kit.ask("responses-stream", "slow", metadata={"session_id": "s"}))
        await kit.until(lambda: len(kit.model.bodies) == 2)
        # The session is free between the other request's runs.
        assert await in_session(kit, "chat", "s") == "fake1"
        go.set()
        assert (await slow).logs == ["a\n"]
