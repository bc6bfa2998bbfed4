"""Input transformers: what happens to the text of a cell before IPython reads it."""

from __future__ import annotations

import itertools

from .settings import Settings

CELL_MAGICS = ("%%sandbox", "%%ai", "%%local")
LINE_MAGICS = ("%sandbox", "%sandbox_session", "%ai", "%load_ext", "%reload_ext", "%unload_ext", "%config")


def hoist_cell_magic(lines: list[str]) -> list[str]:
    """Put comments above one of our cell magics below its line: IPython knows a cell magic only in the first line."""
    for i, line in enumerate(lines):
        if _magic(line) in CELL_MAGICS:
            above = list(itertools.dropwhile(lambda text: not text.strip(), lines[:i]))
            return [line, *above, *lines[i + 1 :]]
        if line.strip() and not line.startswith("#"):
            break
    return lines


class WholeNotebook:
    """Sends cells to the sandbox as if each began with `%%sandbox`, while the setting `auto` is on.

    Everything goes there: statements, `await`, `!ls`, `x?`, `%%time`, `%%bash`. Only our own magics, a line of
    `%load_ext` or `%config`, and cells that begin with `%%local` run here. `%%local` is a mark that is taken away, so
    that such a cell is an ordinary one; it works whether it is on or not.
    """

    has_side_effects = True  # IPython skips such a transformer when it only asks whether a cell is complete

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._here = False

    def __call__(self, lines: list[str]) -> list[str]:
        """The cell as it is to run."""
        first = next((i for i, line in enumerate(lines) if line.strip() and not line.startswith("#")), None)
        if first is None:
            return lines
        magic = _magic(lines[first])
        if magic == "%%local":
            # Magics inside the cell transform their body again: that must stay here too.
            self._here = True
            return lines[first + 1 :]
        if self._here or not self._settings.auto or magic in CELL_MAGICS or magic in LINE_MAGICS:
            return lines
        return ["%%sandbox\n", *lines]

    def cell_is_over(self, result: object = None) -> None:
        """The cell has run: the next one is looked at anew."""
        self._here = False


def _magic(line: str) -> str:
    return line.split(maxsplit=1)[0] if line.startswith("%") else ""
