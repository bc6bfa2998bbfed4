"""What comes out of the loop, on both surfaces, streamed and whole, and over the bridge: expected outcomes."""

from __future__ import annotations

import json

import pytest
from servers.asking import PNG, WAYS, asking
from servers.model_server import Code, Fail, Fn, Length, Raw, Say, Scenario, Think

from ipy_sandbox.errors import SandboxCreationError, UpstreamError
from ipy_sandbox.interpreter.limits import Limits
from ipy_sandbox.interpreter.loop import BAD_ARGUMENTS, LIMIT_REACHED, NO_ANSWER
from ipy_sandbox.interpreter.workspace import NEW_SANDBOX

pytestmark = pytest.mark.anyio

each_way = pytest.mark.parametrize("way", WAYS)


@each_way
@pytest.mark.parametrize("rounds", [1, 2, 4, 8])
async def test_rounds_run_in_order_and_usage_is_their_sum(way: str, rounds: int) -> None:
    turns = [[Code(f"round{i}")] for i in range(rounds)]
    async with asking({"go": Scenario(turns)}) as kit:
        answer = await kit.ask(way, "go")
        assert answer.codes == [f"round{i}" for i in range(rounds)]
        assert answer.statuses == ["completed"] * rounds
        assert answer.logs == [f"round{i}\n" for i in range(rounds)]
        assert answer.seen() == [f"round{i}" for i in range(rounds)]
        assert answer.tokens == sum(110 + 2 * i for i in range(rounds + 1))
        assert answer.finish == "stop"
        assert len({call["container_id"] for call in answer.calls}) == 1
        assert answer.calls[0]["container_id"].startswith("cntr_")
        assert len(kit.named("create")) == 1
        assert await kit.clean()


@each_way
async def test_without_a_call_no_sandbox_is_made(way: str) -> None:
    async with asking({"go": Scenario(final="just text")}) as kit:
        answer = await kit.ask(way, "go")
        assert (answer.text, answer.calls) == ("just text", [])
        assert not kit.provider.calls


@each_way
async def test_parallel_calls_run_one_after_another_in_one_sandbox(way: str) -> None:
    async with asking({"go": Scenario([[Code("a"), Code("1/0"), Code("b")]])}) as kit:
        answer = await kit.ask(way, "go")
        assert answer.codes == ["a", "1/0", "b"]
        assert [seen[:6] for seen in answer.seen()] == ["a", "before", "b"]
        assert [call[1:] for call in kit.named("run")] == [("fake1", "a"), ("fake1", "1/0"), ("fake1", "b")]


@each_way
@pytest.mark.parametrize("ours_first", [True, False])
async def test_a_mixed_turn_runs_ours_and_returns_the_clients(way: str, ours_first: bool) -> None:
    turn = [Code("mine"), Fn("get_weather", '{"city": "Paris"}')]
    async with asking({"go": Scenario([turn if ours_first else turn[::-1]])}) as kit:
        answer = await kit.ask(way, "go", functions=True)
        assert answer.functions == [("get_weather", '{"city": "Paris"}')]
        assert (answer.codes, answer.logs) == (["mine"], ["mine\n"])
        assert answer.finish == "tool_calls"
        assert len(kit.model.bodies) == 1


@each_way
async def test_only_a_client_function_is_returned_as_ever(way: str) -> None:
    async with asking({"go": Scenario([[Fn("get_weather", '{"city": "Oslo"}')]])}) as kit:
        answer = await kit.ask(way, "go", functions=True)
        assert answer.functions == [("get_weather", '{"city": "Oslo"}')]
        assert not answer.calls
        assert not kit.provider.calls


@each_way
@pytest.mark.parametrize("arguments", ['["print(1)"]', "", "{}", '{"code": 5}', '{"code": "  "}', '{"cod', "null"])
async def test_bad_arguments_are_told_to_the_model_and_nothing_runs(way: str, arguments: str) -> None:
    async with asking({"go": Scenario([[Raw(arguments)], [Code("better")]])}) as kit:
        answer = await kit.ask(way, "go")
        assert answer.statuses == ["failed", "completed"]
        assert answer.seen() == [BAD_ARGUMENTS, "better"]
        assert [call[2] for call in kit.named("run")] == ["better"]


@each_way
async def test_arguments_that_were_encoded_twice_are_understood(way: str) -> None:
    arguments = json.dumps(json.dumps({"code": "x = 'ä\n'"}))
    async with asking({"go": Scenario([[Raw(arguments)]])}) as kit:
        answer = await kit.ask(way, "go")
        assert answer.codes == ["x = 'ä\n'"]
        assert answer.statuses == ["completed"]


