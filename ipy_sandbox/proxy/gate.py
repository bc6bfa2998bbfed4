"""How many requests run at one time: in the process, and for each caller."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterator

from .auth import Caller
from .errors import ApiError


class Gate:
    """Lets requests in while there is room.

    Attributes:
        running: requests inside now.
        closed: whether the proxy is shutting down.
    """

    def __init__(self) -> None:
        self.running = 0
        self.closed = False
        self._by_caller: Counter[str] = Counter()

    @contextlib.contextmanager
    def enter(self, caller: Caller, limit: int) -> Iterator[None]:
        """Hold a place, at most `limit` in all and `caller.max_parallel_requests` for the caller.

        Raises:
            ApiError: 429, there is no room; 503, the proxy is shutting down.
        """
        if self.closed:
            raise ApiError(503, "The proxy is shutting down: send the request again.", retry_after=1)
        if self.running >= limit:
            raise ApiError(429, f"The proxy serves {limit} requests already.", code="too_busy", retry_after=1)
        own = caller.max_parallel_requests
        if own is not None and self._by_caller[caller.identity] >= own:
            raise ApiError(429, f"This key has {own} requests running already.", code="too_busy", retry_after=1)
        self.running += 1
        self._by_caller[caller.identity] += 1
        try:
            yield
        finally:
            self.running -= 1
            self._by_caller[caller.identity] -= 1
            if not self._by_caller[caller.identity]:
                del self._by_caller[caller.identity]
