"""`%sandbox_session`: its commands."""

from __future__ import annotations

import argparse
import functools
import itertools
import posixpath
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import ConfigurationError
from ..safe_output import safe_text
from .arguments import MagicParser, split, variable_names
from .bridge import wait
from .frontend import count, show_line
from .sessions import NotebookSession, Sessions
from .table import Table, session_table

if TYPE_CHECKING:
    from .sandbox import SandboxMagics

PROG = "%sandbox_session"


@functools.cache
def session_parser() -> MagicParser:
    """All commands of `%sandbox_session` with their options."""
    parser = MagicParser(PROG, description="Without a command: a table of the sessions, * marks the current one.")
    commands = parser.add_subparsers(dest="command", metavar="command", prog=PROG, parser_class=MagicParser)

    start = commands.add_parser("start", help="make a session and its sandbox, and use it")
    start.add_argument("name", nargs="?", help="its name (default: a free one)")
    start.add_argument("-p", "--provider", metavar="NAME", help="local, e2b or opensandbox")
    start.add_argument("--template", metavar="NAME", help="e2b template or OpenSandbox image")
    start.add_argument("--timeout", type=float, metavar="SECONDS", help="its lifetime since the last use")
    start.add_argument("--internet", action=argparse.BooleanOptionalAction, default=None, help="allow internet access")
    start.add_argument("--env", action="append", default=[], metavar="NAME=VALUE", help="environment of the code")
    start.add_argument("--ro-bind", action="append", metavar="PATH", help="a host path that the local sandbox may read")
    start.add_argument("--unsafe", action="store_true", help="local: run WITHOUT isolation")
    start.add_argument("--trust", action="store_true", help="show its output as it comes, scripts included")
    start.add_argument("--keep", action="store_true", help="do not delete its sandbox when the kernel ends")

    use = commands.add_parser("use", help="make a session the current one")
    use.add_argument("name", nargs="?", help="a session, or a sandbox that an earlier kernel left (default: list them)")
    attach = commands.add_parser("attach", help="make a session of a sandbox that exists, and use it")
    attach.add_argument("id", help="the id of the sandbox")
    attach.add_argument("-p", "--provider", metavar="NAME", help="local, e2b or opensandbox")
    attach.add_argument("-n", "--name", metavar="NAME", help="name of the session (default: the id)")
    for command, what in {
        "info": "what is known of a session",
        "restart": "give a session a fresh kernel: variables are gone, files stay",
        "interrupt": "stop the code that runs in a session, started from any cell",
    }.items():
        _add_name(commands.add_parser(command, help=what))
    renew = commands.add_parser("renew", help="let the sandbox live longer")
    renew.add_argument("seconds", type=float, nargs="?", help="its lifetime from now and after each use")
    _add_session(renew)
    stop = commands.add_parser("stop", help="end a session and delete its sandbox")
    _add_name(stop)
    stop.add_argument("--all", action="store_true", help="end all sessions")
    _add_transfer(commands)
    auto = commands.add_parser("auto", help="send all cells to the sandbox, but those that begin with %%%%local")
    auto.add_argument("switch", nargs="?", choices=["on", "off"], help="on or off (default: say which)")
    return parser


