"""Names of models become routes: address, key, quirks."""

from __future__ import annotations

import pickle
import socketserver
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import pytest

from ipy_sandbox import ConfigurationError
from ipy_sandbox.interpreter import catalog
from ipy_sandbox.interpreter.catalog import PROVIDERS, Provider, discover, resolve

KEYS = {name: "sk-env" for provider in PROVIDERS.values() for name in provider.key_env}


@pytest.mark.parametrize("provider", [p for p in PROVIDERS.values() if p.base_url])
def test_every_provider_has_an_address_and_takes_its_key_from_the_environment(provider: Provider) -> None:
    route = resolve(f"{provider.name}/some/model", env={provider.key_env[0]: "sk-1"})
    assert (route.provider, route.model, route.base_url) == (provider, "some/model", provider.base_url)
    assert route.url("chat") == f"{provider.base_url}/chat/completions"
    assert route.headers() == {"authorization": "Bearer sk-1"}


@pytest.mark.parametrize("provider", [p for p in PROVIDERS.values() if p.needs_key and p.base_url])
def test_a_missing_key_is_one_line_that_names_the_variable(provider: Provider) -> None:
    with pytest.raises(ConfigurationError) as caught:
        resolve(f"{provider.name}/m", env={})
    assert provider.key_env[0] in str(caught.value)
    assert "\n" not in str(caught.value)


def test_local_servers_need_no_key() -> None:
    locals_ = [p for p in PROVIDERS.values() if p.is_local]
    assert {p.name for p in locals_} == {"ollama", "lm_studio", "llamacpp", "vllm", "sglang", "litellm"}
    assert all(resolve(f"{p.name}/m", env={}).headers() == {} for p in locals_)


def test_a_bare_name_is_openais() -> None:
    route = resolve("gpt-5", env=KEYS)
    assert (route.provider.name, route.url("responses")) == ("openai", "https://api.openai.com/v1/responses")


def test_openai_base_url_is_honoured() -> None:
    route = resolve("meta/llama", env={"OPENAI_BASE_URL": "http://box:9/v1/"})
    assert (route.model, route.url("models"), route.headers()) == ("meta/llama", "http://box:9/v1/models", {})
    assert resolve("m", env={"OPENAI_BASE_URL": "http://box/v1", "OPENAI_API_KEY": "k"}).api_key == "k"


def test_any_provider_can_be_moved_by_its_variable() -> None:
    assert resolve("ollama/q", env={"OLLAMA_API_BASE": "http://gpu:1/v1"}).base_url == "http://gpu:1/v1"


@pytest.mark.parametrize(
    ("alias", "name"), [("hosted_vllm", "vllm"), ("together_ai", "together"), ("google", "gemini")]
)
def test_other_names_of_a_provider(alias: str, name: str) -> None:
    assert resolve(f"{alias}/m", env=KEYS).provider.name == name


def test_an_unknown_provider_is_refused_and_the_known_ones_named() -> None:
    with pytest.raises(ConfigurationError, match="Unknown provider 'nope' in 'nope/m': use one of openai, azure"):
        resolve("nope/m", env=KEYS)


@pytest.mark.parametrize("model", ["", "openai/", "groq/"])
def test_a_model_without_a_name_is_refused(model: str) -> None:
    with pytest.raises(ConfigurationError, match="No model name"):
        resolve(model, env=KEYS)


def test_any_name_goes_with_a_base_url() -> None:
    route = resolve("meta-llama/Llama-4", base_url="http://box/v1", api_key=" k\n", env={})
    assert (route.provider.name, route.model) == ("custom", "meta-llama/Llama-4")
    assert route.headers() == {"authorization": "Bearer k"}
    assert resolve("vllm/openai/gpt-oss-20b", base_url="http://box/v1", env={}).model == "openai/gpt-oss-20b"


def test_the_address_tells_the_provider() -> None:
    route = resolve("m", base_url="https://api.groq.com/openai/v1", env=KEYS)
    assert (route.provider.name, route.api_key) == ("groq", "sk-env")


@pytest.mark.parametrize("model", ["m", "openai/m", "groq/m", "mistral/m"])
def test_no_key_of_the_environment_goes_to_a_foreign_host(model: str) -> None:
    for address in (
        "https://evil.example/v1",
        "https://api.openai.com.evil.example/v1",
        "http://127.0.0.1:1/v1",
        "http://api.groq.com/openai/v1",
    ):
        assert resolve(model, base_url=address, env=KEYS).headers() == {}


