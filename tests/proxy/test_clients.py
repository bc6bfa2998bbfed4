"""The official clients and curl against the real proxy, with code that really runs in the local provider."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest
from servers.fake_model import FakeModel
from servers.proxy_server import ProxyServer, config_for, running_proxy

TOOL: Any = {"type": "code_interpreter", "container": {"type": "auto"}}
CHAT_TOOL: Any = {"type": "code_interpreter"}
OUTPUTS: Any = ["code_interpreter_call.outputs"]
PNG = "from IPython.display import Image, display; display(Image(data={}, format='png'))"
PIXEL = (
    b"\x89PNG\r\n\x1a\n\x00\x00\x00\rIHDR\x00\x00\x00\x01\x00\x00\x00\x01\x08\x06\x00\x00\x00\x1f\x15\xc4\x89\x00\x00\x00\r"
    b"IDATx\x9cc\xf8\xcf\xc0\xf0\x1f\x00\x05\x00\x01\xff\x89\x99=\x1d\x00\x00\x00\x00IEND\xaeB`\x82"
)


def plan(*code: str, **more: Any) -> str:
    return json.dumps({"code": list(code), **more})


@pytest.fixture(scope="module")
def real(model_url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ProxyServer]:
    """A proxy over the local provider."""
    config = config_for(model_url, provider="local")
    with running_proxy(config, tmp_path_factory.mktemp("real")) as server:
        yield server


@pytest.fixture(scope="module")
def client(real: ProxyServer) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{real.url}/v1", api_key="sk-alice", max_retries=0, timeout=60) as client:
        yield client


def test_responses(client: openai.OpenAI) -> None:
    response = client.responses.create(model="m", input=plan("print(6 * 7)"), tools=[TOOL], include=OUTPUTS)
    call = response.output[0]
    assert call.type == "code_interpreter_call"
    assert call.outputs[0].logs == "42\n"
    assert response.output_text == 'FINAL ["42"]'


def test_responses_streamed(client: openai.OpenAI) -> None:
    with client.responses.stream(model="m", input=plan("print(6 * 7)"), tools=[TOOL], include=OUTPUTS) as stream:
        kinds = [event.type for event in stream]
        final = stream.get_final_response()
    assert "response.code_interpreter_call_code.delta" in kinds
    assert final.output_text == 'FINAL ["42"]'
    assert final.output[0].outputs[0].logs == "42\n"


def test_chat(client: openai.OpenAI) -> None:
    messages: Any = [{"role": "user", "content": plan("print(6 * 7)")}]
    completion = client.chat.completions.create(model="m", messages=messages, tools=[CHAT_TOOL])
    message = completion.choices[0].message
    assert message.content == 'FINAL ["42"]'
    assert message.model_extra["executed_tools"][0]["output"] == "42\n"


def test_chat_streamed(client: openai.OpenAI) -> None:
    messages: Any = [{"role": "user", "content": plan("print(6 * 7)")}]
    with client.chat.completions.stream(model="m", messages=messages, tools=[CHAT_TOOL]) as stream:
        for _ in stream:
            pass
        message = stream.get_final_completion().choices[0].message
    assert message.content == 'FINAL ["42"]'
    assert message.model_extra["executed_tools"][0]["output"] == "42\n"


def test_a_session_over_two_requests_and_both_apis(client: openai.OpenAI) -> None:
    metadata = {"session_id": "two"}
    client.responses.create(model="m", input=plan("x = 42"), tools=[TOOL], metadata=metadata)
    response = client.responses.create(model="m", input=plan("x + 1"), tools=[TOOL], metadata=metadata)
    assert response.output_text == 'FINAL ["43"]'
    messages: Any = [{"role": "user", "content": plan("x + 2")}]
    completion = client.chat.completions.create(model="m", messages=messages, tools=[CHAT_TOOL], metadata=metadata)
    assert completion.choices[0].message.content == 'FINAL ["44"]'
    other = client.with_options(api_key="sk-bob")
    response = other.responses.create(model="m", input=plan("x + 1"), tools=[TOOL], metadata=metadata)
    assert "NameError" in response.output_text


def test_a_forced_tool_choice_holds_for_one_turn(client: openai.OpenAI, model: FakeModel) -> None:
    choice: Any = {"type": "code_interpreter"}
    response = client.responses.create(model="m", input=plan("1 + 1"), tools=[TOOL], tool_choice=choice)
    assert response.output_text == 'FINAL ["2"]'
    assert response.tool_choice.type == "code_interpreter"
    first, second = (body["tool_choice"] for _, _, body in model.requests)
    assert first["type"] == "function"
    assert second == "auto"


def test_images_reach_the_client_and_the_model(client: openai.OpenAI, model: FakeModel) -> None:
    code = PNG.format(PIXEL)
    response = client.responses.create(model="m", input=plan(code, text="seen"), tools=[TOOL], include=OUTPUTS)
    assert response.output[0].type == "code_interpreter_call"
    images = [o.url for o in response.output[0].outputs if o.type == "image"]
    assert images[0].startswith("data:image/png;base64,iVBORw0KGgo")
    assert "data:image/png;base64,iVBORw0KGgo" in json.dumps(model.requests[-1][2])
    assert response.output_text == "seen"


def test_a_file_that_the_answer_links_can_be_fetched(client: openai.OpenAI) -> None:
    code = "import os; os.makedirs('/mnt/data', exist_ok=True); open('/mnt/data/made.txt', 'w').write('kept')"
    text = "see [it](sandbox:/mnt/data/made.txt) or [it](sandbox:/mnt/data/none.txt)"
    response = client.responses.create(
        model="m", input=plan(code, text=text), tools=[TOOL], metadata={"session_id": "files"}
    )
    cited: Any = response.output[-1].content[0].annotations  # type: ignore[union-attr]
    assert [(a.type, a.filename) for a in cited] == [("container_file_citation", "made.txt")]
    content = client.containers.files.content.retrieve(cited[0].file_id, container_id=cited[0].container_id)
    assert content.read() == b"kept"
    with pytest.raises(openai.NotFoundError):
        client.with_options(api_key="sk-bob").containers.files.content.retrieve(
            cited[0].file_id, container_id=cited[0].container_id
        )


def test_stored_responses(client: openai.OpenAI) -> None:
    response = client.responses.create(model="m", input=plan("1"), tools=[TOOL])
    assert client.responses.retrieve(response.id).output_text == response.output_text
    assert client.responses.input_items.list(response.id).data[0].type == "message"
    following = client.responses.create(model="m", input="and?", previous_response_id=response.id)
    assert following.output_text == "hello"
    client.responses.delete(response.id)
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(response.id)


def test_errors_are_the_clients_own_classes(client: openai.OpenAI) -> None:
    with pytest.raises(openai.AuthenticationError):
        client.with_options(api_key="wrong").models.list()
    with pytest.raises(openai.NotFoundError):
        client.responses.create(model="none", input="x")
    with pytest.raises(openai.RateLimitError):
        client.responses.create(model="m", input=plan(status=429), tools=[])
    with pytest.raises(openai.BadRequestError):
        client.responses.create(model="m", input="x", tools=[TOOL], background=True)


def test_curl(real: ProxyServer) -> None:
    body = json.dumps({"model": "m", "tools": [TOOL], "input": plan("print(6 * 7)"), "stream": True})
    command = ["curl", "-sN", f"{real.url}/v1/responses", "-H", "Authorization: Bearer sk-alice", "-d", body]
    told = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout
    assert "event: response.completed" in told


NODE = """
import OpenAI from "openai";
const client = new OpenAI({ baseURL: process.argv[2] + "/v1", apiKey: "sk-alice", maxRetries: 0 });
const input = JSON.stringify({ code: ["print(6 * 7)"] });
const tools = [{ type: "code_interpreter", container: { type: "auto" } }];
const messages = [{ role: "user", content: input }];
const told = [];
told.push((await client.responses.create({ model: "m", input, tools })).output_text);
const stream = client.responses.stream({ model: "m", input, tools });
for await (const event of stream) {}
told.push((await stream.finalResponse()).output_text);
told.push((await client.chat.completions.create({ model: "m", messages, tools })).choices[0].message.content);
const chat = client.chat.completions.stream({ model: "m", messages, tools });
for await (const chunk of chat) {}
const message = (await chat.finalChatCompletion()).choices[0].message;
told.push(message.content, message.executed_tools[0].output);
console.log(JSON.stringify(told));
"""


@pytest.fixture(scope="module")
def node_sdk(request: pytest.FixtureRequest) -> Path:
    """A directory with the Node SDK, installed once."""
    npm = shutil.which("npm")
    if npm is None or shutil.which("node") is None:
        pytest.skip("npm is not installed")
    home = Path(request.config.cache.mkdir("node-openai"))  # type: ignore[union-attr]
    if not (home / "node_modules" / "openai" / "package.json").exists():
        command = [npm, "install", "--no-audit", "--no-fund", "--no-save", "--prefix", str(home), "openai@7"]
        subprocess.run(command, check=True, capture_output=True, timeout=110)
    return home


def test_node(real: ProxyServer, node_sdk: Path) -> None:
    script = node_sdk / "proxy_client.mjs"
    script.write_text(NODE)
    done = subprocess.run(["node", str(script), real.url], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == ['FINAL ["42"]'] * 4 + ["42\n"]
