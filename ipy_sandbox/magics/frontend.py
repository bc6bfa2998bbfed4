"""Who looks at the output: a notebook that someone watches, a batch run, a terminal, or `%%capture`."""

from __future__ import annotations

import html
from typing import TYPE_CHECKING, Any

from ..safe_output import safe_text

if TYPE_CHECKING:
    from IPython.core.interactiveshell import InteractiveShell


def in_kernel(shell: InteractiveShell) -> bool:
    """Whether a front end with rich output is behind the shell; False in a terminal."""
    return getattr(shell, "kernel", None) is not None


def is_watched(shell: InteractiveShell) -> bool:
    """Whether somebody sees the output of this cell as it comes; False for nbclient, papermill and `%%capture`."""
    kernel = getattr(shell, "kernel", None)
    # Batch tools are the front ends that cannot answer input(); captured output has a publisher of its own.
    return kernel is not None and kernel._allow_stdin and hasattr(shell.display_pub, "pub_socket")


def line_bundle(text: str) -> dict[str, Any]:
    """One dim line of ours as a MIME bundle; `text` may quote a sandbox."""
    text = safe_text(text)
    style = "color: var(--jp-ui-font-color2, gray); font-size: 90%"
    return {"text/plain": text, "text/html": f'<span style="{style}">{html.escape(text)}</span>' if text else ""}


def show_line(shell: InteractiveShell, text: str) -> None:
    """Show one dim line of ours."""
    shell.display_pub.publish(line_bundle(text), {})


def count(number: int, what: str) -> str:
    """`1 turn`, `2 turns`."""
    return f"{number} {what}{'s' if number != 1 else ''}"
