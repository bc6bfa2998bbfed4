"""Whose stored responses are whose, for those that the model endpoint keeps under the key that all callers share."""

from __future__ import annotations

import re
from collections import OrderedDict
from dataclasses import dataclass

from ..interpreter.catalog import Route

KEPT = 50_000
"""Responses that are remembered; older ones cannot be asked for any more."""

_ID = re.compile(rb'"id"\s*:\s*"(resp_[A-Za-z0-9_-]{1,500})"')
_LOOK_AT = 65_536


@dataclass(frozen=True, slots=True)
class Owned:
    """Who got a response, and from where."""

    identity: str
    route: Route


class Owners:
    """Remembers the ids in answers that pass through, so that nobody reaches another's response by its id."""

    def __init__(self) -> None:
        self._owned: OrderedDict[str, Owned] = OrderedDict()

    def find(self, response_id: str, identity: str) -> Route | None:
        """Where the response is kept; None if it is not this caller's."""
        owned = self._owned.get(response_id)
        return owned.route if owned and owned.identity == identity else None

    def add(self, response_id: str, identity: str, route: Route) -> None:
        """Note who got a response; the first one to get it keeps it."""
        self._owned.setdefault(response_id, Owned(identity, route))
        while len(self._owned) > KEPT:
            self._owned.popitem(last=False)

    def watch(self, identity: str, route: Route) -> Watch:
        """Notes the id of one answer as its bytes go by."""
        return Watch(self, identity, route)


class Watch:
    """Reads the beginning of an answer until its id has been seen."""

    def __init__(self, owners: Owners, identity: str, route: Route) -> None:
        self._owners, self._identity, self._route = owners, identity, route
        self._seen: bytes | None = b""

    def feed(self, chunk: bytes) -> None:
        """Look at the next bytes of the answer."""
        if self._seen is None:
            return
        self._seen += chunk
        if found := _ID.search(self._seen):
            self._owners.add(found[1].decode(), self._identity, self._route)
            self._seen = None
        elif len(self._seen) > _LOOK_AT:
            self._seen = None
