"""`%%ai` in a real kernel: a scripted model endpoint over HTTP, code in a real sandbox."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import nbclient
import nbformat
import pytest
from servers.fake_model import FakeModel, served

from .kernel import Cell, Kernel, shared_kernel


@pytest.fixture(scope="module")
def model() -> FakeModel:
    return FakeModel()


@pytest.fixture(scope="module")
def address(model: FakeModel) -> Iterator[str]:
    with served(model.app) as url:
        yield f"{url}/v1"


@pytest.fixture(scope="module")
def kernels(address: str) -> Iterator[Callable[[], Kernel]]:
    with shared_kernel(IPY_SANDBOX_PROVIDER="local", OPENAI_BASE_URL=address, IPY_SANDBOX_MODEL="gpt") as get:
        yield get


@pytest.fixture
def shared(kernels: Callable[[], Kernel], model: FakeModel) -> Kernel:
    """The kernel, with nothing asked yet."""
    shared = kernels()
    shared.ok("%ai reset\n%config AIMagics.max_history = None")
    model.requests.clear()
    return shared


def ask(line: str = "", **plan: Any) -> str:
    return f"%%ai {line}\n{json.dumps(plan)}"


def final(cell: Cell) -> list[dict[str, Any]]:
    """The displays as they are in the end, each once."""
    shown: dict[str, dict[str, Any]] = {}
    for i, message in enumerate(m for m in cell.messages if "display_data" in m["msg_type"]):
        content = message["content"]
        shown[content.get("transient", {}).get("display_id") or str(i)] = content["data"]
    return [data for data in shown.values() if data.get("text/plain")]


def texts(cell: Cell) -> list[str]:
    return [data["text/plain"] for data in final(cell)]


def sent(model: FakeModel) -> list[dict[str, Any]]:
    return [body for _, _, body in model.requests]


def user_messages(body: dict[str, Any]) -> list[str]:
    items = body.get("messages") or body["input"]
    return [item["content"] for item in items if item.get("role") == "user" and isinstance(item["content"], str)]


@pytest.mark.parametrize("api", ["responses", "chat"])
def test_the_model_computes_in_the_session_of_the_notebook(shared: Kernel, model: FakeModel, api: str) -> None:
    shared.ok("%sandbox x = 41")
    code = ["x += 1\nprint('now', x)", "1/0"]
    cell = shared.ok(ask(f"--api {api}", code=code, text="It is **42**."))
    first, second, answer, footer = texts(cell)
    assert first == "    x += 1\n    print('now', x)\nnow 42"
    assert "ZeroDivisionError: division by zero" in second
    assert answer == "It is **42**."
    assert final(cell)[2]["text/html"] == "<p>It is <strong>42</strong>.</p>\n"
    assert footer.startswith("gpt · 3 turns · 2 runs · 30 + 15 tokens · ")
    assert shared.ok("%sandbox x").value == "42"
    assert {path for path, _, _ in model.requests} == {
        "/v1/responses" if api == "responses" else "/v1/chat/completions"
    }


def test_code_and_output_grow_while_they_come_and_are_folded_in_the_end(shared: Kernel) -> None:
    code = "import time\nfor i in range(4):\n    print(i, flush=True); time.sleep(.2)"
    cell = shared.ok(ask(code=[code], text="done"), allow_stdin=True)
    states = [data["text/html"] for data in cell.displays if "import" in data.get("text/plain", "")]
    assert "<details open>" in states[0]
    assert "<details>" in states[-1]
    assert "ran 3 lines of Python" in states[-1]
    assert any("0\n" in state and "3\n" not in state for state in states)


def test_charts_stand_below_their_code(shared: Kernel) -> None:
    cell = shared.ok(ask(code=["import matplotlib.pyplot as plt\nplt.plot([1, 2]); plt.show()"], text="there"))
    kinds = ["image" if "image/png" in data else "text" for data in final(cell)]
    assert kinds == ["text", "image", "text", "text"]


def test_an_animation_ends_as_one_picture_and_leaves_the_answer(shared: Kernel) -> None:
    code = (
        "from IPython.display import clear_output, display, HTML\n"
        "for i in range(5):\n    clear_output(wait=True); print('step', i); display(HTML(f'<b>frame {i}</b>'))"
    )
    shown = final(shared.ok(ask(code=[code], text="the end")))
    frames = [
        data["text/html"] for data in shown if "frame" in data["text/html"] and "details" not in data["text/html"]
    ]
    assert frames == ["<b>frame 4</b>"]
    assert "step 4" in shown[0]["text/plain"]
    assert "step 3" not in shown[0]["text/plain"]


def test_model_text_cannot_act(shared: Kernel) -> None:
    evil = "<img src=x onerror=alert(1)> ![p](https://evil.example/?q=1) [go](javascript:alert(1)) \x1b]0;title\x07"
    answer = final(shared.ok(ask(text=evil)))[0]
    assert 'src="' not in answer["text/html"]
    assert "<img src" not in answer["text/html"]
    assert 'href="javascript' not in answer["text/html"]
    assert "\x1b" not in answer["text/plain"]


class TestConversation:
    def test_a_follow_up_knows_what_was_said(self, shared: Kernel, model: FakeModel) -> None:
        shared.ok("%ai one")
        shared.ok("%ai two")
        assert user_messages(sent(model)[-1]) == ["one", "two"]

    def test_a_history_of_zero_is_none(self, shared: Kernel, model: FakeModel) -> None:
        shared.ok("%config AIMagics.max_history = 0")
        shared.ok("%ai one")
        shared.ok("%ai two")
        assert user_messages(sent(model)[-1]) == ["two"]

    def test_a_history_of_one_is_the_last_exchange(self, shared: Kernel, model: FakeModel) -> None:
        shared.ok("%config AIMagics.max_history = 1")
        for word in ("one", "two", "three"):
            shared.ok(f"%ai {word}")
        assert user_messages(sent(model)[-1]) == ["two", "three"]

    @pytest.mark.parametrize("forget", ["%ai reset", ""])
    def test_reset_and_new_forget(self, shared: Kernel, model: FakeModel, forget: str) -> None:
        shared.ok("%ai one")
        if forget:
            shared.ok(forget)
        shared.ok("%ai two" if forget else "%%ai --new\ntwo")
        assert user_messages(sent(model)[-1]) == ["two"]

    def test_each_session_has_its_own(self, shared: Kernel, model: FakeModel) -> None:
        shared.ok("%ai one")
        shared.ok("%ai -s other two")
        assert user_messages(sent(model)[-1]) == ["two"]
        shared.ok("%ai -s other reset")

    def test_a_picture_goes_to_the_model_as_a_picture_and_never_as_text(self, shared: Kernel, model: FakeModel) -> None:
        code = "from matplotlib.figure import Figure\nFigure()"
        shared.ok(ask(code=[code], text="seen"))
        shared.ok("%ai and now?")
        for body in sent(model)[1:]:
            text = json.dumps(body)
            assert '"image_url": "data:image/png;base64,' in text or "data:image/png" not in text
            assert "iVBOR" not in text.replace("data:image/png;base64,iVBOR", "")


class TestCommands:
    def test_history_and_usage_have_the_servers_numbers(self, shared: Kernel) -> None:
        shared.ok("%config AIMagics.prices = {'gpt': (1.0, 10.0)}")
        footer = texts(shared.ok(ask(code=["1"], text="one")))[-1]
        assert "20 + 10 tokens" in footer
        assert footer.endswith("$0.0001")
        assert "one" in shared.ok("%ai history").value
        row = shared.ok("%ai usage").value.splitlines()[1].split()
        assert row[0] == "gpt"
        assert row[-1].startswith("$")

    def test_models_and_model(self, shared: Kernel) -> None:
        assert "offered" in shared.ok("%ai models").value
        assert texts(shared.ok("%ai model other"))[0].startswith("Model: other at 127.0.0.1")
        assert texts(shared.ok("%ai hi"))[-1].startswith("other · 1 turn")
        shared.ok("%ai model gpt")

    def test_a_question_that_begins_like_a_command_is_a_question(self, shared: Kernel, model: FakeModel) -> None:
        shared.ok("%ai model this data for me")
        assert user_messages(sent(model)[-1]) == ["model this data for me"]

    def test_fix_sends_the_last_error_and_its_cell(self, shared: Kernel, model: FakeModel) -> None:
        shared.run("%%sandbox\nundefined_name + 1")
        shared.ok("%ai fix")
        prompt = user_messages(sent(model)[-1])[-1]
        assert "undefined_name + 1" in prompt
        assert "NameError" in prompt
        assert "\x1b" not in prompt

    def test_insert_offers_the_last_code_as_a_cell(self, shared: Kernel) -> None:
        shared.ok(ask(code=["a = 1", "b = 2"], text="done"))
        payload = shared.ok("%ai insert").reply["payload"]
        assert [p["text"] for p in payload if p["source"] == "set_next_input"] == ["%%sandbox\nb = 2"]

    def test_export_writes_a_valid_notebook(self, shared: Kernel, tmp_path: Path) -> None:
        shared.ok(ask(code=["print('hello')"], text="said"))
        path = tmp_path / "talk.ipynb"
        shared.ok(f"%ai export {path}")
        notebook = nbformat.read(path, as_version=4)
        nbformat.validate(notebook)
        assert [c.source for c in notebook.cells if c.cell_type == "code"] == ["print('hello')"]
        assert notebook.cells[1].outputs[0].text == "hello\n"
        assert "%ai --help" in shared.run("%ai export").stream("stderr")
        failed = shared.run("%ai export /nowhere/x.ipynb")
        assert "cannot be written" in failed.stream("stderr")

    def test_data_goes_into_the_sandbox_when_asked(self, shared: Kernel) -> None:
        shared.ok("import pandas as pd\ndf = pd.DataFrame({'a': [1, 2, 39]})")
        cell = shared.ok(ask("-i df", code=["print(df.a.sum())"], text="42"))
        assert any("\n42" in text for text in texts(cell))

    def test_result_keeps_the_answer(self, shared: Kernel) -> None:
        shared.ok(ask("--result r", code=["1+1"], text="two"))
        assert shared.ok("r").value == "two"
        assert shared.ok("r.code, r.usage.turns").value == "(['1+1'], 2)"

    def test_no_code_gives_the_model_no_tool(self, shared: Kernel, model: FakeModel) -> None:
        shared.ok("%%ai --no-code\nhi")
        assert "tools" not in sent(model)[-1]

    def test_parameters_go_along(self, shared: Kernel, model: FakeModel) -> None:
        shared.ok("%config AIMagics.parameters = {'temperature': 0}")
        shared.ok("%ai hi")
        shared.ok("%config AIMagics.parameters = {}")
        assert sent(model)[-1]["temperature"] == 0

    def test_only_named_variables_are_sent(self, shared: Kernel, model: FakeModel) -> None:
        shared.ok("secret = 'hidden-4711'; shown = [1, 2]")
        shared.ok("%ai what is {shown} and {unknown}?")
        body = json.dumps(sent(model)[-1])
        assert "what is [1, 2] and {unknown}?" in body
        assert "hidden-4711" not in body

    @pytest.mark.parametrize(("line", "says"), [("%ai", "There is no question"), ("%%ai two words\nx", "unrecognized")])
    def test_empty_and_wrong_forms_name_the_right_one(self, shared: Kernel, line: str, says: str) -> None:
        cell = shared.run(line)
        assert cell.status == "error"
        assert says in cell.stream("stderr") + cell.error


class TestTrouble:
    def test_an_api_error_is_one_line_with_its_status(self, shared: Kernel) -> None:
        cell = shared.run(ask(status=401))
        assert cell.reply["ename"] == "UpstreamError"
        assert "401" in cell.error
        assert cell.error.count("\n") == 0
        assert shared.ok("%ai again").status == "ok"

    def test_an_error_in_the_middle_keeps_what_was_shown(self, shared: Kernel) -> None:
        cell = shared.run(ask(code=["print('kept')"], status=429, fail_turn=1))
        assert "kept" in texts(cell)[0]
        assert "429" in cell.error

    def test_a_loop_without_end_gets_an_answer_at_the_limit(self, shared: Kernel) -> None:
        cell = shared.ok(ask("--max-turns 3", code=[f"print({i})" for i in range(50)]))
        assert texts(cell)[-1].startswith("gpt · ")
        assert len(texts(cell)) >= 4

    def test_stop_ends_the_code_and_keeps_the_conversation(self, shared: Kernel, model: FakeModel) -> None:
        code = "import time\nstate = 7\nprint('begun', flush=True)\nwhile True: time.sleep(.1)"
        cell = shared.send(ask(code=[code]), allow_stdin=True)
        shared.read_until(cell, lambda c: any("\nbegun" in d.get("text/plain", "") for d in c.displays))
        shared.interrupt()
        stopped = shared.wait(cell, timeout=20)
        assert stopped.reply["ename"] == "SandboxInterrupted"
        assert "begun" in texts(stopped)[0]
        assert shared.ok("%sandbox state").value == "7"
        shared.ok("%ai go on")
        assert "stopped by the user" in user_messages(sent(model)[-1])[-1]

    def test_stop_ends_a_silent_model(self, shared: Kernel, model: FakeModel) -> None:
        cell = shared.send(ask(tokens=1000, delay=0.05), allow_stdin=True)
        shared.read_until(cell, lambda c: any("tok1" in d.get("text/plain", "") for d in c.displays))
        shared.interrupt()
        stopped = shared.wait(cell, timeout=20)
        assert stopped.reply["ename"] == "SandboxInterrupted"
        assert "tok1" in texts(stopped)[0]

    def test_a_failure_fails_the_cell_in_batch(self, address: str, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("OPENAI_BASE_URL", address)
        monkeypatch.setenv("IPY_SANDBOX_MODEL", "gpt")
        sources = ["%load_ext ipy_sandbox", ask(status=500), "print('not reached')"]
        notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(source) for source in sources])
        with pytest.raises(nbclient.exceptions.CellExecutionError, match="UpstreamError"):
            nbclient.NotebookClient(notebook, timeout=60, kernel_name="python3").execute()
