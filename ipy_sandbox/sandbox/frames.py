"""A streamed answer, split into frames on the bytes between them, with its size and its silence limited.

Never by lines: servers leave U+0085 and U+2028 unescaped inside a frame, where `iter_lines` would break it.
"""

from __future__ import annotations

import asyncio
import json
import math
import re
from collections.abc import AsyncIterator, Callable

import httpx

from ..errors import OutputTruncatedError, ProviderError, SandboxError
from .moving_timeout import MovingTimeout

MiB = 1024 * 1024
STREAM_CAP = 10 * MiB
DRAIN_CAP = 2048 * MiB
SMALL_FRAME = 256 * 1024


class SilentStreamError(ProviderError):
    """Nothing came over a stream for too long; the connection is closed."""


class Frames:
    """The frames of a streamed answer, as bytes without their separator; what follows the last one comes as a frame.

    Once `cap` bytes have come, `truncated` is true and only frames below 256 KiB are still handed out: the code runs on
    and its end is seen, while its output is the reader's to drop. The beginning of a frame that was too long is
    kept in `partial`. Two GiB later the stream is given up: `exhausted`. `stopped` says whether `stop` was called.
    """

    def __init__(
        self,
        response: httpx.Response,
        separator: bytes,
        cap: int,
        first_byte: float,
        idle: float,
        silence: float | None,
        is_progress: Callable[[bytes], bool] | None,
        where: str,
    ) -> None:
        self.response = response
        self.truncated = False
        self.exhausted = False
        self.stopped = False
        self.partial = b""
        self._separator = separator
        self.cap = cap
        self._first_byte = first_byte
        self._idle = idle
        self._silence = silence
        self._is_progress = is_progress or bool
        self._where = where
        self._waited = 0.0
        self._timeout = MovingTimeout()

    def stop(self) -> None:
        """End the iteration now, from another task of the same loop."""
        self.stopped = True
        self._timeout.expire()

    async def __aiter__(self) -> AsyncIterator[bytes]:
        buffer, scanned, received, skipping = bytearray(), 0, 0, False
        overlap = len(self._separator) - 1
        async for chunk in self._chunks():
            received += len(chunk)
            buffer += chunk
            start = 0
            while (end := buffer.find(self._separator, max(start, scanned))) >= 0:
                frame, start, scanned = bytes(buffer[start:end]), end + len(self._separator), 0
                # By its place in the stream: how the bytes come in chunks must not matter.
                self.truncated = self.truncated or received - len(buffer) + end > self.cap
                if skipping or (self.truncated and len(frame) > SMALL_FRAME):
                    self.partial = self.partial or frame[: self.cap]
                    skipping = False
                    continue
                if self._is_progress(frame):
                    self._waited = 0
                yield frame
            del buffer[:start]
            self.truncated = self.truncated or received > self.cap
            if self.truncated and len(buffer) > SMALL_FRAME + overlap:
                self.partial = self.partial or bytes(buffer[: self.cap])
                skipping = True
                del buffer[: len(buffer) - overlap]
            scanned = max(0, len(buffer) - overlap)
            if received > self.cap + DRAIN_CAP:
                self.exhausted = True
                return
        if buffer and not skipping:
            yield bytes(buffer)

    async def _chunks(self) -> AsyncIterator[bytes]:
        chunks = self.response.aiter_bytes()
        limit = self._first_byte
        problem: SandboxError | None = None
        try:
            while problem is None and not self.stopped:
                rest = math.inf if self._silence is None else max(0, self._silence - self._waited)
                try:
                    chunk = await self._receive(chunks, min(limit, rest))
                except StopAsyncIteration:
                    return
                except TimeoutError:
                    if not self.stopped:
                        problem = self._silent(limit if limit < rest else self._silence or limit)
                except httpx.HTTPError as error:
                    problem = self._broken(error)
                else:
                    yield chunk
                    limit = self._idle
        finally:
            self._timeout.close()
        if problem is not None:
            raise problem

    async def _receive(self, chunks: AsyncIterator[bytes], seconds: float) -> bytes:
        if self._silence is None:
            return await self._timeout.wait(anext(chunks), seconds)
        clock = asyncio.get_running_loop().time
        # Only time spent here counts as silence: a slow reader is not a silent server.
        began = clock()
        try:
            return await self._timeout.wait(anext(chunks), seconds)
        finally:
            self._waited += clock() - began

    def _silent(self, seconds: float) -> SandboxError:
        return SilentStreamError(f"Nothing came from {self._where} for {seconds:.0f} s: it does not answer.")

    def _broken(self, error: httpx.HTTPError) -> SandboxError:
        return OutputTruncatedError(
            f"The connection to {self._where} broke before the end of the output ({one_line(error)}): "
            "the code may still run there, and nothing was run again."
        )


def cut_text(frame: bytes, key: str = "text") -> str | None:
    """What can be read of the string `key` in the beginning of a JSON object that was cut; None if there is none."""
    match = re.search(rb'"%s"\s*:\s*"' % key.encode(), frame[:1000])
    if match is None:
        return None
    text = frame[match.end() :].decode("utf-8", "ignore")
    whole = re.match(r'[^"\\]*(?:\\(?:u[0-9a-fA-F]{4}|[^u])[^"\\]*)*', text)
    assert whole is not None
    try:
        return str(json.loads(f'"{whole[0]}"', strict=False))
    except ValueError:
        return None


def one_line(error: BaseException | None) -> str:
    """The text of an error without line breaks, or its class where it has none."""
    return " ".join(str(error or "").split()) or type(error).__name__
