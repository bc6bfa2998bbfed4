"""JupyterLab as a process, its pages, and a listener that nobody should ask."""

from __future__ import annotations

import http.server
import json
import os
import secrets
import subprocess
import sys
import threading
import time
import urllib.request
from pathlib import Path
from typing import Any

import nbformat
from playwright.sync_api import Browser, Page


class Listener:
    """Records each connection and each request to a loopback port."""

    def __init__(self) -> None:
        self.requests: list[str] = []
        requests = self.requests

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                requests.append(self.path)
                self.send_response(204)
                self.end_headers()

            do_POST = do_HEAD = do_PUT = do_OPTIONS = do_GET

            def log_message(self, *args: Any) -> None:
                pass

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.address = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


class Lab:
    """A running JupyterLab."""

    def __init__(self, root: Path, browser: Browser) -> None:
        self.root = root
        self.browser = browser
        self.token = secrets.token_hex(8)
        environ = {
            **os.environ,
            "HOME": str(root / ".home"),
            "IPYTHONDIR": str(root / ".ipython"),
            "JUPYTER_CONFIG_DIR": str(root / ".config"),
            "JUPYTER_DATA_DIR": str(root / ".data"),
            "JUPYTER_RUNTIME_DIR": str(root / ".runtime"),
            "JUPYTERLAB_SETTINGS_DIR": str(root / ".settings"),
        }
        (root / ".home").mkdir()
        self._set("apputils-extension/notification", {"fetchNews": "false", "checkForUpdates": False})
        self._set("notebook-extension/tracker", {"windowingMode": "none", "maxNumberOutputs": 1000})
        self._log = (root / ".lab.log").open("wb")
        self._process = subprocess.Popen(
            [
                sys.executable, "-m", "jupyterlab", "--no-browser", "--allow-root", "--ip=127.0.0.1", "--port=0",
                f"--IdentityProvider.token={self.token}", f"--ServerApp.root_dir={root}",
                "--LabApp.expose_app_in_browser=True", "--LabApp.extension_manager=readonly",
            ],
            cwd=root, env=environ, stdout=self._log, stderr=subprocess.STDOUT,
        )  # fmt: skip
        self.url = self._wait()

    def _set(self, plugin: str, settings: dict[str, Any]) -> None:
        path = self.root / ".settings" / "@jupyterlab" / f"{plugin}.jupyterlab-settings"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(settings))

    def _wait(self) -> str:
        runtime = self.root / ".runtime"
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline and self._process.poll() is None:
            for info in runtime.glob("jpserver-*.json"):
                try:
                    url = json.loads(info.read_text())["url"].rstrip("/")
                    urllib.request.urlopen(f"{url}/api/status?token={self.token}", timeout=5).close()
                except (OSError, ValueError):
                    continue
                return str(url)
            time.sleep(0.1)
        raise RuntimeError((self.root / ".lab.log").read_text()[-2000:])

    def write(self, name: str, *cells: str) -> Path:
        """A notebook of these code cells."""
        notebook = nbformat.v4.new_notebook(
            cells=[nbformat.v4.new_code_cell(c) for c in cells],
            metadata={"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}},
        )
        path = self.root / name
        nbformat.write(notebook, path)
        return path

    def open(self, name: str, *, theme: str = "JupyterLab Light") -> Page:
        """A page with that notebook in the single-document mode."""
        page = self.browser.new_page(viewport={"width": 1200, "height": 900})
        page.goto(f"{self.url}/doc/tree/{name}?token={self.token}&reset")
        page.wait_for_function("window.jupyterapp && document.querySelector('.jp-Notebook .jp-Cell')", timeout=60_000)
        self.command(page, "apputils:change-theme", theme=theme)
        return page

    @staticmethod
    def command(page: Page, command: str, **args: Any) -> None:
        page.evaluate("([c, a]) => window.jupyterapp.commands.execute(c, a).then(() => null)", [command, args])

    def run_all(self, page: Page) -> None:
        """Run all cells, wait until they are done."""
        page.wait_for_function(
            "window.jupyterapp.shell.currentWidget?.sessionContext?.session?.kernel?.status === 'idle'", timeout=60_000
        )
        self.command(page, "notebook:run-all-cells")

    def save(self, page: Page) -> None:
        self.command(page, "docmanager:save")

    def close(self) -> None:
        self._process.terminate()
        self._process.wait(30)
        self._log.close()
