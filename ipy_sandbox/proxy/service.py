"""What the proxy serves with, and how it changes to a new configuration without dropping a request."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass
from typing import Any

from ..errors import ConfigurationError
from ..interpreter.catalog import Route
from ..interpreter.upstream import Upstream
from .auth import Keyring
from .backend import Backend
from .config import Config
from .gate import Gate
from .metrics import Metrics
from .router import Router
from .shared import Shared, shared_by

logger = logging.getLogger("ipy_sandbox.proxy")

Load = Callable[[], Coroutine[Any, Any, tuple[Config, list[str]]]]
"""Reads the configuration, and gives warnings about it."""


@dataclass(frozen=True, slots=True)
class Service:
    """One configuration at work. A request keeps the one it began with."""

    config: Config
    keyring: Keyring
    router: Router
    backend: Backend

    def intercepts(self, route: Route) -> bool:
        """Whether the code interpreter is served for this model."""
        providers = self.config.interception.enabled_providers
        return self.config.intercepts and (providers is None or route.provider.name in providers)


class Proxy:
    """The state of the process: the current service, and what outlives it.

    Arguments:
        load: reads the configuration, at the start and at each reload.
        environ: where the model providers' keys are.
        announce: called after a reload that a client asked for, to tell the other processes.
    """

    def __init__(
        self,
        load: Load,
        environ: Mapping[str, str] | None = None,
        announce: Callable[[], None] | None = None,
    ) -> None:
        self._load = load
        self.announce = announce
        self._environ = os.environ if environ is None else environ
        self.metrics = Metrics()
        self.gate = Gate()
        self._shared: Shared | None = None
        self.upstream = Upstream()
        self._service: Service | None = None
        self._reloading = asyncio.Lock()
        self._retiring: set[asyncio.Task[None]] = set()

    @property
    def service(self) -> Service:
        """What new requests are served with."""
        assert self._service is not None, "the proxy has not started"
        return self._service

    @property
    def shared(self) -> Shared:
        """Stored responses and sessions, which outlive configurations."""
        assert self._shared is not None, "the proxy has not started"
        return self._shared

    async def start(self) -> None:
        """Read the configuration and begin; raises ConfigurationError."""
        self._switch(await self._read())

    async def _read(self) -> Service:
        config, warnings = await self._load()
        for warning in warnings:
            logger.warning("%s", warning)
        await self._share(config)
        router = Router(config, self._environ)
        old = self._service
        if old is not None and old.backend.serves(config):
            backend = old.backend
        else:
            backend = Backend(config, self.shared, self.upstream, self.metrics)
        return Service(config, Keyring(config), router, backend)

    async def _share(self, config: Config) -> None:
        if self._service is None:
            self._shared = shared_by(config)
            await self._shared.check()
        elif config.general_settings.redis_url != self._service.config.general_settings.redis_url:
            raise ConfigurationError("general_settings.redis_url: restart the proxy to change it.")

    async def reload(self) -> None:
        """Serve with the configuration as it is now; running requests end on the old one.

        Raises:
            ConfigurationError: it is wrong; the old one stays.
        """
        async with self._reloading:
            service = await self._read()
            if service.keyring.open and not self.service.keyring.open:
                raise ConfigurationError("The new configuration has no keys: restart the proxy to serve without keys.")
            self._switch(service)

    def _switch(self, service: Service) -> None:
        old, self._service = self._service, service
        if old is None or old.backend is not service.backend:
            service.backend.sandboxes.start()
        if old is not None and old.backend is not service.backend:
            task = asyncio.ensure_future(old.backend.retire())
            self._retiring.add(task)
            task.add_done_callback(self._retiring.discard)

    async def aclose(self) -> None:
        """Delete every sandbox; running requests must have ended."""
        self.gate.closed = True
        await asyncio.gather(self.service.backend.aclose(), *self._retiring, return_exceptions=True)
        await self.upstream.aclose()
        await self.shared.aclose()
