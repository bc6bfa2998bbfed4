"""OpenSandbox, a sandbox server that the user runs, over plain HTTP.

This file speaks to its lifecycle API, `execd.py` to the server inside each sandbox. Source of the protocol:
opensandbox-server 1.1.1 (its routes are also those of the older 0.1.x) and recordings of it on Docker.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections.abc import AsyncGenerator, Collection, Coroutine
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar

import httpx
from pydantic import SecretStr

from ..errors import (
    AuthenticationError,
    OutputTruncatedError,
    ProviderError,
    SandboxBusyError,
    SandboxCreationError,
    SandboxError,
    SandboxLostError,
)
from ..models import ContainerHandle, Event, FileInfo, SandboxInfo, SandboxOptions
from ..transport import ssl_context
from .execd import Execd
from .execd_client import PORT
from .http import HTTPClient
from .opensandbox_wire import SHORTEST_LIFE, base_url, create_body, json_object, moment, state_and_reason

T = TypeVar("T")

READY_TIMEOUT = 120.0
"""Seconds a new sandbox has to become ready, after the server said that it exists."""
DIRECT_PATIENCE = 15.0
"""Seconds in which a new sandbox must be reachable directly; then the way through the server is taken."""
GONE = {"failed", "terminated", "stopping"}
KEY_HEADER = "OPEN-SANDBOX-API-KEY"


class OpenSandboxProvider:
    """Sandboxes of an OpenSandbox server.

    Arguments:
        api_key: instead of `OPEN_SANDBOX_API_KEY`; may be empty, for a server that asks for none.
        api_base: the server's address, with or without its `/v1`, instead of `OPEN_SANDBOX_API_BASE`.

    Raises:
        ConfigurationError: no address is given.
    """

    name = "opensandbox"

    def __init__(self, api_key: str | None = None, api_base: str | None = None) -> None:
        self._base = base_url(api_base or os.environ.get("OPEN_SANDBOX_API_BASE") or "")
        key = os.environ.get("OPEN_SANDBOX_API_KEY", "") if api_key is None else api_key
        self._headers = {KEY_HEADER: key} if key else {}
        self._http = HTTPClient(self.name)
        self._execds: dict[str, Execd] = {}
        self._background: set[asyncio.Future[Any]] = set()
        self._warm = False
        """Whether the last new sandbox was ready at once: then the next one is not asked first."""
        self._plain_images: set[str | None] = set()
        """Images whose kernels take no prelude."""

    async def create(self, options: SandboxOptions) -> ContainerHandle:
        """Make a sandbox whose kernel is ready; one that fails to become ready is deleted again.

        No sandbox can live less than 60 s here; a shorter `timeout` gives that.
        """
        body = create_body(options)
        creating = self._in_background(self._create(body))
        try:
            made = await asyncio.shield(creating)
        except asyncio.CancelledError:
            creating.add_done_callback(self._unwanted)
            raise
        handle = self._handle(made, body["timeout"])
        try:
            await self._become_ready(handle, made, options)
        except BaseException as error:
            await asyncio.shield(self._in_background(self._delete_quietly(handle)))
            raise _creation_error(error, handle) from None
        return handle

    async def _create(self, body: dict[str, Any]) -> dict[str, Any]:
        reason = "its answer has no sandbox id"
        try:
            # The server answers when the image is there, which may take long.
            response = await self._call("POST", "/sandboxes", json=body, timeout=httpx.Timeout(30, read=600))
            made = json_object(response)
            if made.get("id"):
                return made
        except ProviderError as error:
            if error.status is None:
                raise
            reason = str(error)
        if "networkPolicy" in body and "egress" in reason:
            reason += " Where the server has no egress control, only allow_internet_access=True works."
        raise SandboxCreationError(f"OpenSandbox made no sandbox: {reason}", provider=self.name)

    def _unwanted(self, creating: asyncio.Future[dict[str, Any]]) -> None:
        if not creating.cancelled() and creating.exception() is None:
            self._in_background(self._delete_quietly(self._handle(creating.result(), SHORTEST_LIFE)))

    def _in_background(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        task = asyncio.create_task(work)
        self._background.add(task)
        task.add_done_callback(self._background.discard)
        return task

    def _handle(self, sandbox: dict[str, Any], timeout: float) -> ContainerHandle:
        return ContainerHandle(
            id=str(sandbox["id"]),
            provider=self.name,
            api_base=self._base,
            timeout=timeout,
            created_at=moment(sandbox.get("createdAt")) or datetime.now(UTC),
            metadata=sandbox.get("metadata") or {},
        )

    async def _become_ready(self, handle: ContainerHandle, sandbox: dict[str, Any], options: SandboxOptions) -> None:
        deadline = time.monotonic() + READY_TIMEOUT
        await self._until_running(handle, sandbox, deadline)
        await self.locate(handle, use_server_proxy=bool(options.use_server_proxy))
        execd = self._execd(handle)
        execd.plain = options.template in self._plain_images
        await self._until_prepared(execd, deadline, may_detour=options.use_server_proxy is None)
        if execd.plain:
            self._plain_images.add(options.template)

    async def _until_running(self, handle: ContainerHandle, sandbox: dict[str, Any], deadline: float) -> None:
        pause = 0.2
        while (state := state_and_reason(sandbox)[0]) != "running":
            if state in GONE or time.monotonic() > deadline:
                raise SandboxCreationError(f"it is {' '.join(filter(None, state_and_reason(sandbox)))}")
            await asyncio.sleep(pause)
            pause = min(pause * 1.5, 2)
            sandbox = await self._sandbox("GET", handle)

    async def _until_prepared(self, execd: Execd, deadline: float, *, may_detour: bool) -> None:
        """Running does not mean ready: execd comes first, Jupyter seconds later, and its kernel after that."""
        first, reached, began = True, False, time.monotonic()
        while True:
            problem = "Jupyter has not started in it"
            try:
                async with asyncio.timeout(deadline - time.monotonic()):
                    if self._warm or await execd.sees_jupyter():
                        await execd.prepare()
                        self._warm = first
                        return
                    reached = True
            except (ProviderError, OutputTruncatedError, SandboxBusyError) as error:
                if isinstance(error, ProviderError) and error.status not in (None, 502, 503, 504):
                    raise
                problem = str(error)
            except TimeoutError:
                pass
            first = self._warm = False
            await self.check(execd.handle)
            if may_detour and not reached and time.monotonic() > began + DIRECT_PATIENCE:
                await self.locate(execd.handle, use_server_proxy=True)
                may_detour = False
            if time.monotonic() > deadline:
                raise SandboxCreationError(f"it was not ready after {READY_TIMEOUT:g} s: {problem}")
            await asyncio.sleep(0.2)

    async def locate(self, handle: ContainerHandle, *, use_server_proxy: bool | None = None) -> None:
        """Set the endpoint of execd in the sandbox, and the headers that it asks for.

        Arguments:
            use_server_proxy: go through the server; None: as the handle did before.
        """
        if use_server_proxy is None:
            use_server_proxy = f"/sandboxes/{handle.id}/proxy/" in (handle.endpoint or "")
        params = {"use_server_proxy": "true"} if use_server_proxy else {}
        found = await self._sandbox("GET", handle, f"/endpoints/{PORT}", params=params)
        endpoint = str(found.get("endpoint") or "").rstrip("/")
        if not endpoint:
            message = f"OpenSandbox names no endpoint of sandbox {handle.id}: look at the server's log."
            raise ProviderError(message, provider=self.name, sandbox_id=handle.id)
        if "://" not in endpoint:
            endpoint = f"{self._base.partition('://')[0]}://{endpoint}"
        host = endpoint.removesuffix(f"/proxy/{PORT}")
        if host.count("/") == 2:
            # execd's way round through itself cuts about one run in a hundred short; the port is execd's own.
            endpoint = host
        handle.endpoint = endpoint
        handle.secrets = {name: SecretStr(value) for name, value in (found.get("headers") or {}).items()}

    def headers(self, handle: ContainerHandle) -> dict[str, str]:
        """The key, for an endpoint that is our server's own proxy; it does not hand the key on to the sandbox."""
        return self._headers if (handle.endpoint or "").startswith(f"{self._base}/sandboxes/") else {}

    async def check(self, handle: ContainerHandle) -> None:
        """Raise SandboxLostError if the sandbox is gone, ProviderError if it is paused."""
        try:
            path = f"/sandboxes/{handle.id}"
            response = await self._call("GET", path, expect={404}, timeout=10, sandbox_id=handle.id)
        except SandboxError:
            # Who asks has a problem at hand that says more.
            return
        if response.status_code == 404:
            raise self._lost(handle, "deleted, or its lifetime ended")
        state, reason = state_and_reason(json_object(response))
        if state in GONE:
            raise self._lost(handle, f"{state}: {reason}" if reason else state)
        if state == "paused":
            message = f"Sandbox {handle.id} is paused: resume it on the server."
            raise ProviderError(message, provider=self.name, sandbox_id=handle.id)

    def _lost(self, handle: ContainerHandle, reason: str) -> SandboxLostError:
        self._forget(handle)
        message = f"Sandbox {handle.id} is gone ({reason.rstrip('.')}): the next use makes a new one."
        return SandboxLostError(message, provider=self.name, sandbox_id=handle.id)

    async def connect(self, sandbox_id: str, *, timeout: float | None = None) -> ContainerHandle:
        """Take back a sandbox by its bare id, directly or, where that does not work, through the server."""
        handle = self._handle({"id": sandbox_id}, 300 if timeout is None else timeout)
        sandbox = await self._sandbox("GET", handle)
        handle = self._handle(sandbox, handle.timeout)
        if state_and_reason(sandbox)[0] != "running":
            await self.check(handle)
        if timeout is not None:
            await self.renew(handle, timeout)
        await self.locate(handle, use_server_proxy=False)
        try:
            await self._execd(handle).ping()
        except ProviderError:
            await self.locate(handle, use_server_proxy=True)
        return handle

    def _execd(self, handle: ContainerHandle) -> Execd:
        execd = self._execds.get(handle.id)
        if execd is None or execd.handle is not handle:
            execd = self._execds[handle.id] = Execd(self._http, handle, self)
        return execd

    def _forget(self, handle: ContainerHandle) -> None:
        if (execd := self._execds.pop(handle.id, None)) is not None:
            execd.forget()

    async def run(self, handle: ContainerHandle, code: str) -> AsyncGenerator[Event, None]:
        """Run `code` and yield its events, the last one `End`; closing the iterator early stops the code."""
        async with contextlib.aclosing(self._execd(handle).run(code)) as events:
            async for event in events:
                yield event

    async def interrupt(self, handle: ContainerHandle) -> None:
        """Stop the code that runs now, as Ctrl-C would."""
        await self._execd(handle).interrupt()

    async def restart(self, handle: ContainerHandle) -> None:
        """Give the sandbox a fresh kernel; its files stay."""
        await self._execd(handle).restart()

    async def renew(self, handle: ContainerHandle, timeout: float) -> None:
        """Let the sandbox live at least `timeout` seconds from now."""
        ends = moment((await self._sandbox("GET", handle)).get("expiresAt"))
        until = datetime.now(UTC) + timedelta(seconds=timeout)
        if ends is None or ends < until:
            body = {"expiresAt": until.isoformat()}
            # 409: it was made without an end.
            await self._sandbox_call("POST", handle, "/renew-expiration", json=body, idempotent=True, expect={409})
        handle.timeout = timeout

    async def delete(self, handle: ContainerHandle) -> bool:
        """Delete the sandbox: True if it was there, False if it was already gone."""
        self._forget(handle)
        path = f"/sandboxes/{handle.id}"
        return (await self._call("DELETE", path, expect={404}, sandbox_id=handle.id)).status_code != 404

    async def _delete_quietly(self, handle: ContainerHandle) -> None:
        # It ends with its own lifetime.
        with contextlib.suppress(SandboxError):
            await self.delete(handle)

    async def upload(self, handle: ContainerHandle, path: str, data: bytes) -> None:
        """Write a file; a relative `path` is below the image's working directory, parents are made."""
        await self._execd(handle).upload(path, data)

    async def download(self, handle: ContainerHandle, path: str) -> bytes:
        """Read a file."""
        return await self._execd(handle).download(path)

    async def list_files(self, handle: ContainerHandle, path: str = ".") -> list[FileInfo]:
        """The entries of a directory, sorted by path."""
        return await self._execd(handle).list_files(path)

    async def list_sandboxes(self) -> list[SandboxInfo]:
        """The sandboxes of this server that the key may see."""
        found: list[SandboxInfo] = []
        more, page = True, 1
        while more:
            answer = json_object(await self._call("GET", "/sandboxes", params={"page": page, "pageSize": 200}))
            found += [self._info(sandbox) for sandbox in answer.get("items", [])]
            more, page = bool(answer.get("pagination", {}).get("hasNextPage")), page + 1
        return found

    async def info(self, handle: ContainerHandle) -> SandboxInfo:
        """What the server knows of the sandbox now."""
        return self._info(await self._sandbox("GET", handle))

    def _info(self, sandbox: dict[str, Any]) -> SandboxInfo:
        return SandboxInfo(
            id=str(sandbox.get("id", "")),
            provider=self.name,
            state=state_and_reason(sandbox)[0],
            created_at=moment(sandbox.get("createdAt")),
            expires_at=moment(sandbox.get("expiresAt")),
            metadata=sandbox.get("metadata") or {},
        )

    def delete_at_exit(self, handles: list[ContainerHandle], budget: float) -> None:
        """Delete `handles` within `budget` seconds, without asyncio and without raising: the interpreter is leaving."""
        end = time.monotonic() + budget
        with contextlib.suppress(Exception), httpx.Client(headers=self._headers, verify=ssl_context()) as client:
            for number, handle in enumerate(handles):
                share = (end - time.monotonic()) / (len(handles) - number)
                with contextlib.suppress(httpx.HTTPError):
                    client.delete(f"{self._base}/sandboxes/{handle.id}", timeout=max(share, 0.05))

    async def aclose(self) -> None:
        """Close connections; sandboxes live on, but for those whose creation was cancelled."""
        end = time.monotonic() + 5
        while self._background and time.monotonic() < end:
            await asyncio.wait(self._background, timeout=end - time.monotonic())
        await self._http.aclose()

    async def _call(self, method: str, path: str, **request: Any) -> httpx.Response:
        return await self._http.request(method, f"{self._base}{path}", headers=self._headers, **request)

    async def _sandbox(self, method: str, handle: ContainerHandle, path: str = "", **request: Any) -> dict[str, Any]:
        """What the server answers about one sandbox."""
        return json_object(await self._sandbox_call(method, handle, path, **request))

    async def _sandbox_call(
        self, method: str, handle: ContainerHandle, path: str, *, expect: Collection[int] = (), **request: Any
    ) -> httpx.Response:
        path = f"/sandboxes/{handle.id}{path}"
        response = await self._call(method, path, expect={404, *expect}, sandbox_id=handle.id, **request)
        if response.status_code == 404:
            raise self._lost(handle, "deleted, or its lifetime ended")
        return response


def _creation_error(error: BaseException, handle: ContainerHandle) -> BaseException:
    if not isinstance(error, SandboxError) or isinstance(error, AuthenticationError):
        return error
    message = f"Sandbox {handle.id} did not become ready and was deleted: {str(error).rstrip('.')}."
    return SandboxCreationError(message, provider=handle.provider, sandbox_id=handle.id)
