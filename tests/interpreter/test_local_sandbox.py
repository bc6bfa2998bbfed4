"""The whole way with a real kernel in the embedded sandbox behind the scripted model."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from servers.http_server import HTTPServer
from servers.model_server import Code, ModelServer, Scenario

from ipy_sandbox import aresponses
from ipy_sandbox.errors import IsolationUnavailableError
from ipy_sandbox.sandbox.local.probe import probe
from ipy_sandbox.sandbox.local.provider import SPARE
from ipy_sandbox.sandbox.session import Session

pytestmark = pytest.mark.anyio

TURNS = [
    "import os\nx = sum(range(1001))\nprint(x)",
    "x * 2",
    "1/0",
    "import matplotlib.pyplot as plt\nplt.plot([1, 2])\nplt.show()",
    "os.makedirs('/mnt/data', exist_ok=True)\nopen('/mnt/data/out.csv', 'w').write('1,2')",
]


async def test_a_model_computes_draws_fails_and_writes_a_file_in_a_real_sandbox() -> None:
    scenario = Scenario([[Code(code)] for code in TURNS], final="See [out](sandbox:/mnt/data/out.csv).")
    async with HTTPServer(ModelServer({"go": scenario})) as server, Session("local") as session:
        response = await aresponses(
            "scripted",
            "go",
            [{"type": "code_interpreter", "container": {"type": "auto"}}],
            base_url=f"{server.url}/v1",
            interpreter=session,
            include=["code_interpreter_call.outputs"],
        )
        data = await session.adownload("/mnt/data/out.csv")
    calls = [item for item in response.output if item.type == "code_interpreter_call"]
    assert [call.status for call in calls] == ["completed"] * 5
    logs = ["".join(o.logs for o in call.outputs if o.type == "logs") for call in calls]
    assert logs[:2] == ["500500\n", "1001000"]
    assert logs[2].endswith("ZeroDivisionError: division by zero")
    assert "\x1b" not in logs[2]
    assert calls[3].outputs[-1].url.startswith("data:image/png;base64,")
    assert data == b"1,2"
    (citation,) = response.output[-1].content[0].annotations
    assert citation.filename == "out.csv"


@pytest.fixture(autouse=True)
def isolated() -> Iterator[None]:
    try:
        probe()
    except IsolationUnavailableError as error:
        pytest.skip(str(error))
    before, SPARE.policy = SPARE.policy, "off"
    yield
    SPARE.policy = before
