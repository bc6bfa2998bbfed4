"""Each recorded answer of e2b's template server, replayed over HTTP, is read as it should be.

`golden/e2b/expected.json` says what a user has to see; texts over 160 characters are there as [length, CRC, beginning].
Its `end`: the run ends; the kernel died; the code still runs (and is interrupted by the test); the server lets the run
lie; it is silent; or it cuts the answer before the first byte.
"""

from __future__ import annotations

import asyncio
import json
import zlib
from collections.abc import Awaitable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr
from servers.http_server import Answer, HTTPServer, Request

from ipy_sandbox.errors import (
    AuthenticationError,
    KernelDiedError,
    OutputTruncatedError,
    ProviderError,
    SandboxBusyError,
    SandboxCreationError,
    SandboxLostError,
)
from ipy_sandbox.models import (
    CodeExecutionResult,
    ContainerHandle,
    End,
    ExecutionCount,
    ResultBuilder,
    SandboxOptions,
    Stdout,
)
from ipy_sandbox.sandbox import execution, frames
from ipy_sandbox.sandbox.e2b import E2BProvider
from ipy_sandbox.sandbox.e2b_code import _KERNELS, CodeInterpreter, Timing
from ipy_sandbox.sandbox.e2b_wire import restore_lines

pytestmark = pytest.mark.anyio

GOLDEN = Path(__file__).parent.parent / "golden" / "e2b"
EXPECTED: dict[str, dict[str, Any]] = json.loads((GOLDEN / "expected.json").read_text())
EXCHANGES: dict[str, dict[str, Any]] = json.loads((GOLDEN / "exchanges.json").read_text())
MIME = {"text": "text/plain", "html": "text/html", "markdown": "text/markdown", "svg": "image/svg+xml",
        "png": "image/png", "jpeg": "image/jpeg", "pdf": "application/pdf", "latex": "text/latex",
        "json": "application/json", "javascript": "application/javascript"}  # fmt: skip


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(CodeInterpreter, "timing", Timing(settle=0, first_byte=0.5, unstarted=0, patience=0))
    yield
    _KERNELS.clear()


def chunks_of(name: str, as_recorded: bool) -> list[bytes]:
    records = [json.loads(line)["text"].encode() for line in (GOLDEN / f"{name}.jsonl").read_text().splitlines()]
    if as_recorded:
        return records
    body = b"".join(records)
    size = 1 if len(body) < 4000 else 61
    return [body[i : i + size] for i in range(0, len(body), size)]


def replay(chunks: list[bytes], end: str) -> HTTPServer:
    async def handler(request: Request, answer: Answer) -> None:
        match request.method, request.path:
            case "POST", "/execute":
                await answer.start()
                for chunk in chunks:
                    await answer.chunk(chunk)
                if end in ("end", "died"):
                    await answer.end()
                elif end != "dead":
                    await answer.gone.wait()
            case "GET", "/contexts":
                await answer.send(200, [{"id": "js", "language": "javascript"}, {"id": "c1", "language": "python"}])
            case "POST", "/contexts/c1/restart":
                await answer.send(200, None)
            case "GET", "/sandboxes/i1":
                await answer.send(200, {"sandboxID": "i1", "state": "running"})
            case _:
                await answer.send(404, {"message": "no"})

    return HTTPServer(handler)


def provider_at(server: HTTPServer, monkeypatch: pytest.MonkeyPatch) -> E2BProvider:
    monkeypatch.setenv("E2B_SANDBOX_URL", server.url)
    return E2BProvider("e2b_key", server.url)


def handle_at(server: HTTPServer, **secrets: str) -> ContainerHandle:
    hidden = {name: SecretStr(value) for name, value in {"access_token": "ea_token", **secrets}.items()}
    return ContainerHandle(id="i1", provider="e2b", endpoint=server.url, context="default", secrets=hidden)


def short(text: str, limit: int = 160) -> Any:
    return text if len(text) <= limit else [len(text), zlib.crc32(text.encode()), text[:40]]


