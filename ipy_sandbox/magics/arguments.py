"""Arguments of magics: shell-like words parsed by argparse, errors shown as IPython shows usage errors.

IPython's own `parse_argstring` keeps quotes, breaks `--name="a b"` and takes comments for arguments.
"""

from __future__ import annotations

import argparse
import io
import keyword
import shlex
from collections.abc import Iterator
from typing import Any, NoReturn

from IPython.core.error import UsageError


class MagicParser(argparse.ArgumentParser):
    """An ArgumentParser for a magic: it raises UsageError, and `--help` is an ordinary option named `help`."""

    def __init__(self, prog: str, **options: Any) -> None:
        options.setdefault("formatter_class", argparse.RawDescriptionHelpFormatter)
        super().__init__(prog=prog, add_help=False, allow_abbrev=False, **options)
        self.add_argument("--help", action="store_true", help="show this help")

    def error(self, message: str) -> NoReturn:
        """Raise UsageError: argparse's own way would end the kernel."""
        raise UsageError(f"{self.prog}: {message} (see `{self.prog} --help`)")

    def takes_value(self, word: str) -> bool:
        """Whether the option `word` takes the next word as its value; raises UsageError for an unknown option."""
        action = self._option_string_actions.get(word.partition("=")[0])
        if action is None:
            self.error(f"unknown option {word}")
        return action.nargs is None and "=" not in word

    def commands(self) -> dict[str, MagicParser]:
        """The parsers of all subcommands."""
        groups = [action for action in self._actions if isinstance(action, argparse._SubParsersAction)]
        return {name: parser for group in groups for name, parser in group.choices.items()}

    def option_strings(self) -> list[str]:
        """All options, sorted."""
        return sorted(self._option_string_actions)


def variable_name(text: str) -> str:
    """An argument that names a variable."""
    if not text.isidentifier() or keyword.iskeyword(text):
        raise argparse.ArgumentTypeError(f"{text!r} cannot be the name of a variable")
    return text


def variable_names(text: str) -> list[str]:
    """An argument that names variables, separated by commas."""
    return [variable_name(name.strip()) for name in text.split(",") if name.strip()]


def split(line: str) -> list[str]:
    """The words of a magic's line; quotes group, a backslash is an ordinary character, a `#` word ends the line."""
    return [word for word, _ in _words(line)]


def split_options(parser: MagicParser, line: str) -> tuple[list[str], str]:
    """The leading options of `line` and the rest, untouched; `--` ends the options."""
    options: list[str] = []
    end = 0
    value_next = False
    for word, at in _words(line, comments=False):
        if word == "--" and not value_next:
            return options, line[at:].lstrip()
        if not value_next and not _is_option(word):
            break
        options.append(word)
        value_next = not value_next and parser.takes_value(word)
        end = at
    return options, line[end:].lstrip()


def _is_option(word: str) -> bool:
    return word.startswith("-") and not word[1:2].isdigit() and word != "-"


def _words(line: str, comments: bool = True) -> Iterator[tuple[str, int]]:
    """Each word with the position behind it; lazily, since what follows the options is not for us to read."""
    stream = io.StringIO(line)
    lexer = shlex.shlex(stream, posix=True)
    lexer.whitespace_split = True
    lexer.escape = ""  # so that C:\x and \alpha stay as they are, on every system
    lexer.commenters = ""
    while True:
        start = stream.tell()
        if comments and line[start:].lstrip().startswith("#"):
            return
        try:
            word = lexer.get_token()
        except ValueError:
            raise UsageError(f"A quote is not closed: {line[start:].strip()}") from None
        if word is None:
            return
        yield word, stream.tell()
