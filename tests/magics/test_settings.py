"""Settings: the option, the trait, the environment, the default."""

from __future__ import annotations

import os

import pytest
from traitlets.config import Config

from ipy_sandbox.magics.reference import options_table, settings_table
from ipy_sandbox.magics.settings import config_from_environment, setting_traits

from .conftest import ScriptedProvider, Shell


def test_the_environment_is_the_default_of_traits(provider: ScriptedProvider) -> None:
    os.environ |= {"IPY_SANDBOX_LIFETIME": "60", "IPY_SANDBOX_INTERNET": "false", "IPY_SANDBOX_TIMEOUT": "5"}
    shell = Shell()
    shell.ip.config.merge(Config({"SandboxMagics": {"timeout": 7.0}}))
    shell.ip.run_line_magic("load_ext", "ipy_sandbox")
    try:
        magics = shell.ip.magics_manager.registry["SandboxMagics"]
        assert (magics.lifetime, magics.internet, magics.timeout) == (60, False, 7)
        shell.run("%config SandboxMagics.lifetime = 90")
        shell.run("%sandbox 1")
        shell.run("%sandbox_session start b --timeout 30")
        created = [call[1] for call in provider.calls if call[0] == "create"]
        assert [(o.timeout, o.allow_internet_access) for o in created] == [(90, False), (30, False)]  # type: ignore[attr-defined]
    finally:
        shell.ip.config.pop("SandboxMagics")
        shell.close()


def test_a_wrong_value_in_the_environment_is_said_and_left_out() -> None:
    with pytest.warns(UserWarning, match="IPY_SANDBOX_LIFETIME='long' is ignored"):
        assert config_from_environment(environ={"IPY_SANDBOX_LIFETIME": "long", "IPY_SANDBOX_TRUSTED": "1"}) == Config(
            {"SandboxMagics": {"trusted": True}}
        )


def test_lists_are_words() -> None:
    config = config_from_environment(environ={"IPY_SANDBOX_FRAME_HOSTS": "https://a.example, https://b.example"})
    assert config.SandboxMagics.frame_hosts == ["https://a.example", "https://b.example"]


def test_every_setting_has_a_help() -> None:
    assert all(trait.help for trait in setting_traits().values())


def test_the_reference_names_every_setting_and_option() -> None:
    settings, options = settings_table(), options_table()
    assert "| `SandboxMagics.lifetime` | `IPY_SANDBOX_LIFETIME` | `300.0` | Seconds a sandbox lives" in settings
    assert "| `%%sandbox` | `-s, --session NAME` |" in options
    assert "| `%sandbox_session start` | `--internet, --no-internet` |" in options
    widths = {line.replace("\\|", "").count("|") for table in (settings, options) for line in table.splitlines()}
    assert widths == {4, 5}
