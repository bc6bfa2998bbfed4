"""What a client may not do: too much, too long, too slowly."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
from servers.fake_model import FakeModel, served
from servers.proxy_server import ProxyServer, ask, config_for, running_proxy

ALICE = {"authorization": "Bearer sk-alice"}


@pytest.fixture(scope="module")
def limited(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ProxyServer]:
    general = {"master_key": "sk-master", "max_request_size_mb": 0.1, "global_max_parallel_requests": 3}
    keys = [{"name": "alice", "key": "sk-alice"}, {"name": "bob", "key": "sk-bob", "max_parallel_requests": 1}]
    with served(FakeModel().app) as url:
        config = config_for(url, general_settings=general, api_keys=keys, litellm_settings={"request_timeout": 1})
        with running_proxy(config, tmp_path_factory.mktemp("limits")) as server:
            yield server


def raw(url: str, *pieces: bytes) -> bytes:
    """What comes back for these bytes, until the connection closes."""
    host, port = url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=20) as connection:
        for piece in pieces:
            try:
                connection.sendall(piece)
            except OSError:
                break
        answer = b""
        while True:
            try:
                chunk = connection.recv(65536)
            except ConnectionResetError:
                return answer
            if not chunk:
                return answer
            answer += chunk


@pytest.mark.parametrize("chunked", [False, True])
def test_a_long_body_is_413(limited: ProxyServer, chunked: bool) -> None:
    content: Any = (b"x" * 1000 for _ in range(200)) if chunked else b"x" * 200_000
    answer = httpx.post(f"{limited.url}/v1/responses", content=content, headers=ALICE)
    assert answer.status_code == 413
    assert answer.json()["error"]["code"] == "request_too_large"


def test_a_compressed_body_is_415(limited: ProxyServer) -> None:
    headers = {**ALICE, "content-encoding": "gzip"}
    assert httpx.post(f"{limited.url}/v1/responses", content=b"x", headers=headers).status_code == 415


def test_long_headers_are_431(limited: ProxyServer) -> None:
    lines = [b"x-%d: %s\r\n" % (i, b"y" * 1000) for i in range(100)]
    answer = raw(limited.url, b"GET /health HTTP/1.1\r\nhost: localhost\r\n", *lines, b"\r\n")
    assert answer.startswith(b"HTTP/1.1 431 ")
    assert b'"error"' in answer


def test_what_is_not_http_is_400(limited: ProxyServer) -> None:
    answer = raw(limited.url, b"\x16\x03\x01 hello\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 400 ")
    assert b'"invalid_request_error"' in answer


def test_a_request_that_takes_too_long_is_408(limited: ProxyServer) -> None:
    answer = httpx.post(f"{limited.url}/v1/responses", json=ask({"hang": True}), headers=ALICE, timeout=30)
    assert (answer.status_code, answer.json()["error"]["code"]) == (408, "request_timeout")


@pytest.mark.parametrize("api", ["responses", "chat/completions"])
def test_a_stream_that_takes_too_long_ends_with_an_error_event(limited: ProxyServer, api: str) -> None:
    body = ask({"tokens": 1000, "delay": 0.05}, stream=True)
    body["messages"] = [{"role": "user", "content": body["input"]}]
    with httpx.stream("POST", f"{limited.url}/v1/{api}", json=body, headers=ALICE, timeout=30) as answer:
        text = "".join(answer.iter_text())
    assert "tok0" in text
    assert "took longer than 1 s" in text.strip().split("\n\n")[-1]


@pytest.mark.parametrize(("key", "fit"), [("alice", 3), ("bob", 1)])
def test_too_many_requests_at_once_are_429(limited: ProxyServer, key: str, fit: int) -> None:
    def ask_one(_: int) -> httpx.Response:
        headers = {"authorization": f"Bearer sk-{key}"}
        together.wait(10)
        return httpx.post(f"{limited.url}/v1/responses", json=ask({"hang": True}), headers=headers, timeout=30)

    together = threading.Barrier(5)
    with ThreadPoolExecutor(5) as threads:
        answers = list(threads.map(ask_one, range(5)))
    assert sorted(a.status_code for a in answers) == [408] * fit + [429] * (5 - fit)
    refused = next(a for a in answers if a.status_code == 429)
    assert refused.json()["error"]["code"] == "too_busy"
    assert refused.headers["retry-after"] == "1"


def test_a_client_that_does_not_read_does_not_fill_the_memory(tmp_path: Path) -> None:
    with served(FakeModel().app) as url, running_proxy(config_for(url), tmp_path) as proxy:
        body = b'{"model": "m", "stream": true, "input": "{\\"tokens\\": 3000000}"}'
        host, port = proxy.url.removeprefix("http://").split(":")
        head = b"POST /v1/responses HTTP/1.1\r\nhost: x\r\nauthorization: Bearer sk-alice\r\ncontent-length: %d\r\n\r\n"
        before = proxy.metrics()["process_resident_memory_bytes"]
        connections = []
        for _ in range(10):
            connection = socket.create_connection((host, int(port)))
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            connection.sendall(head % len(body) + body)
            connections.append(connection)
        for _ in range(20):
            threading.Event().wait(0.05)
            grown = proxy.metrics()["process_resident_memory_bytes"] - before
            assert grown < 40e6
        for connection in connections:
            connection.close()
        proxy.wait_for_metric("ipy_sandbox_requests_running", 1)
