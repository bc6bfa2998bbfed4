"""The two APIs over HTTP, with the code interpreter."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest
from servers.fake_model import FakeModel
from servers.proxy_server import ProxyServer, ask, ask_chat

CODE = {"code": ["print(1)"]}


def events(text: str) -> list[dict[str, Any]]:
    return [json.loads(line[6:]) for line in text.splitlines() if line.startswith("data: {")]


def final_text(response: dict[str, Any]) -> str:
    return "".join(c["text"] for item in response["output"] if item["type"] == "message" for c in item["content"])


def test_responses(alice: httpx.Client, model: FakeModel) -> None:
    answer = alice.post("/v1/responses", json=ask(CODE, include=["code_interpreter_call.outputs"]))
    assert answer.status_code == 200
    body = answer.json()
    call, message = body["output"]
    assert (call["type"], call["status"], call["code"]) == ("code_interpreter_call", "completed", "print(1)")
    assert call["container_id"].startswith("cntr_")
    assert call["outputs"] == [{"type": "logs", "logs": "print(1)"}]
    assert message["content"][0]["text"] == 'FINAL ["print(1)"]'
    assert body["tools"] == [{"type": "code_interpreter", "container": {"type": "auto"}}]
    assert body["usage"]["total_tokens"] == 30
    assert [r[0] for r in model.requests] == ["/v1/responses"] * 2
    assert {r[1]["authorization"] for r in model.requests} == {"Bearer sk-up"}


def test_responses_streamed(alice: httpx.Client) -> None:
    answer = alice.post("/v1/responses", json=ask(CODE, stream=True))
    assert answer.headers["content-type"] == "text/event-stream; charset=utf-8"
    seen = events(answer.text)
    assert [e["sequence_number"] for e in seen] == list(range(len(seen)))
    kinds = [e["type"] for e in seen]
    assert kinds[0] == "response.created"
    assert kinds[-1] == "response.completed"
    assert "response.code_interpreter_call.interpreting" in kinds
    code = "".join(e["delta"] for e in seen if e["type"] == "response.code_interpreter_call_code.delta")
    assert code == "print(1)"
    assert "[DONE]" not in answer.text


def test_chat(alice: httpx.Client) -> None:
    body = alice.post("/v1/chat/completions", json=ask_chat(CODE)).json()
    message = body["choices"][0]["message"]
    assert message["content"] == 'FINAL ["print(1)"]'
    assert message["executed_tools"][0]["code"] == "print(1)"
    assert not message.get("tool_calls")
    assert body["usage"]["total_tokens"] == 30


def test_chat_streamed(alice: httpx.Client) -> None:
    answer = alice.post("/v1/chat/completions", json=ask_chat(CODE, stream=True))
    assert answer.text.endswith("data: [DONE]\n\n")
    deltas = [e["choices"][0]["delta"] for e in events(answer.text) if e["choices"]]
    assert "".join(d.get("content") or "" for d in deltas) == 'FINAL ["print(1)"]'
    assert [d["executed_tools"][0]["code"] for d in deltas if "executed_tools" in d] == ["print(1)"]


@pytest.mark.parametrize("prefix", ["", "/v1"])
@pytest.mark.parametrize("headers", [{"authorization": "Bearer sk-alice"}, {"api-key": "sk-alice"}])
def test_addresses_and_key_headers(proxy: ProxyServer, prefix: str, headers: dict[str, str]) -> None:
    answer = httpx.post(f"{proxy.url}{prefix}/responses", headers=headers, json=ask(CODE))
    assert answer.status_code == 200


def test_a_conversation_goes_on_from_a_stored_response(alice: httpx.Client, model: FakeModel) -> None:
    first = alice.post("/v1/responses", json=ask(CODE)).json()
    model.requests.clear()
    follow_up = {"model": "m", "input": "and now?", "previous_response_id": first["id"]}
    second = alice.post("/v1/responses", json=follow_up).json()
    assert final_text(second) == "hello"
    assert second["previous_response_id"] == first["id"]
    sent = json.dumps(model.requests[0][2])
    assert "print(1)" in sent
    assert "and now?" in sent


def test_stored_responses_can_be_read_and_deleted(alice: httpx.Client) -> None:
    first = alice.post("/v1/responses", json=ask(CODE)).json()
    path = f"/v1/responses/{first['id']}"
    assert alice.get(path).json() == first
    with_outputs = alice.get(path, params={"include": "code_interpreter_call.outputs"}).json()
    assert with_outputs["output"][0]["outputs"] == [{"type": "logs", "logs": "print(1)"}]
    items = alice.get(f"{path}/input_items").json()
    assert [i["content"][0]["text"] for i in items["data"]] == [json.dumps(CODE)]
    assert alice.post(f"{path}/cancel").status_code == 400
    assert alice.delete(path).json() == {"id": first["id"], "object": "response", "deleted": True}
    assert alice.get(path).status_code == 404


@pytest.mark.parametrize("passes_through", [False, True])
def test_nobody_reaches_anothers_response(alice: httpx.Client, bob: httpx.Client, passes_through: bool) -> None:
    body = {"model": "m", "input": "hi"} if passes_through else ask(CODE)
    first = alice.post("/v1/responses", json=body).json()
    path = f"/v1/responses/{first['id']}"
    assert alice.get(path).status_code == 200
    for method, suffix in [("GET", ""), ("DELETE", ""), ("POST", "/cancel"), ("GET", "/input_items")]:
        refused = bob.request(method, path + suffix)
        assert refused.status_code == 404
        assert refused.json()["error"]["type"] == "invalid_request_error"
    for follow_up in (ask("x"), {"model": "m", "input": "x"}):
        refused = bob.post("/v1/responses", json={**follow_up, "previous_response_id": first["id"]})
        assert refused.status_code == 400
        assert refused.json()["error"]["code"] == "previous_response_not_found"
    assert alice.get(path).status_code == 200


def test_nobody_reaches_anothers_container(alice: httpx.Client, bob: httpx.Client) -> None:
    first = alice.post("/v1/responses", json=ask(CODE, metadata={"session_id": "s"})).json()
    container = first["output"][0]["container_id"]
    again = ask(CODE, tools=[{"type": "code_interpreter", "container": container}])
    assert alice.post("/v1/responses", json=again).json()["output"][0]["container_id"] == container
    assert bob.post("/v1/responses", json=again).status_code == 404
    assert bob.get(f"/v1/containers/{container}/files/cfile_1/content").status_code == 404


@pytest.mark.parametrize("way", ["metadata", "header"])
def test_two_keys_with_the_same_session_id_never_share(alice: httpx.Client, bob: httpx.Client, way: str) -> None:
    def container(client: httpx.Client) -> str:
        extra = {"metadata": {"session_id": f"shared {way}", "user_api_key_hash": "x"}} if way == "metadata" else {}
        headers = {"x-litellm-session-id": f"shared {way}"} if way == "header" else {}
        answer = client.post("/v1/responses", json=ask(CODE, **extra), headers=headers).json()
        return str(answer["output"][0]["container_id"])

    assert container(alice) == container(alice) != container(bob) == container(bob)


def test_internal_metadata_of_a_client_goes_nowhere(alice: httpx.Client, model: FakeModel) -> None:
    metadata = {"user_api_key_hash": "bob", "user_api_key": "k", "litellm_x": "y", "mine": "kept"}
    for body in (ask(CODE), {"model": "m", "input": "hi"}):
        claims = {"metadata": metadata, "litellm_metadata": {"user_api_key_hash": "bob"}, "user_api_key_hash": "bob"}
        alice.post("/v1/responses", json={**body, **claims})
    for _, _, sent in model.requests:
        assert sent["metadata"] == {"mine": "kept"}
        assert "user_api_key" not in json.dumps(sent)
        assert "litellm_metadata" not in sent


def test_an_error_of_the_endpoint_keeps_its_status_and_body(alice: httpx.Client) -> None:
    for path, body in (("/v1/responses", ask({"status": 418})), ("/v1/chat/completions", ask_chat({"status": 418}))):
        for stream in (False, True):
            answer = alice.post(path, json={**body, "stream": stream})
            assert answer.status_code == 418
            assert answer.json()["error"]["message"] == "scripted 418"


def test_an_error_in_a_later_turn_ends_the_stream_with_an_event(alice: httpx.Client) -> None:
    plan = {**CODE, "status": 400, "fail_turn": 1}
    seen = events(alice.post("/v1/responses", json=ask(plan, stream=True)).text)
    assert seen[-1]["type"] == "response.failed"
    assert "scripted 400" in json.dumps(seen[-2:])


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"", "could not parse"),
        (b"{", "could not parse"),
        (b"\xff\xfe{}", "could not parse"),
        (b"[" * 100_000, "could not parse"),
        (b'{"model": NaN}', "could not parse"),
        (b'{"model": "m", "input": "x", "previous_response_id": "resp_1", "previous_response_id": null}', "could not"),
        (b"[]", "must be a JSON object"),
        (b"{}", "must provide a model"),
        (b'{"model": 5}', "must provide a model"),
        (b'{"model": ""}', "must provide a model"),
    ],
)
def test_malformed_bodies_are_400(alice: httpx.Client, body: bytes, message: str) -> None:
    for path in ("/v1/responses", "/v1/chat/completions"):
        answer = alice.post(path, content=body)
        assert answer.status_code == 400
        assert message in answer.json()["error"]["message"]


@pytest.mark.parametrize(
    "fields",
    [{"tools": 5}, {"tools": [5]}, {"tools": [{"type": 5}]}, {"input": 5}, {"input": [5]}, {"metadata": 5},
     {"metadata": {"session_id": {}}}, {"include": 5}, {"tool_choice": []}, {"previous_response_id": 5},
     {"previous_response_id": {}}, {"max_tool_calls": "x"}, {"stream": "yes"}, {"input": None}, {"instructions": 5},
     {"tools": [{"type": "code_interpreter", "container": 5}]}],
)  # fmt: skip
def test_wrong_fields_are_never_our_failure(alice: httpx.Client, fields: dict[str, Any]) -> None:
    tools = {"tools": [*ask("x")["tools"], *(fields["tools"] if isinstance(fields.get("tools"), list) else [])]}
    for body in ({**ask("x"), **fields}, {**ask("x"), **fields, **tools}):
        answer = alice.post("/v1/responses", json=body)
        assert answer.status_code in (200, 400, 404), answer.text


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [("GET", "/nothing", 404), ("PUT", "/v1/responses", 405), ("GET", "/v1/responses/resp_none", 404),
     ("GET", "/v1/models/none", 404), ("POST", "/v1/responses/resp_none/cancel", 404)],
)  # fmt: skip
def test_every_error_has_the_envelope_and_an_id(alice: httpx.Client, method: str, path: str, status: int) -> None:
    answer = alice.request(method, path)
    assert answer.status_code == status
    assert set(answer.json()["error"]) == {"message", "type", "param", "code"}
    assert answer.headers["x-request-id"].startswith("req_")


def test_an_unknown_model_is_404(alice: httpx.Client) -> None:
    answer = alice.post("/v1/responses", json={**ask("x"), "model": "none"})
    assert (answer.status_code, answer.json()["error"]["code"]) == (404, "model_not_found")


def test_models(alice: httpx.Client) -> None:
    assert [m["id"] for m in alice.get("/v1/models").json()["data"]] == ["m"]
    assert alice.get("/v1/models/m").json()["id"] == "m"


def test_without_a_key_nothing_is_told(proxy: ProxyServer) -> None:
    for method, path in [("POST", "/v1/responses"), ("POST", "/v1/chat/completions"), ("GET", "/v1/models"),
                         ("GET", "/v1/responses/x"), ("GET", "/v1/containers/a/files/b/content"),
                         ("POST", "/admin/reload")]:  # fmt: skip
        answer = httpx.request(method, proxy.url + path)
        assert answer.status_code == 401, path


def test_the_clients_request_id_is_kept(alice: httpx.Client) -> None:
    assert alice.get("/health", headers={"x-request-id": "mine-1"}).headers["x-request-id"] == "mine-1"
    assert alice.get("/health", headers={"x-request-id": "a b"}).headers["x-request-id"].startswith("req_")


def test_health_and_metrics(proxy: ProxyServer, alice: httpx.Client) -> None:
    before = proxy.metrics()
    alice.post("/v1/responses", json=ask(CODE))
    assert httpx.get(f"{proxy.url}/health").json() == {"status": "ok"}
    assert httpx.get(f"{proxy.url}/health/ready").json()["status"] == "ready"
    after = proxy.metrics()
    for name in ('ipy_sandbox_requests_total{route="/responses",status="200"}', "ipy_sandbox_loops_total",
                 'ipy_sandbox_executions_total{outcome="ok"}', "ipy_sandbox_sandboxes_created_total"):  # fmt: skip
        assert after[name] == before.get(name, 0) + 1


def test_a_log_line_moves_no_cursor(proxy: ProxyServer, alice: httpx.Client) -> None:
    httpx.get(f"{proxy.url}/marked%1b]0;x%07%0a%c2%9b%e2%80%ae")
    alice.post("/v1/responses", json={"model": "marked \x1b[2J\n", "input": "x"})
    proxy.wait_for("path=.*marked")
    proxy.wait_for("model=.*marked")
    assert all(line.isprintable() for line in proxy.log)


def test_a_log_line_tells_much_and_no_secret(proxy: ProxyServer, alice: httpx.Client) -> None:
    plan = {"code": ["print('a prompt')"]}
    answer = alice.post("/v1/responses", json=ask(plan), headers={"x-request-id": "look-for-me"})
    assert answer.status_code == 200
    line = proxy.wait_for("request_id=look-for-me").string
    for field in ("method=POST", "path=/v1/responses", "status=200", "key=alice", "model=m", "turns=2", "runs=1"):
        assert field in line
    log = "\n".join(proxy.log)
    assert not [s for s in ("sk-alice", "sk-up", "sk-master", "a prompt") if s in log]
