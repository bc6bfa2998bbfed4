"""How what goes wrong is raised in a cell: always an error, so that Run All and batch tools stop; never our frames."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import ParamSpec, TypeVar

from ..errors import RemoteError, SandboxError, remote_error
from ..safe_output import safe_text

P = ParamSpec("P")
T = TypeVar("T")


class SandboxInterrupted(KeyboardInterrupt):
    """The stop button or Ctrl-C ended the cell; shows where the remote code stopped, if that is known.

    It derives from KeyboardInterrupt so that `except Exception` in a user's loop does not swallow a stop.
    """

    def __init__(self, message: str = "the sandbox stopped this cell.", traceback: str = "") -> None:
        super().__init__(message)
        self.traceback = traceback

    def _render_traceback_(self) -> list[str]:
        return self.traceback.splitlines() or [f"Interrupted: {self}"]


def remote_problem(name: str, value: str, traceback: str) -> RemoteError:
    """The error to raise for what remote code raised; all texts in their safe form."""
    # A class needs a name that Python accepts; the sandbox may send any text.
    ename = name if name.isidentifier() else "RemoteError"
    return remote_error(ename, value, traceback or f"{name}: {value}")


def plain(error: BaseException) -> BaseException:
    """`error` as IPython can show it: no ExceptionGroup around it or in its context, one line if it is one of ours."""
    while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    if isinstance(error, BaseExceptionGroup):
        error = SandboxError(
            "Several things failed: " + "; ".join(f"{type(e).__name__}: {e}" for e in error.exceptions)
        )
    if any(isinstance(cause, BaseExceptionGroup) for cause in _causes(error)):
        error.__context__ = error.__cause__ = None
    if isinstance(error, SandboxError) and not hasattr(error, "_render_traceback_"):
        # It may quote a sandbox or a server.
        text = " ".join(safe_text(str(error)).split())
        line = f"\x1b[31m{type(error).__name__}\x1b[39m: {text}"
        error.__dict__["_render_traceback_"] = functools.partial(list, [line])
    return error


def shows_errors(magic: Callable[P, T]) -> Callable[P, T]:
    """Decorates a magic: its SandboxErrors and ExceptionGroups are raised as `plain` makes them."""

    @functools.wraps(magic)
    def wrapper(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return magic(*args, **kwargs)
        except (SandboxError, BaseExceptionGroup) as error:
            problem = plain(error)
        # Outside of the except block: inside, IPython would see the group as its context.
        raise problem

    return wrapper


def _causes(error: BaseException) -> Iterator[BaseException]:
    chain: BaseException | None = error
    while chain is not None:
        yield chain
        chain = chain.__cause__ or chain.__context__
