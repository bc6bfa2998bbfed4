"""`%%sandbox` in a shell of this process, on the scripted provider."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import threading
from collections.abc import AsyncIterator, Callable, Iterable

import pytest
from IPython.core.error import UsageError
from IPython.utils.capture import capture_output

from ipy_sandbox.errors import (
    ConfigurationError,
    ExecutionTimeoutError,
    RemoteError,
    SandboxCreationError,
    SandboxLostError,
)
from ipy_sandbox.models import Display, End, Event, ExecutionError, Stderr, Stdout

from .conftest import ScriptedProvider, Shell

Item = Event | float | BaseException
VALUE = Display({"text/plain": "42", "text/html": "<b>42</b>"}, is_result=True)
BOOM = ExecutionError("ZeroDivisionError", "division by zero", "\x1b[31mZeroDivisionError\x1b[0m\n----> 1 1/0")


def say(*items: Item) -> Callable[[str], Iterable[Item]]:
    return lambda code: items


def codes(provider: ScriptedProvider) -> list[object]:
    return [call[2] for call in provider.calls if call[0] == "run"]


def named(provider: ScriptedProvider, name: str) -> list[tuple[object, ...]]:
    return [call for call in provider.calls if call[0] == name]


def press_stop(*then: Item) -> Iterable[Item]:
    """The user presses stop, then the code goes on as `then` says."""
    os.kill(os.getpid(), signal.SIGINT)
    yield from then


class TestOutput:
    def test_the_value_is_the_result_of_the_cell(self, shell: Shell, provider: ScriptedProvider) -> None:
        provider.script = say(Stdout("hello\n"), VALUE)
        with capture_output() as captured:
            result = shell.run("%%sandbox\nwhatever")
        assert captured.stdout.startswith("hello\n")
        assert repr(result.result) == result.result.text == "42"
        assert shell.ip.user_ns["_"] is shell.ip.user_ns["Out"][1] is result.result
        assert shell.ip.display_formatter.format(result.result)[0] == {"text/plain": "42", "text/html": "<b>42</b>"}

    def test_a_line_is_an_expression_too(self, shell: Shell, provider: ScriptedProvider) -> None:
        provider.script = say(VALUE)
        shell.run("answer = %sandbox sum([40, 2])")
        assert shell.ip.user_ns["answer"].text == "42"
        assert codes(provider) == ["sum([40, 2])"]

    def test_a_semicolon_silences_the_value(self, shell: Shell, provider: ScriptedProvider) -> None:
        provider.script = say(VALUE)
        assert shell.run("%%sandbox\nx;").result is None

    def test_what_was_cut_is_said(
        self, shell: Shell, provider: ScriptedProvider, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        async def cut(handle: object, code: str) -> AsyncIterator[Event]:
            yield Stdout("x\n")
            yield End("Output over 10 MiB was cut.")

        monkeypatch.setattr(provider, "run", cut)
        with capture_output() as captured:
            shell.run("%%sandbox\nx")
        assert captured.outputs[-1].data["text/plain"] == "Output over 10 MiB was cut."

    @pytest.mark.parametrize(
        "code",
        ['print("{x} $x {{}}")', "f'{x!r:>{w}}' # $HOME \\n", "  indented = 1", "a = 'é\u2028漢'", "!ls {x}", "x??"],
    )
    def test_the_code_arrives_byte_for_byte(self, shell: Shell, provider: ScriptedProvider, code: str) -> None:
        shell.ip.user_ns["x"] = "LOCAL"
        shell.run(f"%%sandbox\n{code}\n")
        assert codes(provider) == [f"{code}\n"]

    def test_displays_updates_and_clears_are_such(self, shell: Shell, provider: ScriptedProvider) -> None:
        provider.script = say(
            Display({"text/plain": "0"}, display_id="bar"), Display({"text/plain": "1"}, display_id="bar", update=True)
        )
        with capture_output() as captured:
            shell.run("%%sandbox\nx")
        notice, shown, update = captured.outputs
        assert (shown.data, update.data) == ({"text/plain": "0"}, {"text/plain": "1"})
        assert "started" in notice.data["text/plain"]

    def test_capture_has_everything_and_nothing_leaks(
        self, shell: Shell, provider: ScriptedProvider, capsys: pytest.CaptureFixture[str]
    ) -> None:
        provider.script = say(Stdout("out\n"), Display({"text/plain": "shown"}), Stderr("err\n"), VALUE)
        shell.run("%%sandbox\nfirst")
        capsys.readouterr()
        shell.run("%%capture c\n%%sandbox --result r\nx")
        assert capsys.readouterr().out.strip() == ""
        captured = shell.ip.user_ns["c"]
        assert (captured.stdout, captured.stderr) == ("out\n", "err\n")
        assert [output.data["text/plain"] for output in captured.outputs] == ["shown", "42"]
        assert shell.ip.user_ns["r"].stdout == "out\n"

    def test_terminal_escapes_and_scripts_do_not_pass(self, shell: Shell, provider: ScriptedProvider) -> None:
        provider.script = say(
            Stdout("\x1b]52;c;ZXZpbA==\x07\x1b[31mred\x1b[0m\n"),
            Display({"application/javascript": "alert(1)", "text/plain": "chart"}),
        )
        with capture_output() as captured:
            shell.run("%%sandbox\nx")
        assert captured.stdout == "\x1b[31mred\x1b[0m\n"
        texts = [output.data["text/plain"] for output in captured.outputs]
        assert texts[1] == "chart"
        assert "application/javascript" in texts[2]
        assert not any("application/javascript" in output.data for output in captured.outputs)

    def test_quiet_shows_nothing_but_keeps_the_result(self, shell: Shell, provider: ScriptedProvider) -> None:
        provider.script = say(Stdout("out\n"), VALUE)
        shell.run("%sandbox 0")
        with capture_output() as captured:
            assert shell.run("%%sandbox -q --result r\nx").result is None
        assert (captured.stdout, captured.outputs) == ("", [])
        assert shell.ip.user_ns["r"].text == "42"


class TestErrors:
    def test_a_remote_error_is_an_error_of_the_cell(self, shell: Shell, provider: ScriptedProvider) -> None:
        provider.script = say(Stdout("before\n"), VALUE, BOOM)
        with capture_output() as captured:
            error = shell.run("%%sandbox --result r\n1/0").error_in_exec
        assert isinstance(error, RemoteError)
        assert type(error).__name__ == "ZeroDivisionError"
        assert captured.stdout.startswith("before\n")
        assert BOOM.traceback in captured.stdout
        assert "ipy_sandbox" not in captured.stdout + captured.stderr
        assert captured.outputs[-1].data["text/plain"] == "42"
        assert shell.ip.user_ns["r"].error.name == "ZeroDivisionError"

    @pytest.mark.parametrize(
        "error",
        [
            ExecutionError("", "", ""),
            ExecutionError("evil\x00name", "v", "tb"),
            ExecutionError("pkg.Error", "\x1b]0;title\x07v", "tb\x1b[2J"),
            ExecutionError("Ünï", "\ud800", "\udc80 tb"),
        ],
    )
    def test_any_name_and_text_of_an_error_will_do(
        self, shell: Shell, provider: ScriptedProvider, error: ExecutionError
    ) -> None:
        provider.script = say(error)
        with capture_output() as captured:
            assert isinstance(shell.run("%%sandbox\nx").error_in_exec, RemoteError)
        assert "\x1b]" not in captured.stdout
        assert "\x1b[2J" not in captured.stdout

    @pytest.mark.parametrize(
        ("raised", "shown"),
        [
            (ExceptionGroup("g", [SandboxCreationError("no room")]), SandboxCreationError),
            (BaseExceptionGroup("g", [ExceptionGroup("h", [RuntimeError("deep")])]), RuntimeError),
            (ExceptionGroup("g", [RuntimeError("one"), ValueError("two")]), Exception),
        ],
    )
    def test_an_exception_group_of_the_provider_is_shown(
        self, shell: Shell, provider: ScriptedProvider, raised: BaseException, shown: type[BaseException]
    ) -> None:
        provider.script = say(raised)
        with capture_output() as captured:
            error = shell.run("%%sandbox\nx").error_in_exec
        assert isinstance(error, shown)
        assert not isinstance(error, BaseExceptionGroup)
        assert "|" not in captured.stderr  # how Python prints groups, past IPython
        assert str(error).splitlines()[-1] in captured.stdout

    def test_a_group_in_the_context_is_no_trap_either(self, shell: Shell, provider: ScriptedProvider) -> None:
        error = SandboxLostError("gone")
        error.__context__ = ExceptionGroup("g", [ValueError("inner")])
        provider.script = say(error)
        with capture_output() as captured:
            assert shell.run("%%sandbox\nx").error_in_exec is error
        assert "gone" in captured.stdout
        assert captured.stderr == ""

    def test_a_limit_of_seconds_stops_the_code(self, shell: Shell, provider: ScriptedProvider) -> None:
        provider.script = say(Stdout("before\n"), 60.0)
        with capture_output() as captured:
            error = shell.run("%%sandbox --timeout 0.1\nx").error_in_exec
        assert isinstance(error, ExecutionTimeoutError)
        assert captured.stdout.startswith("before\n")
        assert named(provider, "interrupt")

    @pytest.mark.parametrize(
        ("cell", "told"),
        [
            ("%%sandbox --nope\n1", "nope"),
            ("%%sandbox stray\n1", "stray"),
            ("%%sandbox\n   \n", "There is no code"),
            ("%sandbox", "There is no code"),
            ("%sandbox --timeout soon 1", "timeout"),
            ("%sandbox_session fly", "fly"),
        ],
    )
    def test_wrong_use_is_a_usage_error(self, shell: Shell, provider: ScriptedProvider, cell: str, told: str) -> None:
        with capture_output() as captured:
            assert isinstance(shell.run(cell).error_in_exec, UsageError)
        assert captured.stderr.startswith("UsageError")
        assert told in captured.stderr
        assert not provider.calls

    def test_a_cell_without_code_is_told_what_to_do(self, shell: Shell) -> None:
        with capture_output() as captured:
            shell.run("%%sandbox")
        assert "%sandbox" in captured.stderr

    def test_an_unknown_provider_is_named_with_the_known_ones(self, shell: Shell) -> None:
        with capture_output() as captured:
            assert isinstance(shell.run("%sandbox -p nope 1").error_in_exec, ConfigurationError)
        assert re.search(r"'nope': choose one of e2b, local, opensandbox", captured.stdout)
        assert len(captured.stdout.strip().splitlines()) == 1

    def test_errors_are_remembered_as_text(self, shell: Shell, provider: ScriptedProvider) -> None:
        provider.script = say(BOOM)
        shell.run("%%sandbox\n1/0")
        shell.run("1 +")
        shell.run("%sandbox --nope 1")
        errors = shell.ip.user_ns["Err"]
        assert str(errors[1]) == "ZeroDivisionError\n----> 1 1/0"
        assert errors[2].name == "SyntaxError"
        assert errors[3].traceback.startswith("UsageError: %sandbox: unknown option --nope")


class TestStop:
    def test_the_first_stop_interrupts_and_reads_on(self, shell: Shell, provider: ScriptedProvider) -> None:
        provider.script = lambda code: press_stop(60.0)
        before = signal.getsignal(signal.SIGINT)
        with capture_output() as captured:
            error = shell.run("%%sandbox\nwhile True: pass").error_in_exec
        assert isinstance(error, KeyboardInterrupt)
        assert len(named(provider, "interrupt")) == 1
        assert "KeyboardInterrupt" in captured.stdout  # the remote traceback
        assert signal.getsignal(signal.SIGINT) is before

    def test_code_that_ends_well_all_the_same_fails_the_cell(
        self, shell: Shell, provider: ScriptedProvider, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        asked = threading.Event()

        async def caught(handle: object) -> None:
            asked.set()

        def script(code: str) -> Iterable[Item]:
            yield from press_stop(0.0)
            while not asked.is_set():
                yield 0.01
            yield Stdout("I go on\n")

        monkeypatch.setattr(provider, "interrupt", caught)
        provider.script = script
        with capture_output() as captured:
            assert isinstance(shell.run("%%sandbox\nx").error_in_exec, KeyboardInterrupt)
        assert captured.stdout.startswith("I go on\n")

    def test_the_second_stop_leaves_code_that_ignores_the_first(
        self, shell: Shell, provider: ScriptedProvider, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        async def deaf(handle: object) -> None:
            provider.calls.append(("deaf",))
            os.kill(os.getpid(), signal.SIGINT)

        monkeypatch.setattr(provider, "interrupt", deaf)
        provider.script = lambda code: press_stop(60.0)
        assert isinstance(shell.run("%%sandbox\nx").error_in_exec, KeyboardInterrupt)
        provider.script = say(Stdout("next\n"))
        with capture_output() as captured:
            assert shell.run("%%sandbox\nx").success
        assert captured.stdout == "next\n"

    def test_a_late_interrupt_does_not_hit_the_next_cell(
        self, shell: Shell, provider: ScriptedProvider, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        interrupt = provider.interrupt

        async def late(handle: object) -> None:
            await asyncio.sleep(0.2)
            await interrupt(handle)  # type: ignore[arg-type]

        monkeypatch.setattr(provider, "interrupt", late)
        provider.script = lambda code: press_stop(0.01)
        assert isinstance(shell.run("%%sandbox\nfirst").error_in_exec, KeyboardInterrupt)
        provider.script = lambda code: [0.3, Stdout("safe\n")]
        with capture_output() as captured:
            assert shell.run("%%sandbox\nsecond").success
        assert captured.stdout == "safe\n"
        assert [call[0] for call in provider.calls] == ["create", "run", "interrupt", "run"]

    def test_a_sandbox_that_does_not_start_can_be_stopped(
        self, shell: Shell, provider: ScriptedProvider, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        async def never(options: object) -> None:
            os.kill(os.getpid(), signal.SIGINT)
            await asyncio.Event().wait()

        with monkeypatch.context() as patch:
            patch.setattr(provider, "create", never)
            assert isinstance(shell.run("%sandbox 1").error_in_exec, KeyboardInterrupt)
        assert shell.run("%sandbox 1").success


class TestSessions:
    def test_the_sandbox_is_made_once_and_announced_in_one_line(self, shell: Shell, provider: ScriptedProvider) -> None:
        with capture_output() as captured:
            shell.run("%sandbox 1")
            shell.run("%sandbox 2")
        assert len(named(provider, "create")) == 1
        (notice,) = captured.outputs
        assert re.fullmatch(
            r"Session default: sandbox fake1 \(scripted\) started .* 300 s .*", notice.data["text/plain"]
        )

    def test_a_lost_sandbox_is_said_and_the_next_cell_gets_a_new_one(
        self, shell: Shell, provider: ScriptedProvider
    ) -> None:
        shell.run("%sandbox 1")
        provider.lose("fake1")
        with capture_output() as captured:
            assert isinstance(shell.run("%sandbox 2").error_in_exec, SandboxLostError)
        assert "fake1" in captured.stdout
        with capture_output() as captured:
            assert shell.run("%sandbox 3").success
        assert "fake2" in captured.outputs[0].data["text/plain"]
        assert "fake1 are gone" in captured.outputs[0].data["text/plain"]
        assert codes(provider) == ["1", "2", "3"]

    def test_a_failed_start_is_not_remembered(self, shell: Shell, provider: ScriptedProvider) -> None:
        provider.create_error = SandboxCreationError("no room")
        assert isinstance(shell.run("%sandbox 1").error_in_exec, SandboxCreationError)
        assert isinstance(shell.run("%sandbox_session start a").error_in_exec, SandboxCreationError)
        provider.create_error = None
        assert shell.run("%sandbox 1").success
        assert shell.run("%sandbox_session start a").success

    def test_sessions_have_names(self, shell: Shell, provider: ScriptedProvider) -> None:
        for line in ['-s "a b" 1', "-s 'a b' 2", '--session="a b" 3', "4"]:
            shell.run(f"%sandbox {line}")
        ids = [call[1] for call in provider.calls if call[0] == "run"]
        assert ids == ["fake1", "fake1", "fake1", "fake2"]

    def test_a_comment_may_stand_above_the_magic(self, shell: Shell, provider: ScriptedProvider) -> None:
        shell.run("\n# note\n\n# more\n%%sandbox -s a\nx = 1\n")
        assert codes(provider) == ["# note\n\n# more\nx = 1\n"]


class TestLoading:
    def test_reloading_leaves_one_of_everything_and_unloading_nothing(
        self, shell: Shell, provider: ScriptedProvider, capsys: pytest.CaptureFixture[str]
    ) -> None:
        ip = shell.ip

        def ours() -> list[int]:
            return [
                sum(type(c).__name__ == "SandboxMagics" for c in ip.configurables),
                sum("ipy_sandbox" in type(t).__module__ + getattr(t, "__module__", "") for t in _transformers(ip)),
                sum("ipy_sandbox" in str(m) for m in ip.Completer.custom_matchers),
                sum("SandboxMagics" in str(c) for c in ip.events.callbacks["post_run_cell"]),
                sum("sandbox" in name for kind in ip.magics_manager.magics.values() for name in kind),
            ]

        once = ours()
        assert once[0] == 1
        shell.run("%sandbox 1")
        for _ in range(2):
            ip.run_line_magic("reload_ext", "ipy_sandbox")
        assert ours() == once
        assert not provider.alive
        ip.run_line_magic("unload_ext", "ipy_sandbox")
        assert ours() == [0] * len(once)
        assert "Err" not in ip.user_ns
        capsys.readouterr()
        ip.run_line_magic("load_ext", "ipy_sandbox")
        out = capsys.readouterr()
        assert out.out + out.err == ""


def _transformers(ip: object) -> list[object]:
    return list(ip.input_transformers_cleanup)  # type: ignore[attr-defined]


def test_local_has_help_and_runs_here(shell: Shell, provider: ScriptedProvider) -> None:
    assert "here" in shell.ip.find_cell_magic("local").__doc__
    shell.run("get_ipython().run_cell_magic('local', '', 'y = 2')")
    assert shell.ip.user_ns["y"] == 2
    assert isinstance(shell.run("get_ipython().run_cell_magic('local', '', '1/0')").error_in_exec, ZeroDivisionError)
    assert not codes(provider)
