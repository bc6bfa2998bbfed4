"""Finished responses, kept for `previous_response_id` and for those who ask for them again."""

from __future__ import annotations

import json
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

from .request import Json
from .turn import API


@dataclass(slots=True)
class Stored:
    """A response and what is needed to go on from it.

    `response` has all outputs. `context` is what came before this request's `items`, both in the client's words;
    `history` is the whole conversation in the endpoint's words, for that same endpoint (`origin`, `api`) only.
    """

    response: Json
    items: list[Json]
    context: list[Json]
    history: list[Json]
    origin: str
    api: API

    def conversation(self) -> list[Json]:
        """All items up to and with this response, in the client's words."""
        return [*self.context, *self.items, *self.response["output"]]


class ResponseStore(Protocol):
    """Keeps responses by identity and id; one identity never sees another's."""

    async def put(self, identity: str, stored: Stored) -> None:
        """Keep a response."""
        ...

    async def get(self, identity: str, response_id: str) -> Stored | None:
        """The response, or None if it is not there, or another's."""
        ...

    async def delete(self, identity: str, response_id: str) -> bool:
        """Forget a response: True if it was there."""
        ...


@dataclass(slots=True)
class _Entry:
    stored: Stored
    size: int
    expires_at: float


@dataclass(slots=True)
class MemoryStore:
    """In this process, the oldest forgotten first.

    Arguments:
        max_responses: how many are kept.
        max_bytes: how large all together may be, as JSON.
        ttl: seconds each is kept.
        clock: monotonic seconds.
    """

    max_responses: int = 2000
    max_bytes: int = 100_000_000
    ttl: float = 24 * 3600
    clock: Callable[[], float] = time.monotonic
    _entries: OrderedDict[tuple[str, str], _Entry] = field(default_factory=OrderedDict)
    _bytes: int = 0

    async def put(self, identity: str, stored: Stored) -> None:
        """See ResponseStore."""
        size = _size(stored.response) + _size(stored.items)
        self._entries[identity, stored.response["id"]] = _Entry(stored, size, self.clock() + self.ttl)
        self._bytes += size
        while self._entries and self._is_full():
            self._forget(next(iter(self._entries)))

    def _is_full(self) -> bool:
        oldest = next(iter(self._entries.values()))
        too_much = len(self._entries) > self.max_responses or self._bytes > self.max_bytes
        return too_much or oldest.expires_at < self.clock()

    def _forget(self, key: tuple[str, str]) -> None:
        self._bytes -= self._entries.pop(key).size

    async def get(self, identity: str, response_id: str) -> Stored | None:
        """See ResponseStore."""
        entry = self._entries.get((identity, response_id))
        if entry is None:
            return None
        if entry.expires_at < self.clock():
            self._forget((identity, response_id))
            return None
        return entry.stored

    async def delete(self, identity: str, response_id: str) -> bool:
        """See ResponseStore."""
        there = await self.get(identity, response_id) is not None
        if there:
            self._forget((identity, response_id))
        return there


def _size(value: Any) -> int:
    return len(json.dumps(value))
