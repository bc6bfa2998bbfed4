"""plotly.js: sent once by a sandbox, needed in each frame."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

_LIBRARY = re.compile(r"\*\s+plotly\.js v\d")
_FIGURE = re.compile(r"\bPlotly\.(newPlot|react)\(")


class PlotlyLibrary:
    """Gives a figure that relies on an earlier output's plotly.js its own copy: frames share nothing."""

    def __init__(self) -> None:
        self._seen = ""

    def complete(self, html: str) -> str:
        """`html` with the library, if it is a figure without; nothing if it is only the library, kept for later."""
        has_library = bool(_LIBRARY.search(html))
        is_figure = bool(_FIGURE.search(html[-2_000_000:] if has_library else html))
        if has_library and not is_figure:
            self._seen = html
            return ""
        return (self._seen or _installed()) + html if is_figure and not has_library else html


def _installed() -> str:
    """The copy in this Python's plotly package, or nothing."""
    spec = importlib.util.find_spec("plotly")
    for place in (spec.submodule_search_locations or []) if spec else []:
        library = Path(place) / "package_data" / "plotly.min.js"
        if library.is_file():
            return f"<script>{library.read_text(encoding='utf-8')}</script>"
    return ""