@each_way
async def test_a_model_that_calls_the_tool_by_its_old_name_is_understood(way: str) -> None:
    async with asking(
        {"go": Scenario([[Raw('{"code": "a"}', "code_interpreter")], [Raw("print(2)", "python")]])}
    ) as kit:
        answer = await kit.ask(way, "go")
        assert answer.codes == ["a", "print(2)"]


@each_way
async def test_a_client_function_of_an_alias_name_stays_the_clients(way: str) -> None:
    function = {"name": "python", "parameters": {"type": "object", "properties": {}}}
    tools = [{"type": "code_interpreter", "container": {"type": "auto"}}]
    tools.append(
        {"type": "function", "function": function} if way.startswith("chat") else {"type": "function", **function}
    )
    async with asking({"go": Scenario([[Raw('{"q": 1}', "python")]])}) as kit:
        answer = await kit.ask(way, "go", tools=tools)
        assert answer.functions == [("python", '{"q": 1}')]
        assert not kit.provider.calls


@each_way
async def test_the_internal_name_gives_way_to_a_client_function(way: str) -> None:
    function = {"name": "litellm_code_execution", "parameters": {"type": "object", "properties": {}}}
    tools = [{"type": "code_interpreter", "container": {"type": "auto"}}]
    tools.append(
        {"type": "function", "function": function} if way.startswith("chat") else {"type": "function", **function}
    )
    async with asking({"go": Scenario([[Code("mine")], [Fn("litellm_code_execution")]])}) as kit:
        answer = await kit.ask(way, "go", tools=tools)
        assert answer.codes == ["mine"]
        assert answer.functions == [("litellm_code_execution", "{}")]


FORCED = [{"type": "code_interpreter"}, "required", {"type": "function", "name": "code_interpreter"}]


@each_way
@pytest.mark.parametrize("choice", FORCED)
async def test_a_forced_choice_holds_for_one_turn_only(way: str, choice: object) -> None:
    if way.startswith("chat") and isinstance(choice, dict) and "name" in choice:
        choice = {"type": "function", "function": {"name": "code_interpreter"}}
    async with asking({"go": Scenario()}) as kit:
        answer = await kit.ask(way, "go", tool_choice=choice)
        assert len(answer.calls) == 1
        assert answer.text.startswith("FINAL")
        assert kit.model.bodies[1]["tool_choice"] == "auto"
        if not way.startswith("chat"):
            assert answer.raw["tool_choice"] == choice


@each_way
async def test_allowed_tools_names_the_function_that_the_tool_became(way: str) -> None:
    entry = {"mode": "required", "tools": [{"type": "code_interpreter"}]}
    choice = (
        {"type": "allowed_tools", "allowed_tools": entry}
        if way.startswith("chat")
        else {"type": "allowed_tools", **entry}
    )
    async with asking({"go": Scenario([[Code("a")]])}) as kit:
        answer = await kit.ask(way, "go", tool_choice=choice, functions=True)
        assert (answer.codes, answer.seen()) == (["a"], ["a"])
        if way.startswith("bridged"):
            assert len(kit.model.bodies[0]["tools"]) == 1
            assert [body["tool_choice"] for body in kit.model.bodies] == ["required", "auto"]
        else:
            assert '"auto"' in json.dumps(kit.model.bodies[1]["tool_choice"])


@each_way
async def test_an_endless_loop_ends_at_the_limit_with_an_answer(way: str) -> None:
    async with asking({"go": Scenario([[Code("again")]], endless=True)}, limits=Limits(turns=4)) as kit:
        answer = await kit.ask(way, "go")
        assert answer.codes == ["again"] * 3
        assert answer.seen() == ["again"] * 3
        assert kit.model.bodies[-1]["tool_choice"] == "none"


@each_way
@pytest.mark.parametrize("final", ["my answer", None])
async def test_a_model_that_calls_the_tool_even_then_is_asked_without_it(way: str, final: str | None) -> None:
    scenario = Scenario([[Code("again")]], endless=True, stubborn=True, final=final)
    async with asking({"go": scenario}, limits=Limits(turns=3)) as kit:
        answer = await kit.ask(way, "go")
        assert answer.codes == ["again"] * 2
        assert answer.text == (final or NO_ANSWER)
        assert "tools" not in kit.model.bodies[-1]


