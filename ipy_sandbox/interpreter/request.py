"""The client's request as the model endpoint may see it: pure functions on request bodies.

The hosted tool `code_interpreter` becomes a function tool, forced choices last for one turn only, and what earlier
answers said about executed code becomes plain function calls again. Facts: OpenAI's API reference (tools,
tool_choice, include), and the request shapes of openai-python 3.57.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any, Literal

from ..errors import InvalidRequestError

Json = dict[str, Any]
Surface = Literal["responses", "chat"]

TOOL_TYPE = "code_interpreter"
TOOL_NAME = "litellm_code_execution"
ALIASES = frozenset({"code_interpreter", "python", "execute_python", "run_python"})
"""Names that models call the tool by, whatever it was declared as."""
INCLUDE_OUTPUTS = "code_interpreter_call.outputs"
DESCRIPTION = (
    "Run Python code in a sandbox: a stateful Jupyter kernel whose variables and files are kept between calls. "
    "Returns what the code prints, the value of its last expression, its errors and its charts. "
    "Files for the user go to /mnt/data; link them in the answer as [name](sandbox:/mnt/data/NAME)."
)
PARAMETERS: Json = {
    "type": "object",
    "properties": {"code": {"type": "string", "description": "The Python code to run."}},
    "required": ["code"],
    "additionalProperties": False,
}


def find_tool(body: Json) -> Json | None:
    """The `code_interpreter` tool of a request, on either surface, or None."""
    tools = body.get("tools")
    entries = tools if isinstance(tools, list) else []
    return next((t for t in entries if isinstance(t, dict) and t.get("type") == TOOL_TYPE), None)


def check(body: Json) -> None:
    """Raise InvalidRequestError for what this loop cannot do; nothing is silently ignored."""
    tools = body.get("tools")
    if tools is not None and (not isinstance(tools, list) or not all(isinstance(tool, dict) for tool in tools)):
        raise InvalidRequestError("tools must be a list of tools.", param="tools")
    if body.get("background"):
        raise InvalidRequestError("background responses are not supported with code_interpreter.", param="background")
    if body.get("conversation") is not None:
        raise InvalidRequestError(
            "conversation is not supported with code_interpreter: use previous_response_id.", param="conversation"
        )
    if body.get("n") not in (None, 1):
        raise InvalidRequestError("n must be 1 with code_interpreter.", param="n")
    for name in ("max_tool_calls", "max_output_tokens", "max_tokens", "max_completion_tokens"):
        limit = body.get(name)
        if limit is not None and (not isinstance(limit, int) or isinstance(limit, bool) or limit < 0):
            raise InvalidRequestError(f"{name} must be a positive integer, not {limit!r:.60}.", param=name)
    for name in ("metadata", "reasoning", "text", "stream_options"):
        if not isinstance(body.get(name), dict | None):
            raise InvalidRequestError(f"{name} must be an object.", param=name)
    include = body.get("include")
    if include is not None and not (isinstance(include, list) and all(isinstance(i, str) for i in include)):
        raise InvalidRequestError("include must be a list of texts.", param="include")
    _check_container((find_tool(body) or {}).get("container"))


def _check_container(container: Any) -> None:
    if container is None or isinstance(container, str):
        return
    if not isinstance(container, dict) or container.get("type") != "auto":
        raise InvalidRequestError('container must be {"type": "auto"} or a container id.', param="tools.container")
    if container.get("file_ids"):
        raise InvalidRequestError(
            "container.file_ids is not supported: upload files into the session's sandbox.",
            param="tools.container.file_ids",
        )
    if container.get("network_policy") is not None:
        raise InvalidRequestError(
            "container.network_policy cannot be chosen here: who runs the sandboxes decides on their network.",
            param="tools.container.network_policy",
        )


def function_names(body: Json) -> set[str]:
    """The names of the client's own function and custom tools."""
    tools = [t for t in body.get("tools") or [] if isinstance(t, dict)]
    nested = [t.get(str(t.get("type"))) for t in tools]
    names = [t.get("name") for t in tools] + [n.get("name") for n in nested if isinstance(n, dict)]
    return {name for name in names if isinstance(name, str)}


