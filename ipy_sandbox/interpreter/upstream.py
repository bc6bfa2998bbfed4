"""The model endpoint over HTTP: turns, raw pass-through, the list of models.

async with upstream.turn(route, "chat", body) as stream:
    async for delta in stream:
        ...
stream.turn
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from typing import Any

from .catalog import Route
from .turn import API, Delta, Turn


class TurnStream:
    """One model call under way: iterate over its deltas, then read `turn`.

    `headers` are the upstream's that a proxy passes on (x-request-id, openai-*, x-ratelimit-*, retry-after).
    """

    headers: dict[str, str]

    @property
    def turn(self) -> Turn:
        """What came so far; all of it after the last delta."""
        raise NotImplementedError

    def __aiter__(self) -> AsyncIterator[Delta]:
        """The deltas as they arrive.

        Raises:
            UpstreamError: the answer broke off, said it failed, or stayed silent too long; `turn` has what came.
        """
        raise NotImplementedError


@dataclass(slots=True)
class RawResponse:
    """An upstream answer passed through: `body` yields its bytes as they come, headers without hop-by-hop ones."""

    status: int
    headers: list[tuple[str, str]]
    body: AsyncIterator[bytes]


class Upstream:
    """A pool of connections to model endpoints; belongs to the event loop that first uses it.

    Arguments:
        idle_timeout: seconds without a byte after which an answer counts as dead.
        retries: how often connect errors, 429 and 5xx are tried again, before any byte of the answer.
    """

    def __init__(self, *, connect_timeout: float = 10, idle_timeout: float = 600, retries: int = 2) -> None: ...

    @contextlib.asynccontextmanager
    async def turn(
        self, route: Route, api: API, body: Mapping[str, Any], *, stream: bool = True
    ) -> AsyncIterator[TurnStream]:
        """Call the model. Leaving the block closes the connection, which cancels a call under way.

        `model` and `stream` are set here, and `stream_options.include_usage` where the provider takes it.

        Raises:
            UpstreamError: no connection, or an error status: `status`, `body`, `failure`, `headers`.
        """
        raise NotImplementedError
        yield

    @contextlib.asynccontextmanager
    async def forward(
        self, route: Route, method: str, path: str, *, headers: Mapping[str, str], content: bytes, query: str = ""
    ) -> AsyncIterator[RawResponse]:
        """Pass a request through byte for byte; error statuses are answers like any other.

        Raises:
            UpstreamError: no connection.
        """
        raise NotImplementedError
        yield

    async def models(self, route: Route) -> list[dict[str, Any]]:
        """The models the endpoint offers.

        Raises:
            UpstreamError: it did not answer with a list.
        """
        raise NotImplementedError

    async def aclose(self) -> None:
        """Close all connections."""
        raise NotImplementedError


def shared() -> Upstream:
    """The `Upstream` of the running event loop."""
    raise NotImplementedError
