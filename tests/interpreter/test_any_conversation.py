"""Whatever a model does in its turns: every way of asking gives the same answer, and every stream is well formed."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from servers.asking import WAYS, Answer, asking
from servers.model_server import Call, Code, Fn, Length, Raw, Say, Scenario, Think

texts = st.text('aé✓\n \u2028"\\', min_size=1, max_size=30)
codes = st.sampled_from(["a = 1", "1/0", "40+2", "warn", "x = 1", "break", "die", "print('ü\\u2028')\n"])
arguments = st.sampled_from(["", "[1]", "{}", '{"code": 5}', "null", json.dumps(json.dumps({"code": "b"}))])
aliases = st.sampled_from([None, "python", "code_interpreter"])
parts = st.one_of(
    st.builds(Say, texts),
    st.builds(Code, codes),
    st.builds(Raw, arguments, aliases),
    st.builds(Fn, st.just("get_weather"), st.sampled_from(['{"city": "Ürümqi"}', "{}"])),
)


@st.composite
def turns(draw: st.DrawFn) -> list[Any]:
    """A turn: perhaps a thought, perhaps one text, some calls, perhaps cut; chat can say no more in one message."""
    thought = [Think(draw(texts))] if draw(st.booleans()) else []
    drawn = draw(st.lists(parts, min_size=1, max_size=4))
    said = [part for part in drawn if isinstance(part, Say)][:1]
    calls = [part for part in drawn if isinstance(part, Call)]
    cut = [Length()] if draw(st.integers(0, 9)) == 0 else []
    return [*thought, *said, *calls, *cut]


def outcome(answer: Answer) -> Any:
    """What must be the same however it was asked for."""
    return answer.codes, answer.statuses, answer.logs, answer.functions, answer.finish, answer.tokens


@settings(max_examples=40, deadline=None, derandomize=True)
@given(st.lists(turns(), max_size=4), st.integers(1, 50), st.one_of(st.none(), st.integers(0, 3)))
def test_every_way_gives_the_same(model_turns: list[Any], piece: int, max_calls: int | None) -> None:
    async def ask_all() -> list[Answer]:
        async with asking({"go": Scenario(model_turns)}) as kit:
            kit.model.piece = piece
            body = {} if max_calls is None else {"max_tool_calls": max_calls}
            answers = [await kit.ask(way, "go", functions=True, **body) for way in WAYS]
            assert await kit.clean()
            return answers

    answers = asyncio.run(ask_all())
    assert [outcome(answer) for answer in answers] == [outcome(answers[0])] * len(WAYS)
    for way, answer in zip(WAYS, answers, strict=True):
        if way == "chat-stream":
            # All that was said, while the whole completion has the last turn's text in its content.
            assert answer.text.endswith(answers[WAYS.index("chat")].text)
