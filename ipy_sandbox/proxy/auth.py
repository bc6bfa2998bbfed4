"""Who asks: API keys compared in constant time, and the identity that keeps their sessions apart."""

from __future__ import annotations

import hmac
import ipaddress
from collections.abc import Mapping
from dataclasses import dataclass

from .config import Config, key_digest
from .errors import ApiError


@dataclass(frozen=True, slots=True)
class Caller:
    """Who sent a request.

    `identity`, the SHA-256 of the key, owns sessions, containers and stored responses. `name` is for logs.
    """

    identity: str
    name: str
    admin: bool = False
    max_parallel_requests: int | None = None


class Keyring:
    """The keys of a configuration. Without any, every bearer token is taken, each one its own identity."""

    def __init__(self, config: Config) -> None:
        self._callers = [Caller(k.digest, k.name, False, k.max_parallel_requests) for k in config.api_keys]
        if config.master_digest:
            self._callers.append(Caller(config.master_digest, "master", admin=True))

    @property
    def open(self) -> bool:
        """Whether there are no keys."""
        return not self._callers

    def identify(self, headers: Mapping[str, str]) -> Caller:
        """The caller that the headers show.

        Raises:
            ApiError: 401, no key or a wrong one; 403, a keyless proxy was reached under a name that is not its own.
        """
        token = _token(headers)
        if not token:
            raise ApiError(401, "You didn't provide an API key: send `Authorization: Bearer KEY`.", code="no_api_key")
        digest = key_digest(token)
        if self.open:
            _refuse_foreign_host(headers.get("host", ""))
            return Caller(digest, digest[:8], admin=False)
        found: Caller | None = None
        for caller in self._callers:
            # No early exit: the time taken says nothing about the keys.
            if hmac.compare_digest(caller.identity, digest):
                found = caller
        if found is None:
            raise ApiError(401, "Incorrect API key provided.", code="invalid_api_key")
        return found


def _token(headers: Mapping[str, str]) -> str:
    scheme, _, token = headers.get("authorization", "").partition(" ")
    if scheme.lower() == "bearer":
        return token.strip()
    return headers.get("api-key", "").strip()


def _refuse_foreign_host(host: str) -> None:
    # A web page that makes its own name resolve to 127.0.0.1 could use a proxy without keys.
    name = host.rsplit(":", 1)[0] if not host.endswith("]") else host
    if not is_loopback(name.strip("[]")):
        raise ApiError(403, "A proxy without keys answers on localhost only: configure general_settings.master_key.")


def is_loopback(host: str) -> bool:
    """Whether a host name or address is this machine's own."""
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
