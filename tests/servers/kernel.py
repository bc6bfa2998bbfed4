"""A real ipykernel, driven as the servers behind the providers drive theirs."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
from collections.abc import AsyncIterator
from typing import Any

from jupyter_client.asynchronous import AsyncKernelClient
from jupyter_client.manager import AsyncKernelManager


class Kernel:
    """A kernel process; `async with` starts and ends it.

    Arguments:
        arguments: further command line arguments of ipykernel.
        env, cwd: of its process.
    """

    def __init__(self, *arguments: str, env: dict[str, str] | None = None, cwd: str | None = None) -> None:
        self._arguments = list(arguments)
        self._options = {"env": {**os.environ, **(env or {})}, "cwd": cwd}
        self._queues: dict[str, asyncio.Queue[dict[str, Any]]] = {}
        self.died = asyncio.Event()
        """Set when the process ends without having been asked to."""

    async def start(self) -> None:
        self.died.clear()
        self._manager = AsyncKernelManager(cache_ports=False)
        # A terminal's Ctrl-C must not reach it.
        await self._manager.start_kernel(
            extra_arguments=["--log-level=50", *self._arguments],
            independent=True,
            start_new_session=True,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            **self._options,
        )
        self._client: AsyncKernelClient = self._manager.client()
        self._client.start_channels()
        await self._client.wait_for_ready(timeout=60)
        self._tasks = [
            asyncio.ensure_future(self._pump(self._client.get_iopub_msg)),
            asyncio.ensure_future(self._pump(self._client.get_shell_msg)),
            asyncio.ensure_future(self._watch()),
        ]

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._client.stop_channels()
        await self._manager.shutdown_kernel(now=True)

    async def restart(self) -> None:
        await self.stop()
        await self.start()

    async def __aenter__(self) -> Kernel:
        await self.start()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.stop()

    @property
    def pid(self) -> int:
        return int(self._manager.provisioner.pid)

    async def execute(self, code: str) -> AsyncIterator[dict[str, Any]]:
        """Run `code` and yield the messages of iopub and shell that answer it, for ever: the reader knows the end."""
        message_id = self._client.execute(code, store_history=True, allow_stdin=False)
        queue = self._queues[message_id] = asyncio.Queue()
        try:
            while True:
                yield await queue.get()
        finally:
            del self._queues[message_id]

    async def interrupt(self) -> None:
        await self._manager.interrupt_kernel()

    def kill(self) -> None:
        """As the OOM killer does it."""
        os.kill(self.pid, signal.SIGKILL)

    async def _pump(self, get: Any) -> None:
        while True:
            message = await get(timeout=None)
            if queue := self._queues.get(message["parent_header"].get("msg_id")):
                queue.put_nowait(message)

    async def _watch(self) -> None:
        while await self._manager.is_alive():  # noqa: ASYNC110 (a process has no event)
            await asyncio.sleep(0.1)
        self.died.set()
