"""The data that travels between the parts: sandbox handles, options, events and results.

Every provider turns its wire format into the same few events, in the order they happen. Reading events is the one
code path: the magics publish them as they arrive, the proxy forwards them, `ResultBuilder` makes one result of them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal, TypeAlias

from pydantic import BaseModel, ConfigDict, Field, SecretStr, ValidationError

from .errors import ConfigurationError

MimeBundle: TypeAlias = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Stdout:
    """Text that the code wrote to standard output."""

    text: str


@dataclass(frozen=True, slots=True)
class Stderr:
    """Text that the code wrote to standard error."""

    text: str


@dataclass(frozen=True, slots=True)
class Display:
    """A rich output: a Jupyter MIME bundle with its metadata.

    `is_result` marks the value of the last expression. `update` replaces the earlier display of the same
    `display_id`. `raw` is what the provider sent, untouched.
    """

    data: MimeBundle
    metadata: dict[str, Any] = field(default_factory=dict)
    display_id: str | None = None
    update: bool = False
    is_result: bool = False
    raw: dict[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class ClearOutput:
    """Everything shown so far is to be cleared, with `wait` only when the next output comes."""

    wait: bool = False


@dataclass(frozen=True, slots=True)
class ExecutionError:
    """The code raised; `traceback` is one string, lines joined with newlines, colours kept."""

    name: str
    value: str
    traceback: str


@dataclass(frozen=True, slots=True)
class ExecutionCount:
    """The kernel's number of this execution."""

    count: int


@dataclass(frozen=True, slots=True)
class End:
    """The execution is over. `truncated` says, in words, what of its output was left out, if anything."""

    truncated: str | None = None


Event: TypeAlias = Stdout | Stderr | Display | ClearOutput | ExecutionError | ExecutionCount | End


class RemoteErrorInfo(BaseModel):
    """What the code raised; `traceback` is one string."""

    name: str
    value: str
    traceback: str


class CodeExecutionResult(BaseModel):
    """What one execution gave.

    Code that raises in the sandbox is a result with `error` set, never a Python exception of the SDK.
    `results` holds exactly what the provider sent, one dict for each display or value.
    `truncated` says in words what was left out, if anything.
    """

    stdout: str = ""
    stderr: str = ""
    results: list[dict[str, Any]] = Field(default_factory=list)
    error: RemoteErrorInfo | None = None
    execution_count: int | None = None
    truncated: str | None = None
    object: Literal["code_execution"] = "code_execution"

    _displays: list[Display] = []

    @property
    def displays(self) -> list[Display]:
        """The rich outputs as Jupyter MIME bundles, in order; not part of `model_dump()`."""
        return self._displays

    @property
    def text(self) -> str:
        """The text of the last expression's value, or an empty string."""
        return next((str(d.data.get("text/plain", "")) for d in reversed(self._displays) if d.is_result), "")

    def save_images(self, directory: str | Path = ".") -> list[Path]:
        """Write the pictures among the results to new files `image-1.png`, ... in `directory`; return their paths."""
        from .safe_output.images import save_images

        return save_images((display.data for display in self._displays), directory)

    def __repr__(self) -> str:
        parts = [f"stdout={self.stdout!r:.60}"] if self.stdout else []
        parts += [f"results={len(self.results)}"] if self.results else []
        parts += [f"error={self.error.name}"] if self.error else []
        return f"<CodeExecutionResult {' '.join(parts)}>" if parts else "<CodeExecutionResult>"

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> tuple[MimeBundle, dict[str, Any]]:
        """Everything the execution showed, made safe for a notebook page."""
        from .safe_output.combined import combined_bundle

        notes = [self.error.traceback if self.error else "", f"[{self.truncated}]" if self.truncated else ""]
        displays = [(d.data, d.metadata) for d in self._displays]
        bundle = combined_bundle([self.stdout, self.stderr, *displays, *notes])
        return {**bundle.data, "text/plain": bundle.data.get("text/plain") or repr(self)}, bundle.metadata


