"""The loop: turns of the model and executions of its code until the final answer. Both surfaces share it."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from ..errors import (
    AuthenticationError,
    ConfigurationError,
    ExecutionTimeoutError,
    KernelDiedError,
    OutputTruncatedError,
    RateLimitError,
    SandboxBusyError,
    SandboxCreationError,
    SandboxError,
    SandboxLostError,
    UpstreamError,
)
from ..models import ResultBuilder
from .arguments import CodeDecoder
from .calls import (
    CallEnded,
    CodeCall,
    CodeDelta,
    CodeStarted,
    CodeWritten,
    FilesCited,
    LoopEnded,
    LoopEvent,
    RunOutput,
    RunStarted,
    TurnDelta,
    TurnEnded,
    TurnStarted,
)
from .catalog import Route
from .citations import links
from .conversation import Conversation
from .limits import Limits
from .turn import ArgumentsDelta, CallStarted, Delta, FinishReason, ItemDone, TextDelta, ToolCall, Turn
from .upstream import TurnStream, Upstream
from .usage import sum_usage
from .workspace import NEW_SANDBOX, Workspace

logger = logging.getLogger("ipy_sandbox")

Emit: TypeAlias = Callable[[LoopEvent], Awaitable[None]]

BAD_ARGUMENTS = '[invalid arguments, nothing was run: send a JSON object with the Python source as string "code"]'
LIMIT_REACHED = "[not run: the limit of tool use for this answer is reached; answer now with what you have]"
NO_ANSWER = "The limit of tool use was reached before the model gave an answer."

_DID_NOT_RUN = (SandboxCreationError, ConfigurationError, AuthenticationError, RateLimitError, SandboxBusyError)
_IMAGES_REFUSED = (400, 404, 415, 422, 500, 501)


@dataclass(slots=True)
class _Writing:
    """A call that the model writes now; `shown` is False for one past the limit, which the client never sees."""

    call: CodeCall
    shown: bool
    decoder: CodeDecoder = field(default_factory=lambda: CodeDecoder(bare=True))
    text: list[str] = field(default_factory=list)


@dataclass(slots=True)
class Report:
    """What one request took, filled in while it runs.

    `headers` are those of the endpoint's latest answer that a proxy passes on.
    """

    turns: int = 0
    calls: int = 0
    usage: dict[str, Any] | None = None
    headers: dict[str, str] = field(default_factory=dict)


class Loop:
    """One request's way to its final answer.

    Arguments:
        emit: gets every event; what it takes long for holds the loop back.
        code_names: the names of functions that mean the code tool.
        max_calls: executions this request may have.
        resumes: earlier executions are part of the conversation, so the model counts on their variables.
        stream: ask the endpoint to stream.
    """

    def __init__(
        self,
        upstream: Upstream,
        route: Route,
        conversation: Conversation,
        workspace: Workspace,
        limits: Limits,
        emit: Emit,
        report: Report,
        *,
        code_names: set[str],
        max_calls: int | None = None,
        resumes: bool = False,
        stream: bool = True,
    ) -> None:
        self._upstream = upstream
        self._route = route
        self._conversation = conversation
        self._workspace = workspace
        self._limits = limits
        self._emit = emit
        self._names = code_names
        self._max_calls = limits.calls if max_calls is None else min(max_calls, limits.calls)
        self._resumes = resumes
        self._stream = stream
        self._turns = 0
        self._calls: list[CodeCall] = []
        self._usages: list[dict[str, Any] | None] = []
        self._writing: dict[int, _Writing] = {}
        self._report = report

    async def run(self) -> None:
        """Go on until the final answer; the last event is LoopEnded.

        Raises:
            UpstreamError: the model endpoint failed; `turn_number` counts from 0.
        """
        self._deadline = asyncio.get_running_loop().time() + self._limits.seconds
        try:
            finish, turn = await self._to_the_answer()
        except UpstreamError as error:
            error.turn_number = self._turns - 1
            raise
        usage = self._report.usage = sum_usage(self._usages)
        await self._emit(LoopEnded(finish, turn, usage, self._calls, self._conversation.messages))

    async def _to_the_answer(self) -> tuple[FinishReason, Turn]:
        while True:
            final = self._at_a_limit()
            turn = await self._turn(final)
            writing = [w for _, w in sorted(self._writing.items())]
            if turn.finish_reason in ("length", "content_filter"):
                await self._abandon(writing)
                if not turn.tool_calls:
                    self._conversation.add(turn)
                return turn.finish_reason, turn
            theirs = len(turn.tool_calls) > len(writing)
            if final and writing and not turn.text and not theirs:
                self._conversation.add(turn, [w.call for w in writing])
                return await self._insist()
            for call in [w.call for w in writing if w.shown]:
                await self._execute(call)
            self._conversation.add(turn, [w.call for w in writing])
            if theirs:
                return "tool_calls", turn
            if final or not writing:
                return "stop", turn
            if not self._conversation.budget_left(self._spent()):
                return "length", turn

    def _at_a_limit(self) -> bool:
        return self._is_late() or self._turns + 1 >= self._limits.turns or len(self._calls) >= self._max_calls

    def _is_late(self) -> bool:
        return asyncio.get_running_loop().time() >= self._deadline

    def _spent(self) -> int:
        known = [usage for usage in self._usages if usage]
        return sum(int(u.get("output_tokens") or u.get("completion_tokens") or 0) for u in known)

    async def _insist(self) -> tuple[FinishReason, Turn]:
        """Ask once more, the tool no longer declared; if that gives nothing either, say so in the model's place."""
        turn = await self._turn(final=True, bare=True)
        if not turn.text:
            turn.text = NO_ANSWER
            slots = [call.slot for call in turn.tool_calls] + list(range(len(turn.output)))
            await self._emit(TurnDelta(TextDelta(1 + max(slots, default=-1), NO_ANSWER)))
            await self._emit(TurnEnded(turn))
        self._conversation.add(turn, [w.call for w in self._writing.values()])
        return ("stop" if turn.finish_reason == "tool_calls" else turn.finish_reason), turn

    async def _turn(self, final: bool, bare: bool = False) -> Turn:
        self._turns += 1
        self._writing = {}
        async with contextlib.AsyncExitStack() as stack:
            stream = await self._open(stack, final, bare)
            self._report.headers = stream.headers
            self._report.turns = self._turns
            await self._emit(TurnStarted(self._turns))
            async for delta in stream:
                await self._take(delta, final)
        turn = stream.turn
        self._usages.append(turn.usage)
        for tool_call in turn.tool_calls:
            if tool_call.name in self._names:
                await self._complete(tool_call, final)
        if turn.api == "chat":
            await self._cite(turn.text)
        await self._emit(TurnEnded(turn))
        return turn

    async def _open(self, stack: contextlib.AsyncExitStack, final: bool, bare: bool) -> TurnStream:
        while True:
            body = self._conversation.body(first=self._turns == 1, final=final, spent=self._spent())
            if bare:
                body = {k: v for k, v in body.items() if k not in ("tools", "tool_choice", "parallel_tool_calls")}
            call = self._upstream.turn(self._route, self._conversation.api, body, stream=self._stream)
            try:
                return await stack.enter_async_context(call)
            except UpstreamError as error:
                # Nothing tells beforehand whether a model sees; one that does not refuses pictures.
                if error.status not in _IMAGES_REFUSED or not self._conversation.has_images:
                    raise
                self._conversation.sees = False

    async def _take(self, delta: Delta, final: bool) -> None:
        slot = delta.slot
        if isinstance(delta, CallStarted) and delta.name in self._names:
            await self._start(delta.slot, delta.id, delta.name, final)
        elif slot in self._writing:
            if isinstance(delta, ArgumentsDelta):
                await self._write(self._writing[delta.slot], delta.text)
        else:
            if isinstance(delta, ItemDone):
                await self._cite(_item_text(delta.item))
            await self._emit(TurnDelta(delta))

    async def _start(self, slot: int, call_id: str, name: str, final: bool) -> None:
        shown = not final and len(self._calls) < self._max_calls
        container_id = await self._workspace.container_id() if shown else ""
        call = CodeCall(call_id, name, self._turns, container_id)
        self._writing[slot] = _Writing(call, shown)
        if shown:
            self._calls.append(call)
            self._report.calls = len(self._calls)
            await self._emit(CodeStarted(call, slot))
        else:
            call.note = LIMIT_REACHED

    async def _write(self, writing: _Writing, fragment: str) -> None:
        text = writing.decoder.feed(fragment)
        if text and writing.shown:
            self._workspace.prepare()
            writing.text.append(text)
            await self._emit(CodeDelta(writing.call, text))

    async def _complete(self, tool_call: ToolCall, final: bool) -> None:
        if tool_call.slot not in self._writing:
            await self._start(tool_call.slot, tool_call.id, tool_call.name, final)
        writing = self._writing[tool_call.slot]
        call = writing.call
        call.call_id, call.arguments = tool_call.id, tool_call.arguments
        code = tool_call.code(bare=True)
        if code is None or not code.strip():
            # What could be read of it is shown, not run.
            call.code = "".join(writing.text)
            call.note = call.note or BAD_ARGUMENTS
        else:
            call.code = code
        if writing.shown and not tool_call.cut:
            await self._emit(CodeWritten(call))

    async def _abandon(self, writing: list[_Writing]) -> None:
        """The turn was cut: of its code nothing runs."""
        for call in [w.call for w in writing if w.shown]:
            call.status, call.note = "incomplete", None
            await self._emit(CallEnded(call))

    async def _execute(self, call: CodeCall) -> None:
        if self._is_late():
            call.note = call.note or LIMIT_REACHED
        if call.note is not None or call.code is None:
            call.status = "failed"
        else:
            await self._run(call, call.code)
        await self._emit(CallEnded(call))

    async def _run(self, call: CodeCall, code: str) -> None:
        await self._emit(RunStarted(call))
        left = self._deadline - asyncio.get_running_loop().time()
        builder = ResultBuilder()
        try:
            running = self._workspace.run(code, min(self._limits.run_seconds, left))
            async with contextlib.aclosing(running) as events:
                async for event in events:
                    builder.add(event)
                    await self._emit(RunOutput(call, event))
            call.container_id = await self._workspace.container_id()
            call.status = "completed"
        except SandboxError as error:
            logger.warning("code of a model could not run to its end: %s", error)
            call.status, call.note = "failed", _explain(error)
        except Exception as error:
            # A provider's own bug; it must not cost the client the answer.
            logger.exception("code of a model could not run to its end")
            call.status, call.note = "failed", _explain(error)
        call.result = builder.result
        if self._resumes and self._workspace.is_new:
            call.notice = NEW_SANDBOX
        self._resumes = True

    async def _cite(self, text: str) -> None:
        if paths := [path for _, _, path in links(text)]:
            ids = await self._workspace.cite(paths)
            if ids:
                await self._emit(FilesCited(await self._workspace.container_id(), ids))


def _item_text(item: dict[str, Any]) -> str:
    parts = item.get("content") if item.get("type") == "message" else None
    return "".join(str(part.get("text", "")) for part in parts or [] if isinstance(part, dict))


def _explain(error: Exception) -> str:
    # For model and client alike: no names of hosts, no settings of whoever runs this.
    match error:
        case SandboxLostError():
            return "[the sandbox was lost: variables, files and this result are gone; the next call gets a new sandbox]"
        case KernelDiedError():
            return "[the Python kernel died, perhaps out of memory: variables are lost, files are kept]"
        case ExecutionTimeoutError():
            return "[stopped: the code ran longer than allowed]"
        case OutputTruncatedError():
            return "[the output was cut off; the code may have run to its end]"
        case error if isinstance(error, _DID_NOT_RUN):
            return "[the code did not run: no sandbox is available now]"
    return "[the sandbox failed: the code may have run, but its result is lost]"
