"""Token counts: summed over turns, and written the way each API writes them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from .shapes import as_dict
from .turn import API

_CHAT_NAMES = {
    "input_tokens": "prompt_tokens",
    "output_tokens": "completion_tokens",
    "input_tokens_details": "prompt_tokens_details",
    "output_tokens_details": "completion_tokens_details",
}
_RESPONSES_NAMES = {chat: responses for responses, chat in _CHAT_NAMES.items()}


_MOST = 1e15
"""Tokens that no answer has."""


def sum_usage(usages: Iterable[dict[str, Any] | None]) -> dict[str, Any] | None:
    """Every number summed, details and unknown fields too; None if a turn reported nothing, not a wrong total.

    Whatever a server writes, `…tokens` are numbers in it, or absent.
    """
    total: dict[str, Any] = {}
    for usage in usages:
        if usage is None:
            return None
        _add(total, usage)
    return total or None


def _add(total: dict[str, Any], usage: dict[str, Any]) -> None:
    for name, value in usage.items():
        before = total.get(name)
        if name.endswith("tokens") and not (_is_number(value) and 0 <= value < _MOST):
            continue
        if isinstance(value, dict):
            total[name] = before if isinstance(before, dict) else {}
            _add(total[name], value)
        elif _is_number(value) and _is_number(before):
            total[name] = before + value
        elif value is not None or name not in total:
            total[name] = value


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def usage_for(api: API, usage: dict[str, Any]) -> dict[str, Any]:
    """`usage` with the names and all required fields of `api`; unknown fields stay."""
    names = _CHAT_NAMES if api == "chat" else _RESPONSES_NAMES
    usage = {names.get(name, name): value for name, value in usage.items()}
    read, written = ("prompt_tokens", "completion_tokens") if api == "chat" else ("input_tokens", "output_tokens")
    counts = {read: usage.get(read) or 0, written: usage.get(written) or 0}
    counts["total_tokens"] = usage.get("total_tokens") or sum(counts.values())
    cached = {"cached_tokens": usage.get("prompt_cache_hit_tokens") or 0}  # DeepSeek's name
    required: dict[str, dict[str, int]] = {f"{read}_details": cached, f"{written}_details": {"reasoning_tokens": 0}}
    if api == "responses":
        cached["cache_write_tokens"] = 0
    for name, details in required.items():
        given = {k: v for k, v in as_dict(usage.get(name)).items() if v is not None}
        required[name] = {**details, **given}
    return {**usage, **counts, **required}
