"""Variables between here and a sandbox: encoded by `variable_codec` on both sides, never pickled."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import secrets
import weakref
from collections.abc import Mapping, Sequence
from typing import Any

from ..background import BACKGROUND
from ..errors import FileTransferError, VariableTransferError
from .helper import ask, one_line, text_of
from .session import Session
from .variable_arrow import available
from .variable_codec import ARROW_MAGIC, TEXTS, decode, encode
from .variable_parts import Refused

DEFAULT_LIMIT = 256_000_000
"""Bytes that one variable may have."""

INLINE = 100_000
"""Bytes up to which a value travels within the code or the output: one round trip instead of two."""

_WITH_ARROW: weakref.WeakSet[Session] = weakref.WeakSet()


async def apush(session: Session, variables: Mapping[str, Any], *, limit: int = DEFAULT_LIMIT) -> None:
    """Set variables in a sandbox.

    Arguments:
        variables: values by name: None, bool, int, float, complex, str, bytes, lists, dicts, tuples and sets of
            them, dates and times, Decimal, numpy arrays, pandas tables, PIL images, figures (as pictures).
        limit: bytes that one of them may have.

    Raises:
        VariableTransferError: a value cannot cross; the message says why and what to do. Nothing was set.
    """
    encoded = _all_encoded(variables, limit, True)
    if any(data.startswith(ARROW_MAGIC) for data in encoded.values()) and not await _takes_arrow(session):
        encoded = _all_encoded(variables, limit, False)
    values = {name: await _send(session, data) for name, data in encoded.items()}
    try:
        await ask(session, do="push", codec=_codec(), values=values)
    except LookupError as error:
        reason = str(error)
    else:
        return
    raise VariableTransferError(f"The sandbox could not take the variables: {reason}.")


async def apull(session: Session, names: Sequence[str], *, limit: int = DEFAULT_LIMIT) -> dict[str, Any]:
    """Values of variables of a sandbox, by name.

    Arguments:
        limit: bytes that one of them may have.

    Raises:
        VariableTransferError: there is no such variable, or its value cannot cross, or is not what it claims to be.
    """
    path = f"/tmp/ipy-sandbox-{secrets.token_hex(8)}"
    request: dict[str, Any] = {"names": list(names), "limit": limit, "inline": INLINE, "path": path}
    try:
        answer = await ask(session, do="pull", codec=_codec(), arrow=available(), **request)
        data = {name: await _receive(session, answer[name], path, limit) for name in names}
    except (LookupError, TypeError, ValueError, OverflowError, FileTransferError) as error:
        reason = one_line(error)
    else:
        await _remove_files(session, answer)
        # In a thread: a stranger's bytes decide how long it takes, and other sandboxes are not to wait for it.
        return {name: await asyncio.to_thread(_decoded, name, data[name]) for name in names}
    raise VariableTransferError(f"Cannot get {', '.join(names)}: {reason}.")


def _codec() -> list[tuple[str, str]]:
    return [(file, text_of(file)) for file in TEXTS]


async def _takes_arrow(session: Session) -> bool:
    """Whether the sandbox has pyarrow: asked when it matters, until the answer is yes."""
    if session not in _WITH_ARROW:
        try:
            answer = await ask(session, do="arrow", codec=_codec())
        except LookupError:
            return False
        if answer is not True:
            return False
        _WITH_ARROW.add(session)
    return True


def _all_encoded(variables: Mapping[str, Any], limit: int, arrow: bool) -> dict[str, bytes]:
    return {name: _encoded(name, value, limit, arrow) for name, value in variables.items()}


def _encoded(name: str, value: Any, limit: int, arrow: bool) -> bytes:
    try:
        data = encode(value, arrow=arrow)
    except Refused as error:
        reason = str(error)
    else:
        if len(data) <= limit:
            return data
        reason = f"it has {len(data) / 1e6:.0f} MB, over the limit of {limit / 1e6:.0f} MB"
    raise VariableTransferError(f"Cannot send {name}: {reason}.")


def _decoded(name: str, data: bytes) -> Any:
    try:
        return decode(data)
    except Refused as error:
        reason = str(error)
    raise VariableTransferError(f"Did not take {name} from the sandbox: {reason}.")


async def _send(session: Session, data: bytes) -> dict[str, str]:
    if len(data) <= INLINE:
        return {"inline": base64.b64encode(data).decode()}
    path = f"/tmp/ipy-sandbox-{secrets.token_hex(8)}"
    await session.aupload(path, data)
    return {"file": path}


async def _receive(session: Session, where: Any, path: str, limit: int) -> bytes:
    if "inline" in where:
        return base64.b64decode(where["inline"], validate=True)
    if not str(where["file"]).startswith(path) or int(where["size"]) > limit:
        raise ValueError("the sandbox answered something else than was asked")
    data = await session.adownload(where["file"])
    if len(data) > limit:
        raise ValueError(f"it has {len(data) / 1e6:.0f} MB, over the limit of {limit / 1e6:.0f} MB")
    return data


async def _remove_files(session: Session, answer: Mapping[str, Mapping[str, str]]) -> None:
    if paths := [where["file"] for where in answer.values() if "file" in where]:
        with contextlib.suppress(LookupError):  # the code there was faster
            await ask(session, do="remove", paths=paths)


push = BACKGROUND.sync(apush)
pull = BACKGROUND.sync(apull)
