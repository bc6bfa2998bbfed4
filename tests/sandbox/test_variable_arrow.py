"""Columns as Arrow streams: the same as without Arrow; and what a hostile sandbox may send instead."""

from __future__ import annotations

import datetime as dt
import json
import pickle
import struct
import subprocess
import sys
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ipy_sandbox.sandbox import variable_arrow, variable_tables
from ipy_sandbox.sandbox.variable_arrow import array_of, stream_of
from ipy_sandbox.sandbox.variable_codec import ARROW_MAGIC, MAGIC, decode, encode
from ipy_sandbox.sandbox.variable_parts import Refused

FORMS = [True, False]


@pytest.fixture(autouse=True, scope="module")
def no_column_is_short() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(variable_tables, "SHORT", 0)
        yield


def arrow_column(values: list[Any], kind: pa.DataType) -> pd.Series[Any]:
    return pd.Series(pd.array(values, dtype=pd.ArrowDtype(kind)))


TYPED = {
    "int": arrow_column([1, None, 3], pa.int8()),
    "float": arrow_column([1.5, float("nan"), None], pa.float32()),
    "flag": arrow_column([True, None, False], pa.bool_()),
    "text": arrow_column(["a", None, "ü"], pa.string()),
    "bytes": arrow_column([b"a", None, b"\xff"], pa.large_binary()),
    "fixed": arrow_column([b"ab", None, b"cd"], pa.binary(2)),
    "money": arrow_column([Decimal("1.10"), None, Decimal("-3.00")], pa.decimal128(20, 2)),
    "day": arrow_column([dt.date(2026, 1, 1), None, dt.date(1, 1, 1)], pa.date32()),
    "clock": arrow_column([dt.time(1, 2), None, dt.time(0)], pa.time64("us")),
    "when": arrow_column([dt.datetime(2026, 1, 1), None, dt.datetime(1900, 1, 1)], pa.timestamp("ms")),
    "zoned": arrow_column([dt.datetime(2026, 1, 1), None, None], pa.timestamp("ns", "Europe/Berlin")),
    "offset": arrow_column([dt.datetime(2026, 1, 1), None, None], pa.timestamp("s", "+02:00")),
    "span": arrow_column([dt.timedelta(1), None, dt.timedelta(0, 5)], pa.duration("us")),
    "list": arrow_column([[1, None], None, []], pa.list_(pa.int64())),
    "pair": arrow_column([[1, 2], None, [3, 4]], pa.list_(pa.int64(), 2)),
    "struct": arrow_column([{"a": 1, "b": ["x"]}, None, {"a": None, "b": None}],
                           pa.struct([("a", pa.int8()), ("b", pa.list_(pa.string()))])),
    "map": arrow_column([[("k", 1)], None, []], pa.map_(pa.string(), pa.int8())),
}  # fmt: skip


@pytest.mark.parametrize("name", TYPED)
def test_arrow_typed_columns(name: str) -> None:
    column = TYPED[name]
    data = encode(column, arrow=True)
    assert data.startswith(ARROW_MAGIC)
    pd.testing.assert_series_equal(decode(data), column, check_exact=True)
    with pytest.raises(Refused, match=r"pyarrow.* cannot cross"):
        encode(column)


@pytest.mark.parametrize("arrow", FORMS)
@pytest.mark.parametrize(
    "column",
    [
        pd.Series(["a", None, "ü"], dtype="str"),
        pd.Series(["a", None, "ü"], dtype=pd.StringDtype("python")),
        pd.Series(["a", None, "ü"], dtype=pd.StringDtype("pyarrow")),
        pd.Series(["a", None, "ü"], dtype=pd.StringDtype("python", na_value=np.nan)),
        pd.Series(["a", None], dtype=object),
        pd.Series(["a", np.nan, None], dtype=object),
        pd.Series([b"a", None], dtype=object),
        pd.Series(["a", b"a", 1], dtype=object),
        pd.Series(["\ud800"], dtype=object),
        pd.Series([None, None], dtype=object),
        pd.Series(pd.cut([1.0, np.nan, 5.0], 3)),
        pd.Series(pd.arrays.IntervalArray.from_tuples([(0, 1), (5, 5)], closed="both")),
        pd.Series(pd.interval_range(pd.Timestamp("2026", tz="UTC"), periods=2)),
        pd.Series(pd.period_range("2026", periods=3, freq="2M")).shift(),
        pd.Series([1, 2], index=pd.period_range("2026", periods=2, freq="W-MON", name="week")),
        pd.Series([1, 2], index=pd.interval_range(0, 2)),
        pd.Series(pd.Categorical(["x", None], categories=["y", "x"])),
        pd.Series([1], index=pd.MultiIndex.from_tuples([("a", pd.Timestamp("2026", tz="Asia/Tokyo"))])),
    ],
    ids=lambda value: str(value.dtype) if isinstance(value, pd.Series) else str(value),
)
def test_columns_with_and_without_arrow(column: pd.Series[Any], arrow: bool) -> None:
    back = decode(encode(column, arrow=arrow))
    assert back.dtype == column.dtype
    assert str(back.tolist()) == str(column.tolist())
    pd.testing.assert_series_equal(back, column, check_exact=True, check_freq=True)


