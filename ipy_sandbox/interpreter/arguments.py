"""The `code` inside a tool call's arguments: read whole, or piece by piece while the model still writes it."""

from __future__ import annotations


def parse_code(arguments: str, *, bare: bool = False) -> str | None:
    """The string under `code` in a JSON object (which may be encoded twice); None if there is none.

    Arguments:
        bare: take text that is no JSON at all for the code itself, as models trained on a `python` tool write it.
    """
    raise NotImplementedError


class CodeDecoder:
    """Turns fragments of arguments into pieces of the code itself, as they arrive.

    The pieces joined are what `parse_code` gives for the joined fragments, wherever they were cut.
    """

    def __init__(self, *, bare: bool = False) -> None:
        self._bare = bare

    def feed(self, fragment: str) -> str:
        """The code that `fragment` adds, empty if none."""
        raise NotImplementedError
