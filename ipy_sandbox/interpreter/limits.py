"""How far one request may go."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Limits:
    """Past a limit the model is asked for its answer without the tool.

    Arguments:
        turns: model calls.
        calls: executions; a request's `max_tool_calls` can only lower it.
        seconds: of the whole; code that runs then is stopped, a model that writes then is not.
        run_seconds: of one execution.
        model_chars: characters of one execution's output that the model sees.
        client_chars: characters of one execution's logs that the client sees.
    """

    turns: int = 30
    calls: int = 60
    seconds: float = 1200
    run_seconds: float = 300
    model_chars: int = 20_000
    client_chars: int = 1_000_000
