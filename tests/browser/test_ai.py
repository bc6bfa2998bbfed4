"""`%%ai` in JupyterLab: an answer reads well, folds its code away, and neither model nor code can act on the page."""

from __future__ import annotations

import json
from collections.abc import Iterator

import hostile
import pytest
from browserlab import Lab, Listener
from playwright.sync_api import Page
from servers.fake_model import FakeModel, served

CODE = """
import json
from IPython.display import publish_display_data
print('begun', '<img src=x onerror=window.hacked=1>')
for bundle in json.loads({bundles!r}).values():
    publish_display_data(bundle)
"""


@pytest.fixture(scope="module")
def page(lab: Lab, listener: Listener) -> Iterator[Page]:
    """A notebook in which a model answered with every attack, in its text, its code and what the code showed."""
    listener.requests.clear()
    attacks = {n: b for n, b in hostile.attacks(listener.address).items() if len(json.dumps(b)) < 5000}
    markup = [text for bundle in attacks.values() for text in bundle.values() if isinstance(text, str)]
    plan = {"code": [CODE.format(bundles=json.dumps(attacks))], "text": "\n\n".join(["The **answer**", *markup])}
    with served(FakeModel().app) as address:
        lab.write(
            "ai.ipynb",
            f"%load_ext ipy_sandbox\n%config SandboxMagics.provider = 'local'\n"
            f"%config AIMagics.base_url = '{address}/v1'\n%config AIMagics.model = 'gpt'",
            f"%%ai\n{json.dumps(plan)}",
        )
        page = lab.open("ai.ipynb")
        lab.run_all(page)
        page.get_by_text("2 turns · 1 run · 20 + 10 tokens").wait_for(timeout=30_000)
        # That nothing happens is no event.
        page.wait_for_timeout(1000)
        yield page
        page.close()


def test_nothing_of_an_answer_acts(page: Page, lab: Lab, listener: Listener) -> None:
    assert page.evaluate("window.hacked") is None
    assert page.evaluate("localStorage.hacked") is None
    assert "hacked" not in page.title()
    assert not listener.requests
    assert not list(lab.root.rglob("owned*"))


def test_the_code_is_folded_and_unfolds_with_its_output(page: Page) -> None:
    summary = page.locator(".jp-OutputArea summary", has_text="lines of Python").first
    code = page.locator(".jp-OutputArea details pre").first
    assert not code.is_visible()
    summary.click()
    assert code.is_visible()
    assert "publish_display_data" in code.inner_text()
    assert "begun <img src=x" in page.locator(".jp-OutputArea details pre").nth(1).inner_text()


def test_the_answer_is_rendered(page: Page) -> None:
    assert page.locator(".jp-OutputArea strong", has_text="answer").first.is_visible()
