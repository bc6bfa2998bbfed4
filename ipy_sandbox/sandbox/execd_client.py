"""The way to execd, the server inside an OpenSandbox sandbox, and its files.

Source of the protocol: components/execd/pkg/web of the OpenSandbox repository, and recordings of version 1.0.19.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Collection
from typing import Any, Protocol, TypeVar

import httpx

from ..errors import AuthenticationError, FileTransferError, ProviderError, SandboxError
from ..models import ContainerHandle, FileInfo
from .http import HTTPClient

PORT = 44772
JUPYTER_PORT = 44771
OWN_404 = {"CONTEXT_NOT_FOUND", "FILE_NOT_FOUND"}
"""What execd itself does not find; any other 404 is of somebody on the way to it."""
REFUSALS = {400, 404, 405, 422, 500}


ErrorT = TypeVar("ErrorT", bound=SandboxError)


class ControlPlane(Protocol):
    """What execd's client needs of the server that made the sandbox."""

    async def check(self, handle: ContainerHandle) -> None:
        """Raise SandboxLostError if the sandbox is gone."""
        ...

    async def locate(self, handle: ContainerHandle) -> None:
        """Set the handle's endpoint and its headers."""
        ...

    def headers(self, handle: ContainerHandle) -> dict[str, str]:
        """Headers of ours for the endpoint."""
        ...


class ExecdClient:
    """One sandbox's execd, reached at `handle.endpoint` with the headers in `handle.secrets`.

    Arguments:
        control: asked when execd does not answer as it should.
    """

    def __init__(self, http: HTTPClient, handle: ContainerHandle, control: ControlPlane) -> None:
        self.handle = handle
        self._http = http
        self._control = control

    async def ping(self) -> None:
        """Raise ProviderError if execd does not answer."""
        await self._request("GET", "/ping", timeout=5)

    async def sees_jupyter(self) -> bool:
        """Whether Jupyter, through which the code runs, has started; True where that cannot be asked."""
        url = f"{self.handle.endpoint}/proxy/{JUPYTER_PORT}/api"
        response = await self._http.request("GET", url, expect=range(400, 600), headers=self._headers(), timeout=5)
        return response.status_code not in (502, 503, 504)

    async def upload(self, path: str, data: bytes) -> None:
        """Write a file; parents are made."""
        metadata = json.dumps({"path": path, "mode": 644}).encode()
        # The metadata has to be a file part, with a file name.
        parts = [
            ("metadata", ("metadata", metadata, "application/json")),
            ("file", ("file", data, "application/octet-stream")),
        ]
        await self._file("write", "POST", "/files/upload", path, files=parts, timeout=httpx.Timeout(60, read=300))

    async def download(self, path: str) -> bytes:
        """Read a file."""
        return (await self._file("read", "GET", "/files/download", path, params={"path": path})).content

    async def list_files(self, path: str) -> list[FileInfo]:
        """The entries of a directory, sorted by path."""
        entries = (await self._file("list", "GET", "/directories/list", path, params={"path": path})).json()
        found = [
            FileInfo(
                path=entry["path"],
                is_dir=entry.get("type") == "directory",
                size=entry.get("size", 0),
                modified_at=entry.get("modified_at"),
            )
            for entry in entries
        ]
        return sorted(found, key=lambda file: file.path)

    async def _file(self, verb: str, method: str, route: str, path: str, **request: Any) -> httpx.Response:
        response = await self._request(method, route, expect=REFUSALS, **request)
        if response.is_success:
            return response
        raise self._error(FileTransferError, f"could not {verb} {path!r}: {said(response)}")

    async def _request(
        self, method: str, route: str, *, expect: Collection[int] = (), **request: Any
    ) -> httpx.Response:
        await self._ensure_endpoint()
        try:
            response = await self._send(method, route, expect, request)
        except AuthenticationError:
            await self._control.locate(self.handle)
            response = await self._send(method, route, expect, request)
        except ProviderError:
            await self._control.check(self.handle)
            raise
        if response.status_code == 404 and error_code(response) not in OWN_404:
            await self._control.check(self.handle)
        return response

    async def _send(self, method: str, route: str, expect: Collection[int], request: dict[str, Any]) -> httpx.Response:
        url, headers = f"{self.handle.endpoint}{route}", self._headers()
        return await self._http.request(
            method, url, expect=expect, headers=headers, sandbox_id=self.handle.id, **request
        )

    async def _ensure_endpoint(self) -> None:
        if self.handle.endpoint is None:
            await self._control.locate(self.handle)

    def _headers(self) -> dict[str, str]:
        own = {name: value.get_secret_value() for name, value in self.handle.secrets.items()}
        return self._control.headers(self.handle) | own

    def _error(self, kind: type[ErrorT], message: str, **fields: Any) -> ErrorT:
        handle = self.handle
        return kind(f"Sandbox {handle.id} {message}.", provider=handle.provider, sandbox_id=handle.id, **fields)


def _body(response: httpx.Response) -> dict[str, Any]:
    with contextlib.suppress(ValueError):
        body = response.json()
        if isinstance(body, dict):
            return body
    return {}


def error_code(response: httpx.Response) -> str:
    return str(_body(response).get("code", ""))


def said(response: httpx.Response) -> str:
    return " ".join(str(_body(response).get("message") or response.text).split())[:300] or str(response.status_code)
