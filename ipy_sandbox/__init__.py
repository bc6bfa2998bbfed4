"""Run code in a sandbox instead of on your machine, and see the results as if it had run here.

In a notebook: `%load_ext ipy_sandbox`, then `%%sandbox`.

In a program:
    Session                             a sandbox that is kept, made anew after a loss: `with Session("local") as s:`
    code_interpreter_tool               run code in a sandbox of its own
    create_sandbox, run_code, ...       one function for each thing that a sandbox can do, and its `async` twin `a...`
    responses, completion               ask a model that may run code
All of them are in `dir(ipy_sandbox)`, and imported on first use so that `import ipy_sandbox` stays light.
"""

from __future__ import annotations

import importlib
from typing import Any

from ._version import __version__ as __version__

_PUBLIC = {
    "errors": [
        "AuthenticationError", "ConfigurationError", "ExecutionTimeoutError", "FileTransferError",
        "InvalidRequestError", "IsolationUnavailableError", "KernelDiedError", "OutputTruncatedError", "ProviderError",
        "RateLimitError", "RemoteError", "SandboxBusyError", "SandboxCreationError",
        "SandboxError", "SandboxLostError", "UpstreamError",
        "VariableTransferError",
    ],
    "models": [
        "ClearOutput", "CodeExecutionResult", "ContainerHandle", "Display", "End", "Event", "ExecutionCount",
        "ExecutionError", "FileInfo", "SandboxInfo", "SandboxOptions", "Stderr", "Stdout",
    ],
    "interpreter.api": [
        "CodeInterpreterInterceptionLogger", "acompletion", "aresponses", "callbacks", "completion", "responses",
    ],
    "interpreter.interpreter": ["Interpreter"],
    "interpreter.limits": ["Limits"],
    "sandbox.api": [
        "acode_interpreter_tool", "acreate_sandbox", "adelete_sandbox", "adownload_file", "ainterrupt", "alist_files",
        "alist_sandboxes", "arenew_sandbox", "arun_code", "astream_code", "aupload_file", "code_interpreter_tool",
        "create_sandbox", "delete_sandbox", "download_file", "interrupt", "list_files", "list_sandboxes",
        "renew_sandbox", "run_code", "stream_code", "upload_file",
    ],
    "sandbox.fake": ["FakeProvider"],
    "sandbox.observe": ["Operation", "add_callback", "remove_callback"],
    "sandbox.pool": ["SessionPool"],
    "sandbox.provider": ["Provider", "open_provider", "register_provider"],
    "sandbox.session": ["Session"],
    "sandbox.variables": ["apull", "apush", "pull", "push"],
    "sandbox.tools": ["SandboxTool", "SandboxTools", "get_sandbox_tool", "register_sandbox_tools"],
}  # fmt: skip
_HOME = {name: module for module, names in _PUBLIC.items() for name in names}

__all__ = sorted([*_HOME, "__version__"])  # pyright: ignore[reportUnsupportedDunderAll]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(importlib.import_module(f".{_HOME[name]}", __name__), name)
    return value


def load_ipython_extension(shell: Any) -> None:
    """`%load_ext ipy_sandbox`: the magics `%%sandbox`, `%sandbox_session` and `%%ai`."""
    from .magics.extension import load

    load(shell)


def unload_ipython_extension(shell: Any) -> None:
    """`%unload_ext ipy_sandbox`: take the magics away and delete the sandboxes."""
    from .magics.extension import unload

    unload(shell)


def __dir__() -> list[str]:
    return __all__
