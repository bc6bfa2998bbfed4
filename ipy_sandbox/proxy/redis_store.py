"""What replicas share in Redis besides sessions: finished responses, and whose the passed-through ones are."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

from redis.asyncio import Redis

from ..interpreter.store import Stored

PREFIX = "ipy-sandbox:"
RESPONSE_SECONDS = 24 * 3600
OWNER_SECONDS = 30 * 24 * 3600
"""As long as OpenAI keeps responses."""


class RedisStore:
    """A `ResponseStore`."""

    def __init__(self, redis: Redis) -> None:
        self._redis: Any = redis

    async def put(self, identity: str, stored: Stored) -> None:
        """See ResponseStore."""
        name = _response(identity, stored.response["id"])
        await self._redis.set(name, json.dumps(asdict(stored)), ex=RESPONSE_SECONDS)

    async def get(self, identity: str, response_id: str) -> Stored | None:
        """See ResponseStore."""
        text = await self._redis.get(_response(identity, response_id))
        return Stored(**json.loads(text)) if text else None

    async def delete(self, identity: str, response_id: str) -> bool:
        """See ResponseStore."""
        return bool(await self._redis.delete(_response(identity, response_id)))


def _response(identity: str, response_id: str) -> str:
    return f"{PREFIX}response:{identity}:{response_id}"


class RedisOwners:
    """An `Owners`."""

    def __init__(self, redis: Redis) -> None:
        self._redis: Any = redis

    async def add(self, response_id: str, identity: str, place: str) -> None:
        """See Owners."""
        value = json.dumps([identity, place])
        await self._redis.set(f"{PREFIX}owner:{response_id}", value, ex=OWNER_SECONDS, nx=True)

    async def find(self, response_id: str, identity: str) -> str | None:
        """See Owners."""
        text = await self._redis.get(f"{PREFIX}owner:{response_id}")
        owner, place = json.loads(text) if text else ("", "")
        return place if owner == identity and place else None
