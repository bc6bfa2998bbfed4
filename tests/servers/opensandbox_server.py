"""An OpenSandbox server for tests: its lifecycle API, and an execd with real kernels behind it.

    with opensandbox() as server:       # OPEN_SANDBOX_API_BASE names it in the block
        ...

It starts in some milliseconds; a sandbox's kernel starts with its first code.

It does what the real servers were seen to do, their bugs included: of a kernel's messages only streams, errors and
execute_results come through; `execution_complete` comes first and means nothing; the stream ends at a poll after an
execution count or an error was seen, whatever is still on its way; a busy context says so in the stream; a client that
leaves stops nothing; a dead kernel is never told, only keepalives go on; a blank first cell hangs.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
import os
import shutil
import subprocess
import tempfile
import threading
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import uvicorn
from jupyter_client.asynchronous import AsyncKernelClient
from jupyter_client.manager import AsyncKernelManager
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Mount, Route

Emit = Callable[[dict[str, Any]], None]


def go_json(value: object) -> bytes:
    """JSON as Go writes it: U+0085 stays, some others are escaped."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    for char in "<>&\u2028\u2029":
        text = text.replace(char, f"\\u{ord(char):04x}")
    return text.encode("utf-8", "replace")


def _parts(body: bytes, boundary: bytes) -> list[tuple[bytes, bytes]]:
    """Head and content of each part of a multipart body."""
    between = body.split(b"--" + boundary)[1:-1]
    heads_and_contents = [part.removeprefix(b"\r\n").split(b"\r\n\r\n", 1) for part in between]
    return [(head, content.removesuffix(b"\r\n")) for head, content in heads_and_contents]


def refuse(status: int, code: str, message: str, headers: dict[str, str] | None = None) -> Response:
    """The servers' error envelope."""
    return JSONResponse({"code": code, "message": message}, status, headers)


@dataclass
class Context:
    """A kernel in a sandbox, as execd keeps it."""

    id: str
    manager: AsyncKernelManager
    client: AsyncKernelClient
    busy: bool = False


@dataclass
class Box:
    """A sandbox."""

    id: str
    body: dict[str, Any]
    directory: Path
    expires_at: datetime
    state: str = "Running"
    reason: str = ""
    polls: int = 0
    contexts: dict[str, Context] = field(default_factory=dict)
    default: str | None = None
    starting: asyncio.Lock = field(default_factory=asyncio.Lock)

    @property
    def expired(self) -> bool:
        """Whether its lifetime is over."""
        return datetime.now(UTC) > self.expires_at


