"""The table of sessions."""

from __future__ import annotations

import asyncio
import html
from collections.abc import Sequence
from datetime import UTC, datetime

from ..errors import SandboxError
from ..models import SandboxInfo
from ..safe_output import safe_text
from .sessions import NotebookSession, Sessions

INFO_TIMEOUT = 3.0
"""Seconds that the providers have to say how the sandboxes are."""

MOST_ROWS, LONGEST_CELL = 1000, 5000
"""What a page shows without effort; a sandbox has made lists of hundreds of thousands of files."""

HEADER = ("", "session", "provider", "sandbox", "state", "age", "time left", "memory", "runs")


class Table:
    """Rows of text under a header, for notebooks and terminals; the text may come from a sandbox."""

    def __init__(self, header: Sequence[str], rows: Sequence[Sequence[str]], empty: str) -> None:
        self.header = header
        self.rows = [[safe_text(cell[:LONGEST_CELL]) for cell in row] for row in rows[:MOST_ROWS]]
        if len(rows) > MOST_ROWS:
            self.rows.append([f"... and {len(rows) - MOST_ROWS} more", *[""] * (len(header) - 1)])
        self._empty = empty

    def __repr__(self) -> str:
        if not self.rows:
            return self._empty
        widths = [max(map(len, column)) for column in zip(self.header, *self.rows, strict=True)]
        lines = [self.header, *self.rows] if any(self.header) else self.rows
        return "\n".join(
            "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines
        )

    def _repr_html_(self) -> str:
        if not self.rows:
            return html.escape(self._empty)
        return f"<table><thead>{_row(self.header, 'th')}</thead><tbody>{''.join(map(_row, self.rows))}</tbody></table>"


def _row(cells: Sequence[str], tag: str = "td") -> str:
    inner = "".join(f'<{tag} style="text-align: left">{html.escape(cell)}</{tag}>' for cell in cells)
    return f"<tr>{inner}</tr>"


async def session_table(sessions: Sessions) -> Table:
    """All sessions and what their providers say of them."""
    entries = sorted(sessions, key=lambda s: s.name)
    infos = await asyncio.gather(*map(_info, entries))
    rows = [_cells(entry, info, entry.name == sessions.current) for entry, info in zip(entries, infos, strict=True)]
    return Table(HEADER, rows, "No sessions yet: `%%sandbox` or `%sandbox_session start NAME` makes one.")


async def _info(entry: NotebookSession) -> SandboxInfo | SandboxError | None:
    try:
        async with asyncio.timeout(INFO_TIMEOUT):
            return await entry.session.ainfo()
    except SandboxError as error:
        return error
    except TimeoutError:
        return None


def _cells(entry: NotebookSession, info: SandboxInfo | SandboxError | None, current: bool) -> list[str]:
    session, now = entry.session, datetime.now(UTC)
    known = info if isinstance(info, SandboxInfo) else None
    handle = session.handle
    return [
        "*" if current else "",
        entry.name,
        entry.provider,
        handle.id if handle else "-",
        _state(entry, info),
        _span((now - handle.created_at).total_seconds()) if handle else "-",
        _span((known.expires_at - now).total_seconds()) if known and known.expires_at else "-",
        f"{known.memory_bytes / 1e6:.0f} MB" if known and known.memory_bytes else "-",
        str(session.executions),
    ]


def _state(entry: NotebookSession, info: SandboxInfo | SandboxError | None) -> str:
    session = entry.session
    if session.lost is not None:
        return "lost"
    if session.handle is None:
        return "not started"
    if session.busy:
        return "busy"
    if isinstance(info, SandboxInfo):
        return "idle" if info.state == "running" else info.state
    return "unknown"


def _span(seconds: float) -> str:
    seconds = max(0, round(seconds))
    if seconds < 60:
        return f"{seconds} s"
    if seconds < 3600:
        return f"{seconds // 60} min {seconds % 60} s"
    return f"{seconds // 3600} h {seconds % 3600 // 60} min"
