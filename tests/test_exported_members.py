"""The public names."""

import subprocess
import sys

import ipy_sandbox


def test_all_is_sorted_and_every_name_is_there() -> None:
    assert ipy_sandbox.__all__ == sorted(ipy_sandbox.__all__)
    for name in ipy_sandbox.__all__:
        assert getattr(ipy_sandbox, name) is not None
        assert name in dir(ipy_sandbox)


def test_import_is_light() -> None:
    heavy = "{'pydantic', 'httpx', 'IPython', 'asyncio', 'jupyter_client', 'zmq', 'nh3'}"
    code = f"import sys, ipy_sandbox; print(sorted({heavy} & set(sys.modules)))"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert out == "[]\n"
