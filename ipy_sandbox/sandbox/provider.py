"""The Provider protocol and the registry of providers.

A provider creates sandboxes, runs code in them and deletes them. Adding one is one file: a class with these methods,
and one line in `_PROVIDERS` (or a call of `register_provider`).
"""

from __future__ import annotations

import importlib
import os
from collections.abc import AsyncIterator, Callable
from typing import Protocol, runtime_checkable

from ..errors import ConfigurationError
from ..models import ContainerHandle, Event, FileInfo, SandboxInfo, SandboxOptions
from .observe import observed


@runtime_checkable
class Provider(Protocol):
    """What every provider can do.

    An instance belongs to the event loop that first uses it. All methods raise the errors of `ipy_sandbox.errors`:
    `SandboxLostError` whenever the sandbox turns out to be gone, `KernelDiedError` when only its kernel is.
    """

    name: str

    async def create(self, options: SandboxOptions) -> ContainerHandle:
        """Make a sandbox that is ready to run code; one that fails to become ready is deleted again."""
        ...

    async def connect(self, sandbox_id: str, *, timeout: float | None = None) -> ContainerHandle:
        """Take back a sandbox by its bare id; `timeout` is the lifetime in seconds it shall have from now."""
        ...

    def run(self, handle: ContainerHandle, code: str) -> AsyncIterator[Event]:
        """Run `code` unchanged and yield its events as they happen, the last one `End`.

        Closing the iterator early stops the code. Two runs in one sandbox queue here, on our side.
        """
        ...

    async def interrupt(self, handle: ContainerHandle) -> None:
        """Stop the code that runs now, as Ctrl-C would: its `run` goes on to `ExecutionError` and `End`."""
        ...

    async def restart(self, handle: ContainerHandle) -> None:
        """Give the sandbox a fresh kernel; its files stay."""
        ...

    async def renew(self, handle: ContainerHandle, timeout: float) -> None:
        """Let the sandbox live `timeout` seconds from now at least, and make that the handle's `timeout`."""
        ...

    async def delete(self, handle: ContainerHandle) -> bool:
        """Delete the sandbox: True if it was there, False if it was already gone."""
        ...

    async def upload(self, handle: ContainerHandle, path: str, data: bytes) -> None:
        """Write a file; a relative `path` is below the kernel's working directory, parents are made."""
        ...

    async def download(self, handle: ContainerHandle, path: str) -> bytes:
        """Read a file."""
        ...

    async def list_files(self, handle: ContainerHandle, path: str = ".") -> list[FileInfo]:
        """The entries of a directory, sorted by path."""
        ...

    async def list_sandboxes(self) -> list[SandboxInfo]:
        """The sandboxes this key (or this process, for local ones) owns."""
        ...

    async def info(self, handle: ContainerHandle) -> SandboxInfo:
        """What the provider knows of the sandbox now."""
        ...

    def delete_at_exit(self, handles: list[ContainerHandle], budget: float) -> None:
        """Delete `handles` within `budget` seconds, without asyncio and without raising: the interpreter is leaving."""
        ...

    async def aclose(self) -> None:
        """Close connections; sandboxes live on."""
        ...


ProviderFactory = Callable[[str | None, str | None], Provider]

_PROVIDERS: dict[str, str | ProviderFactory] = {
    "e2b": "ipy_sandbox.sandbox.e2b:E2BProvider",
    "fake": "ipy_sandbox.sandbox.fake:FakeProvider",
    "local": "ipy_sandbox.sandbox.local.provider:LocalProvider",
    "opensandbox": "ipy_sandbox.sandbox.opensandbox:OpenSandboxProvider",
}


def register_provider(name: str, factory: ProviderFactory) -> None:
    """Make `name` usable wherever a provider is named; `factory(api_key, api_base)` makes an instance."""
    _PROVIDERS[name] = factory


def provider_names() -> list[str]:
    """The known providers, sorted; without the scripted one, which runs no code."""
    return sorted(name for name in _PROVIDERS if name != "fake")


def open_provider(name: str, *, api_key: str | None = None, api_base: str | None = None) -> Provider:
    """An instance of the provider `name`, its operations told as `observe` does; the caller's to close.

    Raises ConfigurationError for an unknown name or a missing key.

    Arguments:
        name: e2b, opensandbox, local, or a registered name.
        api_key, api_base: instead of the provider's environment variables.
    """
    factory = _PROVIDERS.get(name)
    if factory is None:
        raise ConfigurationError(f"Unknown sandbox provider {name!r}: choose one of {', '.join(provider_names())}.")
    if isinstance(factory, str):
        module, _, attribute = factory.partition(":")
        factory = getattr(importlib.import_module(module), attribute)
    assert callable(factory)
    return observed(factory(api_key, api_base))


def default_provider_name() -> str:
    """The provider to use when none is named.

    `IPY_SANDBOX_PROVIDER`, else e2b if `E2B_API_KEY` is set, else opensandbox if `OPEN_SANDBOX_API_BASE` is set, else
    local.
    """
    if name := os.environ.get("IPY_SANDBOX_PROVIDER"):
        return name
    if os.environ.get("E2B_API_KEY"):
        return "e2b"
    if os.environ.get("OPEN_SANDBOX_API_BASE"):
        return "opensandbox"
    return "local"
