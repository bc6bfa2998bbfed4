"""The real proxy in a process of its own, as `ipy-sandbox proxy` starts it."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import yaml


class ProxyServer:
    """A running proxy.

    Attributes:
        url: its address, without /v1.
        log: the lines it wrote so far.
    """

    def __init__(self, arguments: list[str], environ: dict[str, str]) -> None:
        command = [sys.executable, "-m", "ipy_sandbox.cli", "proxy", "--port", "0", *arguments]
        environ = {**os.environ, **environ}
        self.process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environ)
        self.log: list[str] = []
        self.url = ""
        self._news = threading.Condition()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            with self._news:
                self.log.append(line.rstrip("\n"))
                self._news.notify_all()
        with self._news:
            self.log.append("END OF LOG")
            self._news.notify_all()

    def wait_for(self, pattern: str, seconds: float = 20) -> re.Match[str]:
        """The first line of the log that matches."""

        def found() -> re.Match[str] | None:
            return next((m for line in self.log if (m := re.search(pattern, line))), None)

        with self._news:
            self._news.wait_for(lambda: found() or "END OF LOG" in self.log, seconds)
        match = found()
        assert match, f"{pattern!r} is not in the log:\n" + "\n".join(self.log)
        return match

    def metrics(self) -> dict[str, float]:
        """What `/metrics` says now."""
        lines = httpx.get(f"{self.url}/metrics").text.splitlines()
        return {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines if line[0] != "#")}

    def wait_for_metric(self, name: str, value: float, seconds: float = 10) -> None:
        """Wait until a number is `value`."""
        event = threading.Event()
        for _ in range(int(seconds * 50)):
            if self.metrics().get(name, 0) == value:
                return
            event.wait(0.02)
        raise AssertionError(f"{name} is {self.metrics().get(name)} and not {value}")

    def stop(self, number: int = signal.SIGTERM, seconds: float = 20) -> int:
        """Send a signal and wait for the end; gives the exit status."""
        self.process.send_signal(number)
        status = self.process.wait(seconds)
        self._reader.join(5)
        return status


@contextlib.contextmanager
def running_proxy(
    config: dict[str, Any] | None, directory: Path, *arguments: str, **environ: str
) -> Iterator[ProxyServer]:
    """Start a proxy, wait until it serves, stop it in the end."""
    options = list(arguments)
    if config is not None:
        path = directory / "config.yaml"
        path.write_text(yaml.safe_dump(config))
        options += ["--config", str(path)]
    server = ProxyServer(options, environ)
    try:
        server.url = server.wait_for(r"serving on (http://\S+)")[1]
        yield server
    finally:
        if server.process.poll() is None:
            server.stop()
        assert server.process.stderr is not None
        server.process.stderr.close()


def config_for(*upstreams: str, provider: str = "fake", **sections: Any) -> dict[str, Any]:
    """A configuration with the model `m` at some endpoints, and two keys."""
    config = {
        "model_list": [
            {"model_name": "m", "litellm_params": {"model": "openai/m", "api_base": f"{u}/v1", "api_key": "sk-up"}}
            for u in upstreams
        ],
        "sandbox_tools": [{"sandbox_tool_name": "box", "litellm_params": {"sandbox_provider": provider}}],
        "general_settings": {"master_key": "sk-master"},
        "api_keys": [{"name": "alice", "key": "sk-alice"}, {"name": "bob", "key": "sk-bob"}],
    }
    return {**config, **sections}


def ask(text: Any, **fields: Any) -> dict[str, Any]:
    """The body of a Responses request with the code interpreter; `text` is a script of the fake model."""
    tool = {"type": "code_interpreter", "container": {"type": "auto"}}
    return {"model": "m", "input": json.dumps(text), "tools": [tool], **fields}


def ask_chat(text: Any, **fields: Any) -> dict[str, Any]:
    """The body of a Chat Completions request with the code interpreter."""
    messages = [{"role": "user", "content": json.dumps(text)}]
    return {"model": "m", "messages": messages, "tools": [{"type": "code_interpreter"}], **fields}
