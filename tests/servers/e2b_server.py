"""e2b on one port of this machine: control plane, edge, envd and the template's code server, with real kernels behind.

It is shaped after e2b's published specification and source, drops what the real code server drops, and has its bugs:
variables are pasted into the first run as code, updates and clears vanish, tracebacks lose line breaks, and a run that
arrives too early after a closed connection lies for ever.

    with e2b_server() as server:            # a thread; E2B_API_KEY, E2B_API_URL and E2B_SANDBOX_URL are set inside
        ...run_code("e2b", ...), %%sandbox -p e2b, or the official SDK...

`server.boxes` are the sandboxes; `server.lose(id)`, `server.kill_kernel(id)` and `server.refuse` make trouble.
Without kernels (`with_kernels=False`) every run is empty.
"""

# ruff: noqa: ASYNC240, RET503
from __future__ import annotations

import asyncio
import base64
import contextlib
import email.parser
import email.policy
import json
import os
import re
import secrets
import shutil
import tempfile
from collections.abc import Coroutine, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from unittest import mock

from .http_server import Answer, HTTPServer, Request, in_thread
from .kernel import Kernel

API_KEY = "e2b_" + "0" * 40
TEMPLATES = {"code-interpreter-v1", "base"}
CODE, ENVD = "49999", "49983"
_FIELDS = {"text/plain": "text", "text/html": "html", "text/markdown": "markdown", "image/svg+xml": "svg",
           "image/png": "png", "image/jpeg": "jpeg", "application/pdf": "pdf", "text/latex": "latex",
           "application/json": "json", "application/javascript": "javascript"}  # fmt: skip


@dataclass
class Context:
    id: str
    language: str
    kernel: Kernel
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    env: dict[str, str] | None = None


@dataclass
class Box:
    id: str
    metadata: dict[str, str]
    env: dict[str, str]
    access_token: str
    traffic_token: str | None
    home: str
    ends: datetime
    started: datetime = field(default_factory=lambda: datetime.now(UTC))
    state: str = "running"
    contexts: dict[str, Context] = field(default_factory=dict)
    lost: asyncio.Event = field(default_factory=asyncio.Event)
    seen_tokens: list[str | None] = field(default_factory=list)


