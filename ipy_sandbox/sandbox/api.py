"""The functions of the SDK, for every provider: `a…` to await, without the `a` for plain code."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from typing import Any

from ..background import BACKGROUND, wake_on_signals
from ..errors import ConfigurationError
from ..models import CodeExecutionResult, ContainerHandle, Event, FileInfo, SandboxInfo, SandboxOptions, sandbox_options
from . import execution
from .provider import Provider, open_provider

logger = logging.getLogger("ipy_sandbox")

Container = ContainerHandle | str


@contextlib.asynccontextmanager
async def _provider(name: str, api_key: str | None, api_base: str | None) -> AsyncIterator[Provider]:
    wake_on_signals()
    provider = open_provider(name, api_key=api_key, api_base=api_base)
    try:
        yield provider
    finally:
        await provider.aclose()


@contextlib.asynccontextmanager
async def _attached(
    name: str, container: Container, api_key: str | None, api_base: str | None
) -> AsyncIterator[tuple[Provider, ContainerHandle]]:
    base = api_base if api_base or isinstance(container, str) else container.api_base
    async with _provider(name, api_key, base) as provider:
        if isinstance(container, str):
            container = await provider.connect(container)
        elif container.provider not in (name, provider.name):
            raise ConfigurationError(
                f"Sandbox {container.id} belongs to provider {container.provider!r}, not {name!r}.",
                sandbox_id=container.id,
            )
        yield provider, container


async def acreate_sandbox(
    provider: str,
    template: str | None = None,
    timeout: float | None = None,
    allow_internet_access: bool | None = None,
    api_key: str | None = None,
    api_base: str | None = None,
    metadata: dict[str, str] | None = None,
    env_vars: dict[str, str] | None = None,
    **options: Any,
) -> ContainerHandle:
    """Make a sandbox that is ready to run code; it is yours to delete.

    Arguments:
        provider: e2b, opensandbox or local.
        timeout: lifetime in seconds (300).
        options: the other fields of `SandboxOptions`.

    Raises:
        ConfigurationError: a key is missing, or the provider does not know an option; nothing was sent.
        SandboxCreationError: no sandbox could be made.
    """
    given = {
        "template": template,
        "timeout": timeout,
        "allow_internet_access": allow_internet_access,
        "metadata": metadata,
        "env_vars": env_vars,
        **options,
    }
    async with _provider(provider, api_key, api_base) as opened:
        return await opened.create(sandbox_options(given))


async def astream_code(
    provider: str,
    container: Container,
    code: str,
    api_key: str | None = None,
    api_base: str | None = None,
    timeout: float | None = None,
) -> AsyncGenerator[Event, None]:
    """Run `code` and yield its events as they happen; closing the iterator early stops the code."""
    async with _attached(provider, container, api_key, api_base) as (opened, handle):
        events = execution.stream(opened, handle, code, timeout)
        async with contextlib.aclosing(events):
            async for event in events:
                yield event


async def arun_code(
    provider: str,
    container: Container,
    code: str,
    api_key: str | None = None,
    api_base: str | None = None,
    timeout: float | None = None,
) -> CodeExecutionResult:
    """Run `code` in a sandbox and return its result, which holds the error if the code raised one.

    Arguments:
        provider: e2b, opensandbox or local; `api_key` and `api_base` go before its environment variables.
        container: a handle, or the bare id of a sandbox.
        timeout: seconds the run may take; None means no limit.

    Raises:
        SandboxLostError, KernelDiedError, ExecutionTimeoutError, OutputTruncatedError.
    """
    return await execution.collect(astream_code(provider, container, code, api_key, api_base, timeout))


async def adelete_sandbox(
    provider: str, container: Container, api_key: str | None = None, api_base: str | None = None
) -> bool:
    """Delete a sandbox: True if it was there, False if it was already gone."""
    # Not attached: a bare id would be connected, which makes it live longer, or fails if it is gone.
    handle = ContainerHandle(id=container, provider=provider) if isinstance(container, str) else container
    async with _attached(provider, handle, api_key, api_base) as (opened, handle):
        return await opened.delete(handle)


async def acode_interpreter_tool(
    provider: str,
    code: str,
    template: str | None = None,
    timeout: float | None = None,
    api_key: str | None = None,
    api_base: str | None = None,
) -> CodeExecutionResult:
    """Run `code` in a sandbox of its own: make it, run, delete it; the result holds the error if the code raised one.

    Arguments:
        timeout: seconds the run may take (300); the sandbox's own lifetime is a little longer.

    Raises:
        SandboxCreationError, SandboxLostError, KernelDiedError, ExecutionTimeoutError, OutputTruncatedError. Never
        that the sandbox could not be deleted: that is logged, and its lifetime ends it.
    """
    limit = timeout or SandboxOptions().timeout
    options = sandbox_options({"template": template, "timeout": limit + 30})
    async with _provider(provider, api_key, api_base) as opened:
        handle = await opened.create(options)
        try:
            return await execution.run(opened, handle, code, limit)
        finally:
            try:
                await opened.delete(handle)
            except Exception as error:
                logger.warning(
                    "sandbox %s was not deleted and ends with its lifetime: %s", handle.id, type(error).__name__
                )


async def ainterrupt(
    provider: str, container: Container, api_key: str | None = None, api_base: str | None = None
) -> None:
    """Stop the code that runs in a sandbox, as Ctrl-C would."""
    async with _attached(provider, container, api_key, api_base) as (opened, handle):
        await opened.interrupt(handle)


async def arenew_sandbox(
    provider: str, container: Container, timeout: float, api_key: str | None = None, api_base: str | None = None
) -> None:
    """Let a sandbox live `timeout` seconds from now at least."""
    async with _attached(provider, container, api_key, api_base) as (opened, handle):
        await opened.renew(handle, timeout)


async def aupload_file(
    provider: str,
    container: Container,
    path: str,
    data: bytes,
    api_key: str | None = None,
    api_base: str | None = None,
) -> None:
    """Write a file in a sandbox; a relative path is below the code's working directory."""
    async with _attached(provider, container, api_key, api_base) as (opened, handle):
        await opened.upload(handle, path, data)


