"""Many requests with every kind of fault; in the end nothing is left: no sandbox, task, connection, or memory.

A few hundred by default; `IPY_SANDBOX_SOAK=1` with `-m soak` runs 20,000.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
from collections import Counter
from pathlib import Path
from typing import Any

import httpx
import pytest
from servers.fake_model import FakeModel, served
from servers.faulty_sandboxes import FaultySandboxes
from servers.proxy_server import ProxyServer, ask, ask_chat, config_for, running_proxy

LONG = bool(os.environ.get("IPY_SANDBOX_SOAK"))
AT_ONCE = 24
PLANS: list[dict[str, Any]] = [
    {"code": ["print(1)"]},
    {"code": ["print(1)", "print(2)", "print(3)"]},
    {"code": ["print(1)"], "tokens": 5, "delay": 0.01},
    {"code": ["print(1)"], "status": 500, "fail_turn": 1},
    {"code": ["print(1)"], "tokens": 3, "cut": True},
    {"status": 400},
    {"text": "plain"},
    {"hang": True},
]


def some_request(chance: random.Random) -> tuple[str, dict[str, Any]]:
    plan, stream = chance.choice(PLANS), chance.random() < 0.5
    fields: dict[str, Any] = {"stream": stream}
    if chance.random() < 0.3:
        fields["metadata"] = {"session_id": f"s{chance.randrange(30)}"}
    api = chance.choice(["responses", "chat/completions"])
    body = (ask if api == "responses" else ask_chat)(plan, **fields)
    if chance.random() < 0.1:
        del body["tools"]
    return f"/v1/{api}", body


async def one(client: httpx.AsyncClient, chance: random.Random, seen: Counter[str]) -> None:
    path, body = some_request(chance)
    leaves = '"hang"' in json.dumps(body).replace("\\", "") or chance.random() < 0.1
    headers = {"authorization": f"Bearer sk-{chance.choice(['alice', 'bob'])}"}
    try:
        async with asyncio.timeout(chance.uniform(0.01, 0.3) if leaves else 60):
            answer = await client.post(path, json=body, headers=headers)
        seen[str(answer.status_code)] += 1
    except TimeoutError:
        seen["left" if leaves else "stuck"] += 1
    except httpx.RemoteProtocolError:
        seen["cut"] += 1


async def many(proxy: ProxyServer, count: int, seed: int) -> Counter[str]:
    seen: Counter[str] = Counter()
    chance = random.Random(seed)
    left = iter(range(count))
    limits = httpx.Limits(max_connections=None)
    async with httpx.AsyncClient(base_url=proxy.url, timeout=None, limits=limits) as client:

        async def work() -> None:
            for _ in left:
                await one(client, chance, seen)

        await asyncio.gather(*(work() for _ in range(AT_ONCE)))
    return seen


@pytest.mark.parametrize("count", [250, pytest.param(20_000, marks=[pytest.mark.soak, pytest.mark.timeout(3600)])])
def test_nothing_is_left_behind(tmp_path: Path, count: int) -> None:
    if count > 1000 and not LONG:
        pytest.skip("long: set IPY_SANDBOX_SOAK=1")
    model, sandboxes = FakeModel(), FaultySandboxes(seed=1)
    with served(model.app) as model_url, served(sandboxes.app) as sandbox_url:
        sandboxes.url = sandbox_url
        config = config_for(model_url, provider="opensandbox")
        config["sandbox_tools"][0]["litellm_params"] |= {"api_base": sandbox_url, "api_key": "k"}
        config["litellm_settings"] = {"code_interpreter_interception_params": {"session_ttl": 2}}
        with running_proxy(config, tmp_path) as proxy:
            asyncio.run(many(proxy, count // 4, seed=1))
            before = proxy.metrics()["process_resident_memory_bytes"]
            seen = asyncio.run(many(proxy, count, seed=2))
            assert not seen["stuck"], seen
            assert seen["200"] > count / 4, seen
            assert not seen["500"] or seen["500"] < count / 4
            proxy.wait_for_metric("ipy_sandbox_requests_running", 1, seconds=30)
            proxy.wait_for_metric("ipy_sandbox_sandboxes_live", 0, seconds=60)
            assert not sandboxes.alive
            assert model.open == 0
            grown = proxy.metrics()["process_resident_memory_bytes"] - before
            assert grown < 30e6, f"{grown / 1e6} MB"
            assert proxy.stop() == 0
        assert not [line for line in proxy.log if " error " in line or "Traceback" in line or "never" in line]
