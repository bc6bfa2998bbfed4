"""Requests without the tool: byte for byte, from a deployment that works."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from servers.fake_model import FakeModel, served
from servers.proxy_server import ProxyServer, ask, config_for, running_proxy
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

ALICE = {"authorization": "Bearer sk-alice"}
STREAM = [
    b": hi\n\n",
    b"event: odd\r\nda",
    b'ta: {"a":  1.0e+2,\n',
    "data: \u0085é".encode(),
    b"\xff\x00\n\n",
    b"data: [DONE]",
]


class Echo:
    """An endpoint that answers with peculiar bytes."""

    def __init__(self) -> None:
        self.bodies: list[bytes] = []
        self.headers: dict[str, str] = {}
        route = Route("/v1/{path:path}", self.answer, methods=["POST"])
        self.app = Starlette(routes=[route])

    async def answer(self, request: Request) -> Response:
        self.bodies.append(await request.body())
        self.headers = dict(request.headers)
        if b'"stream":true' not in self.bodies[-1]:
            headers = {"x-odd": "Kept", "x-request-id": "req_theirs", "connection": "x-hop, close", "set-cookie": "a=b"}
            return Response(b' {"id" :"x",\n"n":1.50, "\\u00e9":"\xc3\xa9"} ', 207, headers, "application/json")

        async def chunks() -> Any:
            for chunk in STREAM:
                yield chunk

        return StreamingResponse(chunks(), media_type="text/event-stream", headers={"x-odd": "Kept"})


@pytest.fixture(scope="module")
def echo() -> Echo:
    return Echo()


@pytest.fixture(scope="module")
def echo_proxy(echo: Echo, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ProxyServer]:
    with served(echo.app) as url, running_proxy(config_for(url), tmp_path_factory.mktemp("echo")) as server:
        yield server


@pytest.mark.parametrize("path", ["responses", "chat/completions"])
def test_bodies_pass_byte_for_byte(echo: Echo, echo_proxy: ProxyServer, path: str) -> None:
    body = b'{ "model":"m", "input":"\\u00e9", "messages":[], "n":1.50 ,"big":123456789012345678901234567890}'
    answer = httpx.post(f"{echo_proxy.url}/v1/{path}", content=body, headers=ALICE)
    assert echo.bodies[-1] == body
    assert answer.content == b' {"id" :"x",\n"n":1.50, "\\u00e9":"\xc3\xa9"} '
    assert answer.status_code == 207
    assert answer.headers["x-odd"] == "Kept"
    assert answer.headers["x-request-id"] == "req_theirs"
    assert "set-cookie" not in answer.headers


def test_an_idempotency_key_is_the_callers_own(echo: Echo, echo_proxy: ProxyServer) -> None:
    def sent_by(name: str, key: str) -> str:
        headers = {"authorization": f"Bearer sk-{name}", "idempotency-key": key}
        httpx.post(f"{echo_proxy.url}/v1/responses", content=b'{"model":"m"}', headers=headers)
        return echo.headers["idempotency-key"]

    assert sent_by("alice", "1") == sent_by("alice", "1") != sent_by("alice", "2")
    assert sent_by("alice", "1") != sent_by("bob", "1"), "the endpoint would give bob the answer for alice"


@pytest.mark.parametrize("path", ["responses", "chat/completions"])
def test_streams_pass_byte_for_byte(echo: Echo, echo_proxy: ProxyServer, path: str) -> None:
    answer = httpx.post(f"{echo_proxy.url}/v1/{path}", content=b'{"model":"m","stream":true}', headers=ALICE)
    assert answer.content == b"".join(STREAM)
    assert answer.headers["content-type"] == "text/event-stream; charset=utf-8"
    assert answer.headers["x-odd"] == "Kept"


def test_the_endpoint_sees_its_own_key_and_nothing_of_the_client(echo: Echo, echo_proxy: ProxyServer) -> None:
    private = {"cookie": "c=1", "x-litellm-session-id": "s", "x-forwarded-for": "1.2.3.4", "openai-organization": "o"}
    httpx.post(f"{echo_proxy.url}/v1/responses", json={"model": "m"}, headers={**ALICE, **private, "openai-beta": "b"})
    assert echo.headers["authorization"] == "Bearer sk-up"
    assert echo.headers["openai-beta"] == "b"
    assert not set(private) & set(echo.headers)
    assert "alice" not in json.dumps(echo.headers)


def test_only_the_models_name_changes_for_a_deployment_of_another_name(tmp_path: Path) -> None:
    echo = Echo()
    with served(echo.app) as url:
        config = config_for(url)
        config["model_list"] = [
            {"model_name": "mine/*", "litellm_params": {"model": "openai/theirs-*", "api_base": f"{url}/v1",
                                                        "api_key": "k"}}
        ]  # fmt: skip
        with running_proxy(config, tmp_path) as proxy:
            httpx.post(f"{proxy.url}/v1/responses", json={"model": "mine/big", "x": [1.5, "é"]}, headers=ALICE)
    assert json.loads(echo.bodies[0]) == {"model": "theirs-big", "x": [1.5, "é"]}


def test_without_interception_the_tool_passes_through(tmp_path: Path) -> None:
    echo = Echo()
    with served(echo.app) as url:
        params = {"code_interpreter_interception_params": {"enabled_providers": ["azure"]}}
        with running_proxy(config_for(url, litellm_settings=params), tmp_path) as proxy:
            httpx.post(f"{proxy.url}/v1/responses", json=ask("x"), headers=ALICE)
    assert json.loads(echo.bodies[0])["tools"] == ask("x")["tools"]


def test_a_stream_that_breaks_off_is_cut_for_the_client_too(tmp_path: Path) -> None:
    model = FakeModel()
    with served(model.app) as url, running_proxy(config_for(url), tmp_path) as proxy:
        body = {"model": "m", "input": json.dumps({"tokens": 3, "cut": True}), "stream": True}
        with pytest.raises(httpx.RemoteProtocolError):
            httpx.post(f"{proxy.url}/v1/responses", json=body, headers=ALICE)
        proxy.wait_for("outcome=cut")
        assert httpx.get(f"{proxy.url}/health").status_code == 200


@pytest.mark.parametrize("tool", [True, False])
@pytest.mark.parametrize("stream", [True, False])
def test_another_deployment_steps_in_before_the_first_byte(tmp_path: Path, tool: bool, stream: bool) -> None:
    broken, good = FakeModel("broken"), FakeModel("good")
    broken.down = 401
    body = {**(ask({"code": ["1"]}) if tool else {"model": "m", "input": "hi"}), "stream": stream}
    with served(broken.app) as a, served(good.app) as b, running_proxy(config_for(a, b), tmp_path) as proxy:
        for _ in range(8):
            assert httpx.post(f"{proxy.url}/v1/responses", json=body, headers=ALICE, timeout=30).status_code == 200
        good.down = 403
        assert httpx.post(f"{proxy.url}/v1/responses", json=body, headers=ALICE, timeout=30).status_code in (401, 403)
    # After its first failure it is asked last.
    assert len(broken.requests) <= 2


def test_deployments_share_the_requests(tmp_path: Path) -> None:
    models = [FakeModel("a"), FakeModel("b")]
    with served(models[0].app) as a, served(models[1].app) as b, running_proxy(config_for(a, b), tmp_path) as proxy:
        for _ in range(40):
            assert httpx.post(f"{proxy.url}/v1/responses", json={"model": "m", "input": "x"}, headers=ALICE).is_success
    assert min(len(m.requests) for m in models) >= 5


def test_an_endpoint_that_is_not_there_is_502(tmp_path: Path) -> None:
    with running_proxy(config_for("http://127.0.0.1:9"), tmp_path) as proxy:
        answer = httpx.post(f"{proxy.url}/v1/responses", json={"model": "m", "input": "x"}, headers=ALICE, timeout=30)
        assert answer.status_code == 502
        assert "Cannot reach the model server" in answer.json()["error"]["message"]


def test_without_a_file_the_environment_decides(tmp_path: Path) -> None:
    model = FakeModel()
    with served(model.app) as url:
        environ = {"OPENAI_BASE_URL": f"{url}/v1", "OPENAI_API_KEY": "sk-env", "IPY_SANDBOX_PROVIDER": "fake"}
        with running_proxy(None, tmp_path, **environ) as proxy:
            headers = {"authorization": "Bearer anything"}
            answer = httpx.post(
                f"{proxy.url}/v1/responses", json={**ask({"code": ["1"]}), "model": "x"}, headers=headers
            )
            assert answer.status_code == 200
            models = httpx.get(f"{proxy.url}/v1/models", headers=headers).json()
            assert [m["id"] for m in models["data"]] == ["offered"]
            assert httpx.post(f"{proxy.url}/v1/responses", json=ask("x")).status_code == 401
            foreign = {**headers, "host": "evil.example"}
            assert httpx.get(f"{proxy.url}/v1/models", headers=foreign).status_code == 403
    assert {r[1]["authorization"] for r in model.requests} == {"Bearer sk-env"}
    assert {r[2]["model"] for r in model.requests} == {"x"}