def internal_name(body: Json) -> str:
    """The name under which the model sees the tool: `litellm_code_execution`, or one the client does not use."""
    taken = function_names(body)
    name, number = TOOL_NAME, 1
    while name in taken:
        number += 1
        name = f"{TOOL_NAME}_{number}"
    return name


def function_tool(name: str, api: Surface) -> Json:
    """The function tool that stands for `code_interpreter`."""
    function = {"name": name, "description": DESCRIPTION, "parameters": PARAMETERS}
    return {"type": "function", "function": function} if api == "chat" else {"type": "function", **function}


def rewrite_tools(tools: Iterable[Json], name: str, api: Surface) -> list[Json]:
    """The tools with the first `code_interpreter` as a function, further ones dropped."""
    rewritten: list[Json] = []
    for tool in tools:
        if tool.get("type") != TOOL_TYPE:
            rewritten.append(tool)
        elif (function := function_tool(name, api)) not in rewritten:
            rewritten.append(function)
    return rewritten


def named_choice(name: str, api: Surface) -> Json:
    """The tool_choice that forces the function `name`."""
    return {"type": "function", "function": {"name": name}} if api == "chat" else {"type": "function", "name": name}


def rewrite_choice(choice: Any, name: str, api: Surface, own_names: set[str]) -> Any:
    """The client's tool_choice for the first turn: `code_interpreter` named as the function it has become."""
    if not isinstance(choice, dict):
        return choice
    if _names_the_tool(choice, own_names):
        return named_choice(name, api)
    if choice.get("type") == "allowed_tools":
        return _rewrite_allowed(choice, name, api, own_names)
    return choice


def _names_the_tool(choice: Json, own_names: set[str]) -> bool:
    if choice.get("type") == TOOL_TYPE:
        return True
    function = choice.get("function")
    named = function.get("name") if isinstance(function, dict) else choice.get("name")
    # Clients that cannot express the hosted form name it as if it were a function.
    return choice.get("type") == "function" and named == TOOL_TYPE and named not in own_names


def _rewrite_allowed(choice: Json, name: str, api: Surface, own_names: set[str]) -> Json:
    # Chat nests the fields one level deeper than Responses.
    inner = choice.get("allowed_tools")
    if isinstance(inner, dict):
        return {**choice, "allowed_tools": _rewrite_allowed(inner, name, api, own_names)}
    tools = [
        named_choice(name, api) if isinstance(t, dict) and _names_the_tool(t, own_names) else t
        for t in choice.get("tools") or []
    ]
    return {**choice, "tools": tools}


def later_choice(choice: Any) -> Any:
    """The tool_choice of the turns after the first: what forces a call would make the loop endless."""
    if choice in (None, "none", "auto"):
        return choice
    if isinstance(choice, dict) and choice.get("type") == "allowed_tools":
        inner = choice.get("allowed_tools")
        if isinstance(inner, dict):
            return {**choice, "allowed_tools": {**inner, "mode": "auto"}}
        return {**choice, "mode": "auto"}
    return "auto"


def session_id(body: Json) -> str | None:
    """The `metadata.session_id` of a request, as text, or None."""
    value = (body.get("metadata") or {}).get("session_id")
    return None if value is None or value == "" else str(value)


# What only this loop understands; the model endpoint never sees it.
_OURS = ("max_tool_calls", "previous_response_id", "background", "conversation", "stream")


def strip(body: Json) -> Json:
    """A copy of the request without what concerns only this loop."""
    stripped = {key: value for key, value in body.items() if key not in _OURS}
    _keep_if_any(stripped, "include", [i for i in body.get("include") or [] if i != INCLUDE_OUTPUTS])
    _keep_if_any(stripped, "metadata", {k: v for k, v in (body.get("metadata") or {}).items() if k != "session_id"})
    return stripped


def _keep_if_any(body: Json, key: str, value: Any) -> None:
    if value:
        body[key] = value
    else:
        body.pop(key, None)


def arguments_of(code: str) -> str:
    """The arguments of the function call that runs `code`."""
    return json.dumps({"code": code}, ensure_ascii=False)


def input_items(given: Any) -> list[Json]:
    """A request's `input` as a list of items."""
    if isinstance(given, str):
        return [{"role": "user", "content": given}]
    if given is None:
        return []
    if not isinstance(given, list) or not all(isinstance(item, dict) for item in given):
        raise InvalidRequestError("input must be a string or a list of items.", param="input")
    return given
