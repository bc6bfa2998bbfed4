"""The model providers: where they are, which key they take, which APIs they have, and their quirks.

`resolve` turns a model's name into a `Route`. A key from the environment only ever goes to its provider's own host,
to a server the environment names, or to one you run yourself; any other `base_url` gets a key only by `api_key=`.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, TypeAlias
from urllib.parse import urlsplit, urlunsplit

from ..errors import ConfigurationError

ResponsesSupport: TypeAlias = Literal["stateful", "stateless", "none", "unknown"]

_PATHS = {"chat": "chat/completions"}
_ALPHANUMERIC = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"


@dataclass(frozen=True, slots=True)
class Provider:
    """One row of the table.

    `responses` tells whether it has the Responses API and keeps its answers; versions differ, so a 404 there still
    means "use chat". `images`: its models generally see; `image_outputs`: a function's output may hold images.
    """

    name: str
    base_url: str | None = None
    key_env: tuple[str, ...] = ()
    needs_key: bool = True
    key_header: Literal["authorization", "api-key"] = "authorization"
    responses: ResponsesSupport = "none"
    include_usage: bool = True  # takes stream_options.include_usage
    required_word: str = "required"  # what it calls tool_choice "required"
    call_id_length: int | None = None  # its ids of calls are exactly so many alphanumerics
    images: bool = False
    image_outputs: bool = False

    @property
    def is_local(self) -> bool:
        """Whether it is a server that people run themselves, on loopback by default."""
        return _host(self.base_url or "") == "127.0.0.1"

    def call_id(self, wanted: str) -> str:
        """`wanted`, or the id made of it that this provider accepts in a history; equal ids stay equal."""
        length = self.call_id_length
        if length is None or (len(wanted) == length and wanted.isascii() and wanted.isalnum()):
            return wanted
        number = int.from_bytes(hashlib.sha256(wanted.encode()).digest())
        return "".join(_ALPHANUMERIC[number // 62**i % 62] for i in range(length))


_TABLE = [
    Provider("openai", "https://api.openai.com/v1", ("OPENAI_API_KEY",), responses="stateful", images=True,
             image_outputs=True),
    Provider("azure", None, ("AZURE_OPENAI_API_KEY", "AZURE_API_KEY"), key_header="api-key", responses="stateful",
             images=True, image_outputs=True),
    Provider("anthropic", "https://api.anthropic.com/v1", ("ANTHROPIC_API_KEY",), images=True),
    Provider("gemini", "https://generativelanguage.googleapis.com/v1beta/openai", ("GEMINI_API_KEY", "GOOGLE_API_KEY"),
             images=True),
    Provider("groq", "https://api.groq.com/openai/v1", ("GROQ_API_KEY",), responses="stateless"),
    Provider("together", "https://api.together.ai/v1", ("TOGETHER_API_KEY", "TOGETHERAI_API_KEY"),
             responses="stateless"),
    Provider("deepseek", "https://api.deepseek.com/v1", ("DEEPSEEK_API_KEY",)),
    # It reports usage unasked, and refuses unknown fields.
    Provider("mistral", "https://api.mistral.ai/v1", ("MISTRAL_API_KEY",), include_usage=False, required_word="any",
             call_id_length=9),
    Provider("xai", "https://api.x.ai/v1", ("XAI_API_KEY",), responses="stateful"),
    Provider("openrouter", "https://openrouter.ai/api/v1", ("OPENROUTER_API_KEY",), responses="stateless"),
    Provider("fireworks", "https://api.fireworks.ai/inference/v1", ("FIREWORKS_API_KEY",)),
    Provider("cerebras", "https://api.cerebras.ai/v1", ("CEREBRAS_API_KEY",)),
    Provider("nvidia", "https://integrate.api.nvidia.com/v1", ("NVIDIA_API_KEY",)),
    Provider("huggingface", "https://router.huggingface.co/v1", ("HF_TOKEN",)),
    Provider("moonshot", "https://api.moonshot.ai/v1", ("MOONSHOT_API_KEY",)),
    Provider("ollama", "http://127.0.0.1:11434/v1", ("OLLAMA_API_KEY",), needs_key=False, responses="stateless"),
    # It stores responses, but continuing from one loses context (lmstudio-bug-tracker#1188).
    Provider("lm_studio", "http://127.0.0.1:1234/v1", ("LM_STUDIO_API_KEY",), needs_key=False, responses="stateless"),
    Provider("llamacpp", "http://127.0.0.1:8080/v1", ("LLAMACPP_API_KEY",), needs_key=False, responses="stateless"),
    Provider("vllm", "http://127.0.0.1:8000/v1", ("VLLM_API_KEY", "HOSTED_VLLM_API_KEY"), needs_key=False,
             responses="stateless"),
    Provider("sglang", "http://127.0.0.1:30000/v1", ("SGLANG_API_KEY",), needs_key=False, responses="stateless"),
    Provider("litellm", "http://127.0.0.1:4000/v1", ("LITELLM_API_KEY", "LITELLM_MASTER_KEY", "LITELLM_PROXY_API_KEY"),
             needs_key=False, responses="stateless"),
]  # fmt: skip
PROVIDERS = {provider.name: provider for provider in _TABLE}
CUSTOM = Provider("custom", needs_key=False, responses="unknown")
"""An OpenAI-compatible endpoint of which nothing more is known."""

# The other names under which LiteLLM and users know them.
_ALIASES = {
    "together_ai": "together",
    "fireworks_ai": "fireworks",
    "nvidia_nim": "nvidia",
    "google": "gemini",
    "hosted_vllm": "vllm",
    "ollama_chat": "ollama",
    "lmstudio": "lm_studio",
    "llama_cpp": "llamacpp",
    "llama.cpp": "llamacpp",
    "litellm_proxy": "litellm",
}


@dataclass(frozen=True, slots=True)
class Route:
    """Where a request goes: provider, the model's name there, address and key."""

    provider: Provider
    model: str
    base_url: str
    api_key: str | None = field(default=None, repr=False)
    extra_headers: Mapping[str, str] = field(default_factory=dict, repr=False)

    @property
    def origin(self) -> str:
        """What must be equal for raw messages and items to be sent back: base URL and model."""
        return f"{self.base_url} {self.model}"

    @property
    def host(self) -> str:
        """Host and port, for messages."""
        return urlsplit(self.base_url).netloc.rpartition("@")[2]

    def url(self, path: str) -> str:
        """The address of an API (`chat`, `responses`, `models`), or of any other path below the base URL."""
        parts = urlsplit(self.base_url)
        return urlunsplit(parts._replace(path=f"{parts.path.rstrip('/')}/{_PATHS.get(path, path).lstrip('/')}"))

    def headers(self) -> dict[str, str]:
        """The headers that carry the key, and the extra ones."""
        if self.api_key is None:
            return dict(self.extra_headers)
        is_bearer = self.provider.key_header == "authorization"
        return {self.provider.key_header: f"Bearer {self.api_key}" if is_bearer else self.api_key, **self.extra_headers}


