"""What OpenSandbox's lifecycle API is asked, and how its answers are read.

Source: opensandbox_server/api/schema.py of version 1.1.1.
"""

from __future__ import annotations

import math
from datetime import datetime
from typing import Any

import httpx

from ..errors import ConfigurationError, ProviderError
from ..models import SandboxOptions

IMAGE = "opensandbox/code-interpreter:v1.1.0"
ENTRYPOINT = ["/opt/code-interpreter/code-interpreter.sh"]
RESOURCE_LIMITS = {"cpu": "1", "memory": "2Gi"}
SHORTEST_LIFE = 60
"""Seconds; the server refuses less."""
REFUSED_OPTIONS = ("ro_binds", "limits", "host_network", "unsafe")


def base_url(address: str) -> str:
    """The address with its `/v1`; raises ConfigurationError if there is none, or it has no scheme."""
    address = address.strip().rstrip("/")
    problem = None
    if not address:
        problem = "OpenSandbox needs the address of your server: set OPEN_SANDBOX_API_BASE or pass api_base=."
    elif not address.startswith(("http://", "https://")):
        problem = "The address of the OpenSandbox server must begin with http:// or https://."
    if problem is not None:
        raise ConfigurationError(problem, provider="opensandbox")
    return address if address.endswith("/v1") else f"{address}/v1"


def create_body(options: SandboxOptions) -> dict[str, Any]:
    """The body of `POST /sandboxes`; raises ConfigurationError for an option that OpenSandbox does not have."""
    for name in REFUSED_OPTIONS:
        if getattr(options, name):
            message = f"OpenSandbox does not know the option {name}: leave it out."
            raise ConfigurationError(message, provider="opensandbox")
    policy = options.network_policy
    if policy is None and not options.allow_internet_access:
        policy = {"defaultAction": "deny", "egress": []}
    optional = {
        "env": options.env_vars or None,
        "metadata": options.metadata or None,
        "networkPolicy": policy,
        "secureAccess": options.secure_access,
    }
    return {
        "image": {"uri": options.template or IMAGE},
        "entrypoint": options.entrypoint or ENTRYPOINT,
        "resourceLimits": options.resource_limits or RESOURCE_LIMITS,
        "timeout": max(SHORTEST_LIFE, math.ceil(options.timeout)),
        **{name: value for name, value in optional.items() if value is not None},
    }


def json_object(response: httpx.Response) -> dict[str, Any]:
    """The JSON object in an answer; raises ProviderError if there is none."""
    try:
        body = response.json()
    except (ValueError, RecursionError):
        body = None
    if not isinstance(body, dict):
        where = f"{response.request.method} {response.request.url.path}"
        message = f"OpenSandbox answered {where} with something else than a JSON object: check the address."
        raise ProviderError(message, provider="opensandbox", status=response.status_code)
    return body


def state_and_reason(sandbox: dict[str, Any]) -> tuple[str, str]:
    """The state in lower case, and why, if that is told."""
    status = sandbox.get("status") or {}
    if isinstance(status, str):
        return status.lower(), ""
    return str(status.get("state", "")).lower(), str(status.get("message") or status.get("reason") or "")


def moment(text: str | None) -> datetime | None:
    """A time as the API writes it; None if there is none that can be read."""
    try:
        return datetime.fromisoformat(text) if text else None
    except ValueError:
        return None
