"""Every error this package raises, in one tree.

    SandboxError
    ├── ConfigurationError             a setting, option or key is missing or wrong; nothing was sent
    │   └── IsolationUnavailableError  this system cannot isolate the embedded sandbox
    ├── AuthenticationError            the provider refused the key
    ├── RateLimitError                 the provider allows no more now (`retry_after` seconds, if it said so)
    ├── SandboxCreationError           no sandbox could be made
    ├── SandboxLostError               the sandbox is gone: state and files are lost
    ├── KernelDiedError                the sandbox lives, its kernel died: variables are lost, files are kept
    ├── SandboxBusyError               other code is running there
    ├── ExecutionTimeoutError          the code ran longer than allowed and was stopped
    ├── OutputTruncatedError           the answer was cut before its end
    ├── FileTransferError              a file could not be read or written in the sandbox
    ├── VariableTransferError          a value cannot cross between notebook and sandbox
    ├── ProviderError                  the provider answered something unexpected
    ├── UpstreamError                  the model endpoint failed
    ├── InvalidRequestError            a request to the interpreter is wrong, or names what is not there
    └── RemoteError                    the code in the sandbox raised (magics only; the SDK returns it as a result)

A message says what happened, to what, and what to do next, in one line, and never holds a secret.
Errors pickle with their fields.
"""

from __future__ import annotations

from typing import Any


class SandboxError(Exception):
    """The root of the tree; `provider` and `sandbox_id` say whom it concerns, where known."""

    def __init__(self, message: str, *, provider: str | None = None, sandbox_id: str | None = None, **fields: Any):
        super().__init__(message)
        self.provider = provider
        self.sandbox_id = sandbox_id
        self.__dict__.update(fields)

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (type(self), self.args, self.__dict__)


def _rebuild(cls: type[SandboxError], args: tuple[Any, ...], fields: dict[str, Any]) -> SandboxError:
    error = cls.__new__(cls, *args)
    error.args = args
    error.__dict__.update(fields)
    return error


class ConfigurationError(SandboxError):
    """A setting, option or key is missing or wrong; nothing was sent."""


class IsolationUnavailableError(ConfigurationError):
    """This system cannot isolate the embedded sandbox; the message names the cause and the cure."""


class AuthenticationError(SandboxError):
    """The provider refused the key."""


class RateLimitError(SandboxError):
    """The provider allows no more now."""

    retry_after: float | None = None


class SandboxCreationError(SandboxError):
    """No sandbox could be made."""


class SandboxLostError(SandboxError):
    """The sandbox is gone, and its state and files with it; `result` holds what came before."""

    result: Any = None


class KernelDiedError(SandboxError):
    """The sandbox lives but its kernel died: variables are lost, files are kept; `result` holds what came before."""

    result: Any = None


class SandboxBusyError(SandboxError):
    """Other code is running in the sandbox."""


class ExecutionTimeoutError(SandboxError):
    """The code ran longer than allowed and was stopped; `result` holds what came before."""

    result: Any = None


class OutputTruncatedError(SandboxError):
    """The answer was cut before its end; `result` holds what came before."""

    result: Any = None


class FileTransferError(SandboxError):
    """A file could not be read or written in the sandbox."""


class VariableTransferError(SandboxError):
    """A value cannot cross between notebook and sandbox."""


class ProviderError(SandboxError):
    """The provider answered something unexpected; `status` is its HTTP status, where there was one."""

    status: int | None = None


class UpstreamError(SandboxError):
    """The model endpoint failed; `status`, `body`, `headers` and `retry_after` are its own, where it answered.

    `failure` is the body read into message, type, code and param; `turn` what had come of an answer that broke off;
    `turn_number`, from 0, which of a request's model calls failed.
    """

    status: int | None = None
    body: Any = None
    headers: dict[str, str] | None = None
    retry_after: float | None = None
    failure: Any = None
    turn: Any = None
    turn_number: int | None = None


class InvalidRequestError(SandboxError):
    """A request to the interpreter is wrong, or names what is not there; the fields are those of OpenAI's errors."""

    status: int = 400
    param: str | None = None
    code: str | None = None


class RemoteError(SandboxError):
    """The code in the sandbox raised; shows the remote traceback and none of ours."""

    ename: str = ""
    evalue: str = ""
    traceback: list[str]

    def _render_traceback_(self) -> list[str]:
        # IPython hangs the cell when one element is not a string.
        return [str(line) for line in self.traceback]


def remote_error(ename: str, evalue: str, traceback: str, **fields: Any) -> RemoteError:
    """An instance of a subclass of `RemoteError` that is named like the remote class, as front ends show it."""
    return _rebuild_remote(ename, evalue, traceback.splitlines(), fields)


def _rebuild_remote(ename: str, evalue: str, traceback: list[str], fields: dict[str, Any]) -> RemoteError:
    namespace = {"__module__": __name__, "__reduce__": _reduce_remote}
    cls: type[RemoteError] = type(ename or "RemoteError", (RemoteError,), namespace)
    return cls(evalue, ename=ename, evalue=evalue, traceback=traceback, **fields)


def _reduce_remote(error: RemoteError) -> tuple[Any, ...]:
    fields = {k: v for k, v in error.__dict__.items() if k not in ("ename", "evalue", "traceback")}
    return _rebuild_remote, (error.ename, error.evalue, error.traceback, fields)
