from __future__ import annotations

import logging
import sys
import types
from collections.abc import Iterator
from typing import Any

import pytest

import ipy_sandbox
from ipy_sandbox import (
    FakeProvider,
    Operation,
    RateLimitError,
    SandboxOptions,
    Session,
    Stdout,
    add_callback,
    remove_callback,
)
from ipy_sandbox.sandbox import observe
from ipy_sandbox.sandbox.provider import _PROVIDERS

pytestmark = pytest.mark.anyio


@pytest.fixture
def steps() -> Iterator[list[Operation]]:
    told: list[Operation] = []
    add_callback(told.append)
    yield told
    remove_callback(told.append)


@pytest.fixture
def provider(monkeypatch: pytest.MonkeyPatch) -> FakeProvider:
    fake = FakeProvider()
    monkeypatch.setitem(_PROVIDERS, "scripted", lambda key, base: fake)
    return fake


def short(steps: list[Operation]) -> list[tuple[str, str, str | None]]:
    return [(s.operation, s.phase, s.sandbox_id) for s in steps]


async def test_every_operation_is_told_with_its_sandbox_and_duration(
    provider: FakeProvider, steps: list[Operation]
) -> None:
    async with Session("scripted") as session:
        await session.arun("secret code")
        await session.aupload("f", b"x")
        await session.alist_files()
    assert short(steps) == [
        ("create", "start", None),
        ("create", "success", "fake1"),
        ("run", "start", "fake1"),
        ("run", "success", "fake1"),
        ("upload", "start", "fake1"),
        ("upload", "success", "fake1"),
        ("list_files", "start", "fake1"),
        ("list_files", "success", "fake1"),
        ("delete", "start", "fake1"),
        ("delete", "success", "fake1"),
    ]
    assert {s.provider for s in steps} == {"fake"}
    assert all((s.duration is None) == (s.phase == "start") for s in steps)
    assert "secret code" not in repr(steps)


async def test_a_failure_tells_why_but_nothing_of_a_foreign_error(
    provider: FakeProvider, steps: list[Operation], caplog: pytest.LogCaptureFixture
) -> None:
    provider.create_error = RateLimitError("too many")
    with pytest.raises(RateLimitError):
        await ipy_sandbox.acreate_sandbox("scripted")
    provider.create_error = ValueError("quotes a key")
    with pytest.raises(ValueError, match="quotes a key"):
        await ipy_sandbox.acreate_sandbox("scripted")
    assert [s.error for s in steps if s.phase == "failure"] == ["RateLimitError: too many", "ValueError"]
    assert [r.levelno for r in caplog.records] == [logging.WARNING, logging.WARNING]
    assert "scripted" not in caplog.text
    assert "fake create of sandbox -: failure" in caplog.text
    assert "quotes a key" not in caplog.text


async def test_leaving_a_run_early_is_no_failure(provider: FakeProvider, steps: list[Operation]) -> None:
    provider.script = lambda code: [Stdout("a"), 60.0, Stdout("b")]
    handle = await ipy_sandbox.acreate_sandbox("scripted")
    events = ipy_sandbox.astream_code("scripted", handle, "x")
    async for event in events:
        if event == Stdout("a"):
            break
    await events.aclose()
    assert short(steps)[-1] == ("run", "success", handle.id)
    assert ("stopped", handle.id) in provider.calls


async def test_a_callback_that_fails_breaks_nothing(provider: FakeProvider, caplog: pytest.LogCaptureFixture) -> None:
    def broken(step: Operation) -> None:
        raise RuntimeError("broken callback")

    add_callback(broken)
    try:
        handle = await ipy_sandbox.acreate_sandbox("scripted")
    finally:
        remove_callback(broken)
    remove_callback(broken)
    assert handle.id == "fake1"
    assert "broken callback" in caplog.text


async def test_spans_where_opentelemetry_is_installed(provider: FakeProvider, monkeypatch: pytest.MonkeyPatch) -> None:
    trace = pytest.importorskip("opentelemetry.trace")
    spans: list[dict[str, Any]] = []

    class Span(trace.NonRecordingSpan):  # type: ignore[misc,name-defined]
        def __init__(self, name: str) -> None:
            super().__init__(trace.INVALID_SPAN_CONTEXT)
            self.seen = {"name": name}
            spans.append(self.seen)

        def set_attribute(self, key: str, value: Any) -> None:
            self.seen[key] = value

        def set_status(self, status: Any, description: str | None = None) -> None:
            self.seen["status"] = status.name

        def end(self, end_time: int | None = None) -> None:
            self.seen["ended"] = True

    class Tracer(trace.NoOpTracer):  # type: ignore[misc,name-defined]
        def start_span(self, name: str, *args: Any, **kwargs: Any) -> Any:
            return Span(name)

    monkeypatch.setattr(observe, "_tracer", Tracer)
    handle = await ipy_sandbox.acreate_sandbox("scripted")
    provider.lose(handle.id)
    with pytest.raises(ipy_sandbox.SandboxLostError):
        await ipy_sandbox.arun_code("scripted", handle, "1")
    common = {"ipy_sandbox.provider": "fake", "ipy_sandbox.sandbox_id": "fake1", "ended": True}
    assert spans == [
        {"name": "sandbox create", "ipy_sandbox.operation": "create", **common},
        {"name": "sandbox run", "ipy_sandbox.operation": "run", **common, "status": "ERROR",
         "error.type": "SandboxLostError"},
    ]  # fmt: skip


async def test_nothing_is_missed_where_opentelemetry_is_not_installed(
    provider: FakeProvider, monkeypatch: pytest.MonkeyPatch, steps: list[Operation]
) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry", types.ModuleType("opentelemetry"))
    observe._tracer.cache_clear()
    await ipy_sandbox.acreate_sandbox("scripted")
    observe._tracer.cache_clear()
    assert short(steps)[-1] == ("create", "success", "fake1")


def test_nothing_is_printed_where_nobody_set_up_logging(
    provider: FakeProvider, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logging.getLogger(), "handlers", [])
    provider.create_error = RateLimitError("too many")
    with pytest.raises(RateLimitError):
        ipy_sandbox.create_sandbox("scripted")
    assert capfd.readouterr() == ("", "")


async def test_what_else_a_provider_has_passes_through(provider: FakeProvider) -> None:
    opened = ipy_sandbox.open_provider("scripted")
    assert (await opened.create(SandboxOptions())).id in provider.alive
    assert opened.calls is provider.calls  # type: ignore[attr-defined]
    assert observe.observed(opened) is opened