@each_way
async def test_max_tool_calls_counts_and_what_is_beyond_is_ignored(way: str) -> None:
    async with asking({"go": Scenario([[Code("a"), Code("b"), Code("c")]])}) as kit:
        answer = await kit.ask(way, "go", max_tool_calls=2)
        assert answer.codes == ["a", "b"]
        assert answer.seen() == ["a", "b", LIMIT_REACHED]
        assert "max_tool_calls" not in kit.model.bodies[0]


@each_way
async def test_at_the_limit_the_clients_own_functions_are_still_there(way: str) -> None:
    async with asking({"go": Scenario([[Code("a")], [Fn("get_weather")]])}) as kit:
        answer = await kit.ask(way, "go", max_tool_calls=1, functions=True)
        assert (answer.codes, answer.functions) == (["a"], [("get_weather", "{}")])
        assert (len(kit.model.bodies[1]["tools"]), kit.model.bodies[1]["tool_choice"]) == (1, "auto")


@each_way
async def test_past_its_time_nothing_more_runs_and_the_answer_is_asked_for(way: str) -> None:
    async with asking({"go": Scenario([[Code("sleep"), Code("b")]], endless=True)}, limits=Limits(seconds=0.3)) as kit:
        answer = await kit.ask(way, "go")
        assert answer.statuses == ["failed", "failed"]
        assert answer.seen()[1] == LIMIT_REACHED
        assert [call[2] for call in kit.named("run")] == ["sleep"]


@each_way
async def test_no_sandbox_is_told_to_the_model_and_the_answer_comes(way: str) -> None:
    async with asking({"go": Scenario([[Code("a")]])}) as kit:
        kit.provider.create_error = SandboxCreationError("https://inner-host.example refused: quota of team t-123")
        answer = await kit.ask(way, "go")
        assert answer.statuses == ["failed"]
        assert answer.seen() == answer.logs == ["[the code did not run: no sandbox is available now]"]
        assert "inner-host" not in json.dumps(answer.raw)
        assert answer.calls[0]["code"] == "a"


@each_way
@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("lose", "[the sandbox was lost: variables, files and this result are gone"),
        ("die", "[the Python kernel died"),
        ("break", "[the sandbox failed: the code may have run, but its result is lost]"),
        ("bug", "[the sandbox failed: the code may have run, but its result is lost]"),
    ],
)
async def test_a_failing_run_is_told_and_the_loop_goes_on(way: str, code: str, said: str) -> None:
    async with asking({"go": Scenario([[Code(code)], [Code("again")]])}) as kit:
        answer = await kit.ask(way, "go")
        assert answer.statuses == ["failed", "completed"]
        assert answer.seen()[0].startswith(said)
        assert answer.logs[0].startswith(said)
        assert answer.seen()[1] == (f"{NEW_SANDBOX}\nagain" if code == "lose" else "again")
        assert [call[2] for call in kit.named("run")] == [code, "again"]
        assert "inner-host" not in json.dumps(answer.raw)


@each_way
async def test_a_sandbox_lost_in_the_loop_is_replaced_under_another_container_id(way: str) -> None:
    async with asking({"go": Scenario([[Code("lose")], [Code("again")]])}) as kit:
        answer = await kit.ask(way, "go")
        assert [call[1] for call in kit.named("run")] == ["fake1", "fake2"]
        assert answer.calls[0]["container_id"] != answer.calls[1]["container_id"]


@each_way
async def test_code_that_runs_too_long_is_stopped_and_what_it_said_is_kept(way: str) -> None:
    async with asking({"go": Scenario([[Code("sleep")]])}, limits=Limits(run_seconds=0.2)) as kit:
        answer = await kit.ask(way, "go")
        assert answer.statuses == ["failed"]
        assert answer.seen()[0].startswith("begun\n")
        assert answer.seen()[0].endswith("[stopped: the code ran longer than allowed]")


@each_way
async def test_all_that_code_says_reaches_model_and_client(way: str) -> None:
    codes = ["1/0", "40+2", "warn", "x = 1"]
    async with asking({"go": Scenario([[Code(code)] for code in codes])}) as kit:
        answer = await kit.ask(way, "go")
        assert answer.statuses == ["completed"] * 4
        error = "before\nZeroDivisionError Traceback\nCell In[1], line 2\nZeroDivisionError: division by zero"
        assert answer.seen() == [error, "42", "out\n[stderr]\nerr", "[no output]"]
        assert answer.logs == [error, "42", "out\n[stderr]\nerr", ""]


