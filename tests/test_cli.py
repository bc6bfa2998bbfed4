"""`ipy-sandbox`: the demo and the kernelspec, as people run them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest
from jupyter_client.manager import start_new_kernel


def ipy_sandbox(*arguments: str, **environ: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "ipy_sandbox.cli", *arguments]
    return subprocess.run(command, capture_output=True, text=True, env={**os.environ, **environ}, timeout=100)


def test_the_demo_writes_the_quickstart_with_its_chart(tmp_path: Path) -> None:
    done = ipy_sandbox("demo", "--output", str(tmp_path / "new"))
    assert done.returncode == 0, done.stderr
    assert "The quickstart ran." in done.stdout
    notebook = nbformat.read(tmp_path / "new" / "01_quickstart.ipynb", as_version=4)
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    assert any("image/png" in output.get("data", {}) for output in outputs)
    assert "data:image/png;base64" in (tmp_path / "new" / "01_quickstart.html").read_text()


def test_the_demo_says_where_it_cannot_write(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    done = ipy_sandbox("demo", "--output", str(tmp_path / "file"))
    assert done.returncode == 2
    assert "cannot be written" in done.stderr
    assert "Traceback" not in done.stderr


def test_the_kernel_runs_every_cell_in_the_sandbox(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    done = ipy_sandbox("install", "--prefix", str(tmp_path))
    assert done.returncode == 0, done.stderr
    spec = json.loads((tmp_path / "share/jupyter/kernels/ipy-sandbox/kernel.json").read_text())
    assert spec["display_name"] == "Python (sandbox)"
    monkeypatch.setenv("JUPYTER_PATH", str(tmp_path / "share/jupyter"))
    manager, client = start_new_kernel(kernel_name="ipy-sandbox")
    try:

        def value(code: str) -> str:
            values = []

            def keep(message: dict[str, object]) -> None:
                if message["msg_type"] == "execute_result":
                    values.append(message["content"]["data"]["text/plain"])  # type: ignore[index]

            reply = client.execute_interactive(code, output_hook=keep, timeout=60)
            assert reply["content"]["status"] == "ok", reply["content"]
            return str(values[0])

        assert value("import socket\nsocket.gethostname()") == "'sandbox'"
        assert value("%%local\nimport socket\nsocket.gethostname() == 'sandbox'") == "False"
        assert value("await __import__('asyncio').sleep(0, 'awaited there')") == "'awaited there'"
    finally:
        client.stop_channels()
        manager.shutdown_kernel()
        manager.cleanup_resources()


def test_install_and_uninstall(tmp_path: Path) -> None:
    data = str(tmp_path / "data")
    assert ipy_sandbox("install", "--user", JUPYTER_DATA_DIR=data).returncode == 0
    assert (tmp_path / "data/kernels/ipy-sandbox/logo-64x64.png").is_file()
    assert data in ipy_sandbox("uninstall", "--user", JUPYTER_DATA_DIR=data).stdout
    assert not (tmp_path / "data/kernels/ipy-sandbox").exists()
    assert "There is no kernelspec" in ipy_sandbox("uninstall", "--user", JUPYTER_DATA_DIR=data).stderr


def test_without_a_command_there_is_help() -> None:
    done = ipy_sandbox()
    assert done.returncode == 2
    assert "COMMAND" in done.stderr
