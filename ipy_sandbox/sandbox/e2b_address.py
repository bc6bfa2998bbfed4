"""Where e2b is: its API and its sandboxes, from the same environment variables as its own SDK.

`E2B_DOMAIN` (e2b.app) names both; `E2B_API_URL` and `E2B_SANDBOX_URL` name one each. With the latter all sandboxes and
ports share one URL, and two headers say which is meant; they are always sent.
"""

from __future__ import annotations

import math
import os
import re
from dataclasses import dataclass

import httpx

from ..errors import ConfigurationError
from ..models import ContainerHandle

CODE_PORT = 49999
FILES_PORT = 49983
DEFAULT_DOMAIN = "e2b.app"


@dataclass(frozen=True)
class Address:
    """The base URLs: `api` of the control plane, `sandbox` of all sandboxes or None where each has its own host."""

    api: str
    domain: str
    sandbox: str | None = None


def address(api_base: str | None) -> Address:
    """The address to use; `api_base` goes before the environment.

    Raises:
        ConfigurationError: it cannot be told where the sandboxes of `api_base` are.
    """
    api = api_base or os.environ.get("E2B_API_URL")
    sandbox = (os.environ.get("E2B_SANDBOX_URL") or "").rstrip("/") or None
    domain = os.environ.get("E2B_DOMAIN")
    if not api:
        domain = domain or DEFAULT_DOMAIN
        return Address(f"https://api.{domain}", domain, sandbox)
    host = httpx.URL(api).host if "://" in api else ""
    if not host:
        raise ConfigurationError(f"The URL of e2b's API must look like https://api.{DEFAULT_DOMAIN}.", provider="e2b")
    if not domain and host.startswith("api."):
        domain = httpx.URL(api).netloc.decode("ascii").removeprefix("api.")
    if not domain and not sandbox:
        raise ConfigurationError(
            f"Where the sandboxes of {host} are is not known: set E2B_DOMAIN or E2B_SANDBOX_URL.", provider="e2b"
        )
    return Address(api.rstrip("/"), domain or DEFAULT_DOMAIN, sandbox)


def sandbox_url(handle: ContainerHandle, port: int, path: str) -> str:
    """The URL of a path of a port of a sandbox."""
    base = handle.endpoint or f"https://{port}-{checked_id(handle.id)}.{handle.domain or DEFAULT_DOMAIN}"
    return base + path


def sandbox_headers(handle: ContainerHandle, port: int) -> dict[str, str]:
    """The headers that every request to a sandbox needs; without the access token the first run of a kernel loses its
    environment variables for good."""
    headers = {"E2b-Sandbox-Id": handle.id, "E2b-Sandbox-Port": str(port)}
    if token := handle.secret("access_token"):
        headers["X-Access-Token"] = token
    if token := handle.secret("traffic_token"):
        headers["e2b-traffic-access-token"] = token
    return headers


def checked_id(sandbox_id: str) -> str:
    """The id, if it is one: it becomes part of URLs and host names."""
    if not re.fullmatch(r"[A-Za-z0-9_-]{1,100}", sandbox_id):
        raise ConfigurationError(f"{sandbox_id!r:.120} is not the id of an e2b sandbox.", provider="e2b")
    return sandbox_id


def whole_seconds(timeout: float) -> int:
    """Seconds as e2b takes them: a whole number, not less than asked, not 0 (which would kill)."""
    return max(1, math.ceil(timeout))
