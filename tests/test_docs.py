"""What the documentation says of options and files is true."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from ipy_sandbox.magics.ai_commands import COMMANDS
from ipy_sandbox.magics.reference import options_table, settings_table

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def between(page: str, start: str, end: str) -> str:
    text = (ROOT / page).read_text()
    return text.partition(start)[2].partition("-->\n")[2].partition(end)[0].strip()


def test_the_table_of_settings_is_the_codes() -> None:
    assert between("README.md", "<!-- settings", "<!-- end of settings") == settings_table()


def test_the_table_of_options_is_the_codes() -> None:
    text = (ROOT / "docs" / "reference.md").read_text()
    assert text.partition("<!-- options -->\n")[2].partition("<!-- end of options")[0].strip() == options_table()


def test_every_command_of_ai_is_in_the_reference() -> None:
    text = (ROOT / "docs" / "reference.md").read_text()
    assert set(re.findall(r"^\| `%ai (\w+)", text, re.MULTILINE)) == set(COMMANDS)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_inside_the_repository_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\((?!https?:|#)([^)#]+)", page.read_text()):
        assert (page.parent / target).exists(), target


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_python_examples_are_python_and_name_what_exists(page: Path) -> None:
    import ipy_sandbox

    for code in re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL):
        compile(code, page.name, "exec")
        for names in re.findall(r"from ipy_sandbox import (.+)", code):
            for name in names.split(","):
                assert hasattr(ipy_sandbox, name.strip()), name
