"""A model server for benchmarks, in a process of its own: one code call, then `TOKENS` words.

    python scripted_model.py [seconds between two words of a streamed answer]

prints its port. It answers both APIs, whole and streamed, and takes as little time for it as it can.
"""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

from aiohttp import web

TOKENS = 20
WORDS = [f"word{n} " for n in range(TOKENS)]
TEXT = "".join(WORDS)
ARGUMENTS = json.dumps({"code": "print(6 * 7)"})
CHAT_USAGE = {"prompt_tokens": 100, "completion_tokens": 20, "total_tokens": 120}
USAGE = {"input_tokens": 100, "output_tokens": 20, "total_tokens": 120}


def event(payload: dict[str, Any]) -> bytes:
    return f"data: {json.dumps(payload)}\n\n".encode()


async def stream(request: web.Request, pieces: list[bytes], delay: float) -> web.StreamResponse:
    response = web.StreamResponse(headers={"content-type": "text/event-stream"})
    await response.prepare(request)
    for piece in pieces:
        if delay:
            await asyncio.sleep(delay)
        await response.write(piece)
    return response


def chat_chunk(delta: dict[str, Any], finish: str | None = None, **more: Any) -> bytes:
    choice = {"index": 0, "delta": delta, "finish_reason": finish}
    return event(
        {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": [choice], **more}
    )


async def chat(request: web.Request) -> web.StreamResponse:
    body = await request.json()
    function = {"name": body["tools"][0]["function"]["name"], "arguments": ARGUMENTS}
    call = {"id": "call_1", "type": "function", "function": function}
    is_final = body["messages"][-1]["role"] == "tool"
    finish = "stop" if is_final else "tool_calls"
    if not body.get("stream"):
        message = {"role": "assistant", "content": TEXT} if is_final else {"role": "assistant", "tool_calls": [call]}
        choice = {"index": 0, "message": message, "finish_reason": finish}
        return web.json_response({"id": "c", "created": 1, "model": "m", "choices": [choice], "usage": CHAT_USAGE})
    deltas = [{"content": word} for word in WORDS] if is_final else [{"tool_calls": [{"index": 0, **call}]}]
    pieces = [chat_chunk(delta) for delta in deltas]
    end = [chat_chunk({}, finish, usage=CHAT_USAGE), b"data: [DONE]\n\n"]
    return await stream(request, [*pieces, *end], request.app["delay"] if is_final else 0)


async def responses(request: web.Request) -> web.StreamResponse:
    body = await request.json()
    is_final = body["input"][-1].get("type") == "function_call_output"
    call = {"id": "fc_1", "type": "function_call", "call_id": "call_1", "name": body["tools"][0]["name"]}
    call |= {"status": "completed", "arguments": ARGUMENTS}
    part = {"type": "output_text", "text": TEXT, "annotations": []}
    message = {"id": "msg_1", "type": "message", "status": "completed", "role": "assistant", "content": [part]}
    item = message if is_final else call
    done = {"id": "resp_1", "object": "response", "created_at": 1, "status": "completed", "model": "m"}
    done |= {"output": [item], "usage": USAGE}
    if not body.get("stream"):
        return web.json_response(done)
    at = {"output_index": 0, "item_id": item["id"]}
    text = {"type": "response.output_text.delta", "content_index": 0, **at}
    added = item | ({"content": []} if is_final else {"arguments": ""})
    pieces = [event({"type": "response.created", "response": done | {"status": "in_progress", "output": []}})]
    pieces.append(event({"type": "response.output_item.added", "output_index": 0, "item": added}))
    if is_final:
        pieces += [event(text | {"delta": word}) for word in WORDS]
    else:
        pieces.append(event({"type": "response.function_call_arguments.delta", "delta": ARGUMENTS, **at}))
    pieces.append(event({"type": "response.output_item.done", "output_index": 0, "item": item}))
    pieces.append(event({"type": "response.completed", "response": done}))
    return await stream(request, pieces, request.app["delay"] if is_final else 0)


async def main() -> None:
    app = web.Application()
    app["delay"] = float(sys.argv[1]) if len(sys.argv) > 1 else 0.0
    app.add_routes([web.post("/v1/chat/completions", chat), web.post("/v1/responses", responses)])
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0, backlog=2048)
    await site.start()
    print(runner.addresses[0][1], flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main())