def test_arrow_typed_indexes() -> None:
    series = pd.Series([1, 2, 3], index=pd.Index(TYPED["text"], name="i"))
    pd.testing.assert_series_equal(decode(encode(series, arrow=True)), series)
    frame = pd.DataFrame({"v": [1, 2, 3]}, index=pd.MultiIndex.from_arrays([TYPED["int"], ["a", "b", "c"]]))
    pd.testing.assert_frame_equal(decode(encode(frame, arrow=True)), frame)


COLUMNS = st.lists(
    st.sampled_from(
        [
            st.none() | st.text(),
            st.none() | st.binary(),
            st.none() | st.text() | st.just(float("nan")),
            st.integers(-(2**63), 2**63 - 1),
            st.floats(),
            st.booleans(),
            st.none() | st.integers() | st.text(),
            st.just(None),
        ]
    ),
    min_size=1,
    max_size=5,
)


@st.composite
def frames(draw: st.DrawFn) -> pd.DataFrame:
    rows = draw(st.integers(0, 5))
    data = [draw(st.lists(kind, min_size=rows, max_size=rows)) for kind in draw(COLUMNS)]
    names = draw(st.lists(st.sampled_from(["a", "b", "", None, 1]), min_size=len(data), max_size=len(data)))
    parts = [pd.Series(values, dtype=draw(st.sampled_from([None, object]))) for values in data]
    for i, part in enumerate(parts):
        if all(item is None or isinstance(item, str) for item in part):
            parts[i] = part.astype(draw(st.sampled_from(["object", "str", "string", "category", "string[python]"])))
    frame = pd.concat(parts, axis=1)
    frame.columns = pd.Index(names, dtype=object)
    return frame.iloc[draw(st.integers(0, rows)) :: draw(st.sampled_from([1, 2]))]


@settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.too_slow])
@given(frames())
def test_tables_are_the_same_with_and_without_arrow(frame: pd.DataFrame) -> None:
    with_it, without = decode(encode(frame, arrow=True)), decode(encode(frame))
    for back in (with_it, without):
        assert [str(dtype) for dtype in back.dtypes] == [str(dtype) for dtype in frame.dtypes]
        assert str([back.iloc[:, i].tolist() for i in range(back.shape[1])]) == str(
            [frame.iloc[:, i].tolist() for i in range(frame.shape[1])]
        )
        pd.testing.assert_frame_equal(back, frame, check_exact=True)


def test_what_needs_no_arrow_does_not_ask_for_it() -> None:
    assert encode(pd.Series([1.5, 2]), arrow=True).startswith(MAGIC)


def test_without_a_good_pyarrow_it_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    data = encode(TYPED["text"], arrow=True)
    monkeypatch.setattr(pa, "__version__", "14.0.0")
    assert not variable_arrow.available()
    assert encode(pd.Series(["a"]), arrow=True).startswith(MAGIC)
    with pytest.raises(Refused, match=r"pyarrow 14\.0\.1"):
        decode(data)
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    assert not variable_arrow.available()


# What a hostile sandbox may send.


def stream(
    array: pa.Array, kind: pa.DataType | None = None, metadata: dict[str, str] | None = None, **options: Any
) -> bytes:
    schema = pa.schema([pa.field("", kind or array.type, metadata=metadata)])
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, schema, options=pa.ipc.IpcWriteOptions(**options)) as writer:
        writer.write_batch(pa.record_batch([array], schema=schema))
    return bytes(sink.getvalue().to_pybytes())


def without_data(kind: pa.DataType, *buffers: bytes | None) -> bytes:
    return stream(
        pa.Array.from_buffers(kind, 10**9, [None if part is None else pa.py_buffer(part) for part in buffers])
    )


def changed(array: pa.Array, form: str, old: tuple[int, ...], new: tuple[int, ...]) -> bytes:
    """A stream with other numbers in its last buffers than it had."""
    before, found, after = stream(array).rpartition(struct.pack(form, *old))
    assert found
    return before + struct.pack(form, *new) + after


