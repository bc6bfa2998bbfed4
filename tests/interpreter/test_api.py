"""`aresponses`, `acompletion`, their plain twins, and interception as users install it."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Iterator

import pytest
from servers.asking import PNG, TOOL
from servers.http_server import HTTPServer, in_thread
from servers.model_server import Code, Cut, Fail, Say, Scenario
from servers.model_server import ModelServer as Model

import ipy_sandbox
from ipy_sandbox import CodeInterpreterInterceptionLogger, Session, acompletion, aresponses
from ipy_sandbox.errors import ConfigurationError, InvalidRequestError, UpstreamError
from ipy_sandbox.interpreter.limits import Limits
from ipy_sandbox.models import Display
from ipy_sandbox.sandbox.fake import FakeProvider

SCENARIOS = {
    "hello": Scenario([[Code("print('hello')")]]),
    "endless": Scenario([[Code("again")]], endless=True),
    "plain": Scenario(final="just text"),
    "refused": Scenario([[Fail(401, "invalid_api_key")]]),
    "broken": Scenario([[Say("It "), Cut(error=True)]]),
}
TOOLS = [TOOL]


@pytest.fixture(scope="module")
def model() -> Iterator[Model]:
    model = Model(SCENARIOS)
    with in_thread(lambda: HTTPServer(model)) as server:
        model.url = f"{server.url}/v1"  # type: ignore[attr-defined]
        yield model


@pytest.fixture
def where(model: Model) -> dict[str, str]:
    model.bodies.clear()
    return {"base_url": model.url, "api_key": "sk-1234"}  # type: ignore[attr-defined]


@pytest.fixture
def intercepted() -> Iterator[None]:
    ipy_sandbox.register_sandbox_tools(
        [{"sandbox_tool_name": "mine", "litellm_params": {"sandbox_provider": "fake", "timeout": 60}}]
    )
    ipy_sandbox.callbacks = [CodeInterpreterInterceptionLogger(sandbox_tool_name="mine", enabled_providers=None)]
    yield
    ipy_sandbox.callbacks = []
    ipy_sandbox.register_sandbox_tools([])


def user(text: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": text}]


@pytest.mark.anyio
async def test_a_response_is_an_object_that_keeps_everything(where: dict[str, str]) -> None:
    response = await aresponses("scripted", "hello", TOOLS, interpreter="fake", **where)
    assert response.output_text == "FINAL [\"print('hello')\"]"
    assert response.output[0].type == "code_interpreter_call"
    assert response.output[0]["code"] == "print('hello')"
    assert response.usage.total_tokens == 222
    dumped = response.model_dump()
    assert dumped["tools"] == TOOLS
    assert json.loads(response.model_dump_json()) == dumped == response
    assert "error" not in response.model_dump(exclude_none=True)
    with pytest.raises(AttributeError, match="no 'outputs'"):
        _ = response.outputs


@pytest.mark.anyio
async def test_an_answers_objects_go_into_the_next_request(where: dict[str, str]) -> None:
    first = await aresponses("scripted", "hello", TOOLS, interpreter="fake", **where)
    items = [*user("hello"), *first.output, *user("plain")]
    assert (await aresponses("scripted", items, TOOLS, interpreter="fake", **where)).output_text == "just text"
    by_id = await aresponses("scripted", "plain", previous_response_id=first.id, **where)
    assert by_id.output_text == "just text"
    chat = await acompletion("scripted", user("hello"), TOOLS, interpreter="fake", **where)
    assert chat.choices[0].message.executed_tools[0].code == "print('hello')"
    messages = [*user("hello"), chat.choices[0].message, *user("plain")]
    again = await acompletion("scripted", messages, TOOLS, interpreter="fake", **where)
    assert again.choices[0].message.content == "just text"


@pytest.mark.anyio
async def test_streams_are_iterated(where: dict[str, str]) -> None:
    events = [e async for e in await aresponses("scripted", "hello", TOOLS, True, interpreter="fake", **where)]
    assert events[0].type == "response.created"
    assert events[-1].response.output_text == "FINAL [\"print('hello')\"]"
    chunks = [c async for c in await acompletion("scripted", user("hello"), TOOLS, True, interpreter="fake", **where)]
    assert "".join(c.choices[0].delta.get("content") or "" for c in chunks).startswith("FINAL")
    assert chunks[-1].messages[1].role == "tool"


@pytest.mark.anyio
async def test_a_session_id_keeps_the_sandbox(where: dict[str, str], intercepted: None) -> None:
    # The fake sandbox counts its executions.
    containers = []
    for name in ("s", "s", None):
        metadata = {"session_id": name} if name else None
        response = await aresponses("scripted", "hello", TOOLS, metadata=metadata, **where)
        containers.append(response.output[0].container_id)
    assert containers[0] == containers[1] != containers[2]


@pytest.mark.anyio
async def test_callbacks_intercept_only_the_providers_they_name(where: dict[str, str], intercepted: None) -> None:
    assert (await aresponses("scripted", "hello", TOOLS, **where)).output_text.startswith("FINAL")
    logger = CodeInterpreterInterceptionLogger("mine", enabled_providers=["custom"], limits=Limits(turns=3))
    ipy_sandbox.callbacks = [object(), logger]
    assert len((await aresponses("scripted", "endless", TOOLS, **where)).output) == 3
    ipy_sandbox.callbacks = [CodeInterpreterInterceptionLogger("mine", enabled_providers=["openai"])]
    with pytest.raises(UpstreamError, match="unknown tool type 'code_interpreter'"):
        await aresponses("scripted", "hello", TOOLS, **where)


@pytest.mark.anyio
async def test_without_interception_requests_pass_as_they_are(where: dict[str, str], model: Model) -> None:
    response = await aresponses("scripted", "plain", temperature=0.1, **where)
    assert response.id == "resp_upstream_0", "the endpoint's own"
    assert model.bodies == [{"model": "scripted", "input": "plain", "temperature": 0.1}]
    events = [e async for e in await aresponses("scripted", "plain", stream=True, **where)]
    assert events[-1].response.output_text == "just text"
    chunks = [c async for c in await acompletion("scripted", user("plain"), stream=True, **where)]
    assert chunks[0].id == "chatcmpl-0"
    with pytest.raises(UpstreamError) as caught:
        await acompletion("scripted", user("refused"), **where)
    assert (caught.value.status, caught.value.failure.code) == (401, "invalid_api_key")
    with pytest.raises(UpstreamError, match="overloaded"):
        [c async for c in await acompletion("scripted", user("broken"), stream=True, **where)]


@pytest.mark.anyio
async def test_litellms_name_of_the_address_is_known(where: dict[str, str], model: Model) -> None:
    address = where.pop("base_url")
    await aresponses("scripted", "plain", api_base=address, **where)
    assert model.bodies == [{"model": "scripted", "input": "plain"}]


@pytest.mark.anyio
async def test_a_stream_that_breaks_raises(where: dict[str, str]) -> None:
    seen = []
    stream = await aresponses("scripted", "broken", TOOLS, True, interpreter="fake", **where)
    with pytest.raises(UpstreamError) as caught:  # noqa: PT012
        async for event in stream:
            seen.append(event.type)
    assert caught.value.failure.message == "overloaded"
    assert "response.output_text.delta" in seen


@pytest.mark.anyio
async def test_leaving_a_stream_early_deletes_its_sandbox(where: dict[str, str]) -> None:
    provider = FakeProvider(script=lambda code: [3600.0])
    async with Session(provider) as session:
        stream = await aresponses("scripted", "hello", TOOLS, True, interpreter=session, **where)
        async for event in stream:
            if event.type == "response.code_interpreter_call.interpreting":
                break
        await stream.aclose()
        assert not session.busy


@pytest.mark.anyio
@pytest.mark.parametrize("images", [True, False, None])
async def test_who_knows_that_the_model_sees_says_so(where: dict[str, str], model: Model, images: bool | None) -> None:
    provider = FakeProvider(script=lambda code: [Display({"image/png": PNG})])
    async with Session(provider) as session:
        answer = await acompletion("scripted", user("hello"), TOOLS, interpreter=session, images=images, **where)
    assert answer.choices[0].message.executed_tools[0].outputs[0].type == "image"
    assert (PNG in json.dumps(model.bodies[-1])) is (images is True), "of an unknown server nothing is assumed"


@pytest.mark.anyio
async def test_unknown_names_are_named(where: dict[str, str]) -> None:
    with pytest.raises(ConfigurationError, match="'nonsense'"):
        await aresponses("scripted", "hello", TOOLS, interpreter="nonsense", **where)
    with pytest.raises(ConfigurationError, match="OPENAI_API_KEY"):
        await aresponses("openai/gpt-5", "hello")
    with pytest.raises(InvalidRequestError, match="deepseek runs no code"):
        await aresponses("deepseek/deepseek-chat", "hello", TOOLS, api_key="k")


def test_plain_twins(where: dict[str, str], intercepted: None) -> None:
    assert ipy_sandbox.responses("scripted", "hello", TOOLS, **where).output_text.startswith("FINAL")
    kinds = [event.type for event in ipy_sandbox.responses("scripted", "hello", TOOLS, stream=True, **where)]
    assert kinds[-1] == "response.completed"
    completion = ipy_sandbox.completion("scripted", user("hello"), TOOLS, **where)
    assert completion.choices[0].message.content.startswith("FINAL")
    assert len(list(ipy_sandbox.completion("scripted", user("plain"), stream=True, **where))) > 2


PROGRAM = """
import asyncio, sys
from ipy_sandbox import aresponses, responses
from ipy_sandbox.sandbox.fake import FakeProvider

