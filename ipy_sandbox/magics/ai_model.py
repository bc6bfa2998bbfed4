"""Which model answers, when none is named: the first one configured, or a server on this machine."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING

from ..errors import ConfigurationError

if TYPE_CHECKING:
    from ..interpreter.catalog import Route

# A model for each provider that people have a key of, in the order in which they are looked for.
_DEFAULTS = {
    "openai": "gpt-5-mini",
    "anthropic": "claude-sonnet-4-5",
    "gemini": "gemini-2.5-flash",
    "groq": "openai/gpt-oss-120b",
    "mistral": "mistral-medium-latest",
    "deepseek": "deepseek-chat",
    "xai": "grok-4",
    "together": "openai/gpt-oss-120b",
    "openrouter": "openrouter/auto",
}

NO_MODEL = (
    "No model is configured: name one (`%%ai provider/model`, `%ai model provider/model` or IPY_SANDBOX_MODEL), "
    "or set a key such as OPENAI_API_KEY, or start a local server (Ollama, LM Studio, llama.cpp, vLLM)."
)


async def choose(model: str | None, base_url: str | None, *, env: Mapping[str, str] = os.environ) -> Route:
    """The route of `model`, or of the first model that is configured here.

    Without a name: what `base_url` or `OPENAI_BASE_URL` offers first, else the provider whose key variable is set, else
    a model server that answers on its usual loopback port.

    Raises:
        ConfigurationError: no model is configured, the provider is unknown, or its key is missing.
        UpstreamError: the server at the base URL does not list its models.
    """
    from ..interpreter.catalog import discover, resolve

    if model:
        return resolve(model, base_url=base_url, env=env)
    if address := base_url or env.get("OPENAI_BASE_URL"):
        return await _first_offered(address, env)
    if provider := _configured(env):
        return resolve(f"{provider}/{_DEFAULTS[provider]}", env=env)
    for server in await discover():
        if server.models:
            return resolve(f"{server.provider}/{server.models[0]}", base_url=server.base_url, env=env)
    raise ConfigurationError(NO_MODEL)


def _configured(env: Mapping[str, str]) -> str | None:
    from ..interpreter.catalog import PROVIDERS

    return next((name for name in _DEFAULTS if any(env.get(key) for key in PROVIDERS[name].key_env)), None)


async def _first_offered(address: str, env: Mapping[str, str]) -> Route:
    from ..interpreter.catalog import resolve
    from ..interpreter.upstream import shared

    # The environment's key goes only where the environment's address is meant.
    base_url = None if address == env.get("OPENAI_BASE_URL") else address
    # An error names the model that was asked: there is none yet.
    offered = await shared().models(resolve("its list of models", base_url=base_url, env=env))
    if not offered:
        raise ConfigurationError(f"The server at {address} offers no model: name one with `%%ai MODEL`.")
    return resolve(str(offered[0].get("id")), base_url=base_url, env=env)
