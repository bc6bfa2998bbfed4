"""What model and client see of an execution: pure functions."""

from __future__ import annotations

import pytest
from servers.asking import PNG, TRACEBACK

from ipy_sandbox.interpreter import render
from ipy_sandbox.interpreter.citations import file_citations, links
from ipy_sandbox.interpreter.render import Rendering
from ipy_sandbox.models import Display, End, Event, ExecutionError, ResultBuilder, Stderr, Stdout


def result_of(*events: Event):  # type: ignore[no-untyped-def]
    builder = ResultBuilder()
    for event in events:
        builder.add(event)
    return builder.result


def model_sees(*events: Event, limit: int = 1000, sees: bool = True) -> str:
    return Rendering(result_of(*events)).for_model(limit, sees=sees)


@pytest.mark.parametrize(
    ("events", "seen"),
    [
        ([], "[no output]"),
        ([Stdout("a\n"), Stdout("b\n")], "a\nb"),
        ([Stdout("out"), Stderr("err")], "out\n[stderr]\nerr"),
        ([Stdout("out\n"), Display({"text/plain": "42", "text/html": "<b>42</b>"}, is_result=True)], "out\n42"),
        ([Display({"text/markdown": "# x"})], "# x"),
        ([Display({"text/latex": "$x$"})], "$x$"),
        ([Display({"application/json": {"a": "ü"}})], '{"a": "ü"}'),
        ([Display({"application/vnd.x+json": {}})], "[output of type application/vnd.x+json]"),
        ([Display({"image/svg+xml": "<svg/>"})], "[output of type image/svg+xml]"),
        ([Stdout("x"), End("10 MiB of output were left out")], "x\n[10 MiB of output were left out]"),
        ([ExecutionError("ValueError", "", "")], "ValueError"),
        ([ExecutionError("ValueError", "bad\nvalue", "")], "ValueError: bad\nvalue"),
        ([Stdout("\x1b[31mred\x1b[0m \x1b]8;;http://x\x07link\x1b]8;;\x07")], "red link"),
        ([Stdout("a\x00b\x07c\x9b31md\ud800e\b")], "abcd\ufffde"),
        ([Stdout(" 10%\r 50%\r100%\ndone\r\n")], "100%\ndone"),
    ],
)
def test_the_model_reads_plain_text(events: list[Event], seen: str) -> None:
    assert model_sees(*events) == seen


def test_a_traceback_has_no_colours_and_names_its_error_once() -> None:
    seen = model_sees(ExecutionError("ZeroDivisionError", "division by zero", TRACEBACK))
    assert "\x1b" not in seen
    assert seen.count("division by zero") == 1


def test_a_long_traceback_keeps_its_ends() -> None:
    trace = "\n".join(f"frame {i}" for i in range(5000))
    seen = model_sees(ExecutionError("RecursionError", "too deep", trace), limit=100_000)
    assert len(seen) < render.TRACEBACK_LIMIT + 100
    assert seen.startswith("frame 0\n")
    assert seen.endswith("RecursionError: too deep")


@pytest.mark.parametrize("limit", [1, 2, 9, 10, 11])
def test_shortening_says_how_much_is_missing(limit: int) -> None:
    text = "0123456789"
    short = render.shorten(text, limit)
    if limit >= 10:
        assert short == text
    else:
        assert f"[... {10 - limit} characters left out ...]" in short
        assert short.startswith("0")


def test_only_so_much_of_a_flood_is_cleaned_and_the_count_is_still_right() -> None:
    flood = "\x1b[31ma\x1b[0m\n" * 1_000_000
    rendering = Rendering(result_of(Stdout("first\n" + flood), Stderr(flood), Stdout("last")))
    seen = rendering.for_model(1000, sees=True)
    (logs,) = rendering.outputs(2000)
    assert seen.startswith("first\n")
    assert "\x1b" not in seen
    assert len(seen) < 1100
    left_out = int(logs["logs"].split("[... ")[1].split()[0])
    assert 2 * len(flood) - render.LONGEST_TEXT < left_out < 2 * len(flood)


def test_a_picture_is_described_only_to_a_model_that_does_not_see() -> None:
    plot = Display({"image/png": f"{PNG[:20]}\n{PNG[20:]}", "text/plain": "<Figure>"})
    assert model_sees(plot) == "[the image is attached]"
    assert model_sees(plot, sees=False) == "[image <Figure>, image/png, 0 KB]"
    (image,) = Rendering(result_of(plot)).images
    assert image.url == f"data:image/png;base64,{PNG}"


def test_more_pictures_than_a_model_takes_are_described() -> None:
    plots = [Display({"image/png": PNG, "text/plain": f"plot {i}"}) for i in range(render.MOST_IMAGES + 2)]
    assert model_sees(*plots) == "[image plot 8, image/png, 0 KB]\n[image plot 9, image/png, 0 KB]"
    assert len(Rendering(result_of(*plots)).outputs(1000)) == render.MOST_IMAGES + 2


def test_what_is_no_base64_is_no_picture() -> None:
    assert Rendering(result_of(Display({"image/png": "not base64!"}))).images == []


@pytest.mark.parametrize(
    ("events", "note", "expected"),
    [
        ([], None, []),
        ([Stdout("a\n")], None, [{"type": "logs", "logs": "a\n"}]),
        ([Stdout("a\n")], "[note]", [{"type": "logs", "logs": "a\n[note]"}]),
        ([], "[note]", [{"type": "logs", "logs": "[note]"}]),
        ([Display({"text/plain": "42"})], None, [{"type": "logs", "logs": "42"}]),
        ([Stdout("a\n"), Display({"text/plain": "42"})], None, [{"type": "logs", "logs": "a\n42"}]),
        ([Display({"image/png": PNG})], None, [{"type": "image", "url": f"data:image/png;base64,{PNG}"}]),
    ],
)
def test_the_client_gets_logs_and_images(events: list[Event], note: str | None, expected: list[object]) -> None:
    assert Rendering(result_of(*events), note).outputs(1000) == expected


def test_without_a_result_there_is_the_note() -> None:
    assert Rendering(note="[gone]").outputs(1000) == [{"type": "logs", "logs": "[gone]"}]
    assert Rendering(note="[gone]").for_model(1000, sees=True) == "[gone]"


@pytest.mark.parametrize(
    ("text", "paths"),
    [
        ("[a](sandbox:/mnt/data/a.csv)", ["/mnt/data/a.csv"]),
        (
            "[a](sandbox:/mnt/data/my%20file.csv) ![b](sandbox:/mnt/data/b.png)",
            ["/mnt/data/my file.csv", "/mnt/data/b.png"],
        ),
        ("sandbox:/mnt/data/bare.csv and (sandbox:/etc/passwd)", []),
    ],
)
def test_links_to_files(text: str, paths: list[str]) -> None:
    assert [path for _, _, path in links(text)] == paths


def test_a_citation_spans_the_bare_url() -> None:
    text = "Größe: [a](sandbox:/mnt/data/a.csv), [b](sandbox:/mnt/data/b.csv)"
    (citation,) = file_citations(text, "cntr_1", {"/mnt/data/b.csv": "cfile_1"})
    assert text[citation["start_index"] : citation["end_index"]] == "sandbox:/mnt/data/b.csv"
    assert list(citation) == ["type", "container_id", "start_index", "end_index", "file_id", "filename"]
