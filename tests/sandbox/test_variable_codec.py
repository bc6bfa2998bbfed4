"""Values as bytes and back; and what a hostile sandbox may send instead."""

from __future__ import annotations

import datetime as dt
import io
import json
import pickle
import struct
import zlib
from collections import OrderedDict, namedtuple
from decimal import Decimal
from enum import IntEnum
from fractions import Fraction
from typing import Any
from zoneinfo import ZoneInfo

import matplotlib.figure
import numpy as np
import pandas as pd
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image

from ipy_sandbox.sandbox.variable_codec import MAGIC, decode, encode
from ipy_sandbox.sandbox.variable_parts import Refused

BERLIN = ZoneInfo("Europe/Berlin")
NOW = dt.datetime(2026, 10, 25, 2, 30, 1, 5, tzinfo=BERLIN, fold=1)


def shown(value: Any) -> str:
    """A text that is the same for the same value: NaN has no equal, and sets no order."""
    if isinstance(value, (list, tuple)):
        return f"{type(value)} {[shown(item) for item in value]}"
    if isinstance(value, (set, frozenset)):
        return f"{type(value)} {sorted(shown(item) for item in value)}"
    if isinstance(value, dict):
        return f"{[(shown(key), shown(item)) for key, item in value.items()]}"
    return f"{type(value)} {value!r}"


leaves = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text()
    | st.binary()
    | st.decimals()
    | st.datetimes()
    | st.dates()
    | st.timedeltas()
    | st.complex_numbers()
)
hashable = st.integers() | st.text() | st.tuples(st.integers(), st.text())
trees = st.recursive(
    leaves,
    lambda inner: st.lists(inner) | st.lists(inner).map(tuple) | st.dictionaries(hashable, inner) | st.sets(hashable),
    max_leaves=20,
)


@settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.too_slow])
@given(trees)
def test_plain_values_come_back_the_same(value: Any) -> None:
    assert shown(decode(encode(value))) == shown(value)


@pytest.mark.parametrize(
    "value",
    [NOW, 10**4000, bytearray(b"x"), dt.time(3, 4), frozenset({1}), -0.0, "\ud800"],
    ids=lambda value: type(value).__name__,
)
def test_these_too(value: Any) -> None:
    back = decode(encode(value))
    assert type(back) is type(value)
    assert back == value
    if value is NOW:
        assert (back.tzinfo, back.fold) == (BERLIN, 1)


@pytest.mark.parametrize(
    "array",
    [
        np.arange(12.0).reshape(3, 4),
        np.asfortranarray(np.eye(3)),
        np.array([], dtype="int8"),
        np.array(7),
        np.array([b"a", b"bc"]),
        np.array(["ä", "b"]),
        np.array(["2026-01-01", "NaT"], dtype="datetime64[s]"),
        np.array([(1, 2.0)], dtype=[("a", "i4"), ("b", "f8")]),
        np.array([1 + 2j, np.nan]),
    ],
)
def test_arrays(array: np.ndarray[Any, Any]) -> None:
    back = decode(encode(array))
    assert back.dtype == array.dtype
    assert back.flags.writeable
    np.testing.assert_array_equal(back, array)


@pytest.mark.parametrize("scalar", [np.float32(1.5), np.int64(3), np.bool_(True), np.datetime64("2026-01-01")])
def test_scalars(scalar: Any) -> None:
    back = decode(encode(scalar))
    assert type(back) is type(scalar)
    assert back == scalar


FRAME = pd.DataFrame(
    {
        "int": [1, 2, 3],
        "float": [1.5, np.nan, np.inf],
        "text": ["a", None, "ü"],
        "nullable": pd.array([1, None, 3], dtype="Int64"),
        "flag": pd.array([True, None, False], dtype="boolean"),
        "when": pd.to_datetime(["2026-01-01", None, "2026-01-03"]),
        "zoned": pd.to_datetime(["2026-01-01", None, "2026-07-03"]).tz_localize("Europe/Berlin"),
        "kind": pd.Categorical(["x", None, "y"], categories=["y", "x"], ordered=True),
        "objects": pd.Series([{"a": (1, 2)}, None, Decimal("1.10")], dtype=object),
        "span": pd.to_timedelta([1, None, 3], unit="s"),
        "bytes": pd.Series([b"a", b"", b"\xff"], dtype=object),
        "old": pd.array(["a", None, "c"], dtype="string"),
    }
)