def _add_transfer(commands: argparse._SubParsersAction[MagicParser]) -> None:
    put = commands.add_parser(
        "put", help="copy files into the sandbox", usage=f"%{PROG} put [-s NAME] LOCAL... [REMOTE]"
    )
    put.add_argument(
        "paths", nargs="+", metavar="LOCAL... [REMOTE]", help="as with cp: the last of several is where to"
    )
    get = commands.add_parser(
        "get", help="copy files of the sandbox here", usage=f"%{PROG} get [-f] [-s NAME] REMOTE... [LOCAL]"
    )
    get.add_argument("-f", "--force", action="store_true", help="let files that a pattern names replace local ones")
    get.add_argument(
        "paths", nargs="+", metavar="REMOTE... [LOCAL]", help="as with cp: the last of several is where to"
    )
    ls = commands.add_parser("ls", help="list files of the sandbox")
    ls.add_argument("path", nargs="?", default=".", help="a directory (default: the working directory)")
    ls.add_argument("-a", "--all", action="store_true", help="also names that begin with a dot")
    export = commands.add_parser("export", help="write what ran in a session, with outputs, as a notebook")
    export.add_argument("file", metavar="FILE.ipynb", help="the notebook")
    push = commands.add_parser("push", help="set variables in the sandbox")
    pull = commands.add_parser("pull", help="get variables of the sandbox")
    for command in (push, pull):
        command.add_argument("names", nargs="+", type=variable_names, metavar="NAME", help="variables")
    for command in (put, get, ls, export, push, pull):
        _add_session(command)


