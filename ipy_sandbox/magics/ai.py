"""`%%ai` and `%ai`: ask a model, watch it compute in the sandbox of the session."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

from IPython.core.error import UsageError
from IPython.core.magic import Magics, line_cell_magic, magics_class, no_var_expand

from .arguments import MagicParser, split, split_options, variable_name, variable_names
from .problems import shows_errors
from .settings import AISettings, config_from_environment

if TYPE_CHECKING:
    from IPython.core.interactiveshell import InteractiveShell

    from .ai_ask import Asker
    from .sandbox import SandboxMagics

EXAMPLES = """
examples:
  %%ai                             ask what stands on the lines below
  %%ai ollama/qwen3 -s gpu         ... that model, its code runs in session "gpu"
  %ai how many primes are there below 1000?
  %ai fix                          explain and repair the last error
commands of %ai:
  reset, history, usage, models, model NAME, fix, insert, export FILE.ipynb
"""


def ai_parser(prog: str = "%%ai") -> MagicParser:
    """The options of `%%ai` and `%ai`."""
    parser = MagicParser(
        prog, description="Ask a model; it may run Python in the sandbox.", epilog=EXAMPLES, usage="%(prog)s [options]"
    )
    add = parser.add_argument
    if prog == "%%ai":
        add("model", nargs="?", help="the model: provider/name, or a name of OpenAI's or of OPENAI_BASE_URL")
    else:
        add("-m", "--model", metavar="NAME", help="the model: provider/name")
    add("-s", "--session", metavar="NAME", help="the session whose sandbox the code runs in (default: the current)")
    add("--api", choices=["responses", "chat"], help="the API to speak to the model (default: what its server has)")
    add("--max-turns", type=int, metavar="N", help="calls of the model that one question may take")
    add("--new", action="store_true", help="forget the conversation first")
    add("--result", type=variable_name, metavar="NAME", help="keep the answer in a variable")
    add("--no-code", action="store_true", help="let the model run no code")
    add("-i", "--input", type=variable_names, metavar="A,B", help="variables to set in the sandbox before")
    return parser


@magics_class
class AIMagics(Magics, AISettings):
    """Ask a model in a cell. See `%%ai --help`."""

    def __init__(self, shell: InteractiveShell, sandbox: SandboxMagics) -> None:
        config = config_from_environment("AIMagics", AISettings)
        config.merge(shell.config)
        super().__init__(shell=shell, config=config)
        self._shell = shell
        self._sandbox = sandbox

    @functools.cached_property
    def asker(self) -> Asker:
        """Asks, and keeps the conversations."""
        from .ai_ask import Asker

        return Asker(self._shell, self, self._sandbox)

    @no_var_expand
    @line_cell_magic
    @shows_errors
    def ai(self, line: str, cell: str | None = None) -> Any:
        """Ask a model: `%%ai [model] [options]` above the question, or `%ai [options] question`.

        The model may run Python in the sandbox of the session, where `%%sandbox` runs too. `{x}`, `{In[3]}`, `{Out[3]}`
        and `{Err[3]}` in the question become what they name; nothing else of the notebook is sent. `%ai --help` lists
        the options and the commands.
        """
        parser = ai_parser("%ai" if cell is None else "%%ai")
        words, prompt = split_options(parser, line) if cell is None else (split(line), cell)
        args = parser.parse_args(words)
        if args.help:
            print(parser.format_help())
            return None
        if cell is None:
            from .ai_commands import find_command

            if command := find_command(self.asker, prompt, args):
                return command()
        if not prompt.strip():
            raise UsageError(
                "There is no question: write `%ai question`, or `%%ai` with the question on the lines below it."
            )
        from .ai_prompt import interpolate

        self.asker.ask(interpolate(prompt.strip(), self._shell.user_ns), args)
        return None
