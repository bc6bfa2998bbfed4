"""Settings of the magics: traits, with the environment as their default.

For each setting the first of these counts: the option of the magic, the trait (`%config SandboxMagics.NAME = VALUE`,
or `c.SandboxMagics.NAME` in a configuration file of IPython), the environment variable `IPY_SANDBOX_NAME` as it was
when the extension was loaded, the default.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping

from traitlets import Bool, Dict, Enum, Float, HasTraits, Integer, List, TraitError, TraitType, Unicode
from traitlets.config import Config


class Settings(HasTraits):
    """The traits of `SandboxMagics`."""

    provider = Unicode(
        None,
        allow_none=True,
        help="Provider of new sandboxes: local, e2b or opensandbox. None: e2b if E2B_API_KEY is set, else opensandbox "
        "if OPEN_SANDBOX_API_BASE is set, else local.",
    ).tag(config=True)
    timeout = Float(None, allow_none=True, help="Seconds a cell may run; None: no limit.").tag(config=True)
    lifetime = Float(300.0, help="Seconds a sandbox lives after its last use.").tag(config=True)
    template = Unicode(None, allow_none=True, help="e2b template or OpenSandbox image of new sandboxes.").tag(
        config=True
    )
    internet = Bool(
        None, allow_none=True, help="Whether new sandboxes may use the internet; None: the provider's default."
    ).tag(config=True)
    keep = Bool(False, help="Leave sandboxes running when the kernel ends; they end with their lifetime.").tag(
        config=True
    )
    trusted = Bool(
        False, help="Show what sandboxes send as it comes, scripts included: they can do all that you can here."
    ).tag(config=True)
    frame_hosts = List(
        Unicode(), help="Origins that isolated frames of interactive charts may load from, e.g. https://cdn.plot.ly."
    ).tag(config=True)
    auto = Bool(
        False, help="Whole-notebook mode: all cells run in the sandbox, but those that begin with %%local."
    ).tag(config=True)
    spare = Enum(
        ["off", "after_use", "at_load"],
        "after_use",
        help="When the local provider keeps a spare sandbox ready, which costs about 110 MB: off (never), after_use "
        "(from the first sandbox on), or at_load (as soon as the extension is loaded).",
    ).tag(config=True)
    progress_after = Float(1.0, help="Seconds without output after which a line says what is going on.").tag(
        config=True
    )
    footer_after = Float(
        1.0, allow_none=True, help="Cells that took at least so many seconds get a footer line; None: no cell does."
    ).tag(config=True)
    complete_remote = Bool(True, help="Complete names of the sandbox inside %%sandbox cells.").tag(config=True)
    max_variable_mb = Integer(256, help="Megabytes that one variable may have that crosses with -i or -o.").tag(
        config=True
    )
    max_record_mb = Integer(64, help="Megabytes of outputs each session remembers for `%sandbox_session export`.").tag(
        config=True
    )


class AISettings(HasTraits):
    """The traits of `AIMagics`."""

    model = Unicode(
        None,
        allow_none=True,
        help="Model of %%ai, as provider/name. None: what the server at the base URL offers first, else the first "
        "provider whose key is set, else a model server on this machine.",
    ).tag(config=True)
    base_url = Unicode(
        None,
        allow_none=True,
        help="Address of an OpenAI-compatible server that needs no key; None: OPENAI_BASE_URL, which gets "
        "OPENAI_API_KEY, or the provider's.",
    ).tag(config=True)
    max_turns = Integer(30, help="Calls of the model that one question may take.").tag(config=True)
    max_history = Integer(
        None, allow_none=True, help="Earlier questions of a conversation that the model is told again; None: all."
    ).tag(config=True)
    parameters = Dict(
        key_trait=Unicode(), help="Further fields of each request to the model, such as {'temperature': 0}."
    ).tag(config=True)
    prices = Dict(
        key_trait=Unicode(),
        help="Price per million tokens by model, as (input, output), for the line below an answer.",
    ).tag(config=True)


def setting_traits(settings: type[HasTraits] = Settings) -> dict[str, TraitType]:  # type: ignore[type-arg]
    """The settings by name."""
    return settings.class_traits(config=True)


def environment_variable(name: str) -> str:
    """The environment variable of a setting."""
    return f"IPY_SANDBOX_{name.upper()}"


def config_from_environment(
    section: str = "SandboxMagics",
    settings: type[HasTraits] = Settings,
    environ: Mapping[str, str] = os.environ,
) -> Config:
    """The settings that the environment makes, as traitlets configuration of `section`."""
    config = Config()
    for name, trait in setting_traits(settings).items():
        variable = environment_variable(name)
        if text := environ.get(variable):
            try:
                config[section][name] = _parse(trait, text)
            except (ValueError, TraitError):
                warnings.warn(f"{variable}={text!r} is ignored: {trait.info()} is needed.", stacklevel=2)
    return config


def _parse(trait: TraitType, text: str) -> object:  # type: ignore[type-arg]
    if isinstance(trait, List):
        return text.replace(",", " ").split()
    return trait.from_string(text)