def series_of(data: bytes, **form: Any) -> bytes:
    """A whole payload of one column that is `data`."""
    node = {"dtype": "arrow", "arrow": 0, **form}
    tree = {"t": "Series", "name": None, "index": {"range": [0, 3, 1], "names": [None]}, "data": node}
    header = json.dumps({"value": tree, "blobs": [len(data)]}).encode()
    return ARROW_MAGIC + struct.pack(">Q", len(header)) + header + data


GOOD = stream(pa.array(["a", "b", None], pa.large_string()))
THREE = pa.array([1, 2, 3], pa.int64())
DEEP = pa.int8()
for _ in range(40):
    DEEP = pa.list_(DEEP)
WIDE = pa.table({str(i): [1] for i in range(100_000)}).schema.serialize().to_pybytes()
PICKLE = {
    "ARROW:extension:name": "arrow.py_extension_type",
    "ARROW:extension:metadata": pickle.dumps(print, 0).decode("latin-1"),
}

HOSTILE = {
    "nothing": b"",
    "garbage": b"\xff" * 100,
    "zeros": bytes(1000),
    "truncated": GOOD[:-60],
    "no batch": pa.schema([("", pa.int8())]).serialize().to_pybytes(),
    "huge schema": struct.pack("<ii", -1, 2**31 - 1) + bytes(100),
    "negative schema": struct.pack("<ii", -1, -8) + bytes(100),
    "old framing": struct.pack("<i", 2**30) + bytes(100),
    "only a batch": GOOD[GOOD.index(b"\xff\xff\xff\xff", 4) :],
    "a file": b"ARROW1\0\0" + GOOD,
    "no columns": stream(THREE)[:0] + pa.schema([]).serialize().to_pybytes(),
    "100000 columns": WIDE,
    "pickle": stream(THREE, metadata=PICKLE),
    "pandas extension": stream(THREE, metadata={"ARROW:extension:name": "pandas.period"}),
    "nested extension": stream(
        pa.array([[1], [2], [3]], pa.list_(pa.field("item", pa.int64(), metadata=PICKLE)))
    ),
    "lz4": stream(pa.array(np.zeros(1_000_000)), compression="lz4"),
    "zstd": stream(pa.array(np.zeros(1_000_000)), compression="zstd"),
    "null": stream(pa.nulls(10**9)),
    "dictionary": stream(pa.array(["a", "b", "a"]).dictionary_encode()),
    "runs": stream(pa.RunEndEncodedArray.from_arrays(pa.array([2**30], pa.int32()), pa.array([1]))),
    "view": stream(pa.array(["a", "b", "c"], pa.string_view())) if hasattr(pa, "string_view") else b"",
    "union": stream(pa.UnionArray.from_sparse(pa.array([0, 0, 0], pa.int8()), [THREE])),
    "empty struct": without_data(pa.struct([]), None),
    "width 0": without_data(pa.binary(0), None, b""),
    "list of nulls": stream(pa.array([[None], [], []])),
    "deep": stream(pa.nulls(1, DEEP)),
    "zone": stream(pa.array([1, 2, 3], pa.timestamp("ns", "../../../etc/passwd"))),
    "offsets beyond": changed(pa.array(["a"], pa.large_string()), "<qq", (0, 1), (0, 2**40)),
    "offsets back": changed(pa.array(["ab", ""], pa.large_string()), "<qqq", (0, 2, 2), (0, 2, 1)),
    "offsets negative": changed(pa.array(["ab"], pa.large_string()), "<qq", (0, 2), (-8, 2)),
    "list beyond": changed(pa.array([[1, 2, 3]]), "<ii", (0, 3), (0, 2**30)),
    "no utf8": changed(pa.array(["abcdefgh"]), "<q", struct.unpack("<q", b"abcdefgh"), (-2,)),
    "decimal": changed(pa.array([Decimal(7)], pa.decimal128(3, 0)), "<qq", (7, 0), (7, 2**40)),
    "long batch": GOOD.replace(struct.pack("<q", 3), struct.pack("<q", 2**60)),
    "negative batch": GOOD.replace(struct.pack("<q", 3), struct.pack("<q", -3)),
    "wrong length": stream(pa.array([1])),
}  # fmt: skip


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_stream_is_refused(name: str) -> None:
    with pytest.raises(Refused):
        decode(series_of(HOSTILE[name]))


