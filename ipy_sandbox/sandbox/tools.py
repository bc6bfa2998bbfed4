"""Sandbox tools: names for a provider with its key and options, as the proxy's configuration and programs use them."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from pydantic import SecretStr

from ..errors import ConfigurationError
from ..models import SandboxOptions, sandbox_options
from .provider import Provider, open_provider, provider_names

_FROM_ENVIRON = "os.environ/"
_ENTRY_KEYS = {"sandbox_tool_name", "litellm_params"}


@dataclass(frozen=True)
class SandboxTool:
    """One registered tool: how to open its provider, and how its sandboxes are made."""

    name: str
    provider: str
    options: SandboxOptions = field(default_factory=SandboxOptions)
    api_base: str | None = None
    api_key: SecretStr | None = field(default=None, repr=False)

    def open_provider(self) -> Provider:
        """A new instance of the provider, the caller's to close; raises ConfigurationError if its key is missing."""
        key = None if self.api_key is None else self.api_key.get_secret_value()
        return open_provider(self.provider, api_key=key, api_base=self.api_base)


class SandboxTools:
    """A set of tools by name, in their order; `register` replaces the whole set.

    Arguments:
        entries: as `register_sandbox_tools` takes them.
    """

    def __init__(self, entries: Iterable[Mapping[str, Any]] = ()) -> None:
        self._tools: dict[str, SandboxTool] = {}
        self.register(entries)

    @property
    def names(self) -> list[str]:
        """The names of the tools."""
        return list(self._tools)

    def register(self, entries: Iterable[Mapping[str, Any]]) -> None:
        """Replace all tools by `entries`; with a bad one nothing changes, and ConfigurationError names it."""
        tools: dict[str, SandboxTool] = {}
        for number, entry in enumerate(entries, 1):
            tool = _tool(entry, number)
            if tool.name in tools:
                raise ConfigurationError(f"Sandbox tool {tool.name!r} is there twice: give each its own name.")
            tools[tool.name] = tool
        self._tools = tools

    def get(self, name: str | None = None) -> SandboxTool:
        """The tool of that name, or the first one; raises ConfigurationError if there is none."""
        if not self._tools:
            raise ConfigurationError("There is no sandbox tool: name one under `sandbox_tools`, or register it.")
        if name is None:
            return next(iter(self._tools.values()))
        if name not in self._tools:
            raise ConfigurationError(f"There is no sandbox tool {name!r}: choose one of {', '.join(self._tools)}.")
        return self._tools[name]


def _tool(entry: Mapping[str, Any], number: int) -> SandboxTool:
    name = entry.get("sandbox_tool_name") if isinstance(entry, Mapping) else None
    which = f"Sandbox tool {name!r}" if isinstance(name, str) and name else f"Sandbox tool number {number}"
    try:
        return _checked(entry, name)
    except ConfigurationError as error:
        reason = str(error)
    raise ConfigurationError(f"{which} is wrong: {reason}")


def _checked(entry: Mapping[str, Any], name: Any) -> SandboxTool:
    if not isinstance(name, str) or not name:
        raise ConfigurationError("it needs a `sandbox_tool_name`.")
    if unknown := set(entry) - _ENTRY_KEYS:
        raise ConfigurationError(f"it does not know {', '.join(sorted(map(str, unknown)))}.")
    params = entry.get("litellm_params")
    if not isinstance(params, Mapping):
        raise ConfigurationError("its `litellm_params` must be a mapping with a `sandbox_provider`.")
    given = resolve_environ(dict(params))
    provider, key, base = (given.pop(k, None) for k in ("sandbox_provider", "api_key", "api_base"))
    if provider not in (*provider_names(), "fake"):
        raise ConfigurationError(f"`sandbox_provider` must be one of {', '.join(provider_names())}, not {provider!r}.")
    for field_name, value in (("api_key", key), ("api_base", base)):
        if not isinstance(value, str | None):
            raise ConfigurationError(f"its `{field_name}` must be text.")
    return SandboxTool(name, provider, sandbox_options(given), base, None if key is None else SecretStr(key))


def resolve_environ(value: Any) -> Any:
    """`value` with each text `os.environ/NAME` in it replaced by that variable; ConfigurationError if it is not set."""
    if isinstance(value, Mapping):
        return {k: resolve_environ(v) for k, v in value.items()}
    if isinstance(value, list):
        return [resolve_environ(v) for v in value]
    if isinstance(value, str) and value.startswith(_FROM_ENVIRON):
        name = value.removeprefix(_FROM_ENVIRON)
        if name not in os.environ:
            raise ConfigurationError(f"the environment variable {name} is not set.")
        return os.environ[name]
    return value


_REGISTERED = SandboxTools()


def register_sandbox_tools(entries: Iterable[Mapping[str, Any]]) -> None:
    """Make sandbox tools known to this process, in place of all earlier ones, whose keys are forgotten.

    Arguments:
        entries: dicts with `sandbox_tool_name` and `litellm_params`: `sandbox_provider`, `api_key`, `api_base` and
            the fields of `SandboxOptions`. A text `os.environ/NAME` stands for that variable.

    Raises:
        ConfigurationError: an entry is wrong; it is named, and nothing has changed.
    """
    _REGISTERED.register(entries)


def get_sandbox_tool(name: str | None = None) -> SandboxTool:
    """The registered tool of that name, or the first one; raises ConfigurationError if there is none."""
    return _REGISTERED.get(name)
