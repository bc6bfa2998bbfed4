"""`%%ai` with a real model, only on request: IPY_SANDBOX_MODEL_URL=http://127.0.0.1:8080/v1 pytest -m model."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from .kernel import Kernel, kernel

URL = os.environ.get("IPY_SANDBOX_MODEL_URL", "")

pytestmark = [
    pytest.mark.model,
    pytest.mark.timeout(300),
    pytest.mark.skipif(not URL, reason="IPY_SANDBOX_MODEL_URL is not set"),
]


@pytest.fixture(scope="module")
def shared() -> Iterator[Kernel]:
    with kernel(IPY_SANDBOX_PROVIDER="local", OPENAI_BASE_URL=URL, OPENAI_API_KEY="none") as started:
        started.ok("%config AIMagics.parameters = {'temperature': 0}")
        yield started


@pytest.mark.parametrize(
    ("number", "question"),
    [
        ("30030", "Use Python to compute the product of 2, 3, 5, 7, 11 and 13."),
        ("500500", "Use Python to compute the sum of the integers from 1 to 1000."),
        ("3", "Use Python to count the letter r in 'strawberry'."),
        ("1048576", "Use Python to print 2**20."),
        ("3628800", "Use Python to compute the factorial of 10."),
    ],
)
@pytest.mark.parametrize("api", ["responses", "chat"])
def test_the_models_code_runs_and_an_answer_follows(shared: Kernel, api: str, number: str, question: str) -> None:
    cell = shared.ok(f"%%ai --new --api {api} --max-turns 4 --result answer\n{question}", timeout=250)
    assert any(f"\n{number}" in data["text/plain"] for data in cell.displays), cell.displays
    assert shared.ok("bool(answer.code and answer.text and answer.usage.runs)").value == "True"
