"""Thousands of requests with everything going wrong at random: nothing is left behind."""

from __future__ import annotations

import asyncio
import gc
import os
import random
import resource

import pytest
from servers.asking import WAYS, Kit, asking
from servers.model_server import Code, Cut, Fail, Fn, Raw, Say, Scenario

from ipy_sandbox.errors import SandboxCreationError, SandboxError, UpstreamError

SOAK = os.environ.get("IPY_SANDBOX_SOAK") == "1"
pytestmark = [pytest.mark.anyio, pytest.mark.soak, pytest.mark.timeout(1800 if SOAK else 120)]

SCENARIOS = {
    "fine": Scenario([[Say("Well."), Code("a")], [Code("b")]]),
    "parallel": Scenario([[Code("a"), Code("1/0"), Fn("get_weather")]]),
    "wrong": Scenario([[Raw("[1]")], [Raw("")]]),
    "lost": Scenario([[Code("lose")], [Code("a")]]),
    "dead": Scenario([[Code("die")], [Code("break")], [Code("bug")]]),
    "refused": Scenario([[Fail(400)]]),
    "refused later": Scenario([[Code("a")], [Fail(400)]]),
    "cut": Scenario([[Code("a")], [Say("It is "), Cut()]]),
    "long": Scenario([[Code("300 KB")]]),
    "sleeps": Scenario([[Code("sleep")]]),
}


async def one(kit: Kit, chance: random.Random) -> None:
    """One request, which may be left at any moment."""
    way, prompt = chance.choice(WAYS), chance.choice(list(SCENARIOS))
    body = {"metadata": {"session_id": f"s{chance.randrange(15)}"}} if chance.random() < 0.5 else {}
    kit.provider.create_error = SandboxCreationError("No room.") if chance.random() < 0.05 else None
    asked = kit.ask(way, prompt, functions=True, identity=chance.choice("ab"), **body)
    patience = 0.3 if prompt == "sleeps" else chance.choice([0.001, 0.01, 0.05, 10, 10])
    try:
        async with asyncio.timeout(patience):
            await asked
    except (TimeoutError, UpstreamError, SandboxError):
        pass


@pytest.mark.parametrize("count", [pytest.param(200, id="short"), pytest.param(5000, id="long")])
async def test_nothing_is_left_behind(count: int) -> None:
    if count > 200 and not SOAK:
        pytest.skip("only with IPY_SANDBOX_SOAK=1")
    chance = random.Random(count)
    before = asyncio.all_tasks()
    async with asking(SCENARIOS) as kit:
        for _ in range(count // 20):
            await asyncio.gather(*(one(kit, chance) for _ in range(20)))
        kit.provider.create_error = None
        await kit.until(lambda: not kit.interpreter._running and not kit.interpreter._cleaning)
        sessions = [kit.interpreter.pool.sessions(identity) for identity in "ab"]
        assert all(len(mine) <= 10 for mine in sessions)
        assert not [session for mine in sessions for session in mine.values() if session.busy]
        await kit.until(lambda: len(kit.provider.alive) <= sum(map(len, sessions)))
        print(f"\n{count} requests, peak {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:.0f} MB")
    gc.collect()
    await kit.until(lambda: asyncio.all_tasks() <= before)
