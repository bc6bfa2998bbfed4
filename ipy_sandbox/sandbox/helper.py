"""Work that needs the sandbox's kernel but is not the user's: it leaves no name, number or history there.

The text of `kernel_helper.py` runs as an execution of its own; it answers with one marked line of JSON. What comes
back is a stranger's word: callers check it.
"""

from __future__ import annotations

import functools
import json
import pkgutil
import secrets
from typing import Any

from ..errors import ProviderError
from ..safe_output import safe_text
from .session import Session


async def ask(session: Session, *, timeout: float | None = None, **request: Any) -> Any:
    """Let the kernel of `session` do what `request` says, see `kernel_helper.py`; return its answer.

    Raises:
        LookupError: it could not, the message says why.
        ProviderError: there was no answer; the kernel is not IPython, perhaps.
    """
    mark = f"ipy-sandbox-{secrets.token_hex(8)}:"
    result = await session.arun(_code(request, mark), timeout)
    _, _, line = result.stdout.partition(mark)
    try:
        answer = json.loads(line.partition("\n")[0])
        if "error" in answer:
            raise LookupError(one_line(answer["error"]))
        return answer["answer"]
    except (ValueError, KeyError, TypeError, RecursionError):
        pass
    reason = one_line(result.error.name) if result.error else "it gave no answer"
    raise ProviderError(
        f"The kernel of session {session.name!r} could not help: {reason}. It has to be an IPython kernel.",
        provider=session.provider.name,
    )


def one_line(text: object) -> str:
    """A sandbox's word as part of a message of ours."""
    return " ".join(safe_text(str(text)).split())[:500]


def _code(request: dict[str, Any], mark: str) -> str:
    call = f"_ipy_sandbox_helper({request!a}, {mark!r})"
    return f"{text_of('kernel_helper.py')}\ntry:\n    {call}\nfinally:\n    del _ipy_sandbox_helper\n"


@functools.cache
def text_of(file: str) -> str:
    """The text of a file of this package that runs in kernels."""
    text = pkgutil.get_data(__package__, file)
    assert text is not None
    return text.decode()