def test_the_reasons_are_those_meant() -> None:
    for name, told in [
        ("pickle", "extension"),
        ("nested extension", "extension"),
        ("lz4", "compressed"),
        ("zstd", "compressed"),
        ("null", "not allowed"),
        ("dictionary", "not allowed|in the form"),
        ("runs", "not allowed"),
        ("deep", "not allowed"),
        ("zone", "damaged"),
        ("100000 columns", "in the form|damaged"),
        ("offsets beyond", "damaged"),
        ("offsets back", "damaged"),
    ]:
        with pytest.raises(Refused, match=told):
            decode(series_of(HOSTILE[name]))


@pytest.mark.parametrize(
    ("data", "form"),
    [
        (stream(THREE), {"dtype": "text", "storage": "python", "nan": True}),
        (stream(THREE), {"dtype": "object"}),
        (stream(pa.array([{"a": 1}] * 3)), {"dtype": "object"}),
        (GOOD, {"dtype": "text", "storage": "evil", "nan": True}),
        (GOOD, {"dtype": "text", "storage": ["python"], "nan": False}),
        (GOOD, {"dtype": "interval", "ends": [{"dtype": "arrow", "arrow": 0}] * 2, "closed": "left"}),
        (GOOD, {"dtype": "category", "codes": 0, "categories": {"dtype": "arrow", "arrow": 0}, "ordered": False}),
        (GOOD, {"dtype": "period", "npy": 0, "freq": "D"}),
        (GOOD, {"arrow": -1}),
        (GOOD, {"arrow": [0]}),
        (GOOD, {"arrow": None}),
    ],
)
def test_a_stream_that_is_not_what_the_column_says_is_refused(data: bytes, form: dict[str, Any]) -> None:
    with pytest.raises(Refused):
        decode(series_of(data, **form))


def test_a_true_stream_is_taken() -> None:
    assert decode(series_of(GOOD)).tolist()[:2] == ["a", "b"]


def test_one_stream_is_not_taken_for_many_columns() -> None:
    column, index = {"dtype": "arrow", "arrow": 0}, {"range": [0, 3, 1], "names": [None]}
    columns = {"range": [0, 2, 1], "names": [None]}
    tree = {"t": "DataFrame", "columns": columns, "index": index, "data": [column, column]}
    header = json.dumps({"value": tree, "blobs": [len(GOOD)]}).encode()
    with pytest.raises(Refused):
        decode(ARROW_MAGIC + struct.pack(">Q", len(header)) + header + GOOD)


@pytest.mark.parametrize("count", [100_001, 2_000_000])
def test_too_many_columns_are_refused_before_any_is_made(count: int) -> None:
    names = {"range": [0, count, 1], "names": [None]}
    tree = {"t": "DataFrame", "columns": names, "index": {"range": [0, 0, 1], "names": [None]}, "data": [0] * count}
    header = json.dumps({"value": tree, "blobs": []}).encode()
    with pytest.raises(Refused, match="over the limit"):
        decode(MAGIC + struct.pack(">Q", len(header)) + header)
    with pytest.raises(Refused, match="over the limit"):
        encode(pd.DataFrame(np.zeros((1, 100_001))))


FUZZ = """
import contextlib, random, sys
from ipy_sandbox.sandbox.variable_arrow import array_of
rng, refused = random.Random(int(sys.argv[1])), 0
streams = [open(path, "rb").read() for path in sys.argv[3:]]
for _ in range(int(sys.argv[2])):
    data = bytearray(rng.choice(streams))
    for _ in range(rng.choice([1, 1, 2, 5])):
        at, size = rng.randrange(len(data)), rng.choice([1, 1, 2, 4, 8])
        data[at : at + size] = rng.choice([bytes(size), b"\\xff" * size, rng.randbytes(size), b"\\x7f" * size])
    try:
        array = array_of(data)
    except Exception:
        refused += 1
    else:
        with contextlib.suppress(Exception):  # a year no datetime has
            array.to_pylist()
print(refused)
"""


def test_streams_with_flipped_bytes_do_not_crash_the_process(tmp_path: Path) -> None:
    paths = []
    for name, column in TYPED.items():
        data = stream_of(column.array)
        assert data is not None
        assert array_of(data).to_pylist()[1:2] == pa.array(column.array).to_pylist()[1:2] or name == "float"
        paths.append(tmp_path / name)
        paths[-1].write_bytes(data)
    run = [sys.executable, "-X", "faulthandler", "-c", FUZZ, "1", "8000", *map(str, paths)]
    ended = subprocess.run(run, capture_output=True, text=True, timeout=120)
    assert ended.returncode == 0, ended.stderr[-2000:]
    assert 1000 < int(ended.stdout) < 8000