class E2BServer(HTTPServer):
    """The server; `url` is its base."""

    def __init__(self, *, keepalive: float = 5.0, with_kernels: bool = True) -> None:
        super().__init__(self._route)
        self.boxes: dict[str, Box] = {}
        self.bodies: list[dict[str, Any]] = []
        self.refuse: list[tuple[str, int, Any, dict[str, str]]] = []
        """Answers to give first: (part of the path, status, body, headers)."""
        self.not_listening = 0
        """How often the code port is still closed."""
        self._keepalive = keepalive
        self._with_kernels = with_kernels
        self._killed: set[asyncio.Task[None]] = set()
        self._loop: asyncio.AbstractEventLoop

    async def __aenter__(self) -> E2BServer:
        self._loop = asyncio.get_running_loop()
        self.created = asyncio.Event()
        await super().__aenter__()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await super().__aexit__(*exc)
        for box in list(self.boxes.values()):
            await self._end(box)
        await asyncio.gather(*self._killed)

    def lose(self, sandbox_id: str) -> None:
        """The sandbox is gone, as when its lifetime ended; its connections are cut."""
        self._loop.call_soon_threadsafe(self._lose, self.boxes.pop(sandbox_id))

    def _lose(self, box: Box) -> None:
        box.lost.set()
        self._keep(asyncio.ensure_future(self._end(box)))

    def kill_kernel(self, sandbox_id: str) -> None:
        """The kernel dies, as of too much memory."""
        self.boxes[sandbox_id].contexts["default"].kernel.kill()

    def _keep(self, task: asyncio.Task[None]) -> None:
        self._killed.add(task)
        task.add_done_callback(self._killed.discard)

    async def _end(self, box: Box) -> None:
        for context in box.contexts.values():
            await context.kernel.stop()
        shutil.rmtree(box.home, ignore_errors=True)

    async def _route(self, request: Request, answer: Answer) -> None:
        for i, (part, status, body, headers) in enumerate(self.refuse):
            if part in f"{request.method} {request.path}":
                del self.refuse[i]
                return await answer.send(status, body, headers)
        if "e2b-sandbox-id" in request.headers:
            return await self._edge(request, answer)
        return await self._control(request, answer)

    # The control plane

    async def _control(self, request: Request, answer: Answer) -> None:
        if request.headers.get("x-api-key") != API_KEY:
            return await _error(answer, 401, f"Invalid API key {request.headers.get('x-api-key')!r}, please check it")
        match request.method, request.path.strip("/").split("/"):
            case "POST", ["sandboxes"] | ["v2", "sandboxes"]:
                await self._create(request, answer)
            case "GET", ["v2", "sandboxes"]:
                await self._list(request, answer)
            case method, ["sandboxes", sandbox_id, *rest] | ["v2", "sandboxes", sandbox_id, *rest]:
                if (box := self.boxes.get(sandbox_id)) is None:
                    return await _error(
                        answer, 404, f"Sandbox \"{sandbox_id}\" doesn't exist or you don't have access to it"
                    )
                await self._sandbox(method, rest, box, request, answer)
            case _:
                await _error(answer, 404, "no such route")

    async def _create(self, request: Request, answer: Answer) -> None:
        body = request.json()
        self.bodies.append(body)
        if body.get("templateID") not in TEMPLATES:
            return await _error(answer, 404, f"template '{body.get('templateID')}' not found")
        private = (body.get("network") or {}).get("allowPublicTraffic") is False
        box = Box(
            id="i" + secrets.token_hex(10),
            metadata=body.get("metadata") or {},
            env=body.get("envVars") or {},
            access_token="ea_" + secrets.token_hex(16),
            traffic_token="ta_" + secrets.token_hex(16) if private else None,
            home=tempfile.mkdtemp(prefix="e2b-home-"),
            ends=_in(body.get("timeout", 15)),
        )
        if self._with_kernels:
            box.contexts["default"] = await self._context(box)
        self.boxes[box.id] = box
        self.created.set()
        return await answer.send(201, _shown(box))

    async def _list(self, request: Request, answer: Answer) -> None:
        boxes, at = list(self.boxes.values()), int(request.query.get("nextToken", 0))
        page = boxes[at : at + 2]
        headers = {"X-Next-Token": str(at + 2)} if at + 2 < len(boxes) else {}
        await answer.send(200, [_detail(box) for box in page], headers)

    async def _sandbox(self, method: str, rest: list[str], box: Box, request: Request, answer: Answer) -> None:
        match method, rest:
            case "GET", []:
                await answer.send(200, _detail(box))
            case "DELETE", []:
                # The answer does not wait for the machine to be gone.
                del self.boxes[box.id]
                self._lose(box)
                await answer.send(204)
            case "POST", ["connect"]:
                box.state = "running"
                box.ends = max(box.ends, _in(request.json()["timeout"]))
                await answer.send(200, _shown(box))
            case "POST", ["timeout"]:
                box.ends = _in(request.json()["timeout"])
                await answer.send(204)
            case "GET", ["metrics"]:
                await answer.send(200, [{"memUsed": 123456789, "memTotal": 512 << 20}])
            case _:
                await _error(answer, 404, "no such route")

    # The edge

    async def _edge(self, request: Request, answer: Answer) -> None:
        sandbox_id, port = request.headers["e2b-sandbox-id"], request.headers.get("e2b-sandbox-port")
        if (box := self.boxes.get(sandbox_id)) is None or box.state != "running":
            body = {"sandboxId": sandbox_id, "message": "The sandbox was not found", "code": 502}
            return await answer.send(502, body)
        if port == ENVD:
            return await self._envd(box, request, answer)
        if box.traffic_token and request.headers.get("e2b-traffic-access-token") != box.traffic_token:
            return await answer.send(403, {"sandboxId": sandbox_id, "message": "Sandbox is secured", "code": 403})
        if self.not_listening or port != CODE:
            self.not_listening -= 1
            message = "The sandbox is running but port is not open"
            return await answer.send(502, {"sandboxId": sandbox_id, "message": message, "port": port, "code": 502})
        box.seen_tokens.append(request.headers.get("x-access-token"))
        match request.method, request.path.strip("/").split("/"):
            case "POST", ["execute"]:
                await self._until_lost(box, self._execute(box, request, answer))
            case "GET", ["contexts"]:
                await answer.send(200, [{"id": c.id, "language": c.language} for c in box.contexts.values()])
            case "POST", ["contexts"]:
                context = await self._context(box)
                box.contexts[context.id] = context
                await answer.send(200, {"id": context.id, "language": context.language, "cwd": "/home/user"})
            case method, ["contexts", context_id, *_]:
                found = next((c for c in box.contexts.values() if c.id == context_id), None)
                if found is None:
                    return await answer.send(404, f"Context {context_id} not found".encode())
                if method == "POST":
                    await found.kernel.restart()
                    found.env = None
                await answer.send(200, None)

    async def _until_lost(self, box: Box, work: Coroutine[Any, Any, None]) -> None:
        running, lost = asyncio.ensure_future(work), asyncio.ensure_future(box.lost.wait())
        try:
            await asyncio.wait({running, lost}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            lost.cancel()
            if not running.done():
                running.cancel()
        await asyncio.gather(running, return_exceptions=box.lost.is_set())

    async def _context(self, box: Box) -> Context:
        kernel = Kernel("--InteractiveShell.colors=NoColor", "--PlainTextFormatter.max_seq_length=0", cwd=box.home)
        await kernel.start()
        return Context(secrets.token_hex(8), "python", kernel)

    # The code server of the template

    async def _execute(self, box: Box, request: Request, answer: Answer) -> None:
        body = request.json()
        wanted = body.get("context_id")
        context = next((c for c in box.contexts.values() if c.id == wanted), None) if wanted else None
        if wanted and context is None:
            return await answer.send(404, f"Context {wanted} not found".encode())
        await answer.start()
        if not self._with_kernels:
            await answer.chunk(
                b'{"type": "number_of_executions", "execution_count": 1}\n{"type": "end_of_execution"}\n'
            )
            return await answer.end()
        context = context or box.contexts["default"]
        code = body["code"]
        queued = asyncio.ensure_future(context.lock.acquire())
        gone = asyncio.ensure_future(answer.gone.wait())
        try:
            await asyncio.wait({queued, gone}, return_when=asyncio.FIRST_COMPLETED)
            if queued.done():
                if context.env is None:
                    context.env = _fetched_env(box, request)
                    code = "\n".join([_pasted(k, v) for k, v in context.env.items()] + [code])
                await self._stream(context, code, answer, gone)
        finally:
            gone.cancel()
            if queued.done():
                context.lock.release()
            else:
                queued.cancel()

    async def _stream(self, context: Context, code: str, answer: Answer, gone: asyncio.Task[bool]) -> None:
        messages = context.kernel.execute(code)
        died = asyncio.ensure_future(context.kernel.died.wait())
        input_seen = False
        message = asyncio.ensure_future(anext(messages))
        try:
            while True:
                done, _ = await asyncio.wait(
                    {message, gone, died}, timeout=self._keepalive, return_when=asyncio.FIRST_COMPLETED
                )
                if gone in done:
                    return await context.kernel.interrupt()
                if message in done:
                    got = message.result()
                    message = asyncio.ensure_future(anext(messages))
                    input_seen = input_seen or got["msg_type"] == "execute_input"
                    if (event := _event(got)) is not None:
                        await answer.chunk(json.dumps(event).encode() + b"\n")
                    # `execute_reply` with status aborted is not understood, and `idle` counts only after the input.
                    if input_seen and got["content"].get("execution_state") == "idle":
                        break
                elif died in done:
                    await context.kernel.restart()
                    died_event = {"type": "error", "name": "ContextRestarting", "value": "Context was restarted"}
                    await answer.chunk(json.dumps({**died_event, "traceback": ""}).encode() + b"\n")
                    break
                elif not done:
                    await answer.chunk(b'{"type": "keepalive"}\n')
            await answer.chunk(b'{"type": "end_of_execution"}\n')
            await answer.end()
        finally:
            died.cancel()
            message.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await message
            await messages.aclose()  # type: ignore[attr-defined]

    # envd

    async def _envd(self, box: Box, request: Request, answer: Answer) -> None:
        if request.path == "/health":
            return await answer.send(204)
        if request.headers.get("x-access-token") != box.access_token:
            return await _error(answer, 401, "unauthorized, please provide a valid access token or method signing")
        if request.path == "/filesystem.Filesystem/ListDir":
            return await self._list_dir(box, request, answer)
        path = Path(box.home) / request.query["path"]
        if request.method == "GET":
            if not path.exists():
                return await _error(answer, 404, f"path '{path}' does not exist")
            if path.is_dir():
                return await _error(answer, 400, f"path '{path}' is a directory")
            return await answer.send(200, path.read_bytes(), {"Content-Type": "application/octet-stream"})
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(_uploaded(request))
        return await answer.send(200, [{"name": path.name, "type": "file", "path": str(path)}])

    async def _list_dir(self, box: Box, request: Request, answer: Answer) -> None:
        assert base64.b64decode(request.headers["authorization"].removeprefix("Basic ")) == b"user:"
        path = Path(os.path.normpath(Path(box.home) / request.json()["path"]))
        if not path.is_dir():
            return await answer.send(404, {"code": "not_found", "message": f"directory not found: {path}"})
        entries = []
        for found in path.iterdir():
            kind = "FILE_TYPE_DIRECTORY" if found.is_dir() else "FILE_TYPE_FILE"
            entry = {"name": found.name, "type": kind, "path": str(found), "modifiedTime": "2026-11-29T12:00:00Z"}
            if size := found.stat().st_size:
                entry["size"] = str(size)
            entries.append(entry)
        return await answer.send(200, {"entries": entries} if entries else {})


def _fetched_env(box: Box, request: Request) -> dict[str, str]:
    if request.headers.get("x-access-token") == box.access_token:
        return box.env
    return {"code": "401", "message": "unauthorized, please provide a valid access token or method signing"}


def _pasted(name: str, value: str) -> str:
    return f"import os; os.environ['{name}'] = '{value}'"


def _event(message: dict[str, Any]) -> dict[str, Any] | None:
    content, now = message["content"], datetime.now(UTC).isoformat()
    match message["msg_type"]:
        case "execute_input":
            return {"type": "number_of_executions", "execution_count": content["execution_count"]}
        case "stream":
            return {"type": content["name"], "text": content["text"], "timestamp": now}
        case "error":
            error = {"type": "error", "name": content["ename"], "value": content["evalue"]}
            return {**error, "traceback": "".join(content["traceback"])}
        case "execute_result" | "display_data" as kind:
            return _result(dict(content["data"]), kind == "execute_result")
    return None


def _result(data: dict[str, Any], is_main: bool) -> dict[str, Any]:
    event: dict[str, Any] = {"type": "result"}
    text = data.get("text/plain")
    if text and text[0] == text[-1] and text[0] in "'\"":
        data["text/plain"] = text[1:-1]
    for mime, name in _FIELDS.items():
        if mime in data:
            event[name] = data.pop(mime)
    return {**event, "extra": data, "is_main_result": is_main}


def _uploaded(request: Request) -> bytes:
    if not request.headers["content-type"].startswith("multipart/"):
        return request.body
    head = f"Content-Type: {request.headers['content-type']}\r\n\r\n".encode()
    parsed = email.parser.BytesParser(policy=email.policy.HTTP).parsebytes(head + request.body)
    part = next(part for part in parsed.iter_parts() if re.search(r'name="?file"?', str(part["content-disposition"])))
    return bytes(part.get_payload(decode=True))


def _in(seconds: float) -> datetime:
    return datetime.now(UTC) + timedelta(seconds=seconds)


def _time(moment: datetime) -> str:
    return moment.strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def _shown(box: Box) -> dict[str, Any]:
    shown = {"templateID": "nlhz8vlwyupq845jsdg9", "sandboxID": box.id, "clientID": "6532622b", "envdVersion": "0.6.4"}
    tokens = {"envdAccessToken": box.access_token} | (
        {"trafficAccessToken": box.traffic_token} if box.traffic_token else {}
    )
    return {**shown, "alias": "code-interpreter-v1", "domain": None, **tokens}


def _detail(box: Box) -> dict[str, Any]:
    times = {"startedAt": _time(box.started), "endAt": _time(box.ends)}
    return {"sandboxID": box.id, "templateID": "t", "metadata": box.metadata, "state": box.state, **times}


async def _error(answer: Answer, status: int, message: str) -> None:
    await answer.send(status, {"code": status, "message": message})


@contextlib.contextmanager
def e2b_server(**options: Any) -> Iterator[E2BServer]:
    """The server in a thread; inside the block the environment points everything that speaks e2b at it."""
    with in_thread(lambda: E2BServer(**options)) as server:
        settings = {"E2B_API_KEY": API_KEY, "E2B_API_URL": server.url, "E2B_SANDBOX_URL": server.url}
        with mock.patch.dict(os.environ, settings):
            yield server
