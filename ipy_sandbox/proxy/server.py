"""Runs the application: sockets, signals, and an end within ten seconds that leaves no sandbox behind."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import os
import signal
import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import uvicorn

from ..errors import ConfigurationError
from ..interpreter.catalog import discover
from .app import App
from .auth import Keyring, is_loopback
from .config import Config
from .config_file import master_key_of, read_config
from .http_protocol import LimitedProtocol
from .log import set_up_logging
from .router import entries_without_a_file
from .service import Load, Proxy

logger = logging.getLogger("ipy_sandbox.proxy")

DRAIN_SECONDS = 3
"""How long running requests may go on after SIGTERM; the sandboxes are deleted after that."""
KEEP_ALIVE_SECONDS = 75


@dataclass(frozen=True, slots=True)
class ServerOptions:
    """The options of `ipy-sandbox proxy`. `fd` is the listening socket that a worker inherits."""

    config: str | None = None
    host: str = "127.0.0.1"
    port: int = 4000
    workers: int = 1
    log_format: str = "text"
    log_level: str = "info"
    fd: int | None = None


def loader(path: str | None, environ: Mapping[str, str]) -> Load:
    """Reads the file at `path`, or makes a configuration of the environment if there is none."""

    async def load() -> tuple[Config, list[str]]:
        if path is not None:
            return read_config(path, environ)
        named = environ.get("OPENAI_API_KEY") or environ.get("OPENAI_BASE_URL")
        servers = [] if named else await discover()
        entries = entries_without_a_file(environ, servers)
        return Config(model_list=entries, general_settings=master_key_of(environ)), []

    return load


def serve(options: ServerOptions) -> int:
    """Serve until a signal says to stop; returns the exit status.

    Raises:
        ConfigurationError: the configuration is wrong, or does not allow what `options` ask for.
    """
    set_up_logging(options.log_format, options.log_level)
    if options.fd is not None:
        listener = socket.socket(fileno=options.fd)
    else:
        config, _ = asyncio.run(loader(options.config, os.environ)())
        refuse_if_unsafe(config, options)
        listener = _listen(options.host, options.port)
    if options.workers > 1 and options.fd is None:
        from .workers import supervise

        return supervise(options, listener)
    with asyncio.Runner(loop_factory=_loop_factory()) as runner:
        runner.run(_serve(options, listener))
    return 0


def refuse_if_unsafe(config: Config, options: ServerOptions) -> None:
    """Raise ConfigurationError for a proxy without keys that others could reach, or workers that share nothing."""
    if Keyring(config).open and not is_loopback(options.host):
        raise ConfigurationError(
            f"Without keys the proxy listens on this machine only, not on {options.host}: "
            "configure general_settings.master_key or api_keys."
        )
    if options.workers < 1:
        raise ConfigurationError("--workers must be at least 1.")
    if options.workers > 1 and config.general_settings.redis_url is None:
        raise ConfigurationError(
            "Sessions and limits live in one process: --workers above 1 needs general_settings.redis_url to share them."
        )


def _listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=2048)
    except (OSError, OverflowError) as error:
        reason = error.strerror if isinstance(error, OSError) else "a port is a number from 0 to 65535"
        raise ConfigurationError(f"Cannot listen on {host}:{port}: {reason}.") from None


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    with contextlib.suppress(ImportError):
        import uvloop

        return uvloop.new_event_loop
    return None


async def _serve(options: ServerOptions, listener: socket.socket) -> None:
    supervised = options.fd is not None
    proxy = Proxy(loader(options.config, os.environ), announce=_tell_parent if supervised else None)
    config = uvicorn.Config(
        App(proxy), http=LimitedProtocol, lifespan="off", log_config=None, access_log=False, server_header=False,
        timeout_keep_alive=KEEP_ALIVE_SECONDS, timeout_graceful_shutdown=DRAIN_SECONDS, ws="none",
    )  # fmt: skip
    server = uvicorn.Server(config)
    _heed_signals(proxy, server)
    await proxy.start()
    _collect_seldom()
    try:
        address = "http://{}:{}".format(*listener.getsockname()[:2])
        logger.info("serving on %s (%s)", address, proxy.service.backend.sandboxes.name)
        await server.serve(sockets=[listener])
    finally:
        await proxy.aclose()
    logger.info("stopped")


def _collect_seldom() -> None:
    # While the garbage collector goes through all modules and stored responses, every request waits.
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 10, 10)


def _heed_signals(proxy: Proxy, server: uvicorn.Server) -> None:
    loop, reloads = asyncio.get_running_loop(), set[asyncio.Task[None]]()

    def on_hangup() -> None:
        task = loop.create_task(_reload(proxy))
        reloads.add(task)
        task.add_done_callback(reloads.discard)

    loop.add_signal_handler(signal.SIGHUP, on_hangup)
    for number in (signal.SIGTERM, signal.SIGINT):
        # uvicorn's own handlers are there only while it serves, and it raises the signal again after that.
        signal.signal(number, server.handle_exit)


async def _reload(proxy: Proxy) -> None:
    try:
        await proxy.reload()
    except ConfigurationError as error:
        logger.error("the configuration stays as it was: %s", error)
    else:
        logger.info("the configuration was read again")


def _tell_parent() -> None:
    os.kill(os.getppid(), signal.SIGHUP)
