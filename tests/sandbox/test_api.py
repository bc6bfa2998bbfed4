from __future__ import annotations

import asyncio
import inspect
import json
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from servers.e2b_server import API_KEY, E2BServer

import ipy_sandbox
from ipy_sandbox import (
    ConfigurationError,
    ContainerHandle,
    End,
    ExecutionCount,
    ExecutionTimeoutError,
    FakeProvider,
    ProviderError,
    SandboxLostError,
    SandboxOptions,
    Stdout,
)
from ipy_sandbox.sandbox.provider import _PROVIDERS

pytestmark = pytest.mark.anyio


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> FakeProvider:
    provider = FakeProvider()
    monkeypatch.setitem(_PROVIDERS, "fake", lambda key, base: provider)
    return provider


def test_every_function_has_its_plain_twin_with_the_same_arguments() -> None:
    public = [
        n
        for n in ipy_sandbox.__all__
        if getattr(getattr(ipy_sandbox, n), "__module__", "") == "ipy_sandbox.sandbox.api"
    ]
    names = [n for n in public if n.startswith("a")]
    assert [n[1:] for n in names] == [n for n in public if n not in names]
    assert len(names) == len(CALLS)
    for name in names:
        twin = getattr(ipy_sandbox, name[1:])
        assert inspect.signature(twin).parameters == inspect.signature(getattr(ipy_sandbox, name)).parameters
        assert twin.__name__ == name[1:]
        assert twin.__doc__


CALLS: list[Callable[[str], Awaitable[Any]]] = [
    lambda p: ipy_sandbox.acreate_sandbox(p),
    lambda p: ipy_sandbox.arun_code(p, "iabc", "1"),
    lambda p: ipy_sandbox.acode_interpreter_tool(p, "1"),
    lambda p: ipy_sandbox.adelete_sandbox(p, "iabc"),
    lambda p: ipy_sandbox.ainterrupt(p, "iabc"),
    lambda p: ipy_sandbox.arenew_sandbox(p, "iabc", 5),
    lambda p: ipy_sandbox.aupload_file(p, "iabc", "f", b""),
    lambda p: ipy_sandbox.adownload_file(p, "iabc", "f"),
    lambda p: ipy_sandbox.alist_files(p, "iabc"),
    lambda p: ipy_sandbox.alist_sandboxes(p),
    lambda p: anext(ipy_sandbox.astream_code(p, "iabc", "1")),
]


@pytest.mark.parametrize(("provider", "setting"), [("e2b", "E2B_API_KEY"), ("opensandbox", "OPEN_SANDBOX_API_BASE")])
@pytest.mark.parametrize("call", CALLS)
async def test_a_missing_setting_is_one_clear_line(
    call: Callable[[str], Awaitable[Any]], provider: str, setting: str
) -> None:
    with pytest.raises(ConfigurationError, match=setting) as caught:
        await call(provider)
    assert "\n" not in str(caught.value)


async def test_an_unknown_provider_or_option_is_named() -> None:
    with pytest.raises(ConfigurationError, match="Unknown sandbox provider 'daytona': choose one of e2b"):
        await ipy_sandbox.acreate_sandbox("daytona")
    with pytest.raises(ConfigurationError, match="Wrong sandbox options: tiemout"):
        await ipy_sandbox.acreate_sandbox("fake", tiemout=5)
    with pytest.raises(ConfigurationError, match="Wrong sandbox options: timeout"):
        await ipy_sandbox.acreate_sandbox("fake", timeout=-1)


async def test_create_run_stream_and_delete(fake: FakeProvider) -> None:
    handle = await ipy_sandbox.acreate_sandbox("fake", timeout=60, metadata={"a": "b"}, env_vars={"C": "d"})
    assert fake.calls[0] == ("create", SandboxOptions(timeout=60, metadata={"a": "b"}, env_vars={"C": "d"}))
    assert (await ipy_sandbox.arun_code("fake", handle, "code")).stdout == "code"
    assert (await ipy_sandbox.arun_code("fake", handle.id, "code")).stdout == "code"
    events = [event async for event in ipy_sandbox.astream_code("fake", handle, "code")]
    assert events[1:] == [Stdout("code"), End()]
    assert await ipy_sandbox.adelete_sandbox("fake", handle) is True
    assert await ipy_sandbox.adelete_sandbox("fake", handle) is False
    assert await ipy_sandbox.adelete_sandbox("fake", handle.id) is False
    assert fake.calls.count(("aclose",)) == 7


async def test_a_handle_of_another_provider_is_refused(fake: FakeProvider) -> None:
    handle = ContainerHandle(id="iabc", provider="e2b")
    for call in (ipy_sandbox.arun_code("fake", handle, "1"), ipy_sandbox.adelete_sandbox("fake", handle)):
        with pytest.raises(ConfigurationError, match="belongs to provider 'e2b', not 'fake'"):
            await call


