"""`aresponses` and `acompletion`: any OpenAI-compatible model, with code run in a sandbox of yours."""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import json
import sys
from collections.abc import AsyncGenerator, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from ..background import BACKGROUND
from ..errors import ConfigurationError, InvalidRequestError, UpstreamError
from ..sandbox.provider import provider_names
from ..sandbox.session import Session
from ..sandbox.tools import SandboxTool, get_sandbox_tool
from . import sse
from .catalog import Route, resolve
from .failure import Failure, is_failure
from .interpreter import Interpreter, Request
from .limits import Limits
from .objects import ApiObject, plain
from .request import Json, Surface, find_tool
from .store import ResponseStore
from .upstream import shared

EXIT_BUDGET = 5.0
"""Seconds that the clean-up may take when the program leaves."""


@dataclass(frozen=True, slots=True)
class CodeInterpreterInterceptionLogger:
    """Put into `ipy_sandbox.callbacks`: from then on the `code_interpreter` tool runs in a sandbox of yours.

    Arguments:
        sandbox_tool_name: a registered sandbox tool, or a provider (e2b, opensandbox, local); None: the first tool.
        enabled_providers: the model providers this is for; None: all.
        limits: how far one request may go.
    """

    sandbox_tool_name: str | None = None
    enabled_providers: Iterable[str] | None = None
    limits: Limits | None = None

    def applies_to(self, route: Route) -> bool:
        """Whether requests to that model endpoint are intercepted."""
        return self.enabled_providers is None or route.provider.name in set(self.enabled_providers)


callbacks: list[Any] = []
"""What intercepts the requests of this process; see CodeInterpreterInterceptionLogger."""


async def aresponses(
    model: str,
    input: Any = None,
    tools: list[Json] | None = None,
    stream: bool = False,
    metadata: dict[str, Any] | None = None,
    *,
    base_url: str | None = None,
    api_key: str | None = None,
    extra_headers: Mapping[str, str] | None = None,
    interpreter: Interpreter | Session | str | None = None,
    images: bool | None = None,
    **params: Any,
) -> Any:
    """Ask a model over OpenAI's Responses API, bridged where its server has only chat completions.

        response = await aresponses("openai/gpt-5", "What is 2**100?", interpreter="local",
                                    tools=[{"type": "code_interpreter", "container": {"type": "auto"}}])
        print(response.output_text)

    Arguments:
        model: `provider/name`, or any name together with `base_url`.
        input: a prompt, or a list of input items.
        tools: with `{"type": "code_interpreter", "container": {"type": "auto"}}` the model can run code.
        stream: give an async iterator of the response's events, each as soon as it arises.
        metadata: `session_id` in it names a sandbox that is kept for later requests; else each has its own.
        base_url, api_key, extra_headers: where the model is, instead of the provider's own address and variable;
            `api_base` is LiteLLM's name for `base_url`.
        interpreter: where code runs: a registered sandbox tool or provider by name, a Session, or an Interpreter;
            None: what `ipy_sandbox.callbacks` says, and with none of those the model's server runs it, if it can.
        images: whether the model sees the pictures that code draws; None: what is known of its provider.
        params: everything else the API knows.

    Raises:
        ConfigurationError: the model provider or sandbox tool is unknown, or a key is missing.
        InvalidRequestError: the request is wrong.
        UpstreamError: the model endpoint failed.
    """
    base_url = base_url or params.pop("api_base", None)
    body = _body(model, stream, input=input, tools=tools, metadata=metadata, **params)
    route = resolve(model, base_url=base_url, api_key=api_key, extra_headers=extra_headers)
    return await _ask("responses", body, route, interpreter, images)


async def acompletion(
    model: str,
    messages: list[Any],
    tools: list[Json] | None = None,
    stream: bool = False,
    metadata: dict[str, Any] | None = None,
    *,
    base_url: str | None = None,
    api_key: str | None = None,
    extra_headers: Mapping[str, str] | None = None,
    interpreter: Interpreter | Session | str | None = None,
    images: bool | None = None,
    **params: Any,
) -> Any:
    """Ask a model over chat completions; the arguments are those of `aresponses`.

    The final answer is `choices[0].message.content`; what ran is in `choices[0].message.executed_tools`, and
    `messages` holds all that was added to the conversation.
    """
    base_url = base_url or params.pop("api_base", None)
    body = _body(model, stream, messages=messages, tools=tools, metadata=metadata, **params)
    route = resolve(model, base_url=base_url, api_key=api_key, extra_headers=extra_headers)
    return await _ask("chat", body, route, interpreter, images)


def _body(model: str, stream: bool, **fields: Any) -> Json:
    given = {name: plain(value) for name, value in fields.items() if value is not None}
    return {"model": model, **given, **({"stream": True} if stream else {})}


async def _ask(
    surface: Surface, body: Json, route: Route, chosen: Interpreter | Session | str | None, images: bool | None
) -> Any:
    limits: Limits | None = None
    if chosen is None and (logger := _logger_for(route)) is not None:
        chosen, limits = logger.sandbox_tool_name or get_sandbox_tool().name, logger.limits
    if chosen is None and not await _is_ours(surface, body, route):
        return await _pass(surface, body, route)
    request = Request(surface, body, route, limits=limits, images=images)
    if isinstance(chosen, Session):
        request.session, chosen = chosen, None
    interpreter = chosen if isinstance(chosen, Interpreter) else await _interpreter(chosen)
    if body.get("stream"):
        return _objects(interpreter.stream(request, raises=True))
    return ApiObject(await interpreter.respond(request))


