"""The configuration file: LiteLLM's own examples, and every mistake named by its path."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from ipy_sandbox.errors import ConfigurationError
from ipy_sandbox.proxy.config import Config
from ipy_sandbox.proxy.config_file import read_config

LITELLM = """
model_list:
  - model_name: gpt-5
    litellm_params:
      model: openai/gpt-5
      api_key: os.environ/OPENAI_API_KEY

sandbox_tools:
  - sandbox_tool_name: my-e2b
    litellm_params:
      sandbox_provider: e2b
      api_key: os.environ/E2B_API_KEY
  - sandbox_tool_name: my-opensandbox
    litellm_params:
      sandbox_provider: opensandbox
      api_base: os.environ/OPEN_SANDBOX_API_BASE

litellm_settings:
  callbacks: ["code_interpreter_interception"]
  code_interpreter_interception_params:
    enabled_providers: ["openai"]
    sandbox_tool_name: my-opensandbox

general_settings:
  master_key: sk-1234
"""
ENVIRON = {"OPENAI_API_KEY": "sk-up", "E2B_API_KEY": "e2b_x", "OPEN_SANDBOX_API_BASE": "http://sandboxes/v1"}


@pytest.fixture
def read(tmp_path: Path):
    def read(text: str | bytes, **environ: str) -> tuple[Config, list[str]]:
        path = tmp_path / "config.yaml"
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return read_config(path, {**ENVIRON, **environ})

    return read


def mistakes(read, text: str | bytes) -> str:
    with pytest.raises(ConfigurationError) as caught:
        read(text)
    message = str(caught.value)
    assert "\n" not in message
    return message.partition("config.yaml: ")[2]


def test_a_file_written_for_litellm_works_unchanged(read) -> None:
    config, warnings = read(LITELLM)
    assert warnings == []
    assert config.intercepts
    assert config.interception.enabled_providers == ["openai"]
    assert config.model_list[0].litellm_params.api_key.get_secret_value() == "sk-up"
    assert config.sandbox_tool.tool.provider == "opensandbox"
    assert config.sandbox_tool.tool.api_base == "http://sandboxes/v1"
    assert config.master_digest == hashlib.sha256(b"sk-1234").hexdigest()


def test_the_parameters_of_interception_may_be_at_the_top(read) -> None:
    moved = LITELLM.replace("  code_interpreter_interception_params:", "code_interpreter_interception_params:")
    assert moved != LITELLM
    config, warnings = read(
        moved.replace("    enabled", "  enabled").replace("    sandbox_tool_name: my-o", "  sandbox_tool_name: my-o")
    )
    assert (config.sandbox_tool.tool.provider, config.interception.enabled_providers) == ("opensandbox", ["openai"])
    assert warnings == []


def test_the_file_in_the_documentation_is_right(read) -> None:
    page = Path(__file__).parents[2] / "docs" / "proxy.md"
    text = page.read_text().partition("```yaml\n")[2].partition("```")[0].replace("https://...", "https://host")
    config, warnings = read(text, MASTER_KEY="a", ALICE_KEY="b")
    assert warnings == []
    settings = [config.litellm_settings, config.general_settings, config.interception]
    for section in settings:
        assert section.model_fields_set == set(type(section).model_fields)


def test_secrets_show_themselves_nowhere(read) -> None:
    config, _ = read(LITELLM + "api_keys:\n  - {name: alice, key: sk-alice}\n")
    for text in (repr(config), str(config), str(config.model_dump())):
        assert not [secret for secret in ("sk-1234", "sk-up", "e2b_x", "sk-alice") if secret in text]


def test_an_empty_file_serves_the_default_provider(read) -> None:
    config, warnings = read("")
    assert (config.intercepts, config.sandbox_tool.tool.provider) == (True, "local")
    assert warnings == ["no model is served: model_list is empty"]


def test_sandbox_options_of_a_tool_are_honoured(read) -> None:
    config, _ = read("""
sandbox_tools:
  - sandbox_tool_name: box
    litellm_params:
      {sandbox_provider: e2b, template: data, timeout: 60, allow_internet_access: false, env_vars: {A: b}, warm: 3}
""")
    options = config.sandbox_tool.tool.options
    assert (options.template, options.timeout, options.allow_internet_access) == ("data", 60, False)
    assert (options.env_vars, config.sandbox_tool.litellm_params.warm) == ({"A": "b"}, 3)


def test_a_file_may_bring_variables_of_its_own(read) -> None:
    config, _ = read("environment_variables: {MY_KEY: sk-own}\ngeneral_settings: {master_key: os.environ/MY_KEY}")
    assert config.general_settings.master_key.get_secret_value() == "sk-own"


def test_the_master_key_may_be_in_litellms_variable(read) -> None:
    config, _ = read("", LITELLM_MASTER_KEY="sk-env")
    assert config.general_settings.master_key.get_secret_value() == "sk-env"


def test_what_does_not_concern_the_proxy_is_one_warning(read) -> None:
    config, warnings = read("""
