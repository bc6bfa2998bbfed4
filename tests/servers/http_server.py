"""A small HTTP/1.1 server with control over every byte that leaves it, and a thread to run one in.

    async with HTTPServer(handler) as server:          # on this loop
    with in_thread(lambda: HTTPServer(handler)) as server:     # for synchronous tests and other processes

A handler is `async def handler(request, answer)`; the connection closes when it returns.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading
import urllib.parse
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import Any, TypeVar

T = TypeVar("T")


@dataclass
class Request:
    method: str
    path: str
    query: dict[str, str]
    headers: dict[str, str]
    body: bytes

    def json(self) -> Any:
        return json.loads(self.body or b"null")


class Answer:
    """What goes back; `gone` is set when the client has closed its connection."""

    def __init__(self, writer: asyncio.StreamWriter) -> None:
        self.gone = asyncio.Event()
        self._writer = writer

    async def start(self, status: int = 200, headers: dict[str, str] | None = None) -> None:
        """Send the head of a chunked answer."""
        await self.raw(_head(status, {**(headers or {}), "Transfer-Encoding": "chunked"}))

    async def chunk(self, data: bytes) -> None:
        await self.raw(b"%x\r\n%b\r\n" % (len(data), data))

    async def end(self) -> None:
        await self.raw(b"0\r\n\r\n")

    async def send(self, status: int = 200, body: Any = b"", headers: dict[str, str] | None = None) -> None:
        """Send a whole answer; anything but bytes goes as JSON."""
        given = dict(headers or {})
        if not isinstance(body, bytes):
            body = json.dumps(body).encode()
            given.setdefault("Content-Type", "application/json")
        if status == 204:
            await self.raw(_head(status, given))
        else:
            await self.raw(_head(status, {**given, "Content-Length": str(len(body))}) + body)

    async def raw(self, data: bytes) -> None:
        with contextlib.suppress(ConnectionError):
            self._writer.write(data)
            await self._writer.drain()


def _head(status: int, headers: dict[str, str]) -> bytes:
    lines = [f"HTTP/1.1 {status} X", *(f"{k}: {v}" for k, v in headers.items()), "Connection: close", "", ""]
    return "\r\n".join(lines).encode()


Handler = Callable[[Request, Answer], Awaitable[None]]


@dataclass
class HTTPServer:
    handler: Handler
    requests: list[Request] = field(default_factory=list)
    url: str = ""

    async def __aenter__(self) -> HTTPServer:
        self._tasks: set[asyncio.Task[None]] = set()
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(self, *exc: object) -> None:
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._server.wait_closed()

    def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.ensure_future(self._answer(reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            request = await _read(reader)
            self.requests.append(request)
            answer = Answer(writer)
            watch = asyncio.ensure_future(self._watch(reader, answer))
            try:
                await self.handler(request, answer)
            finally:
                watch.cancel()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()
            with contextlib.suppress(ConnectionError):
                await writer.wait_closed()

    async def _watch(self, reader: asyncio.StreamReader, answer: Answer) -> None:
        with contextlib.suppress(ConnectionError):
            await reader.read()
        answer.gone.set()


async def _read(reader: asyncio.StreamReader) -> Request:
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
    method, target, _ = head[0].split(" ")
    headers = {k.strip().lower(): v.strip() for k, _, v in (line.partition(":") for line in head[1:] if line)}
    if headers.get("transfer-encoding") == "chunked":
        body = b""
        while size := int((await reader.readuntil(b"\r\n")).split(b";")[0], 16):
            body += (await reader.readexactly(size + 2))[:-2]
        await reader.readuntil(b"\r\n")
    else:
        body = await reader.readexactly(int(headers.get("content-length", 0)))
    url = urllib.parse.urlsplit(target)
    return Request(method, urllib.parse.unquote(url.path), dict(urllib.parse.parse_qsl(url.query)), headers, body)


@contextlib.contextmanager
def in_thread(make: Callable[[], AbstractAsyncContextManager[T]]) -> Iterator[T]:
    """Run the server that `make` gives in a thread with a loop of its own, inside the block."""
    started: list[T] = []
    ready, loop = threading.Event(), asyncio.new_event_loop()
    leave = asyncio.Event()
    problem: list[BaseException] = []

    async def main() -> None:
        async with make() as server:
            started.append(server)
            ready.set()
            await leave.wait()

    def run() -> None:
        try:
            loop.run_until_complete(main())
        except BaseException as error:
            problem.append(error)
        finally:
            ready.set()
            loop.close()

    thread = threading.Thread(target=run, name="test server")
    thread.start()
    ready.wait()
    try:
        if problem:
            raise problem[0]
        yield started[0]
    finally:
        if not loop.is_closed():
            loop.call_soon_threadsafe(leave.set)
        thread.join()
    if problem:
        raise problem[0]


@contextlib.asynccontextmanager
async def serve(handler: Handler) -> AsyncIterator[HTTPServer]:
    """`HTTPServer(handler)`, for tests that make one on the spot."""
    async with HTTPServer(handler) as server:
        yield server
