"""`ipy-sandbox COMMAND ...`: one function for each command, which imports what it needs."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from ._version import __version__
from .errors import SandboxError


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command and return its exit status; a known error is one line on stderr and status 2."""
    arguments = _parser().parse_args(argv)
    try:
        status: int = arguments.run(arguments)
        return status
    except SandboxError as error:
        print(f"ipy-sandbox: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="ipy-sandbox", description="Code in a sandbox instead of on your machine.")
    parser.add_argument("--version", action="version", version=__version__)
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    _add_demo(commands)
    _add_install(commands)
    _add_proxy(commands)
    return parser


def _add_demo(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    demo = commands.add_parser(
        "demo",
        help="run the quickstart notebook in the embedded sandbox",
        description="Run the quickstart notebook and write it with its outputs, as a notebook and as a page.",
    )
    demo.add_argument("--output", metavar="DIR", default=".", help="where to write them (default: here)")
    demo.set_defaults(run=run_demo)


def run_demo(arguments: argparse.Namespace) -> int:
    """`ipy-sandbox demo`."""
    from .demo import run_demo

    notebook, page = run_demo(Path(arguments.output))
    print(f"The quickstart ran. Look at {page} in a browser, or open the notebook: jupyter lab {notebook}")
    return 0


def _add_install(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    install = commands.add_parser(
        "install",
        help='install the kernel "Python (sandbox)" for Jupyter',
        description="Install the kernel that sends every cell to the sandbox. This environment has it already.",
    )
    install.set_defaults(run=run_install)
    uninstall = commands.add_parser("uninstall", help='remove the kernel "Python (sandbox)"')
    uninstall.set_defaults(run=run_uninstall)
    for command in (install, uninstall):
        where = command.add_mutually_exclusive_group()
        where.add_argument("--user", action="store_true", help="for you (default: for the whole system)")
        where.add_argument(
            "--sys-prefix", action="store_const", const=sys.prefix, dest="prefix", help="in this environment"
        )
        where.add_argument("--prefix", metavar="DIR", help="below this directory")


def run_install(arguments: argparse.Namespace) -> int:
    """`ipy-sandbox install`."""
    from .kernelspec import install

    print(f"Installed in {install(user=arguments.user, prefix=arguments.prefix)}.")
    return 0


def run_uninstall(arguments: argparse.Namespace) -> int:
    """`ipy-sandbox uninstall`."""
    from .kernelspec import uninstall

    print(f"Removed {uninstall(user=arguments.user, prefix=arguments.prefix)}.")
    return 0


def _add_proxy(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    proxy = commands.add_parser(
        "proxy",
        help="serve OpenAI's API with a code interpreter on your own sandboxes",
        description="Serve OpenAI's Responses and Chat Completions API; code_interpreter runs in your own sandboxes.",
    )
    proxy.add_argument("--config", metavar="FILE", help="YAML, with LiteLLM's keys; without it the environment decides")
    proxy.add_argument("--host", default="127.0.0.1", help="address to listen on (default: %(default)s)")
    proxy.add_argument("--port", type=int, default=4000, help="port to listen on; 0: any (default: %(default)s)")
    proxy.add_argument("--workers", type=int, default=1, help="processes; more than one needs Redis (default: 1)")
    proxy.add_argument("--log-format", choices=["text", "json"], default="text", help="form of the log lines")
    proxy.add_argument("--log-level", choices=["debug", "info", "warning", "error"], default="info")
    proxy.add_argument("--fd", type=int, help=argparse.SUPPRESS)
    proxy.set_defaults(run=run_proxy)


def run_proxy(arguments: argparse.Namespace) -> int:
    """`ipy-sandbox proxy`."""
    try:
        from .proxy.server import ServerOptions, serve
    except ModuleNotFoundError as error:
        print(f"ipy-sandbox: {error.name} is missing: pip install 'ipy-sandbox[proxy]'", file=sys.stderr)
        return 2
    options = vars(arguments)
    return serve(ServerOptions(**{name: options[name] for name in ServerOptions.__dataclass_fields__}))


if __name__ == "__main__":
    sys.exit(main())
