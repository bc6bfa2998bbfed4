"""Executions of earlier requests, told to the model again as calls of its function.

Clients send back what they were given: `code_interpreter_call` items, or assistant messages with `executed_tools`.
"""

from __future__ import annotations

import json
from typing import Any

from .arguments import parse_code
from .catalog import Provider
from .request import Json, arguments_of

_CITATION = "container_file_citation"


def past_messages(call_id: str, name: str, code: str, output: str) -> list[Json]:
    """An earlier execution as chat messages: the assistant's call and the tool's answer."""
    function = {"name": name, "arguments": arguments_of(code)}
    call = {"id": call_id, "type": "function", "function": function}
    return [
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": call_id, "content": output},
    ]


def past_items(call_id: str, name: str, code: str, output: str) -> list[Json]:
    """An earlier execution as Responses items: the function call and its output."""
    return [
        {"type": "function_call", "call_id": call_id, "name": name, "arguments": arguments_of(code)},
        {"type": "function_call_output", "call_id": call_id, "output": output},
    ]


def expand_messages(messages: list[Json], name: str, provider: Provider) -> list[Json]:
    """Chat messages in which each assistant message with `executed_tools` tells of the calls as calls of `name`."""
    expanded: list[Json] = []
    for message in messages:
        entries = message.get("executed_tools")
        for number, entry in enumerate(entries if isinstance(entries, list) else []):
            if isinstance(entry, dict) and entry.get("type") == "code_interpreter":
                expanded += _past_call(entry, number, name, provider)
        expanded.append(_as_sent(message) if message.get("role") == "assistant" else message)
    return expanded


def _as_sent(message: Json) -> Json:
    # Strict servers refuse what they did not send: the first is ours, empty ones are what clients make of nothing.
    empty = [key for key in ("refusal", "annotations", "tool_calls", "audio", "function_call") if not message.get(key)]
    sent = {key: value for key, value in message.items() if key not in ("executed_tools", *empty)}
    if kept := [a for a in sent.pop("annotations", []) if a.get("type") != _CITATION]:
        sent["annotations"] = kept
    return sent


def _past_call(entry: Json, number: int, name: str, provider: Provider) -> list[Json]:
    code = entry.get("code")
    if not isinstance(code, str):
        code = parse_code(str(entry.get("arguments") or "")) or ""
    call_id = provider.call_id(str(entry.get("tool_call_id") or f"call_{number}"))
    return past_messages(call_id, name, code, past_output(entry.get("outputs"), entry.get("output")))


def past_output(outputs: Any, fallback: Any = None) -> str:
    """The text of an earlier call's `outputs`, pictures in words."""
    if not isinstance(outputs, list):
        return fallback if isinstance(fallback, str) and fallback else "[the output was not kept]"
    parts = [_past_part(entry) for entry in outputs if isinstance(entry, dict)]
    return "\n".join(part for part in parts if part) or "[no output]"


def _past_part(entry: Json) -> str:
    if entry.get("type") == "logs":
        return str(entry.get("logs") or "").rstrip("\n")
    return "[an image]" if entry.get("type") == "image" else json.dumps(entry)[:1000]


def has_past_calls(body: Json) -> bool:
    """Whether a request tells of earlier executions."""
    messages, items = body.get("messages"), body.get("input")
    of_messages = (m.get("executed_tools") for m in (messages if isinstance(messages, list) else []) if _is_object(m))
    of_items = (
        i.get("type") == "code_interpreter_call" for i in (items if isinstance(items, list) else []) if _is_object(i)
    )
    return any(of_messages) or any(of_items)


def _is_object(value: Any) -> bool:
    return isinstance(value, dict)


def expand_items(items: list[Json], name: str, provider: Provider) -> list[Json]:
    """Responses items in which each `code_interpreter_call` is a call of `name` and its output."""
    expanded: list[Json] = []
    for item in items:
        if item.get("type") == "code_interpreter_call":
            call_id = f"call_{str(item.get('id') or len(expanded)).removeprefix('ci_')}"[:64]
            expanded += past_items(
                provider.call_id(call_id), name, str(item.get("code") or ""), past_output(item.get("outputs"))
            )
        else:
            expanded.append(_without_citations(item))
    return expanded


def _without_citations(item: Json) -> Json:
    # Citations name containers that the endpoint has never heard of.
    content = item.get("content")
    if item.get("role") != "assistant" or not isinstance(content, list):
        return item
    return {**item, "content": [_uncited(part) if isinstance(part, dict) else part for part in content]}


def _uncited(part: Json) -> Json:
    kept = [a for a in part.get("annotations") or [] if a.get("type") != _CITATION]
    return {**part, "annotations": kept} if "annotations" in part else part


def foreign(items: list[Json]) -> list[Json]:
    """Items that one endpoint made, for another: without its reasoning, ids and own fields."""
    return [_foreign(item) for item in items if item.get("type") != "reasoning"]


def _foreign(item: Json) -> Json:
    kind = item.get("type") or "message"
    fields = {"message": ("type", "role", "content"), "function_call": ("type", "call_id", "name", "arguments")}
    return {key: item[key] for key in fields[kind] if key in item} if kind in fields else item