def seen(result: CodeExecutionResult) -> dict[str, Any]:
    error = result.error and [result.error.name, short(result.error.value), short(result.error.traceback, 799)]
    results = []
    for raw, display in zip(result.results, result.displays, strict=True):
        names = [k for k in raw if k not in ("type", "extra", "is_main_result")]
        assert set(display.data) == {MIME[n] for n in names if n in MIME} | set(raw["extra"])
        assert all(display.data[MIME[n]] == raw[n] for n in names if n in MIME)
        results.append([sorted(names) + sorted(raw["extra"]), display.is_result, short(raw.get("text", ""))])
    return {
        "count": result.execution_count,
        "stdout": short(result.stdout),
        "stderr": short(result.stderr),
        "results": results,
        "error": error,
    }


def wanted(name: str) -> dict[str, Any]:
    nothing = {"count": None, "stdout": "", "stderr": "", "results": [], "error": None}
    return {**nothing, **{k: v for k, v in EXPECTED[name].items() if k != "end"}}


@pytest.mark.parametrize("as_recorded", [True, False], ids=["recorded", "bytewise"])
@pytest.mark.parametrize("name", [name for name, value in EXPECTED.items() if value["end"] in ("end", "died")])
async def test_a_whole_answer(name: str, as_recorded: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    end = EXPECTED[name]["end"]
    async with replay(chunks_of(name, as_recorded), end) as server:
        provider = provider_at(server, monkeypatch)
        try:
            result = await execution.run(provider, handle_at(server), "code")
        except KernelDiedError as error:
            told, result = "died", error.result
            assert ("this code was not run" in str(error)) == ("count" not in EXPECTED[name])  # noqa: PT017
        else:
            told = "end"
        assert told == end
        assert seen(result) == wanted(name)
        assert result.truncated is None
        (request,) = [r for r in server.requests if r.path == "/execute"]
        assert request.json() == {"code": "code"}
        await provider.aclose()


@pytest.mark.parametrize("name", [name for name, value in EXPECTED.items() if value["end"] == "running"])
async def test_code_that_runs_on_is_interrupted(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async with replay(chunks_of(name, True), "running") as server:
        provider, handle, builder, out = provider_at(server, monkeypatch), handle_at(server), ResultBuilder(), ""
        async for event in provider.run(handle, "code"):
            builder.add(event)
            out += event.text if isinstance(event, Stdout) else ""
            if isinstance(event, ExecutionCount | Stdout) and out == EXPECTED[name].get("stdout", ""):
                await provider.interrupt(handle)
        stopped = ["KeyboardInterrupt", "", "KeyboardInterrupt: the code was stopped"]
        assert seen(builder.result) == {**wanted(name), "error": stopped}
        assert event == End()
        await provider.aclose()


@pytest.mark.parametrize("name", [name for name, value in EXPECTED.items() if value["end"] == "unstarted"])
async def test_a_run_that_is_never_started_is_sent_once_more_and_then_the_kernel_restarted(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with replay(chunks_of(name, True), "unstarted") as server:
        provider, handle = provider_at(server, monkeypatch), handle_at(server)
        with pytest.raises(KernelDiedError, match="this code was not run"):
            await execution.run(provider, handle, "code")
        calls = [f"{r.method} {r.path}" for r in server.requests]
        assert calls == ["POST /execute", "POST /execute", "GET /contexts", "POST /contexts/c1/restart"]
        await provider.aclose()


async def test_silence_means_that_somebody_elses_code_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    async with replay(chunks_of("cancel_queued_b", True), "silent") as server:
        provider = provider_at(server, monkeypatch)
        with pytest.raises(SandboxBusyError, match="of another process"):
            await execution.run(provider, handle_at(server), "code")
        await provider.aclose()


async def test_an_answer_cut_before_its_first_byte_is_a_dead_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    async with replay(chunks_of("dead_ctx_run", True), "dead") as server:
        provider, handle = provider_at(server, monkeypatch), handle_at(server)
        with pytest.raises(KernelDiedError, match="this code was not run"):
            await execution.run(provider, handle, "code")
        await provider.aclose()


@pytest.mark.parametrize("end", ["dead", "end"], ids=["connection", "body"])
async def test_an_answer_without_its_end_was_cut(end: str, monkeypatch: pytest.MonkeyPatch) -> None:
    chunks = chunks_of("stream_sleep", True)[:-1]
    async with replay(chunks, end) as server:
        provider = provider_at(server, monkeypatch)
        with pytest.raises(OutputTruncatedError, match=r"before (its|the) end.* nothing was run again") as caught:
            await execution.run(provider, handle_at(server), "code")
        assert caught.value.result.stdout == EXPECTED["stream_sleep"]["stdout"]
        assert (caught.value.provider, caught.value.sandbox_id) == ("e2b", "i1")
        assert [r.path for r in server.requests] == ["/execute", "/sandboxes/i1"]
        await provider.aclose()


async def test_a_cut_before_the_first_byte_costs_no_kernel_that_still_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    dead, alive = replay([], "dead"), replay(chunks_of("empty_code", True), "end")

    async def handler(request: Request, answer: Answer) -> None:
        first = request.path == "/execute" and request.json() == {"code": "code"}
        await (dead if first else alive).handler(request, answer)

    async with HTTPServer(handler) as server:
        provider = provider_at(server, monkeypatch)
        with pytest.raises(OutputTruncatedError, match="was cut before its end"):
            await execution.run(provider, handle_at(server), "code")
        assert [r.path for r in server.requests] == ["/execute", "/execute", "/sandboxes/i1"]
        await provider.aclose()


async def test_output_without_end_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frames, "DRAIN_CAP", 100_000)
    monkeypatch.setattr(CodeInterpreter, "output_cap", 2**20)
    line = b'{"type": "stdout", "text": "%b", "timestamp": "t"}\n' % (b"x" * 1000)
    first = b'{"type": "number_of_executions", "execution_count": 1}\n'
    async with replay([first, *[line] * 3000], "running") as server:
        provider = provider_at(server, monkeypatch)
        result = await execution.run(provider, handle_at(server), "code")
        assert result.truncated == "output beyond 1 MiB was left out, and the code was stopped"
        assert len(result.stdout) == (2**20 - len(first)) // len(line) * 1000
        await provider.aclose()


async def test_a_stop_counts_while_the_run_waits_for_the_kernel_to_settle(monkeypatch: pytest.MonkeyPatch) -> None:
    async with replay(chunks_of("disconnect", True), "running") as server:
        provider, handle = provider_at(server, monkeypatch), handle_at(server)
        events = provider.run(handle, "first")
        await anext(events)
        monkeypatch.setattr(CodeInterpreter, "timing", Timing(settle=0.3))
        await events.aclose()
        second = asyncio.ensure_future(execution.run(provider, handle, "second"))
        await asyncio.sleep(0)
        assert _KERNELS["i1"].current is not None
        await provider.interrupt(handle)
        error = (await second).error
        assert error is not None
        assert error.name == "KeyboardInterrupt"
        assert [r.json() for r in server.requests if r.path == "/execute"] == [{"code": "first"}]
        await provider.aclose()


async def test_a_line_that_goes_dead_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(CodeInterpreter, "timing", Timing(settle=0, idle=0.1))
    async with replay(chunks_of("disconnect", True), "running") as server:
        provider = provider_at(server, monkeypatch)
        with pytest.raises(ProviderError, match="Nothing came from e2b sandbox i1"):
            await execution.run(provider, handle_at(server), "code")
        await provider.aclose()


async def test_values_of_the_environment_do_not_show_in_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    async with replay(chunks_of("realenv_first_run_leak", True), "end") as server:
        provider = provider_at(server, monkeypatch)
        handle = handle_at(server, env_vars=json.dumps({"MY_SECRET": "s3cr3t-value"}))
        result = await execution.run(provider, handle, "code")
        assert result.error is not None
        assert "os.environ['MY_SECRET'] = '***'" in result.error.traceback
        assert "s3cr3t-value" not in result.model_dump_json()
        await provider.aclose()


@pytest.mark.parametrize("name", ["err_zerodiv", "err_chained", "input", "err_syntax"])
def test_a_traceback_with_its_lines_stays_as_it_is(name: str) -> None:
    whole = EXPECTED[name]["error"][2]
    assert restore_lines(whole) == whole


async def test_many_small_outputs_keep_their_order(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = [b'{"type": "stdout", "text": "%d\\n", "timestamp": "t"}\n' % i for i in range(2000)]
    body = [b'{"type": "number_of_executions", "execution_count": 1}\n', *lines, b'{"type": "end_of_execution"}\n']
    async with replay(body, "end") as server:
        provider = provider_at(server, monkeypatch)
        result = await execution.run(provider, handle_at(server), "code")
        assert result.stdout == "".join(f"{i}\n" for i in range(2000))
        await provider.aclose()


async def test_a_result_of_twelve_megabytes_is_cut_and_the_run_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    body = [
        b'{"type": "number_of_executions", "execution_count": 1}\n{"type": "stdout", "text": "',
        *[b"x" * 1_000_000] * 12,
        b'", "timestamp": "t"}\n{"type": "result", "text": "1", "extra": {}, "is_main_result": true}\n',
        b'{"type": "error", "name": "E", "value": "v", "traceback": "t"}\n{"type": "end_of_execution"}\n',
    ]
    async with replay(body, "end") as server:
        provider = provider_at(server, monkeypatch)
        result = await execution.run(provider, handle_at(server), "code")
        assert 10_000_000 < len(result.stdout) <= 10 * 1024 * 1024
        assert set(result.stdout) == {"x"}
        assert result.truncated == "output beyond 10 MiB was left out"
        assert result.error is not None
        await provider.aclose()


def exchanging(*names: str) -> HTTPServer:
    """A server that gives recorded answers, each to the request it was recorded for; others get an empty run."""
    left = list(names)

    async def handler(request: Request, answer: Answer) -> None:
        for name in left:
            recorded = EXCHANGES[name]
            method, _, path = recorded["request"].partition(" ")
            if (request.method, request.path) == (method, path.partition("?")[0]):
                left.remove(name)
                return await answer.send(recorded["status"], recorded["body"].encode(), recorded["headers"])
        await answer.start()
        await answer.chunk(b'{"type": "number_of_executions", "execution_count": 1}\n{"type": "end_of_execution"}\n')
        return await answer.end()

    return HTTPServer(handler)


def call(provider: E2BProvider, name: str, server: HTTPServer) -> Awaitable[Any]:
    """What makes the request that the exchange `name` answers."""
    handle = handle_at(server)
    match EXCHANGES[name]["request"].split(" "):
        case "POST", "/sandboxes":
            return provider.create(SandboxOptions())
        case "GET", "/v2/sandboxes" | "/v2/sandboxes?limit=1":
            return provider.list_sandboxes()
        case "POST", "/execute":
            return execution.run(provider, handle, "1")
        case "DELETE", path:
            handle.id = path.rpartition("/")[2]
            return provider.delete(handle)
        case "GET", path:
            handle.id = path.rpartition("/")[2]
            return provider.info(handle)
        case _, path:
            return provider.connect(path.split("/")[2])


async def test_a_recorded_creation_and_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    async with exchanging("shim_create", "shim_connect_running") as server:
        provider = provider_at(server, monkeypatch)
        made, taken = await call(provider, "shim_create", server), await call(provider, "shim_connect_running", server)
        assert (made.id, made.domain, made.secret("traffic_token")) == ("i4hxv0cgypx22nidvj6z5", "e2b.app", None)
        assert made.secret("access_token") == "ea_43b6087d569e076c5d0fe36a1d79af1b"
        assert (taken.id, taken.domain) == ("i5avwjv3m0wualmaf982w", "e2b.app")
        assert taken.secret("access_token") == "ea_b92ae9d3c42c03993b066cd91dc990d6"
        assert taken.secret("traffic_token") == "ta_de09798b967fdf2a1f169296169a158c"
        await provider.aclose()


async def test_recorded_details_and_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(EXCHANGES, "last page", {**EXCHANGES["shim_list_v2"], "headers": {}})
    async with exchanging("shim_get", "shim_list_v2", "last page", "shim_delete") as server:
        provider = provider_at(server, monkeypatch)
        info = await call(provider, "shim_get", server)
        assert (info.id, info.state, info.memory_bytes) == ("i5avwjv3m0wualmaf982w", "running", None)
        assert info.expires_at == datetime(2026, 11, 29, 13, 10, 13, 23638, UTC)
        assert [i.id for i in await call(provider, "shim_list_v2", server)] == ["i4hxv0cgypx22nidvj6z5"] * 2
        assert [r.query.get("nextToken") for r in server.requests if r.path == "/v2/sandboxes"] == [None, "MQ=="]
        assert await call(provider, "shim_delete", server) is True
        await provider.aclose()


@pytest.mark.parametrize(
    ("name", "kind", "said"),
    [
        ("shim_401_no_key", AuthenticationError, "authorization header is missing"),
        ("shim_401_bad_key", AuthenticationError, "Invalid API key, please visit https://e2b.dev/docs/api-key"),
        ("shim_400_bad_id", ProviderError, "gave 400: Invalid sandbox ID"),
        ("shim_404_template", SandboxCreationError, "template 'nope' not found"),
        ("shim_edge_no_traffic_token", AuthenticationError, "Sandbox is secured with traffic access token"),
        ("shim_edge_bad_traffic_token", AuthenticationError, "Sandbox is secured with traffic access token"),
        ("shim_edge_port_closed", ProviderError, "The sandbox is running but port is not open"),
        ("ctx_unknown", KernelDiedError, "this code was not run"),
        ("bad_env_type", ProviderError, "Input should be a valid string"),
    ],
)
async def test_recorded_refusals(name: str, kind: type[Exception], said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async with exchanging(name) as server:
        provider = provider_at(server, monkeypatch)
        with pytest.raises(kind, match=said) as caught:
            await call(provider, name, server)
        assert "\n" not in str(caught.value)
        await provider.aclose()


async def test_a_recorded_absence(monkeypatch: pytest.MonkeyPatch) -> None:
    gone = {**EXCHANGES["shim_404"], "request": "GET /sandboxes/i1"}
    monkeypatch.setitem(EXCHANGES, "gone", gone)
    async with exchanging("shim_edge_not_found", "gone", "shim_404") as server:
        provider = provider_at(server, monkeypatch)
        with pytest.raises(SandboxLostError):
            await call(provider, "shim_edge_not_found", server)
        assert await call(provider, "shim_404", server) is False
        await provider.aclose()


async def test_a_recorded_rate_limit_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    async with exchanging("shim_429", "shim_create") as server:
        provider = provider_at(server, monkeypatch)
        assert (await call(provider, "shim_create", server)).id == "i4hxv0cgypx22nidvj6z5"
        assert [r.path for r in server.requests] == ["/sandboxes", "/sandboxes", "/execute"]
        await provider.aclose()


async def test_a_kernel_that_cannot_be_restarted_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    restart = {
        **EXCHANGES["dead_ctx_restart"],
        "request": "POST /contexts/c791fcbe-9bd8-4df9-827f-951a9804e87e/restart",
    }
    monkeypatch.setitem(EXCHANGES, "restart", restart)
    async with exchanging("ctx_list", "restart", "ctx_create") as server:
        provider, handle = provider_at(server, monkeypatch), handle_at(server)
        await provider.restart(handle)
        await execution.run(provider, handle, "1")
        runs = [r.json() for r in server.requests if r.path == "/execute"]
        assert [run["context_id"] for run in runs] == ["ce183991-f5f0-4fd3-81f9-ac0e8f4225d5"] * 2
        assert runs[1]["code"] == "1"
        await provider.aclose()
