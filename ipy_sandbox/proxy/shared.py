"""What several processes may have in common: in memory for one, in Redis for more."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

from ..errors import ConfigurationError
from ..interpreter.store import MemoryStore, ResponseStore
from ..sandbox.pool import SessionPool
from ..sandbox.session import Session
from .config import Config
from .owners import MemoryOwners, Owners
from .sandboxes import OwnedSandboxes

STORE_BYTES = 16_000_000
"""Stored responses in memory, as JSON; they take a few times as much."""


class Shared:
    """Stored responses, their owners, and the session table; this one is for a single process."""

    def __init__(self) -> None:
        self.store: ResponseStore = MemoryStore(max_bytes=STORE_BYTES)
        self.owners: Owners = MemoryOwners()

    def pool(self, make: Callable[[], Session], sandboxes: OwnedSandboxes, tool: str, **limits: Any) -> SessionPool:
        """The sessions of one sandbox tool.

        Arguments:
            tool: names the provider and the account.
            limits: `cap` and `ttl`, see `SessionPool`.
        """
        return SessionPool(make, **limits)

    async def check(self) -> None:
        """Raise ConfigurationError if it cannot be used now."""

    async def aclose(self) -> None:
        """Close connections."""


class SharedInRedis(Shared):
    """The same for several processes."""

    def __init__(self, url: str) -> None:
        try:
            from redis.asyncio import Redis

            from .redis_store import RedisOwners, RedisStore
        except ImportError:
            raise ConfigurationError("general_settings.redis_url needs: pip install 'ipy-sandbox[redis]'.") from None
        try:
            self._redis = Redis.from_url(url)
        except ValueError:
            # Its own message quotes the URL, password included.
            raise ConfigurationError("general_settings.redis_url: must look like redis://host:6379/0.") from None
        self.store = RedisStore(self._redis)
        self.owners = RedisOwners(self._redis)

    def pool(self, make: Callable[[], Session], sandboxes: OwnedSandboxes, tool: str, **limits: Any) -> SessionPool:
        """See Shared."""
        from .redis_pool import RedisPool

        return cast(SessionPool, RedisPool(self._redis, make, sandboxes, tool, **limits))

    async def check(self) -> None:
        """See Shared."""
        from redis.exceptions import RedisError

        try:
            await self._redis.ping()
        except (RedisError, OSError) as error:
            reason = f"general_settings.redis_url: Redis does not answer ({type(error).__name__})"
            raise ConfigurationError(f"{reason}: check that it runs, its address and its password.") from None

    async def aclose(self) -> None:
        """See Shared."""
        await self._redis.aclose()


def shared_by(config: Config) -> Shared:
    """What `config` asks for; raises ConfigurationError if Redis cannot be used."""
    url = config.general_settings.redis_url
    return SharedInRedis(url.get_secret_value()) if url else Shared()
