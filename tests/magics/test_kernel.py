"""`%%sandbox` in a real kernel with a real sandbox: what users of other magics reported as broken."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator

import ipykernel
import pytest

from ..servers.e2b_server import e2b_server
from ..servers.opensandbox_server import opensandbox
from .kernel import Cell, Kernel, kernel, shared_kernel

SERVERS = {"local": contextlib.nullcontext, "e2b": e2b_server, "opensandbox": opensandbox}


@pytest.fixture(scope="module", params=SERVERS)
def kernels(request: pytest.FixtureRequest) -> Iterator[Callable[[], Kernel]]:
    provider = request.param
    with SERVERS[provider](), shared_kernel("%sandbox_session start default", IPY_SANDBOX_PROVIDER=provider) as get:
        yield get


@pytest.fixture
def shared(kernels: Callable[[], Kernel]) -> Kernel:
    """One kernel for the tests that leave it as it was, for each provider; the remote ones talk to a test server."""
    return kernels()


class TestStop:
    LOOP = """
import time
stops = 0
try:
    print("begun", flush=True)
    while True: time.sleep(.1)
except KeyboardInterrupt:
    stops += 1
    raise
"""

    def test_stop_reaches_the_remote_code_once_and_run_all_ends(self, shared: Kernel) -> None:
        first = shared.send(f"%%sandbox{self.LOOP}")
        second = shared.send("print('next')")
        shared.wait_for_text(first, "begun")
        shared.interrupt()
        stopped, after = shared.wait(first), shared.wait(second)
        assert stopped.reply["ename"] == "SandboxInterrupted"
        assert "KeyboardInterrupt" in stopped.error
        assert "ipy_sandbox" not in stopped.error
        assert after.status == "aborted"
        assert shared.ok("%sandbox stops").value == "1"

    def test_the_class_of_a_stop_is_a_keyboard_interrupt(self, shared: Kernel) -> None:
        code = "try:\n    get_ipython().run_cell_magic('sandbox', '', LOOP)\nexcept KeyboardInterrupt: print('caught')"
        shared.ok(f"LOOP = {self.LOOP!r}")
        cell = shared.send(code)
        shared.wait_for_text(cell, "begun")
        shared.interrupt()
        assert shared.wait(cell).stream().endswith("caught\n")

    @pytest.mark.parametrize(
        "last", ["await asyncio.sleep(0)", "async with asyncio.timeout(60): await asyncio.sleep(0)"]
    )
    def test_stop_works_in_cells_with_await(self, shared: Kernel, last: str) -> None:
        before = shared.ok("import signal, asyncio; signal.getsignal(signal.SIGINT)").value
        cell = shared.send(f"%sandbox print('begun', flush=True); __import__('time').sleep(60)\n{last}")
        shared.wait_for_text(cell, "begun")
        shared.interrupt()
        assert shared.wait(cell, timeout=20).reply["ename"] == "SandboxInterrupted"
        assert shared.ok("signal.getsignal(signal.SIGINT)").value == before

    def test_stop_works_where_the_session_is_awaited(self, shared: Kernel) -> None:
        shared.ok("from ipy_sandbox import Session; session = Session(); await session.arun('1')")
        code = "print('begun', flush=True); __import__('time').sleep(60)"
        cell = shared.send(f"async for event in session.astream({code!r}): print(event, flush=True)")
        shared.wait_for_text(cell, "begun")
        shared.interrupt()
        assert shared.wait(cell, timeout=20).status == "error"
        assert shared.ok("(await session.arun('1+1')).text").value == "'2'"
        shared.ok("await session.aclose()")

    def test_code_that_awaits_is_stopped_too(self, shared: Kernel) -> None:
        cell = shared.send("%%sandbox\nimport asyncio\nprint('begun', flush=True)\nawait asyncio.sleep(60)")
        shared.wait_for_text(cell, "begun")
        shared.interrupt()
        stopped = shared.wait(cell, timeout=20)
        assert stopped.reply["ename"] == "SandboxInterrupted", stopped.error


class TestOutput:
    def test_a_flood_before_an_error_is_whole_and_in_order(self, shared: Kernel) -> None:
        shared.ok("%sandbox 1")
        cell = shared.run(
            "%%sandbox\nimport sys\nfor i in range(40_000): print(i)\nfrom IPython.display import HTML, display\n"
            "display(HTML('x')); print('e', file=sys.stderr); 1/0"
        )
        kinds = [m["content"].get("name", m["msg_type"]) for m in cell.messages if m["msg_type"] != "status"]
        assert cell.stream() == "".join(f"{i}\n" for i in range(40_000))
        order = list(dict.fromkeys(kind for kind in kinds if kind != "execute_input"))
        assert order == ["stdout", "display_data", "stderr", "error"]
        assert cell.contents("error")[0]["ename"] == "ZeroDivisionError"
        assert len(cell.messages) < 200
        assert shared.ok("%%sandbox\n1+1").value == "2"

    def test_charts_tables_and_values(self, shared: Kernel) -> None:
        cell = shared.ok(
            "%%sandbox\nimport matplotlib.pyplot as plt, pandas as pd\nplt.plot([1, 2]); plt.show()\n"
            "pd.DataFrame({'a': [1]})"
        )
        assert any("image/png" in display for display in cell.displays)
        (value,) = cell.contents("execute_result")
        assert "<table" in value["data"]["text/html"]
        assert shared.ok("_.text").value.startswith("'   a")

    def test_a_progress_bar_ends_in_its_last_state(self, shared: Kernel) -> None:
        cell = shared.ok(
            "%%sandbox\nfrom IPython.display import clear_output, display\n"
            "for i in range(300):\n    clear_output(wait=True)\n    print('step', i)\n"
            "h = display('a', display_id=True)\nfor i in range(300): h.update(i)"
        )
        assert cell.stream().endswith("step 299\n")
        assert cell.displays[-1]["text/plain"] == "299"
        assert len(cell.messages) < 100
        shown, update = cell.contents("display_data")[-1], cell.contents("update_display_data")[-1]
        assert shown["transient"] == update["transient"]
        sandbox = shared.ok("get_ipython().run_line_magic('sandbox_session', '').rows[0][3]").value.strip("'")
        assert shown["transient"]["display_id"].startswith(f"{sandbox}:")

    def test_output_comes_while_the_code_runs(self, shared: Kernel) -> None:
        cell = shared.send("%%sandbox\nprint('early')\nimport time\nwhile True: time.sleep(.1)")
        shared.wait_for_text(cell, "early")
        shared.interrupt()
        assert shared.wait(cell).status == "error"

    def test_capture_has_everything(self, shared: Kernel) -> None:
        cell = shared.ok(
            "%%capture c\n%%sandbox\nprint('out')\nfrom IPython.display import display\n"
            "h = display(1, display_id=True); h.update(2)\n41 + 1"
        )
        assert not cell.stream()
        assert not cell.displays
        assert shared.ok("c.stdout").value == "'out\\n'"
        assert shared.ok("[o.data['text/plain'] for o in c.outputs]").value == "['1', '2', '42']"

    def test_help_on_remote_objects(self, shared: Kernel) -> None:
        shared.ok("%%sandbox\ndef remote_function(x):\n    'Doc of the remote function.'")
        cell = shared.ok("%%sandbox\nremote_function?")
        assert "Doc of the remote function." in str(cell.displays) + cell.stream()

    def test_odd_characters_do_not_break_the_cell(self, shared: Kernel) -> None:
        cell = shared.ok("%%sandbox\nprint('\\x00', '\\u2028', '\\x85', '\\U0001f600')")
        assert cell.stream() == " \u2028  \U0001f600\n"
        assert shared.ok("%%sandbox\nprint('a\\ud800b')").stream() == "a\\ud800b\n"
        raised = shared.run("%%sandbox\nraise ValueError('a\\ud800b')")
        assert (raised.reply["ename"], raised.reply["evalue"]) == ("ValueError", "a\\ud800b")
        shared.ok("%%sandbox\ndisplay({'text/plain': 'a\\ud800b'}, raw=True)")
        assert shared.ok("%sandbox 1 + 1").value == "2"

    @pytest.mark.skipif(ipykernel.version_info < (7,), reason="needs the subshells of ipykernel 7")
    def test_a_subshell_runs_cells_while_the_main_shell_runs(self, shared: Kernel) -> None:
        request = shared.client.session.msg("create_subshell_request", {})
        shared.client.control_channel.send(request)
        subshell = shared.client.get_control_msg(timeout=20)["content"]["subshell_id"]
        main = shared.send("%%sandbox\nprint('main begun')\nimport time\nwhile True: time.sleep(.1)")
        shared.wait_for_text(main, "main begun")
        message = shared.client.session.msg("execute_request", {"code": "%sandbox -s sub print('sub')"})
        message["header"]["subshell_id"] = subshell
        shared._cells[message["header"]["msg_id"]] = Cell()
        shared.client.shell_channel.send(message)
        cell = shared.wait(message["header"]["msg_id"])
        assert cell.status == "ok"
        assert cell.stream() == "sub\n"
        message = shared.client.session.msg("execute_request", {"code": "%sandbox_session interrupt"})
        message["header"]["subshell_id"] = subshell
        shared._cells[message["header"]["msg_id"]] = Cell()
        shared.client.shell_channel.send(message)
        assert "KeyboardInterrupt" in shared.wait(main).error


class TestErrors:
    def test_a_remote_error_has_its_name_and_its_frames_only(self, shared: Kernel) -> None:
        cell = shared.run("%%sandbox\ndef f(): 1/0\nf()")
        assert cell.reply["ename"] == "ZeroDivisionError"
        assert re.search(r"f\(\): 1/0", re.sub(r"\x1b\[[0-9;]*m", "", cell.error))
        assert "ipy_sandbox" not in cell.error
        assert "run_cell_magic" not in cell.error

    def test_syntax_errors_and_exits(self, shared: Kernel) -> None:
        assert shared.run("%%sandbox\n1 +").reply["ename"] == "SyntaxError"
        assert shared.run("%%sandbox\nimport os; os._exit(3)").reply["ename"] in ("KernelDiedError", "SandboxLostError")
        assert shared.ok("%sandbox 1 + 1").value == "2"


class TestBackground:
    def test_a_job_shows_in_its_own_cell_only(self, shared: Kernel) -> None:
        start = shared.send("%%sandbox --bg job\nimport time\nfor i in range(3): time.sleep(.3); print(i)")
        assert shared.wait(start).status == "ok"
        others = [shared.ok(f"import time; time.sleep(.4); print('cell {n}')") for n in range(2)]
        assert shared.ok("print(repr(job.result().stdout), job.done, repr(job.stdout))").stream() == (
            "'0\\n1\\n2\\n' True '0\\n1\\n2\\n'\n"
        )
        shared.ok("None")
        for n, cell in enumerate(others):
            assert cell.stream() == f"cell {n}\n"
        mine = shared._cells[start].contents("display_data")[-1]
        updates = [
            content
            for cell in shared._cells.values()
            for content in cell.contents("update_display_data")
            if content["transient"] == mine["transient"]
        ]
        assert re.match(r"Job job: done [\d.]+ s · default\n0\n1\n2\n", updates[-1]["data"]["text/plain"])
        assert mine["data"]["text/plain"].startswith("Job job: running")

    def test_a_job_fails_stops_and_can_be_awaited(self, shared: Kernel) -> None:
        shared.ok("%%sandbox --bg bad\n1/0")
        assert shared.run("bad.result()").reply["ename"] == "ZeroDivisionError"
        assert shared.run("await bad").reply["ename"] == "ZeroDivisionError"
        shared.ok("%%sandbox --bg endless\nimport time\nwhile True: time.sleep(.1)")
        shared.ok("%%sandbox --bg queued\nprint('never')")
        assert shared.run("endless.result(timeout=0.2)").reply["ename"] == "TimeoutError"
        shared.ok("queued.stop(); endless.stop()")
        assert shared.run("endless.result()").reply["ename"] == "SandboxInterrupted"
        assert shared.run("queued.result()").reply["ename"] == "SandboxInterrupted"
        assert shared.ok("%sandbox 1 + 1").value == "2"

    @pytest.mark.parametrize("waiting", ["job.result()", "await job"])
    def test_stop_ends_the_waiting_not_the_job(self, shared: Kernel, waiting: str) -> None:
        shared.ok("%%sandbox --bg job\nimport time\nwhile True: time.sleep(.1)")
        cell = shared.send(f"print('begun', flush=True)\n{waiting}")
        shared.wait_for_text(cell, "begun")
        shared.interrupt()
        assert shared.wait(cell, timeout=20).status == "error"
        assert shared.ok("done = job.done; job.stop(); done").value == "False"


class TestVariables:
    def test_in_and_out(self, shared: Kernel) -> None:
        shared.ok("import pandas as pd; df = pd.DataFrame({'a': [1, 2]}); factor = 10")
        shared.ok(
            "%%sandbox -i df,factor -o total,fig\nimport matplotlib.pyplot as plt\n"
            "total = int(df.a.sum()) * factor\nfig = plt.figure()\nplt.close(fig)"
        )
        assert shared.ok("total, type(fig).__name__").value == "(30, 'Image')"
        shared.ok("%sandbox_session push factor\n%sandbox factor += 1\n%sandbox_session pull factor")
        assert shared.ok("factor").value == "11"

    @pytest.mark.parametrize(
        ("cell", "told"),
        [
            ("%%sandbox -i nope\n1", "no variable nope"),
            ("f = lambda: 0\nget_ipython().run_cell_magic('sandbox', '-i f', '1')", "function"),
            ("%%sandbox -o nope\n1", "no variable 'nope'"),
            ("%%sandbox -o sys\nimport sys", "module"),
        ],
    )
    def test_what_cannot_cross_fails_the_cell(self, shared: Kernel, cell: str, told: str) -> None:
        failed = shared.run(cell)
        assert failed.reply["ename"] == "VariableTransferError"
        assert told in failed.error
        assert len(failed.error.splitlines()) == 1


class TestLoading:
    def test_it_is_silent_light_and_opens_nothing(self) -> None:
        with kernel(load=False) as started:
            # What the kernel opens for itself does not count: for the first thing that is printed, and its history.
            started.ok("get_ipython().history_manager.enabled = False; print('warm', flush=True)")
            started.ok(
                "import sys, os, glob\n"
                "def opened():\n"
                "    links = [os.path.realpath(fd) for fd in glob.glob('/proc/self/fd/*')]\n"
                "    return sorted(link for link in links if 'profile_' not in link and '/proc/' not in link)"
            )
            started.ok("before = set(sys.modules); files = opened()")
            cell = started.ok("%load_ext ipy_sandbox")
            assert not cell.contents("stream", "display_data")
            heavy = started.ok(
                "sorted({m.partition('.')[0] for m in set(sys.modules) - before} "
                "& {'pydantic', 'httpx', 'nh3', 'nbformat', 'numpy', 'pandas', 'markdown_it', 'openai'})"
            )
            assert heavy.value == "[]"
            assert started.ok("opened() == files").value == "True"

    def test_the_status_line_and_the_footer_are_for_people(self) -> None:
        with kernel(IPY_SANDBOX_PROVIDER="local") as started:
            started.ok("%config SandboxMagics.progress_after = 0.2\n%config SandboxMagics.footer_after = 0.1")
            started.ok("%sandbox 1")
            code = "%%sandbox\nimport time; time.sleep(1)\n42"
            texts = [d["text/plain"] for d in started.ok(code, allow_stdin=True).displays]
            assert re.fullmatch(r"running in default · \d s", texts[0])
            assert texts[1] == ""
            assert re.fullmatch(r"\d\.\d s · default( · \d+ MB)?", texts[-1])
            kinds = [m["msg_type"] for m in started.ok(code, allow_stdin=True).messages]
            assert kinds.index("execute_result") < len(kinds) - 1 - kinds[::-1].index("display_data")
            assert not started.ok(code).displays
            assert not started.ok(f"%%capture c\n{code}", allow_stdin=True).displays
