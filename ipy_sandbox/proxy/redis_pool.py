"""Sticky sessions that replicas share: the table, the caps and the locks are in Redis.

For a session `S` (a hash of identity and key) of the identity `I`, below the prefix `ipy-sandbox:TOOL:`:

    session:S     hash: the sandbox's handle with its secrets, runs in it, when its life was renewed
    lock:S        held by the replica that uses the session now; ends by itself when that one dies
    sessions:I    sorted set of S by last use, for the cap
    sessions      sorted set of "I S" by last use, for the time to live

One Redis, not a cluster. Who reads it can reach the sandboxes: guard it as you do the providers' keys.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import logging
import time
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

from redis.asyncio import Redis
from redis.asyncio.lock import Lock
from redis.exceptions import LockError, RedisError

from ..errors import SandboxBusyError, SandboxError, SandboxLostError
from ..models import ContainerHandle
from ..sandbox.session import Session
from .redis_store import PREFIX
from .sandboxes import OwnedSandboxes

logger = logging.getLogger("ipy_sandbox.proxy")

LOCK_SECONDS = 30.0
"""How long the session of a replica that died stays locked."""
OBJECTS = 10_000
"""Sessions that a replica remembers having used."""

_PLACE = """
local all, mine, prefix = KEYS[1], KEYS[2], ARGV[1]
local identity, session, now, cap = ARGV[2], ARGV[3], ARGV[4], tonumber(ARGV[5])
local evicted = false
if not redis.call('ZSCORE', mine, session) and redis.call('ZCARD', mine) >= cap then
    for _, other in ipairs(redis.call('ZRANGE', mine, 0, -1)) do
        if redis.call('EXISTS', prefix .. 'lock:' .. other) == 0 then
            evicted = redis.call('HGET', prefix .. 'session:' .. other, 'handle') or ''
            redis.call('DEL', prefix .. 'session:' .. other)
            redis.call('ZREM', mine, other)
            redis.call('ZREM', all, identity .. ' ' .. other)
            break
        end
    end
    if evicted == false then return 'busy' end
end
redis.call('ZADD', mine, now, session)
redis.call('ZADD', all, now, identity .. ' ' .. session)
return evicted or ''
"""
"""Give a session its place, which may cost the least recently used idle one; the handle of that one, or `busy`."""

_SWEEP = """
local all, prefix, handles = KEYS[1], ARGV[1], {}
for _, entry in ipairs(redis.call('ZRANGEBYSCORE', all, '-inf', ARGV[2])) do
    local identity, session = string.match(entry, '^(%S*) (%S+)$')
    if redis.call('EXISTS', prefix .. 'lock:' .. session) == 0 then
        local handle = redis.call('HGET', prefix .. 'session:' .. session, 'handle')
        if handle then table.insert(handles, handle) end
        redis.call('DEL', prefix .. 'session:' .. session)
        redis.call('ZREM', prefix .. 'sessions:' .. identity, session)
        redis.call('ZREM', all, entry)
    end
