from __future__ import annotations

import gc
from typing import Any

import pytest
from pydantic import SecretStr

import ipy_sandbox
from ipy_sandbox.errors import ConfigurationError
from ipy_sandbox.sandbox.tools import SandboxTools, get_sandbox_tool, register_sandbox_tools, resolve_environ

KEY = "e2b_" + "7" * 40


def entry(name: Any = "mine", **params: Any) -> dict[str, Any]:
    return {"sandbox_tool_name": name, "litellm_params": {"sandbox_provider": "e2b", "api_key": KEY, **params}}


def test_a_tool_opens_its_provider_with_its_options() -> None:
    tools = SandboxTools([entry(template="t", timeout=60, env_vars={"A": "1"}, allow_internet_access=False)])
    tool = tools.get("mine")
    assert (tool.provider, tool.options.template, tool.options.timeout) == ("e2b", "t", 60)
    assert tool.options.env_vars == {"A": "1"}
    assert tool.options.allow_internet_access is False
    assert tool.open_provider().name == "e2b"
    assert tools.get() is tool
    assert KEY not in repr(tool)


def test_values_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_KEY", KEY)
    monkeypatch.setenv("MY_BASE", "https://api.example.org")
    monkeypatch.setenv("MY_VALUE", "v")
    given = entry(api_key="os.environ/MY_KEY", api_base="os.environ/MY_BASE", env_vars={"A": "os.environ/MY_VALUE"})
    tool = SandboxTools([given]).get()
    assert tool.api_key is not None
    assert tool.api_key.get_secret_value() == KEY
    assert tool.api_base == "https://api.example.org"
    assert tool.options.env_vars == {"A": "v"}
    assert resolve_environ([{"a": "os.environ/MY_VALUE"}, "b", 3]) == [{"a": "v"}, "b", 3]


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (entry(api_key="os.environ/NOT_THERE"), "Sandbox tool 'mine' is wrong: the environment variable NOT_THERE"),
        (entry(sandbox_provider="daytona"), "Sandbox tool 'mine' is wrong: `sandbox_provider` must be one of e2b"),
        (entry(sandbox_provider=None), "Sandbox tool 'mine' is wrong"),
        (entry(tiemout=5), "Sandbox tool 'mine' is wrong: Wrong sandbox options: tiemout"),
        (entry(timeout=0), "Sandbox tool 'mine' is wrong: Wrong sandbox options: timeout"),
        (entry(api_key=5), "Sandbox tool 'mine' is wrong: its `api_key` must be text"),
        (entry(name=None), "Sandbox tool number 2 is wrong: it needs a `sandbox_tool_name`"),
        ({"sandbox_tool_name": "mine"}, "Sandbox tool 'mine' is wrong: its `litellm_params`"),
        ({**entry(), "extra": 1}, "Sandbox tool 'mine' is wrong: it does not know extra"),
        ("text", "Sandbox tool number 2 is wrong"),
        (entry("other"), "Sandbox tool 'other' is there twice"),
    ],
)
def test_a_bad_entry_is_named_and_changes_nothing(wrong: Any, said: str) -> None:
    tools = SandboxTools([entry("kept")])
    with pytest.raises(ConfigurationError) as caught:
        tools.register([entry("other"), wrong])
    assert str(caught.value).startswith(said)
    assert KEY not in str(caught.value)
    assert tools.names == ["kept"]


def test_registering_again_replaces_all_and_forgets_the_keys() -> None:
    key = "".join(["e2b_", "9" * 30, "only-here"])
    register_sandbox_tools([entry("a", api_key=key), entry("b")])
    assert ipy_sandbox.get_sandbox_tool("a").name == "a"
    register_sandbox_tools([entry("b")])
    assert get_sandbox_tool().name == "b"
    with pytest.raises(ConfigurationError, match="no sandbox tool 'a': choose one of b"):
        get_sandbox_tool("a")
    gc.collect()
    secrets = [o.get_secret_value() for o in gc.get_objects() if isinstance(o, SecretStr)]
    assert KEY in secrets
    assert key not in secrets


def test_without_any_tool_the_error_says_so() -> None:
    register_sandbox_tools([])
    with pytest.raises(ConfigurationError, match="There is no sandbox tool"):
        get_sandbox_tool()


def test_a_missing_key_is_one_clear_line() -> None:
    tool = SandboxTools([entry(api_key=None)]).get()
    with pytest.raises(ConfigurationError, match=r"^e2b needs a key: set E2B_API_KEY or give api_key=\.$"):
        tool.open_provider()
