"""The notebooks that teach run top to bottom without a key, and give what is committed with them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import nbclient
import nbformat
import pytest

NOTEBOOKS = sorted(Path(__file__).parent.parent.joinpath("notebooks").glob("*.ipynb"))
MAX_BYTES = 130_000

_VARIABLE = [
    (re.compile(r"\x1b\[[0-9;]*m"), ""),
    (re.compile(r"\b(local|cntr)[-_][0-9a-f]+"), r"\1-ID"),
    (re.compile(r"\d{4}-\d\d-\d\d[ T]\d\d:\d\d(:\d\d(\.\d+)?)?(\+00:00)?"), "TIME"),
    (re.compile(r"\b\d+ min( \d+ s)?"), "SPAN"),
    (re.compile(r"\b\d+(\.\d+)? s\b"), "SPAN"),
    (re.compile(r"\b\d+(\.\d+)?( MB)"), "MEMORY"),
    (re.compile(r"(memory_bytes|memory) +\S+"), "MEMORY"),
    (re.compile(r"(\d+ +\d+ +\d+ +\d+ +)\d+\.\d( +-)"), r"\1SPAN\2"),
    (re.compile(r"[ \t]+"), " "),
    (re.compile(r"\s+$"), ""),
]


def normal(text: str) -> str:
    """`text` without what differs from run to run."""
    for pattern, replacement in _VARIABLE:
        text = pattern.sub(replacement, text)
    return text


def outputs(cell: Any) -> list[Any]:
    """The outputs of a cell as they can be compared: text without what differs, pictures by their types."""
    shown: list[Any] = []
    for output in cell.outputs:
        if output.output_type == "stream":
            if shown and shown[-1][0] == output.name:
                shown[-1][1] += output.text
            else:
                shown.append([output.name, output.text])
        elif output.output_type == "error":
            shown.append(["error", output.ename, normal(output.evalue)])
        elif text := normal(output.data.get("text/plain", "")):
            shown.append([output.output_type, sorted(output.data), text])
    return [[kind, normal(rest[0])] if kind in ("stdout", "stderr") else [kind, *rest] for kind, *rest in shown]


def test_there_are_six() -> None:
    assert [path.name[:2] for path in NOTEBOOKS] == ["01", "02", "03", "04", "05", "06"]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_it_runs_and_gives_what_is_committed(path: Path, tmp_path: Path) -> None:
    committed = nbformat.read(path, as_version=4)
    run = nbformat.read(path, as_version=4)
    for cell in run.cells:
        cell.pop("outputs", None)
        if cell.cell_type == "code":
            cell.outputs = []
    client = nbclient.NotebookClient(run, timeout=90, kernel_name="python3", resources={"metadata": {"path": tmp_path}})
    client.execute()
    for expected, cell in zip(committed.cells, run.cells, strict=True):
        if cell.cell_type == "code":
            assert outputs(cell) == outputs(expected), cell.source
    assert not list(tmp_path.iterdir()), "the notebook left files behind"


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_it_is_small_and_tells_nothing_of_the_machine_it_ran_on(path: Path) -> None:
    text = path.read_text()
    assert len(text) < MAX_BYTES
    assert not re.search(r"/(home/(?!user|teacher)\w+|root|tmp|Users|work)/", text)
    assert "sk-" not in text.replace("sk-proxy", "").replace("sk-wrong", "")