class OpenSandboxServer:
    """One server on a free loopback port, in a thread of its own.

    Attributes to set before or between requests:
        api_key: if set, what the lifecycle API asks for.
        ping, poll: seconds between keepalives (3 in execd), and between looks for the end (0.1).
        lag: seconds by which outputs are later than the kernel's reply: they get lost.
        pending: polls in which a new sandbox is still Pending; then it is Running, or Failed with `failure`.
        unready: how often the execd of a new sandbox answers 502 for Jupyter.
        prefix: the path before execd in its endpoint; `own` for the whole host, given out as /proxy/44772.
        endpoint_headers: what execd asks for, given out with the endpoint.
        scripted: (method, path suffix) → answers to give once each, before the real ones.

    Attributes to read:
        requests: every request as (method, path); boxes: the sandboxes alive, by id.
    """

    def __init__(self, *, api_key: str | None = None, ping: float = 0.3, poll: float = 0.05) -> None:
        self.api_key = api_key
        self.ping = ping
        self.poll = poll
        self.lag = 0.0
        self.pending = 0
        self.failure: str | None = None
        self.unready = 0
        self.prefix = "/execd"
        self.endpoint_headers: dict[str, str] = {}
        self.scripted: dict[tuple[str, str], list[Response | Callable[[], Awaitable[Response]]]] = {}
        self.requests: list[tuple[str, str]] = []
        self.received: list[Request] = []
        self.boxes: dict[str, Box] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._root = Path(tempfile.mkdtemp(prefix="opensandbox-test-"))

    @property
    def host(self) -> str:
        """Host and port."""
        host, port = self._server.servers[0].sockets[0].getsockname()[:2]
        return f"{host}:{port}"

    @property
    def api_base(self) -> str:
        """What belongs into OPEN_SANDBOX_API_BASE."""
        return f"http://{self.host}"

    def __enter__(self) -> OpenSandboxServer:
        app = Starlette(routes=self._routes(), lifespan=self._lifespan)
        config = uvicorn.Config(self._recording(app), host="127.0.0.1", port=0, log_level="critical", ws="none")
        self._server = uvicorn.Server(config)
        # The kernels look for a process of that name.
        execd = self._root / "execd"
        execd.symlink_to(shutil.which("sleep") or "/bin/sleep")
        self._execd = subprocess.Popen([str(execd), "infinity"])
        self._thread = threading.Thread(target=self._server.run, daemon=True)
        self._thread.start()
        while not self._server.started:
            if not self._thread.is_alive():
                raise RuntimeError("the test server did not start")
            time.sleep(0.01)
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.do(self._end_all)
        # Not gracefully: some streams would go on for ever.
        self._server.should_exit = self._server.force_exit = True
        self._thread.join()
        self._execd.kill()
        self._execd.wait()
        shutil.rmtree(self._root, ignore_errors=True)

    @contextlib.asynccontextmanager
    async def _lifespan(self, app: Starlette) -> AsyncIterator[None]:
        self._loop = asyncio.get_running_loop()
        yield

    async def _end_all(self) -> None:
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await asyncio.gather(*(self._end(box) for box in list(self.boxes.values())))

    def _recording(self, app: Starlette) -> Any:
        async def recorded(scope: Any, receive: Any, send: Any) -> None:
            if scope["type"] == "http":
                self.requests.append((scope["method"], scope["path"]))
                self.received.append(Request(scope))
            await app(scope, receive, send)

        return recorded

    def do(self, function: Callable[[], Awaitable[Any]]) -> Any:
        """Run a coroutine function on the server's loop and wait for it."""

        async def call() -> Any:
            return await function()

        return asyncio.run_coroutine_threadsafe(call(), self._loop).result(10)

    def kill(self, sandbox_id: str) -> None:
        """Take the sandbox away, as when its lifetime ends: its connections break."""
        self.do(functools.partial(self._end, self.boxes[sandbox_id]))

    def answer(self, method: str, suffix: str, *responses: Response | Callable[[], Awaitable[Response]]) -> None:
        """Give `responses`, once each, to the next requests of that method whose path ends with `suffix`."""
        self.scripted.setdefault((method, suffix), []).extend(responses)

    def count(self, method: str, suffix: str) -> int:
        """How many requests of that kind came."""
        return sum(m == method and path.endswith(suffix) for m, path in self.requests)

    def _routes(self) -> list[Route | Mount]:
        lifecycle: list[Route | Mount] = [
            self._route("/sandboxes", self._create, "POST"),
            self._route("/sandboxes", self._list, "GET"),
            self._route("/sandboxes/{id}", self._get, "GET"),
            self._route("/sandboxes/{id}", self._delete, "DELETE"),
            self._route("/sandboxes/{id}/renew-expiration", self._renew, "POST"),
            self._route("/sandboxes/{id}/endpoints/{port:int}", self._endpoint, "GET"),
            Mount("/sandboxes/{id}/proxy/44772", routes=self._execd_routes()),
        ]
        return [
            Mount("/v1", routes=lifecycle),
            Mount("/execd/{id}", routes=self._execd_routes()),
            *self._execd_routes(),
        ]

    def _execd_routes(self) -> list[Route | Mount]:
        return [
            self._route("/ping", self._ping, "GET"),
            self._route("/code", self._code, "POST"),
            self._route("/code", self._interrupt, "DELETE"),
            self._route("/code/context", self._new_context, "POST"),
            self._route("/code/contexts", self._contexts, "GET"),
            self._route("/code/contexts", self._delete_contexts, "DELETE"),
            self._route("/code/contexts/{context}", self._delete_context, "DELETE"),
            self._route("/proxy/44771/api", self._jupyter, "GET"),
            self._route("/files/info", self._file_info, "GET"),
            self._route("/files/upload", self._upload, "POST"),
            self._route("/files/download", self._download, "GET"),
            self._route("/directories/list", self._list_directory, "GET"),
            self._route("/command", self._command, "POST"),
        ]

    def _route(self, path: str, handler: Callable[..., Awaitable[Response]], method: str) -> Route:
        lifecycle = path.startswith("/sandboxes")

        async def handle(request: Request) -> Response:
            for (wanted, suffix), answers in self.scripted.items():
                if request.method == wanted and request.url.path.endswith(suffix) and answers:
                    answer = answers.pop(0)
                    return answer if isinstance(answer, Response) else await answer()
            if lifecycle and self.api_key:
                key = request.headers.get("OPEN-SANDBOX-API-KEY")
                if key != self.api_key:
                    which = "INVALID" if key else "MISSING"
                    return refuse(401, f"{which}_API_KEY", "Authentication credentials are missing or invalid.")
            if lifecycle and "id" not in request.path_params:
                return await handler(request)
            box = self._box(request)
            if box is None:
                message = f"Sandbox {request.path_params.get('id')} not found."
                return refuse(404, "DOCKER::SANDBOX_NOT_FOUND", message)
            if not lifecycle and any(request.headers.get(n) != v for n, v in self.endpoint_headers.items()):
                return JSONResponse({"error": "Unauthorized: invalid or missing header X-EXECD-ACCESS-TOKEN"}, 401)
            return await handler(request, box)

        return Route(path, handle, methods=[method])

    def _box(self, request: Request) -> Box | None:
        sandbox_id = request.path_params.get("id") or next(reversed(self.boxes), "")
        box = self.boxes.get(sandbox_id)
        return None if box is None or box.expired else box

    # Lifecycle

    async def _create(self, request: Request) -> Response:
        body = await request.json()
        if "image" not in body or "entrypoint" not in body or "resourceLimits" not in body:
            error = {"type": "value_error", "loc": ["body"], "msg": "Value error, a field is missing", "input": body}
            return JSONResponse({"detail": [error]}, 422)
        sandbox_id = str(uuid.uuid4())
        directory = self._root / sandbox_id
        directory.mkdir()
        expires_at = datetime.now(UTC) + timedelta(seconds=body["timeout"])
        box = self.boxes[sandbox_id] = Box(sandbox_id, body, directory, expires_at)
        if self.pending or self.failure:
            box.state, box.polls = "Pending", self.pending
        box.reason = self.failure or ""
        return JSONResponse(self._shown(box), 202)

    def _shown(self, box: Box) -> dict[str, Any]:
        return {
            "id": box.id,
            "status": {"state": box.state, "reason": "", "message": box.reason if box.state == "Failed" else ""},
            "metadata": box.body.get("metadata") or {},
            "entrypoint": box.body["entrypoint"],
            "expiresAt": box.expires_at.isoformat().replace("+00:00", "Z"),
            "createdAt": datetime.now(UTC).isoformat().replace("+00:00", "Z"),
        }

    async def _get(self, request: Request, box: Box) -> Response:
        if box.state == "Pending":
            box.polls -= 1
            if box.polls <= 0:
                box.state = "Failed" if box.reason else "Running"
        return JSONResponse(self._shown(box))

    async def _list(self, request: Request) -> Response:
        page, size = (int(request.query_params.get(name, default)) for name, default in (("page", 1), ("pageSize", 20)))
        boxes = [self._shown(box) for box in reversed(self.boxes.values()) if not box.expired]
        items = boxes[(page - 1) * size : page * size]
        more = page * size < len(boxes)
        return JSONResponse({"items": items, "pagination": {"page": page, "pageSize": size, "hasNextPage": more}})

    async def _delete(self, request: Request, box: Box) -> Response:
        await self._end(box)
        return Response(status_code=204)

    async def _end(self, box: Box) -> None:
        self.boxes.pop(box.id, None)
        for context in list(box.contexts.values()):
            await self._stop_kernel(context)
        box.contexts.clear()
        shutil.rmtree(box.directory, ignore_errors=True)

    async def _renew(self, request: Request, box: Box) -> Response:
        box.expires_at = datetime.fromisoformat((await request.json())["expiresAt"])
        return JSONResponse({"expiresAt": box.expires_at.isoformat()})

    async def _endpoint(self, request: Request, box: Box) -> Response:
        if request.query_params.get("use_server_proxy") == "true":
            endpoint = f"{self.host}/v1/sandboxes/{box.id}/proxy/44772"
        elif self.prefix == "own":
            endpoint = f"{self.host}/proxy/44772"
        else:
            endpoint = f"{self.host}{self.prefix}/{box.id}"
        headers = {"headers": self.endpoint_headers} if self.endpoint_headers else {}
        return JSONResponse({"endpoint": endpoint, **headers})

    # execd: contexts

    async def _ping(self, request: Request, box: Box) -> Response:
        return Response()

    async def _jupyter(self, request: Request, box: Box) -> Response:
        if self.unready > 0:
            self.unready -= 1
            return PlainTextResponse("Bad Gateway", 502)
        return JSONResponse({"version": "2.21.1"})

    async def _start_kernel(self, box: Box) -> Context:
        manager = AsyncKernelManager(kernel_name="python3")
        env = {name: value for name, value in os.environ.items() if not name.startswith(("OPEN_SANDBOX", "PYTEST"))}
        await manager.start_kernel(
            cwd=str(box.directory), env={**env, **(box.body.get("env") or {})}, stderr=subprocess.DEVNULL
        )
        client = manager.client()
        # The heartbeat has a thread with a loop of its own, which it leaves open when its kernel is killed.
        client.start_channels(hb=False)
        await client.wait_for_ready(timeout=60)
        context = Context(uuid.uuid4().hex, manager, client)
        box.contexts[context.id] = context
        return context

    async def _stop_kernel(self, context: Context) -> None:
        context.client.stop_channels()
        await context.manager.shutdown_kernel(now=True)

    async def _new_context(self, request: Request, box: Box) -> Response:
        body = await request.json()
        return JSONResponse({"id": (await self._start_kernel(box)).id, "language": body["language"]})

    async def _contexts(self, request: Request, box: Box) -> Response:
        found = [{"id": context, "language": "python"} for context in box.contexts]
        # The default one is told twice.
        return JSONResponse(found + ([{"id": box.default, "language": "python"}] if box.default else []))

    async def _delete_context(self, request: Request, box: Box) -> Response:
        context = box.contexts.pop(request.path_params["context"], None)
        if context is None:
            return refuse(404, "CONTEXT_NOT_FOUND", f"context {request.path_params['context']} not found")
        if box.default == context.id:
            box.default = None
        await self._stop_kernel(context)
        return Response()

    async def _delete_contexts(self, request: Request, box: Box) -> Response:
        for context in list(box.contexts.values()):
            await self._stop_kernel(context)
        box.contexts.clear()
        box.default = None
        return Response()

    async def _interrupt(self, request: Request, box: Box) -> Response:
        context = box.contexts.get(request.query_params.get("id", ""))
        if context is None:
            return refuse(500, "RUNTIME_ERROR", "error interruptting code context. no such session")
        with contextlib.suppress(Exception):
            await context.manager.interrupt_kernel()
        return Response()

    # execd: code

    async def _code(self, request: Request, box: Box) -> Response:
        body = await request.json()
        wanted = body.get("context") or {}
        if not body.get("code"):
            return refuse(400, "INVALID_REQUEST_BODY", "invalid request, validation error Key: 'RunCodeRequest.Code'")
        if wanted.get("language") != "python":
            # Not reproduced: without a language the real one runs a shell.
            return refuse(500, "RUNTIME_ERROR", f"error running codes unknown language: {wanted.get('language')}")
        if wanted.get("id"):
            context = box.contexts.get(wanted["id"])
            if context is None:
                return refuse(500, "RUNTIME_ERROR", "error running codes context not found")
        else:
            context = await self._default_context(box)
        queue: asyncio.Queue[dict[str, Any] | None] = asyncio.Queue()
        task = asyncio.create_task(self._run(context, body["code"], queue))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return StreamingResponse(self._frames(box, queue), media_type="text/event-stream")

    async def _default_context(self, box: Box) -> Context:
        async with box.starting:
            if box.default is None:
                box.default = (await self._start_kernel(box)).id
        return box.contexts[box.default]

    async def _frames(self, box: Box, queue: asyncio.Queue[dict[str, Any] | None]) -> AsyncIterator[bytes]:
        next_ping = time.monotonic()
        first = True
        while True:
            try:
                async with asyncio.timeout(min(0.05, self.ping)):
                    event = await queue.get()
            except TimeoutError:
                if self.boxes.get(box.id) is not box or box.expired:
                    raise ConnectionAbortedError("the sandbox is gone") from None
                event = {}
            if event is None:
                return
            if event:
                bare = "code" in event
                yield go_json(event if bare else {**event, "timestamp": int(time.time() * 1000)}) + b"\n\n" * (not bare)
                if bare:
                    return
            if first or time.monotonic() >= next_ping:
                yield go_json({"type": "ping", "text": "pong", "timestamp": int(time.time() * 1000)}) + b"\n\n"
                next_ping, first = time.monotonic() + self.ping, False

    async def _run(self, context: Context, code: str, queue: asyncio.Queue[dict[str, Any] | None]) -> None:
        queue.put_nowait({"type": "init", "text": context.id})
        if context.busy:
            queue.put_nowait({"code": "RUNTIME_ERROR", "message": "error running codes session is busy"})
            return
        context.busy = True
        run = Run(context, code, queue.put_nowait, self.lag)
        try:
            await run.until_it_seems_over(self.poll)
            queue.put_nowait(None)
        finally:
            context.busy = False

    # execd: files and commands

    def _path(self, box: Box, path: str) -> Path:
        """Where a path of the sandbox is on this machine: /proc is the same, /workspace is its directory."""
        if path.startswith("/proc/"):
            return Path(path)
        return box.directory / path.removeprefix(str(box.directory)).removeprefix("/workspace").lstrip("/")

    async def _file_info(self, request: Request, box: Box) -> Response:
        found = {}
        for path in request.query_params.getlist("path"):
            await self._reap(box)
            if not self._path(box, path).exists():
                return refuse(404, "FILE_NOT_FOUND", f"file not found. lstat {path}: no such file or directory")
            found[path] = {"path": path, "type": "file"}
        return JSONResponse(found)

    async def _reap(self, box: Box) -> None:
        # As Jupyter does every few seconds.
        for context in box.contexts.values():
            await context.manager.is_alive()

    async def _upload(self, request: Request, box: Box) -> Response:
        boundary = request.headers["content-type"].partition("boundary=")[2]
        parts = _parts(await request.body(), boundary.strip('"').encode())
        if len(parts) != 2 or any(b"filename=" not in head for head, _ in parts):
            return refuse(400, "INVALID_FILE_METADATA", "metadata file is missing")
        (_, metadata), (_, data) = parts
        target = self._path(box, json.loads(metadata)["path"])
        if target.is_dir():
            return refuse(500, "RUNTIME_ERROR", f"error opening destination file {target}. open: is a directory")
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(data)
        return Response()

    async def _download(self, request: Request, box: Box) -> Response:
        path = request.query_params["path"]
        target = self._path(box, path)
        if target.is_dir():
            return PlainTextResponse("seeker can't seek", 500)
        if not target.exists():
            return refuse(404, "FILE_NOT_FOUND", f"file not found. open {path}: no such file or directory")
        return Response(target.read_bytes(), media_type="application/octet-stream")

    async def _list_directory(self, request: Request, box: Box) -> Response:
        path = request.query_params["path"]
        target = self._path(box, "" if path == "." else path)
        if not target.exists():
            return refuse(404, "FILE_NOT_FOUND", f"file not found. lstat {path}: no such file or directory")
        entries = [
            {
                "path": str(entry),
                "type": "directory" if entry.is_dir() else "file",
                "size": entry.stat().st_size,
                "modified_at": datetime.fromtimestamp(entry.stat().st_mtime, UTC).isoformat(),
            }
            for entry in target.iterdir()
        ]
        return JSONResponse(entries)

    async def _command(self, request: Request, box: Box) -> Response:
        # Only so that the official client finds the sandbox ready.
        done = [{"type": "init", "text": uuid.uuid4().hex}, {"type": "execution_complete", "execution_time": 1}]
        return Response(b"".join(go_json(event) + b"\n\n" for event in done), media_type="text/event-stream")