async def adownload_file(
    provider: str, container: Container, path: str, api_key: str | None = None, api_base: str | None = None
) -> bytes:
    """Read a file of a sandbox."""
    async with _attached(provider, container, api_key, api_base) as (opened, handle):
        return await opened.download(handle, path)


async def alist_files(
    provider: str, container: Container, path: str = ".", api_key: str | None = None, api_base: str | None = None
) -> list[FileInfo]:
    """The entries of a directory of a sandbox."""
    async with _attached(provider, container, api_key, api_base) as (opened, handle):
        return await opened.list_files(handle, path)


async def alist_sandboxes(provider: str, api_key: str | None = None, api_base: str | None = None) -> list[SandboxInfo]:
    """The sandboxes that this key (or this process, for local ones) owns."""
    async with _provider(provider, api_key, api_base) as opened:
        return await opened.list_sandboxes()


create_sandbox = BACKGROUND.sync(acreate_sandbox)
run_code = BACKGROUND.sync(arun_code)
delete_sandbox = BACKGROUND.sync(adelete_sandbox)
code_interpreter_tool = BACKGROUND.sync(acode_interpreter_tool)
interrupt = BACKGROUND.sync(ainterrupt)
renew_sandbox = BACKGROUND.sync(arenew_sandbox)
upload_file = BACKGROUND.sync(aupload_file)
download_file = BACKGROUND.sync(adownload_file)
list_files = BACKGROUND.sync(alist_files)
list_sandboxes = BACKGROUND.sync(alist_sandboxes)


def stream_code(
    provider: str,
    container: Container,
    code: str,
    api_key: str | None = None,
    api_base: str | None = None,
    timeout: float | None = None,
) -> Iterator[Event]:
    """`astream_code`, for plain code."""
    return BACKGROUND.iterate(astream_code(provider, container, code, api_key, api_base, timeout))
