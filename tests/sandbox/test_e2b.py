"""The lifecycle of e2b's sandboxes, against a server shaped by its specification; no kernels here."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from typing import Any

import pytest
from servers.e2b_server import API_KEY, E2BServer
from servers.http_server import Answer, HTTPServer, Request

from ipy_sandbox.errors import (
    AuthenticationError,
    ConfigurationError,
    FileTransferError,
    ProviderError,
    RateLimitError,
    SandboxCreationError,
    SandboxError,
    SandboxLostError,
)
from ipy_sandbox.models import ContainerHandle, End, ExecutionCount, SandboxOptions
from ipy_sandbox.sandbox import e2b as e2b_module
from ipy_sandbox.sandbox import http as http_module
from ipy_sandbox.sandbox.e2b import E2BProvider
from ipy_sandbox.sandbox.e2b_address import Address, address, sandbox_url
from ipy_sandbox.sandbox.e2b_code import CodeInterpreter, Timing

pytestmark = pytest.mark.anyio


@pytest.fixture
async def server(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[E2BServer]:
    monkeypatch.setattr(http_module, "BACKOFF", 0)
    async with E2BServer(with_kernels=False) as running:
        monkeypatch.setenv("E2B_API_KEY", API_KEY)
        monkeypatch.setenv("E2B_API_URL", running.url)
        monkeypatch.setenv("E2B_SANDBOX_URL", running.url)
        yield running


@pytest.fixture
async def provider(server: E2BServer) -> AsyncIterator[E2BProvider]:
    opened = E2BProvider()
    yield opened
    await opened.aclose()


def test_a_missing_key_is_one_clear_line_before_any_request() -> None:
    with pytest.raises(ConfigurationError, match=r"^e2b needs a key: set E2B_API_KEY or give api_key=\.$"):
        E2BProvider()


@pytest.mark.parametrize(
    ("api_base", "environ", "expected"),
    [
        (None, {}, Address("https://api.e2b.app", "e2b.app")),
        (None, {"E2B_DOMAIN": "my.org"}, Address("https://api.my.org", "my.org")),
        (None, {"E2B_API_URL": "https://api.my.org/"}, Address("https://api.my.org", "my.org")),
        ("https://api.my.org:8443", {}, Address("https://api.my.org:8443", "my.org:8443")),
        ("https://api.my.org", {"E2B_API_URL": "https://other"}, Address("https://api.my.org", "my.org")),
        ("http://localhost:3000", {"E2B_DOMAIN": "my.org"}, Address("http://localhost:3000", "my.org")),
        (None, {"E2B_SANDBOX_URL": "http://h:1/"}, Address("https://api.e2b.app", "e2b.app", "http://h:1")),
    ],
)
def test_addresses(
    api_base: str | None, environ: dict[str, str], expected: Address, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    assert address(api_base) == expected


@pytest.mark.parametrize("api_base", ["localhost:3000", "http://localhost:3000"])
def test_an_address_that_tells_no_sandboxes_is_refused(api_base: str) -> None:
    with pytest.raises(ConfigurationError, match=r"e2b's API must look like|set E2B_DOMAIN or E2B_SANDBOX_URL"):
        E2BProvider(API_KEY, api_base)


def test_a_sandbox_has_its_own_host_or_shares_one() -> None:
    handle = ContainerHandle(id="iabc", provider="e2b", domain="my.org")
    assert sandbox_url(handle, 49999, "/execute") == "https://49999-iabc.my.org/execute"
    handle.endpoint = "http://localhost:1"
    assert sandbox_url(handle, 49999, "/execute") == "http://localhost:1/execute"


async def test_create_says_what_it_wants_and_keeps_tokens_hidden(provider: E2BProvider, server: E2BServer) -> None:
    options = SandboxOptions(timeout=59.2, metadata={"a": "b"}, env_vars={"SECRET": "s3cr3t-value"})
    handle = await provider.create(options)
    (body,) = server.bodies
    assert body == {
        "templateID": "code-interpreter-v1",
        "timeout": 60,
        "secure": True,
        "metadata": {"a": "b"},
        "network": {"allowPublicTraffic": False},
    }
    (box,) = server.boxes.values()
    assert (handle.id, handle.provider, handle.domain, handle.timeout) == (box.id, "e2b", "e2b.app", 59.2)
    shown = repr(handle) + handle.model_dump_json() + str(handle)
    for secret in (box.access_token, box.traffic_token, "s3cr3t-value", API_KEY):
        assert secret is not None
        assert secret not in shown
    again = ContainerHandle.model_validate(json.loads(json.dumps(handle.dump_with_secrets())))
    assert again == handle
    assert again.secret("traffic_token") == box.traffic_token


async def test_create_passes_on_what_was_chosen(provider: E2BProvider, server: E2BServer) -> None:
    await provider.create(SandboxOptions(template="base", allow_internet_access=False, secure_access=False))
    (body,) = server.bodies
    assert body["templateID"] == "base"
    assert body["allow_internet_access"] is False
    assert "network" not in body


async def test_every_run_carries_tokens_and_address_from_the_first(provider: E2BProvider, server: E2BServer) -> None:
    handle = await provider.create(SandboxOptions())
    assert [event async for event in provider.run(handle, "1")] == [ExecutionCount(1), End()]
    (box,) = server.boxes.values()
    assert box.seen_tokens == [box.access_token] * 2
    for request in server.requests[1:]:
        assert request.headers["e2b-sandbox-id"] == box.id
        assert request.headers["e2b-sandbox-port"] == "49999"
        assert request.headers["e2b-traffic-access-token"] == box.traffic_token
        assert "x-api-key" not in request.headers


@pytest.mark.parametrize(
    "options",
    [{"network_policy": {"egress": []}}, {"resource_limits": {"cpu": "1"}}, {"ro_binds": ["/x"]}, {"unsafe": True}],
)
async def test_options_it_cannot_honour_are_refused_by_name(
    provider: E2BProvider, server: E2BServer, options: dict[str, Any]
) -> None:
    with pytest.raises(ConfigurationError, match=f"e2b does not know the option {next(iter(options))}"):
        await provider.create(SandboxOptions(**options))
    assert server.requests == []


@pytest.mark.parametrize(
    ("answer", "kind", "said"),
    [
        ((403, {"message": "team is blocked"}, {}), AuthenticationError, "team is blocked"),
        ((429, {"message": "20 sandboxes"}, {}), RateLimitError, "delete a sandbox or try again later"),
        ((400, {"message": "bad timeout"}, {}), SandboxCreationError, "bad timeout"),
        ((500, {"message": "Failed to place sandbox"}, {}), SandboxCreationError, "Failed to place sandbox"),
        ((200, b"<html>", {}), SandboxCreationError, "something unexpected"),
        ((201, {"id": "x"}, {}), SandboxCreationError, "something unexpected"),
    ],
)
async def test_a_refused_creation(
    provider: E2BProvider, server: E2BServer, answer: Any, kind: type[SandboxError], said: str
) -> None:
    server.refuse.append(("POST /sandboxes", *answer))
    with pytest.raises(kind, match=said) as caught:
        await provider.create(SandboxOptions())
    assert "\n" not in str(caught.value)
    assert len(server.requests) == 1


async def test_a_wrong_key_does_not_show_though_the_server_quotes_it(server: E2BServer) -> None:
    provider = E2BProvider("e2b_wrong-key-1234")
    with pytest.raises(AuthenticationError, match=r"Invalid API key '\*\*\*'") as caught:
        await provider.list_sandboxes()
    assert "wrong-key" not in str(caught.value)
    await provider.aclose()


async def test_an_unknown_template_is_named_by_the_server(provider: E2BProvider, server: E2BServer) -> None:
    with pytest.raises(SandboxCreationError, match="template 'nope' not found"):
        await provider.create(SandboxOptions(template="nope"))


async def test_a_sandbox_whose_server_starts_late_is_waited_for(provider: E2BProvider, server: E2BServer) -> None:
    server.not_listening = 2
    handle = await provider.create(SandboxOptions())
    assert handle.id in server.boxes


async def test_a_sandbox_that_never_listens_is_deleted_again(
    provider: E2BProvider, server: E2BServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(CodeInterpreter, "timing", Timing(start=0))
    server.not_listening = 1000
    with pytest.raises(SandboxCreationError, match="port is not open"):
        await provider.create(SandboxOptions())
    assert server.boxes == {}


async def test_a_creation_that_is_cancelled_leaves_no_sandbox(provider: E2BProvider, server: E2BServer) -> None:
    server.not_listening = 1000
    creating = asyncio.ensure_future(provider.create(SandboxOptions()))
    await server.created.wait()
    creating.cancel()
    with pytest.raises(asyncio.CancelledError):
        await creating
    assert server.boxes == {}


async def test_a_bare_id_reattaches_and_lives_longer(provider: E2BProvider, server: E2BServer) -> None:
    made = await provider.create(SandboxOptions(timeout=100))
    (box,) = server.boxes.values()
    before = box.ends
    handle = await provider.connect(made.id, timeout=1000)
    assert handle.secret("access_token") == box.access_token
    assert handle.secret("traffic_token") == box.traffic_token
    assert (box.ends - before).total_seconds() > 800
    assert handle.timeout == 1000
    with pytest.raises(SandboxLostError, match="igone is gone"):
        await provider.connect("igone")


@pytest.mark.parametrize("sandbox_id", ["../v2/sandboxes", "a b", "", "a/b", "i1?x", "evil.example/"])
async def test_an_id_that_is_none_is_refused_without_a_request(
    provider: E2BProvider, server: E2BServer, sandbox_id: str
) -> None:
    with pytest.raises(ConfigurationError, match="is not the id"):
        await provider.connect(sandbox_id)
    with pytest.raises(ConfigurationError, match="is not the id"):
        await provider.delete(ContainerHandle(id=sandbox_id, provider="e2b"))
    assert server.requests == []


async def test_delete_renew_info_and_list(provider: E2BProvider, server: E2BServer) -> None:
    handles = [await provider.create(SandboxOptions(metadata={"n": str(n)})) for n in range(5)]
    listed = await provider.list_sandboxes()
    assert [(i.id, i.metadata) for i in listed] == [(h.id, {"n": str(n)}) for n, h in enumerate(handles)]
    info = await provider.info(handles[0])
    assert (info.state, info.memory_bytes) == ("running", 123456789)
    assert info.created_at is not None
    assert info.expires_at is not None
    await provider.renew(handles[0], 1000)
    long = (await provider.info(handles[0])).expires_at
    assert long is not None
    assert (long - datetime.now(UTC)).total_seconds() > 990
    await provider.renew(handles[0], 5)
    assert (await provider.info(handles[0])).expires_at == long
    assert await provider.delete(handles[0]) is True
    assert await provider.delete(handles[0]) is False
    for gone in (provider.renew(handles[0], 5), provider.info(handles[0]), provider.restart(handles[0])):
        with pytest.raises(SandboxLostError):
            await gone


async def test_files(provider: E2BProvider, server: E2BServer) -> None:
    handle = await provider.create(SandboxOptions())
    home = server.boxes[handle.id].home
    data = bytes(range(256)) * 1000 + b"\r\n--x\r\n"
    await provider.upload(handle, "deep/er/data file.bin", data)
    await provider.upload(handle, "deep/empty", b"")
    assert await provider.download(handle, f"{home}/deep/er/data file.bin") == data
    listed = await provider.list_files(handle, "deep")
    assert [(i.path, i.is_dir, i.size) for i in listed] == [
        (f"{home}/deep/empty", False, 0),
        (f"{home}/deep/er", True, 0),
    ]
    assert [i.path for i in await provider.list_files(handle)] == [f"{home}/deep"]
    assert await provider.list_files(handle, "deep/er/..") == listed


@pytest.mark.parametrize(
    ("answer", "said"), [((507, {"message": "no space"}, {}), "no space left"), ((400, b"", {}), "no such file")]
)
async def test_files_that_cannot_be_written(provider: E2BProvider, server: E2BServer, answer: Any, said: str) -> None:
    handle = await provider.create(SandboxOptions())
    server.refuse.append(("/files", *answer))
    with pytest.raises(FileTransferError, match=said):
        await provider.upload(handle, "x", b"")
    with pytest.raises(FileTransferError, match=r"'nope' of sandbox .*: it is not there"):
        await provider.download(handle, "nope")
    with pytest.raises(FileTransferError, match="it is not there"):
        await provider.list_files(handle, "nope")


async def test_answers_that_make_no_sense_are_one_clear_error(provider: E2BProvider, server: E2BServer) -> None:
    handle = await provider.create(SandboxOptions())
    for path, call in [
        ("ListDir", provider.list_files(handle)),
        ("/v2/sandboxes", provider.list_sandboxes()),
        ("GET /sandboxes", provider.info(handle)),
        ("/connect", provider.connect(handle.id)),
    ]:
        server.refuse.append((path, 200, b"<html>\nhello", {}))
        with pytest.raises(ProviderError, match=r"^e2b answered something unexpected about .*$"):
            await call
    server.refuse += [("GET /contexts", 200, {"no": "list"}, {}), ("POST /contexts", 200, {"no": "id"}, {})]
    with pytest.raises(ProviderError, match=r"^e2b answered something unexpected about a kernel"):
        await provider.restart(handle)


async def test_a_lost_sandbox_is_told_from_a_port_that_is_closed(provider: E2BProvider, server: E2BServer) -> None:
    handle = await provider.create(SandboxOptions())
    server.not_listening = 1
    with pytest.raises(ProviderError, match="port is not open"):
        await anext(provider.run(handle, "1"))
    server.boxes[handle.id].state = "paused"
    with pytest.raises(ProviderError, match="is paused: connect to its id"):
        await anext(provider.run(handle, "1"))
    server.lose(handle.id)
    with pytest.raises(SandboxLostError):
        await anext(provider.run(handle, "1"))
    with pytest.raises(SandboxLostError):
        await provider.download(handle, "x")


async def test_a_run_that_the_edge_did_not_let_through_is_sent_again(
    provider: E2BProvider, server: E2BServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(e2b_module, "EDGE_RETRIES", (0, 0))
    handle = await provider.create(SandboxOptions())
    unknown = ("/execute", 502, {"message": "The sandbox was not found", "code": 502}, {})
    server.refuse += [unknown, unknown]
    assert [event async for event in provider.run(handle, "1")] == [ExecutionCount(1), End()]
    server.refuse += [unknown] * 3
    with pytest.raises(ProviderError, match="was not found"):
        await anext(provider.run(handle, "1"))
    server.refuse += [("/execute", 502, b"Bad Gateway", {})]
    with pytest.raises(ProviderError, match="502: Bad Gateway"):
        await anext(provider.run(handle, "1"))


async def test_a_traffic_token_that_is_wrong_is_an_authentication_error(
    provider: E2BProvider, server: E2BServer
) -> None:
    handle = await provider.create(SandboxOptions())
    server.boxes[handle.id].traffic_token = "ta_other"
    with pytest.raises(AuthenticationError, match="Sandbox is secured"):
        await anext(provider.run(handle, "1"))


async def test_sandboxes_are_deleted_at_exit_without_a_loop_and_within_the_budget(
    provider: E2BProvider, server: E2BServer
) -> None:
    handles = [await provider.create(SandboxOptions()) for _ in range(3)]
    await asyncio.to_thread(provider.delete_at_exit, handles, 2)
    assert server.boxes == {}


async def test_a_dead_server_does_not_hold_up_the_exit(monkeypatch: pytest.MonkeyPatch) -> None:
    async def silent(request: Request, answer: Answer) -> None:
        await answer.gone.wait()

    monkeypatch.setenv("E2B_SANDBOX_URL", "http://127.0.0.1:1")
    async with HTTPServer(silent) as server:
        handles = [ContainerHandle(id=f"i{n}", provider="e2b") for n in range(50)]
        began = time.monotonic()
        await asyncio.to_thread(E2BProvider(API_KEY, server.url).delete_at_exit, handles, 0.3)
        assert time.monotonic() - began < 5
    E2BProvider(API_KEY, "http://127.0.0.1:1").delete_at_exit(handles, 0.3)