class Run:
    """One execution as execd sees it: any message of the kernel counts, whosever it is."""

    def __init__(self, context: Context, code: str, emit: Emit, lag: float) -> None:
        self._client = context.client
        self._code = code
        self._emit = emit
        self._lag = lag
        self._count = 0
        self._failed = False

    async def until_it_seems_over(self, poll: float) -> None:
        """Run the code; returns at the first poll that finds a count or an error."""
        # Jupyter asks so on each new connection; its idle is taken for the end of the code.
        await self._client.kernel_info(reply=True, timeout=None)
        msg_id = self._client.execute(self._code, allow_stdin=False)
        self._emit({"type": "execution_complete", "execution_time": 50})
        readers = [asyncio.create_task(self._read_reply(msg_id)), asyncio.create_task(self._read_outputs())]
        try:
            while not (self._count > 0 or self._failed):  # noqa: ASYNC110 (polling is what execd does)
                await asyncio.sleep(poll)
        finally:
            for reader in readers:
                reader.cancel()
            await asyncio.gather(*readers, return_exceptions=True)

    async def _read_reply(self, msg_id: str) -> None:
        while True:
            reply = await self._client.get_shell_msg(timeout=None)
            if reply["parent_header"].get("msg_id") == msg_id:
                self._count = reply["content"].get("execution_count", 0)
                self._failed = self._failed or reply["content"]["status"] == "error"

    async def _read_outputs(self) -> None:
        while True:
            message = await self._client.get_iopub_msg(timeout=None)
            await asyncio.sleep(self._lag)
            self._handle(message["msg_type"], message["content"])

    def _handle(self, kind: str, content: dict[str, Any]) -> None:
        if kind == "stream":
            self._emit({"type": content["name"], "text": content["text"]})
        elif kind == "error":
            self._emit({"type": "status", "text": "error"})
            error = {name: content[name] for name in ("ename", "evalue", "traceback")}
            self._emit({"type": "error", "error": error})
            self._failed = True
        elif kind == "execute_result":
            if content["execution_count"]:
                self._emit({"type": "execution_count", "execution_count": content["execution_count"]})
            data = {"text" if mime == "text/plain" else mime: value for mime, value in content["data"].items()}
            self._emit({"type": "result", "results": data})
            self._count = content["execution_count"]


@contextlib.contextmanager
def opensandbox(**settings: Any) -> Iterator[OpenSandboxServer]:
    """An `OpenSandboxServer(**settings)` that runs inside the block, with OPEN_SANDBOX_API_BASE set to it."""
    with OpenSandboxServer(**settings) as server:
        before = os.environ.get("OPEN_SANDBOX_API_BASE")
        os.environ["OPEN_SANDBOX_API_BASE"] = server.api_base
        try:
            yield server
        finally:
            os.environ.pop("OPEN_SANDBOX_API_BASE")
            if before is not None:
                os.environ["OPEN_SANDBOX_API_BASE"] = before
