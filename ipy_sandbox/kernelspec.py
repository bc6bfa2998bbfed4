"""The kernelspec "Python (sandbox)": a kernel that sends every cell to the sandbox."""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
from pathlib import Path

from jupyter_client.kernelspec import KernelSpecManager
from jupyter_core.paths import SYSTEM_JUPYTER_PATH, jupyter_data_dir, jupyter_path

from .errors import ConfigurationError

NAME = "ipy-sandbox"


def install(*, user: bool = False, prefix: str | None = None) -> Path:
    """Install the kernelspec, for this Python, and return its directory.

    Arguments:
        user: for the user, instead of for the whole system.
        prefix: below this directory, such as `sys.prefix`.

    Raises:
        ConfigurationError: the directory cannot be written, or the files of the package are missing.
    """
    with tempfile.TemporaryDirectory() as directory:
        source = Path(directory, NAME)
        shutil.copytree(_shipped(), source)
        spec = json.loads((source / "kernel.json").read_text())
        # The server may run in another environment.
        spec["argv"][0] = sys.executable
        (source / "kernel.json").write_text(json.dumps(spec, indent=2))
        manager = KernelSpecManager()
        try:
            return Path(manager.install_kernel_spec(str(source), NAME, user=user, prefix=prefix))
        except OSError as error:
            raise ConfigurationError(
                f"The kernelspec cannot be written to {error.filename}: {error.strerror}; try --user or --sys-prefix."
            ) from None


def uninstall(*, user: bool = False, prefix: str | None = None) -> Path:
    """Remove the kernelspec from where `install` with the same arguments puts it, and return that directory.

    Raises:
        ConfigurationError: it is not there, or cannot be removed.
    """
    base = Path(prefix, "share", "jupyter") if prefix else Path(jupyter_data_dir() if user else SYSTEM_JUPYTER_PATH[0])
    directory = base / "kernels" / NAME
    if not directory.is_dir():
        raise ConfigurationError(f"There is no kernelspec in {directory}: say where with --user or --sys-prefix.")
    try:
        shutil.rmtree(directory)
    except OSError as error:
        raise ConfigurationError(f"The kernelspec cannot be removed from {directory}: {error.strerror}.") from None
    return directory


def _shipped() -> Path:
    for directory in jupyter_path("ipy-sandbox", "kernels", NAME):
        if Path(directory, "kernel.json").is_file():
            return Path(directory)
    raise ConfigurationError("The files of the kernelspec are missing: install ipy-sandbox again.")
