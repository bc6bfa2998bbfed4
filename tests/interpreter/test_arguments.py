"""The code inside a call's arguments: whole, and piece by piece."""

from __future__ import annotations

import itertools
import json

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ipy_sandbox.interpreter.arguments import CodeDecoder, ObjectEnd, SurrogateJoiner, parse_code, replayable


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        ('{"code": "print(1)"}', "print(1)"),
        (' {"lang": {"code": "no"}, "code": "yes"} ', "yes"),
        ('"{\\"code\\": \\"a\\\\nb\\"}"', "a\nb"),
        ('{"code": "raw\nnewline"}', "raw\nnewline"),
        ('{"code": "first", "code": "second"}', "first"),
        ('{"code": ""}', ""),
        ('{"code": "half \\ud83d"}', "half \ufffd"),
        ("", None),
        ("null", None),
        ("{}", None),
        ('{"code": 5}', None),
        ('{"code": null}', None),
        ('["print(1)"]', None),
        ('{"code": "pri', None),
        ("{" * 100_000, None),
        ("[" * 100_000, None),
        ("print(1)", None),
        ('"print(1)"', None),
    ],
)
def test_only_an_object_with_a_string_under_code_gives_code(arguments: str, code: str | None) -> None:
    assert parse_code(arguments) == code


@pytest.mark.parametrize("source", ["print(1)", "import math\nprint(1)", "  x = 1\n  y = 2", "lambda: {1: 2}"])
def test_bare_source_is_code_only_on_request(source: str) -> None:
    assert parse_code(source) is None
    assert parse_code(source, bare=True) == source
    assert parse_code(json.dumps(source), bare=True) == source


def test_bare_does_not_make_code_of_broken_json() -> None:
    assert [parse_code(text, bare=True) for text in ('{"code": "pri', '["print(1)"]', "", "null")] == [None] * 4


def stream(arguments: str, places: list[int], *, bare: bool = False) -> str:
    bounds = sorted({0, len(arguments), *(place % (len(arguments) + 1) for place in places)})
    decoder = CodeDecoder(bare=bare)
    return "".join(decoder.feed(arguments[a:b]) for a, b in itertools.pairwise(bounds))


keys = st.text() | st.sampled_from(["code", "codes", "}", '"', "\\"])
values = st.recursive(
    st.none() | st.booleans() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(keys, inner, max_size=3),
    max_leaves=6,
)
source = st.text() | st.text(alphabet='\\"/nu{}[]:, \n\t\ud83d\ude00😀é\x00')


@given(
    st.dictionaries(keys, values, max_size=3), source, st.dictionaries(keys, values, max_size=3),
    st.booleans(), st.sampled_from([None, 1]), st.integers(0, 2), st.lists(st.integers(0, 2000)),
)  # fmt: skip
@example({}, "😀", {}, True, None, 0, list(range(60)))
@example({}, "\ud83d\ud83d\ude00\\", {"code": "late"}, True, None, 2, list(range(200)))
def test_the_pieces_of_code_are_what_the_whole_says(
    before: dict[str, object], code: str, after: dict[str, object],
    ascii_only: bool, indent: int | None, times: int, places: list[int],
) -> None:  # fmt: skip
    before.pop("code", None)
    arguments = json.dumps({**before, "code": code, **{k: v for k, v in after.items() if k != "code"}},
                           ensure_ascii=ascii_only, indent=indent)  # fmt: skip
    for _ in range(times):
        arguments = json.dumps(arguments)
    whole = parse_code(arguments)
    assert whole is not None
    assert stream(arguments, places) == whole
    if not any("\ud800" <= char <= "\udfff" for char in code):
        assert whole == code


@given(source, st.lists(st.integers(0, 2000)), st.booleans())
def test_any_text_streams_as_it_parses(arguments: str, places: list[int], bare: bool) -> None:
    whole = parse_code(arguments, bare=bare)
    pieces = stream(arguments, places, bare=bare)
    if whole is not None:
        assert pieces == whole
    pieces.encode()


def test_each_fragment_gives_its_code_at_once() -> None:
    decoder = CodeDecoder()
    fragments = ['{"co', 'de": "pr', "int(", "\\", "n\\ud83d", "\\ude00", ')"', "}"]
    assert [decoder.feed(f) for f in fragments] == ["", "pr", "int(", "", "\n", "😀", ")", ""]


@pytest.mark.parametrize(
    "arguments", [r'{"code": "a\qb"}', r'{"code": "a\u12xyb"}', '{"code": "a"', '{code: "a"}', "{,,}"]
)
def test_what_is_no_json_neither_parses_nor_breaks_the_stream(arguments: str) -> None:
    assert parse_code(arguments, bare=True) is None
    for length in (1, 3, 100):
        decoder = CodeDecoder(bare=True)
        pieces = [decoder.feed(arguments[i : i + length]) for i in range(0, len(arguments), length)]
        assert "".join(pieces) in arguments


def test_joined_surrogates_are_one_character() -> None:
    joiner = SurrogateJoiner()
    assert [joiner.feed(t) for t in ("a", "\ud83d", "\ude00b", "\ud83d", "c", "\ude00")] == [
        "a", "", "😀b", "", "\ufffdc", "\ufffd",
    ]  # fmt: skip


@given(st.dictionaries(keys, values, max_size=4), st.text(), st.lists(st.integers(0, 500)))
def test_the_end_of_an_object_is_found_wherever_it_is_cut(
    value: dict[str, object], garbage: str, places: list[int]
) -> None:
    text = json.dumps(value)
    whole = text + garbage
    bounds = sorted({0, len(whole), *(place % (len(whole) + 1) for place in places)})
    end = ObjectEnd()
    for a, b in itertools.pairwise(bounds):
        if (at := end.feed(whole[a:b])) is not None:
            assert a + at == len(text)
            return
    raise AssertionError("the end was not found")


def test_a_history_holds_only_json_objects() -> None:
    assert replayable('{"code": "x"}') == '{"code": "x"}'
    assert replayable('"{\\"code\\": \\"x\\"}"') == '{"code": "x"}'
    assert replayable("print(1)") == '{"code": "print(1)"}'
    assert [replayable(bad) for bad in ("", '{"code": "pri', "[1]")] == ["{}"] * 3
