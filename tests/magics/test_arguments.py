"""Reading the line of a magic."""

from __future__ import annotations

import pytest
from IPython.core.error import UsageError

from ipy_sandbox.magics.arguments import MagicParser, split, split_options


@pytest.fixture
def parser() -> MagicParser:
    parser = MagicParser("%demo")
    parser.add_argument("-s", "--session")
    parser.add_argument("--keep", action="store_true")
    return parser


@pytest.mark.parametrize(
    ("line", "session"),
    [
        ('--session "a b"', "a b"),
        ('--session="a b"', "a b"),
        ("-s 'a b'", "a b"),
        (r"-s C:\x", r"C:\x"),
        (r'-s "C:\x y"', r"C:\x y"),
        ("-s a  # the note's quote is no quote", "a"),
        ('-s "#1"', "#1"),
    ],
)
def test_every_quoting_gives_the_same(parser: MagicParser, line: str, session: str) -> None:
    assert parser.parse_args(split(line)).session == session


@pytest.mark.parametrize(
    ("line", "options", "code"),
    [
        ("1 + 1", [], "1 + 1"),
        ("-s a  print( 'it''s' )  # x", ["-s", "a"], "print( 'it''s' )  # x"),
        ("--keep --session='a b' x = \"it's", ["--keep", "--session=a b"], "x = \"it's"),
        ("-1 + 2", [], "-1 + 2"),
        ("-- -x", [], "-x"),
        ("-s -- -- y", ["-s", "--"], "y"),
        ("x --keep", [], "x --keep"),
        (r"'\alpha'", [], r"'\alpha'"),
        ("", [], ""),
    ],
)
def test_the_code_after_the_options_is_untouched(parser: MagicParser, line: str, options: list[str], code: str) -> None:
    assert split_options(parser, line) == (options, code)


@pytest.mark.parametrize("line", ["--nope", "--keep=3", "-s", "stray", "-s 'open"])
def test_mistakes_are_usage_errors(parser: MagicParser, line: str) -> None:
    with pytest.raises(UsageError, match=r"%demo|quote"):
        parser.parse_args(split(line))


def test_an_unknown_option_before_code_is_named(parser: MagicParser) -> None:
    with pytest.raises(UsageError, match="unknown option -x"):
        split_options(parser, "-x + 1")


def test_help_prints_with_percent_signs(parser: MagicParser) -> None:
    assert parser.format_help().startswith("usage: %demo")
