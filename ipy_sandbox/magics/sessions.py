"""The sessions of a notebook: by name, made on first use, deleted when the kernel ends."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from ..errors import ConfigurationError, SandboxLostError
from ..models import ContainerHandle, SandboxOptions, sandbox_options
from ..safe_output import OutputPolicy
from ..sandbox.provider import Provider, default_provider_name, open_provider
from ..sandbox.session import Session
from .bridge import wait
from .record import Record
from .settings import Settings
from .state import StateFile

DEFAULT = "default"

EXIT_BUDGET = 2.0
"""Seconds for deleting sandboxes when the kernel ends: Jupyter kills it 2.5 s after it asked."""


@dataclass
class NotebookSession:
    """A session with what the notebook knows of it."""

    session: Session
    policy: OutputPolicy
    record: Record
    keep: bool = False

    @property
    def name(self) -> str:
        return self.session.name

    @property
    def provider(self) -> str:
        return self.session.provider.name


class Sessions:
    """All sessions of one notebook; one of them is current.

    Arguments:
        settings: the defaults of new sessions.
    """

    def __init__(self, settings: Settings) -> None:
        self.current = DEFAULT
        self._settings = settings
        self._by_name: dict[str, NotebookSession] = {}
        self._providers: dict[str, Provider] = {}
        self._state = StateFile()

    def __iter__(self) -> Iterator[NotebookSession]:
        return iter(list(self._by_name.values()))

    def __contains__(self, name: str) -> bool:
        return name in self._by_name

    def names(self) -> list[str]:
        """The names, sorted."""
        return sorted(self._by_name)

    def __getitem__(self, name: str) -> NotebookSession:
        if name not in self._by_name:
            known = ", ".join(self.names()) or "none yet"
            raise ConfigurationError(f"There is no session {name!r} (there are: {known}).")
        return self._by_name[name]

    def get(self, name: str | None = None, provider: str | None = None) -> NotebookSession:
        """The session to use, made (without a sandbox yet) if it does not exist.

        Without a name that is the current one; if another provider is asked for, the one named like the provider.
        """
        if name is None:
            current = self._by_name.get(self.current)
            other = provider and current and current.provider != provider
            name = str(provider) if other else self.current
        if name not in self._by_name:
            return self.make(name, provider)
        found = self._by_name[name]
        if provider and found.provider != provider:
            raise ConfigurationError(
                f"Session {name!r} runs on {found.provider}, not {provider}: use another name, or stop it first."
            )
        return found

    def make(
        self,
        name: str,
        provider: str | None = None,
        *,
        handle: ContainerHandle | None = None,
        trusted: bool | None = None,
        keep: bool = False,
        **options: Any,
    ) -> NotebookSession:
        """A new session; its sandbox is made on first use.

        Arguments:
            handle: a sandbox that exists.
            trusted: show its output as it comes.
            options: fields of `SandboxOptions`, over the settings.
        """
        if name in self._by_name:
            raise ConfigurationError(f"Session {name!r} exists already: use another name, or stop it first.")
        settings = self._settings
        made = NotebookSession(
            Session(self.open(provider), self._options(options), handle=handle, name=name),
            OutputPolicy(trusted=settings.trusted if trusted is None else trusted, hosts=settings.frame_hosts),
            Record(settings.max_record_mb * 1_000_000),
            keep=keep or settings.keep,
        )
        self._by_name[name] = made
        return made

    def open(self, provider: str | None = None) -> Provider:
        """The provider of that name, one instance for all sessions; None is the default one.

        It is closed with its last session: who mended an address or a key is heard by the next one.
        """
        name = provider or self._settings.provider or default_provider_name()
        if name not in self._providers:
            self._providers[name] = open_provider(name)
            if name == "local":
                self._set_spare()
        return self._providers[name]

    def _set_spare(self) -> None:
        from ..sandbox.local.provider import SPARE

        if SPARE.policy != self._settings.spare:
            SPARE.set_policy(self._settings.spare)  # type: ignore[arg-type]  # one of its own choices

    def _options(self, given: dict[str, Any]) -> SandboxOptions:
        settings = self._settings
        defaults = {
            "timeout": settings.lifetime,
            "template": settings.template,
            "allow_internet_access": settings.internet,
        }
        return sandbox_options(defaults | {key: value for key, value in given.items() if value is not None})

    async def attach(self, sandbox_id: str, provider: str | None, name: str) -> NotebookSession:
        """A session on a sandbox that exists already."""
        try:
            handle = await self.open(provider).connect(sandbox_id, timeout=self._settings.lifetime)
            attached = self.make(name, provider, handle=handle)
        except SandboxLostError:
            self._state.forget(sandbox_id)
            raise
        finally:
            await self._close_unused()
        self.remember(attached)
        return attached

    def remember(self, made: NotebookSession) -> None:
        """Remember the sandbox of a session in the state file, if it may outlive this process."""
        if made.provider != "local" and made.session.handle is not None:
            self._state.remember(made.session.handle.id, made.provider, made.name)

    def left(self) -> list[dict[str, Any]]:
        """Sandboxes that earlier kernels may have left, as the state file remembers them."""
        ours = {s.session.handle.id for s in self if s.session.handle is not None}
        return [entry for entry in self._state.entries() if entry["id"] not in ours]

    def left_ids(self) -> list[str]:
        """Their ids."""
        return [entry["id"] for entry in self.left()]

    def forget(self, name: str) -> None:
        """Take a session that has no sandbox off the list."""
        del self._by_name[name]
        wait(self._close_unused())

    async def stop(self, name: str) -> bool:
        """End a session and delete its sandbox; False if the sandbox was gone already."""
        stopped = self[name]
        del self._by_name[name]
        if self.current == name:
            self.current = DEFAULT
        if (handle := stopped.session.handle) is not None:
            self._state.forget(handle.id)
        try:
            return await stopped.session.aclose()
        except SandboxLostError:
            return False
        finally:
            await self._close_unused()

    async def _close_unused(self) -> None:
        for name in self._providers.keys() - {made.provider for made in self}:
            await self._providers.pop(name).aclose()

    def close(self) -> None:
        """Delete all sandboxes that are not kept and close the providers; errors are left to the lifetimes."""
        self.delete_at_exit()
        self._by_name.clear()
        for provider in self._providers.values():
            wait(provider.aclose())
        self._providers.clear()

    def delete_at_exit(self) -> None:
        """Delete all sandboxes not kept within two seconds, without asyncio: the interpreter may be leaving."""
        doomed = [s for s in self if not s.keep and s.session.handle is not None]
        for name, provider in self._providers.items():
            handles = [s.session.handle for s in doomed if s.provider == name and s.session.handle is not None]
            if handles:
                provider.delete_at_exit(handles, EXIT_BUDGET / len({s.provider for s in doomed}))
            for handle in handles:
                self._state.forget(handle.id)