def _logger_for(route: Route) -> CodeInterpreterInterceptionLogger | None:
    # The list that users set is the package's: `ipy_sandbox.callbacks = [...]`.
    installed = getattr(sys.modules[__name__.partition(".")[0]], "callbacks", callbacks)
    mine = (c for c in installed if isinstance(c, CodeInterpreterInterceptionLogger))
    return next((logger for logger in mine if logger.applies_to(route)), None)


async def _is_ours(surface: Surface, body: Json, route: Route) -> bool:
    """Whether only the interpreter can answer this, though no code is to run."""
    if find_tool(body) is not None:
        if surface == "responses" and route.provider.responses == "none":
            raise InvalidRequestError(
                f"{route.provider.name} runs no code: pass interpreter=, or set ipy_sandbox.callbacks.", param="tools"
            )
        return False
    if surface == "chat":
        return Interpreter.wants(body)
    previous = body.get("previous_response_id")
    known = isinstance(previous, str) and await (await _interpreter(None)).store.get("", previous) is not None
    return known or Interpreter.wants(body) or route.provider.responses == "none"


async def _objects(events: AsyncGenerator[Json | None, None]) -> AsyncGenerator[ApiObject, None]:
    async with contextlib.aclosing(events):
        async for event in events:
            if event is not None:
                yield ApiObject(event)


async def _pass(surface: Surface, body: Json, route: Route) -> Any:
    """The request as it is, the answer as it comes."""
    content = json.dumps({**body, "model": route.model}).encode()
    if body.get("stream"):
        return _passed_events(surface, content, route)
    async with _forwarded(surface, content, route) as chunks:
        return ApiObject(json.loads(b"".join([chunk async for chunk in chunks])))


async def _passed_events(surface: Surface, content: bytes, route: Route) -> AsyncGenerator[ApiObject, None]:
    async with _forwarded(surface, content, route) as chunks:
        async for event in sse.decode(chunks):
            if is_failure(event.payload):
                raise _upstream_error(route, None, event.payload)
            if isinstance(event.payload, dict):
                yield ApiObject(event.payload)


@contextlib.asynccontextmanager
async def _forwarded(surface: Surface, content: bytes, route: Route) -> AsyncGenerator[Any, None]:
    headers = {"content-type": "application/json"}
    async with shared().forward(route, "POST", surface, headers=headers, content=content) as answer:
        if answer.status >= 400:
            text = b"".join([chunk async for chunk in answer.body]).decode(errors="replace")
            try:
                payload = json.loads(text)
            except (ValueError, RecursionError):
                payload = text
            raise _upstream_error(route, answer.status, payload)
        yield answer.body


def _upstream_error(route: Route, status: int | None, payload: Any) -> UpstreamError:
    failure = Failure.from_payload(payload)
    return UpstreamError(
        f"The model {route.model} at {route.host} failed{f' ({status})' if status else ''}: {failure.message[:500]}",
        provider=route.provider.name,
        status=status,
        body=payload,
        failure=failure,
        turn_number=0,
    )


@dataclass(slots=True)
class _Known:
    """An interpreter and the tool whose sandboxes it uses; `lifetime` ends with its event loop."""

    tool: SandboxTool | None
    interpreter: Interpreter
    lifetime: AsyncGenerator[Interpreter, None]


# One for each loop and tool, so that sessions and stored responses last.
_KNOWN: dict[asyncio.AbstractEventLoop, list[_Known]] = {}


async def _interpreter(name: str | None) -> Interpreter:
    tool = None if name is None else _tool(name)
    for loop in [loop for loop in _KNOWN if loop.is_closed()]:
        del _KNOWN[loop]
    known = _KNOWN.setdefault(asyncio.get_running_loop(), [])
    for entry in known:
        if entry.tool == tool:
            return entry.interpreter
    # Nothing from here on really waits: two first calls at once share one interpreter, and so their sessions.
    store = None if tool is None else (await _interpreter(None)).store
    lifetime = _live(tool, store)
    known.append(_Known(tool, await anext(lifetime), lifetime))
    return known[-1].interpreter


def _tool(name: str) -> SandboxTool:
    try:
        return get_sandbox_tool(name)
    except ConfigurationError:
        if name in (*provider_names(), "fake"):
            return SandboxTool(name, name)
    raise ConfigurationError(
        f"There is no sandbox tool or provider {name!r}: register one, or choose from {', '.join(provider_names())}."
    )


async def _live(tool: SandboxTool | None, store: ResponseStore | None) -> AsyncGenerator[Interpreter, None]:
    # asyncio.run closes the async generators of its loop: sandboxes are deleted while that is still possible.
    if tool is None:
        yield Interpreter(Session, store=store)
        return
    provider = tool.open_provider()
    try:
        async with Interpreter(lambda: Session(provider, tool.options), store=store) as interpreter:
            yield interpreter
    finally:
        await provider.aclose()


@atexit.register
def _close_all() -> None:
    """Delete what the background loop has left."""
    for loop, known in _KNOWN.items():
        for entry in known:
            if loop.is_running():
                with contextlib.suppress(Exception):
                    asyncio.run_coroutine_threadsafe(entry.lifetime.aclose(), loop).result(EXIT_BUDGET)


def responses(model: str, input: Any = None, tools: list[Json] | None = None, **params: Any) -> Any:
    """`aresponses`, for plain code; with `stream=True` a plain iterator."""
    return _sync(BACKGROUND.run(aresponses(model, input, tools, **params)))


def completion(model: str, messages: list[Any], tools: list[Json] | None = None, **params: Any) -> Any:
    """`acompletion`, for plain code; with `stream=True` a plain iterator."""
    return _sync(BACKGROUND.run(acompletion(model, messages, tools, **params)))


def _sync(answer: Any) -> ApiObject | Iterator[ApiObject]:
    return answer if isinstance(answer, ApiObject) else BACKGROUND.iterate(answer)
