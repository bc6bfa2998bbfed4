"""`%sandbox_session` in a shell of this process, on the scripted provider."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path
from typing import Any

import nbformat
import pytest
from IPython.core.error import UsageError
from IPython.utils.capture import capture_output

from ipy_sandbox.errors import ConfigurationError, FileTransferError, SandboxLostError
from ipy_sandbox.magics.state import StateFile
from ipy_sandbox.models import ClearOutput, Display, Event, ExecutionCount, ExecutionError, SandboxOptions, Stdout

from .conftest import ScriptedProvider, Shell


def lines(shell: Shell, code: str) -> list[str]:
    """Run `code` well, and give the lines of ours that it showed."""
    with capture_output() as captured:
        result = shell.run(code)
    assert result.success, captured.stdout + captured.stderr
    return [output.data["text/plain"] for output in captured.outputs]


def table(shell: Shell, code: str = "%sandbox_session") -> list[list[str]]:
    with capture_output():
        return [list(row) for row in shell.run(code).result.rows]


@pytest.fixture(autouse=True)
def state_home(tmp_path: Path) -> Path:
    os.environ["XDG_STATE_HOME"] = str(tmp_path / "state")
    return tmp_path / "state" / "ipy-sandbox" / "sandboxes.json"


class TestCommands:
    def test_the_table_of_sessions(self, shell: Shell, provider: ScriptedProvider) -> None:
        assert table(shell) == []
        shell.run("%sandbox 1")
        shell.run("%sandbox_session start gpu --timeout 60")
        rows = table(shell)
        assert [row[:5] for row in rows] == [
            ["", "default", "scripted", "fake1", "idle"],
            ["*", "gpu", "scripted", "fake2", "idle"],
        ]
        provider.lose("fake1")
        shell.run("%sandbox -s default 1")
        assert table(shell)[0][4] == "lost"

    def test_the_table_shows_itself_in_notebooks_and_terminals(self, shell: Shell) -> None:
        shell.run("%sandbox_session start '<b>'")
        shown = shell.run("%sandbox_session").result
        assert "&lt;b&gt;" in shown._repr_html_()
        assert "<b>" not in shown._repr_html_()
        assert "session  provider" in repr(shown)

    def test_start_hands_its_options_to_the_provider(self, shell: Shell, provider: ScriptedProvider) -> None:
        shell.run(
            "%sandbox_session start a -p scripted --template 'my image' --timeout 60 --no-internet "
            "--env A=1 --env 'B=x y=z'"
        )
        assert provider.calls[0] == (
            "create",
            SandboxOptions(
                template="my image", timeout=60, allow_internet_access=False, env_vars={"A": "1", "B": "x y=z"}
            ),
        )

    def test_use_changes_the_current_session(self, shell: Shell, provider: ScriptedProvider) -> None:
        shell.run("%sandbox_session start a")
        shell.run("%sandbox_session start b")
        for name in ("a", "fake2", "a", "fake1"):
            shell.run(f"%sandbox_session use {name}")
            shell.run("%sandbox 1")
        assert [call[1] for call in provider.calls if call[0] == "run"] == ["fake1", "fake2", "fake1", "fake1"]

    def test_attach_takes_a_sandbox_back(self, shell: Shell, provider: ScriptedProvider) -> None:
        shell.run("%sandbox_session start a --keep")
        shell.ip.run_line_magic("reload_ext", "ipy_sandbox")
        assert "fake1" in lines(shell, "%sandbox_session attach fake1 -n mine")[0]
        assert table(shell)[0][1:4] == ["mine", "scripted", "fake1"]
        assert isinstance(shell.run("%sandbox_session attach nowhere").error_in_exec, SandboxLostError)

    def test_renew_restart_and_interrupt_reach_the_provider(self, shell: Shell, provider: ScriptedProvider) -> None:
        shell.run("%sandbox 1")
        for line in ("renew 900", "restart", "interrupt default"):
            shell.run(f"%sandbox_session {line}")
        told = [call[0] for call in provider.calls]
        assert told == ["create", "run", "renew", "interrupt", "restart", "interrupt"]
        assert ("renew", "fake1", 900.0) in provider.calls

    def test_stop_deletes_the_sandbox(self, shell: Shell, provider: ScriptedProvider) -> None:
        for name in "abc":
            shell.run(f"%sandbox_session start {name}")
        assert lines(shell, "%sandbox_session stop b") == ["Session b is over: its sandbox is deleted."]
        assert sorted(provider.alive) == ["fake1", "fake3"]
        lines(shell, "%sandbox_session stop --all")
        assert not provider.alive
        assert lines(shell, "%sandbox_session stop --all") == ["There are no sessions."]

    @pytest.mark.parametrize(
        ("line", "kind"),
        [
            ("use nope", ConfigurationError),
            ("stop nope", ConfigurationError),
            ("info", ConfigurationError),
            ("start a -p nope", ConfigurationError),
            ("start a --env nope", ConfigurationError),
            ("start a --timeout -1", ConfigurationError),
            ("start a b", UsageError),
            ("renew soon", UsageError),
            ("push 1x", UsageError),
            ("auto maybe", UsageError),
        ],
    )
    def test_mistakes_are_one_clear_line(self, shell: Shell, line: str, kind: type[Exception]) -> None:
        with capture_output() as captured:
            assert isinstance(shell.run(f"%sandbox_session {line}").error_in_exec, kind)
        assert len((captured.stdout + captured.stderr).strip().splitlines()) == 1

    def test_a_mended_address_counts_at_once(self, shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
        for line in ("%sandbox -p opensandbox 1", "%sandbox_session start -p opensandbox o"):
            for port in ("9", "19"):
                monkeypatch.setenv("OPEN_SANDBOX_API_BASE", f"http://127.0.0.1:{port}")
                assert f"127.0.0.1:{port}:" in str(shell.run(line).error_in_exec)
        assert table(shell) == []

    def test_a_name_that_is_taken_is_said(self, shell: Shell) -> None:
        shell.run("%sandbox_session start a")
        assert isinstance(shell.run("%sandbox_session start a").error_in_exec, ConfigurationError)

    @pytest.mark.parametrize("line", ["--help", "start --help", "put --help", "auto --help"])
    def test_help(self, shell: Shell, line: str) -> None:
        with capture_output() as captured:
            assert shell.run(f"%sandbox_session {line}").success
        assert captured.stdout.startswith("usage: %sandbox_session")


class TestFiles:
    def test_put_and_get_with_globs(self, shell: Shell, provider: ScriptedProvider, tmp_path: Path) -> None:
        for name in ("a.csv", "b.csv", "c.txt", ".hidden.csv"):
            (tmp_path / name).write_text(name)
        assert lines(shell, f"%sandbox_session put '{tmp_path}/*.csv' data/")[-1] == "Copied data/a.csv, data/b.csv."
        assert provider.files["fake1"] == {"data/a.csv": b"a.csv", "data/b.csv": b"b.csv"}
        lines(shell, f"%sandbox_session put {tmp_path}/c.txt renamed.txt")
        assert provider.files["fake1"]["renamed.txt"] == b"c.txt"
        lines(shell, f"%sandbox_session get 'data/*.csv' {tmp_path}/back")
        assert sorted(path.name for path in (tmp_path / "back").iterdir()) == ["a.csv", "b.csv"]
        lines(shell, f"%sandbox_session get renamed.txt {tmp_path}/one.txt")
        assert (tmp_path / "one.txt").read_text() == "c.txt"

    def test_a_directory_is_copied_whole(self, shell: Shell, provider: ScriptedProvider, tmp_path: Path) -> None:
        (tmp_path / "src" / "sub").mkdir(parents=True)
        (tmp_path / "src" / "sub" / "x.py").write_text("x")
        lines(shell, f"%sandbox_session put {tmp_path}/src project/")
        assert list(provider.files["fake1"]) == ["project/src/sub/x.py"]

    @pytest.mark.parametrize("name", ["../../evil", "/etc/evil", "..", "a/.."])
    def test_a_sandbox_cannot_name_a_file_outside(
        self, shell: Shell, provider: ScriptedProvider, tmp_path: Path, name: str
    ) -> None:
        shell.run("%sandbox 1")
        provider.files["fake1"] = {name: b"evil", "good": b"good"}
        into = tmp_path / "a" / "b"
        shell.run(f"%sandbox_session get '*' {into}/")
        everything = [path for path in tmp_path.rglob("*") if path.is_file() and path.name == "evil"]
        assert all(path.parent == into for path in everything)
        assert not Path("/etc/evil").exists()

    def test_names_that_the_sandbox_chose_replace_nothing(
        self, shell: Shell, provider: ScriptedProvider, tmp_path: Path
    ) -> None:
        (tmp_path / "mine.txt").write_text("mine")
        shell.run("%sandbox 1")
        provider.files["fake1"] = {"mine.txt": b"theirs", "\x1b]0;x\x07.txt": b""}
        assert isinstance(shell.run(f"%sandbox_session get '*.txt' {tmp_path}/").error_in_exec, FileTransferError)
        assert [path.name for path in tmp_path.glob("*.txt")] == ["mine.txt"]
        lines(shell, f"%sandbox_session get -f '*.txt' {tmp_path}/")
        assert (tmp_path / "mine.txt").read_text() == "theirs"
        assert all(path.name.isprintable() for path in tmp_path.glob("*.txt"))

    def test_ls_leaves_out_what_begins_with_a_dot(self, shell: Shell, provider: ScriptedProvider) -> None:
        shell.run("%sandbox 1")
        provider.files["fake1"] = {"/home/user/.cache": b"", "/home/user/mine.txt": b""}
        assert ".cache" not in repr(shell.run("%sandbox_session ls").result)
        assert ".cache" in repr(shell.run("%sandbox_session ls -a").result)

    def test_words_of_the_sandbox_bring_no_escapes(self, shell: Shell, provider: ScriptedProvider) -> None:
        shell.run("%sandbox 1")
        provider.files["fake1"] = {"\x1b]0;x\x07name\x1b[2J": b""}
        assert repr(shell.run("%sandbox_session ls").result).splitlines()[1].startswith("name ")
        evil = SandboxLostError("gone \x1b]0;x\x07 \x1b[2Jand\nlost")
        provider.script = lambda code: [evil]
        with capture_output() as captured:
            assert shell.run("%sandbox 1").error_in_exec is evil
        assert captured.stdout.endswith("gone and lost\n")

    def test_what_is_not_there_is_said(self, shell: Shell, tmp_path: Path) -> None:
        for line in ("put /nowhere/x", "get nope", "get 'no*'"):
            assert isinstance(shell.run(f"%sandbox_session {line}").error_in_exec, FileTransferError)

    def test_a_place_that_cannot_be_written_is_said(
        self, shell: Shell, provider: ScriptedProvider, tmp_path: Path
    ) -> None:
        shell.run("%sandbox 1")
        provider.files["fake1"] = {"x": b"1"}
        (tmp_path / "file").write_text("")
        assert isinstance(shell.run(f"%sandbox_session get x {tmp_path}/file/x").error_in_exec, FileTransferError)

    def test_a_sandbox_full_of_files_does_not_fill_the_page(self, shell: Shell, provider: ScriptedProvider) -> None:
        shell.run("%sandbox 1")
        provider.files["fake1"] = {f"{number:05}{'x' * 9000}": b"" for number in range(3000)}
        shown = shell.run("%sandbox_session ls").result._repr_html_()
        assert shown.count("<tr>") == 1 + 1000 + 1
        assert "... and 2000 more" in shown
        assert len(shown) < 10_000_000


class TestExport:
    def script(self, code: str) -> list[Event]:
        return {
            "text\n": [Stdout("a\n"), Stdout("b\n")],
            "rich\n": [
                Display({"text/plain": "0"}, display_id="d"),
                Display({"text/plain": "1"}, display_id="d", update=True),
                Display({"text/plain": "42"}, is_result=True),
            ],
            "cleared\n": [Stdout("gone\n"), ClearOutput(wait=True), Stdout("kept\n")],
            "bad\n": [ExecutionError("KeyError", "'x'", "line 1\nline 2")],
        }.get(code, [])

    def test_a_session_is_a_valid_notebook(self, shell: Shell, provider: ScriptedProvider, tmp_path: Path) -> None:
        provider.script = self.script
        for code in ("text", "rich", "cleared", "bad"):
            shell.run(f"%%sandbox\n{code}")
        shell.run("%%sandbox -q\ntext")
        path = tmp_path / "session.ipynb"
        assert lines(shell, f"%sandbox_session export '{path}'") == [f"Wrote 5 cells of session default to {path}."]
        notebook = nbformat.read(path, as_version=4)
        nbformat.validate(notebook)
        cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
        assert [(cell.source, cell.execution_count) for cell in cells] == [
            ("text", 1), ("rich", 2), ("cleared", 3), ("bad", 4), ("text", 5),
        ]  # fmt: skip
        assert cells[0].outputs == [{"output_type": "stream", "name": "stdout", "text": "a\nb\n"}]
        assert [output.data["text/plain"] for output in cells[1].outputs] == ["1", "42"]
        assert cells[1].outputs[1].output_type == "execute_result"
        assert [output.text for output in cells[2].outputs] == ["kept\n"]
        assert cells[3].outputs[0].traceback == ["line 1", "line 2"]

    @pytest.mark.parametrize("count", [-1, True])
    def test_a_count_that_is_none_does_not_spoil_the_notebook(
        self, shell: Shell, provider: ScriptedProvider, tmp_path: Path, count: Any
    ) -> None:
        provider.script = lambda code: [ExecutionCount(count), Stdout("x\n")]
        shell.run("%%sandbox\nx")
        assert lines(shell, f"%sandbox_session export '{tmp_path}/x.ipynb'")[0].startswith("Wrote 1 cell")
        assert nbformat.read(tmp_path / "x.ipynb", as_version=4).cells[1].execution_count in (None, 1)

    def test_types_left_out_are_named_in_one_short_line(self, shell: Shell, provider: ScriptedProvider) -> None:
        display = [Display({f"type/{part}-{number}": "x" for number in range(25)}) for part in range(200)]
        provider.script = lambda code: display
        (line,) = [said for said in lines(shell, "%%sandbox\nx") if said.startswith("Left out:")]
        assert line.count(",") == 19

    def test_a_file_that_cannot_be_written_is_said_and_the_old_one_kept(self, shell: Shell, tmp_path: Path) -> None:
        shell.run("%sandbox 1")
        assert isinstance(shell.run("%sandbox_session export /nowhere/x.ipynb").error_in_exec, UsageError)
        assert isinstance(shell.run(f"%sandbox_session export {tmp_path}/x.txt").error_in_exec, UsageError)


class TestState:
    @pytest.fixture
    def left(self, shell: Shell, provider: ScriptedProvider, state_home: Path) -> Path:
        """A kernel left one sandbox and deleted another."""
        shell.run("%sandbox_session start kept --keep")
        shell.run("%sandbox_session start deleted")
        shell.ip.run_line_magic("reload_ext", "ipy_sandbox")
        return state_home

    def test_what_a_kernel_left_is_offered_to_the_next(self, shell: Shell, left: Path) -> None:
        assert table(shell, "%sandbox_session use") == [["fake1", "scripted", "kept", _any()]]
        lines(shell, "%sandbox_session use fake1")
        assert shell.run("%sandbox 1").success
        lines(shell, "%sandbox_session stop")
        assert table(shell, "%sandbox_session use") == []

    def test_the_file_is_private_and_holds_no_secrets(self, left: Path) -> None:
        assert stat.S_IMODE(left.stat().st_mode) == 0o600
        (entry,) = json.loads(left.read_text())
        assert set(entry) == {"id", "provider", "session", "at"}

    def test_a_sandbox_that_is_gone_is_offered_once(self, shell: Shell, provider: ScriptedProvider, left: Path) -> None:
        provider.lose("fake1")
        assert isinstance(shell.run("%sandbox_session use fake1").error_in_exec, SandboxLostError)
        assert table(shell, "%sandbox_session use") == []

    @pytest.mark.parametrize("text", ["", "{", "[1]", '[{"id": 3}]', '{"a": 1}', "\x00"])
    def test_a_damaged_file_is_an_empty_one(self, tmp_path: Path, text: str) -> None:
        path = tmp_path / "s.json"
        path.write_text(text)
        state = StateFile(path)
        assert state.entries() == []
        state.remember("a", "e2b", "default")
        assert [entry["id"] for entry in state.entries()] == ["a"]

    def test_old_entries_end_and_new_ones_come_first(self, tmp_path: Path) -> None:
        now = [0.0]
        state = StateFile(tmp_path / "s.json", clock=lambda: now[0])
        for n in range(30):
            now[0] = n * 1000.0
            state.remember(str(n), "e2b", "default")
        assert [entry["id"] for entry in state.entries()][:2] == ["29", "28"]
        assert len(state.entries()) == 20
        now[0] += 7 * 24 * 3600
        assert state.entries() == []

    def test_a_place_that_cannot_be_written_does_no_harm(self, tmp_path: Path) -> None:
        (tmp_path / "file").write_text("")
        state = StateFile(tmp_path / "file" / "s.json")
        state.remember("a", "e2b", "default")
        assert state.entries() == []


class TestWholeNotebook:
    def codes(self, provider: ScriptedProvider) -> list[Any]:
        return [call[2] for call in provider.calls if call[0] == "run"]

    @pytest.mark.parametrize(
        "cell",
        [
            "x = 1\n",
            "await f()\n",
            "!ls\n",
            "x?\n",
            "%%time\nx\n",
            "%%bash\nls\n",
            "1 +\n",
            "%timeit x\n",
            "# only\nx\n",
        ],
    )
    def test_every_cell_goes_there_as_it_is(self, shell: Shell, provider: ScriptedProvider, cell: str) -> None:
        shell.run("%sandbox_session auto on")
        shell.run(cell)
        assert self.codes(provider) == [cell]

    @pytest.mark.parametrize(
        "cell",
        ["%%local\nhere = 1", "# note\n%%local\nhere = 1", "%%local\n%%time\nhere = 1", "%%local\n!true\nhere = 1"],
    )
    def test_local_cells_run_here(self, shell: Shell, provider: ScriptedProvider, cell: str) -> None:
        shell.run("%sandbox_session auto on")
        assert shell.run(cell).success
        assert shell.ip.user_ns["here"] == 1
        shell.run("there = 1")
        assert self.codes(provider) == ["there = 1\n"]

    def test_ours_run_here_and_off_is_off(self, shell: Shell, provider: ScriptedProvider) -> None:
        shell.run("%sandbox_session auto on")
        shell.run("%%sandbox -s a\nx")
        shell.run("%sandbox y")
        shell.run("\n\n")
        shell.run("%sandbox_session auto off")
        shell.run("here = 1")
        assert shell.ip.user_ns["here"] == 1
        assert self.codes(provider) == ["x\n", "y"]

    def test_it_can_be_on_from_the_start(self, shell: Shell, provider: ScriptedProvider) -> None:
        shell.run("%config SandboxMagics.auto = True")
        shell.run("x = 1")
        assert self.codes(provider) == ["x = 1\n"]

    def test_asking_whether_a_cell_is_complete_changes_nothing(self, shell: Shell, provider: ScriptedProvider) -> None:
        shell.run("%sandbox_session auto on")
        assert shell.ip.check_complete("%%local\nx = 1\n\n")[0] == "complete"
        assert shell.ip.check_complete("for x in y:")[0] == "incomplete"
        shell.run("x = 1")
        assert self.codes(provider) == ["x = 1\n"]


class _any(str):
    def __eq__(self, other: object) -> bool:
        return True

    __hash__ = str.__hash__