@each_way
async def test_a_chart_reaches_a_model_that_sees_as_image_and_the_client_as_data_url(way: str) -> None:
    async with asking({"go": Scenario([[Code("plot")]])}) as kit:
        answer = await kit.ask(way, "go")
        assert answer.images == [f"data:image/png;base64,{PNG}"]
        assert answer.logs == ["plotted\n"]
        assert "image_url>" in answer.text or "input_image>" in answer.text
        assert PNG not in answer.text
        assert PNG in json.dumps(kit.model.bodies[1])


@each_way
async def test_a_model_that_refuses_images_gets_them_described(way: str) -> None:
    async with asking({"go": Scenario([[Code("plot")]])}) as kit:
        kit.model.blind = True
        for _ in range(2):
            answer = await kit.ask(way, "go")
            assert answer.seen() == ["plotted\n[image <Figure size 640x480>, image/png, 0 KB]"]
            assert answer.images
        assert len(kit.model.bodies) == 3 + 2, "the second time it is known"


@each_way
@pytest.mark.parametrize(("code", "size"), [("300 KB", 300_007), ("12 MB", 12_000_000)])
async def test_long_output_is_cut_in_its_middle_for_the_model(way: str, code: str, size: int) -> None:
    async with asking({"go": Scenario([[Code(code)], [Code("after")]])}) as kit:
        answer = await kit.ask(way, "go")
        seen = answer.seen()[0]
        assert len(seen) < 20_100
        assert f"[... {size - 20_000} characters left out ...]" in seen
        assert len(answer.logs[0]) == size if size < 1_000_000 else len(answer.logs[0]) < 1_000_100
        assert answer.seen()[1] == "after"


@each_way
async def test_what_was_said_and_thought_beside_a_call_goes_back_to_the_model(way: str) -> None:
    async with asking({"go": Scenario([[Think("hm"), Say("Let me compute."), Code("a")]])}) as kit:
        answer = await kit.ask(way, "go")
        assert answer.seen() == ["a"]
        replayed = json.dumps(kit.model.bodies[1])
        assert "Let me compute." in replayed
        if way.startswith("responses"):
            assert '"encrypted_content": "gAAA"' in replayed
            assert '"phase"' in replayed
            assert "gAAA" not in json.dumps(answer.raw)
            assert [i["type"] for i in answer.raw["output"]] == [
                "reasoning",
                "message",
                "code_interpreter_call",
                "message",
            ]
        else:
            assert '"reasoning_content": "hm"' in replayed
        if way.startswith("chat"):
            assert answer.raw["messages"][0]["content"] == "Let me compute."


@each_way
@pytest.mark.parametrize("status", [429, 500])
@pytest.mark.parametrize("turn", [1, 2])
async def test_an_upstream_error_keeps_its_status(
    way: str, status: int, turn: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ipy_sandbox.interpreter.upstream._backoff", lambda attempt: 0.0)
    turns = [[Fail(status, "insufficient_quota")]] if turn == 1 else [[Code("a")], [Fail(status, "insufficient_quota")]]
    async with asking({"go": Scenario(turns)}) as kit:
        if turn == 2 and way.endswith("stream"):
            answer = await kit.ask(way, "go")
            assert answer.finish == "error"
            error = answer.raw["error"]
            assert error["message"] == "scripted failure"
            assert error["code"] == "insufficient_quota"
        else:
            with pytest.raises(UpstreamError) as caught:
                await kit.ask(way, "go")
            assert (caught.value.status, caught.value.turn_number) == (status, turn - 1)
        assert await kit.clean()


@each_way
async def test_a_turn_cut_for_length_runs_nothing_and_says_so(way: str) -> None:
    async with asking({"go": Scenario([[Say("I will"), Raw('{"code": "print('), Length()]])}) as kit:
        answer = await kit.ask(way, "go")
        assert answer.finish == "length"
        assert answer.statuses == ["incomplete"]
        assert not kit.named("run")


@each_way
async def test_the_limit_of_output_tokens_is_for_the_whole(way: str) -> None:
    scenario = Scenario([[Code("a")], [Code("b")], [Code("c")]], usage=(100, 30))
    budget = {"max_tokens": 80} if way.startswith("chat") else {"max_output_tokens": 80}
    async with asking({"go": scenario}) as kit:
        answer = await kit.ask(way, "go", **budget)
        key = "max_output_tokens" if way.startswith("responses") else "max_tokens"
        assert [body[key] for body in kit.model.bodies] == [80, 50, 19]
        assert (answer.finish, answer.codes) == ("length", ["a", "b", "c"])


@each_way
async def test_unknown_usage_is_not_invented(way: str) -> None:
    async with asking({"go": Scenario([[Code("a")]], usage=None)}) as kit:
        assert (await kit.ask(way, "go")).tokens is None