end
return handles
"""
"""Take the sessions out that nobody used for too long; their handles."""


class RedisPool:
    """The interface of `SessionPool`, over Redis. A session is held by one request at a time, whatever the replica.

    Arguments:
        make: makes the session for a new key.
        sandboxes: what deletes evicted sandboxes; those of sessions are not its own any more.
        tool: names the provider and account that the sandboxes are at; others have sessions of their own.
    """

    def __init__(
        self,
        redis: Redis,
        make: Callable[[], Session],
        sandboxes: OwnedSandboxes,
        tool: str,
        *,
        cap: int = 10,
        ttl: float = 900,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._redis: Any = redis
        self._make = make
        self._sandboxes = sandboxes
        self._prefix = f"{PREFIX}{tool}:"
        self._cap, self._ttl, self._clock = cap, ttl, clock
        self._place = redis.register_script(_PLACE)
        self._sweep = redis.register_script(_SWEEP)
        # This replica's objects: what the interpreter knows about a session hangs on them.
        self._sessions: OrderedDict[tuple[str, str], Session] = OrderedDict()
        self._tasks: set[asyncio.Task[None]] = set()
        self._sweeper: asyncio.Task[None] | None = None

    def sessions(self, identity: str) -> dict[str, Session]:
        """The identity's sessions that this replica has used, by key."""
        return {key: session for (owner, key), session in self._sessions.items() if owner == identity}

    @contextlib.asynccontextmanager
    async def lease(self, identity: str, key: str) -> AsyncIterator[Session]:
        """The session of `key`, for this request alone inside the block.

        Raises:
            SandboxBusyError: the identity has `cap` sessions and all are in use.
            SandboxError: Redis does not answer.
        """
        name = hashlib.sha256(f"{identity}\0{key}".encode()).hexdigest()
        self._start_sweeper()
        lock = Lock(self._redis, f"{self._prefix}lock:{name}", timeout=LOCK_SECONDS, sleep=0.05, thread_local=False)
        with _redis_errors():
            await lock.acquire()
        renewing, session = asyncio.ensure_future(_renew(lock)), None
        try:
            with _redis_errors():
                await self._take_place(identity, name)
                session = self._object(identity, key)
                await self._load(name, session)
            yield session
        finally:
            renewing.cancel()
            await asyncio.shield(self._give_back(lock, identity, name, session))

    def _object(self, identity: str, key: str) -> Session:
        session = self._sessions.pop((identity, key), None) or self._make()
        # Its sandbox shall live as long as the table keeps it.
        lifetime = max(session.options.timeout, self._ttl)
        session.options = session.options.model_copy(update={"timeout": lifetime})
        self._sessions[identity, key] = session
        while len(self._sessions) > OBJECTS:
            self._sessions.popitem(last=False)
        return session

    async def _give_back(self, lock: Lock, identity: str, name: str, session: Session | None) -> None:
        try:
            if session is not None:
                await self._save(identity, name, session)
        except RedisError as error:
            logger.warning("a session could not be kept: %s", type(error).__name__)
        with contextlib.suppress(LockError, RedisError):
            await lock.release()

    async def _take_place(self, identity: str, name: str) -> None:
        keys = [f"{self._prefix}sessions", f"{self._prefix}sessions:{identity}"]
        evicted = await self._place(keys=keys, args=[self._prefix, identity, name, self._clock(), self._cap])
        if evicted == b"busy":
            raise SandboxBusyError(f"All {self._cap} sessions are in use: wait for one to end, then try again.")
        if evicted:
            self._delete_soon(evicted)

    async def _load(self, name: str, session: Session) -> None:
        fields = await self._redis.hgetall(f"{self._prefix}session:{name}")
        handle = fields.get(b"handle")
        session.handle = ContainerHandle.model_validate(json.loads(handle)) if handle else None
        session.executions = int(fields.get(b"executions", 0))
        if session.handle is not None and self._clock() - float(fields[b"renewed_at"]) > session.options.timeout / 10:
            # Another replica may have used it last: also finds out whether it is still there.
            with contextlib.suppress(SandboxLostError):
                await session.arenew()
                await self._redis.hset(f"{self._prefix}session:{name}", "renewed_at", self._clock())

    async def _save(self, identity: str, name: str, session: Session) -> None:
        where, now = f"{self._prefix}session:{name}", self._clock()
        async with self._redis.pipeline(transaction=True) as pipe:
            if session.handle is None:
                pipe.delete(where)
                pipe.zrem(f"{self._prefix}sessions:{identity}", name)
                pipe.zrem(f"{self._prefix}sessions", f"{identity} {name}")
            else:
                handle = json.dumps(session.handle.dump_with_secrets())
                pipe.hset(where, mapping={"handle": handle, "executions": session.executions})
                pipe.hsetnx(where, "renewed_at", now)
                pipe.zadd(f"{self._prefix}sessions:{identity}", {name: now})
                pipe.zadd(f"{self._prefix}sessions", {f"{identity} {name}": now})
                # For the case that no replica sweeps this tool's sessions any more.
                for key in (where, f"{self._prefix}sessions:{identity}", f"{self._prefix}sessions"):
                    pipe.expire(key, int(2 * (self._ttl + session.options.timeout)))
            await pipe.execute()
        if session.handle is not None:
            self._sandboxes.disown(session.handle)

    def _delete_soon(self, handle: bytes) -> None:
        task = asyncio.ensure_future(self._delete(ContainerHandle.model_validate(json.loads(handle))))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _delete(self, handle: ContainerHandle) -> None:
        with contextlib.suppress(SandboxError):
            await self._sandboxes.delete(handle)

    def _start_sweeper(self) -> None:
        if self._sweeper is None:
            self._sweeper = asyncio.ensure_future(self._sweep_for_ever())

    async def _sweep_for_ever(self) -> None:
        while True:
            await asyncio.sleep(min(self._ttl / 4, 30))
            try:
                await self.sweep()
            except RedisError as error:
                logger.warning("idle sessions were not swept: %s", type(error).__name__)

    async def sweep(self) -> None:
        """Delete the sandboxes whose sessions nobody used for `ttl` seconds."""
        for handle in await self._sweep(
            keys=[f"{self._prefix}sessions"], args=[self._prefix, self._clock() - self._ttl]
        ):
            self._delete_soon(handle)

    async def aclose(self) -> None:
        """End the work in this process; the sessions go on, for the other replicas and the next start."""
        if self._sweeper is not None:
            self._sweeper.cancel()
        await asyncio.gather(*self._tasks)


async def _renew(lock: Lock) -> None:
    while True:
        await asyncio.sleep(LOCK_SECONDS / 3)
        try:
            await lock.extend(LOCK_SECONDS, replace_ttl=True)
        except (LockError, RedisError) as error:
            logger.warning("the lock of a session could not be renewed: %s", type(error).__name__)


@contextlib.contextmanager
def _redis_errors() -> Iterator[None]:
    try:
        yield
    except RedisError as error:
        reason = f"The session table in Redis cannot be used now ({type(error).__name__})"
        raise SandboxError(f"{reason}: check that it runs and general_settings.redis_url.") from None
