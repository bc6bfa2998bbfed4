"""LocalProvider: sandboxes on this machine, without a key or a server."""

from __future__ import annotations

import asyncio
import functools
import time
from collections.abc import AsyncIterator

from ...background import BACKGROUND
from ...errors import ConfigurationError
from ...models import ContainerHandle, Event, FileInfo, SandboxInfo, SandboxOptions
from . import files, hop, internet, leftovers, registry
from .box import start_isolated, start_unsafe
from .bubblewrap import Box, Network
from .limits import Limits
from .probe import probe
from .registry import SANDBOXES
from .sandbox import LocalSandbox, new_id
from .spare import Spare
from .watchdog import WATCHDOG

_FOREIGN = ("template", "network_policy", "resource_limits", "entrypoint", "use_server_proxy", "secure_access")


class LocalProvider:
    """Runs code in an ipykernel on this machine, isolated from it.

    A sandbox lives `SandboxOptions.timeout` seconds (300) from its last use and never longer than this process. By
    default the code has no network and sees nothing of the host but Python and its packages. All instances share the
    sandboxes of the process, and may be used from any event loop.

    Where this process is root, the code runs as a user of its own: what `ro_binds` names must be readable by all.
    """

    name = "local"

    def __init__(self, api_key: str | None = None, api_base: str | None = None) -> None:
        """The arguments are those of every provider; a local sandbox needs neither."""

    async def create(self, options: SandboxOptions) -> ContainerHandle:
        """Make a sandbox; see `Provider.create` and `Limits`.

        Raises:
            ConfigurationError: an option belongs to another provider, or a limit is unknown.
            IsolationUnavailableError: this system cannot isolate.
        """
        box = _box(options)
        sandbox_id = new_id()
        try:
            return await hop.call(lambda: self._create(sandbox_id, box, options))
        except asyncio.CancelledError:
            # It may have been ready in that very moment: nobody would know of it.
            BACKGROUND.submit(self._undo(sandbox_id))
            raise

    async def _create(self, sandbox_id: str, box: Box, options: SandboxOptions) -> ContainerHandle:
        sandbox = None if options.unsafe else SPARE.take(box)
        if sandbox is None:
            sandbox = await (_start_unsafe(box) if options.unsafe else _start(box))
            sandbox.adopt(sandbox_id, options)
            await _start_kernel(sandbox)
        else:
            sandbox.adopt(sandbox_id, options)
            if options.env_vars:
                await _start_kernel(sandbox)
        registry.add(sandbox)
        if not options.unsafe:
            SPARE.refill(box)
        return _handle(sandbox)

    async def _undo(self, sandbox_id: str) -> None:
        if (sandbox := SANDBOXES.pop(sandbox_id, None)) is not None:
            await sandbox.close()

    async def connect(self, sandbox_id: str, *, timeout: float | None = None) -> ContainerHandle:
        """Take back a sandbox that this process made."""
        sandbox = registry.find(sandbox_id)
        if timeout is not None:
            sandbox.live(timeout)
        return _handle(sandbox)

    def run(self, handle: ContainerHandle, code: str) -> AsyncIterator[Event]:
        """Run `code`; see `Provider.run`."""
        return hop.iterate(lambda: registry.find(handle.id).run(code))

    async def complete(self, handle: ContainerHandle, code: str, cursor: int) -> list[str]:
        """The names that could stand at position `cursor` of `code`; none while code runs."""
        sandbox = registry.find(handle.id)
        return await hop.call(lambda: sandbox.complete(code, cursor))

    async def interrupt(self, handle: ContainerHandle) -> None:
        """Stop the code that runs now; a sandbox that does not react within 4.5 s is ended."""
        await hop.call(registry.find(handle.id).interrupt)

    async def restart(self, handle: ContainerHandle) -> None:
        """Fork a fresh kernel; files stay."""
        await hop.call(registry.find(handle.id).restart)

    async def renew(self, handle: ContainerHandle, timeout: float) -> None:
        """Let the sandbox live `timeout` seconds from now at least, and after each use."""
        registry.find(handle.id).renew(timeout)
        handle.timeout = timeout

    async def delete(self, handle: ContainerHandle) -> bool:
        """Delete the sandbox."""
        sandbox = SANDBOXES.pop(handle.id, None)
        if sandbox is None:
            return False
        was_there = not sandbox.ended
        await hop.call(sandbox.close)
        return was_there

    async def upload(self, handle: ContainerHandle, path: str, data: bytes) -> None:
        """Write a file."""
        sandbox = registry.find(handle.id)
        await hop.call(lambda: files.write(sandbox, path, data))

    async def download(self, handle: ContainerHandle, path: str) -> bytes:
        """Read a file."""
        sandbox = registry.find(handle.id)
        return await hop.call(lambda: files.read(sandbox, path))

    async def list_files(self, handle: ContainerHandle, path: str = ".") -> list[FileInfo]:
        """The entries of a directory, sorted by path."""
        sandbox = registry.find(handle.id)
        return await hop.call(lambda: files.entries(sandbox, path))

    async def list_sandboxes(self) -> list[SandboxInfo]:
        """The sandboxes of this process."""
        return [sandbox.info() for sandbox in list(SANDBOXES.values()) if not sandbox.ended]

    async def info(self, handle: ContainerHandle) -> SandboxInfo:
        """What is known of the sandbox now, its memory included."""
        return registry.find(handle.id).info()

    def delete_at_exit(self, handles: list[ContainerHandle], budget: float) -> None:
        """End the sandboxes within `budget` seconds."""
        until = time.monotonic() + budget
        ending = [s for h in handles if (s := SANDBOXES.pop(h.id, None)) is not None]
        for sandbox in ending:
            sandbox.kill("it was deleted")
        for sandbox in ending:
            sandbox.process.monitor.wait(max(until - time.monotonic(), 0))

    async def aclose(self) -> None:
        """Nothing to close: sandboxes live on."""


@functools.cache
def _sweep_once() -> None:
    leftovers.sweep()


async def _start(box: Box) -> LocalSandbox:
    _sweep_once()
    return _watched(LocalSandbox(await start_isolated(probe(), box), box))


async def _start_unsafe(box: Box) -> LocalSandbox:
    _sweep_once()
    return _watched(LocalSandbox(await start_unsafe(box), box, unsafe=True))


def _watched(sandbox: LocalSandbox) -> LocalSandbox:
    WATCHDOG.watch(sandbox)
    return sandbox


async def _start_kernel(sandbox: LocalSandbox, *, warm: bool = False) -> None:
    try:
        await sandbox.start_kernel(warm=warm)
    except BaseException:
        await sandbox.close()
        raise


async def _make_spare(box: Box) -> LocalSandbox:
    sandbox = await _start(box)
    await _start_kernel(sandbox, warm=True)
    return sandbox


SPARE = Spare(_make_spare).forget_in_children()
"""The spare sandbox of this process."""


def _box(options: SandboxOptions) -> Box:
    for name in _FOREIGN:
        if getattr(options, name) is not None:
            raise ConfigurationError(f"The local provider has no option {name!r}: leave it out.", provider="local")
    network: Network = "none"
    if options.host_network:
        network = "host"
    elif options.allow_internet_access:
        internet.check()
        network = "internet"
    return Box(Limits.of(options.limits), tuple(options.ro_binds), network)


def _handle(sandbox: LocalSandbox) -> ContainerHandle:
    return ContainerHandle(
        id=sandbox.id,
        provider="local",
        timeout=sandbox.options.timeout,
        created_at=sandbox.created_at,
        metadata=sandbox.options.metadata,
    )
