"""Outputs of a sandbox look and work like those of a local cell, and survive what is done to a notebook."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import nbformat
import papermill
import pytest
from browserlab import Lab
from nbconvert import HTMLExporter, MarkdownExporter
from playwright.sync_api import Browser, Frame, Page, expect

CELLS = {
    "figures": "import matplotlib.pyplot as plt\nfor i in 1, 2:\n    plt.figure(); plt.plot([1, i]); plt.show()",
    "retina": "%config InlineBackend.figure_format = 'retina'\nplt.figure(figsize=(3, 2)); plt.plot([1]); plt.show()",
    "table": "import pandas as pd\ntable = pd.DataFrame({'a': range(3), 'b': ['x', '<b>y</b>', 'z']})\ntable",
    "styled": "table.style.highlight_max(subset=['a'], color='orange')",
    "plotly": "import plotly.express as px\npx.bar(x=['a', 'b'], y=[1, 3]).show(renderer='notebook')",
    "svg": 'from IPython.display import *\nSVG(\'<svg xmlns="http://www.w3.org/2000/svg" width="60" height="40"/>\')',
    "latex": r"Math(r'\frac{a}{b}')",
    "markdown": "Markdown('# Title\\n\\n|a|\\n|-|\\n|1|\\n\\n$e^{i}$\\n\\n```python\\nx = 1\\n```')",
    "json": "JSON({'key': [1, 2]})",
    "html": "HTML('<style>p { color: teal }</style><p>own style</p>')",
    "tqdm": "from tqdm import tqdm\nfor _ in tqdm(range(3)): pass",
    "colours": "print('\\x1b[32mgreen\\x1b[0m')",
    "error": "1 / 0",
}
FRAMED = ("plotly", "html")


@pytest.fixture(scope="module")
def gallery(lab: Lab) -> Iterator[Page]:
    """A page that has run all cells."""
    lab.write("gallery.ipynb", "%load_ext ipy_sandbox", *(f"%%sandbox -p local\n{code}" for code in CELLS.values()))
    page = lab.open("gallery.ipynb")
    lab.run_all(page)
    lab.save(page)
    yield page
    page.close()


@pytest.fixture(scope="module")
def saved(gallery: Page, lab: Lab) -> Path:
    return lab.root / "gallery.ipynb"


def outputs(page: Page, name: str) -> Any:
    cell = page.locator(".jp-CodeCell").nth(1 + list(CELLS).index(name))
    cell.scroll_into_view_if_needed()
    return cell.locator(".jp-OutputArea-output")


def inner(page: Page, name: str) -> Frame:
    """The frame in the frame of an output."""
    outer = outputs(page, name).locator("iframe.ipy-sandbox-frame").element_handle().content_frame()
    handle = outer.wait_for_selector("iframe")
    frame = handle.content_frame()
    assert frame is not None
    return frame


def test_pictures_are_shown_at_their_size(gallery: Page) -> None:
    assert outputs(gallery, "figures").locator("img").count() == 2
    expect(outputs(gallery, "svg").locator("img")).to_have_js_property("naturalWidth", 60)
    width, natural = outputs(gallery, "retina").locator("img").evaluate("i => [i.width, i.naturalWidth]")
    assert natural == pytest.approx(2 * width, abs=2)


def test_tables_are_shown_inline_and_their_cells_as_text(gallery: Page) -> None:
    assert "<b>y</b>" in outputs(gallery, "table").locator("table").inner_text()
    cell = outputs(gallery, "styled").locator("td", has_text="2").first
    assert cell.evaluate("c => getComputedStyle(c).backgroundColor") == "rgb(255, 165, 0)"


def test_interactive_chart_reacts_to_the_mouse(gallery: Page) -> None:
    frame = inner(gallery, "plotly")
    bar = frame.locator(".bars .point").last
    box = bar.bounding_box()
    assert box is not None
    gallery.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2, steps=3)
    expect(frame.locator(".hoverlayer")).to_contain_text("y=3")


def test_formulas_and_markdown_are_typeset(gallery: Page) -> None:
    expect(outputs(gallery, "latex").locator("mjx-container")).to_be_visible()
    expect(outputs(gallery, "markdown").locator("h1")).to_have_text("Title")
    expect(outputs(gallery, "markdown").locator("td")).to_have_text("1")
    expect(outputs(gallery, "markdown").locator("mjx-container")).to_be_visible()
    expect(outputs(gallery, "json").get_by_text("key")).to_be_visible()


def test_text_keeps_colours_and_progress_its_last_state(gallery: Page) -> None:
    expect(outputs(gallery, "colours").locator(".ansi-green-fg")).to_have_text("green")
    expect(outputs(gallery, "tqdm").filter(has_text="3/3")).to_be_visible()
    expect(outputs(gallery, "error").filter(has_text="ZeroDivisionError: division by zero")).to_be_visible()


def test_frames_fit_and_can_be_dragged_larger(gallery: Page) -> None:
    for name, least, most in (("plotly", 500, 600), ("html", 60, 150)):
        box = outputs(gallery, name).locator("div:has(> iframe)")
        assert least <= box.evaluate("b => b.clientHeight") <= most
        assert box.evaluate("b => getComputedStyle(b).resize") == "vertical"


def test_frames_follow_the_theme(gallery: Page, lab: Lab) -> None:
    frame = inner(gallery, "html")
    scheme = "getComputedStyle(document.documentElement).colorScheme"
    frame.wait_for_function(f"{scheme} === 'light'")
    lab.command(gallery, "apputils:change-theme", theme="JupyterLab Dark")
    frame.wait_for_function(f"{scheme} === 'dark'")
    assert frame.evaluate("innerHeight") < 200
    lab.command(gallery, "apputils:change-theme", theme="JupyterLab Light")
    frame.wait_for_function(f"{scheme} === 'light'")


def test_saved_notebook_shows_the_same_when_opened_again(saved: Path, lab: Lab) -> None:
    page = lab.open(saved.name)
    expect(outputs(page, "table").locator("table")).to_be_visible()
    expect(inner(page, "plotly").locator(".bars .point").last).to_be_visible(timeout=20_000)
    expect(inner(page, "html").locator("p")).to_have_css("color", "rgb(0, 128, 128)")
    page.close()


def test_html_export_shows_tables_pictures_and_the_chart(saved: Path, browser: Browser, tmp_path: Path) -> None:
    html, _ = HTMLExporter().from_filename(saved)
    (tmp_path / "gallery.html").write_text(html)
    page = browser.new_page()
    page.route("https://**", lambda route: route.abort())
    page.goto((tmp_path / "gallery.html").as_uri())
    assert page.locator(".jp-OutputArea-output img").count() == 4
    assert page.locator("table").count() == 3
    outer = page.locator("iframe.ipy-sandbox-frame").first.element_handle().content_frame()
    assert outer is not None
    chart = outer.wait_for_selector("iframe").content_frame()
    assert chart is not None
    expect(chart.locator(".bars .point").last).to_be_visible(timeout=20_000)
    page.close()


def test_markdown_export_has_pictures_tables_and_formulas(saved: Path) -> None:
    markdown, resources = MarkdownExporter().from_filename(saved)
    assert len([name for name in resources["outputs"] if name.endswith(".png")]) == 3
    assert "&lt;b&gt;y&lt;/b&gt;" in markdown
    assert "<h1>Title</h1>" in markdown
    assert r"\frac{a}{b}" in markdown


def test_front_end_that_knows_only_text_and_png_shows_every_output(saved: Path) -> None:
    notebook = nbformat.read(saved, as_version=4)
    bundles = [o.data for c in notebook.cells for o in c.get("outputs", []) if "data" in o]
    assert all("text/plain" in bundle for bundle in bundles)
    assert sum("image/png" in bundle for bundle in bundles) == 3


def test_papermill_gives_the_same_outputs_without_a_footer(tmp_path: Path, lab: Lab) -> None:
    code = [CELLS[name] for name in ("figures", "table", "svg", "markdown", "colours")]
    path = lab.write("batch.ipynb", "%load_ext ipy_sandbox", *(f"%%sandbox -p local\n{c}" for c in code))
    papermill.execute_notebook(str(path), str(tmp_path / "out.ipynb"), progress_bar=False, log_output=False)
    shown = [o for c in nbformat.read(tmp_path / "out.ipynb", as_version=4).cells for o in c.get("outputs", [])]
    assert [sorted(o.data) if "data" in o else o.name for o in shown if not _is_message(o)] == [
        ["image/png", "text/plain"], ["image/png", "text/plain"], ["text/html", "text/plain"],
        ["text/html", "text/plain"], ["text/html", "text/plain"], "stdout",
    ]  # fmt: skip
    assert not [o for o in shown if re.search(r"\d s · ", str(o))]


def _is_message(output: Any) -> bool:
    return "Session default" in str(output)
