"""One line for each request, for people or as JSON; never a key, a token, a prompt or code."""

from __future__ import annotations

import json
import logging
import sys
from datetime import UTC, datetime
from typing import Any

logger = logging.getLogger("ipy_sandbox.proxy")


class _Text(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        time = datetime.fromtimestamp(record.created, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        fields = " ".join(f"{k}={_word(v)}" for k, v in getattr(record, "fields", {}).items() if v is not None)
        return _one_line(f"{time} {record.levelname.lower()} {record.getMessage()} {fields}".rstrip() + _where(record))


class _Json(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        time = datetime.fromtimestamp(record.created, UTC).isoformat()
        head = {"time": time, "level": record.levelname.lower(), "message": record.getMessage() + _where(record)}
        return json.dumps(head | getattr(record, "fields", {}), default=str)


def _word(value: Any) -> str:
    text = str(value)
    return json.dumps(text) if not text or any(c.isspace() or c in '"=' for c in text) else text


def _where(record: logging.LogRecord) -> str:
    """Kind and place of an exception; its message may quote what the client sent."""
    if not record.exc_info or record.exc_info[1] is None:
        return ""
    error, frame = record.exc_info[1], record.exc_info[2]
    while frame is not None and frame.tb_next is not None:
        frame = frame.tb_next
    place = f" in {frame.tb_frame.f_code.co_filename}:{frame.tb_lineno}" if frame is not None else ""
    return f" [{type(error).__name__}{place}]"


def _one_line(text: str) -> str:
    """`text` without what ends a line or moves a terminal's cursor: clients choose paths and names of models."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def set_up_logging(form: str = "text", level: str = "info") -> None:
    """Send the log of this package and of uvicorn to stderr.

    Arguments:
        form: text or json.
        level: debug, info, warning or error.
    """
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_Json() if form == "json" else _Text())
    wanted = logging.getLevelNamesMapping()[level.upper()]
    for name in ("ipy_sandbox", "uvicorn"):
        log = logging.getLogger(name)
        log.handlers, log.propagate = [handler], False
        # One line for each request is enough; what the parts say about their work is for debugging.
        log.setLevel(wanted if wanted < logging.INFO else max(wanted, logging.WARNING))
    logger.setLevel(wanted)
    logging.getLogger("uvicorn.error").addFilter(_is_news)


def _is_news(record: logging.LogRecord) -> bool:
    # An answer that breaks off is cut for the client on purpose, and has a line of its own.
    return not record.getMessage().startswith("ASGI callable returned without completing response")