@pytest.mark.parametrize(
    "frame",
    [
        FRAME,
        FRAME.iloc[:0],
        pd.DataFrame(),
        pd.DataFrame(index=[1, 2]),
        pd.DataFrame([[1, 2], [3, 4]], columns=["same", "same"]),
        pd.DataFrame({("a", 1): [1], ("b", 2): [2]}),
        pd.DataFrame({1: [1], None: [2], "x": [3]}),
        FRAME.set_index(["int", "kind"])[["float"]],
        FRAME.set_index("zoned")[["float", "text"]],
        pd.DataFrame({"v": range(3)}, index=pd.date_range("2026", periods=3, freq="D", name="day")),
    ],
)
def test_tables(frame: pd.DataFrame) -> None:
    back = decode(encode(frame))
    pd.testing.assert_frame_equal(back, frame, check_freq=True, check_exact=True)


def test_series_and_indexes() -> None:
    series = pd.Series([1.0, None], index=["a", "b"], name=("n", 1))
    pd.testing.assert_series_equal(decode(encode(series)), series)
    pd.testing.assert_index_equal(
        decode(encode(FRAME.set_index(["int", "text"]).index)), FRAME.set_index(["int", "text"]).index
    )
    for value in (pd.Timestamp("2026-01-01 00:00:00.000000001"), pd.Timestamp(NOW), pd.NaT, pd.NA, pd.Timedelta(5)):
        back = decode(encode([value]))[0]
        assert back is value or back == value


@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "RGB", "RGBA", "I;16"])
def test_images(mode: str) -> None:
    image = Image.new("RGB", (5, 3), (10, 20, 30)).convert("I" if mode == "I;16" else mode)
    image = Image.new("I;16", (5, 3), 500) if mode == "I;16" else image
    back = decode(encode(image))
    assert (back.mode, back.size) == (image.mode, image.size)
    assert back.tobytes() == image.tobytes()


def test_a_figure_comes_as_a_picture() -> None:
    figure = matplotlib.figure.Figure()
    figure.subplots().plot([1, 2])
    assert decode(encode(figure)).data.startswith(b"\x89PNG")


class Level(IntEnum):
    LOW = 1


CYCLE: list[Any] = []
CYCLE.append(CYCLE)


@pytest.mark.parametrize(
    ("value", "told"),
    [
        (object(), "type object"),
        (Fraction(1, 3), "Fraction"),
        (OrderedDict(a=1), r"plain one with dict\(\.\.\.\)"),
        (namedtuple("Point", "x")(1), r"tuple\(\.\.\.\)"),
        (Level.LOW, "Level"),
        (lambda: 0, "function"),
        ([1, {"deep": {3, print}}], "builtin_function"),
        (np.array([object()]), "tolist"),
        (np.ma.array([1]), "MaskedArray"),
        (pd.Series(pd.arrays.SparseArray([0, 1])), "Sparse"),
        (Image.new("CMYK", (1, 1)), r'convert\("RGB"\)'),
        (CYCLE, "contains itself"),
    ],
)
def test_what_cannot_cross_is_named_with_the_way_out(value: Any, told: str) -> None:
    with pytest.raises(Refused, match=told):
        encode(value)


def payload(tree: Any, *blobs: bytes, sizes: list[int] | None = None) -> bytes:
    header = json.dumps({"value": tree, "blobs": [len(b) for b in blobs] if sizes is None else sizes}).encode()
    return MAGIC + struct.pack(">Q", len(header)) + header + b"".join(blobs)


def npy(header: str, data: bytes = b"", version: bytes = b"\x01\x00") -> bytes:
    return b"\x93NUMPY" + version + struct.pack("<H", len(header)) + header.encode() + data


def png(width: int, height: int) -> bytes:
    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    ihdr = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", ihdr) + chunk(b"IDAT", zlib.compress(b"\0" * 1000)) + chunk(b"IEND", b"")
    )


def black(width: int, height: int) -> bytes:
    stream = io.BytesIO()
    Image.new("L", (width, height)).save(stream, format="PNG")
    return stream.getvalue()


class Bomb:
    fired = False

    def __reduce__(self) -> Any:
        return (setattr, (Bomb, "fired", True))


def pickled_npy() -> bytes:
    stream = io.BytesIO()
    np.save(stream, np.array([Bomb()], dtype=object), allow_pickle=True)
    return stream.getvalue()


def as_npy(values: list[Any]) -> bytes:
    stream = io.BytesIO()
    np.save(stream, np.array(values))
    return stream.getvalue()


