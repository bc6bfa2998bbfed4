"""`ipy-sandbox demo`: run the quickstart notebook and write it with its outputs."""

from __future__ import annotations

from pathlib import Path

from jupyter_core.paths import jupyter_path

from .errors import ConfigurationError

QUICKSTART = "01_quickstart.ipynb"


def run_demo(directory: Path) -> list[Path]:
    """Execute the quickstart here and write it into `directory`, as a notebook and as a page; return both paths.

    Raises:
        ConfigurationError: a package is missing, or `directory` cannot be written.
    """
    try:
        import nbclient
        import nbformat
        from nbconvert import HTMLExporter
    except ModuleNotFoundError as error:
        raise ConfigurationError(f"{error.name} is missing: pip install 'ipy-sandbox[lab]'.") from None
    notebook = nbformat.read(_quickstart(), as_version=4)
    # Cells that show what an error looks like are marked as such in the notebook.
    nbclient.NotebookClient(
        notebook,
        timeout=120,
        kernel_name="python3",
        # New kernels warn that loopback is not encrypted.
        extra_arguments=["--IPKernelApp.log_level=ERROR"],
    ).execute()
    page, _ = HTMLExporter().from_notebook_node(notebook)  # type: ignore[no-untyped-call]
    written = [directory / QUICKSTART, directory / "01_quickstart.html"]
    try:
        directory.mkdir(parents=True, exist_ok=True)
        nbformat.write(notebook, written[0])
        written[1].write_text(page)
    except OSError as error:
        raise ConfigurationError(f"{error.filename} cannot be written: {error.strerror}.") from None
    return written


def _quickstart() -> Path:
    for directory in jupyter_path("ipy-sandbox", "notebooks"):
        path = Path(directory, QUICKSTART)
        if path.is_file():
            return path
    raise ConfigurationError("The notebooks are missing: install ipy-sandbox again.")
