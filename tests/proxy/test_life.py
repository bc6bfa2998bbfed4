"""Start, reload, clients that leave, and the end."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml
from servers.fake_model import FakeModel, served
from servers.faulty_sandboxes import FaultySandboxes
from servers.proxy_server import ProxyServer, ask, ask_chat, config_for, running_proxy

ALICE = {"authorization": "Bearer sk-alice"}
MASTER = {"authorization": "Bearer sk-master"}
LIVE = "ipy_sandbox_sandboxes_live"


def write(directory: Path, config: dict[str, Any] | str) -> None:
    (directory / "config.yaml").write_text(config if isinstance(config, str) else yaml.safe_dump(config))


def test_a_wrong_configuration_is_one_line_and_status_2(tmp_path: Path) -> None:
    write(tmp_path, "api_keys: 5")
    command = [sys.executable, "-m", "ipy_sandbox.cli", "proxy", "--config", str(tmp_path / "config.yaml")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert "api_keys: should be a valid list" in done.stderr


@pytest.mark.parametrize("port", ["70000", "taken"])
def test_an_address_that_cannot_be_had_is_one_line_and_status_2(tmp_path: Path, port: str) -> None:
    write(tmp_path, config_for("http://127.0.0.1:9"))
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1]) if port == "taken" else port
        command = [sys.executable, "-m", "ipy_sandbox.cli", "proxy", "--config", str(tmp_path / "config.yaml")]
        done = subprocess.run([*command, "--port", port], capture_output=True, text=True, timeout=30, check=False)
    assert done.returncode == 2
    assert done.stderr.startswith(f"ipy-sandbox: Cannot listen on 127.0.0.1:{port}: ")
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize("way", ["signal", "request"])
def test_reload_takes_keys_and_models_of_the_new_file(tmp_path: Path, way: str) -> None:
    model = FakeModel()
    with served(model.app) as url, running_proxy(config_for(url), tmp_path) as proxy:
        config = config_for(url)
        config["api_keys"] = [{"name": "carol", "key": "sk-carol"}]
        config["model_list"][0]["model_name"] = "new"
        write(tmp_path, config)
        if way == "signal":
            proxy.process.send_signal(signal.SIGHUP)
            proxy.wait_for("the configuration was read again")
        else:
            assert httpx.post(f"{proxy.url}/admin/reload", headers=MASTER).json() == {"status": "reloaded"}
        assert httpx.get(f"{proxy.url}/v1/models", headers=ALICE).status_code == 401
        answer = httpx.get(f"{proxy.url}/v1/models", headers={"authorization": "Bearer sk-carol"})
        assert [m["id"] for m in answer.json()["data"]] == ["new"]


@pytest.mark.parametrize(
    "bad", ["api_keys: 5", "{", "model_list:\n  - {model_name: a, litellm_params: {model: none/x}}", ""]
)
def test_a_bad_file_keeps_the_old_configuration(tmp_path: Path, bad: str) -> None:
    with served(FakeModel().app) as url, running_proxy(config_for(url), tmp_path) as proxy:
        write(tmp_path, bad)
        answer = httpx.post(f"{proxy.url}/admin/reload", headers=MASTER)
        assert answer.status_code == 400
        assert answer.json()["error"]["message"].startswith("Nothing has changed: ")
        proxy.process.send_signal(signal.SIGHUP)
        proxy.wait_for("the configuration stays as it was: ")
        assert httpx.post(f"{proxy.url}/v1/responses", json=ask({"code": ["1"]}), headers=ALICE).status_code == 200


def test_only_the_master_key_reloads(tmp_path: Path) -> None:
    with served(FakeModel().app) as url, running_proxy(config_for(url), tmp_path) as proxy:
        assert httpx.post(f"{proxy.url}/admin/reload", headers=ALICE).status_code == 403


def test_a_running_request_ends_on_the_old_configuration(tmp_path: Path) -> None:
    model = FakeModel()
    body = ask({"code": ["1"], "tokens": 4, "delay": 0.2}, stream=True, metadata={"session_id": "s"})
    with served(model.app) as url, running_proxy(config_for(url), tmp_path) as proxy:
        with httpx.stream("POST", f"{proxy.url}/v1/responses", json=body, headers=ALICE, timeout=30) as answer:
            lines = answer.iter_lines()
            next(line for line in lines if "code_interpreter_call.completed" in line)
            config = config_for(url, api_keys=[{"name": "x", "key": "x"}])
            config["sandbox_tools"][0]["litellm_params"]["timeout"] = 77
            write(tmp_path, config)
            assert httpx.post(f"{proxy.url}/admin/reload", headers=MASTER).is_success
            rest = "\n".join(lines)
        assert "response.completed" in rest
        assert "tok3" in rest
        # The session belonged to the tool that is gone.
        proxy.wait_for_metric(LIVE, 0)


def test_sessions_outlive_a_reload_that_does_not_concern_them(tmp_path: Path) -> None:
    body = ask({"code": ["1"]}, metadata={"session_id": "s"})
    with served(FakeModel().app) as url, running_proxy(config_for(url), tmp_path) as proxy:
        before = httpx.post(f"{proxy.url}/v1/responses", json=body, headers=ALICE).json()["output"][0]["container_id"]
        config = config_for(url)
        config["api_keys"].append({"name": "x", "key": "x"})
        write(tmp_path, config)
        assert httpx.post(f"{proxy.url}/admin/reload", headers=MASTER).is_success
        after = httpx.post(f"{proxy.url}/v1/responses", json=body, headers=ALICE).json()["output"][0]["container_id"]
        assert after == before


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_the_end_deletes_sandboxes_and_takes_less_than_ten_seconds(tmp_path: Path, number: int) -> None:
    config = config_for("http://127.0.0.1:9", provider="local")
    config["sandbox_tools"][0]["litellm_params"] |= {"unsafe": True, "warm": 1}
    with running_proxy(config, tmp_path) as proxy:
        proxy.wait_for_metric(LIVE, 1, seconds=30)
        children = descendants(proxy.process.pid)
        assert children
        began = time.monotonic()
        assert proxy.stop(number) == 0
        assert time.monotonic() - began < 10
        assert proxy.log[-2].endswith("info stopped")
        eventually(lambda: not [pid for pid in children if Path(f"/proc/{pid}").exists()])


def test_the_end_does_not_wait_for_a_provider_that_is_silent(tmp_path: Path) -> None:
    sandboxes = FaultySandboxes(seed=0, chance=0)
    with served(FakeModel().app) as url, served(sandboxes.app) as sandbox_url:
        sandboxes.url = sandbox_url
        config = config_for(url, provider="opensandbox")
        config["sandbox_tools"][0]["litellm_params"] |= {"api_base": sandbox_url, "api_key": "k"}
        with running_proxy(config, tmp_path) as proxy:
            body = ask({"code": ["1"]}, metadata={"session_id": "s"})
            assert httpx.post(f"{proxy.url}/v1/responses", json=body, headers=ALICE, timeout=30).status_code == 200
            sandboxes.silent = True
            began = time.monotonic()
            assert proxy.stop() == 0
            assert time.monotonic() - began < 10
            proxy.wait_for("sandboxes left to their own lifetime: ")


def descendants(pid: int) -> list[int]:
    children = Path(f"/proc/{pid}/task").glob("*/children")
    direct = [int(child) for file in children for child in file.read_text().split()]
    return direct + [grandchild for child in direct for grandchild in descendants(child)]


def test_a_request_under_way_may_end_after_sigterm(tmp_path: Path) -> None:
    with served(FakeModel().app) as url, running_proxy(config_for(url), tmp_path) as proxy:
        body = ask({"code": ["1"], "tokens": 4, "delay": 0.2}, stream=True)
        with httpx.stream("POST", f"{proxy.url}/v1/responses", json=body, headers=ALICE, timeout=30) as answer:
            lines = answer.iter_lines()
            next(lines)
            proxy.process.send_signal(signal.SIGTERM)
            assert "response.completed" in "\n".join(lines)
        assert proxy.process.wait(10) == 0


def test_a_request_that_does_not_end_is_stopped_after_sigterm(tmp_path: Path) -> None:
    model = FakeModel()
    with served(model.app) as url, running_proxy(config_for(url), tmp_path) as proxy:
        threading.Thread(target=terminate_when, args=(proxy, lambda: model.open == 1)).start()
        answer = httpx.post(f"{proxy.url}/v1/responses", json=ask({"hang": True}), headers=ALICE, timeout=30)
        assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")
        assert proxy.process.wait(10) == 0
        eventually(lambda: model.open == 0)


def terminate_when(proxy: ProxyServer, ready: Callable[[], bool]) -> None:
    eventually(ready)
    proxy.process.send_signal(signal.SIGTERM)


def eventually(condition: Callable[[], Any], seconds: float = 10) -> None:
    event = threading.Event()
    for _ in range(int(seconds * 50)):
        if condition():
            return
        event.wait(0.02)
    raise AssertionError("it did not happen")


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("tool", [False, True])
@pytest.mark.parametrize("api", ["responses", "chat/completions"])
def test_a_client_that_leaves_stops_the_model(
    model: FakeModel, proxy: ProxyServer, api: str, tool: bool, stream: bool
) -> None:
    plan = {"hang": True} if not stream else {"tokens": 1000, "delay": 0.05}
    body = (ask if api == "responses" else ask_chat)(plan, stream=stream)
    if not tool:
        del body["tools"]
    leave_after_request(proxy.url, f"/v1/{api}", body, lambda: model.open == 1)
    eventually(lambda: model.open == 0)
    proxy.wait_for_metric("ipy_sandbox_requests_running", 1)  # the scrape itself


def leave_after_request(url: str, path: str, body: dict[str, Any], ready: Callable[[], bool]) -> None:
    host, port = url.removeprefix("http://").split(":")
    content = json.dumps(body).encode()
    head = (f"POST {path} HTTP/1.1\r\nhost: {host}\r\nauthorization: Bearer sk-alice\r\n"
            f"content-length: {len(content)}\r\n\r\n")  # fmt: skip
    with socket.create_connection((host, int(port))) as connection:
        connection.sendall(head.encode() + content)
        eventually(ready)