deleted = []
original = FakeProvider.delete

async def delete(self, handle):
    await asyncio.sleep(0.05)
    deleted.append(handle.id)
    print("deleted", handle.id, flush=True)
    return await original(self, handle)

FakeProvider.delete = delete
asked = dict(tools=[{"type": "code_interpreter"}], base_url=sys.argv[1], api_key="k", interpreter="fake")

async def main():
    await aresponses("scripted", "hello", metadata={"session_id": "s"}, **asked)
    await aresponses("scripted", "hello", **asked)

if sys.argv[2] == "async":
    asyncio.run(main())
    print("left", flush=True)
else:
    responses("scripted", "hello", metadata={"session_id": "s"}, **asked)
    responses("scripted", "hello", **asked)
"""


@pytest.mark.parametrize("kind", ["async", "sync"])
def test_a_program_that_ends_leaves_no_sandbox(where: dict[str, str], kind: str) -> None:
    command = [sys.executable, "-X", "dev", "-W", "error", "-c", PROGRAM, where["base_url"], kind]
    run = subprocess.run(command, capture_output=True, text=True, timeout=60)
    lines = run.stdout.split("\n")
    assert {"deleted fake1", "deleted fake2"} <= set(lines), run.stderr
    assert run.returncode == 0
    assert "Traceback" not in run.stderr
    assert "Warning" not in run.stderr
    if kind == "async":
        assert lines[-2] == "left", "deleted before the loop ended"


@pytest.mark.anyio
async def test_many_requests_at_once_share_connections_and_state(where: dict[str, str]) -> None:
    asked = [aresponses("scripted", "hello", TOOLS, interpreter="fake", **where) for _ in range(20)]
    responses = await asyncio.gather(*asked)
    assert len({r.id for r in responses}) == len({r.output[0].container_id for r in responses}) == 20