model_list:
  - model_name: m
    litellm_params: {model: openai/m, rpm: 60}
    model_info: {id: x}
router_settings: {routing_strategy: simple-shuffle}
litellm_settings: {drop_params: true, callbacks: [code_interpreter_interception, prometheus]}
""")
    assert config.intercepts
    assert warnings == [
        "ignored, as it does not concern this proxy: router_settings, model_list[0].model_info, "
        "model_list[0].litellm_params.rpm, litellm_settings.drop_params",
        "ignored callbacks: prometheus",
    ]


@pytest.mark.parametrize(
    "settings",
    ["callbacks: [prometheus]", "code_interpreter_interception_params: {enabled: false}"],
)
def test_interception_can_be_off(read, settings: str) -> None:
    config, warnings = read(f"litellm_settings: {{{settings}}}\nsandbox_tools:\n  - sandbox_tool_name: a\n"
                            "    litellm_params: {sandbox_provider: local}\n")  # fmt: skip
    assert not config.intercepts
    assert "the code interpreter is off" in warnings[-1]


@pytest.mark.parametrize(
    ("text", "mistake"),
    [
        ("model_list:\n  - litellm_params: {model: a/b}", "model_list[0].model_name: is missing"),
        (
            "model_list:\n  - {model_name: m, litellm_params: {model: 5}}",
            "model_list[0].litellm_params.model: should be",
        ),
        ("model_list: {a: b}", "model_list: should be a valid list"),
        (
            "sandbox_tools:\n  - {sandbox_tool_name: a, litellm_params: {sandbox_provider: e3b}}",
            "sandbox_tools[0].litellm_params.sandbox_provider: unknown provider: choose one of e2b,",
        ),
        (
            "sandbox_tools:\n  - {sandbox_tool_name: a, litellm_params: {sandbox_provider: e2b, timeuot: 3}}",
            "sandbox_tools[0].litellm_params.timeuot: unknown key",
        ),
        (
            "sandbox_tools:\n  - {sandbox_tool_name: a, litellm_params: {sandbox_provider: e2b, timeout: -3}}",
            "sandbox_tools[0].litellm_params.timeout: should be greater than 0",
        ),
        (
            "litellm_settings: {code_interpreter_interception_params: {sandbox_tool_name: x}}",
            "litellm_settings.code_interpreter_interception_params.sandbox_tool_name: there is no sandbox tool 'x'",
        ),
        (
            "code_interpreter_interception_params: {}\nlitellm_settings: {code_interpreter_interception_params: {}}",
            "code_interpreter_interception_params: is also in litellm_settings",
        ),
        ("api_keys:\n  - {name: a}", "api_keys[0]: give either key or sha256"),
        ("api_keys:\n  - {name: a, key: k, sha256: zz}", "api_keys[0].sha256: "),
        ("api_keys:\n  - {name: a, key: ''}", "api_keys[0]: key is empty"),
        ("api_keys:\n  - {name: a, key: k}\n  - {name: b, key: k}", "api_keys[1]: the same key as api_keys[0]"),
        ("api_key:\n  - {name: a, key: k}", "api_key: unknown key, did you mean api_keys?"),
        ("general_settings: {masterkey: k}", "general_settings.masterkey: unknown key, did you mean master_key?"),
        ("general_settings: {master_key: ''}", "general_settings.master_key: is empty"),
        (
            "general_settings: {master_key: os.environ/NOT_THERE}",
            "general_settings.master_key: the environment variable NOT_THERE is not set",
        ),
        ("- a\n- b", "must hold keys and values at its top"),
        ("general_settings: {master_key: sk-secret", "is not YAML in line 1, column 41"),
        (b"\xff\xfe\x00", "is not"),
    ],
)
def test_a_mistake_is_named_by_its_path(read, text: str | bytes, mistake: str) -> None:
    said = mistakes(read, text)
    assert mistake in said
    assert "sk-secret" not in said


def test_all_mistakes_are_named_at_once_and_no_value_is(read) -> None:
    said = mistakes(
        read, "api_keys:\n  - {name: a b, key: sk-secret}\ngeneral_settings: {max_request_size_mb: sk-secret}"
    )
    assert "api_keys[0].name: " in said
    assert "general_settings.max_request_size_mb: " in said
    assert "sk-secret" not in said


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"none\.yaml: cannot be read: No such file"):
        read_config(tmp_path / "none.yaml")
