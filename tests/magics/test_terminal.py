"""IPython in a terminal: text, images by name, Ctrl-C."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import nbformat
import pytest

from .conftest import Shell

COLOUR = re.compile(r"\x1b\[[0-9;]*m")


@contextmanager
def ipython(directory: Path, *cells: str) -> Iterator[subprocess.Popen[str]]:
    """IPython that runs `cells`, one after the other until one fails."""
    path = directory / "cells.ipynb"
    notebook = nbformat.v4.new_notebook(
        cells=[nbformat.v4.new_code_cell(cell) for cell in ("%load_ext ipy_sandbox", *cells)],
        metadata={"kernelspec": {"name": "python3", "language": "python", "display_name": "Python 3"}},
    )
    nbformat.write(notebook, path)
    env = {**os.environ, "IPY_SANDBOX_PROVIDER": "local", "IPYTHONDIR": str(directory), "NO_COLOR": "1"}
    command = [sys.executable, "-u", "-m", "IPython", "--no-banner", str(path)]
    with subprocess.Popen(
        command, env=env, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def test_text_values_tables_and_images(tmp_path: Path) -> None:
    with ipython(
        tmp_path,
        "%%sandbox\nprint('hello')",
        "answer = %sandbox 6 * 7\nprint(answer)",
        "%%sandbox\nimport matplotlib.pyplot as plt\nplt.plot([1]); plt.show()",
        "%%sandbox\nfrom IPython.display import Image, display\n"
        "h = display(0, display_id=True)\nfor i in range(1, 100): h.update(i)",
        "sessions = %sandbox_session\nprint(sessions)",
        "%%sandbox\nimport time; time.sleep(1.5); print('slept')",
    ) as process:
        out = process.communicate(timeout=100)[0]
    assert process.returncode == 0, out
    said = COLOUR.sub("", out).splitlines()
    assert said[0].startswith("Session default: sandbox local-")
    assert said[1] == "hello"
    assert said[2] == "42"
    assert "<Figure size 640x480 with 1 Axes>" in said
    assert [line for line in said if line.isdigit()] == ["42", "0", "99"]
    assert any(re.match(r"\*  default +local +local-", line) for line in said)
    assert said[-1] == "slept"


def test_a_remote_error_ends_the_run_with_its_traceback_only(tmp_path: Path) -> None:
    with ipython(tmp_path, "%%sandbox\n1/0", "print('never')") as process:
        out = COLOUR.sub("", process.communicate(timeout=100)[0])
    assert "ZeroDivisionError: division by zero" in out
    assert "ipy_sandbox/" not in out
    assert "never" not in out
    assert process.returncode == 1


def test_ctrl_c_stops_the_remote_code(tmp_path: Path) -> None:
    with ipython(tmp_path, "%%sandbox\nimport time\nprint('begun', flush=True)\nwhile True: time.sleep(.1)") as process:
        assert process.stdout is not None
        for line in process.stdout:
            if line == "begun\n":
                break
        process.send_signal(signal.SIGINT)
        out = process.communicate(timeout=100)[0]
    assert "KeyboardInterrupt" in out
    assert process.returncode == 1


def test_models_are_asked_for_where_no_event_loop_runs(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_BASE_URL", "http://127.0.0.1:1/v1")
    error = shell.run("%ai --model openai/m models").error_in_exec
    assert "Cannot reach the model server 127.0.0.1:1" in str(error)
