"""`%%sandbox`, `%sandbox` and `%sandbox_session`, and the settings of them all."""

from __future__ import annotations

import argparse
import functools
from typing import TYPE_CHECKING, Any

from IPython.core.error import UsageError
from IPython.core.magic import (
    Magics,
    cell_magic,
    line_cell_magic,
    line_magic,
    magics_class,
    no_var_expand,
    output_can_be_silenced,
)

from .arguments import MagicParser, split, split_options, variable_name, variable_names
from .memory import ErrorMemory
from .problems import shows_errors
from .settings import Settings, config_from_environment
from .transforms import WholeNotebook

if TYPE_CHECKING:
    from IPython.core.interactiveshell import InteractiveShell

    from .output import RemoteValue
    from .run import CellOutcome, CellRunner
    from .sessions import NotebookSession, Sessions
    from .transfer import Transfer

EXAMPLES = """
examples:
  %%sandbox                        run the lines below in the current session
  %%sandbox -s gpu -p e2b          ... in the session "gpu" on e2b, made if there is none
  %%sandbox --timeout 10           ... for at most 10 seconds
  %%sandbox -i df -o result        ... with df from here, and result back
  %sandbox 1 + 1                   run one line
  total = %sandbox sum(range(9))   ... and keep what it shows
"""


@functools.cache
def sandbox_parser(prog: str = "%%sandbox") -> MagicParser:
    """The options of `%%sandbox` and `%sandbox`."""
    parser = MagicParser(
        prog, description="Run code in a sandbox and show its output here.", epilog=EXAMPLES, usage="%(prog)s [options]"
    )
    add = parser.add_argument
    add("-s", "--session", metavar="NAME", help="the session to run in, made if there is none (default: the current)")
    add("-p", "--provider", metavar="NAME", help="provider of a new session: local, e2b or opensandbox")
    add("--timeout", type=float, metavar="SECONDS", help="stop the code after so long")
    add(
        "--result",
        type=variable_name,
        metavar="NAME",
        help="keep the CodeExecutionResult in a variable, of a failed cell too; .save_images() writes its pictures",
    )
    add("-i", "--input", type=variable_names, metavar="A,B", help="variables to set in the sandbox before")
    add("-o", "--output", type=variable_names, metavar="A,B", help="variables to get from the sandbox afterwards")
    add("-q", "--quiet", action="store_true", help="show no output")
    add(
        "--bg",
        type=variable_name,
        metavar="NAME",
        help="run in the background: NAME becomes a handle with .done, .result() and .stop()",
    )
    add("--keep", action="store_true", help="do not delete the sandbox when the kernel ends")
    return parser


@magics_class
class SandboxMagics(Magics, Settings):
    """Run code in a sandbox. See `%%sandbox --help` and `%sandbox_session --help`."""

    def __init__(self, shell: InteractiveShell) -> None:
        config = config_from_environment()
        config.merge(shell.config)
        super().__init__(shell=shell, config=config)
        self._shell = shell
        self.errors = ErrorMemory()
        self.whole_notebook = WholeNotebook(self)

    @functools.cached_property
    def sessions(self) -> Sessions:
        """The sessions of this notebook."""
        from .sessions import Sessions

        return Sessions(self)

    @functools.cached_property
    def runner(self) -> CellRunner:
        """Runs cells."""
        from .run import CellRunner

        return CellRunner(self._shell, self, self.sessions)

    @functools.cached_property
    def transfer(self) -> Transfer:
        """Moves variables and files."""
        from .transfer import Transfer

        return Transfer(self._shell, self.runner, self)

    @no_var_expand
    @output_can_be_silenced
    @line_cell_magic
    @shows_errors
    def sandbox(self, line: str, cell: str | None = None) -> RemoteValue | None:
        """Run code in a sandbox: `%%sandbox [options]` above the code, or `%sandbox [options] code`.

        The code goes there as it is, its output comes here as it happens, the value of the last expression becomes
        `Out[n]`, an error is an error, and the stop button stops it. `%%sandbox --help` lists the options.
        """
        if cell is None:
            parser = sandbox_parser("%sandbox")
            words, code = split_options(parser, line)
        else:
            parser = sandbox_parser()
            words, code = split(line), cell
        args = parser.parse_args(words)
        if args.help:
            print(parser.format_help())
            return None
        if not code.strip():
            raise UsageError(
                "There is no code: write `%sandbox 1 + 1`, or `%%sandbox` with code on the lines below it "
                "(all options: `%sandbox --help`)."
            )
        if args.bg is not None:
            self._run_in_background(args, code)
            return None
        outcome = self._run(args, code)
        if outcome.problem is not None:
            raise outcome.problem
        return outcome.value

    def _target(self, args: argparse.Namespace) -> NotebookSession:
        target = self.sessions.get(args.session, args.provider)
        target.keep = target.keep or args.keep
        return target

    def _limit(self, args: argparse.Namespace) -> float | None:
        return self.timeout if args.timeout is None else args.timeout

    def _run_in_background(self, args: argparse.Namespace, code: str) -> None:
        from .jobs import Job

        if args.output or args.result:
            raise UsageError("--bg does not go with -o or --result: use its .result(), and %sandbox_session pull.")
        job = Job(self._shell, self.sessions, args.bg, self._target(args), code, self._limit(args))
        self._shell.push({args.bg: job})

    def _run(self, args: argparse.Namespace, code: str) -> CellOutcome:
        target = self._target(args)
        if args.input:
            self.transfer.push(target, args.input)
        outcome = self.runner.run(target, code, timeout=self._limit(args), quiet=args.quiet)
        if args.result:
            self._shell.push({args.result: outcome.result})
        if args.output and outcome.problem is None:
            self.transfer.pull(target, args.output)
        return outcome

    @no_var_expand
    @cell_magic
    def local(self, line: str, cell: str) -> None:
        """Run a cell here in whole-notebook mode: `%%local` in its first line.

        In notebooks the line is taken away before the cell runs, so that it is an ordinary cell; only calls such as
        `run_cell_magic` come here.
        """
        self._shell.run_cell(cell).raise_error()

    @no_var_expand
    @line_magic
    @shows_errors
    def sandbox_session(self, line: str) -> Any:
        """List, start, use and end sandbox sessions, and move files and variables: `%sandbox_session --help`."""
        from .session import SessionCommands

        return SessionCommands(self)(line)

    def after_cell(self, result: Any) -> None:
        """What follows each cell: its error is remembered, its footer shown."""
        self.errors.remember(result)
        self.whole_notebook.cell_is_over()
        if "runner" in self.__dict__:
            self.runner.show_footer()

    def close(self) -> None:
        """Delete the sandboxes and forget the sessions."""
        if "sessions" in self.__dict__:
            self.sessions.close()
            del self.sessions

    def at_exit(self) -> None:
        """Delete the sandboxes: the interpreter is leaving."""
        if "sessions" in self.__dict__:
            self.sessions.delete_at_exit()
