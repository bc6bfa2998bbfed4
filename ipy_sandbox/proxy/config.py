"""What the configuration file may say: LiteLLM's keys, so that a file written for it works unchanged, and a few more.

`config_file.py` reads the file; here is its shape. Keys are secrets: they show themselves as stars.
"""

from __future__ import annotations

import hashlib
from typing import Any

from pydantic import AliasChoices, BaseModel, ConfigDict, Field, SecretStr, field_validator, model_validator

from ..models import SandboxOptions
from ..sandbox.provider import default_provider_name, provider_names
from ..sandbox.tools import SandboxTool

CALLBACK = "code_interpreter_interception"
"""The entry of `litellm_settings.callbacks` that turns interception on."""


class _Tolerant(BaseModel):
    """A section in which LiteLLM knows more keys than this proxy: they are ignored, with a warning."""

    model_config = ConfigDict(extra="allow", populate_by_name=True, hide_input_in_errors=True)


class _Strict(BaseModel):
    """A section that is this proxy's own: an unknown key is a mistake."""

    model_config = ConfigDict(extra="forbid", hide_input_in_errors=True)


class ModelParams(_Tolerant):
    """Where a model is: `provider/name`, or any name with `api_base`."""

    model: str = Field(min_length=1)
    api_base: str | None = Field(default=None, validation_alias=AliasChoices("api_base", "base_url"))
    api_key: SecretStr | None = None
    extra_headers: dict[str, str] = Field(default_factory=dict, repr=False)
    weight: int = Field(default=1, ge=1)


class ModelEntry(_Tolerant):
    """One deployment of a model; several with one `model_name` share its requests.

    `model_name` may hold one `*`, which stands for the same text in `litellm_params.model`.
    """

    model_name: str = Field(min_length=1)
    litellm_params: ModelParams


class SandboxToolParams(SandboxOptions):
    """Where and how the sandboxes of a tool are made: a provider, its key, and every field of `SandboxOptions`.

    Arguments:
        sandbox_provider: e2b, opensandbox, local, or a registered name.
        warm: sandboxes that are kept ready for the next request.
    """

    model_config = ConfigDict(extra="forbid", hide_input_in_errors=True)

    sandbox_provider: str
    api_key: SecretStr | None = None
    api_base: str | None = None
    warm: int = Field(default=0, ge=0, le=100)

    @field_validator("sandbox_provider")
    @classmethod
    def _known(cls, value: str) -> str:
        if value not in (*provider_names(), "fake"):
            raise ValueError(f"unknown provider: choose one of {', '.join(provider_names())}")
        return value

    @property
    def options(self) -> SandboxOptions:
        """How the sandboxes are made."""
        return SandboxOptions.model_validate({name: getattr(self, name) for name in SandboxOptions.model_fields})


class SandboxToolEntry(_Strict):
    """A named place for sandboxes."""

    sandbox_tool_name: str = Field(min_length=1)
    litellm_params: SandboxToolParams

    @property
    def tool(self) -> SandboxTool:
        """What opens the provider."""
        params = self.litellm_params
        return SandboxTool(
            self.sandbox_tool_name, params.sandbox_provider, params.options, params.api_base, params.api_key
        )


class InterceptionParams(_Strict):
    """How the code interpreter is served.

    Arguments:
        enabled: false lets every request pass through.
        enabled_providers: the model providers whose requests are intercepted (None: all).
        sandbox_tool_name: the entry of `sandbox_tools` to run code in (None: the first).
        max_agentic_loops: turns that may run code, in one request.
        max_tool_calls: executions in one request.
        execution_timeout: seconds one execution may take.
        session_cap: sticky sessions for each key.
        session_ttl: seconds an idle session lives.
        include_outputs: give `outputs` also to clients that do not ask for them with `include`.
    """

    enabled: bool = True
    enabled_providers: list[str] | None = None
    sandbox_tool_name: str | None = None
    max_agentic_loops: int = Field(default=30, ge=1)
    max_tool_calls: int = Field(default=60, ge=1)
    execution_timeout: float = Field(default=300, gt=0)
    session_cap: int = Field(default=10, ge=1)
    session_ttl: float = Field(default=900, gt=0)
    include_outputs: bool = False


