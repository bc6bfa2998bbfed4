"""The body of a request: read within limits, parsed, and freed of what only this proxy may say."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from typing import Any

from starlette.types import Receive

from .disconnect import ClientGone
from .errors import ApiError

BODY_SECONDS = 60.0
"""How long a client may take to send a body."""

_INTERNAL = ("user_api_key", "litellm_")
"""How the metadata keys begin with which a LiteLLM proxy tells itself who called."""


async def read_body(headers: Mapping[str, str], receive: Receive, limit: int) -> bytes:
    """The whole body, at most `limit` bytes.

    Raises:
        ApiError: it is too long (413), compressed (415) or too slow (408).
        ClientGone: the client left.
    """
    if headers.get("content-encoding", "identity").lower() != "identity":
        raise ApiError(415, "Send the body without content-encoding.")
    length = headers.get("content-length", "0")
    if length.isdecimal() and int(length) > limit:
        raise _too_long(limit)
    try:
        async with asyncio.timeout(BODY_SECONDS):
            return await _read(receive, limit)
    except TimeoutError:
        raise ApiError(408, f"The body did not arrive within {BODY_SECONDS:g} s.") from None


async def _read(receive: Receive, limit: int) -> bytes:
    chunks, size = [], 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientGone
        chunk = message.get("body", b"")
        size += len(chunk)
        if size > limit:
            raise _too_long(limit)
        chunks.append(chunk)
        if not message.get("more_body", False):
            return b"".join(chunks)


def _too_long(limit: int) -> ApiError:
    return ApiError(413, f"The body is longer than {limit / 1e6:g} MB.", code="request_too_large")


def parse_object(content: bytes) -> dict[str, Any]:
    """The JSON object that a body holds; raises ApiError (400) for anything else."""
    try:
        body = json.loads(content, parse_constant=_refuse_constant, object_pairs_hook=_without_repeats)
    except (ValueError, RecursionError):
        raise ApiError(400, "We could not parse the JSON body of your request.") from None
    if not isinstance(body, dict):
        raise ApiError(400, "The body must be a JSON object.")
    return body


def _without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    # What is checked here and what the model endpoint reads in the same bytes must be the same value.
    made = dict(pairs)
    if len(made) != len(pairs):
        raise ValueError("a key is there twice")
    return made


def _refuse_constant(name: str) -> None:
    raise ValueError(name)


def model_of(body: dict[str, Any]) -> str:
    """The `model` of a request; raises ApiError (400) without one."""
    model = body.get("model")
    if not isinstance(model, str) or not model:
        raise ApiError(400, "You must provide a model parameter.", param="model")
    return model


def without_internal_metadata(body: dict[str, Any]) -> dict[str, Any]:
    """`body` without what would claim an identity; the very same object if there was nothing."""
    cleaned = {k: v for k, v in body.items() if k != "litellm_metadata" and not k.startswith("user_api_key")}
    metadata = cleaned.get("metadata")
    if isinstance(metadata, dict):
        cleaned["metadata"] = {k: v for k, v in metadata.items() if not k.startswith(_INTERNAL)}
    return body if cleaned == body else cleaned
