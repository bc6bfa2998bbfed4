"""The official OpenAI clients, Python and Node, accept what is emitted and put it together to the same answer."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest
from servers.asking import PNG, TOOL, WEATHER
from servers.front import front
from servers.http_server import in_thread
from servers.model_server import Code, Cut, Fn, Length, Raw, Say, Scenario, Think

NODE_CLIENT = "openai@7.59.0"
FUNCTION = {"type": "function", **WEATHER}
SCENARIOS = {
    "two rounds": Scenario([[Think("hm"), Say("Let me."), Code("a = 1")], [Code("plot")]], final="Done, ünïcode."),
    "parallel": Scenario([[Code("a"), Code("1/0")]], final="Both."),
    "mixed": Scenario([[Code("a"), Fn("get_weather", '{"city": "Paris"}')]]),
    "bad arguments": Scenario([[Raw("[1]")]], final="Sorry."),
    "plain": Scenario(final="No tool was used."),
    "file": Scenario([[Code("write")]], final="See [it](sandbox:/mnt/data/out.csv)."),
}
CODES = {
    "two rounds": ["a = 1", "plot"],
    "parallel": ["a", "1/0"],
    "mixed": ["a"],
    "file": ["write"],
    "bad arguments": [""],
}


@pytest.fixture(scope="module", params=[False, True], ids=["same API", "bridged"])
def base_url(request: pytest.FixtureRequest) -> Iterator[str]:
    more = {
        "length": Scenario([[Say("I will"), Raw('{"code": "print('), Length()]]),
        "broken": Scenario([[Code("a")], [Say("It is"), Cut(error=True)]]),
    }
    with in_thread(lambda: front({**SCENARIOS, **more}, chat_only=request.param)) as url:
        yield url


@pytest.fixture
def client(base_url: str) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=base_url, api_key="key", max_retries=0) as client:
        yield client


def check_response(prompt: str, response: dict[str, Any]) -> None:
    """What a `Response` must hold, however it came."""
    assert response["status"] == "completed"
    calls = [item for item in response["output"] if item["type"] == "code_interpreter_call"]
    assert [call["code"] for call in calls] == CODES.get(prompt, [])
    assert [t["type"] for t in response["tools"]] == ["code_interpreter", "function"]
    texts = [p["text"] for i in response["output"] if i["type"] == "message" for p in i["content"]]
    if prompt == "mixed":
        assert response["output"][-1]["name"] == "get_weather"
        assert response["output"][-1]["arguments"] == '{"city": "Paris"}'
    else:
        assert texts[-1] == SCENARIOS[prompt].final
    if prompt == "two rounds":
        assert [item["type"] for item in response["output"]][-3:] == [
            "code_interpreter_call",
            "code_interpreter_call",
            "message",
        ]
        assert calls[1]["outputs"][1] == {"type": "image", "url": f"data:image/png;base64,{PNG}"}
    if prompt == "bad arguments":
        assert calls[0]["status"] == "failed"
    if prompt == "file":
        (note,) = response["output"][-1]["content"][0]["annotations"]
        assert (note["filename"], note["container_id"]) == ("out.csv", calls[0]["container_id"])


def check_completion(prompt: str, completion: dict[str, Any]) -> None:
    """What a chat completion must hold, however it came."""
    (choice,) = completion["choices"]
    message = choice["message"]
    tools = message.get("executed_tools") or []
    assert [tool["code"] for tool in tools] == CODES.get(prompt, [])
    assert [tool["index"] for tool in tools] == list(range(len(tools)))
    assert completion["usage"]["total_tokens"] > 0
    if prompt == "mixed":
        assert choice["finish_reason"] == "tool_calls"
        (call,) = message["tool_calls"]
        assert (call["function"]["name"], call["function"]["arguments"]) == ("get_weather", '{"city": "Paris"}')
    else:
        assert choice["finish_reason"] == "stop"
        assert not message.get("tool_calls")
        assert message["content"].endswith(str(SCENARIOS[prompt].final))


def ask(prompt: str) -> dict[str, Any]:
    tools = [TOOL, FUNCTION]
    include = ["code_interpreter_call.outputs"]
    return {"model": "scripted", "input": prompt, "tools": tools, "include": include, "metadata": {"session_id": "s"}}


def ask_chat(prompt: str) -> dict[str, Any]:
    tools = [TOOL, {"type": "function", "function": WEATHER}]
    return {"model": "scripted", "messages": [{"role": "user", "content": prompt}], "tools": tools}


@pytest.mark.parametrize("prompt", SCENARIOS)
def test_python_responses(client: openai.OpenAI, prompt: str) -> None:
    with client.responses.stream(**ask(prompt)) as stream:
        kinds = [event.type for event in stream]
        streamed = stream.get_final_response()
    assert kinds[:2] == ["response.created", "response.in_progress"]
    check_response(prompt, streamed.model_dump(warnings=False))
    whole = client.responses.create(**ask(prompt))
    check_response(prompt, whole.model_dump(warnings=False))
    if prompt != "mixed":
        assert whole.output_text.endswith(str(SCENARIOS[prompt].final))


@pytest.mark.parametrize("prompt", SCENARIOS)
def test_python_chat(client: openai.OpenAI, prompt: str) -> None:
    with client.chat.completions.stream(**ask_chat(prompt), stream_options={"include_usage": True}) as stream:
        for _ in stream:
            pass
        streamed = stream.get_final_completion()
    check_completion(prompt, streamed.model_dump(warnings=False))
    check_completion(prompt, client.chat.completions.create(**ask_chat(prompt)).model_dump(warnings=False))


def test_python_goes_on_from_a_response_and_from_its_items(client: openai.OpenAI) -> None:
    first = client.responses.create(**ask("two rounds"))
    again = client.responses.create(**ask("parallel"), previous_response_id=first.id)
    check_response("parallel", again.model_dump(warnings=False))
    items = [{"role": "user", "content": "two rounds"}, *(item.to_dict() for item in first.output)]
    items.append({"role": "user", "content": "parallel"})
    check_response("parallel", client.responses.create(**{**ask("x"), "input": items}).model_dump(warnings=False))


def test_python_returns_a_function_output_after_a_mixed_turn(client: openai.OpenAI) -> None:
    first = client.responses.create(**ask("mixed"))
    output = {"type": "function_call_output", "call_id": first.output[-1].call_id, "output": "sunny"}  # type: ignore[union-attr]
    again = client.responses.create(**{**ask("x"), "input": [output]}, previous_response_id=first.id)
    assert again.output_text == 'FINAL ["a", "sunny"]'
    items = [{"role": "user", "content": "mixed"}, *(item.to_dict() for item in first.output), output]
    assert client.responses.create(**{**ask("x"), "input": items}).output_text == 'FINAL ["a", "sunny"]'


def test_python_sends_executed_tools_back(client: openai.OpenAI) -> None:
    asked = ask_chat("mixed")
    message = client.chat.completions.create(**asked).choices[0].message
    assert message.tool_calls
    back = [message.to_dict(), {"role": "tool", "tool_call_id": message.tool_calls[0].id, "content": "sunny"}]
    asked["messages"] = [*asked["messages"], *back]
    assert client.chat.completions.create(**asked).choices[0].message.content == 'FINAL ["a", "sunny"]'


def test_python_sees_an_incomplete_response(client: openai.OpenAI) -> None:
    with client.responses.stream(**ask("length")) as stream:
        last = list(stream)[-1]
    assert last.type == "response.incomplete"
    assert last.response.incomplete_details
    assert last.response.incomplete_details.reason == "max_output_tokens"


def test_python_raises_what_the_model_server_says_in_the_middle(client: openai.OpenAI) -> None:
    with pytest.raises(openai.APIError, match="overloaded"), client.responses.stream(**ask("broken")) as stream:
        list(stream)
    with pytest.raises(openai.APIError, match="overloaded"):
        list(client.chat.completions.create(**ask_chat("broken"), stream=True))


@pytest.fixture(scope="module")
def node_client(request: pytest.FixtureRequest) -> Path:
    """The Node SDK beside our script, installed once."""
    npm = shutil.which("npm")
    if npm is None or shutil.which("node") is None:
        pytest.skip("npm is not installed")
    home = Path(request.config.cache.mkdir("node-openai"))  # type: ignore[union-attr]
    if not (home / "node_modules" / "openai" / "package.json").exists():
        command = [npm, "install", "--no-audit", "--no-fund", "--no-save", "--prefix", str(home), NODE_CLIENT]
        subprocess.run(command, check=True, capture_output=True, timeout=110)
    script = home / "official_client.mjs"
    shutil.copyfile(Path(__file__).with_name("official_client.mjs"), script)
    return script


def test_node(base_url: str, node_client: Path) -> None:
    command = ["node", str(node_client), base_url, *SCENARIOS]
    run = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert run.returncode == 0, run.stderr
    for prompt, answers in json.loads(run.stdout).items():
        check_response(prompt, answers["streamed"])
        check_response(prompt, answers["whole"])
        check_completion(prompt, answers["chatStreamed"])
        check_completion(prompt, answers["chatWhole"])
