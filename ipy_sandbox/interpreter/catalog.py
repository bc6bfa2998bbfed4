"""The model providers: where they are, which key they take, which APIs they have, and their quirks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from .turn import API

ResponsesSupport: TypeAlias = Literal["stateful", "stateless", "none", "unknown"]


@dataclass(frozen=True, slots=True)
class Provider:
    """One row of the table."""

    name: str
    base_url: str | None
    key_env: tuple[str, ...] = ()
    needs_key: bool = True
    key_header: Literal["authorization", "api-key"] = "authorization"
    responses: ResponsesSupport = "none"
    include_usage: bool = True  # accepts stream_options.include_usage
    required_word: str = "required"  # its word for tool_choice "required"
    call_id_length: int | None = None  # exactly so many alphanumerics, where history ids must match
    images: bool = True  # takes image_url parts in user messages (if the model sees at all)
    reasoning_param: bool = True


@dataclass(frozen=True, slots=True)
class Route:
    """Where a request goes: provider, model name there, address and key."""

    provider: Provider
    model: str
    base_url: str
    api_key: str | None = field(default=None, repr=False)
    extra_headers: Mapping[str, str] = field(default_factory=dict, repr=False)

    @property
    def origin(self) -> str:
        """What must be equal for raw messages and items to be sent back: base URL and model."""
        return f"{self.base_url} {self.model}"

    def url(self, path: Literal["chat", "responses", "models"] | str) -> str:
        """The address of an API (`chat`, `responses`, `models`) or of any path below the base URL."""
        raise NotImplementedError

    def headers(self) -> dict[str, str]:
        """The headers that carry the key, and the extra ones."""
        raise NotImplementedError


def resolve(
    model: str,
    *,
    base_url: str | None = None,
    api_key: str | None = None,
    extra_headers: Mapping[str, str] | None = None,
    env: Mapping[str, str] | None = None,
) -> Route:
    """The route for `provider/name`, or for any name together with `base_url` (or `OPENAI_BASE_URL`).

    The part before the first slash is the provider whenever it names one of the table, with `base_url` too: a server
    whose own names begin so needs the prefix twice (`openai/openai/gpt-oss-20b`).

    Raises:
        ConfigurationError: the provider is unknown, or its key is missing.
    """
    raise NotImplementedError


def apis(route: Route) -> tuple[API, ...]:
    """The APIs to try, best first."""
    raise NotImplementedError


@dataclass(frozen=True, slots=True)
class LocalServer:
    """A model server found on this machine."""

    provider: str
    base_url: str
    models: tuple[str, ...]


async def discover() -> list[LocalServer]:
    """The model servers that answer on their usual loopback ports now; nothing else is contacted, no key is sent."""
    raise NotImplementedError
