"""What of a sandbox's output may be shown: each row of the policy, and each attack."""

from __future__ import annotations

import base64
import json
import re
from html import unescape
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import hostile
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ipy_sandbox.models import CodeExecutionResult, Display, ExecutionError, ResultBuilder, Stdout
from ipy_sandbox.safe_output import OutputPolicy, TextFilter, safe_bundle, safe_html, safe_markdown, safe_text

PNG = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
SHOWN = {
    "text/plain", "text/html", "text/latex", "image/png", "image/jpeg", "image/gif", "image/webp", "application/json",
    "application/vnd.plotly.v1+json", "application/vnd.vegalite.v5+json",
}  # fmt: skip


def html_of(value: str, mime: str = "text/html") -> str:
    shown = safe_bundle({mime: value}).data["text/html"]
    assert isinstance(shown, str)
    return shown


class Elements(HTMLParser):
    """All start tags, as a browser sees them outside of frames."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))


INLINE_TAGS = {
    "a", "b", "br", "code", "details", "div", "em", "h1", "i", "img", "li", "p", "pre", "span", "strong", "style",
    "table", "tbody", "td", "th", "thead", "tr", "ul", "iframe",
}  # fmt: skip


@pytest.mark.parametrize("name", hostile.attacks())
def test_attack_leaves_nothing_that_acts(name: str) -> None:
    bundle = safe_bundle(hostile.attacks()[name])
    assert bundle.data.keys() <= SHOWN
    for tag, attributes in Elements(bundle.data.get("text/html", "")).found:
        assert tag in INLINE_TAGS
        assert not [a for a in attributes if a.startswith("on") or a in ("name", "action", "ping", "srcset")]
        if tag == "iframe":
            assert attributes["sandbox"] == "allow-scripts"
            assert "src" not in attributes
            assert "default-src 'none'" in unescape(str(attributes["srcdoc"]))
        assert re.match(r"https:|mailto:", str(attributes.get("href", "https:")))
        assert str(attributes.get("src", "data:image/")).startswith("data:image/")
        if "ipy-sandbox-frame" not in str(attributes.get("class")):
            assert "url" not in str(attributes.get("style"))
            assert "position" not in str(attributes.get("style"))
    if mime := next((m for m in bundle.data if m.endswith("json")), None):
        assert mime == "application/json"
    assert not re.search(r"\\(href|bbox|require|style)\b", bundle.data.get("text/latex", ""))
    assert "\x1b]" not in bundle.data["text/plain"]


# Each row of the table.


def test_plain_text_keeps_colours_and_loses_other_sequences() -> None:
    assert safe_bundle({"text/plain": "\x1b[31mred\x1b[0m\x1b]0;title\x07"}).data == {
        "text/plain": "\x1b[31mred\x1b[0m"
    }


def test_plain_text_is_made_up_if_missing() -> None:
    assert safe_bundle({"image/png": PNG}).data == {"image/png": PNG, "text/plain": "[image/png]"}


@pytest.mark.parametrize(
    ("data", "text"),
    [
        ({"text/html": "<h1>T</h1><table><tr><td>1</td><td>&lt;2</td></tr></table>"}, "T\n1\t<2"),
        ({"text/markdown": "# T"}, "# T"),
        ({"text/latex": "$x$"}, "$x$"),
        ({"text/html": "<script>1</script>"}, "[text/html]"),
    ],
)
def test_plain_text_that_only_names_a_class_says_more(data: dict[str, str], text: str) -> None:
    for plain in ({}, {"text/plain": "<IPython.core.display.HTML object>"}, {"text/plain": "<x.Y object at 0x7f00>"}):
        assert safe_bundle({**data, **plain}).data["text/plain"] == text
    assert safe_bundle({**data, "text/plain": "said"}).data["text/plain"] == "said"


def test_html_without_scripts_is_shown_inline() -> None:
    table = '<table border="1" class="dataframe"><tbody><tr><td>1</td></tr></tbody></table>'
    assert html_of(table) == table


def test_html_keeps_looks_but_not_position() -> None:
    assert html_of('<p style="color: red; position: fixed; background: url(x)">x</p>').count("style=") == 2
    assert 'style="color:red"' in html_of('<p style="color: red; position: fixed; background: url(x)">x</p>')
    assert 'class="dataframe"' in html_of('<table class="dataframe jp-Notebook lm-Widget"></table>')


def test_html_with_scripts_is_shown_in_a_frame() -> None:
    shown = html_of("<div id=a></div><script>a.textContent = 'x'</script>")
    [attributes] = [a for tag, a in Elements(shown).found if tag == "iframe"]
    assert "<script>" not in shown
    inner = unescape(unescape(str(attributes["srcdoc"])))
    assert "<div id=a></div><script>a.textContent = 'x'</script>" in inner


def test_hosts_are_opened_only_by_name() -> None:
    html = "<script src=https://cdn.example.org/x.js></script>"
    closed = unescape(unescape(safe_html(html)))
    opened = unescape(unescape(safe_html(html, hosts=["https://cdn.example.org", "*", "'self'; script-src *"])))
    assert "data: blob:;" in closed
    assert "blob: https://cdn.example.org;" in opened
    assert "'self'" not in opened


def test_pandas_styles_stay_inline() -> None:
    styled = (
        '<style type="text/css">\n#T_1a2b3_row0_col0 {\n  background-color: #fff5eb;\n  color: #000;\n}\n</style>\n'
        '<table id="T_1a2b3"><tbody><tr><td id="T_1a2b3_row0_col0" class="data row0 col0">1</td></tr></tbody></table>'
    )
    shown = html_of(styled)
    assert "#T_1a2b3_row0_col0 {background-color:#fff5eb;color:#000}" in shown
    assert 'id="T_1a2b3_row0_col0"' in shown
    assert "iframe" not in shown
    plain = "<style scoped>.dataframe tbody tr th {vertical-align: top;}</style><table class=dataframe></table>"
    assert html_of(plain) == '<table class="dataframe"></table>'


def test_markdown_is_rendered_and_its_source_kept() -> None:
    bundle = safe_bundle({"text/markdown": "# T\n\n|a|\n|-|\n|1|\n\n```python\nx < 1\n```\n"})
    assert bundle.data["text/plain"].startswith("# T")
    assert "text/markdown" not in bundle.data
    assert "<h1>T</h1>" in bundle.data["text/html"]
    assert "<td>1</td>" in bundle.data["text/html"]
    assert '<pre><code class="language-python">x &lt; 1\n</code></pre>' in bundle.data["text/html"]


def test_markdown_leaves_formulas_to_the_page() -> None:
    shown = safe_markdown(r"$a_1 * b_2 * c$, \(x_i\), $$\frac{a}{b}$$ and $5 or $6, `$x$`")
    assert r"$a_1 * b_2 * c$, \(x_i\), $$\frac{a}{b}$$ and $5 or $6" in shown
    assert "<em>" not in shown


def test_latex_loses_commands_that_link_or_fetch() -> None:
    source = r"$\frac{a}{b} < \href{javascript:x}{y} \\ \bbox[background:url(x)]{z} \let\x\href a<b$"
    assert safe_bundle({"text/latex": source}).data["text/latex"] == (
        r"$\frac{a}{b} < {}{javascript:x}{y} \\ {}[background:url(x)]{z} {}\x{} a< b$"
    )


@pytest.mark.parametrize(
    ("mime", "start"),
    [
        ("image/png", b"\x89PNG\r\n\x1a\n"), ("image/jpeg", b"\xff\xd8\xff\xe0"), ("image/gif", b"GIF89a"),
        ("image/webp", b"RIFF\x00\x00\x00\x00WEBP"),
    ],
)  # fmt: skip
def test_images_are_shown_if_they_are_images(mime: str, start: bytes) -> None:
    good = base64.b64encode(start + b"0" * 20).decode()
    assert safe_bundle({mime: good + "\n"}).data[mime] == good
    assert safe_bundle({mime: base64.b64encode(b"<html>").decode()}).dropped == [f"{mime} (not such an image)"]
    assert safe_bundle({mime: good + '" onerror="x'}).dropped == [f"{mime} (not base64)"]


def test_svg_is_shown_as_an_image() -> None:
    shown = html_of("<svg><script>1</script></svg>", "image/svg+xml")
    encoded = base64.b64encode(b"<svg><script>1</script></svg>").decode()
    assert shown == f'<img src="data:image/svg+xml;base64,{encoded}" style="max-width:100%">'


def test_json_is_shown_if_it_is_json() -> None:
    assert safe_bundle({"application/json": {"a": [1, None]}}).data["application/json"] == {"a": [1, None]}
    assert safe_bundle({"application/json": {"a": float("nan")}}).dropped == ["application/json (not JSON)"]
    deep: list[Any] = []
    for _ in range(100_000):
        deep = [deep]
    assert safe_bundle({"application/json": deep}).dropped == ["application/json (not JSON)"]


def test_plain_plotly_figures_are_shown_and_others_are_not() -> None:
    mime = "application/vnd.plotly.v1+json"
    figure = {
        "data": [{"type": "bar", "x": ["a"], "y": [1], "hovertemplate": "x=%{x}<br><b>%{y}</b><extra></extra>"}],
        "layout": {"template": {"data": {"scattermapbox": [{"type": "scattermapbox"}]}}, "title": {"text": "T"}},
        "config": {"responsive": True},
    }
    assert safe_bundle({mime: figure}).data[mime] == figure
    for part in (
        {"data": [{"type": "choroplethmap"}]},
        {"data": [{"type": ["bar"]}]},
        {"data": [{"type": {"bar": 1}}]},
        {"data": ["bar"]},
        {"layout": {"images": [{"source": "https://x.org/x.png"}]}},
        {"layout": {"title": {"text": "<a href='https://x.org'>x</a>"}}},
        {"layout": {"mapbox": {"accesstoken": "x"}}},
        {"config": {"plotlyServerURL": "https://x.org"}},
        {"frames": [{"layout": {"images": [{"source": "https://x.org/x.png"}]}}]},
    ):
        assert mime not in safe_bundle({mime: {**figure, **part}}).data


def test_plain_vega_charts_are_shown_and_others_are_not() -> None:
    mime = "application/vnd.vegalite.v5+json"
    chart = {
        "$schema": "https://vega.github.io/schema/vega-lite/v5.20.1.json",
        "config": {"view": {"continuousWidth": 300, "continuousHeight": 300}},
        "data": {"name": "data-1"},
        "mark": {"type": "bar"},
        "encoding": {"x": {"field": "a", "type": "nominal"}, "y": {"field": "b", "type": "quantitative"}},
        "params": [{"name": "p", "select": {"type": "interval", "encodings": ["x"]}, "bind": "scales"}],
        "datasets": {"data-1": [{"a": "A", "b": 28, "url": "javascript:x"}]},
    }
    assert safe_bundle({mime: chart}).data[mime] == chart
    for part in (
        {"data": {"url": "/api/contents"}},
        {"transform": [{"filter": "datum.b > 1"}]},
        {"encoding": {"x": {"field": "a", "axis": {"values": {"signal": "1"}}}}},
        {"encoding": {"x": {"field": "a'] + alert(1) + datum['"}}},
        {"params": [{"name": "p", "expr": "1"}]},
        {"params": [{"name": "p", "bind": {"element": "#main"}}]},
        {"usermeta": {"embedOptions": {"loader": {}}}},
        {"encoding": {"x": {"field": "a'] + alert(1) + datum['"}, "href": {"field": "url"}}},
        {"$schema": "https://vega.github.io/schema/vega/v5.json"},
    ):
        assert mime not in safe_bundle({mime: {**chart, **part}}).data


def test_many_types_are_not_looked_at_one_by_one() -> None:
    bundle = safe_bundle({f"x{'y' * 500}{number}": "" for number in range(100_000)} | {"text/html": "<b>hi</b>"})
    assert bundle.data == {"text/html": "<b>hi</b>", "text/plain": "hi"}
    assert bundle.dropped[0] == "99971 more types"
    assert len(", ".join(bundle.dropped)) < 5000


@pytest.mark.parametrize(
    "mime", ["application/javascript", "text/javascript", "application/pdf", "text/vnd.mermaid", "video/mp4", "x",
             "TEXT/HTML", "application/vnd.jupyter.widget-view+json", "application/geo+json",
             "application/vnd.vega.v5+json"],
)  # fmt: skip
def test_other_types_are_left_out_and_named(mime: str) -> None:
    bundle = safe_bundle({mime: "x", "text/plain": "y"})
    assert bundle.data == {"text/plain": "y"}
    assert bundle.dropped == [mime]
    assert safe_bundle({mime: "x"}).data == {"text/plain": f"[Not shown: {mime}]"}


def test_metadata_holds_only_looks() -> None:
    metadata = {
        "image/png": {"width": 100, "height": "1 onerror=x", "needs_background": "light", "unconfined": True, "x": 1},
        "text/plain": {"isolated": True},
        "filenames": {"image/png": "/etc/passwd"},
    }
    bundle = safe_bundle({"image/png": PNG, "text/plain": "x"}, metadata)
    assert bundle.metadata == {"image/png": {"width": 100, "needs_background": "light", "unconfined": True}}


@pytest.mark.parametrize("metadata", [{"image/png": None}, {"image/png": "width"}, {"image/png": [1]}])
def test_metadata_of_a_wrong_shape_is_left_out(metadata: dict[str, Any]) -> None:
    assert safe_bundle({"image/png": PNG}, metadata).metadata == {}


def test_trusted_output_passes_as_it_is() -> None:
    data = {"text/html": "<script>1</script>", "application/javascript": "1"}
    bundle = safe_bundle(data, {"isolated": True}, trusted=True)
    assert (bundle.data, bundle.metadata, bundle.dropped) == (data, {"isolated": True}, [])


def test_hosts_that_stay_closed_are_named() -> None:
    html = (
        "<script src='https://cdn.example.org/x.js'></script><link rel=stylesheet href=https://css.example.org/x.css>"
    )
    closed = "scripts from https://{}.example.org (closed: %config SandboxMagics.frame_hosts opens it)"
    assert safe_bundle({"text/html": html}).dropped == [closed.format("cdn"), closed.format("css")]
    opened = safe_bundle({"text/html": html}, hosts=["https://cdn.example.org"])
    assert opened.dropped == [closed.format("css")]


def test_altair_chart_is_shown_without_its_scripts() -> None:
    chart = {"$schema": "https://vega.github.io/schema/vega-lite/v6.json", "mark": "bar", "data": {"values": []}}
    html = "<div id='altair-viz-1'></div><script>(function(spec, o) { f(spec); })(%s, {'mode': 'vega-lite'});</script>"
    assert safe_bundle({"text/html": html % json.dumps(chart), "text/plain": "alt.Chart(...)"}).data == {
        "application/vnd.vegalite.v5+json": chart,
        "text/plain": "alt.Chart(...)",
    }
    unsafe = {**chart, "data": {"url": "/api/contents"}}
    assert "iframe" in html_of(html % json.dumps(unsafe))


def test_text_may_be_a_list_of_lines() -> None:
    bundle = safe_bundle({"text/html": ["<b>a", "b</b>"], "text/plain": ["a", "b"]})
    assert bundle.data == {"text/html": "<b>ab</b>", "text/plain": "ab"}


# Sizes.


def test_output_over_the_limit_is_named_with_its_size() -> None:
    bundle = safe_bundle({"text/html": "x" * 300_000, "text/plain": "y"}, limit=200_000)
    assert bundle.data == {"text/plain": "y"}
    assert bundle.dropped == ["text/html (0.3 MB, over the limit of 0.2 MB: --result NAME keeps it)"]


def test_long_text_is_cut_in_the_middle() -> None:
    shown = safe_bundle({"text/plain": "a" * 900_000 + "b" * 900_000}).data["text/plain"]
    assert "[... 800,000 characters left out ...]" in shown
    assert (shown[0], shown[-1]) == ("a", "b")


def test_plotly_library_is_stored_once_and_compressed() -> None:
    library = f"<script>/**\n* plotly.js v3.0.0\n*/ var Plotly = {json.dumps('x' * 4_000_000)}</script>"
    figure = "<div id=f style='height:525px'></div><script>Plotly.newPlot('f', [])</script>"
    policy = OutputPolicy()
    assert policy.bundle({"text/html": library}).data == {}
    shown = policy.bundle({"text/html": figure}).data["text/html"]
    whole = policy.bundle({"text/html": library + figure}).data["text/html"]
    assert len(shown) < 200_000
    assert len(whole) < 200_000
    assert "height:545px" in shown


# HTML that parsers fight over.


@given(st.lists(st.sampled_from(
    ["<", ">", "<b", "<a href=", "'", '"', "javascript:", "<svg>", "<math>", "<style>", "</style>", "<!--", "-->",
     "&lt;", "<img src=x onerror=", "alert(1)", " ", "/", "<table>", "<td>", "</p>", "<script>",
     "</script>", "<iframe", "\x00"]
), max_size=20))  # fmt: skip
@settings(deadline=None, max_examples=200)
def test_no_mixture_of_markup_leaves_anything_that_acts(parts: list[str]) -> None:
    for tag, attributes in Elements(safe_html("".join(parts))).found:
        assert tag in INLINE_TAGS
        assert not [a for a in attributes if a.startswith("on")]
        assert "javascript:" not in str(attributes.get("href"))


@pytest.mark.parametrize(
    "piece",
    ["<div>", "<b>", "<div title='</div>'>", '<p x=a"><div></xmp>', "<!-- </div> --><div>", "<table><td>", "<style>",
     "<style ", "<script", "<iframe ", "<link ", "<a x='>' ", "<p><b></p></b>", "<a><p></a>", "<br>", "&amp", "</p>",
     "<svg><style>", "<math>", "<select><option>", "<li>", "\x00", "<i><table>", "<h1></h2>", "<x-y></x-y>", "<nobr>"],
)  # fmt: skip
def test_hostile_repetition_is_no_trouble(piece: str) -> None:
    assert isinstance(safe_bundle({"text/html": piece * (990_000 // len(piece))}).data["text/plain"], str)
    assert isinstance(safe_bundle({"text/html": piece * 990}).data["text/plain"], str)


def test_tag_with_very_many_attributes_is_no_trouble() -> None:
    attributes = " ".join(f"a{i}" for i in range(100_000))
    assert "iframe" in safe_html(f"<p {attributes}>x</p>")
    assert "iframe" not in safe_html(f"<p title='{attributes}'>x</p>")


@pytest.mark.parametrize(
    "piece", ["\\(", "\\[", "$$", "$", "$a", "[", "![", "*a ", "_a", "`", "``a`", "> ", "- ", "<", "&", "|a"]
)
def test_hostile_markdown_is_no_trouble(piece: str) -> None:
    assert isinstance(safe_markdown(piece * (20_000 // len(piece))), str)
    assert safe_markdown(piece * 100_001).startswith("<pre>")


# Text.


@pytest.mark.parametrize(
    ("source", "shown"),
    [
        ("\x1b]52;c;ZXZpbA==\x07a", "a"),
        ("\x1b]8;;http://x\x1b\\link\x1b]8;;\x1b\\", "link"),
        ("\x1b]0;title\x9cx", "x"),
        ("\x9d0;title\x07x", "x"),
        ("\x1bP+q544e\x1b\\x", "x"),
        ("\x1b[2J\x1b[H\x1b[10;10Hx", "x"),
        ("\x1b[6n\x1b[c\x1b[?1049h\x1b[>4;1mx", "x"),
        ("\x1bc\x1b7\x1b(0\x1b#8x", "x"),
        ("\x9b2Jx\x85y", "xy"),
        ("a\x00\x07\x0b\x0c\x7fb", "ab"),
        ("10%\r20%\b\b\t|\n", "10%\r20%\b\b\t|\n"),
        ("\x1b[1;38;5;196mx\x1b[0m", "\x1b[1;38;5;196mx\x1b[0m"),
        ("\x1b[38:2:1:2:3mx", "\x1b[38:2:1:2:3mx\x1b[0m"),
        ("\x1b]never closed\nnext line", "\nnext line"),
        ("\x1b[\x1b[2Jx", "x"),
        ("\x1b[31", ""),
        ("\ud800x", "\ufffdx"),
    ],
)
def test_text_keeps_colours_only(source: str, shown: str) -> None:
    assert safe_text(source) == shown


@given(st.lists(st.sampled_from([*"\x1b[]0m;1\x07\\P\n\r\x9b\x9d\x9ca(", "31m", "8;;x", "\x1b[0m"])), st.data())
@settings(deadline=None, max_examples=200)
def test_text_in_chunks_is_shown_as_in_one(parts: list[str], data: st.DataObject) -> None:
    text = "".join(parts)
    at = data.draw(st.integers(0, len(text)))
    whole, chunks = TextFilter(), TextFilter()
    assert chunks.feed(text[:at]) + chunks.feed(text[at:]) + chunks.close() == whole.feed(text) + whole.close()
    assert not re.search(r"\x1b(?!\[[0-9;:]*m)", safe_text(text))


# A result that shows itself.


def result_of(*events: Any) -> CodeExecutionResult:
    builder = ResultBuilder()
    for event in events:
        builder.add(event)
    return builder.result


def test_result_with_one_picture_shows_it_as_such() -> None:
    data, _ = result_of(Display({"image/png": PNG, "text/plain": "<Figure>"}))._repr_mimebundle_()
    assert data == {"image/png": PNG, "text/plain": "<Figure>"}


def test_result_shows_everything_in_order_and_safely() -> None:
    result = result_of(
        Stdout("\x1b[31mhello\x1b[0m <b>\n"),
        Display({"text/html": "<i onclick=x>rich</i>", "text/plain": "rich"}),
        Display({"image/png": PNG}),
        ExecutionError("ValueError", "bad", "Traceback <script>\nValueError: bad"),
    )
    data, _ = result._repr_mimebundle_()
    assert data["text/plain"] == ("\x1b[31mhello\x1b[0m <b>\nrich\n[image/png]\nTraceback <script>\nValueError: bad")
    assert data["image/png"] == PNG
    assert data["text/html"] == (
        f'<pre>hello &lt;b&gt;\n</pre>\n<i>rich</i>\n<img src="data:image/png;base64,{PNG}" style="max-width:100%">\n'
        "<pre>Traceback &lt;script&gt;\nValueError: bad</pre>"
    )


def test_result_of_text_only_keeps_its_colours() -> None:
    data, _ = result_of(
        Stdout("\x1b[31mred\x1b[0m\n"), Display({"text/plain": "1"}, is_result=True)
    )._repr_mimebundle_()
    assert data == {"text/plain": "\x1b[31mred\x1b[0m\n1"}


def test_pictures_of_a_result_are_saved_on_request(tmp_path: Path) -> None:
    result = result_of(Display({"image/png": PNG}), Display({"text/plain": "x"}), Display({"image/svg+xml": "<svg/>"}))
    (tmp_path / "image-1.png").write_text("mine")
    assert result.save_images(tmp_path) == [tmp_path / "image-2.png", tmp_path / "image-1.svg"]
    assert (tmp_path / "image-2.png").read_bytes() == base64.b64decode(PNG)
    assert (tmp_path / "image-1.png").read_text() == "mine"


def test_empty_result_shows_its_repr() -> None:
    assert result_of()._repr_mimebundle_() == ({"text/plain": "<CodeExecutionResult>"}, {})


KEYS = st.sampled_from(["type", "data", "layout", "template", "encoding", "mark", "values", "width", "field", "x"])
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.sampled_from(["bar", "\ud800"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3),
    max_leaves=12,
)
MIMES = ["text/plain", "text/html", "text/markdown", "text/latex", "image/png", "image/svg+xml", "application/json",
         "application/vnd.plotly.v1+json", "application/vnd.vegalite.v5+json"]  # fmt: skip


@given(st.sampled_from(MIMES), JSON, JSON)
@settings(deadline=None, max_examples=300)
def test_whatever_json_comes_is_shown_or_left_out(mime: str, value: Any, metadata: Any) -> None:
    chart = {"$schema": "https://vega.github.io/schema/vega-lite/v5.json", "data": [value, {"type": value}]}
    for data in (value, chart, {**chart, "layout": {"template": value}}, {"data": [{"type": value}]}):
        bundle = safe_bundle({mime: data}, {mime: metadata})
        json.dumps([bundle.data, bundle.metadata], allow_nan=False, ensure_ascii=False).encode()