ARRAY = {"t": "ndarray", "blob": 0}
TEXT = {"dtype": "text", "storage": "python", "nan": True}
COLUMN = {"dtype": "numpy", "npy": 0}
INDEX = {"range": [0, 1, 1], "names": [None]}
HUGE = "{'descr': '<f8', 'fortran_order': False, 'shape': (1000000000000,)}\n"
EMPTY = "{'descr': '|V0', 'fortran_order': False, 'shape': (1000000000000,)}\n"
LONG = "{'descr': '<f8', 'fortran_order': False, 'shape': (" + "1," * 20_000 + ")}\n"
DEEP = "[" * 100_000 + "]" * 100_000


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x80\x04\x95",
        pickle.dumps(Bomb()),
        MAGIC,
        MAGIC + struct.pack(">Q", 2**62) + b"{}",
        MAGIC + struct.pack(">Q", len(DEEP)) + DEEP.encode(),
        MAGIC + struct.pack(">Q", 2) + b"{}",
        MAGIC + struct.pack(">Q", 4) + b"\xff\xfe\x00\x00",
        payload(ARRAY, pickled_npy()),
        payload(ARRAY, npy(HUGE)),
        payload(ARRAY, npy(EMPTY)),
        payload(ARRAY, npy(LONG)),
        payload(ARRAY, npy("{'descr': '<f8', 'fortran_order': False, 'shape': (-1,)}\n", b"x" * 8)),
        payload(ARRAY, npy("__import__('os').system('true')\n")),
        payload(ARRAY, npy("{'descr': '|O', 'fortran_order': False, 'shape': (1,)}\n", pickle.dumps([Bomb()]))),
        payload(ARRAY, b"PK\x03\x04"),
        payload(ARRAY, sizes=[2**62]),
        payload(ARRAY, b"1234", sizes=[-4, 8]),
        payload({"t": "ndarray", "blob": 7}, b""),
        payload({"t": "pickle", "v": "x"}),
        payload({"t": ["list"]}),
        payload({"t": "int", "v": "zz"}),
        payload({"t": "Decimal", "v": "9" * 20_000}),
        payload({"t": "dict", "v": [[[], 1]]}),
        payload({"t": "datetime", "v": "2026-01-01", "fold": 0, "zone": "../../../etc/passwd"}),
        payload({"t": "image", "blob": 0}, png(60_000, 60_000)),
        payload({"t": "image", "blob": 0}, png(5_000, 5_000)),
        payload([{"t": "image", "blob": number} for number in range(3)], *[black(7_000, 7_000)] * 3),
        payload({"t": "image", "blob": 0}, b"GIF89a" + b"\0" * 100),
        payload({"t": "figure", "blob": 0}, b"<svg onload=alert(1)>"),
        payload({"t": "Series", "name": None, "index": {"range": [0, 10**12, 1], "names": [None]}, "data": COLUMN},
                npy("{'descr': '<f8', 'fortran_order': False, 'shape': (1,)}\n", b"x" * 8)),
        payload({"t": "Series", "name": None, "index": INDEX, "data": {"dtype": "object", "values": [{"t": "eval"}]}}),
        payload({"t": "Series", "name": None, "index": INDEX, "data": {"dtype": "Sparse[int]", "npy": 0}}, b""),
        payload({"t": "Series", "name": None, "index": INDEX, "data": {**TEXT, "values": [1]}}),
        payload({"t": "Series", "name": None, "index": INDEX, "data": {**TEXT, "storage": "numpy", "values": ["a"]}}),
        payload({"t": "Series", "name": None, "index": INDEX, "data": {"dtype": "period", "npy": 0, "freq": "x" * 99}},
                as_npy([1])),
        payload({"t": "Series", "name": None, "index": INDEX, "data": {"dtype": "period", "npy": 0, "freq": "eval"}},
                as_npy([1])),
        payload({"t": "Series", "name": None, "index": INDEX, "data": {"dtype": "period", "npy": 0, "freq": "D"}},
                as_npy([1.5])),
        payload({"t": "Series", "name": None, "index": INDEX,
                 "data": {"dtype": "interval", "ends": [COLUMN, {**COLUMN, "npy": 1}], "closed": "evil"}},
                as_npy([1]), as_npy([2])),
        payload({"t": "Series", "name": None, "index": INDEX,
                 "data": {"dtype": "interval", "ends": [COLUMN, {**COLUMN, "npy": 1}], "closed": "left"}},
                as_npy([2]), as_npy([1])),
        payload({"t": "Series", "name": None, "index": INDEX,
                 "data": {"dtype": "interval", "ends": [COLUMN, COLUMN], "closed": "left"}}, as_npy([1])),
        payload([ARRAY, ARRAY], as_npy([1])),
        payload({"t": "DataFrame", "columns": INDEX, "index": INDEX, "data": []}),
    ],
)  # fmt: skip
def test_a_hostile_payload_is_refused(data: bytes) -> None:
    with pytest.raises(Refused):
        decode(data)
    assert not Bomb.fired


@settings(deadline=None, max_examples=40)
@given(st.binary(max_size=200))
def test_random_bytes_are_refused(noise: bytes) -> None:
    good = encode({"a": np.arange(3), "b": [FRAME.head(1)]})
    for data in (noise, MAGIC + noise, good[: len(noise)], good + noise + b"!"):
        with pytest.raises(Refused):
            decode(data)
