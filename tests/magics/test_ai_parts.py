"""The parts of `%%ai` that need no kernel: prompts, blocks, conversations, the choice of a model."""

from __future__ import annotations

from typing import Any

import nbformat
import pandas as pd
import pytest

from ipy_sandbox.errors import ConfigurationError
from ipy_sandbox.interpreter.store import Stored
from ipy_sandbox.magics.ai_blocks import PrintedText, highlighted
from ipy_sandbox.magics.ai_conversation import Conversation, Exchange, Usage
from ipy_sandbox.magics.ai_model import NO_MODEL, choose
from ipy_sandbox.magics.ai_prompt import MAX_CHARS, interpolate
from ipy_sandbox.magics.record import CellRecord

pytestmark = pytest.mark.anyio


NAMES: dict[str, Any] = {"x": [1, 2], "In": ["", "a = 1"], "Out": {3: "three"}, "Err": {}, "text": "as {x} is"}


class TestPrompt:
    def test_only_what_names_something_is_replaced(self) -> None:
        prompt = "explain print({'a': {x}})  {In[1]} {Err[9]} f(x) { return {y}; } $HOME {x.__class__} {{}} {In[7]}"
        assert interpolate(prompt, NAMES) == (
            "explain print({'a': [1, 2]})  a = 1 {Err[9]} f(x) { return {y}; } $HOME {x.__class__} {{}} {In[7]}"
        )

    def test_what_was_put_in_is_not_read_again(self) -> None:
        assert interpolate("{text} {Out[3]} {In[-1]}", NAMES) == "as {x} is three a = 1"

    def test_a_table_goes_as_shape_types_and_first_rows(self) -> None:
        table = pd.DataFrame({"a": range(1000), "b": ["z"] * 1000})
        text = interpolate("{table}", {"table": table})
        assert "shape (1000, 2)" in text
        assert "a: int64" in text
        assert "999" not in text

    def test_a_long_value_is_cut_in_the_middle(self) -> None:
        text = interpolate("{x}", {"x": "a" * 5000 + "b" * 100_000 + "c" * 5000})
        assert len(text) < MAX_CHARS + 100
        assert text.startswith("aaa")
        assert text.endswith("ccc")
        assert "characters left out" in text


class TestBlocks:
    def test_code_is_coloured_and_inert(self) -> None:
        shown = highlighted("if x < 1:  # <script>\n    print('&')\n")
        assert "<script" not in shown
        assert "&lt;script&gt;" in shown
        assert shown.endswith("\n")

    @pytest.mark.parametrize("step", [1, 3, 1000])
    def test_a_carriage_return_overwrites_its_line_wherever_the_text_is_cut(self, step: int) -> None:
        text = "start\r\n 10%\r 50%\r100%\nend\r"
        printed = PrintedText()
        for at in range(0, len(text), step):
            printed.add(text[at : at + step])
        assert str(printed) == "start\n100%\nend"

    def test_the_middle_of_much_text_is_left_out(self) -> None:
        printed = PrintedText(limit=1000)
        for i in range(10_000):
            printed.add(f"{i}\n")
        text = str(printed)
        assert text.startswith("0\n1\n2\n")
        assert text.endswith("9998\n9999\n")
        assert "characters not shown" in text
        assert len(text) < 1100


def stored(number: int) -> Stored:
    question = {"role": "user", "content": f"q{number}"}
    answer = {"type": "message", "id": f"m{number}", "role": "assistant", "content": f"a{number}"}
    response = {"id": f"r{number}", "output": [answer]}
    return Stored(response, [question], [{"role": "user", "content": "all before"}], [{"raw": 1}], "there", "responses")


class TestConversation:
    async def test_a_follow_up_goes_on_from_the_last_answer(self) -> None:
        conversation = Conversation()
        assert conversation.previous_id is None
        for number in (1, 2):
            await conversation.put("me", stored(number))
        assert conversation.previous_id == "r2"
        assert await conversation.get("me", "r2") == stored(2)
        assert await conversation.get("me", "r1") is None

    async def test_a_limited_history_is_the_last_exchanges_only(self) -> None:
        conversation = Conversation(max_history=2)
        for number in (1, 2, 3):
            await conversation.put("me", stored(number))
        last = await conversation.get("me", "r3")
        assert last is not None
        assert [item.get("content") for item in last.conversation()] == ["q2", "a2", "q3", "a3"]
        conversation.max_history = 0
        assert conversation.previous_id is None

    def test_usage_adds_up_and_unknown_is_not_zero(self) -> None:
        total = Usage(1, 1, None, 5, 0.5) + Usage(2, 0, 10, 6, 1.0)
        assert total == Usage(3, 1, 10, 11, 1.5)
        assert Usage().input_tokens is None

    def test_it_becomes_a_valid_notebook_in_which_nothing_acts(self) -> None:
        cell = CellRecord("1/0", 3, [{"output_type": "stream", "name": "stdout", "text": ["hi\n"]}])
        parts: list[str | CellRecord] = ["Plain text.", cell, "See ![x](https://evil.example/?q) <img src=x onerror=a>"]
        conversation = Conversation()
        conversation.exchanges.append(Exchange("<b>why</b>", "m", parts))
        notebook = nbformat.v4.new_notebook(cells=conversation.cells())
        nbformat.validate(notebook)
        assert [c.cell_type for c in notebook.cells] == ["markdown", "markdown", "code", "markdown"]
        assert notebook.cells[1].source == "Plain text."
        assert notebook.cells[2].outputs[0].text == "hi\n"
        assert "https://evil.example" not in notebook.cells[3].source.replace('href="https://evil.example', "")
        assert "src=" not in notebook.cells[3].source.replace("src=x onerror=a&gt;", "")


class TestChoice:
    async def test_a_named_model_wins(self) -> None:
        route = await choose("ollama/qwen3", None, env={"OPENAI_API_KEY": "sk"})
        assert (route.provider.name, route.model) == ("ollama", "qwen3")

    async def test_else_the_first_provider_with_a_key(self) -> None:
        route = await choose(None, None, env={"GROQ_API_KEY": "k", "ANTHROPIC_API_KEY": "k"})
        assert route.provider.name == "anthropic"

    async def test_a_missing_key_is_named(self) -> None:
        with pytest.raises(ConfigurationError, match="OPENAI_API_KEY"):
            await choose("openai/gpt-5", None, env={})

    async def test_without_anything_the_ways_to_get_one_are_told(self, monkeypatch: pytest.MonkeyPatch) -> None:
        from ipy_sandbox.interpreter import catalog

        async def nothing() -> list[catalog.LocalServer]:
            return []

        monkeypatch.setattr(catalog, "discover", nothing)
        with pytest.raises(ConfigurationError) as caught:
            await choose(None, None, env={})
        assert str(caught.value) == NO_MODEL
