"""A model endpoint for tests: both APIs, streamed and not, and it does what the last user message says, as JSON.

    {"code": ["x = 42", "print(x)"]}   one call of the code tool in each turn, then "FINAL " + what the tool gave
    {"text": "hi"}                     the final text instead
    {"tokens": 20, "delay": 0.05}      a final text of 20 words, a pause before each one
    {"status": 500, "fail_turn": 1}    an error in that turn (0: the first)
    {"hang": true}                     no answer at all
    {"cut": true}                      the stream breaks off after its first text

Anything else is answered with `hello`. It refuses hosted tools as OpenAI's chat API does, and unpaired tool outputs.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading
import uuid
from collections.abc import AsyncIterator, Iterator
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

Json = dict[str, Any]


@contextlib.contextmanager
def served(app: Any) -> Iterator[str]:
    """Serve an ASGI application in a thread; gives its address."""
    config = uvicorn.Config(app, port=0, log_level="critical", lifespan="off", ws="none", timeout_graceful_shutdown=1)
    server = uvicorn.Server(config)
    started = threading.Event()
    startup = server.startup

    async def announce(sockets: Any = None) -> None:
        await startup(sockets)
        started.set()

    server.startup = announce  # type: ignore[method-assign]
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    assert started.wait(10)
    try:
        yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join(10)


def text_of(content: Any) -> str:
    """The text of a message's content, in any of its forms."""
    if isinstance(content, str):
        return content
    return " ".join(str(p.get("text", "")) for p in content or [] if isinstance(p, dict))