class ResultBuilder:
    """Folds events, one by one, into `result`: what a notebook would show in the end."""

    def __init__(self) -> None:
        self._out: list[str] = []
        self._err: list[str] = []
        self._displays: list[Display] = []
        self._error: RemoteErrorInfo | None = None
        self._count: int | None = None
        self._truncated: str | None = None
        self._clear_next = False

    def add(self, event: Event) -> None:
        """Take one more event."""
        match event:
            case Stdout(text):
                self._clear_if_due()
                self._out.append(text)
            case Stderr(text):
                self._clear_if_due()
                self._err.append(text)
            case Display():
                self._clear_if_due()
                self._show(event)
            case ClearOutput(wait):
                self._clear_next = True
                if not wait:
                    self._clear_if_due()
            case ExecutionError(name, value, traceback):
                # A provider may report follow-up errors of its own: the first is the cause.
                self._error = self._error or RemoteErrorInfo(name=name, value=value, traceback=traceback)
            case ExecutionCount(count):
                self._count = count
            case End(truncated):
                self._truncated = truncated

    def _clear_if_due(self) -> None:
        if self._clear_next:
            self._clear_next = False
            self._out.clear()
            self._err.clear()
            self._displays.clear()

    def _show(self, display: Display) -> None:
        if not display.update:
            self._displays.append(display)
            return
        for i, earlier in enumerate(self._displays):
            if earlier.display_id == display.display_id:
                self._displays[i] = display

    @property
    def result(self) -> CodeExecutionResult:
        """The result of all events so far."""
        result = CodeExecutionResult(
            stdout="".join(self._out),
            stderr="".join(self._err),
            results=[d.data if d.raw is None else d.raw for d in self._displays],
            error=self._error,
            execution_count=self._count,
            truncated=self._truncated,
        )
        result._displays = list(self._displays)
        return result


class SandboxOptions(BaseModel):
    """How a sandbox shall be made. A provider refuses, by name, what it cannot honour.

    Arguments:
        template: e2b template or OpenSandbox image.
        timeout: lifetime of the sandbox in seconds since its last use.
        allow_internet_access: None means the provider's default (e2b: yes, OpenSandbox and local: no).
        metadata: labels kept with the sandbox.
        env_vars: environment variables of the code.
        secure_access: whether only who has the sandbox's token can run code in it (e2b: yes, OpenSandbox: no).
        network_policy, resource_limits, entrypoint, use_server_proxy: OpenSandbox.
        ro_binds: further host paths the local sandbox may read.
        limits: resource limits of the local sandbox, see `ipy_sandbox.sandbox.local`.
        host_network: share the host's network with the local sandbox, its loopback services included.
        unsafe: run the local kernel without any isolation.
    """

    model_config = ConfigDict(extra="forbid")

    template: str | None = None
    timeout: float = Field(default=300, gt=0)
    allow_internet_access: bool | None = None
    metadata: dict[str, str] = Field(default_factory=dict)
    env_vars: dict[str, str] = Field(default_factory=dict, repr=False)
    network_policy: dict[str, Any] | None = None
    resource_limits: dict[str, str] | None = None
    entrypoint: list[str] | None = None
    use_server_proxy: bool | None = None
    secure_access: bool | None = None
    ro_binds: list[str] = Field(default_factory=list)
    limits: dict[str, int] = Field(default_factory=dict)
    host_network: bool = False
    unsafe: bool = False


def sandbox_options(given: dict[str, Any]) -> SandboxOptions:
    """`SandboxOptions` of the values that are not None; raises ConfigurationError for an unknown or wrong one."""
    try:
        return SandboxOptions.model_validate({name: value for name, value in given.items() if value is not None})
    except ValidationError as error:
        reasons = "; ".join(f"{'.'.join(map(str, d['loc']))}: {d['msg']}" for d in error.errors())
    raise ConfigurationError(f"Wrong sandbox options: {reasons}.")


class ContainerHandle(BaseModel):
    """A sandbox that exists: enough to come back to it, from another process too.

    `secrets` (tokens, endpoint headers) appear neither in `repr` nor in `model_dump()`; `dump_with_secrets()` gives
    them on purpose, and `ContainerHandle.model_validate` takes that back.
    `context` is the provider's own word for the kernel that is prepared in there; None until one is.
    """

    id: str
    provider: str
    domain: str | None = None
    api_base: str | None = None
    endpoint: str | None = None
    context: str | None = None
    timeout: float = 300
    created_at: datetime = Field(default_factory=lambda: datetime.now(UTC))
    metadata: dict[str, str] = Field(default_factory=dict)
    secrets: dict[str, SecretStr] = Field(default_factory=dict, exclude=True, repr=False)

    def secret(self, name: str) -> str | None:
        """The secret of that name, in the clear, or None."""
        value = self.secrets.get(name)
        return None if value is None else value.get_secret_value()

    def dump_with_secrets(self) -> dict[str, Any]:
        """A JSON-able dict with the secrets in the clear, for another process of yours."""
        secrets = {name: value.get_secret_value() for name, value in self.secrets.items()}
        return {**self.model_dump(mode="json"), "secrets": secrets}


class SandboxInfo(BaseModel):
    """What a provider knows of one of its sandboxes now."""

    id: str
    provider: str
    state: str = "running"
    created_at: datetime | None = None
    expires_at: datetime | None = None
    metadata: dict[str, str] = Field(default_factory=dict)
    memory_bytes: int | None = None


class FileInfo(BaseModel):
    """A file or directory in a sandbox; `path` is absolute."""

    path: str
    is_dir: bool = False
    size: int = 0
    modified_at: datetime | None = None
