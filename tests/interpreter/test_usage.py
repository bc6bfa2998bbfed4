"""Token counts over several turns, in the words of both APIs."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest

from ipy_sandbox.interpreter.usage import sum_usage, usage_for

ONE = {"prompt_tokens": 20, "completion_tokens": 9, "total_tokens": 29, "cost": 0.5, "queue": None, "tier": "a",
       "prompt_tokens_details": {"cached_tokens": 4}, "completion_tokens_details": None}  # fmt: skip
TWO = {"prompt_tokens": 30, "completion_tokens": 1, "total_tokens": 31, "cost": 0.25, "tier": "b",
       "prompt_tokens_details": {"cached_tokens": 6, "audio_tokens": 1},
       "completion_tokens_details": {"reasoning_tokens": 2}}  # fmt: skip


def test_every_number_is_summed() -> None:
    assert sum_usage([ONE, TWO]) == {
        "prompt_tokens": 50, "completion_tokens": 10, "total_tokens": 60, "cost": 0.75, "queue": None, "tier": "b",
        "prompt_tokens_details": {"cached_tokens": 10, "audio_tokens": 1},
        "completion_tokens_details": {"reasoning_tokens": 2},
    }  # fmt: skip
    assert ONE["prompt_tokens_details"] == {"cached_tokens": 4}, "the turns' own counts are left alone"


def test_the_total_is_the_servers_own() -> None:
    """xAI counts reasoning outside completion_tokens, so a recomputed total would be wrong."""
    turn = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 9}
    assert usage_for("responses", sum_usage([turn, turn]) or {})["total_tokens"] == 18


def test_a_turn_without_usage_makes_the_sum_unknown() -> None:
    assert sum_usage([ONE, None]) is None
    assert sum_usage([]) is None


def test_chat_counts_as_the_responses_api_writes_them() -> None:
    assert usage_for("responses", TWO | {"total_tokens": None}) == {
        "input_tokens": 30, "output_tokens": 1, "total_tokens": 31, "cost": 0.25, "tier": "b",
        "input_tokens_details": {"cached_tokens": 6, "cache_write_tokens": 0, "audio_tokens": 1},
        "output_tokens_details": {"reasoning_tokens": 2},
    }  # fmt: skip


def test_the_required_counts_are_there_even_if_the_server_left_them_out() -> None:
    """llama.cpp leaves out output_tokens_details; DeepSeek has its own word for cached tokens."""
    sparse = {"input_tokens": 20, "output_tokens": 9, "total_tokens": 29}
    assert usage_for("responses", sparse) == sparse | {
        "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
        "output_tokens_details": {"reasoning_tokens": 0},
    }
    deepseek = usage_for("chat", {"prompt_tokens": 5, "completion_tokens": 1, "prompt_cache_hit_tokens": 3})
    assert (deepseek["prompt_tokens_details"], deepseek["total_tokens"]) == ({"cached_tokens": 3}, 6)


def test_responses_counts_as_chat_writes_them() -> None:
    there = usage_for("responses", TWO)
    back = usage_for("chat", there)
    assert back["prompt_tokens_details"].pop("cache_write_tokens") == 0
    assert back == TWO


@pytest.mark.parametrize("wrong", ["12", -5, math.nan, math.inf, True, {"a": 1}, [3], None, 10**400])
def test_what_is_no_count_is_absent(wrong: Any) -> None:
    turn = {"prompt_tokens": wrong, "completion_tokens": 2, "completion_tokens_details": wrong}
    turn["prompt_tokens_details"] = {"cached_tokens": wrong}
    for usage in (sum_usage([turn, turn]), sum_usage([turn, ONE])):
        assert usage is not None
        written = usage_for("responses", usage)
        assert written["input_tokens"] in (0, 20)
        assert written["total_tokens"] in (4, 29)
        assert written["input_tokens_details"]["cached_tokens"] in (0, 4)
        json.dumps(written, allow_nan=False)
