"""Answers as objects: fields as attributes, whatever the endpoint sent beside the known ones included."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator, Mapping
from typing import Any


class ApiObject(Mapping[str, Any]):
    """A JSON object of an API: `response.output[0].type` and `response["output"]` both work; equal to its dict."""

    def __init__(self, data: Mapping[str, Any]) -> None:
        self._data = dict(data)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or name not in self._data:
            raise AttributeError(f"This {self._data_kind()} has no {name!r}; it has {', '.join(self.keys())}.")
        return _wrapped(self._data[name])

    def _data_kind(self) -> str:
        data = self.__dict__.get("_data", {})
        return str(data.get("object") or data.get("type") or "object")

    def __getitem__(self, name: str) -> Any:
        return _wrapped(self._data[name])

    def __iter__(self) -> Iterator[str]:
        return iter(self._data)

    def __len__(self) -> int:
        return len(self._data)

    def __dir__(self) -> list[str]:
        return [*super().__dir__(), *self._data]

    def __repr__(self) -> str:
        return f"ApiObject({self._data!r})"

    @property
    def output_text(self) -> str:
        """All text of a response's messages."""
        if "output" not in self._data:
            raise AttributeError(f"This {self._data_kind()} has no output.")
        messages = (item for item in self._data["output"] if item.get("type") == "message")
        parts = (part for message in messages for part in message.get("content") or [])
        return "".join(part.get("text") or "" for part in parts if part.get("type") == "output_text")

    def model_dump(self, *, exclude_none: bool = False) -> dict[str, Any]:
        """A plain dict of all fields; with `exclude_none` without those that are None."""
        return {k: copy.deepcopy(v) for k, v in self._data.items() if v is not None or not exclude_none}

    def model_dump_json(self, *, indent: int | None = None) -> str:
        """All fields as JSON."""
        return json.dumps(self._data, indent=indent, ensure_ascii=False)


def _wrapped(value: Any) -> Any:
    if isinstance(value, dict):
        return ApiObject(value)
    return [_wrapped(entry) for entry in value] if isinstance(value, list) else value


def plain(value: Any) -> Any:
    """Objects as dicts again, so that what came from an answer can go into the next request."""
    if isinstance(value, ApiObject):
        return value.model_dump()
    if hasattr(value, "model_dump") and not isinstance(value, type):
        return value.model_dump(exclude_none=True)
    if isinstance(value, Mapping):
        return {key: plain(entry) for key, entry in value.items()}
    return [plain(entry) for entry in value] if isinstance(value, list | tuple) else value
