"""An IPython shell with the extension, and a scripted provider named `scripted`, the default in these tests."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from IPython.core.interactiveshell import ExecutionResult, InteractiveShell
from traitlets.config import Config

from ipy_sandbox.sandbox.fake import FakeProvider
from ipy_sandbox.sandbox.provider import _PROVIDERS, register_provider


class ScriptedProvider(FakeProvider):
    name = "scripted"


@pytest.fixture
def provider() -> Iterator[ScriptedProvider]:
    scripted = ScriptedProvider()
    register_provider("scripted", lambda api_key, api_base: scripted)
    os.environ["IPY_SANDBOX_PROVIDER"] = "scripted"
    yield scripted
    del _PROVIDERS["scripted"]


class Shell:
    """A shell in this process: `run` gives what the cell gave."""

    def __init__(self) -> None:
        self.ip = InteractiveShell.instance(config=Config({"HistoryManager": {"enabled": False}}))

    def run(self, code: str) -> ExecutionResult:
        return self.ip.run_cell(code, store_history=True)

    def close(self) -> None:
        self.ip.run_line_magic("unload_ext", "ipy_sandbox")
        self.ip.reset(new_session=False)
        InteractiveShell.clear_instance()


@pytest.fixture
def shell(provider: ScriptedProvider) -> Iterator[Shell]:
    shell = Shell()
    shell.ip.run_line_magic("load_ext", "ipy_sandbox")
    yield shell
    shell.close()
