"""The error tree."""

import pickle

import pytest

from ipy_sandbox import errors
from ipy_sandbox.errors import RateLimitError, RemoteError, SandboxError, remote_error


@pytest.mark.parametrize(
    "cls", [c for c in vars(errors).values() if isinstance(c, type) and issubclass(c, SandboxError)]
)
def test_every_error_is_drawn_in_the_tree_and_pickles_with_its_fields(cls: type[SandboxError]) -> None:
    assert errors.__doc__ is not None
    assert cls.__name__ in errors.__doc__
    error = cls("It broke.", provider="e2b", sandbox_id="i1")
    again = pickle.loads(pickle.dumps(error))
    assert (type(again), str(again), again.provider, again.sandbox_id) == (cls, "It broke.", "e2b", "i1")


def test_specific_fields_survive_pickling() -> None:
    again = pickle.loads(pickle.dumps(RateLimitError("Too many.", retry_after=3.0)))
    assert again.retry_after == 3.0


def test_a_remote_error_is_named_like_the_remote_class() -> None:
    error = remote_error("ZeroDivisionError", "division by zero", "line 1\nline 2", sandbox_id="i1")
    assert isinstance(error, RemoteError)
    assert type(error).__name__ == "ZeroDivisionError"
    assert error._render_traceback_() == ["line 1", "line 2"]
    again = pickle.loads(pickle.dumps(error))
    assert (type(again).__name__, again.evalue, again.traceback, again.sandbox_id) == (
        "ZeroDivisionError",
        "division by zero",
        ["line 1", "line 2"],
        "i1",
    )