def _add_name(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", nargs="?", help="the session (default: the current one)")


def _add_session(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("-s", "--session", dest="name", metavar="NAME", help="the session (default: the current one)")


class SessionCommands:
    """Runs one line of `%sandbox_session`.

    Arguments:
        magics: whose sessions they are.
    """

    def __init__(self, magics: SandboxMagics) -> None:
        self._magics = magics
        self._shell = magics._shell
        self._sessions: Sessions = magics.sessions

    def __call__(self, line: str) -> Any:
        """Run `line` and return what the magic returns."""
        parser, words = session_parser(), split(line)
        if "--help" in words:  # also where arguments that a command needs are not there yet
            print(parser.commands().get(words[0], parser).format_help())
            return None
        args = parser.parse_args(words)
        return getattr(self, f"_{args.command or 'table'}")(args)

    def _say(self, text: str) -> None:
        show_line(self._shell, text)

    def _named(self, name: str | None) -> NotebookSession:
        return self._sessions[name or self._sessions.current]

    def _table(self, args: argparse.Namespace) -> Table:
        return wait(session_table(self._sessions))

    def _start(self, args: argparse.Namespace) -> None:
        made = self._sessions.make(
            args.name or self._free_name(),
            args.provider,
            trusted=args.trust or None,
            keep=args.keep,
            template=args.template,
            timeout=args.timeout,
            allow_internet_access=args.internet,
            env_vars=_environment(args.env),
            ro_binds=args.ro_bind,
            unsafe=args.unsafe or None,
        )
        self._magics.runner.start(made)
        self._sessions.current = made.name

    def _free_name(self) -> str:
        return next(name for name in map("session{}".format, range(1, 1000)) if name not in self._sessions)

    def _use(self, args: argparse.Namespace) -> Table | None:
        left = {entry["id"]: entry for entry in self._sessions.left()}
        if args.name is None:
            rows = [[e["id"], e["provider"], str(e.get("session")), _when_left(e)] for e in left.values()]
            return Table(("sandbox", "provider", "session", "made"), rows, "Earlier kernels left no sandboxes.")
        if args.name in left and args.name not in self._sessions:
            args.id, args.provider, args.name = args.name, left[args.name]["provider"], None
            self._attach(args)
            return None
        by_id = {s.session.handle.id: s.name for s in self._sessions if s.session.handle}
        name = by_id.get(args.name, args.name)
        self._sessions.current = self._sessions[name].name
        self._say(f"Session {name} is the current one.")
        return None

    def _attach(self, args: argparse.Namespace) -> None:
        attached = wait(self._sessions.attach(args.id, args.provider, args.name or args.id))
        self._sessions.current = attached.name
        self._say(f"Session {attached.name}: sandbox {args.id} ({attached.provider}) is the current one.")

    def _info(self, args: argparse.Namespace) -> Table:
        target = self._named(args.name)
        info = wait(target.session.ainfo())
        rows = [["session", target.name], ["provider", target.provider]]
        known = info.model_dump(exclude={"provider"}) if info else {"state": "no sandbox: the next use makes one"}
        known |= target.session.options.model_dump(exclude_defaults=True, exclude={"env_vars"})
        rows += [[name, str(value)] for name, value in known.items() if value not in (None, {}, [])]
        return Table(("", ""), rows, "")

    def _restart(self, args: argparse.Namespace) -> None:
        target = self._named(args.name)
        wait(target.session.arestart())
        self._say(f"Session {target.name} has a fresh kernel: its variables are gone, its files are there.")

    def _interrupt(self, args: argparse.Namespace) -> None:
        wait(self._named(args.name).session.ainterrupt())

    def _renew(self, args: argparse.Namespace) -> None:
        target = self._named(args.name)
        wait(target.session.arenew(args.seconds))
        self._say(f"Session {target.name} lives {target.session.options.timeout:g} s from now and after each use.")

    def _put(self, args: argparse.Namespace) -> None:
        *sources, target = args.paths if len(args.paths) > 1 else [*args.paths, None]
        self._say_moved(self._magics.transfer.put(self._used(args.name), sources, target))

    def _get(self, args: argparse.Namespace) -> None:
        *sources, target = args.paths if len(args.paths) > 1 else [*args.paths, None]
        self._say_moved(self._magics.transfer.get(self._used(args.name), sources, target, force=args.force))

    def _say_moved(self, paths: list[str]) -> None:
        shown = ", ".join(paths[:5]) + (f" and {len(paths) - 5} more" if len(paths) > 5 else "")
        self._say(f"Copied {shown}.")

    def _used(self, name: str | None) -> NotebookSession:
        """The session to use, made if it is the current one and not there yet."""
        return self._sessions.get() if name is None else self._sessions[name]

    def _ls(self, args: argparse.Namespace) -> Table:
        target = self._used(args.name)
        self._magics.runner.start(target)
        files = wait(target.session.alist_files(args.path))
        rows = [
            [safe_text(file.path) + "/" * file.is_dir, "" if file.is_dir else f"{file.size:,}", _when(file.modified_at)]
            for file in files
            if args.all or not posixpath.basename(file.path).startswith(".")
        ]
        return Table(("path", "bytes", "modified"), rows, "There are no files.")

    def _export(self, args: argparse.Namespace) -> None:
        from .export import export_notebook

        target = self._named(args.name)
        written = export_notebook(target.record, Path(args.file).expanduser(), target.name)
        self._say(f"Wrote {count(written, 'cell')} of session {target.name} to {args.file}.")

    def _push(self, args: argparse.Namespace) -> None:
        self._magics.transfer.push(self._used(args.name), list(itertools.chain(*args.names)))

    def _pull(self, args: argparse.Namespace) -> None:
        self._magics.transfer.pull(self._used(args.name), list(itertools.chain(*args.names)))

    def _auto(self, args: argparse.Namespace) -> None:
        if args.switch:
            self._magics.auto = args.switch == "on"
        if self._magics.auto:
            self._say("All cells run in the sandbox; %%local at the top of a cell runs it here.")
        else:
            self._say("Cells run here; %%sandbox at the top of a cell runs it in the sandbox.")

    def _stop(self, args: argparse.Namespace) -> None:
        names = self._sessions.names() if args.all else [self._named(args.name).name]
        for name in names:
            deleted = wait(self._sessions.stop(name))
            self._say(f"Session {name} is over: {'its sandbox is deleted' if deleted else 'it had no sandbox'}.")
        if not names:
            self._say("There are no sessions.")


def _when_left(entry: dict[str, Any]) -> str:
    return _when(datetime.fromtimestamp(entry["at"]))


def _when(moment: datetime | None) -> str:
    return f"{moment:%Y-%m-%d %H:%M}" if moment else ""


def _environment(assignments: list[str]) -> dict[str, str] | None:
    for assignment in assignments:
        if "=" not in assignment:
            raise ConfigurationError(f"--env needs NAME=VALUE, not {assignment!r}.")
    return dict(assignment.split("=", 1) for assignment in assignments) or None
