"""Reads the configuration file: YAML, `os.environ/NAME`, and every mistake named with its path in the file."""

from __future__ import annotations

import difflib
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError

from ..errors import ConfigurationError
from .config import CALLBACK, Config, GeneralSettings

_ENVIRON = "os.environ/"
MASTER_KEY_VARIABLE = "LITELLM_MASTER_KEY"
"""Where LiteLLM takes the master key from if the file has none."""


def read_config(path: str | Path, environ: Mapping[str, str] | None = None) -> tuple[Config, list[str]]:
    """The configuration in the file `path`, and the warnings about it.

    Arguments:
        environ: what `os.environ/NAME` names; a file's own `environment_variables` come after it.

    Raises:
        ConfigurationError: one line that names every mistake by its path in the file, and no secret.
    """
    data = _load_yaml(Path(path))
    mistakes: list[str] = []
    own = data.get("environment_variables")
    known = {**(own if isinstance(own, dict) else {}), **(os.environ if environ is None else environ)}
    data = _resolve(data, "", known, mistakes)
    general = data.get("general_settings") or {}
    if isinstance(general, dict) and general.get("master_key") is None and MASTER_KEY_VARIABLE in known:
        data["general_settings"] = {**general, "master_key": known[MASTER_KEY_VARIABLE]}
    config = _validated(data, mistakes) if not mistakes else Config()
    mistakes += list(_look_alikes(config)) + list(_contradictions(config))
    if mistakes:
        raise ConfigurationError(f"{path}: {'; '.join(mistakes)}.")
    return config, list(_warnings(config))


def master_key_of(environ: Mapping[str, str]) -> GeneralSettings:
    """The settings of a proxy without a file: the master key, if the environment has one."""
    return GeneralSettings.model_validate({"master_key": environ.get(MASTER_KEY_VARIABLE) or None})


def _load_yaml(path: Path) -> dict[str, Any]:
    import yaml

    try:
        data = yaml.safe_load(path.read_bytes())
    except OSError as error:
        raise ConfigurationError(f"{path}: cannot be read: {error.strerror}.") from None
    except UnicodeDecodeError:
        raise ConfigurationError(f"{path}: is not text in UTF-8.") from None
    except yaml.YAMLError as error:
        # The message of the exception quotes the file, secrets included.
        mark = getattr(error, "problem_mark", None)
        where = f" in line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        raise ConfigurationError(f"{path}: is not YAML{where}: {getattr(error, 'problem', 'unreadable')}.") from None
    if data is None:
        return {}
    if not isinstance(data, dict):
        raise ConfigurationError(f"{path}: must hold keys and values at its top.")
    return data


def _resolve(value: Any, path: str, environ: Mapping[str, str], mistakes: list[str]) -> Any:
    if isinstance(value, dict):
        return {k: _resolve(v, f"{path}.{k}" if path else str(k), environ, mistakes) for k, v in value.items()}
    if isinstance(value, list):
        return [_resolve(v, f"{path}[{i}]", environ, mistakes) for i, v in enumerate(value)]
    if not isinstance(value, str) or not value.startswith(_ENVIRON):
        return value
    name = value.removeprefix(_ENVIRON)
    if name not in environ:
        mistakes.append(f"{path}: the environment variable {name} is not set")
    return environ.get(name)


def _validated(data: dict[str, Any], mistakes: list[str]) -> Config:
    try:
        # A section that is there but empty (`api_keys:`) means the same as none.
        return Config.model_validate({k: v for k, v in data.items() if v is not None})
    except ValidationError as error:
        mistakes += [f"{_path(d['loc'])}: {_message(d)}" for d in error.errors(include_input=False, include_url=False)]
        return Config()


def _path(loc: tuple[int | str, ...]) -> str:
    return "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in loc).lstrip(".") or "the file"


def _message(detail: Any) -> str:
    if detail["type"] == "extra_forbidden":
        return "unknown key"
    if detail["type"] == "missing":
        return "is missing"
    return str(detail["msg"]).removeprefix("Value error, ").replace("Input should", "should")


def _unknown(model: BaseModel, path: str = "") -> Iterator[tuple[str, str, list[str]]]:
    """Every ignored key: its path, its name, and the names that are known beside it."""
    for name in model.model_extra or {}:
        yield f"{path}{name}", name, list(type(model).model_fields)
    for name, value in model:
        items = enumerate(value) if isinstance(value, list) else [(None, value)]
        for index, item in items:
            if isinstance(item, BaseModel):
                yield from _unknown(item, f"{path}{name}." if index is None else f"{path}{name}[{index}].")


def _look_alikes(config: Config) -> Iterator[str]:
    # `api_key:` for `api_keys:` must not open the proxy to everybody.
    for path, name, known in _unknown(config):
        if near := difflib.get_close_matches(name, known, n=1, cutoff=0.85):
            yield f"{path}: unknown key, did you mean {near[0]}?"


def _contradictions(config: Config) -> Iterator[str]:
    params, settings = "code_interpreter_interception_params", config.litellm_settings
    if settings.code_interpreter_interception_params is not None:
        if config.code_interpreter_interception_params is not None:
            yield f"{params}: is also in litellm_settings, give it once"
        params = f"litellm_settings.{params}"
    wanted, tools = config.interception.sandbox_tool_name, [t.sandbox_tool_name for t in config.sandbox_tools]
    if wanted is not None and wanted not in tools:
        yield f"{params}.sandbox_tool_name: there is no sandbox tool {wanted!r} among {tools}"
    seen: dict[str, str] = {config.master_digest: "general_settings.master_key"} if config.master_digest else {}
    for i, key in enumerate(config.api_keys):
        if key.digest in seen:
            yield f"api_keys[{i}]: the same key as {seen[key.digest]}"
        seen[key.digest] = f"api_keys[{i}]"
    for i, entry in enumerate(config.model_list):
        if entry.model_name.count("*") > 1:
            yield f"model_list[{i}].model_name: may hold one * only"
    provider = config.sandbox_tool.litellm_params.sandbox_provider
    if config.general_settings.redis_url is not None and provider in ("local", "fake"):
        yield f"general_settings.redis_url: sandboxes of the {provider} provider cannot be shared between processes"
    if config.model_fields_set & {"general_settings"} and _empty_master_key(config):
        yield "general_settings.master_key: is empty"


def _empty_master_key(config: Config) -> bool:
    key = config.general_settings.master_key
    return key is not None and not key.get_secret_value()


def _warnings(config: Config) -> Iterator[str]:
    if not config.model_list:
        yield "no model is served: model_list is empty"
    if ignored := [path for path, _, _ in _unknown(config)]:
        yield f"ignored, as it does not concern this proxy: {', '.join(ignored)}"
    others = [str(c) for c in config.litellm_settings.callbacks or [] if c != CALLBACK]
    if others:
        yield f"ignored callbacks: {', '.join(others)}"
    if not config.intercepts and config.sandbox_tools:
        yield f"the code interpreter is off: add {CALLBACK!r} to litellm_settings.callbacks"