class LiteLLMSettings(_Tolerant):
    """`request_timeout` is the longest a request may take, in seconds."""

    callbacks: list[Any] | None = None
    code_interpreter_interception_params: InterceptionParams | None = None
    request_timeout: float = Field(default=1200, gt=0)

    @field_validator("callbacks", mode="before")
    @classmethod
    def _listed(cls, value: Any) -> Any:
        return [value] if isinstance(value, str) else value


class GeneralSettings(_Tolerant):
    """Settings of the server.

    Arguments:
        master_key: the administrator's key; it may also use the models.
        max_request_size_mb: longest request body.
        global_max_parallel_requests: requests at one time, in one process.
        redis_url: where replicas share their sessions.
    """

    master_key: SecretStr | None = None
    max_request_size_mb: float = Field(default=32, gt=0)
    global_max_parallel_requests: int = Field(default=1000, ge=1)
    redis_url: SecretStr | None = None


class ApiKey(_Strict):
    """A key for clients, given itself or as the SHA-256 of it in hex; `name` is what logs call it."""

    name: str = Field(min_length=1, pattern=r"^[\w.@-]+$")
    key: SecretStr | None = None
    sha256: str | None = Field(default=None, pattern=r"^[0-9a-fA-F]{64}$")
    max_parallel_requests: int | None = Field(default=None, ge=1)

    @model_validator(mode="after")
    def _one(self) -> ApiKey:
        if (self.key is None) == (self.sha256 is None):
            raise ValueError("give either key or sha256")
        if self.key is not None and not self.key.get_secret_value():
            raise ValueError("key is empty")
        return self

    @property
    def digest(self) -> str:
        """The SHA-256 of the key, in hex."""
        return self.sha256.lower() if self.key is None and self.sha256 else key_digest(_reveal(self.key))


class Config(_Tolerant):
    """The whole file; `code_interpreter_interception_params` may be at its top too, not only in the settings."""

    model_list: list[ModelEntry] = Field(default_factory=list)
    sandbox_tools: list[SandboxToolEntry] = Field(default_factory=list)
    litellm_settings: LiteLLMSettings = Field(default_factory=LiteLLMSettings)
    code_interpreter_interception_params: InterceptionParams | None = None
    general_settings: GeneralSettings = Field(default_factory=GeneralSettings)
    api_keys: list[ApiKey] = Field(default_factory=list)
    environment_variables: dict[str, str] = Field(default_factory=dict, repr=False)

    @field_validator("sandbox_tools")
    @classmethod
    def _names_differ(cls, tools: list[SandboxToolEntry]) -> list[SandboxToolEntry]:
        names = [tool.sandbox_tool_name for tool in tools]
        if twice := next((name for name in names if names.count(name) > 1), None):
            raise ValueError(f"two tools are named {twice!r}")
        return tools

    @property
    def interception(self) -> InterceptionParams:
        """How the code interpreter is served."""
        given = self.litellm_settings.code_interpreter_interception_params or self.code_interpreter_interception_params
        return given or InterceptionParams()

    @property
    def intercepts(self) -> bool:
        """Whether the code interpreter is served: unless it is disabled, or `callbacks` are given without it."""
        callbacks = self.litellm_settings.callbacks
        return self.interception.enabled and (callbacks is None or CALLBACK in callbacks)

    @property
    def sandbox_tool(self) -> SandboxToolEntry:
        """The tool that code runs in; the default provider if there is no entry."""
        wanted = self.interception.sandbox_tool_name
        tools = [t for t in self.sandbox_tools if wanted in (None, t.sandbox_tool_name)]
        default = SandboxToolParams(sandbox_provider=default_provider_name())
        return tools[0] if tools else SandboxToolEntry(sandbox_tool_name="default", litellm_params=default)

    @property
    def master_digest(self) -> str | None:
        """The SHA-256 of the master key, in hex."""
        key = self.general_settings.master_key
        return key_digest(_reveal(key)) if key is not None and _reveal(key) else None


def key_digest(key: str) -> str:
    """The SHA-256 of a key in hex: what is compared, and what a client's identity is."""
    return hashlib.sha256(key.encode()).hexdigest()


def _reveal(secret: SecretStr | None) -> str:
    return secret.get_secret_value() if secret else ""
