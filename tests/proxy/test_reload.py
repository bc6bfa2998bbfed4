"""What a reload leaves of the configuration before it."""

from __future__ import annotations

import gc
import types
from pathlib import Path

import pytest
import yaml

from ipy_sandbox.errors import ConfigurationError
from ipy_sandbox.proxy.server import loader
from ipy_sandbox.proxy.service import Proxy

pytestmark = pytest.mark.anyio

ENDING = "-is-to-be-forgotten"


def holders() -> list[str]:
    """The kinds of the objects that hold a text with that ending, other than the ending itself."""
    gc.collect()
    found = []
    for thing in gc.get_objects():
        if not isinstance(thing, types.FrameType):
            texts = [text for text in gc.get_referents(thing) if type(text) is str and text.endswith(ENDING)]
            found += [f"{type(thing).__qualname__}" for text in texts if text != ENDING]
    return found


def write(path: Path, provider: str, name: str) -> None:
    config = {
        "model_list": [{"model_name": "m", "litellm_params": {"model": f"{name}/m", "api_base": "http://127.0.0.1:9/v1",
                                                              "api_key": f"os.environ/MODEL_{name}"}}],
        "sandbox_tools": [{"sandbox_tool_name": "t", "litellm_params": {"sandbox_provider": provider,
                                                                        "api_key": f"os.environ/TOOL_{name}"}}],
        "general_settings": {"master_key": "sk-master"},
    }  # fmt: skip
    path.write_text(yaml.safe_dump(config))


async def test_the_credentials_of_what_was_removed_are_gone(tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    environ = {"MODEL_openai": "model" + ENDING, "TOOL_openai": "e2b_tool" + ENDING}
    write(path, "e2b", "openai")
    proxy = Proxy(loader(str(path), environ), environ)
    await proxy.start()
    proxy.service.router.choices("m")
    assert len(holders()) > len(environ)
    environ.clear()
    environ.update(MODEL_groq="other", TOOL_groq="e2b_other")
    write(path, "e2b", "groq")
    await proxy.reload()
    while proxy._retiring:
        await next(iter(proxy._retiring))
    assert holders() == []
    await proxy.aclose()


async def test_keys_cannot_be_taken_away_while_it_runs(tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    write(path, "fake", "openai")
    environ = {"MODEL_openai": "a", "TOOL_openai": "b"}
    proxy = Proxy(loader(str(path), environ), environ)
    await proxy.start()
    path.write_text(path.read_text().replace("master_key: sk-master", "max_request_size_mb: 1"))
    with pytest.raises(ConfigurationError, match="has no keys"):
        await proxy.reload()
    assert proxy.service.config.master_digest
    await proxy.aclose()
