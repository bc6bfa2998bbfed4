"""Two proxies that share sessions in a real Redis; the sandboxes are real kernels behind an OpenSandbox server."""

from __future__ import annotations

import json
import shutil
import signal
import socket
import subprocess
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
from servers.opensandbox_server import OpenSandboxServer
from servers.proxy_server import ProxyServer, ask, config_for, running_proxy

from ipy_sandbox.errors import ConfigurationError
from ipy_sandbox.proxy.config_file import read_config

pytestmark = pytest.mark.skipif(shutil.which("redis-server") is None, reason="needs redis-server")

ALICE = {"authorization": "Bearer sk-alice"}
BOB = {"authorization": "Bearer sk-bob"}


@pytest.fixture(scope="module")
def redis_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    path = tmp_path_factory.mktemp("redis")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = ["redis-server", "--port", str(port), "--bind", "127.0.0.1", "--save", "", "--dir", str(path)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert any("Ready to accept connections" in line for line in process.stdout)
    yield f"redis://127.0.0.1:{port}/0"
    process.terminate()
    process.wait(10)
    process.stdout.close()


@pytest.fixture(scope="module")
def sandbox_server() -> Iterator[OpenSandboxServer]:
    with OpenSandboxServer() as server:
        yield server


@pytest.fixture(scope="module")
def config(model_url: str, redis_url: str, sandbox_server: OpenSandboxServer) -> dict[str, Any]:
    config = config_for(model_url, provider="opensandbox")
    config["sandbox_tools"][0]["litellm_params"] |= {"api_base": sandbox_server.api_base, "api_key": "k"}
    config["general_settings"]["redis_url"] = redis_url
    config["litellm_settings"] = {"code_interpreter_interception_params": {"session_cap": 2}}
    return config


@pytest.fixture(scope="module")
def pair(config: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[ProxyServer]]:
    one, two = tmp_path_factory.mktemp("one"), tmp_path_factory.mktemp("two")
    with running_proxy(config, one) as first, running_proxy(config, two) as second:
        yield [first, second]


def run(proxy: ProxyServer, code: str, session: str | None = None, headers: dict[str, str] = ALICE) -> str:
    metadata = {"metadata": {"session_id": session}} if session else {}
    answer = httpx.post(
        f"{proxy.url}/v1/responses", json=ask({"code": [code]}, **metadata), headers=headers, timeout=60
    )
    assert answer.status_code == 200, proxy.log
    text: str = answer.json()["output"][-1]["content"][0]["text"]
    return str(json.loads(text.removeprefix("FINAL "))[0])


def test_a_session_goes_on_at_the_other_replica(pair: list[ProxyServer]) -> None:
    run(pair[0], "x = 42", "go on")
    assert run(pair[1], "x + 1", "go on") == "43"
    assert run(pair[0], "x + 2", "go on") == "44"
    assert "NameError" in run(pair[1], "x", "go on", BOB)


def test_two_replicas_that_open_a_session_at_once_share_one_sandbox(pair: list[ProxyServer]) -> None:
    code = "n = globals().get('n', 0) + 1; n"
    with ThreadPoolExecutor(6) as threads:
        counts = list(threads.map(lambda i: run(pair[i % 2], code, "at once"), range(6)))
    assert sorted(count[0] for count in counts) == list("123456")


def test_the_cap_holds_for_all_replicas(pair: list[ProxyServer], sandbox_server: OpenSandboxServer) -> None:
    before = len(sandbox_server.boxes)
    for number in range(4):
        run(pair[number % 2], f"x = {number}", f"cap {number}", {"authorization": "Bearer sk-master"})
    event = threading.Event()
    for _ in range(250):
        if len(sandbox_server.boxes) == before + 2:
            break
        event.wait(0.02)
    assert len(sandbox_server.boxes) == before + 2
    assert run(pair[0], "x", "cap 3", {"authorization": "Bearer sk-master"}) == "3"


def test_stored_responses_are_shared_and_stay_apart(pair: list[ProxyServer]) -> None:
    for body in (ask({"code": ["1"]}), {"model": "m", "input": "hi"}):
        first = httpx.post(f"{pair[0].url}/v1/responses", json=body, headers=ALICE, timeout=60).json()
        path = f"/v1/responses/{first['id']}"
        assert httpx.get(pair[1].url + path, headers=ALICE).json()["id"] == first["id"]
        assert httpx.get(pair[1].url + path, headers=BOB).status_code == 404
        follow_up = {"model": "m", "input": "x", "previous_response_id": first["id"]}
        assert httpx.post(f"{pair[1].url}/v1/responses", json=follow_up, headers=ALICE).status_code == 200
        assert httpx.post(f"{pair[1].url}/v1/responses", json=follow_up, headers=BOB).status_code == 400


def test_sessions_outlive_the_replica_that_made_them(pair: list[ProxyServer], config: Any, tmp_path: Path) -> None:
    for number in (signal.SIGTERM, signal.SIGKILL):
        with running_proxy(config, tmp_path) as third:
            run(third, "y = 7", f"outlive {number}")
            third.stop(number)
        assert run(pair[0], "y", f"outlive {number}") == "7"


def test_a_lost_sandbox_is_noticed_by_whoever_comes_next(
    pair: list[ProxyServer], sandbox_server: OpenSandboxServer
) -> None:
    known = set(sandbox_server.boxes)
    run(pair[0], "z = 1", "lost")
    for sandbox in set(sandbox_server.boxes) - known:
        sandbox_server.kill(sandbox)
    assert "gone" in run(pair[1], "z", "lost")
    assert run(pair[0], "z = 2; z", "lost").endswith("2")
    assert run(pair[1], "z", "lost") == "2"


def test_workers_share_a_port_and_end_together(config: dict[str, Any], tmp_path: Path) -> None:
    with running_proxy(config, tmp_path, "--workers", "2") as proxy:
        run(proxy, "x = 5", "workers")
        assert [run(proxy, "x", "workers") for _ in range(4)] == ["5"] * 4
        changed = json.loads(json.dumps(config))
        changed["api_keys"] = [{"name": "x", "key": "sk-x"}]
        (tmp_path / "config.yaml").write_text(json.dumps(changed))
        assert httpx.post(f"{proxy.url}/admin/reload", headers={"authorization": "Bearer sk-master"}).is_success
        assert proxy.stop() == 0


def test_what_cannot_be_shared_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "c.yaml"
    path.write_text("general_settings: {redis_url: 'redis://x'}")
    with pytest.raises(ConfigurationError, match="sandboxes of the local provider cannot be shared"):
        read_config(path, {})
