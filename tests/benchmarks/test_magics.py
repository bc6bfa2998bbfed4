"""What the magic costs over a bare cell, in the same kernel and the same run; printed as ratios, asserted only as run.

IPY_SANDBOX_BENCH=1 pytest -s tests/benchmarks/test_magics.py
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable

import pytest

from ..magics.kernel import Kernel, kernel

pytestmark = pytest.mark.skipif(os.environ.get("IPY_SANDBOX_BENCH") != "1", reason="set IPY_SANDBOX_BENCH=1")

ROUNDS = 100


def median(work: Callable[[], object], rounds: int = ROUNDS) -> float:
    times = []
    for _ in range(rounds):
        begun = time.perf_counter()
        work()
        times.append(time.perf_counter() - begun)
    return statistics.median(times)


@pytest.fixture
def shared() -> object:
    with kernel(IPY_SANDBOX_PROVIDER="local") as started:
        started.ok("%sandbox 1")
        yield started


def test_a_cell_against_a_bare_cell(shared: Kernel) -> None:
    bare = median(lambda: shared.ok("1+1"))
    magic = median(lambda: shared.ok("%%sandbox\n1+1"))
    print(f"\n1+1: bare cell {bare * 1e3:.1f} ms, %%sandbox {magic * 1e3:.1f} ms, ratio {magic / bare:.2f} (aim 1.5)")


def test_ten_megabytes_of_text(shared: Kernel) -> None:
    code = "for i in range(100_000): print('x' * 99)"
    bare = median(lambda: shared.ok(code), 3)
    magic = median(lambda: shared.ok(f"%%sandbox\n{code}"), 3)
    cell = shared.ok(f"%%sandbox\n{code}")
    print(
        f"\n10 MB: bare cell {bare:.2f} s, %%sandbox {magic:.2f} s, ratio {magic / bare:.2f}, "
        f"{len(cell.messages)} messages, {len(cell.stream()) / 1e6:.1f} MB arrived"
    )


def test_display_updates(shared: Kernel) -> None:
    code = "from IPython.display import display\nh = display(0, display_id=True)\nfor i in range(2000): h.update(i)"
    bare = median(lambda: shared.ok(code), 3)
    magic = median(lambda: shared.ok(f"%%sandbox\n{code}"), 3)
    print(f"\n2000 updates: bare cell {bare:.2f} s, %%sandbox {magic:.2f} s, ratio {magic / bare:.2f}")


def test_variables(shared: Kernel) -> None:
    shared.ok("import numpy as np; small = {'a': 1}; big = np.zeros(1_250_000)")
    run = median(lambda: shared.ok("%sandbox 1"), 20)
    small = median(lambda: shared.ok("%sandbox_session push small"), 20)
    big = median(lambda: shared.ok("%sandbox_session push big\n%sandbox_session pull big"), 3)
    print(f"\nvariables: small {small / run:.1f} cells; 10 MB there and back {big:.2f} s ({20 / big:.0f} MB/s)")


def test_loading() -> None:
    with kernel(load=False) as started:
        load = started.ok("import time; t = time.perf_counter()\n%load_ext ipy_sandbox\ntime.perf_counter() - t")
    code = "import time; t = time.perf_counter(); import ipy_sandbox; print(time.perf_counter() - t)"
    imports = [float(subprocess.check_output([sys.executable, "-c", code], text=True)) for _ in range(5)]
    print(f"\n%load_ext {float(load.value) * 1e3:.0f} ms, import {statistics.median(imports) * 1e3:.0f} ms (aim 100)")
