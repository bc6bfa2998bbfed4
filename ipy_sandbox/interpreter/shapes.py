"""Reading JSON that a server wrote: a value of another type than expected counts as absent."""

from __future__ import annotations

from typing import Any


def as_dict(value: Any) -> dict[str, Any]:
    """`value` if it is an object, else an empty one."""
    return value if isinstance(value, dict) else {}


def as_list(value: Any) -> list[Any]:
    """`value` if it is a list, else an empty one."""
    return value if isinstance(value, list) else []


def as_dicts(value: Any) -> list[dict[str, Any]]:
    """The objects in a list."""
    return [item for item in as_list(value) if isinstance(item, dict)]


def as_str(value: Any) -> str:
    """`value` if it is a string, else an empty one."""
    return value if isinstance(value, str) else ""
