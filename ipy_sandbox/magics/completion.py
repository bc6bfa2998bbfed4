"""Completion in our magics: options, commands, sessions, files, and the names that the sandbox knows."""

from __future__ import annotations

import contextlib
import glob
import os
from collections.abc import Iterable
from typing import TYPE_CHECKING

from IPython.core.completer import CompletionContext, SimpleCompletion, SimpleMatcherResult, context_matcher
from IPython.core.error import UsageError

from .arguments import MagicParser, split
from .sandbox import sandbox_parser

if TYPE_CHECKING:
    from ..sandbox.session import Session
    from .sandbox import SandboxMagics

BUDGET = 0.3
"""Seconds that a completion may take: typing waits for it."""

MOST_NAMES, LONGEST_NAME = 500, 1000
"""How much of a kernel's answer is looked at."""

LATEST = 5.0
"""Seconds after which the kernel is to give up."""

NAMING_COMMANDS = ("use", "info", "restart", "interrupt", "stop")


class Completion:
    """The matcher of our magics.

    Arguments:
        magics: whose sessions and options they are.
    """

    def __init__(self, magics: SandboxMagics) -> None:
        self._magics = magics

    @context_matcher(identifier="ipy_sandbox")  # type: ignore[untyped-decorator]
    def matcher(self, context: CompletionContext) -> SimpleMatcherResult:
        """Completions for IPython (Matcher API v2); it keeps others silent inside our magics and remote code."""
        before = context.line_with_cursor[: context.cursor_position]
        first = context.full_text.lstrip().split(maxsplit=1)[:1]
        words = before.split(" ")
        if before.lstrip().startswith("%sandbox_session "):
            return _result(self._command(before.split()[1:], words[-1]), words[-1])
        if before.lstrip().startswith(("%%sandbox ", "%sandbox ")):
            found = self._option(sandbox_parser(), words)
            return self._remote(context) if found is None else _result(found, words[-1])
        if before.lstrip().startswith(("%%ai ", "%ai ")):
            return _result(self._ai(words), words[-1])
        whole = self._magics.auto and not before.startswith("%") and first != ["%%local"]
        if (first == ["%%sandbox"] and context.cursor_line > 0) or whole:
            return self._remote(context)
        return {"completions": []}

    def _option(self, parser: MagicParser, words: list[str]) -> Iterable[str] | None:
        """What can stand for the last word, None if it is not an option or its value."""
        previous, last = words[-2], words[-1]
        if previous in ("-s", "--session"):
            return self._session_names()
        if previous in ("-p", "--provider"):
            from ..sandbox.provider import provider_names

            return provider_names()
        if previous in ("-i", "--input"):
            return (name for name in self._magics._shell.user_ns if not name.startswith("_"))
        if last.startswith("-"):
            return parser.option_strings()
        if all(word.startswith("-") for word in words[1:-1]) and words[0].startswith("%%"):
            return parser.option_strings()
        return None

    def _command(self, words: list[str], last: str) -> Iterable[str]:
        from .session import session_parser

        commands = session_parser().commands()
        done = words if not last else words[:-1]
        if not done:
            return commands
        parser = commands.get(done[0])
        if parser is None:
            return []
        found = self._option(parser, ["", *done, last])
        if found is not None:
            return found
        if done[0] in NAMING_COMMANDS:
            return [*self._session_names(), *(self._magics.sessions.left_ids() if done[0] == "use" else [])]
        if done[0] == "auto":
            return ["on", "off"]
        if done[0] == "push":
            return (name for name in self._magics._shell.user_ns if not name.startswith("_"))
        if done[0] in ("put", "export"):
            return [path + "/" * os.path.isdir(path) for path in glob.glob(glob.escape(last) + "*")]
        return []

    def _ai(self, words: list[str]) -> Iterable[str]:
        from .ai import ai_parser
        from .ai_commands import COMMANDS

        found = self._option(ai_parser(words[0]), words)
        if found is not None:
            return found
        return COMMANDS if len(words) == 2 and words[0] == "%ai" else []

    def _session_names(self) -> list[str]:
        return self._magics.sessions.names()

    def _remote(self, context: CompletionContext) -> SimpleMatcherResult:
        line, cursor = context.line_with_cursor, context.cursor_position
        names = self._ask(self._session_name(context), line, cursor)
        fragment = _beginning(line[:cursor], names)
        # IPython asks others, who know local names only, where there is no match at all: so the text matches itself.
        return _result(names or [context.token], fragment if names else context.token, "remote")

    def _session_name(self, context: CompletionContext) -> str:
        head = context.full_text.lstrip().partition("\n")[0]
        if head.startswith("%%sandbox"):
            with contextlib.suppress(UsageError):
                if name := sandbox_parser().parse_args(split(head)[1:]).session:
                    return str(name)
        return self._magics.sessions.current

    def _ask(self, name: str, line: str, cursor: int) -> list[str]:
        """What the kernel of a session answers; nothing if it is busy, slow or not there."""
        from ..background import BACKGROUND

        sessions = self._magics.sessions
        if not self._magics.complete_remote or name not in sessions:
            return []
        session = sessions[name].session
        if session.handle is None or session.busy:
            return []
        future = BACKGROUND.submit(_names(session, line, cursor))
        # Whatever fails, completion is only a convenience. A late answer is not cancelled: that would interrupt the
        # kernel, after which some providers have to pause, and so be late for ever.
        with contextlib.suppress(Exception):
            return [name for name in future.result(BUDGET) if name.isprintable()]
        return []


async def _names(session: Session, line: str, cursor: int) -> list[str]:
    """The kernel's answer: by a message of its own where the provider has one, else by code that leaves no trace."""
    from ..sandbox.helper import ask

    if (complete := getattr(session.provider, "complete", None)) is not None:
        answer = await complete(session.handle, line, cursor)
    else:
        answer = await ask(session, do="complete", timeout=LATEST, line=line, cursor=cursor)
    names = answer[:MOST_NAMES] if isinstance(answer, list) else []
    return [name for name in names if isinstance(name, str) and len(name) <= LONGEST_NAME]


def _beginning(before: str, names: list[str]) -> str:
    """How much of the text before the cursor begins a name: kernels answer `os.path`, `.path` or `path`."""
    starts = (before[at:] for at in range(max(0, len(before) - 200), len(before)))
    return next((start for start in starts if any(name.startswith(start) for name in names)), "")


def _result(names: Iterable[str], fragment: str, kind: str = "option") -> SimpleMatcherResult:
    completions = [
        SimpleCompletion(name, type=kind) for name in names if name.startswith(fragment) and name.isprintable()
    ]
    return {"completions": completions, "matched_fragment": fragment, "suppress": True}
