"""Recorded answers of execd, played back chunk for chunk."""

from __future__ import annotations

import base64
import gzip
import json
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from pathlib import Path

from servers.http_server import Answer, HTTPServer, Request, serve


@dataclass
class Recording:
    """A recorded answer: its status, its content type, the chunks of its body, and whether the body ended."""

    status: int
    content_type: str
    chunks: list[bytes]
    ended: bool = True


def load(path: Path) -> Recording:
    """Read a `.jsonl` (or `.jsonl.gz`): the head with its request, then one line for each read, then the end."""
    text = gzip.decompress(path.read_bytes()).decode() if path.suffix == ".gz" else path.read_text("utf-8")
    head, *reads, end = map(json.loads, text.splitlines())
    headers = {name.lower(): value for name, value in head["headers"]}
    chunks = [base64.b64decode(read["bytes_b64"]) if "bytes_b64" in read else read["text"].encode() for read in reads]
    return Recording(head["status"], headers["content-type"], chunks, end["end"] == "eof")


def byte_by_byte(recording: Recording) -> Recording:
    """The same, each byte a chunk of its own."""
    chunks = [bytes([byte]) for byte in b"".join(recording.chunks)]
    return Recording(recording.status, recording.content_type, chunks, recording.ended)


def replaying(recording: Recording) -> AbstractAsyncContextManager[HTTPServer]:
    """A server that answers each `POST …/code` with the recording, and else says that the sandbox is running."""

    async def handle(request: Request, answer: Answer) -> None:
        if (request.method, request.path) != ("POST", "/code"):
            await answer.send(200, {"id": "s", "status": {"state": "Running"}})
            return
        await answer.start(recording.status, {"Content-Type": recording.content_type})
        for chunk in recording.chunks:
            await answer.chunk(chunk)
        if recording.ended:
            await answer.end()
        else:
            # It went on until its reader left.
            await answer.gone.wait()

    return serve(handle)
