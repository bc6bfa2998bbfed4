"""What a sandbox sends cannot act on the page: in JupyterLab, in the saved notebook, and in its HTML export.

Afterwards no variable is set on the window, no file is written with the reader's login, the page is where it was, and
nobody asked the listener. The same attacks published as they come do all of that, or the tests would prove nothing.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import hostile
import nbformat
import pytest
from browserlab import Lab, Listener
from nbconvert import HTMLExporter
from playwright.sync_api import Browser, Page

PUBLISH = """
import json
from IPython.display import publish_display_data
for name, bundle in json.loads({bundles!r}).items():
    publish_display_data({{"text/plain": name}})
    publish_display_data(bundle)
"""
LAST = """
from IPython.display import HTML
HTML("<script>document.title = 'last frame'</script>")
"""
HUGE = """
from IPython.display import HTML
HTML("<table class=dataframe>" + "<tr><td>x</td><td onclick=window.hacked=1>y</td></tr>" * 45_000)
"""


def cells(listener: Listener) -> list[str]:
    """Code that publishes all attacks."""
    attacks = list(hostile.attacks(listener.address).items())
    groups = [dict(attacks[i : i + 20]) for i in range(0, len(attacks), 20)]
    return [PUBLISH.format(bundles=json.dumps(group)) for group in groups] + [HUGE, LAST]


def owned(lab: Lab) -> list[str]:
    return [path.name for path in lab.root.rglob("owned*")]


def hacked(page: Page) -> list[Any]:
    return [page.evaluate("window.hacked"), page.evaluate("localStorage.hacked"), page.title().count("hacked")]


def settle(page: Page) -> None:
    """Wait until the last of the outputs, a frame, has run its script, and give the others the time to act."""
    page.locator(".jp-Cell").last.locator("iframe.ipy-sandbox-frame").wait_for(timeout=60_000)
    outer = page.locator("iframe.ipy-sandbox-frame").last.element_handle().content_frame()
    assert outer is not None
    inner = outer.wait_for_selector("iframe").content_frame()
    assert inner is not None
    inner.wait_for_function("document.title === 'last frame'", timeout=60_000)
    # That nothing happens is no event.
    page.wait_for_timeout(500)


UNTOUCHED = [None, None, 0]


@pytest.fixture(scope="module")
def notebook(lab: Lab, listener: Listener) -> Path:
    """The notebook as saved by JupyterLab after its cells sent all attacks."""
    listener.requests.clear()
    code = [f"%%sandbox -p local\n{code}" for code in cells(listener)]
    path = lab.write("attacks.ipynb", "%load_ext ipy_sandbox", *code)
    page = lab.open(path.name)
    address = page.url
    loaded: list[str] = []
    page.on("requestfinished", lambda request: loaded.append(request.url))
    lab.run_all(page)
    settle(page)
    lab.save(page)
    assert hacked(page) == UNTOUCHED
    assert page.url == address
    assert [url for url in loaded if not url.startswith((lab.url, "data:", "blob:"))] == []
    page.close()
    return path


@pytest.fixture
def clean(lab: Lab) -> Iterator[None]:
    yield
    for name in owned(lab):
        (lab.root / name).unlink()


def test_attacks_published_as_they_come_act_on_the_page(lab: Lab, listener: Listener, clean: None) -> None:
    listener.requests.clear()
    attacks = hostile.attacks(listener.address)
    chosen = {name: attacks[name] for name in ("script", "img-onerror", "javascript", "markdown-html", "remote-image")}
    lab.write("control.ipynb", PUBLISH.format(bundles=json.dumps(chosen)))
    page = lab.open("control.ipynb")
    lab.run_all(page)
    expected = {"/img-onerror", "/md-img", "/leak?q=secret"}
    deadline = time.monotonic() + 30
    while not expected <= set(listener.requests) and time.monotonic() < deadline:
        page.wait_for_timeout(50)
    assert expected <= set(listener.requests)
    assert {"script", "javascript"} <= set(page.evaluate("window.hacked").split())
    assert "owned-script.txt" in owned(lab)
    page.close()


def test_no_attack_acts_when_its_cell_runs(notebook: Path, lab: Lab, listener: Listener) -> None:
    outputs = [o for c in nbformat.read(notebook, as_version=4).cells for o in c.get("outputs", [])]
    assert len(outputs) > 1.5 * len(hostile.attacks())
    assert not [o for o in outputs if o.output_type == "error"]
    assert listener.requests == []
    assert owned(lab) == []


def test_no_attack_acts_when_the_notebook_is_opened_again(notebook: Path, lab: Lab, listener: Listener) -> None:
    page = lab.open(notebook.name)
    settle(page)
    assert hacked(page) == UNTOUCHED
    assert page.locator(".jp-OutputArea-output :is(form, a[href^=javascript], [onclick])").count() == 0
    page.close()
    assert listener.requests == []
    assert owned(lab) == []


def test_no_attack_acts_in_the_html_export(
    notebook: Path, browser: Browser, listener: Listener, tmp_path: Path
) -> None:
    html, _ = HTMLExporter().from_filename(notebook)
    (tmp_path / "attacks.html").write_text(html)
    page = browser.new_page()
    # The export itself loads MathJax and others from public hosts, which are not there now.
    page.route("https://**", lambda route: route.abort())
    page.goto((tmp_path / "attacks.html").as_uri(), wait_until="domcontentloaded")
    settle(page)
    assert hacked(page) == UNTOUCHED
    assert page.url.endswith("attacks.html")
    page.close()
    assert listener.requests == []