class FakeModel:
    """The endpoint.

    Attributes:
        requests: what came: path, headers (lower case) and body.
        open: requests that are being answered now.
        stored: responses that can be asked for.
    """

    def __init__(self, name: str = "fake") -> None:
        self.name = name
        self.requests: list[tuple[str, dict[str, str], Json]] = []
        self.open = 0
        self.down: int | None = None
        self.stored: dict[str, Json] = {}
        self.app = Starlette(
            routes=[
                Route("/v1/chat/completions", self.chat, methods=["POST"]),
                Route("/v1/responses", self.responses, methods=["POST"]),
                Route("/v1/responses/{id}", self.get, methods=["GET", "DELETE"]),
                Route("/v1/models", self.models),
            ]
        )

    async def models(self, request: Request) -> Response:
        return JSONResponse({"object": "list", "data": [{"id": "offered", "object": "model", "owned_by": self.name}]})

    async def get(self, request: Request) -> Response:
        found = self.stored.get(request.path_params["id"])
        return JSONResponse(found or refusal("not found"), 200 if found else 404)

    async def chat(self, request: Request) -> Response:
        return await self._serve(request, "chat")

    async def responses(self, request: Request) -> Response:
        return await self._serve(request, "responses")

    async def _serve(self, request: Request, api: str) -> Response:
        body = json.loads(await request.body())
        self.requests.append((request.url.path, dict(request.headers), body))
        try:
            return await self._answer(request, api, body)
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            return JSONResponse(refusal(f"wrong field: {error!r}"), 400)

    async def _answer(self, request: Request, api: str, body: Json) -> Response:
        history = body.get("messages") or body.get("input")
        items = [{"role": "user", "content": history}] if isinstance(history, str) else history
        last = max(i for i, item in enumerate(items) if item.get("role") == "user")
        plan, turn = plan_of(text_of(items[last].get("content"))), 0
        outputs = [i.get("content", i.get("output")) for i in items[last:] if is_output(i)]
        turn = len(outputs)
        if self.down or (plan.get("status") and turn == plan.get("fail_turn", 0)):
            status = self.down or plan["status"]
            return JSONResponse(refusal(f"scripted {status}"), status, {"x-request-id": f"up-{self.name}"})
        hosted = [t["type"] for t in body.get("tools") or [] if t["type"] not in ("function", "custom")]
        if hosted:
            return JSONResponse(refusal(f"Invalid value: '{hosted[0]}'"), 400)
        answer = Answer(self, api, body, plan, outputs)
        headers = {"x-request-id": f"up-{self.name}", "x-upstream": "yes", "openai-version": "2020-10-01"}
        if body.get("stream"):
            return StreamingResponse(self._counted(answer.events()), headers=headers, media_type="text/event-stream")
        if plan.get("hang"):
            await self._hang(request)
        await asyncio.sleep(plan.get("delay", 0))
        whole = answer.whole()
        self.stored[whole["id"]] = whole
        return JSONResponse(whole, headers=headers)

    async def _hang(self, request: Request) -> None:
        self.open += 1
        try:
            while not await request.is_disconnected():  # noqa: ASYNC110  # starlette has no event for it
                await asyncio.sleep(0.01)
        finally:
            self.open -= 1

    async def _counted(self, events: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
        self.open += 1
        try:
            async for event in events:
                yield event
        finally:
            self.open -= 1


def is_output(item: Json) -> bool:
    """Whether a message or item holds what a tool gave."""
    return item.get("role") == "tool" or item.get("type") == "function_call_output"


def plan_of(text: str) -> Json:
    """What a message asks for."""
    with contextlib.suppress(ValueError):
        plan = json.loads(text)
        if isinstance(plan, dict):
            return plan
    return {"text": "hello"}


def refusal(message: str) -> Json:
    """OpenAI's error envelope."""
    return {"error": {"message": message, "type": "invalid_request_error", "param": None, "code": "scripted"}}


def code_tool(body: Json) -> str | None:
    """The name of the first function that takes `code`."""
    for tool in body.get("tools") or []:
        function = tool.get("function", tool)
        if "code" in function.get("parameters", {}).get("properties", {}):
            return str(function["name"])
    return None


class Answer:
    """One turn."""

    def __init__(self, model: FakeModel, api: str, body: Json, plan: Json, outputs: list[Any]) -> None:
        self.api, self.model, self.plan = api, body["model"], plan
        codes, turn = plan.get("code") or [], len(outputs)
        self.tool = code_tool(body)
        self.call = json.dumps({"code": codes[turn]}) if turn < len(codes) and self.tool else None
        count = plan.get("tokens")
        final = plan.get("text") or f"FINAL {json.dumps(outputs)}"
        self.words = [f"tok{i} " for i in range(count)] if count else [final]
        self.id = ("resp_" if api == "responses" else "chatcmpl-") + uuid.uuid4().hex
        self.call_id = f"call_{uuid.uuid4().hex[:24]}"

    def whole(self) -> Json:
        return self._response() if self.api == "responses" else self._completion()

    @property
    def usage(self) -> Json:
        if self.api == "responses":
            return {
                "input_tokens": 10, "output_tokens": 5, "total_tokens": 15,
                "input_tokens_details": {"cached_tokens": 0}, "output_tokens_details": {"reasoning_tokens": 0},
            }  # fmt: skip
        return {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15}

    def _completion(self) -> Json:
        message: Json = {"role": "assistant", "content": None if self.call else "".join(self.words)}
        if self.call:
            function = {"name": self.tool, "arguments": self.call}
            message["tool_calls"] = [{"id": self.call_id, "type": "function", "function": function}]
        choice = {"index": 0, "message": message, "finish_reason": "tool_calls" if self.call else "stop"}
        return {"id": self.id, "object": "chat.completion", "created": 1, "model": self.model, "choices": [choice],
                "usage": self.usage}  # fmt: skip

    def _item(self) -> Json:
        if self.call:
            return {"id": f"fc_{self.id[5:]}", "type": "function_call", "status": "completed", "name": self.tool,
                    "arguments": self.call, "call_id": self.call_id}  # fmt: skip
        part = {"type": "output_text", "text": "".join(self.words), "annotations": [], "logprobs": []}
        return {"id": f"msg_{self.id[5:]}", "type": "message", "status": "completed", "role": "assistant",
                "content": [part]}  # fmt: skip

    def _response(self, status: str = "completed") -> Json:
        done = status == "completed"
        return {"id": self.id, "object": "response", "created_at": 1, "status": status, "model": self.model,
                "output": [self._item()] if done else [], "usage": self.usage if done else None}  # fmt: skip

    async def events(self) -> AsyncIterator[bytes]:
        if self.plan.get("hang"):
            await asyncio.sleep(600)
        source = self._response_events() if self.api == "responses" else self._chunks()
        async for event in source:
            kind = f"event: {event['type']}\n" if self.api == "responses" else ""
            yield f"{kind}data: {json.dumps(event)}\n\n".encode()
        if self.api == "chat":
            yield b"data: [DONE]\n\n"

    async def _words(self) -> AsyncIterator[str]:
        for word in self.words:
            await asyncio.sleep(self.plan.get("delay", 0))
            yield word
            if self.plan.get("cut"):
                raise ConnectionResetError("scripted")

    async def _chunks(self) -> AsyncIterator[Json]:
        def chunk(delta: Json, finish: str | None = None) -> Json:
            return {"id": self.id, "object": "chat.completion.chunk", "created": 1, "model": self.model,
                    "choices": [{"index": 0, "delta": delta, "finish_reason": finish}]}  # fmt: skip

        yield chunk({"role": "assistant", "content": None if self.call else ""})
        if self.call:
            function = {"name": self.tool, "arguments": ""}
            yield chunk({"tool_calls": [{"index": 0, "id": self.call_id, "type": "function", "function": function}]})
            for at in range(0, len(self.call), 7):
                part = {"index": 0, "function": {"arguments": self.call[at : at + 7]}}
                yield chunk({"tool_calls": [part]})
        else:
            async for word in self._words():
                yield chunk({"content": word})
        yield chunk({}, "tool_calls" if self.call else "stop")
        yield {**chunk({}), "choices": [], "usage": self.usage}

    async def _response_events(self) -> AsyncIterator[Json]:
        item, number = self._item(), -1

        def event(kind: str, **fields: Any) -> Json:
            nonlocal number
            number += 1
            return {"type": f"response.{kind}", "sequence_number": number, **fields}

        place = {"item_id": item["id"], "output_index": 0}
        yield event("created", response=self._response("in_progress"))
        yield event("in_progress", response=self._response("in_progress"))
        if self.call:
            begun = {**item, "arguments": "", "status": "in_progress"}
            yield event("output_item.added", output_index=0, item=begun)
            for at in range(0, len(self.call), 7):
                yield event("function_call_arguments.delta", **place, delta=self.call[at : at + 7])
            yield event("function_call_arguments.done", **place, arguments=self.call)
        else:
            part = item["content"][0]
            yield event("output_item.added", output_index=0, item={**item, "content": [], "status": "in_progress"})
            yield event("content_part.added", **place, content_index=0, part={**part, "text": ""})
            async for word in self._words():
                yield event("output_text.delta", **place, content_index=0, delta=word, logprobs=[])
            yield event("output_text.done", **place, content_index=0, text=part["text"], logprobs=[])
            yield event("content_part.done", **place, content_index=0, part=part)
        yield event("output_item.done", output_index=0, item=item)
        yield event("completed", response=self._response())
