"""e2b: sandboxes in its cloud, or in one of your own that speaks its API (github.com/e2b-dev/E2B, spec/openapi.yml)."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
from collections.abc import AsyncGenerator, Awaitable
from typing import Any, TypeVar

import httpx
from pydantic import SecretStr

from ..errors import (
    AuthenticationError,
    ConfigurationError,
    OutputTruncatedError,
    ProviderError,
    RateLimitError,
    SandboxBusyError,
    SandboxCreationError,
    SandboxError,
    SandboxLostError,
)
from ..models import ContainerHandle, Event, FileInfo, SandboxInfo, SandboxOptions
from . import e2b_files
from .e2b_address import Address, address, checked_id, whole_seconds
from .e2b_code import CodeInterpreter
from .http import HTTPClient, delete_urls, understanding

T = TypeVar("T")

DEFAULT_TEMPLATE = "code-interpreter-v1"
NOT_HERE = ("network_policy", "resource_limits", "entrypoint", "use_server_proxy", "ro_binds", "limits", "host_network",
            "unsafe")  # fmt: skip
"""Fields of `SandboxOptions` that e2b cannot honour."""
EDGE_RETRIES = (0.3, 1.0)
"""Seconds to wait before a run is sent again that the edge did not let through to a sandbox that runs."""


class E2BProvider:
    """Sandboxes of e2b.

    The code port of a new sandbox answers only who has the sandbox's token, unless `secure_access=False`: without
    that, whoever learns the id of a sandbox can run code in it.

    Arguments:
        api_key: instead of `E2B_API_KEY`.
        api_base: the URL of the API, instead of `E2B_API_URL` or the one that follows from `E2B_DOMAIN`.

    Raises:
        ConfigurationError: there is no key, or the address is wrong.
    """

    name = "e2b"

    def __init__(self, api_key: str | None = None, api_base: str | None = None) -> None:
        key = (api_key or os.environ.get("E2B_API_KEY") or "").strip()
        if not key:
            raise ConfigurationError("e2b needs a key: set E2B_API_KEY or give api_key=.", provider=self.name)
        self._key = SecretStr(key)
        self._address: Address = address(api_base)
        self._http = HTTPClient(self.name)
        self._code = CodeInterpreter(self._http)

    async def create(self, options: SandboxOptions) -> ContainerHandle:
        self._check(options)
        body: dict[str, Any] = {
            "templateID": options.template or DEFAULT_TEMPLATE,
            "timeout": whole_seconds(options.timeout),
            "secure": True,
            "metadata": options.metadata,
        }
        if options.allow_internet_access is not None:
            body["allow_internet_access"] = options.allow_internet_access
        if options.secure_access is not False:
            body["network"] = {"allowPublicTraffic": False}
        making = asyncio.ensure_future(self._make(body, options))
        try:
            handle = await asyncio.shield(making)
        except asyncio.CancelledError:
            # The request may have made a sandbox that nobody would know of.
            await self._discard(making)
            raise
        try:
            await self._watching(handle, self._code.prepare(handle))
        except BaseException as error:
            await self._discard(making)
            if isinstance(error, SandboxError):
                raise self._creation_error(error) from error
            raise
        return handle

    def _check(self, options: SandboxOptions) -> None:
        defaults = SandboxOptions()
        if wrong := [name for name in NOT_HERE if getattr(options, name) != getattr(defaults, name)]:
            raise ConfigurationError(f"e2b does not know the option {', '.join(wrong)}.", provider=self.name)

    async def _make(self, body: dict[str, Any], options: SandboxOptions) -> ContainerHandle:
        failure: SandboxError
        try:
            return self._handle(await self._api("POST", "/sandboxes", json=body), options)
        except (AuthenticationError, RateLimitError, ConfigurationError):
            raise
        except SandboxError as error:
            failure = error
        raise self._creation_error(failure)

    def _creation_error(self, reason: SandboxError) -> SandboxError:
        return SandboxCreationError(f"No e2b sandbox could be made: {reason}", provider=self.name)

    async def _discard(self, making: asyncio.Future[ContainerHandle]) -> None:
        with contextlib.suppress(SandboxError, TimeoutError):
            async with asyncio.timeout(5):
                await self.delete(await making)

    def _handle(self, response: httpx.Response, options: SandboxOptions) -> ContainerHandle:
        with understanding("e2b", "a sandbox"):
            answer = response.json()
            secrets = {
                "access_token": answer.get("envdAccessToken"),
                "traffic_token": answer.get("trafficAccessToken"),
                "env_vars": json.dumps(options.env_vars) if options.env_vars else None,
            }
            return ContainerHandle(
                id=checked_id(answer["sandboxID"]),
                provider=self.name,
                domain=answer.get("domain") or self._address.domain,
                api_base=self._address.api,
                endpoint=self._address.sandbox,
                timeout=options.timeout,
                metadata=options.metadata,
                secrets={name: SecretStr(value) for name, value in secrets.items() if value},
            )

    async def connect(self, sandbox_id: str, *, timeout: float | None = None) -> ContainerHandle:
        options = SandboxOptions() if timeout is None else SandboxOptions(timeout=timeout)
        # Not GET: it tells no traffic token. The lifetime is only ever made longer.
        response = await self._sandbox_api(
            "POST", sandbox_id, "/connect", json={"timeout": whole_seconds(options.timeout)}, idempotent=True
        )
        return self._handle(response, options)

    async def run(self, handle: ContainerHandle, code: str) -> AsyncGenerator[Event, None]:
        for wait in (*EDGE_RETRIES, None):
            events = self._code.run(handle, code)
            failure: SandboxError | None = None
            async with contextlib.aclosing(events):
                try:
                    async for event in events:
                        yield event
                except SandboxError as error:
                    failure = error
            if failure is None:
                return
            cause = await self._cause(handle, failure)
            if wait is None or not _never_arrived(cause):
                raise cause
            await asyncio.sleep(wait)

    async def interrupt(self, handle: ContainerHandle) -> None:
        self._code.interrupt(handle)

    async def restart(self, handle: ContainerHandle) -> None:
        await self._watching(handle, self._code.restart(handle))

    async def renew(self, handle: ContainerHandle, timeout: float) -> None:
        # Not /timeout: that would also shorten the life of a sandbox that somebody else keeps.
        body = {"timeout": whole_seconds(timeout)}
        await self._sandbox_api("POST", handle.id, "/connect", json=body, idempotent=True)
        handle.timeout = timeout

    async def delete(self, handle: ContainerHandle) -> bool:
        self._code.forget(handle)
        response = await self._api("DELETE", f"/sandboxes/{checked_id(handle.id)}", expect={404}, sandbox_id=handle.id)
        return response.is_success

    async def upload(self, handle: ContainerHandle, path: str, data: bytes) -> None:
        await self._watching(handle, e2b_files.upload(self._http, handle, path, data))

    async def download(self, handle: ContainerHandle, path: str) -> bytes:
        return (await self._watching(handle, e2b_files.download(self._http, handle, path))).content

    async def list_files(self, handle: ContainerHandle, path: str = ".") -> list[FileInfo]:
        return await self._watching(handle, e2b_files.list_directory(self._http, handle, path))

    async def list_sandboxes(self) -> list[SandboxInfo]:
        found: list[SandboxInfo] = []
        params = {"limit": "100"}
        while True:
            response = await self._api("GET", "/v2/sandboxes", params=params)
            with understanding("e2b", "its sandboxes"):
                found += [_info(item) for item in response.json()]
            if not (token := response.headers.get("X-Next-Token")):
                return found
            params["nextToken"] = token

    async def info(self, handle: ContainerHandle) -> SandboxInfo:
        response = await self._sandbox_api("GET", handle.id)
        with understanding("e2b", "a sandbox"):
            info = _info(response.json())
        # A sandbox that has just started has no metrics yet.
        with contextlib.suppress(SandboxError), understanding("e2b", "memory"):
            metrics = (await self._sandbox_api("GET", handle.id, "/metrics")).json()
            info.memory_bytes = int(metrics[-1]["memUsed"])
        return info

    def delete_at_exit(self, handles: list[ContainerHandle], budget: float) -> None:
        urls = [f"{self._address.api}/sandboxes/{handle.id}" for handle in handles]
        delete_urls(urls, {"X-API-Key": self._key.get_secret_value()}, budget)

    async def aclose(self) -> None:
        await self._http.aclose()

    async def _api(self, method: str, path: str, **request: Any) -> httpx.Response:
        headers = {"X-API-Key": self._key.get_secret_value()}
        return await self._http.request(method, self._address.api + path, headers=headers, **request)

    async def _sandbox_api(self, method: str, sandbox_id: str, path: str = "", **request: Any) -> httpx.Response:
        url = f"/sandboxes/{checked_id(sandbox_id)}{path}"
        response = await self._api(method, url, expect={404}, sandbox_id=sandbox_id, **request)
        if response.status_code == 404:
            raise self._lost(sandbox_id)
        return response

    def _lost(self, sandbox_id: str) -> SandboxLostError:
        return SandboxLostError(
            f"The e2b sandbox {sandbox_id} is gone (its lifetime ended, or it was deleted), with its files and "
            "variables: the next use makes a new one.",
            provider=self.name,
            sandbox_id=sandbox_id,
        )

    async def _watching(self, handle: ContainerHandle, work: Awaitable[T]) -> T:
        try:
            return await work
        except SandboxError as error:
            failure = error
        raise await self._cause(handle, failure)

    async def _cause(self, handle: ContainerHandle, failure: SandboxError) -> SandboxError:
        """`failure`, or SandboxLostError if the control plane says that the sandbox is gone."""
        failure.provider, failure.sandbox_id = self.name, handle.id
        if not isinstance(failure, (ProviderError, OutputTruncatedError, SandboxBusyError)):
            return failure
        try:
            response = await self._sandbox_api("GET", handle.id)
            paused = response.json().get("state") == "paused"
        except SandboxLostError as lost:
            self._code.forget(handle)
            return lost
        except (SandboxError, ValueError, AttributeError):
            return failure
        if paused:
            return ProviderError(
                f"The e2b sandbox {handle.id} is paused: connect to its id to resume it.",
                provider=self.name,
                sandbox_id=handle.id,
            )
        return failure


def _info(item: dict[str, Any]) -> SandboxInfo:
    return SandboxInfo(
        id=item["sandboxID"],
        provider="e2b",
        state=item.get("state", "running"),
        created_at=item.get("startedAt"),
        expires_at=item.get("endAt"),
        metadata=item.get("metadata") or {},
    )


def _never_arrived(error: SandboxError) -> bool:
    # The edge's own answer, for a sandbox of which the control plane says that it runs: now and then it is behind.
    return getattr(error, "status", None) == 502 and "sandbox was not found" in str(error)
