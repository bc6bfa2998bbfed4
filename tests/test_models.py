"""Handles keep their secrets; events fold into what a notebook would show."""

from pydantic import SecretStr

from ipy_sandbox.models import (
    ClearOutput,
    CodeExecutionResult,
    ContainerHandle,
    Display,
    End,
    Event,
    ExecutionCount,
    ExecutionError,
    ResultBuilder,
    Stderr,
    Stdout,
)


def folded(*events: Event) -> CodeExecutionResult:
    builder = ResultBuilder()
    for event in events:
        builder.add(event)
    return builder.result


def test_secrets_of_a_handle_are_shown_only_on_purpose() -> None:
    handle = ContainerHandle(id="i1", provider="e2b", secrets={"access_token": SecretStr("s3cr3t")})
    assert "s3cr3t" not in repr(handle) + str(handle) + str(handle.model_dump()) + handle.model_dump_json()
    again = ContainerHandle.model_validate(handle.dump_with_secrets())
    assert again == handle
    assert again.secret("access_token") == "s3cr3t"
    assert again.secret("other") is None


def test_events_fold_into_one_result() -> None:
    result = folded(
        ExecutionCount(3),
        Stdout("a\n"),
        Stderr("w\n"),
        Stdout("b\n"),
        Display({"text/plain": "1"}, is_result=True, raw={"text": "1"}),
        ExecutionError("ValueError", "no", "tb"),
        ExecutionError("Later", "no", "tb"),
        End("cut"),
    )
    assert result.model_dump() == {
        "stdout": "a\nb\n",
        "stderr": "w\n",
        "results": [{"text": "1"}],
        "error": {"name": "ValueError", "value": "no", "traceback": "tb"},
        "execution_count": 3,
        "truncated": "cut",
        "object": "code_execution",
    }
    assert result.text == "1"


def test_an_update_replaces_the_display_it_names() -> None:
    first, other = Display({"text/plain": "0%"}, display_id="d"), Display({"text/plain": "x"})
    result = folded(first, other, Display({"text/plain": "100%"}, display_id="d", update=True))
    assert result.results == [{"text/plain": "100%"}, {"text/plain": "x"}]


def test_clear_output_clears_now_or_at_the_next_output() -> None:
    assert folded(Stdout("a"), ClearOutput()).stdout == ""
    assert folded(Stdout("a"), ClearOutput(wait=True)).stdout == "a"
    assert folded(Stdout("a"), ClearOutput(wait=True), Stdout("b")).stdout == "b"
