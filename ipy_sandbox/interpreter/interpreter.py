"""Interpreter: requests with the `code_interpreter` tool, answered by any model with code run in sandboxes of ours."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeAlias, TypeVar

from ..errors import InvalidRequestError, UpstreamError
from ..sandbox.pool import SessionPool
from ..sandbox.session import Session
from . import sse
from .calls import LoopEnded, LoopEvent
from .catalog import Route
from .chat import ChatView
from .conversation import Conversation
from .limits import Limits
from .loop import Emit, Loop, Report
from .past import has_past_calls
from .prepare import begin
from .relay import Send, relay, stopped
from .request import (
    ALIASES,
    Json,
    Surface,
    check,
    find_tool,
    function_names,
    input_items,
    session_id,
)
from .responses import ResponsesView, shown
from .store import MemoryStore, ResponseStore, Stored
from .turn import API
from .upstream import Upstream, shared
from .workspace import Containers, Lease, Workspace, borrowed, ephemeral

T = TypeVar("T")
View: TypeAlias = ResponsesView | ChatView
Show: TypeAlias = Callable[[LoopEvent, list[Json]], Awaitable[None]]

_NO_SUCH_API = (404, 405, 501)


@dataclass(slots=True)
class Request:
    """One request of a client.

    Arguments:
        surface: the API the client speaks.
        body: what it sent.
        route: the model endpoint.
        identity: whose sessions, containers and stored responses it may reach.
        session_id: the sticky session; None: what `metadata.session_id` of the body says, else a sandbox of its own.
        session: run the code in this session instead.
        images: whether the model sees; None: what is known of its provider, and tried out.
        limits: how far this request may go; None: as the interpreter says.
    """

    surface: Surface
    body: Json
    route: Route
    identity: str = ""
    session_id: str | None = None
    session: Session | None = field(default=None, repr=False)
    images: bool | None = None
    limits: Limits | None = None
    report: Report = field(default_factory=Report)


@dataclass(slots=True)
class _Job:
    """A request under way to one API of its endpoint."""

    request: Request
    conversation: Conversation
    view: View
    workspace: Workspace
    previous: Stored | None


class Interpreter:
    """Answers requests with the `code_interpreter` tool. It belongs to the event loop that first uses it.

    Arguments:
        make_session: makes the session for one sandbox (which is made when code comes).
        limits: how far one request may go.
        pool: the sticky sessions; None: one of its own.
        store: the finished responses; None: in memory.
        keepalive: seconds of silence after which a stream yields None.
        upstream: the connections to model endpoints; None: those of the running loop.
        always_outputs: show outputs of code to clients that did not `include` them too.
    """

    def __init__(
        self,
        make_session: Callable[[], Session],
        *,
        limits: Limits | None = None,
        pool: SessionPool | None = None,
        store: ResponseStore | None = None,
        keepalive: float = 10,
        upstream: Upstream | None = None,
        always_outputs: bool = False,
    ) -> None:
        self._make_session = make_session
        self._limits = limits or Limits()
        self.pool = SessionPool(make_session) if pool is None else pool
        self.store: ResponseStore = MemoryStore() if store is None else store
        self._keepalive = keepalive
        self._upstream = upstream
        self._always_outputs = always_outputs
        self._containers = Containers()
        self._running: set[asyncio.Task[Any]] = set()
        self._cleaning: set[asyncio.Task[Any]] = set()
        # Learnt from refusals: endpoints without the Responses API, and models that do not see.
        self._chat_only: set[str] = set()
        self._blind: set[str] = set()

    @staticmethod
    def wants(body: Json) -> bool:
        """Whether a request needs the interpreter: it has the tool, or tells of code that ran earlier."""
        return find_tool(body) is not None or has_past_calls(body)

    async def respond(self, request: Request) -> Json:
        """The whole answer, as the body of the API the client speaks. Cancelling stops everything.

        Raises:
            InvalidRequestError: the request is wrong; nothing was sent.
            UpstreamError: the model endpoint failed; `turn_number` (from 0) says when.
        """

        async def show(event: LoopEvent, shown: list[Json]) -> None:
            pass

        task = self._start(self._run(request, show, stream=False))
        try:
            await asyncio.wait({task})
        except asyncio.CancelledError:
            task.cancel()
            raise
        if task.cancelled():
            raise stopped()
        return task.result().response

    def stream(self, request: Request, *, raises: bool = False) -> AsyncGenerator[Json | None, None]:
        """The answer's events (Responses) or chunks (chat) as they arise; None: nothing happened for a while.

        Closing the iterator stops the model, the code, and deletes a sandbox that was the request's own. An endpoint
        that fails before the first event is raised like in `respond`; later failures are events, with `raises` they
        are raised too.
        """

        async def work(send: Send[Json]) -> None:
            async def show(event: LoopEvent, shown: list[Json]) -> None:
                for item in shown:
                    await send(item)

            await self._run(request, show, stream=True, failure=None if raises else send)

        return relay(work, self._start, self._keepalive)

    def events(self, request: Request) -> AsyncGenerator[LoopEvent | None, None]:
        """The events of the loop itself, with the output of running code; failures are raised whenever they come."""

        async def work(send: Send[LoopEvent]) -> None:
            async def show(event: LoopEvent, shown: list[Json]) -> None:
                await send(event)

            await self._run(request, show, stream=True)

        return relay(work, self._start, self._keepalive)

    async def stream_bytes(self, request: Request) -> AsyncGenerator[bytes, None]:
        """`stream`, as the body of an event-stream answer."""
        async with contextlib.aclosing(self.stream(request)) as events:
            async for event in events:
                if event is None:
                    yield sse.KEEPALIVE
                else:
                    yield sse.encode(event, event.get("type") if request.surface == "responses" else None)
        if request.surface == "chat":
            yield sse.DONE

    def _start(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        task = asyncio.create_task(work)
        self._running.add(task)
        task.add_done_callback(self._forget)
        return task

    def _forget(self, task: asyncio.Task[Any]) -> None:
        self._running.discard(task)
        if not task.cancelled():
            task.exception()  # raised where it was awaited, if anybody still waits

    def _spawn(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Start what goes on when its request is over: making and deleting sandboxes."""
        task = asyncio.create_task(work)
        self._cleaning.add(task)
        task.add_done_callback(self._cleaning.discard)
        return task

    async def _run(self, request: Request, show: Show, *, stream: bool, failure: Send[Json] | None = None) -> View:
        check(request.body)
        previous = await self._previous(request)
        lease = self._lease(request)
        *others, last = self._apis(request)
        for api in others:
            job = self._job(request, api, previous, lease)
            try:
                return await self._drive(job, show, stream, failure)
            except UpstreamError as error:
                if error.status not in _NO_SUCH_API or job.view.started:
                    raise
        view = await self._drive(self._job(request, last, previous, lease), show, stream, failure)
        if others:
            self._chat_only.add(request.route.base_url)
        return view

    def _apis(self, request: Request) -> tuple[API, ...]:
        if request.surface == "chat" or request.route.base_url in self._chat_only:
            return ("chat",)
        return ("chat",) if request.route.provider.responses == "none" else ("responses", "chat")

    async def _drive(self, job: _Job, show: Show, stream: bool, failure: Send[Json] | None) -> View:
        request, conversation, view = job.request, job.conversation, job.view

        async def emit(event: LoopEvent) -> None:
            shown = view.feed(event)
            if isinstance(event, LoopEnded):
                # Before the client can know the id.
                await self._keep(job)
            await show(event, shown)

        loop = self._loop(job, emit, stream)
        try:
            await loop.run()
            if not conversation.sees and request.images is None:
                self._blind.add(request.route.origin)
        except UpstreamError as error:
            if failure is None or not view.started:
                raise
            for event in view.fail(error):
                await failure(event)
        finally:
            await job.workspace.aclose()
        return view

    def _loop(self, job: _Job, emit: Emit, stream: bool) -> Loop:
        request, body, name = job.request, job.request.body, job.conversation.name
        return Loop(
            self._upstream or shared(),
            request.route,
            job.conversation,
            job.workspace,
            request.limits or self._limits,
            emit,
            request.report,
            code_names={name} | (ALIASES - function_names(body)) if find_tool(body) else set(),
            max_calls=body.get("max_tool_calls"),
            resumes=has_past_calls(body) or job.previous is not None,
            stream=stream,
        )

    async def _previous(self, request: Request) -> Stored | None:
        response_id = request.body.get("previous_response_id")
        if request.surface == "chat" or response_id is None:
            return None
        return await self.stored(request.identity, response_id, param="previous_response_id")

    def _lease(self, request: Request) -> Lease | None:
        """The session the request names, not opened yet; None: it gets one of its own."""
        if request.session is not None:
            return partial(borrowed, request.session)
        container = (find_tool(request.body) or {}).get("container")
        if isinstance(container, str):
            key = self._containers.find(self.pool.sessions(request.identity), container)
            return partial(self.pool.lease, request.identity, key)
        name = request.session_id or session_id(request.body)
        return None if name is None else partial(self.pool.lease, request.identity, name)

    def _job(self, request: Request, api: API, previous: Stored | None, lease: Lease | None) -> _Job:
        limits = request.limits or self._limits
        chars, model = limits.client_chars, request.route.model
        view: View
        if request.surface == "chat":
            view = ChatView(request.body, model=model, client_chars=chars)
        else:
            view = ResponsesView(
                request.body,
                model=model,
                upstream_api=api,
                client_chars=chars,
                always_outputs=self._always_outputs,
            )
        own = lease is None
        workspace = Workspace(
            self._containers, lease or partial(ephemeral, self._make_session), self._spawn, slow_end=own
        )
        try:
            conversation = begin(
                request.body,
                request.surface,
                api,
                request.route,
                previous,
                output_limit=limits.model_chars,
                sees=self._sees(request),
            )
        except (AttributeError, KeyError, TypeError) as error:
            raise InvalidRequestError("The request has a value of the wrong type somewhere.") from error
        return _Job(request, conversation, view, workspace, previous)

    def _sees(self, request: Request) -> bool:
        if request.images is not None:
            return request.images
        return request.route.provider.images and request.route.origin not in self._blind

    async def _keep(self, job: _Job) -> None:
        request, view = job.request, job.view
        if isinstance(view, ChatView) or request.body.get("store") is False:
            return
        history = job.conversation.history()
        if job.conversation.api == "chat" and request.body.get("instructions"):
            history = history[1:]
        stored = Stored(
            response=view.stored(),
            items=input_items(request.body.get("input")),
            context=job.previous.conversation() if job.previous is not None else [],
            history=history,
            origin=request.route.origin,
            api=job.conversation.api,
        )
        await self.store.put(request.identity, stored)

    async def stored(self, identity: str, response_id: str, param: str = "response_id") -> Stored:
        """A finished response; raises InvalidRequestError if this identity has none of that id."""
        stored = await self.store.get(identity, response_id) if isinstance(response_id, str) else None
        if stored is not None:
            return stored
        if param == "previous_response_id":
            message = f"Previous response with id {response_id!r} not found."
            raise InvalidRequestError(message, param=param, code="previous_response_not_found")
        raise InvalidRequestError(f"Response with id {response_id!r} not found.", status=404, param=param)

    async def retrieve(self, identity: str, response_id: str, include: list[str] | None = None) -> Json:
        """The body of a finished response, with what the client now asks to `include`."""
        stored = await self.stored(identity, response_id)
        return shown(stored.response, include or [], always_outputs=self._always_outputs)

    async def container_file(self, identity: str, container_id: str, file_id: str) -> tuple[str, bytes]:
        """Path and content of a file that an answer cited, while its session lives.

        Raises:
            InvalidRequestError: there is no such container or file for this identity.
        """
        key = self._containers.find(self.pool.sessions(identity), container_id)
        async with self.pool.lease(identity, key) as session:
            path = self._containers.path(session, file_id)
            return path, await session.adownload(path)

    async def aclose(self) -> None:
        """Stop what runs and delete every sandbox."""
        for task in self._running:
            task.cancel()
        while tasks := self._running | self._cleaning:
            await asyncio.wait(tasks)
        await self.pool.aclose()

    async def __aenter__(self) -> Interpreter:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.aclose()
