"""What an upstream says went wrong, whatever envelope it uses."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Failure:
    """The four fields of OpenAI's error object; `raw` is the payload as it came."""

    message: str
    type: str | None = None
    code: str | None = None
    param: str | None = None
    raw: Any = None

    @classmethod
    def from_payload(cls, payload: Any) -> Failure:
        """Read any envelope: nested, flat, a list (Gemini), a bare string, `detail` (FastAPI), numeric codes."""
        outer = payload[0] if isinstance(payload, list) and payload else payload
        error = (outer.get("error") or outer) if isinstance(outer, dict) else outer
        if not isinstance(error, dict):
            return cls(_text(error) or "unknown error", raw=payload)
        message = error.get("message") or error.get("detail") or error.get("msg")
        # The type of a flat event says only that it is one; Gemini calls the type "status".
        kind = error.get("type") if error.get("type") != "error" else None
        return cls(
            message=_text(message) or json.dumps(error),
            type=_text(kind or error.get("status")),
            code=_text(error.get("code")),
            param=_text(error.get("param")),
            raw=payload,
        )


def is_failure(payload: Any) -> bool:
    """Whether a body, or an event without an event name, reports an error."""
    if isinstance(payload, list):
        return bool(payload) and is_failure(payload[0])
    return isinstance(payload, dict) and (
        bool(payload.get("error")) or "error" in (payload.get("object"), payload.get("type"))
    )


def _text(value: Any) -> str | None:
    if value is None or isinstance(value, str):
        return value
    return json.dumps(value)
