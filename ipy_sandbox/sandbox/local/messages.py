"""Jupyter messages from a sandbox to events. Nothing in them can be trusted, not even their shape."""

from __future__ import annotations

from typing import Any

from ...models import ClearOutput, Display, Event, ExecutionCount, ExecutionError, Stderr, Stdout


def event_of(msg_type: str, content: dict[str, Any]) -> Event | None:
    """The event of an iopub message, or None for one that shows nothing."""
    match msg_type:
        case "stream":
            text = str(content.get("text", ""))
            return Stderr(text) if content.get("name") == "stderr" else Stdout(text)
        case "display_data" | "update_display_data" | "execute_result":
            return Display(
                data=_dict(content.get("data")),
                metadata=_dict(content.get("metadata")),
                display_id=_display_id(content),
                update=msg_type == "update_display_data",
                is_result=msg_type == "execute_result",
            )
        case "clear_output":
            return ClearOutput(wait=bool(content.get("wait")))
        case "error":
            lines = content.get("traceback")
            traceback = "\n".join(map(str, lines)) if isinstance(lines, list) else ""
            return ExecutionError(str(content.get("ename", "")), str(content.get("evalue", "")), traceback)
        case "execute_input":
            count = content.get("execution_count")
            return ExecutionCount(count) if type(count) is int and 0 < count < 1 << 31 else None
    return None


def parsed_size(frames: list[bytes]) -> int:
    """About how many bytes a message takes once it is parsed: a list in JSON is two characters, and 64 bytes here."""
    return sum(len(f) + 64 * (f.count(b"[") + f.count(b"{")) + 40 * f.count(b",") for f in frames)


def _dict(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _display_id(content: dict[str, Any]) -> str | None:
    found = _dict(content.get("transient")).get("display_id")
    return None if found is None else str(found)
