"""Whose stored responses are whose, for those that the model endpoint keeps under the key that all callers share."""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import AsyncIterator
from typing import Protocol

KEPT = 50_000
"""Responses that are remembered in memory; older ones cannot be asked for any more."""

_ID = re.compile(rb'"id"\s*:\s*"(resp_[A-Za-z0-9_-]{1,500})"')
_LOOK_AT = 65_536


class Owners(Protocol):
    """Remembers who got which response, and from which endpoint, so that nobody reaches another's by its id."""

    async def add(self, response_id: str, identity: str, place: str) -> None:
        """Note who got a response, and at which `place`; the first one to get it keeps it."""
        ...

    async def find(self, response_id: str, identity: str) -> str | None:
        """The place of the response (see `Choice.place`); None if it is not this caller's."""
        ...


class MemoryOwners:
    """In this process."""

    def __init__(self) -> None:
        self._owned: OrderedDict[str, tuple[str, str]] = OrderedDict()

    async def add(self, response_id: str, identity: str, place: str) -> None:
        """See Owners."""
        self._owned.setdefault(response_id, (identity, place))
        while len(self._owned) > KEPT:
            self._owned.popitem(last=False)

    async def find(self, response_id: str, identity: str) -> str | None:
        """See Owners."""
        owner, place = self._owned.get(response_id, ("", ""))
        return place if owner == identity and place else None


async def watched(chunks: AsyncIterator[bytes], owners: Owners, identity: str, place: str) -> AsyncIterator[bytes]:
    """The bytes of an answer as they are; its id is noted before the client can know it."""
    seen: bytes | None = b""
    async for chunk in chunks:
        if seen is not None:
            seen += chunk
            if found := _ID.search(seen):
                await owners.add(found[1].decode(), identity, place)
            if found or len(seen) > _LOOK_AT:
                seen = None
        yield chunk