async def test_a_run_past_its_limit_carries_what_came_before(fake: FakeProvider) -> None:
    fake.script = lambda code: [Stdout("before"), 60.0, Stdout("after")]
    handle = await ipy_sandbox.acreate_sandbox("fake")
    with pytest.raises(ExecutionTimeoutError) as caught:
        await ipy_sandbox.arun_code("fake", handle, "x", timeout=0.01)
    assert caught.value.result.stdout == "before"


async def test_a_long_run_keeps_its_sandbox_alive(fake: FakeProvider) -> None:
    fake.script = lambda code: [0.3]
    handle = await ipy_sandbox.acreate_sandbox("fake", timeout=0.3)
    await ipy_sandbox.arun_code("fake", handle, "x")
    assert ("renew", handle.id, 0.3) in fake.calls


@pytest.mark.parametrize("problem", [ProviderError("no"), RuntimeError("a bug, quoting sk-secret")])
async def test_the_one_shot_tool_never_hides_its_result_behind_a_failing_delete(
    fake: FakeProvider, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, problem: Exception
) -> None:
    async def failing(handle: ContainerHandle) -> bool:
        raise problem

    monkeypatch.setattr(fake, "delete", failing)
    result = await ipy_sandbox.acode_interpreter_tool("fake", "code", timeout=100)
    assert result.stdout == "code"
    assert "sandbox fake1 was not deleted" in caplog.text
    assert "sk-secret" not in caplog.text
    fake.script = lambda code: [SandboxLostError("gone")]
    with pytest.raises(SandboxLostError, match="gone"):
        await ipy_sandbox.acode_interpreter_tool("fake", "code")


async def test_the_one_shot_tool_deletes_its_sandbox_whatever_happens(fake: FakeProvider) -> None:
    await ipy_sandbox.acode_interpreter_tool("fake", "code", template="t", timeout=100)
    assert fake.calls[0] == ("create", SandboxOptions(template="t", timeout=130))
    fake.script = lambda code: [ValueError("broken")]
    with pytest.raises(ValueError, match="broken"):
        await ipy_sandbox.acode_interpreter_tool("fake", "code")
    fake.script = lambda code: [60.0]
    with pytest.raises(ExecutionTimeoutError):
        await ipy_sandbox.acode_interpreter_tool("fake", "code", timeout=0.01)
    started = asyncio.Event()
    fake.script = lambda code: [started.set() or 60.0]  # type: ignore[func-returns-value]
    running = asyncio.ensure_future(ipy_sandbox.acode_interpreter_tool("fake", "code"))
    await started.wait()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert fake.alive == {}
    assert [c[0] for c in fake.calls].count("create") == [c[0] for c in fake.calls].count("delete") == 4


async def test_the_other_functions(fake: FakeProvider) -> None:
    handle = await ipy_sandbox.acreate_sandbox("fake")
    await ipy_sandbox.aupload_file("fake", handle, "f", b"data")
    assert await ipy_sandbox.adownload_file("fake", handle.id, "f") == b"data"
    assert [i.path for i in await ipy_sandbox.alist_files("fake", handle)] == ["f"]
    await ipy_sandbox.arenew_sandbox("fake", handle, 77)
    await ipy_sandbox.ainterrupt("fake", handle)
    assert fake.calls[-2] == ("interrupt", handle.id)
    assert ("renew", handle.id, 77) in fake.calls
    assert [i.id for i in await ipy_sandbox.alist_sandboxes("fake")] == [handle.id]


def test_the_plain_functions(fake: FakeProvider) -> None:
    handle = ipy_sandbox.create_sandbox("fake")
    assert ipy_sandbox.run_code("fake", handle, "code").stdout == "code"
    stream = ipy_sandbox.stream_code("fake", handle, "code")
    assert next(stream) == ExecutionCount(2)
    stream.close()  # type: ignore[attr-defined]
    assert ipy_sandbox.code_interpreter_tool("fake", "code").stdout == "code"
    assert ipy_sandbox.delete_sandbox("fake", handle) is True


async def test_a_handle_knows_the_address_of_its_sandbox(monkeypatch: pytest.MonkeyPatch) -> None:
    async with E2BServer(with_kernels=False) as server:
        monkeypatch.setenv("E2B_API_KEY", API_KEY)
        monkeypatch.setenv("E2B_SANDBOX_URL", server.url)
        handle = await ipy_sandbox.acreate_sandbox("e2b", api_base=server.url)
        text = json.dumps(handle.dump_with_secrets())
        monkeypatch.delenv("E2B_SANDBOX_URL")
        again = ContainerHandle.model_validate_json(text)
        monkeypatch.setenv("E2B_DOMAIN", "unused.invalid")
        assert (await ipy_sandbox.arun_code("e2b", again, "1")).execution_count == 1
        assert await ipy_sandbox.adelete_sandbox("e2b", again) is True
