"""What an upstream says went wrong, whatever envelope it uses."""

from __future__ import annotations

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
        raise NotImplementedError
