"""One execution with a time limit: the part that all callers of a provider share."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator
from dataclasses import fields, replace

from ..errors import ExecutionTimeoutError, KernelDiedError, OutputTruncatedError, SandboxError, SandboxLostError
from ..models import CodeExecutionResult, ContainerHandle, Event, ResultBuilder
from ..surrogates import encodable_value
from .provider import Provider

INTERRUPT_GRACE = 5.0
"""Seconds that interrupted code has to end before its stream is closed over it."""


async def stream(
    provider: Provider, handle: ContainerHandle, code: str, timeout: float | None = None
) -> AsyncGenerator[Event, None]:
    """Run `code` and yield its events; the sandbox's lifetime is renewed while the code runs.

    Arguments:
        timeout: seconds the run may take, those that it waits for its turn included; None means no limit.

    Raises:
        ExecutionTimeoutError: the limit was passed; the code was interrupted, what came before was yielded.
    """
    events = provider.run(handle, code)
    renewal = asyncio.create_task(_keep_alive(provider, handle))
    try:
        async for event in events if timeout is None else _until(provider, handle, events, timeout):
            yield _carriable(event)
    finally:
        renewal.cancel()
        await _close(events)


def _carriable(event: Event) -> Event:
    """The event without what nothing can carry on; itself, but for hostile or broken ones."""
    values = {field.name: getattr(event, field.name) for field in fields(event)}
    made = {name: encodable_value(value) for name, value in values.items()}
    return event if made == values else replace(event, **made)


async def _keep_alive(provider: Provider, handle: ContainerHandle) -> None:
    while True:
        await asyncio.sleep(handle.timeout / 3)
        # That the sandbox is gone is the run's to find out.
        with contextlib.suppress(SandboxError):
            await provider.renew(handle, handle.timeout)


async def _until(
    provider: Provider, handle: ContainerHandle, events: AsyncIterator[Event], timeout: float
) -> AsyncIterator[Event]:
    limit = asyncio.get_running_loop().time() + timeout
    interrupt: asyncio.Task[None] | None = None
    try:
        while True:
            # Until the first event other code may have its turn, which an interrupt would hit: this one is only left.
            async with asyncio.timeout_at(limit if interrupt is None else limit + INTERRUPT_GRACE):
                event = await anext(events)
            interrupt = interrupt or asyncio.create_task(_interrupt_at(limit, provider, handle))
            yield event
    except StopAsyncIteration:
        if interrupt is None or not interrupt.done():
            return
    except TimeoutError:
        pass
    finally:
        if interrupt is not None:
            interrupt.cancel()
    raise ExecutionTimeoutError(
        f"The code ran longer than {timeout:g} s in sandbox {handle.id} and was stopped: "
        "give it a longer timeout, or make it shorter.",
        provider=handle.provider,
        sandbox_id=handle.id,
    )


async def _interrupt_at(limit: float, provider: Provider, handle: ContainerHandle) -> None:
    await asyncio.sleep(limit - asyncio.get_running_loop().time())
    # Without an answer to the interrupt the stream is closed after the grace, which stops the code too.
    with contextlib.suppress(SandboxError):
        await provider.interrupt(handle)


async def _close(events: AsyncIterator[Event]) -> None:
    if close := getattr(events, "aclose", None):
        with contextlib.suppress(SandboxError):
            await close()


async def run(
    provider: Provider, handle: ContainerHandle, code: str, timeout: float | None = None
) -> CodeExecutionResult:
    """Run `code` and return its result; an error that ends the run early carries what came before as `.result`."""
    return await collect(stream(provider, handle, code, timeout))


async def collect(events: AsyncIterator[Event]) -> CodeExecutionResult:
    """Fold `events`; an error that ends them early gets what came before as its `result`."""
    builder = ResultBuilder()
    try:
        async for event in events:
            builder.add(event)
    except (ExecutionTimeoutError, KernelDiedError, OutputTruncatedError, SandboxLostError) as error:
        error.result = builder.result
        raise
    return builder.result
