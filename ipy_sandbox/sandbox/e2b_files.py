"""Files of an e2b sandbox, through envd, the service in each sandbox: `/files` and the RPC `filesystem.Filesystem`
(github.com/e2b-dev/infra, packages/envd), in Connect's JSON form."""

from __future__ import annotations

import base64
from typing import Any

import httpx

from ..errors import FileTransferError, ProviderError
from ..models import ContainerHandle, FileInfo
from .e2b_address import FILES_PORT, sandbox_headers, sandbox_url
from .http import HTTPClient, understanding

USER = "user"
DOWNLOAD_CAP = 1024**3
_EXPECTED = (400, 404, 502, 507)


async def upload(http: HTTPClient, handle: ContainerHandle, path: str, data: bytes) -> httpx.Response:
    """Write a file; parents are made, a relative path is below the user's home, where the kernel works too."""
    files = {"file": (path.rpartition("/")[2] or "file", data)}
    return await _request(http, handle, "POST", path, files=files, idempotent=True)


async def download(http: HTTPClient, handle: ContainerHandle, path: str) -> httpx.Response:
    """Read a file."""
    return await _request(http, handle, "GET", path, cap=DOWNLOAD_CAP)


async def _request(http: HTTPClient, handle: ContainerHandle, method: str, path: str, **request: Any) -> httpx.Response:
    response = await http.request(
        method,
        sandbox_url(handle, FILES_PORT, "/files"),
        params={"path": path, "username": USER},
        headers=sandbox_headers(handle, FILES_PORT),
        expect=_EXPECTED,
        timeout=httpx.Timeout(300, connect=10),
        sandbox_id=handle.id,
        **request,
    )
    return _checked(response, handle, path)


async def list_directory(http: HTTPClient, handle: ContainerHandle, path: str) -> list[FileInfo]:
    """The entries of a directory."""
    user = base64.b64encode(f"{USER}:".encode()).decode()
    headers = {"Connect-Protocol-Version": "1", "Authorization": f"Basic {user}"}
    response = await http.request(
        "POST",
        sandbox_url(handle, FILES_PORT, "/filesystem.Filesystem/ListDir"),
        json={"path": path, "depth": 1},
        headers={**sandbox_headers(handle, FILES_PORT), **headers},
        expect=_EXPECTED,
        idempotent=True,
        sandbox_id=handle.id,
    )
    _checked(response, handle, path)
    with understanding("e2b", "a directory"):
        entries = response.json().get("entries", [])
        return sorted((_file_info(entry) for entry in entries), key=lambda info: info.path)


def _file_info(entry: dict[str, Any]) -> FileInfo:
    # The JSON form of protocol buffers leaves out what is zero and writes 64-bit numbers as text.
    is_dir = entry.get("type") in ("FILE_TYPE_DIRECTORY", 2)
    size = 0 if is_dir else int(entry.get("size", 0))
    return FileInfo(path=entry["path"], is_dir=is_dir, size=size, modified_at=entry.get("modifiedTime"))


def _checked(response: httpx.Response, handle: ContainerHandle, path: str) -> httpx.Response:
    if response.is_success:
        return response
    if response.status_code == 502:
        # The edge: the sandbox is gone, or envd does not listen. The caller finds out.
        raise ProviderError("e2b gave 502.", provider="e2b", sandbox_id=handle.id, status=502)
    reasons = {404: "it is not there", 507: "the sandbox has no space left", 400: "it is no such file or directory"}
    raise FileTransferError(
        f"{path!r} of sandbox {handle.id} cannot be read or written: {reasons[response.status_code]}.",
        provider="e2b",
        sandbox_id=handle.id,
    )
