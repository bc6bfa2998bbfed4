"""A scripted HTTP/1.1 server for tests: every request gets the next answer of the script, byte by byte as written."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, TypeAlias


@dataclass
class Request:
    """What a client sent."""

    method: str
    target: str
    headers: dict[str, str]
    content: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.content)


Answer: TypeAlias = Callable[["Connection"], Awaitable[None]]


@dataclass
class Connection:
    """One request's side of the server: send bytes, cut, or wait until the client has gone."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    gone: asyncio.Event

    async def head(self, status: int = 200, headers: str = "", *, content_type: str = "text/event-stream") -> None:
        self.writer.write(f"HTTP/1.1 {status} Status\r\nContent-Type: {content_type}\r\n{headers}".encode())
        self.writer.write(b"Transfer-Encoding: chunked\r\n\r\n")
        await self.writer.drain()

    async def send(self, piece: bytes) -> None:
        self.writer.write(f"{len(piece):x}\r\n".encode() + piece + b"\r\n")
        await self.writer.drain()

    async def end(self) -> None:
        self.writer.write(b"0\r\n\r\n")
        await self.writer.drain()

    def cut(self) -> None:
        self.writer.transport.abort()

    async def client_leaves(self) -> None:
        await self.reader.read()
        self.gone.set()


@dataclass
class ModelServer:
    """The address, what was asked, and an event that is set when a client left an answer that was under way."""

    base_url: str = ""
    requests: list[Request] = field(default_factory=list)
    connections: int = 0
    gone: asyncio.Event = field(default_factory=asyncio.Event)
    asked: asyncio.Event = field(default_factory=asyncio.Event)

    async def has_been_asked(self, times: int = 1) -> None:
        """Wait until so many requests have arrived."""
        while len(self.requests) < times:
            self.asked.clear()
            await self.asked.wait()


def answer(
    body: bytes | dict[str, Any] | list[Any], status: int = 200, headers: str = "", content_type: str = ""
) -> Answer:
    """A whole answer: a stream of events if `body` is bytes, else JSON."""
    payload = body if isinstance(body, bytes) else json.dumps(body).encode()
    kind = content_type or ("text/event-stream" if isinstance(body, bytes) else "application/json")

    async def give(connection: Connection) -> None:
        await connection.head(status, headers, content_type=kind)
        if payload:
            await connection.send(payload)
        await connection.end()

    return give


async def refuse(connection: Connection) -> None:
    """Close the connection without a byte."""
    connection.cut()


@asynccontextmanager
async def serve(*script: Answer) -> AsyncIterator[ModelServer]:
    """A server that gives the answers of `script`, the last one again and again."""
    server, remaining = ModelServer(), list(script)
    tasks: set[asyncio.Task[Any]] = set()

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        tasks.add(asyncio.current_task())  # type: ignore[arg-type]
        server.connections += 1
        try:
            while request := await _read_request(reader):
                server.requests.append(request)
                server.asked.set()
                respond = remaining.pop(0) if len(remaining) > 1 else remaining[0]
                await respond(Connection(reader, writer, server.gone))
        except (ConnectionError, asyncio.IncompleteReadError):
            server.gone.set()
        finally:
            writer.close()

    listener = await asyncio.start_server(handle, "127.0.0.1", 0)
    server.base_url = f"http://127.0.0.1:{listener.sockets[0].getsockname()[1]}/v1"
    try:
        yield server
    finally:
        listener.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _read_request(reader: asyncio.StreamReader) -> Request | None:
    try:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
    except asyncio.IncompleteReadError:
        return None
    first, *lines = head.split("\r\n")
    method, target, _ = first.split(" ")
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines if line)}
    content = await reader.readexactly(int(headers.get("content-length", 0)))
    return Request(method, target, headers, content)