def test_azure() -> None:
    env = {"AZURE_OPENAI_API_KEY": "k", "AZURE_OPENAI_ENDPOINT": "https://res.openai.azure.com/"}
    route = resolve("azure/dep", env=env)
    assert route.url("responses") == "https://res.openai.azure.com/openai/v1/responses"
    assert (route.headers(), route.provider.responses) == ({"api-key": "k"}, "stateful")

    old = resolve("azure/dep", api_version="2025-01-01", env=env)
    expected = "https://res.openai.azure.com/openai/deployments/dep/chat/completions?api-version=2025-01-01"
    assert (old.url("chat"), old.provider.responses, old.provider.key_header) == (expected, "none", "api-key")
    with pytest.raises(ConfigurationError, match="AZURE_OPENAI_ENDPOINT"):
        resolve("azure/dep", env={})
    with pytest.raises(ConfigurationError, match="AZURE_OPENAI_API_KEY"):
        resolve("azure/dep", env={"AZURE_API_BASE": env["AZURE_OPENAI_ENDPOINT"]})


@pytest.mark.parametrize("address", ["api.openai.com/v1", "file:///etc/passwd", "http://", "http://[x", "http://a:b"])
def test_what_is_no_address_is_refused(address: str) -> None:
    with pytest.raises(ConfigurationError, match="must look like https://host/v1"):
        resolve("m", base_url=address, env={})


@pytest.mark.parametrize("key", ["sk-\u2011secret", "sk-se\ncret", "sk\x00secret"])
def test_a_broken_key_is_refused_without_showing_it(key: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        resolve("openai/m", api_key=key, env={})
    assert "secret" not in str(caught.value)
    assert "cret" not in str(caught.value)


def test_a_route_does_not_show_its_secrets() -> None:
    route = resolve("openai/m", api_key="sk-secret", extra_headers={"x-key": "hidden"}, env={})
    assert "secret" not in repr(route)
    assert "hidden" not in repr(route)
    assert resolve("m", base_url="http://user:pass@box:1/v1", env={}).host == "box:1"
    assert pickle.loads(pickle.dumps(route)) == route


def test_ids_of_calls_fit_the_provider() -> None:
    mistral, openai = PROVIDERS["mistral"], PROVIDERS["openai"]
    assert mistral.call_id("aB3dE6gH9") == "aB3dE6gH9"
    made = mistral.call_id("call_0123456789")
    assert (len(made), made.isalnum(), made) == (9, True, mistral.call_id("call_0123456789"))
    assert made != mistral.call_id("call_0123456788")
    assert openai.call_id("call_0123456789") == "call_0123456789"


class Silent(BaseHTTPRequestHandler):
    """Answers with what `answers` says."""

    answers: dict[str, tuple[int, bytes]] = {}  # noqa: RUF012
    seen: list[dict[str, str]] = []  # noqa: RUF012

    def do_GET(self) -> None:
        status, body = self.answers[f"{self.server.server_address[1]}"]  # type: ignore[index]
        self.seen.append(dict(self.headers))
        self.send_response(status)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args: Any) -> None:
        pass


@contextmanager
def server(status: int, body: bytes) -> Iterator[int]:
    with HTTPServer(("127.0.0.1", 0), Silent) as httpd:
        port = httpd.server_address[1]
        Silent.answers[str(port)] = (status, body)
        thread = threading.Thread(target=socketserver.BaseServer.serve_forever, args=(httpd, 0.01))
        thread.start()
        try:
            yield port
        finally:
            httpd.shutdown()
            thread.join()


@pytest.mark.anyio
async def test_servers_on_this_machine_are_found_and_others_are_not_mistaken_for_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    models = b'{"object": "list", "data": [{"id": "qwen"}, {"id": "llama"}]}'
    with server(200, models) as good, server(200, b"<html>") as page, server(404, b"{}") as missing:
        table = [
            Provider(name, f"http://127.0.0.1:{port}/v1", ("OLLAMA_API_KEY",), needs_key=False)
            for name, port in {"ollama": good, "vllm": page, "sglang": missing, "llamacpp": 1}.items()
        ]
        monkeypatch.setattr(catalog, "_TABLE", [*table, Provider("openai", "https://api.openai.com/v1")])
        monkeypatch.setenv("OLLAMA_API_KEY", "sk-secret")
        monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:1")
        found = await discover()
    assert [(s.provider, s.base_url, s.models) for s in found] == [
        ("ollama", f"http://127.0.0.1:{good}/v1", ("qwen", "llama"))
    ]
    assert "secret" not in str(Silent.seen)
