"""Keys, identities, and what a proxy without keys refuses."""

from __future__ import annotations

import hashlib
from typing import Any

import pytest

from ipy_sandbox.errors import ConfigurationError
from ipy_sandbox.proxy.auth import Keyring, is_loopback
from ipy_sandbox.proxy.config import Config
from ipy_sandbox.proxy.errors import ApiError
from ipy_sandbox.proxy.server import ServerOptions, refuse_if_unsafe


def keyring(**config: Any) -> Keyring:
    return Keyring(Config.model_validate(config))


def digest(key: str) -> str:
    return hashlib.sha256(key.encode()).hexdigest()


KEYS = {
    "general_settings": {"master_key": "sk-master"},
    "api_keys": [{"name": "alice", "key": "sk-alice"}, {"name": "bob", "sha256": digest("sk-bob").upper()}],
}


@pytest.mark.parametrize(
    ("headers", "name", "admin"),
    [
        ({"authorization": "Bearer sk-alice"}, "alice", False),
        ({"authorization": "bearer  sk-alice "}, "alice", False),
        ({"api-key": "sk-bob"}, "bob", False),
        ({"authorization": "Bearer sk-master"}, "master", True),
    ],
)
def test_a_key_names_its_caller(headers: dict[str, str], name: str, admin: bool) -> None:
    caller = keyring(**KEYS).identify(headers)
    assert (caller.name, caller.admin) == (name, admin)
    assert caller.identity == digest(f"sk-{name}")


@pytest.mark.parametrize(
    "headers",
    [{}, {"authorization": ""}, {"authorization": "Bearer"}, {"authorization": "Basic sk-alice"},
     {"authorization": "sk-alice"}, {"authorization": "Bearer sk-alic"}, {"authorization": "Bearer sk-alicee"},
     {"authorization": f"Bearer {digest('sk-alice')}"}, {"x-litellm-key": "sk-alice"}],
)  # fmt: skip
def test_anything_else_is_401(headers: dict[str, str]) -> None:
    with pytest.raises(ApiError) as caught:
        keyring(**KEYS).identify({**headers, "host": "localhost"})
    assert caught.value.status == 401
    assert "sk-" not in caught.value.message


def test_without_keys_each_token_is_an_identity_of_its_own() -> None:
    ring = keyring()
    callers = [ring.identify({"authorization": f"Bearer {t}", "host": "localhost:4000"}) for t in ("a", "b", "a")]
    assert callers[0] == callers[2] != callers[1]
    assert not callers[0].admin


def test_without_keys_a_token_is_still_needed() -> None:
    # A web page can send requests to localhost, but not with this header.
    with pytest.raises(ApiError) as caught:
        keyring().identify({"host": "localhost:4000"})
    assert caught.value.status == 401


@pytest.mark.parametrize(
    ("host", "allowed"),
    [("localhost:4000", True), ("127.0.0.1", True), ("[::1]:4000", True), ("[::1]", True), ("127.8.8.8:1", True),
     ("evil.example:4000", False), ("localhost.evil.example", False), ("10.0.0.1", False), ("", False)],
)  # fmt: skip
def test_without_keys_only_names_of_this_machine_are_answered(host: str, allowed: bool) -> None:
    headers = {"authorization": "Bearer x", "host": host}
    if allowed:
        assert keyring().identify(headers)
        return
    with pytest.raises(ApiError) as caught:
        keyring().identify(headers)
    assert caught.value.status == 403


@pytest.mark.parametrize(("host", "loopback"), [("127.0.0.1", True), ("::1", True), ("0.0.0.0", False), ("::", False)])
def test_loopback(host: str, loopback: bool) -> None:
    assert is_loopback(host) is loopback


def test_without_keys_it_does_not_listen_to_others() -> None:
    with pytest.raises(ConfigurationError, match=r"not on 0\.0\.0\.0: configure general_settings\.master_key"):
        refuse_if_unsafe(Config(), ServerOptions(host="0.0.0.0"))
    refuse_if_unsafe(Config(), ServerOptions())
    refuse_if_unsafe(Config.model_validate(KEYS), ServerOptions(host="0.0.0.0"))


def test_several_workers_need_redis() -> None:
    with pytest.raises(ConfigurationError, match=r"--workers above 1 needs general_settings\.redis_url"):
        refuse_if_unsafe(Config(), ServerOptions(workers=2))


@pytest.mark.parametrize(("seconds", "header"), [(None, None), (0.2, "1"), (7.4, "7"), (float("inf"), None)])
def test_when_to_come_back_is_said_if_it_is_known(seconds: float | None, header: str | None) -> None:
    assert ApiError(429, "later", retry_after=seconds).response.headers.get("retry-after") == header