def resolve(
    model: str,
    *,
    base_url: str | None = None,
    api_key: str | None = None,
    api_version: str | None = None,
    extra_headers: Mapping[str, str] | None = None,
    env: Mapping[str, str] | None = None,
) -> Route:
    """The route for `provider/name`, for any name together with `base_url`, or for a name of OpenAI's.

    The part before the first slash is the provider whenever it names one of the table, with `base_url` too: a server
    whose own names begin so needs the prefix twice (`vllm/openai/gpt-oss-20b`). `OPENAI_BASE_URL`, and likewise
    `<PROVIDER>_BASE_URL` and `<PROVIDER>_API_BASE`, move a provider elsewhere.

    Arguments:
        api_version: Azure only: the address has the model's deployment and this version in it.

    Raises:
        ConfigurationError: the provider is unknown, its key is missing, or the address is none; nothing was sent.
    """
    env = os.environ if env is None else env
    base_url = _checked_url(base_url) if base_url else None
    provider, name = _provider_of(model, base_url, env)
    from_env = None if base_url else _env_base_url(provider, env)
    address = base_url or from_env or provider.base_url
    if not address:
        raise ConfigurationError(f"No address for {provider.name}: set AZURE_OPENAI_ENDPOINT or pass base_url=.")
    address = _checked_url(address)
    if provider.name == "azure":
        provider, address = _azure(provider, address, name, api_version)
    key = _key(provider, name, address, api_key, env, trusted=from_env is not None)
    return Route(provider, name, address, key, dict(extra_headers or {}))


