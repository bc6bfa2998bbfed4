"""A model endpoint and a proxy in front of it, shared by the tests of a module."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import httpx
import pytest
from servers.fake_model import FakeModel, served
from servers.proxy_server import ProxyServer, config_for, running_proxy

Client = Callable[[str], httpx.Client]


@pytest.fixture(scope="module")
def model() -> FakeModel:
    """The model endpoint, to look at."""
    return FakeModel()


@pytest.fixture(scope="module")
def model_url(model: FakeModel) -> Iterator[str]:
    with served(model.app) as url:
        yield url


@pytest.fixture(scope="module")
def proxy(model_url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ProxyServer]:
    """A proxy whose sandboxes print the code they are given."""
    with running_proxy(config_for(model_url), tmp_path_factory.mktemp("proxy")) as server:
        yield server


@pytest.fixture(scope="module")
def client_of(proxy: ProxyServer) -> Iterator[Client]:
    """A client for one of the keys: alice, bob or master."""
    made: list[httpx.Client] = []

    def client_of(name: str) -> httpx.Client:
        headers = {"authorization": f"Bearer sk-{name}"}
        made.append(httpx.Client(base_url=proxy.url, headers=headers, timeout=30))
        return made[-1]

    yield client_of
    for client in made:
        client.close()


@pytest.fixture(scope="module")
def alice(client_of: Client) -> httpx.Client:
    return client_of("alice")


@pytest.fixture(scope="module")
def bob(client_of: Client) -> httpx.Client:
    return client_of("bob")


@pytest.fixture(autouse=True)
def forget_requests(model: FakeModel) -> None:
    model.requests.clear()
