"""Running code in a kernel: one execution after another, and all that the kernel publishes read at once."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import zmq

from ...models import ClearOutput, Display, End, Event, ExecutionCount, ExecutionError, Stderr, Stdout
from .limits import Limits, MiB
from .messages import event_of, parsed_size

if TYPE_CHECKING:
    from jupyter_client.asynchronous.client import AsyncKernelClient

_OVERHEAD = 100
"""Bytes that an event counts in addition to what it shows."""
_LAST_WORD_SECONDS = 1.0


class Run:
    """One execution: its events so far, bounded by the limits."""

    def __init__(self, msg_id: str, limits: Limits) -> None:
        self.msg_id = msg_id
        self.started = asyncio.Event()
        self.finished = asyncio.Event()
        self.text_is_full = False
        self.interrupted = False
        self._events: asyncio.Queue[Event | BaseException | None] = asyncio.Queue()
        self._limits = limits
        self._text = 0
        self._rich = 0
        self._cut: set[str] = set()
        self._idle = False
        self._reply: dict[str, Any] | None = None
        self._raised = False

    async def events(self) -> AsyncGenerator[Event, None]:
        """The events as they arrive, the last one `End`; raises what ended the run early."""
        while (item := await self._events.get()) is not None:
            if isinstance(item, BaseException):
                raise item
            yield item

    def take(self, msg_type: str, content: dict[str, Any]) -> None:
        """Take in what the kernel published for this run."""
        if self.finished.is_set():
            return
        if msg_type == "status":
            if content.get("execution_state") == "idle":
                self._idle = True
                self._finish_if_over()
        elif (event := event_of(msg_type, content)) is not None:
            if isinstance(event, ExecutionCount):
                self.started.set()
            if (fitting := self._fit(event)) is not None:
                self._events.put_nowait(fitting)

    def reply(self, content: dict[str, Any]) -> None:
        """The kernel has answered the request."""
        self._reply = content
        self.started.set()
        self._finish_if_over()

    def fail(self, error: BaseException) -> None:
        """End the run with `error`."""
        if not self.finished.is_set():
            self._events.put_nowait(error)
            self._finish()

    def _finish_if_over(self) -> None:
        if self._idle and self._reply is not None:
            self.end()
        else:
            # An interrupt may hit the kernel just before or after the code, and one of its last words is never said.
            asyncio.get_running_loop().call_later(_LAST_WORD_SECONDS, self.end)

    def end(self) -> None:
        """End the run as the kernel does."""
        if self.finished.is_set():
            return
        if not self._raised and (error := self._unsaid_error()) is not None:
            self._events.put_nowait(error)
        self._events.put_nowait(End(truncated=self._truncation()))
        self._finish()

    def _unsaid_error(self) -> ExecutionError | None:
        """The error of code that could not show it: out of memory, or interrupted before it had begun."""
        reply = self._reply or {}
        if reply.get("status") == "error" and not self.interrupted:
            name, value = str(reply.get("ename")), str(reply.get("evalue"))
            return ExecutionError(name, value, f"{name}: {value}")
        if self.interrupted and reply.get("status") != "ok":
            return ExecutionError("KeyboardInterrupt", "", "KeyboardInterrupt")
        if not reply:
            value = "the kernel did not run this code, or did not get to its end: restart it"
            return ExecutionError("KernelError", value, f"KernelError: {value}")
        return None

    def _finish(self) -> None:
        self._events.put_nowait(None)
        self.started.set()
        self.finished.set()

    def _truncation(self) -> str | None:
        if self._cut:
            return "; ".join(sorted(self._cut)) + ". Print less, or write it to a file."
        if not self._idle and not self.interrupted:
            return "What this code showed was lost on its way, or a part of it: restart the kernel."
        return None

    def _fit(self, event: Event) -> Event | None:
        """The event, shortened or left out when the run has shown enough."""
        match event:
            case Stdout(text) | Stderr(text):
                room = self._limits.output_bytes - self._text
                kept = _first_bytes(text, room)
                self._text += len(kept.encode(errors="surrogatepass")) + (_OVERHEAD if self._text else 0)
                if len(kept) < len(text) or room <= 0:
                    self.text_is_full = True
                    self._cut.add(f"Text beyond the first {_size(self._limits.output_bytes)} was left out")
                return replace(event, text=kept) if kept else None
            case ExecutionError(name, value, traceback) if not self._raised:
                self._raised = True
                return ExecutionError(name[:1000], value[:MiB], traceback[: 2 * MiB])
            case ExecutionError(name, value, traceback):
                # Honest code raises once.
                return self._fit_rich(event, len(name) + len(value) + len(traceback))
            case Display(data, metadata):
                return self._fit_rich(event, _length(data) + _length(metadata))
            case ClearOutput() | ExecutionCount():
                return self._fit_rich(event, 0)
        return event

    def _fit_rich(self, event: Event, size: int) -> Event | None:
        if self._rich + size + _OVERHEAD > self._limits.display_bytes:
            self.leave_out()
            return None
        self._rich += size + _OVERHEAD
        return event

    def leave_out(self) -> None:
        """Take note of rich output that is too much."""
        self._cut.add(f"Rich output beyond {_size(self._limits.display_bytes)} was left out")


def _first_bytes(text: str, room: int) -> str:
    if len(text) * 4 <= room:
        return text
    return text.encode(errors="surrogatepass")[: max(room, 0)].decode(errors="ignore")


def _length(value: Any) -> int:
    """About how many bytes a JSON value takes."""
    if isinstance(value, str):
        return len(value)
    if isinstance(value, dict):
        return sum(_OVERHEAD + len(k) + _length(v) for k, v in value.items())
    if isinstance(value, list):
        return sum(_OVERHEAD + _length(v) for v in value)
    return 8


def _size(count: int) -> str:
    return f"{count // MiB} MiB" if count >= MiB else f"{count} bytes"


def notice(socket: Any) -> None:
    """Let `socket` see its own state after jupyter_client has sent on it behind its back, or it may sleep for ever."""
    socket.get(zmq.EVENTS)


class Conversation:
    """Talks to one kernel through its client.

    Reads all the time, also between runs: the kernel waits for a reader that is slow.
    """

    def __init__(self, client: AsyncKernelClient, limits: Limits) -> None:
        self._client = client
        self._limits = limits
        self._run: Run | None = None
        self._completions: dict[str, asyncio.Future[list[str]]] = {}
        self._readers = [
            asyncio.ensure_future(self._read(client.iopub_channel.socket, self._on_iopub)),
            asyncio.ensure_future(self._read(client.shell_channel.socket, self._on_shell)),
            asyncio.ensure_future(self._read(client.control_channel.socket, lambda kind, parent, content: None)),
        ]

    @property
    def run(self) -> Run | None:
        """The run that has not ended."""
        return None if self._run is None or self._run.finished.is_set() else self._run

    def execute(self, code: str) -> Run:
        """Send `code`; one run at a time."""
        msg_id = self._client.execute(code, allow_stdin=False, stop_on_error=False)
        notice(self._client.shell_channel.socket)
        self._run = Run(msg_id, self._limits)
        return self._run

    async def complete(self, code: str, cursor: int) -> list[str]:
        """What could stand at the cursor; nothing while code runs, or when the kernel takes more than a second."""
        if self.run is not None:
            return []
        msg_id = self._client.complete(code, cursor)
        notice(self._client.shell_channel.socket)
        self._completions[msg_id] = future = asyncio.get_running_loop().create_future()
        try:
            return await asyncio.wait_for(future, 1)
        except TimeoutError:
            return []
        finally:
            del self._completions[msg_id]

    async def _read(self, socket: Any, handle: Any) -> None:
        session = self._client.session
        while True:
            frames = await socket.recv_multipart()
            run = self._run
            if run is not None and run.text_is_full and frames[0].startswith(b"stream."):
                continue
            if parsed_size(frames) > 4 * (self._limits.output_bytes + self._limits.display_bytes):
                if run is not None:
                    run.leave_out()
                continue
            # Whatever a sandbox sends, reading goes on.
            with contextlib.suppress(Exception):
                _, frames = session.feed_identities(frames)
                message = session.deserialize(frames)
                handle(message["msg_type"], message["parent_header"].get("msg_id"), message["content"])

    def _on_iopub(self, msg_type: str, parent: str | None, content: dict[str, Any]) -> None:
        if self._run is not None and parent == self._run.msg_id:
            self._run.take(msg_type, content)

    def _on_shell(self, msg_type: str, parent: str | None, content: dict[str, Any]) -> None:
        run = self._run
        if (waiting := self._completions.get(parent or "")) is not None:
            waiting.set_result([str(match) for match in content.get("matches", [])])
        elif run is not None and parent == run.msg_id and msg_type == "execute_reply":
            run.reply(content)

    def fail(self, error: BaseException) -> None:
        """End the current run with `error`."""
        if self._run is not None:
            self._run.fail(error)

    def close(self) -> None:
        """Stop reading."""
        for reader in self._readers:
            reader.cancel()
