"""The life of OpenSandbox's sandboxes, against a server shaped like the real one; no code runs here."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from servers.opensandbox_server import OpenSandboxServer, go_json, refuse
from starlette.responses import JSONResponse, Response

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
from ipy_sandbox.models import ContainerHandle, SandboxOptions
from ipy_sandbox.sandbox import opensandbox
from ipy_sandbox.sandbox.opensandbox import OpenSandboxProvider
from ipy_sandbox.sandbox.provider import Provider

pytestmark = pytest.mark.anyio

GOLDEN = Path(__file__).parents[1] / "golden" / "opensandbox_lifecycle"


@pytest.fixture
def server() -> Iterator[OpenSandboxServer]:
    with OpenSandboxServer() as server:
        yield server


@contextlib.asynccontextmanager
async def opened(server: OpenSandboxServer, api_key: str | None = None) -> AsyncIterator[OpenSandboxProvider]:
    provider = OpenSandboxProvider(api_key, server.api_base)
    try:
        yield provider
    finally:
        await provider.aclose()


def prelude_answer() -> Response:
    """What `POST /code` gives for the prelude, without a kernel."""
    events = [{"type": "init", "text": "c1"}, {"type": "execution_complete", "execution_time": 50}]
    return Response(b"".join(go_json(event) + b"\n\n" for event in events), media_type="text/event-stream")


def bodies(server: OpenSandboxServer) -> list[dict[str, Any]]:
    return [box.body for box in server.boxes.values()]


async def make(server: OpenSandboxServer, provider: OpenSandboxProvider, **options: Any) -> ContainerHandle:
    server.answer("POST", "/code", prelude_answer())
    return await provider.create(SandboxOptions(**options))


# Configuration


def test_without_an_address_nothing_is_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigurationError, match="set OPEN_SANDBOX_API_BASE or pass api_base=") as caught:
        OpenSandboxProvider()
    assert "\n" not in str(caught.value)
    with pytest.raises(ConfigurationError, match="must begin with http:// or https://"):
        OpenSandboxProvider(api_base="localhost:8080")
    monkeypatch.setenv("OPEN_SANDBOX_API_BASE", "http://localhost:8080")
    assert isinstance(OpenSandboxProvider(), Provider)


@pytest.mark.parametrize("ending", ["", "/", "/v1", "/v1/"])
async def test_the_address_may_have_its_version_or_not(server: OpenSandboxServer, ending: str) -> None:
    provider = OpenSandboxProvider(api_base=server.api_base + ending)
    assert await provider.list_sandboxes() == []
    await provider.aclose()
    assert server.requests == [("GET", "/v1/sandboxes")]


async def test_the_key_is_optional_and_may_be_empty(server: OpenSandboxServer, monkeypatch: pytest.MonkeyPatch) -> None:
    for given in (None, ""):
        async with opened(server, given) as provider:
            await provider.list_sandboxes()
    monkeypatch.setenv("OPEN_SANDBOX_API_KEY", "from-the-environment")
    async with opened(server) as provider:
        await provider.list_sandboxes()
    async with opened(server, "given") as provider:
        await provider.list_sandboxes()
    sent = [request.headers.get("open-sandbox-api-key") for request in server.received]
    assert sent == [None, None, "from-the-environment", "given"]


@pytest.mark.parametrize("key", ["", "a-wrong-key"])
async def test_a_refused_key_is_told_without_the_key(server: OpenSandboxServer, key: str) -> None:
    server.api_key = "the-right-one"
    async with opened(server, key) as provider:
        with pytest.raises(AuthenticationError) as caught:
            await provider.create(SandboxOptions())
    assert "a-wrong-key" not in str(caught.value)


# Creation


async def test_what_a_sandbox_is_made_of_by_default(server: OpenSandboxServer) -> None:
    async with opened(server) as provider:
        handle = await make(server, provider)
    assert bodies(server) == [
        {
            "image": {"uri": "opensandbox/code-interpreter:v1.1.0"},
            "entrypoint": ["/opt/code-interpreter/code-interpreter.sh"],
            "resourceLimits": {"cpu": "1", "memory": "2Gi"},
            "timeout": 300,
            "networkPolicy": {"defaultAction": "deny", "egress": []},
        }
    ]
    assert (handle.provider, handle.timeout, handle.api_base) == ("opensandbox", 300, f"{server.api_base}/v1")


async def test_what_a_sandbox_is_made_of_on_request(server: OpenSandboxServer) -> None:
    policy = {"defaultAction": "deny", "egress": [{"action": "allow", "target": "pypi.org"}]}
    async with opened(server) as provider:
        await make(
            server,
            provider,
            template="mine:1",
            timeout=600.5,
            network_policy=policy,
            resource_limits={"cpu": "2", "memory": "4Gi", "gpu": "1"},
            entrypoint=["/start"],
            secure_access=True,
            metadata={"team": "qa"},
            env_vars={"TOKEN": "t0ken"},
        )
        await make(server, provider, allow_internet_access=True, timeout=5)
    assert bodies(server)[0] == {
        "image": {"uri": "mine:1"},
        "entrypoint": ["/start"],
        "resourceLimits": {"cpu": "2", "memory": "4Gi", "gpu": "1"},
        "timeout": 601,
        "networkPolicy": policy,
        "secureAccess": True,
        "metadata": {"team": "qa"},
        "env": {"TOKEN": "t0ken"},
    }
    assert "networkPolicy" not in bodies(server)[1]
    # The server takes no less.
    assert bodies(server)[1]["timeout"] == 60


@pytest.mark.parametrize("options", [{"unsafe": True}, {"ro_binds": ["/usr"]}, {"limits": {"nproc": 1}},
                                     {"host_network": True}])  # fmt: skip
async def test_an_option_it_cannot_honour_is_refused_by_name(
    server: OpenSandboxServer, options: dict[str, Any]
) -> None:
    async with opened(server) as provider:
        with pytest.raises(ConfigurationError, match=next(iter(options))):
            await provider.create(SandboxOptions(**options))
    assert not server.requests


async def test_a_pending_sandbox_is_waited_for(server: OpenSandboxServer) -> None:
    server.pending, server.unready = 2, 3
    async with opened(server) as provider:
        handle = await make(server, provider)
    assert list(server.boxes) == [handle.id]
    assert server.count("GET", f"/sandboxes/{handle.id}") >= 2
    assert server.count("GET", "/api") == 4


async def test_a_sandbox_that_fails_is_deleted_and_says_why(server: OpenSandboxServer) -> None:
    server.pending, server.failure = 1, "Sandbox container exited with code 1."
    async with opened(server) as provider:
        with pytest.raises(SandboxCreationError, match=r"deleted.*failed.*exited with code 1\.") as caught:
            await provider.create(SandboxOptions())
    assert not server.boxes
    assert "\n" not in str(caught.value)


async def test_a_sandbox_whose_entrypoint_dies_after_it_was_running(server: OpenSandboxServer) -> None:
    server.unready = 1000

    async def fail() -> Response:
        box = next(iter(server.boxes.values()))
        box.state, box.reason = "Failed", "Sandbox container exited with code 1."
        return Response("Bad Gateway", 502)

    server.answer("GET", "/proxy/44771/api", fail)
    async with opened(server) as provider:
        with pytest.raises(SandboxCreationError, match="exited with code 1"):
            await provider.create(SandboxOptions())
    assert not server.boxes


async def test_a_sandbox_that_never_gets_ready_is_deleted(
    server: OpenSandboxServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(opensandbox, "READY_TIMEOUT", 0.3)
    server.unready = 1000
    async with opened(server) as provider:
        with pytest.raises(SandboxCreationError, match=r"not ready after 0\.3 s: Jupyter has not started"):
            await provider.create(SandboxOptions())
    assert not server.boxes


async def test_execd_may_be_unreachable_at_first(server: OpenSandboxServer) -> None:
    server.answer("POST", "/code", Response("upstream", 503), Response("upstream", 502))
    async with opened(server) as provider:
        await make(server, provider)
    assert server.count("POST", "/code") == 3


SAID = "x said the server"
CREATE_ERRORS: list[tuple[Response, type[SandboxError], str]] = [
    (refuse(400, "SANDBOX::INVALID_PARAMETER", SAID), SandboxCreationError, SAID),
    (refuse(401, "INVALID_API_KEY", SAID), AuthenticationError, "check it"),
    (refuse(403, "QUOTA", SAID), AuthenticationError, SAID),
    (refuse(404, "SNAPSHOT::NOT_FOUND", SAID), SandboxCreationError, SAID),
    (refuse(409, "CONFLICT", SAID), SandboxCreationError, SAID),
    (refuse(429, "POOL::EXHAUSTED", SAID), RateLimitError, "later"),
    (refuse(429, "POOL::EXHAUSTED", SAID, {"Retry-After": "3600"}), RateLimitError, "3600 s"),
    (refuse(500, "DOCKER::SANDBOX_IMAGE_PULL_FAILED", SAID), SandboxCreationError, SAID),
    (
        refuse(500, "X", "Failed to pull image opensandbox/egress:v1"),
        SandboxCreationError,
        "allow_internet_access=True",
    ),
    (refuse(501, "X", SAID), SandboxCreationError, SAID),
    (refuse(502, "X", SAID), SandboxCreationError, SAID),
    (refuse(503, "TENANT_PROVIDER_UNAVAILABLE", SAID), SandboxCreationError, SAID),
    (Response("<html>", 504), SandboxCreationError, "504"),
    (Response("<html>", 202), SandboxCreationError, "something else than a JSON object"),
    (JSONResponse({"status": {}}, 202), SandboxCreationError, "no sandbox id"),
]


@pytest.mark.parametrize(("answer", "kind", "text"), CREATE_ERRORS, ids=lambda value: getattr(value, "status_code", ""))
async def test_a_refused_creation(
    server: OpenSandboxServer, answer: Response, kind: type[SandboxError], text: str
) -> None:
    server.answer("POST", "/sandboxes", answer)
    async with opened(server, "s3cr3t-key") as provider:
        with pytest.raises(kind) as caught:
            await provider.create(SandboxOptions())
    assert text in str(caught.value)
    assert "s3cr3t-key" not in str(caught.value)
    # Once: the sandbox may exist although the answer was an error.
    assert server.requests == [("POST", "/v1/sandboxes")]


async def test_a_validation_error_does_not_show_what_was_sent(server: OpenSandboxServer) -> None:
    sent = {"env": {"TOKEN": "t0p-s3cret"}}
    error = {"type": "greater_than_equal", "loc": ["body", "timeout"], "msg": "Input should be >= 60", "input": sent}
    server.answer("POST", "/sandboxes", JSONResponse({"detail": [error]}, 422))
    async with opened(server) as provider:
        with pytest.raises(SandboxCreationError) as caught:
            await provider.create(SandboxOptions(env_vars=sent["env"]))
    assert "t0p-s3cret" not in str(caught.value)
    assert "Input should be >= 60" in str(caught.value)


async def test_a_creation_that_may_be_tried_again_soon_is(server: OpenSandboxServer) -> None:
    server.answer("POST", "/sandboxes", refuse(429, "POOL", "full", {"Retry-After": "0"}))
    async with opened(server) as provider:
        assert (await make(server, provider)).id in server.boxes


async def test_a_cancelled_creation_leaves_nothing_behind(server: OpenSandboxServer) -> None:
    asked, answer = asyncio.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()

    async def slow() -> Response:
        loop.call_soon_threadsafe(asked.set)
        await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(answer.wait(), loop))
        return JSONResponse({"id": "late", "status": {"state": "Running"}}, 202)

    server.answer("POST", "/sandboxes", slow)
    async with opened(server) as provider:
        creating = asyncio.create_task(provider.create(SandboxOptions()))
        await asked.wait()
        creating.cancel()
        with pytest.raises(asyncio.CancelledError):
            await creating
        answer.set()
    assert server.count("DELETE", "/sandboxes/late") == 1


async def test_a_creation_cancelled_while_it_gets_ready_leaves_nothing_behind(server: OpenSandboxServer) -> None:
    server.unready = 1000
    asked, loop = asyncio.Event(), asyncio.get_running_loop()

    async def not_ready() -> Response:
        loop.call_soon_threadsafe(asked.set)
        return Response("Bad Gateway", 502)

    server.answer("GET", "/api", not_ready)
    async with opened(server) as provider:
        creating = asyncio.create_task(provider.create(SandboxOptions()))
        await asked.wait()
        creating.cancel()
        with pytest.raises(asyncio.CancelledError):
            await creating
    assert not server.boxes


async def test_an_older_server_answers_more_simply(server: OpenSandboxServer) -> None:
    made = {"id": "old", "status": "Pending", "createdAt": "2026-01-01T00:00:00Z", "expiresAt": "soon"}
    server.answer("POST", "/sandboxes", JSONResponse(made, 200))
    server.answer("GET", "/sandboxes/old", JSONResponse({**made, "status": "RUNNING"}))
    server.answer("GET", "/endpoints/44772", JSONResponse({"endpoint": f"{server.host}/execd/old"}))
    server.answer("GET", "/api", Response("404 page not found", 404))
    async with opened(server) as provider:
        handle = await make(server, provider)
    assert handle.created_at == datetime(2026, 1, 1, tzinfo=UTC)
    assert handle.context == "c1"


async def test_a_new_sandbox_costs_few_requests(server: OpenSandboxServer) -> None:
    async with opened(server) as provider:
        for expected in (["sandboxes", "44772", "api", "code"], ["sandboxes", "44772", "code"]):
            server.requests.clear()
            await make(server, provider)
            # The second one is trusted to be ready as the first was.
            assert [path.rpartition("/")[2] for _, path in server.requests] == expected


# Endpoints


async def test_the_headers_of_an_endpoint_are_sent_and_secret(server: OpenSandboxServer) -> None:
    server.endpoint_headers = {"OpenSandbox-Secure-Access": "hush-hush"}
    async with opened(server) as provider:
        handle = await make(server, provider)
        await provider.upload(handle, "a.txt", b"a")
        for shown in (repr(handle), handle.model_dump_json()):
            assert "hush-hush" not in shown
        copy = ContainerHandle.model_validate_json(json.dumps(handle.dump_with_secrets()))
        assert await provider.download(copy, "a.txt") == b"a"


async def test_a_handle_that_lost_its_secrets_gets_them_again(server: OpenSandboxServer) -> None:
    server.endpoint_headers = {"OpenSandbox-Secure-Access": "hush-hush"}
    async with opened(server) as provider:
        handle = await make(server, provider)
        copy = ContainerHandle.model_validate_json(handle.model_dump_json())
    async with opened(server) as provider:
        await provider.upload(copy, "a.txt", b"a")
        assert copy.secret("OpenSandbox-Secure-Access") == "hush-hush"
        bare = ContainerHandle(id=handle.id, provider="opensandbox")
        assert await provider.download(bare, "a.txt") == b"a"


@pytest.mark.parametrize(
    ("given", "used"),
    [
        ("{host}/proxy/44772", "http://{host}"),
        ("{host}/proxy/44772/", "http://{host}"),
        ("http://{host}/proxy/44772", "http://{host}"),
        ("{host}/gate/proxy/44772", "http://{host}/gate/proxy/44772"),
        ("{host}/proxy/44771", "http://{host}/proxy/44771"),
        ("https://other/x", "https://other/x"),
    ],
)
async def test_execds_way_through_itself_is_left_out(server: OpenSandboxServer, given: str, used: str) -> None:
    async with opened(server) as provider:
        handle = await make(server, provider)
        server.answer("GET", "/endpoints/44772", JSONResponse({"endpoint": given.format(host=server.host)}))
        await provider.locate(handle)
    assert handle.endpoint == used.format(host=server.host)


async def test_a_sandbox_that_cannot_be_reached_directly_is_reached_through_the_server(
    server: OpenSandboxServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(opensandbox, "DIRECT_PATIENCE", 0.0)
    monkeypatch.setattr(opensandbox, "READY_TIMEOUT", 20.0)
    nowhere = JSONResponse({"endpoint": "127.0.0.1:1/proxy/44772"})
    server.answer("GET", "/endpoints/44772", nowhere)
    async with opened(server) as provider:
        handle = await make(server, provider)
        assert handle.endpoint == f"{server.api_base}/v1/sandboxes/{handle.id}/proxy/44772"
        assert await provider.delete(handle)
        # Who says that it must be direct is not led another way.
        monkeypatch.setattr(opensandbox, "READY_TIMEOUT", 0.1)
        server.answer("GET", "/endpoints/44772", nowhere)
        with pytest.raises(SandboxCreationError, match="not ready after"):
            await provider.create(SandboxOptions(use_server_proxy=False))
    assert not server.boxes


async def test_an_address_that_is_not_opensandbox(server: OpenSandboxServer) -> None:
    async with opened(server) as provider:
        handle = await make(server, provider)
        for answer in (Response("<html>"), JSONResponse(["x"]), JSONResponse({})):
            server.answer("GET", "/endpoints/44772", answer)
            with pytest.raises(ProviderError) as caught:
                await provider.locate(handle)
            assert "\n" not in str(caught.value)


async def test_the_way_through_the_server_has_the_key(server: OpenSandboxServer) -> None:
    server.api_key = "k3y"
    async with opened(server, "k3y") as provider:
        handle = await make(server, provider, use_server_proxy=True)
        await provider.upload(handle, "a.txt", b"a")
        await provider.locate(handle)
        assert handle.endpoint == f"{server.api_base}/v1/sandboxes/{handle.id}/proxy/44772"
        assert "k3y" not in json.dumps(handle.dump_with_secrets())
    through = [r for r in server.received if "/proxy/44772/files/upload" in r.url.path]
    assert [request.headers["open-sandbox-api-key"] for request in through] == ["k3y"]


async def test_the_key_goes_to_no_other_place(server: OpenSandboxServer) -> None:
    async with opened(server, "k3y") as provider:
        handle = await make(server, provider)
        await provider.upload(handle, "a.txt", b"a")
    assert not [r for r in server.received if "/execd/" in r.url.path and "open-sandbox-api-key" in r.headers]


# Life


async def test_a_bare_id_comes_back(server: OpenSandboxServer) -> None:
    async with opened(server) as provider:
        made = await make(server, provider, metadata={"team": "qa"})
    async with opened(server) as provider:
        handle = await provider.connect(made.id, timeout=900)
        assert (handle.endpoint, handle.metadata, handle.timeout) == (made.endpoint, {"team": "qa"}, 900)
    assert 890 < seconds_left(server, made) <= 900


async def test_a_bare_id_comes_back_through_the_server_where_there_is_no_direct_way(server: OpenSandboxServer) -> None:
    async with opened(server) as provider:
        made = await make(server, provider)
        server.answer("GET", "/endpoints/44772", JSONResponse({"endpoint": "127.0.0.1:1/proxy/44772"}))
        handle = await provider.connect(made.id)
        await provider.upload(handle, "a.txt", b"a")
    assert handle.endpoint == f"{server.api_base}/v1/sandboxes/{made.id}/proxy/44772"


@pytest.mark.parametrize(
    ("state", "kind", "text"),
    [
        ("Paused", ProviderError, "is paused: resume it"),
        ("Failed", SandboxLostError, "failed: why"),
        ("Terminated", SandboxLostError, "is gone"),
    ],
)
async def test_a_bare_id_of_a_sandbox_that_does_not_run(
    server: OpenSandboxServer, state: str, kind: type[SandboxError], text: str
) -> None:
    async with opened(server) as provider:
        handle = await make(server, provider)
        box = server.boxes[handle.id]
        box.state, box.reason = state, "why"
        with pytest.raises(kind, match=text):
            await provider.connect(handle.id)


async def test_whatever_is_done_with_a_lost_sandbox_tells_so(server: OpenSandboxServer) -> None:
    async with opened(server) as provider:
        handle = await make(server, provider)
        server.kill(handle.id)
        for operation in (
            provider.connect(handle.id),
            provider.renew(handle, 60),
            provider.info(handle),
            provider.upload(handle, "a", b""),
            provider.download(handle, "a"),
            provider.list_files(handle),
            provider.interrupt(handle),
            provider.restart(handle),
            anext(provider.run(handle, "1")),
        ):
            with pytest.raises(SandboxLostError, match="the next use makes a new one") as caught:
                await operation
            assert caught.value.sandbox_id == handle.id
        assert await provider.delete(handle) is False


async def test_delete_says_whether_it_was_there(server: OpenSandboxServer) -> None:
    async with opened(server) as provider:
        handle = await make(server, provider)
        assert await provider.delete(handle) is True
        assert await provider.delete(handle) is False


def seconds_left(server: OpenSandboxServer, handle: ContainerHandle) -> float:
    return (server.boxes[handle.id].expires_at - datetime.now(UTC)).total_seconds()


async def test_renewing_makes_a_life_longer_and_never_shorter(server: OpenSandboxServer) -> None:
    async with opened(server) as provider:
        handle = await make(server, provider)
        await provider.renew(handle, 1000)
        assert 990 < seconds_left(server, handle) <= 1000
        assert handle.timeout == 1000
        await provider.renew(handle, 60)
        assert seconds_left(server, handle) > 990
        assert handle.timeout == 60


async def test_a_sandbox_without_an_end_needs_no_renewal(server: OpenSandboxServer) -> None:
    async with opened(server) as provider:
        handle = await make(server, provider)
        shown = {"id": handle.id, "status": {"state": "Running"}}
        server.answer("GET", f"/sandboxes/{handle.id}", JSONResponse(shown))
        never = refuse(409, "DOCKER::INVALID_EXPIRATION", "does not have automatic expiration enabled.")
        server.answer("POST", "/renew-expiration", never)
        await provider.renew(handle, 1000)
        assert server.count("POST", "/renew-expiration") == 1


async def test_all_pages_of_the_list_are_read(server: OpenSandboxServer) -> None:
    async with opened(server) as provider:
        ids = {(await make(server, provider, metadata={"n": str(n)})).id for n in range(3)}
        item = {"id": "more", "status": {"state": "Pausing"}}
        page = {"items": [item], "pagination": {"page": 1, "hasNextPage": True}}
        server.answer("GET", "/v1/sandboxes", JSONResponse(page))
        # The first page is made up: the second is none of the three.
        assert [(s.id, s.state) for s in await provider.list_sandboxes()] == [("more", "pausing")]
        found = await provider.list_sandboxes()
    assert {sandbox.id for sandbox in found} == ids
    assert {sandbox.state for sandbox in found} == {"running"}
    assert {sandbox.metadata["n"] for sandbox in found} == {"0", "1", "2"}
    assert all(s.expires_at is not None and s.created_at is not None for s in found)


async def test_info(server: OpenSandboxServer) -> None:
    async with opened(server) as provider:
        handle = await make(server, provider)
        info = await provider.info(handle)
    assert (info.id, info.provider, info.state) == (handle.id, "opensandbox", "running")


async def test_reading_is_tried_again_and_creating_is_not(server: OpenSandboxServer) -> None:
    async with opened(server) as provider:
        handle = await make(server, provider)
        server.answer("GET", f"/sandboxes/{handle.id}", Response("", 503), Response("", 502))
        assert (await provider.info(handle)).state == "running"
        server.answer("DELETE", f"/sandboxes/{handle.id}", Response("", 503))
        assert await provider.delete(handle) is True


async def test_deleting_at_exit_is_quick_and_silent(server: OpenSandboxServer) -> None:
    async with opened(server) as provider:
        handles = [await make(server, provider) for _ in range(3)]
        await asyncio.to_thread(provider.delete_at_exit, handles, 2.0)
        assert not server.boxes
        await asyncio.to_thread(provider.delete_at_exit, handles, 2.0)
    gone = OpenSandboxProvider(api_base="http://127.0.0.1:1")
    gone.delete_at_exit(handles, 0.5)


# Files


async def test_files(server: OpenSandboxServer) -> None:
    data = bytes(range(256)) * 300
    async with opened(server) as provider:
        handle = await make(server, provider)
        await provider.upload(handle, "sub/dir/é.bin", data)
        await provider.upload(handle, "/workspace/b.txt", b"")
        assert await provider.download(handle, "/workspace/sub/dir/é.bin") == data
        assert await provider.download(handle, "b.txt") == b""
        listed = await provider.list_files(handle)
        assert [(file.path.rpartition("/")[2], file.is_dir, file.size > 0) for file in listed] == [
            ("b.txt", False, False),
            ("sub", True, True),
        ]
        assert [file.size for file in await provider.list_files(handle, "sub/dir")] == [len(data)]


async def test_files_that_cannot_be_had(server: OpenSandboxServer) -> None:
    async with opened(server) as provider:
        handle = await make(server, provider)
        await provider.upload(handle, "sub/a", b"a")
        for operation in (
            provider.download(handle, "nope"),
            provider.download(handle, "sub"),
            provider.upload(handle, "sub", b""),
            provider.list_files(handle, "nope"),
        ):
            with pytest.raises(FileTransferError) as caught:
                await operation
            assert "\n" not in str(caught.value)


# Recorded answers of a real server


def recorded(name: str) -> Response:
    for line in (GOLDEN / "exchanges.jsonl").read_text("utf-8").splitlines():
        exchange = json.loads(line)
        if exchange["name"] == name:
            if "json" in exchange:
                return JSONResponse(exchange["json"], exchange["status"])
            return Response(exchange["text"], exchange["status"])
    raise LookupError(name)


async def test_a_recorded_life(server: OpenSandboxServer) -> None:
    sandbox_id = "414bfa9a-082c-4118-afa3-bad15c0a6725"
    server.answer("POST", "/sandboxes", recorded("create_ok"))
    server.answer("GET", "/endpoints/44772", recorded("endpoint_execd"), recorded("endpoint_execd_proxy"))
    server.answer("GET", f"/sandboxes/{sandbox_id}", recorded("get_right_after_create"), recorded("get_paused"))
    server.answer("DELETE", f"/sandboxes/{sandbox_id}", recorded("delete_ok"), recorded("delete_unknown"))
    provider = OpenSandboxProvider(api_base=server.api_base)
    made = await provider._create({})
    handle = provider._handle(made, 600)
    assert (handle.id, handle.metadata) == (sandbox_id, {"team": "qa", "job": "t-1"})
    await provider.locate(handle)
    assert handle.endpoint == "http://127.0.0.1:40155"
    await provider.locate(handle, use_server_proxy=True)
    assert handle.endpoint == f"http://127.0.0.1:18080/v1/sandboxes/{sandbox_id}/proxy/44772"
    info = await provider.info(handle)
    assert (info.state, info.metadata) == ("running", {"team": "qa", "job": "t-1"})
    assert info.expires_at == datetime(2026, 11, 29, 12, 58, 19, 475008, tzinfo=UTC)
    with pytest.raises(ProviderError, match="is paused"):
        await provider.check(handle)
    assert await provider.delete(handle) is True
    assert await provider.delete(handle) is False
    await provider.aclose()


@pytest.mark.parametrize(
    ("name", "kind", "text"),
    [
        ("missing_key", AuthenticationError, "credentials are missing"),
        ("wrong_key", AuthenticationError, "credentials are invalid"),
        ("not_a_route", SandboxCreationError, "Not Found"),
        ("create_empty_body", SandboxCreationError, "Exactly one of image or snapshotId must be provided"),
        ("create_no_entrypoint", SandboxCreationError, "Entrypoint is required when image is provided"),
        ("create_timeout_too_small", SandboxCreationError, "greater than or equal to 60"),
        ("create_timeout_too_big", SandboxCreationError, "exceeds configured maximum of 86400s"),
        ("create_bad_memory", SandboxCreationError, "Invalid resourceLimits.memory: 'lots'"),
        ("create_bad_metadata", SandboxCreationError, "Metadata key 'bad key!' is invalid"),
        ("create_unknown_image", SandboxCreationError, "Failed to pull image no-such/image:1"),
        ("create_secure_access", SandboxCreationError, "secureAccess is not supported when runtime.type='docker'"),
        ("create_network_policy", SandboxCreationError, "only allow_internet_access=True works"),
    ],
)
async def test_recorded_refusals_of_a_creation(
    server: OpenSandboxServer, name: str, kind: type[SandboxError], text: str
) -> None:
    server.answer("POST", "/sandboxes", recorded(name))
    async with opened(server) as provider:
        with pytest.raises(kind) as caught:
            await provider.create(SandboxOptions())
    assert text in str(caught.value)
    assert "\n" not in str(caught.value)


async def test_the_recorded_list(server: OpenSandboxServer) -> None:
    server.answer("GET", "/v1/sandboxes", recorded("list_end"))
    async with opened(server) as provider:
        found = await provider.list_sandboxes()
    assert [(sandbox.id[:8], sandbox.state, sandbox.metadata) for sandbox in found] == [
        ("5abd4074", "failed", {}),
        ("eba046f2", "running", {"team": "qa"}),
    ]


@pytest.mark.parametrize("name", ["get_unknown", "get_expired"])
async def test_recorded_losses(server: OpenSandboxServer, name: str) -> None:
    server.answer("GET", "/sandboxes/x", recorded(name))
    async with opened(server) as provider:
        with pytest.raises(SandboxLostError):
            await provider.connect("x")
