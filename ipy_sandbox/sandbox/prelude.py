"""The display prelude: carries rich outputs past servers that drop some kinds of kernel messages.

e2b forwards neither updates nor clears nor metadata, OpenSandbox no displays at all. The text of `kernel_prelude.py`,
run once in each kernel as an execution of its own, sends them inside messages of a kind that survives, the carrier,
with the operation under one private MIME type. `unpack` makes events of them again. In the kernel it leaves no name
behind, keeps the numbers of the cells and of their lines, and does nothing where the kernel is not IPython.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import pkgutil
from collections.abc import Mapping
from typing import Literal

from ..models import ClearOutput, Display, Event, ExecutionCount

OPERATION = "application/vnd.ipy-sandbox.display+json"

Carrier = Literal["display_data", "execute_result"]


def prelude(carrier: Carrier, env_vars: Mapping[str, str] | None = None) -> str:
    """The code to run first in a kernel; harmless where it ran before.

    Arguments:
        carrier: the kind of message that the server forwards with all its MIME types. With execute_result every
            message has the execution count 0, and the count of a result travels in the operation.
        env_vars: environment variables to set in the kernel's process.
    """
    call = f"_ipy_sandbox_prelude({carrier!r}, {OPERATION!r}, {dict(env_vars or {})!a})"
    return f"{_kernel_text()}\ntry:\n    {call}\nexcept Exception:\n    pass\nfinally:\n    del _ipy_sandbox_prelude\n"


@functools.cache
def _kernel_text() -> str:
    text = pkgutil.get_data(__package__, "kernel_prelude.py")
    assert text is not None
    return text.decode()


def unpack(display: Display, operation: object) -> list[Event]:
    """The events that the kernel meant.

    Arguments:
        display: what the message shows, without the operation.
        operation: what the message held under the MIME type `OPERATION`, None if nothing.
    """
    if isinstance(operation, str):
        operation = _parsed(operation)
    if not isinstance(operation, dict):
        return [display]
    kind = operation.get("op")
    if kind == "clear":
        return [ClearOutput(wait=bool(operation.get("wait")))]
    data, metadata, display_id = display.data, operation.get("metadata"), operation.get("id")
    count, quote = operation.get("count"), operation.get("quote")
    if isinstance(quote, str):
        data = {**data, "text/plain": f"{quote}{data.get('text/plain', '')}{quote}"}
    shown = dataclasses.replace(
        display,
        data=data,
        metadata=metadata if isinstance(metadata, dict) else {},
        display_id=display_id if isinstance(display_id, str) else None,
        update=kind == "update",
        is_result=kind == "result",
    )
    return [ExecutionCount(count), shown] if isinstance(count, int) else [shown]


def _parsed(text: str) -> object:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None
