"""`executed_tools`: how chat completions tell about code that ran.

The shape is Groq's (`index, type, arguments, output, code_results`), with the fields of a code_interpreter_call beside
it.
"""

from __future__ import annotations

from ..models import CodeExecutionResult
from .calls import CodeCall
from .request import Json, arguments_of

_SHORT_NAMES = {
    "text/plain": "text",
    "text/html": "html",
    "text/markdown": "markdown",
    "text/latex": "latex",
    "image/svg+xml": "svg",
    "image/png": "png",
    "image/jpeg": "jpeg",
    "application/json": "json",
}


def executed_tool(call: CodeCall, index: int, client_chars: int) -> Json:
    """One entry: `index` must be unique, the official clients merge streamed lists by it."""
    outputs = call.rendering.outputs(client_chars)
    return {
        "index": index,
        "type": "code_interpreter",
        "id": call.id,
        "tool_call_id": call.call_id,
        "status": call.status,
        "container_id": call.container_id,
        "arguments": call.arguments if call.code is None else arguments_of(call.code),
        "code": call.code,
        "output": "".join(entry["logs"] for entry in outputs if entry["type"] == "logs"),
        "outputs": outputs,
        "code_results": [] if call.result is None else _code_results(call.result, client_chars),
    }


def _code_results(result: CodeExecutionResult, limit: int) -> list[Json]:
    return [
        {
            _SHORT_NAMES[mime]: data if mime.startswith("image/") or not isinstance(data, str) else data[:limit]
            for mime, data in display.data.items()
            if mime in _SHORT_NAMES
        }
        for display in result.displays
    ]
