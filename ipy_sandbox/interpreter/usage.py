"""Token counts: summed over turns, and written the way each API writes them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from .turn import API


def sum_usage(usages: Iterable[dict[str, Any] | None]) -> dict[str, Any] | None:
    """Every number summed, details too; None if a turn reported nothing, rather than a wrong total."""
    raise NotImplementedError


def usage_for(api: API, usage: dict[str, Any]) -> dict[str, Any]:
    """`usage` with the names and all required fields of `api`; unknown fields stay."""
    raise NotImplementedError
