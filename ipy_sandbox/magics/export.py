"""What ran, as cells of a notebook."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import nbformat
import nbformat.v4
from IPython.core.error import UsageError

from .record import CellRecord, Record


def code_cell(record: CellRecord) -> nbformat.NotebookNode:
    """An execution as a code cell with its outputs."""
    outputs = [nbformat.from_dict(_joined(output)) for output in record.outputs]
    cell: nbformat.NotebookNode = nbformat.v4.new_code_cell(
        record.code.removesuffix("\n"), execution_count=record.execution_count, outputs=outputs
    )
    return cell


def _joined(output: dict[str, Any]) -> dict[str, Any]:
    return {**output, "text": "".join(output["text"])} if "text" in output else output


def export_notebook(record: Record, path: Path, session: str) -> int:
    """Write what ran in a session as a notebook; return the number of its cells.

    Raises:
        UsageError: `path` is no name of a notebook, or cannot be written.
    """
    title = nbformat.v4.new_markdown_cell(f"What ran in the sandbox session `{session}`.")
    write_notebook(path, [title, *map(code_cell, record.cells)])
    return len(record.cells)


def write_notebook(path: Path, cells: list[nbformat.NotebookNode]) -> None:
    """Write `cells` as a notebook; raises UsageError if `path` is no name of one or cannot be written."""
    if path.suffix != ".ipynb":
        raise UsageError(f"{path} is no name of a notebook: it must end in .ipynb.")
    kernel = {"name": "python3", "display_name": "Python 3", "language": "python"}
    notebook = nbformat.v4.new_notebook(cells=cells, metadata={"kernelspec": kernel})
    nbformat.validate(notebook)
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        # A full disk must not cost the notebook that was there.
        partial.write_text(nbformat.writes(notebook), encoding="utf-8")
        os.replace(partial, path)
    except OSError as error:
        raise UsageError(f"{path} cannot be written: {error.strerror}.") from None
    finally:
        partial.unlink(missing_ok=True)
