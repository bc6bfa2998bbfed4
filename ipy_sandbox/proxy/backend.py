"""The sandboxes and the loop over them, for as long as the settings they were made with are in use."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
from collections.abc import Iterator
from typing import Any, cast

from ..interpreter.interpreter import Interpreter
from ..interpreter.limits import Limits
from ..interpreter.upstream import Upstream
from ..sandbox.provider import Provider
from ..sandbox.session import Session
from ..sandbox.tools import SandboxTool
from .config import Config
from .metrics import Metrics
from .sandboxes import OwnedSandboxes
from .shared import Shared

CLOSE_SECONDS = 2.0
"""What each of the steps may take in which a backend closes: together with the server's own less than ten."""


class Backend:
    """One sandbox tool at work; configurations that say the same about it share it, sessions included.

    Raises:
        ConfigurationError: the provider's key or address is missing.
    """

    def __init__(self, config: Config, shared: Shared, upstream: Upstream, metrics: Metrics) -> None:
        entry, params = config.sandbox_tool, config.interception
        tool = entry.tool
        self._settings = _settings(config)
        self._options = tool.options
        self.sandboxes = OwnedSandboxes(tool.open_provider(), tool.options, entry.litellm_params.warm, metrics)
        caps: dict[str, Any] = {"cap": params.session_cap, "ttl": params.session_ttl}
        self._pool = shared.pool(self._make_session, self.sandboxes, _account(tool), **caps)
        self.interpreter = Interpreter(
            self._make_session,
            limits=_limits(config),
            pool=self._pool,
            store=shared.store,
            upstream=upstream,
            always_outputs=params.include_outputs,
        )
        self._users = 0
        self._unused = asyncio.Event()
        self._unused.set()

    def _make_session(self) -> Session:
        return Session(cast(Provider, self.sandboxes), self._options)

    def serves(self, config: Config) -> bool:
        """Whether `config` asks for the very same."""
        return self._settings == _settings(config)

    @contextlib.contextmanager
    def in_use(self) -> Iterator[None]:
        """Keeps `retire` waiting."""
        self._users += 1
        self._unused.clear()
        try:
            yield
        finally:
            self._users -= 1
            if not self._users:
                self._unused.set()

    async def retire(self) -> None:
        """Close once nobody uses it any more."""
        await self._unused.wait()
        await self.aclose()

    async def aclose(self) -> None:
        """Delete every sandbox, in little time even if the provider does not answer."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(CLOSE_SECONDS):
                await self.interpreter.aclose()
        await self.sandboxes.aclose(CLOSE_SECONDS)


def _limits(config: Config) -> Limits:
    params, seconds = config.interception, config.litellm_settings.request_timeout
    return Limits(
        turns=params.max_agentic_loops + 1,
        calls=params.max_tool_calls,
        # The model gets a tenth of the time for its answer to what code did.
        seconds=seconds * 0.9,
        run_seconds=min(params.execution_timeout, seconds),
    )


def _account(tool: SandboxTool) -> str:
    key = tool.api_key.get_secret_value() if tool.api_key else ""
    return hashlib.sha256(f"{tool.provider} {tool.api_base} {key}".encode()).hexdigest()[:16]


def _settings(config: Config) -> tuple[Any, ...]:
    return config.sandbox_tool, config.interception, config.litellm_settings.request_timeout
