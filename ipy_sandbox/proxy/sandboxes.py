"""The sandboxes of one tool: a provider that keeps some warm, remembers what it made, and leaves nothing behind."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import time
from collections import deque
from collections.abc import AsyncGenerator, Coroutine, Iterator
from typing import Any

from ..errors import SandboxError, SandboxLostError
from ..models import ContainerHandle, Event, ExecutionError, SandboxOptions
from ..sandbox.provider import Provider
from .metrics import Metrics

logger = logging.getLogger("ipy_sandbox.proxy")

RETRY_SECONDS = (1.0, 5.0, 15.0, 60.0)
"""Pauses before what failed (a deletion, a spare sandbox) is tried again; the last one repeats."""


class OwnedSandboxes:
    """Wraps a provider; its other methods are the provider's own.

    Arguments:
        provider: makes the sandboxes; closed with this.
        options: how the warm ones are made.
        warm: sandboxes that wait for the next `create`.
    """

    def __init__(self, provider: Provider, options: SandboxOptions, warm: int, metrics: Metrics) -> None:
        self.name = provider.name
        self._provider = provider
        self._options = options
        self._warm = warm
        self._metrics = metrics
        self._alive: dict[str, ContainerHandle] = {}
        self._spare: deque[ContainerHandle] = deque()
        self._making = 0
        self._creating: set[asyncio.Future[ContainerHandle]] = set()
        self._tasks: set[asyncio.Task[None]] = set()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._provider, name)

    @property
    def ready(self) -> int:
        """Warm sandboxes that wait now."""
        return len(self._spare)

    def start(self) -> None:
        """Begin to make the warm sandboxes."""
        if self._warm:
            self._refill()
            self._spawn(self._keep_spares_alive())

    async def create(self, options: SandboxOptions) -> ContainerHandle:
        """A warm sandbox if there is one of that kind, else a new one."""
        while self._spare and options.model_copy(update={"timeout": self._options.timeout}) == self._options:
            handle = self._spare.popleft()
            self._refill()
            if await self._lives_on(handle, options.timeout):
                return handle.model_copy(update={"timeout": options.timeout})
        return await self._make(options)

    async def _lives_on(self, handle: ContainerHandle, timeout: float) -> bool:
        if timeout == self._options.timeout:
            return True
        try:
            await self._provider.renew(handle, timeout)
        except SandboxError:
            self._delete_soon(handle)
            return False
        return True

    async def _make(self, options: SandboxOptions) -> ContainerHandle:
        # Whoever waits may be cancelled; what was begun is then made and deleted, and never forgotten half-way.
        creating = asyncio.ensure_future(self._create(options))
        self._creating.add(creating)
        creating.add_done_callback(self._creating.discard)
        try:
            return await asyncio.shield(creating)
        except asyncio.CancelledError:
            creating.add_done_callback(self._delete_unwanted)
            raise

    async def _create(self, options: SandboxOptions) -> ContainerHandle:
        try:
            handle = await self._provider.create(options)
        except SandboxError as error:
            self._metrics.errors.labels("create").inc()
            if error.sandbox_id:
                # It exists, but did not become ready; the provider's own attempt to delete it may have failed.
                unready = ContainerHandle(id=error.sandbox_id, provider=self.name, timeout=options.timeout)
                self._remember(unready)
                self._spawn(self._delete_later(unready))
            raise
        self._metrics.created.inc()
        self._remember(handle)
        return handle

    def _remember(self, handle: ContainerHandle) -> None:
        self._alive[handle.id] = handle
        self._metrics.sandboxes.inc()

    def _delete_unwanted(self, creating: asyncio.Future[ContainerHandle]) -> None:
        if not creating.cancelled() and creating.exception() is None:
            self._delete_soon(creating.result())

    def _refill(self) -> None:
        while len(self._spare) + self._making < self._warm:
            self._making += 1
            self._spawn(self._make_spare())

    async def _make_spare(self) -> None:
        try:
            for pause in _pauses():
                try:
                    self._spare.append(await self._make(self._options))
                    return
                except SandboxError as error:
                    logger.warning("no warm sandbox, next attempt in %g s: %s", pause, error)
                await asyncio.sleep(pause)
        finally:
            self._making -= 1

    async def _keep_spares_alive(self) -> None:
        while True:
            await asyncio.sleep(self._options.timeout / 3)
            for handle in list(self._spare):
                try:
                    await self._provider.renew(handle, self._options.timeout)
                except SandboxError:
                    # Unless somebody has taken it meanwhile.
                    if handle in self._spare:
                        self._spare.remove(handle)
                        self._delete_soon(handle)
            self._refill()

    def _delete_soon(self, handle: ContainerHandle) -> None:
        self._spawn(self._delete_quietly(handle))

    async def _delete_quietly(self, handle: ContainerHandle) -> None:
        # A failure has been noted, and will be tried again.
        with contextlib.suppress(SandboxError):
            await self.delete(handle)

    async def run(self, handle: ContainerHandle, code: str) -> AsyncGenerator[Event, None]:
        """The provider's `run`, counted."""
        started, outcome = time.perf_counter(), "stopped"
        events = self._provider.run(handle, code)
        try:
            outcome_so_far = "ok"
            async for event in events:
                if isinstance(event, ExecutionError):
                    outcome_so_far = "error"
                yield event
            outcome = outcome_so_far
        except SandboxError as error:
            outcome = "failed"
            self._metrics.errors.labels("run").inc()
            if isinstance(error, SandboxLostError):
                self._forget(handle)
            raise
        finally:
            await events.aclose()  # type: ignore[attr-defined]  # providers are generators
            self._metrics.executions.labels(outcome).inc()
            self._metrics.execution_seconds.observe(time.perf_counter() - started)

    async def delete(self, handle: ContainerHandle) -> bool:
        """Delete a sandbox; when that fails it is tried again, until the sandbox's own lifetime is over."""
        try:
            deleted = await self._provider.delete(handle)
        except SandboxError as error:
            self._metrics.errors.labels("delete").inc()
            logger.warning("sandbox %s was not deleted, it will be tried again: %s", handle.id, error)
            self._spawn(self._delete_later(handle))
            raise
        self._forget(handle)
        return deleted

    async def _delete_later(self, handle: ContainerHandle) -> None:
        end = time.monotonic() + handle.timeout
        for pause in _pauses():
            await asyncio.sleep(pause)
            try:
                await self._provider.delete(handle)
                break
            except SandboxError:
                if time.monotonic() > end:
                    break
        self._forget(handle)

    def _forget(self, handle: ContainerHandle) -> None:
        if self._alive.pop(handle.id, None):
            self._metrics.sandboxes.dec()

    def disown(self, handle: ContainerHandle) -> None:
        """Leave the sandbox alive at `aclose`: other processes use it too."""
        self._forget(handle)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def aclose(self, seconds: float = 2.0) -> None:
        """Delete every sandbox, within `seconds`, and close the provider."""
        self._warm = 0
        for task in list(self._tasks):
            task.cancel()
        if self._creating:
            await asyncio.wait(list(self._creating), timeout=seconds / 2)
        for creating in list(self._creating):
            creating.cancel()
        await asyncio.gather(*self._tasks, *self._creating, return_exceptions=True)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await asyncio.gather(*map(self._delete_now, list(self._alive.values())))
        if self._alive:
            await asyncio.to_thread(self._provider.delete_at_exit, list(self._alive.values()), 1.0)
            logger.warning("sandboxes left to their own lifetime: %s", ", ".join(self._alive))
        await self._provider.aclose()

    async def _delete_now(self, handle: ContainerHandle) -> None:
        with contextlib.suppress(SandboxError):
            await self._provider.delete(handle)
            self._forget(handle)


def _pauses() -> Iterator[float]:
    return itertools.chain(RETRY_SECONDS, itertools.repeat(RETRY_SECONDS[-1]))
