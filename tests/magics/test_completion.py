"""What Tab offers."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from IPython.core.completer import provisionalcompleter

from ipy_sandbox.models import Stdout

from ..servers.e2b_server import e2b_server
from .conftest import ScriptedProvider, Shell
from .kernel import Kernel, shared_kernel


def complete(shell: Shell, text: str) -> list[str]:
    with provisionalcompleter():
        return [text[: c.start] + c.text for c in shell.ip.Completer.completions(text, len(text))]


class TestLines:
    @pytest.mark.parametrize(
        ("text", "one"),
        [
            ("%%sandbox --se", "%%sandbox --session"),
            ("%%sandbox --quiet --ti", "%%sandbox --quiet --timeout"),
            ("%sandbox --q", "%sandbox --quiet"),
            ("%%sandbox -p lo", "%%sandbox -p local"),
            ("%%sandbox -s gp", "%%sandbox -s gpu-1"),
            ("%%sandbox --session gp", "%%sandbox --session gpu-1"),
            ("%%sandbox -i my_v", "%%sandbox -i my_value"),
            ("%%ai --max-t", "%%ai --max-turns"),
            ("%ai rese", "%ai reset"),
            ("%sandbox_session sta", "%sandbox_session start"),
            ("%sandbox_session use gp", "%sandbox_session use gpu-1"),
            ("%sandbox_session start --te", "%sandbox_session start --template"),
            ("%sandbox_session start x --provider e2", "%sandbox_session start x --provider e2b"),
            ("%sandbox_session push my_v", "%sandbox_session push my_value"),
            ("%sandbox_session auto of", "%sandbox_session auto off"),
            ("%sandbox_session put fil", "%sandbox_session put file.txt"),
            ("%sandbox_session put dir", "%sandbox_session put dir/"),
        ],
    )
    def test_one_fits(self, shell: Shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, one: str) -> None:
        monkeypatch.chdir(tmp_path)
        (tmp_path / "file.txt").touch()
        (tmp_path / "dir").mkdir()
        shell.run("%sandbox_session start gpu-1")
        shell.ip.user_ns["my_value"] = 1
        assert complete(shell, text) == [one]

    def test_commands_are_offered_before_a_letter_is_typed(self, shell: Shell) -> None:
        assert "%sandbox_session export" in complete(shell, "%sandbox_session ")

    def test_other_cells_are_left_alone(self, shell: Shell) -> None:
        shell.ip.user_ns["local_name"] = 1
        assert complete(shell, "local_na") == ["local_name"]

    def test_local_names_are_not_offered_in_remote_code(self, shell: Shell, provider: ScriptedProvider) -> None:
        shell.ip.user_ns["local_name"] = 1
        text = "%%sandbox\nlocal_na"
        assert complete(shell, text) == [text]
        shell.run("%sandbox 1")
        provider.script = lambda code: [Stdout("nonsense\n")]
        assert complete(shell, text) == [text]
        provider.lose("fake1")
        assert complete(shell, text) == [text]

    def test_a_busy_session_is_not_asked(self, shell: Shell, provider: ScriptedProvider) -> None:
        shell.run("%sandbox 1")
        provider.script = lambda code: [60.0]
        shell.run("%%sandbox --bg job\nx")
        while provider.calls[-1][-1] != "x\n":
            time.sleep(0.001)
        before = list(provider.calls)
        assert complete(shell, "%%sandbox\nlocal_na") == ["%%sandbox\nlocal_na"]
        assert provider.calls == before
        shell.run("job.stop()")


SERVERS = {"local": contextlib.nullcontext, "e2b": e2b_server}


@pytest.fixture(scope="module", params=SERVERS)
def kernels(request: pytest.FixtureRequest) -> Iterator[Callable[[], Kernel]]:
    cells = ["%%sandbox\nimport os\nremote_variable = 1\n'warm'.upper()", "%sandbox -s other other_variable = 1"]
    with SERVERS[request.param](), shared_kernel(*cells, IPY_SANDBOX_PROVIDER=request.param) as get:
        yield get


@pytest.fixture
def remote(kernels: Callable[[], Kernel]) -> Kernel:
    """The local provider asks the kernel by a message, the others by code."""
    return kernels()


class TestRemoteNames:
    def ask(self, kernel: Kernel, code: str) -> list[str]:
        kernel.client.complete(code, len(code))
        reply = kernel.client.get_shell_msg(timeout=20)["content"]
        return [code[: reply["cursor_start"]] + match for match in reply["matches"]]

    @pytest.mark.parametrize(
        ("code", "one"),
        [
            ("%%sandbox\nremote_va", "%%sandbox\nremote_variable"),
            ("%%sandbox --quiet\nx = 1\nprint(os.pat", "%%sandbox --quiet\nx = 1\nprint(os.path"),
            ("%sandbox remote_va", "%sandbox remote_variable"),
            ("%%sandbox -s other\nother_va", "%%sandbox -s other\nother_variable"),
        ],
    )
    def test_names_of_the_sandbox_are_offered(self, remote: Kernel, code: str, one: str) -> None:
        # The first answers of a cold kernel may miss the budget; what counts is that they come, and silently.
        deadline = time.monotonic() + 30
        while one not in self.ask(remote, code):
            assert time.monotonic() < deadline
            time.sleep(0.2)

    def test_asking_leaves_no_trace(self, remote: Kernel) -> None:
        before = remote.ok("%sandbox len(In)").value
        self.ask(remote, "%%sandbox\nremote_va")
        assert int(remote.ok("%sandbox len(In)").value) == int(before) + 1
