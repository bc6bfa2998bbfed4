"""Notebooks without a person: nbclient and papermill see failures, outputs stay, kernels leave nothing behind."""

from __future__ import annotations

import os
import re
from pathlib import Path

import nbformat
import papermill
import pytest
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError

from .kernel import kernel

LOAD = "%load_ext ipy_sandbox"

SCRIPTED = """
import sys
from pathlib import Path
from ipy_sandbox.errors import *
from ipy_sandbox.models import *
from ipy_sandbox.sandbox.fake import FakeProvider
from ipy_sandbox.sandbox.provider import register_provider
class Scripted(FakeProvider):
    name = "scripted"
provider = Scripted()
register_provider("scripted", lambda api_key, api_base: provider)
"""


def notebook(*cells: str) -> nbformat.NotebookNode:
    return nbformat.v4.new_notebook(
        cells=[nbformat.v4.new_code_cell(cell) for cell in (LOAD, *cells)],
        metadata={"kernelspec": {"name": "python3", "display_name": "Python 3"}},
    )


def execute(*cells: str) -> nbformat.NotebookNode:
    return NotebookClient(notebook(*cells), timeout=60, kernel_name="python3").execute()


@pytest.fixture(autouse=True)
def local_provider() -> None:
    os.environ["IPY_SANDBOX_PROVIDER"] = "local"


def test_a_notebook_runs_and_has_no_status_lines() -> None:
    done = execute("%%sandbox\nprint('hello')\n6 * 7", "%%sandbox\nimport time; time.sleep(1.5); print('slept')")
    assert done.cells[1].outputs[1].text == "hello\n"
    assert done.cells[1].outputs[2].data["text/plain"] == "42"
    assert [output.output_type for output in done.cells[2].outputs] == ["stream"]


@pytest.mark.parametrize(
    ("cell", "name"),
    [
        ("%%sandbox\n1/0", "ZeroDivisionError"),
        ("%sandbox --nope 1", "UsageError"),
        (
            f"{SCRIPTED}\nprovider.script = lambda code: [ExceptionGroup('g', [SandboxLostError('it is gone')])]\n"
            "%sandbox -p scripted 1",
            "SandboxLostError",
        ),
    ],
)
def test_a_failed_cell_ends_the_run(cell: str, name: str) -> None:
    with pytest.raises(CellExecutionError) as caught:
        execute(cell, "print('no')")
    assert "ipy_sandbox/magics" not in str(caught.value)
    assert name in str(caught.value)


def test_papermill_sees_the_remote_error(tmp_path: Path) -> None:
    source, done = tmp_path / "in.ipynb", tmp_path / "out.ipynb"
    nbformat.write(notebook("%%sandbox\n{}['key']", "print('no')"), source)
    with pytest.raises(papermill.PapermillExecutionError, match="KeyError"):
        papermill.execute_notebook(source, done, progress_bar=False, kernel_name="python3")
    cells = nbformat.read(done, as_version=4).cells
    assert not any(output.get("text") == "no\n" for cell in cells for output in cell.get("outputs", []))


class TestExit:
    SESSIONS = f"""{SCRIPTED}
log = Path(LOG)
class Logged(Scripted):
    def delete_at_exit(self, handles, budget):
        assert 0 < budget <= 2
        log.write_text(" ".join(h.id for h in handles))
provider = Logged()
%sandbox -p scripted -s one 1
%sandbox -p scripted -s two 1
%sandbox -p scripted -s kept --keep 1
"""

    @pytest.mark.parametrize("how", ["shutdown", "restart", "unload"])
    def test_the_sandboxes_are_deleted_unless_kept(self, tmp_path: Path, how: str) -> None:
        log = tmp_path / "deleted"
        with kernel() as started:
            started.ok(self.SESSIONS.replace("LOG", repr(str(log))))
            if how == "unload":
                started.ok("%unload_ext ipy_sandbox")
            elif how == "restart":
                started.manager.restart_kernel()
                assert log.read_text() == "fake1 fake2"
        assert log.read_text() == "fake1 fake2"

    def test_the_end_of_a_notebook_deletes_them(self, tmp_path: Path) -> None:
        log = tmp_path / "deleted"
        execute(self.SESSIONS.replace("LOG", repr(str(log))))
        assert log.read_text() == "fake1 fake2"


def test_a_background_cell_shows_its_last_state_in_its_own_cell() -> None:
    done = execute(
        "%%sandbox --bg job\nimport time\nfor i in range(3): time.sleep(.2); print(i)",
        "print('meanwhile')",
        "job.result().stdout",
    )
    (line,) = done.cells[1].outputs
    assert re.match(r"Job job: done [\d.]+ s · default\n0\n1\n2\n", line.data["text/plain"])
    assert [output.text for output in done.cells[2].outputs] == ["meanwhile\n"]
    assert done.cells[3].outputs[0].data["text/plain"] == r"'0\n1\n2\n'"