def _provider_of(model: str, base_url: str | None, env: Mapping[str, str]) -> tuple[Provider, str]:
    prefix, slash, rest = model.partition("/")
    if slash and (known := PROVIDERS.get(_ALIASES.get(prefix, prefix))):
        provider, name = known, rest
    elif base_url:
        provider, name = next((p for p in _TABLE if _is_home(p, base_url)), CUSTOM), model
    elif slash and not _env_base_url(PROVIDERS["openai"], env):
        known_names = ", ".join(PROVIDERS)
        raise ConfigurationError(f"Unknown provider {prefix!r} in {model!r}: use one of {known_names}, or base_url=.")
    else:
        provider, name = PROVIDERS["openai"], model
    if not name:
        raise ConfigurationError(f"No model name in {model!r}: write it as provider/name.")
    return provider, name


def _env_base_url(provider: Provider, env: Mapping[str, str]) -> str | None:
    names = [f"{provider.name.upper()}_BASE_URL", f"{provider.name.upper()}_API_BASE"]
    if provider.name == "azure":
        names.append("AZURE_OPENAI_ENDPOINT")
    return next((env[name] for name in names if env.get(name)), None)


def _checked_url(address: str) -> str:
    try:
        parts = urlsplit(address)
        is_url = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        is_url = False
    if not is_url:
        raise ConfigurationError("The base URL of the model endpoint must look like https://host/v1.")
    return address.rstrip("/")


def _host(address: str) -> str:
    return urlsplit(address).hostname or ""


def _is_home(provider: Provider, address: str) -> bool:
    """Whether `address` is the provider's own, where a key of the environment may go."""
    if urlsplit(address).scheme != "https":
        return False
    if provider.name == "azure":
        return _host(address).endswith((".azure.com", ".azure.us", ".azure.cn"))
    return not provider.is_local and _host(address) == _host(provider.base_url or "")


def _azure(provider: Provider, address: str, model: str, version: str | None) -> tuple[Provider, str]:
    """Azure's two addresses: /openai/v1, or one for each deployment and version, which has chat only."""
    parts = urlsplit(address)
    if version and "/deployments/" not in parts.path:
        parts = parts._replace(path=f"/openai/deployments/{model}", query=f"api-version={version}")
    elif parts.path in ("", "/"):
        parts = parts._replace(path="/openai/v1")
    if "/deployments/" in parts.path:
        provider = Provider("azure", None, provider.key_env, key_header="api-key", images=True)
    return provider, urlunsplit(parts)


def _key(
    provider: Provider, model: str, address: str, given: str | None, env: Mapping[str, str], *, trusted: bool
) -> str | None:
    is_home = _is_home(provider, address)
    may_take = trusted or is_home or provider.is_local
    name, key = "api_key=", given
    if given is None and may_take:
        name, key = next(((n, env[n]) for n in provider.key_env if env.get(n)), ("", None))
    key = (key or "").strip()
    if not (key.isascii() and key.isprintable()):
        # The HTTP library would name the whole header in its error.
        raise ConfigurationError(f"The key in {name} has characters that no key has; copy it again.")
    if not key and provider.needs_key and is_home:
        raise ConfigurationError(f"No key for {provider.name}/{model}: set {provider.key_env[0]} or pass api_key=.")
    return key or None


@dataclass(frozen=True, slots=True)
class LocalServer:
    """A model server found on this machine."""

    provider: str
    base_url: str
    models: tuple[str, ...]


async def discover(timeout: float = 0.5) -> list[LocalServer]:
    """The model servers that answer on their usual loopback ports now; no key is sent, nothing else is contacted."""
    import httpx

    async def ask(provider: Provider) -> LocalServer | None:
        try:
            answer = await client.get(f"{provider.base_url}/models")
            ids = [model["id"] for model in answer.json()["data"]]
        except (httpx.HTTPError, ValueError, KeyError, TypeError, RecursionError):
            return None  # no server, or one of another kind: these ports are popular
        names = tuple(name for name in ids if isinstance(name, str))
        return LocalServer(provider.name, provider.base_url or "", names)

    async with httpx.AsyncClient(timeout=timeout, trust_env=False) as client:
        found = await asyncio.gather(*(ask(p) for p in _TABLE if p.is_local))
    return [server for server in found if server]
