"""Each recorded answer of e2b's template server, replayed over HTTP, is read as it should be.

`golden/e2b/expected.json` says what a user has to see; texts over 160 characters are there as [length, CRC, beginning].
Its `end`: the run ends; the kernel died; the code still runs (and is interrupted by the test); the server lets the run
lie; it is silent; or it cuts the answer before the first byte.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr
from servers.http_server import Answer, HTTPServer, Request

from ipy_sandbox.errors import KernelDiedError, SandboxBusyError
from ipy_sandbox.models import CodeExecutionResult, ContainerHandle, End, ExecutionCount, ResultBuilder, Stdout
from ipy_sandbox.sandbox import execution
from ipy_sandbox.sandbox.e2b import E2BProvider
from ipy_sandbox.sandbox.e2b_code import _KERNELS, CodeInterpreter, Timing

pytestmark = pytest.mark.anyio

GOLDEN = Path(__file__).parent.parent / "golden" / "e2b"
EXPECTED: dict[str, dict[str, Any]] = json.loads((GOLDEN / "expected.json").read_text())
MIME = {"text": "text/plain", "html": "text/html", "markdown": "text/markdown", "svg": "image/svg+xml",
        "png": "image/png", "jpeg": "image/jpeg", "pdf": "application/pdf", "latex": "text/latex",
        "json": "application/json", "javascript": "application/javascript"}  # fmt: skip


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(CodeInterpreter, "timing", Timing(settle=0, first_byte=0.5, unstarted=0))
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


async def test_values_of_the_environment_do_not_show_in_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    async with replay(chunks_of("realenv_first_run_leak", True), "end") as server:
        provider = provider_at(server, monkeypatch)
        handle = handle_at(server, env_vars=json.dumps({"MY_SECRET": "s3cr3t-value"}))
        result = await execution.run(provider, handle, "code")
        assert result.error is not None
        assert "os.environ['MY_SECRET'] = '***'" in result.error.traceback
        assert "s3cr3t-value" not in result.model_dump_json()
        await provider.aclose()


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
