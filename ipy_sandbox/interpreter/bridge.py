"""A Responses request as a chat completions request, for endpoints that have only those."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ..errors import InvalidRequestError
from .request import Json

# Said in other words below, or of no meaning to a chat endpoint; all else has the same name there, or is its own.
_NOT_PASSED = {
    "input", "instructions", "tools", "tool_choice", "max_output_tokens", "text", "reasoning", "top_logprobs",
    "include", "truncation", "store", "metadata", "prompt_cache_key", "safety_identifier", "stream_options",
}  # fmt: skip


def to_chat(body: Json) -> Json:
    """The chat request that says the same.

    Raises:
        InvalidRequestError: the request names something that chat completions do not have.
    """
    chat = {key: value for key, value in body.items() if key not in _NOT_PASSED and value is not None}
    chat["messages"] = to_messages(body.get("instructions"), body["input"])
    _add_tools(chat, body)
    if body.get("max_output_tokens") is not None:
        chat["max_tokens"] = body["max_output_tokens"]
    if body.get("top_logprobs"):
        chat |= {"logprobs": True, "top_logprobs": body["top_logprobs"]}
    text = body.get("text") or {}
    if (text.get("format") or {}).get("type") not in (None, "text"):
        chat["response_format"] = _response_format(text["format"])
    effort = (body.get("reasoning") or {}).get("effort")
    if effort:
        chat["reasoning_effort"] = effort
    return chat


def _response_format(given: Json) -> Json:
    if given.get("type") != "json_schema":
        return given
    return {"type": "json_schema", "json_schema": {key: value for key, value in given.items() if key != "type"}}


def _add_tools(chat: Json, body: Json) -> None:
    tools = list(body.get("tools") or [])
    choice = body.get("tool_choice")
    if isinstance(choice, dict) and choice.get("type") == "allowed_tools":
        # Few endpoints know this form; fewer tools and the mode say the same.
        allowed = {t.get("name") for t in choice.get("tools") or [] if isinstance(t, dict)}
        tools = [tool for tool in tools if tool.get("name") in allowed]
        choice = choice.get("mode")
    elif isinstance(choice, dict) and choice.get("type") == "function":
        choice = {"type": "function", "function": {"name": choice.get("name")}}
    if tools:
        chat["tools"] = [_tool(tool) for tool in tools]
        if choice is not None:
            chat["tool_choice"] = choice


def _tool(tool: Json) -> Json:
    if tool.get("type") != "function":
        raise InvalidRequestError(
            f"This model is reached over chat completions, which have no tool of type {tool.get('type')!r}.",
            param="tools",
        )
    function = {key: value for key, value in tool.items() if key != "type" and value is not None}
    return {"type": "function", "function": function}


def to_messages(instructions: str | None, items: list[Json]) -> list[Json]:
    """Responses input items as chat messages; calls that follow each other share one assistant message."""
    messages: list[Json] = [{"role": "system", "content": instructions}] if instructions else []
    for item in items:
        for message in _messages(item):
            last = messages[-1] if messages else {}
            if message["role"] == last.get("role") == "assistant" and message.get("tool_calls"):
                messages[-1] = {**last, "tool_calls": [*(last.get("tool_calls") or []), *message["tool_calls"]]}
            else:
                messages.append(message)
    return messages


def _messages(item: Json) -> Iterator[Json]:
    kind = item.get("type") or "message"
    if kind == "message":
        role = "system" if item.get("role") == "developer" else item.get("role")
        yield {"role": role, "content": _content(item.get("content"), role == "assistant")}
    elif kind == "function_call":
        function = {"name": item.get("name"), "arguments": item.get("arguments") or "{}"}
        known = ("id", "type", "status", "call_id", "name", "arguments")
        extra = {key: value for key, value in item.items() if key not in known}
        call = {**extra, "id": item.get("call_id"), "type": "function", "function": function}
        yield {"role": "assistant", "content": None, "tool_calls": [call]}
    elif kind == "function_call_output":
        output = item.get("output")
        content = output if isinstance(output, str) else _text(output)
        yield {"role": "tool", "tool_call_id": item.get("call_id"), "content": content}
    elif kind != "reasoning":
        # Reasoning is its own model's affair; anything else would change the conversation if left out.
        raise InvalidRequestError(
            f"This model is reached over chat completions, which have no input item of type {kind!r}.", param="input"
        )


def _content(content: Any, assistant: bool) -> Any:
    if not isinstance(content, list):
        return content
    parts = [_part(part) for part in content if isinstance(part, dict)]
    if assistant or all(part["type"] == "text" for part in parts):
        return "".join(part.get("text", "") for part in parts)
    return parts


def _part(part: Json) -> Json:
    match part.get("type"):
        case "input_text" | "output_text" | "text":
            return {"type": "text", "text": part.get("text") or ""}
        case "refusal":
            return {"type": "text", "text": part.get("refusal") or ""}
        case "input_image":
            image = {"url": part.get("image_url")} | ({"detail": part["detail"]} if part.get("detail") else {})
            return {"type": "image_url", "image_url": image}
        case kind:
            raise InvalidRequestError(
                f"This model is reached over chat completions, which have no content part of type {kind!r}.",
                param="input",
            )


def _text(output: Any) -> str:
    parts = output if isinstance(output, list) else []
    return "\n".join(str(part.get("text") or f"[{part.get('type')}]") for part in parts if isinstance(part, dict))
