# mypy: ignore-errors
# ruff: noqa: B905, RUF012
"""Values as bytes and back, without pickle: this file runs on both sides, so it imports nothing of the package.

The form: a line of magic, the length of a header, the header (JSON: the value, with blobs by number), the blobs.
Plain JSON values stand for themselves, all others are objects with a tag `t`. Arrays are npy, tables are their
columns, pictures are PNG. The other side is not trusted: sizes, types and nesting are checked before anything is built.
It must run on Python 3.8 and with or without numpy, pandas, Pillow and matplotlib.
"""

import datetime
import decimal
import io
import json
import math
import re
import struct
import sys
from typing import Any

MAGIC = b"ipy-sandbox value 1\n"
MAX_HEADER = 64 * 1024 * 1024
MAX_PIXELS = 100_000_000
PNG = b"\x89PNG\r\n\x1a\n"
IMAGE_MODES = ("1", "L", "LA", "P", "RGB", "RGBA", "I", "I;16")
NULLABLE = re.compile(r"U?Int(8|16|32|64)|Float(32|64)|boolean")


class Refused(ValueError):
    """The value cannot cross, or what came is not what it claims to be."""


def encode(value: Any) -> bytes:
    """`value` as bytes."""
    blobs = []
    try:
        tree = _Encoder(blobs).node(value)
        header = json.dumps({"value": tree, "blobs": [len(blob) for blob in blobs]}, allow_nan=False).encode()
    except RecursionError:
        raise Refused("it is nested too deeply, or contains itself") from None
    if len(header) > MAX_HEADER:
        raise Refused("it has too many small parts: use a numpy array, or a file")
    return b"".join([MAGIC, struct.pack(">Q", len(header)), header, *blobs])


def decode(data: bytes) -> Any:
    """The value that `encode` made bytes of; raises `Refused` for anything else."""
    try:
        header, blobs = _unpacked(memoryview(data))
        return _Decoder(blobs).value(header["value"])
    except Refused:
        raise
    except RecursionError:
        raise Refused("it is nested too deeply") from None
    except Exception as error:  # whatever a library says about bytes of a stranger
        raise Refused(f"it is damaged ({type(error).__name__}: {error})") from None


def _unpacked(data):
    start = len(MAGIC) + 8
    if bytes(data[: len(MAGIC)]) != MAGIC or len(data) < start:
        raise Refused("it is not in the form of a transferred value")
    (size,) = struct.unpack(">Q", data[len(MAGIC) : start])
    if size > MAX_HEADER or start + size > len(data):
        raise Refused("its header is too large")
    header = json.loads(bytes(data[start : start + size]).decode())
    sizes, at, blobs = header["blobs"], start + size, []
    if any(type(size) is not int or size < 0 for size in sizes) or at + sum(sizes) != len(data):
        raise Refused("its parts do not have the sizes they claim")
    for size in sizes:
        blobs.append(data[at : at + size])
        at += size
    return header, blobs


class _Encoder:
    def __init__(self, blobs):
        self.blobs = blobs

    def blob(self, data):
        self.blobs.append(data)
        return len(self.blobs) - 1

    def node(self, value):
        kind = type(value)
        if value is None or kind in (bool, str):
            return value
        method = self.METHODS.get(kind)
        if method is not None:
            return method(self, value)
        for module, encoder in self.LIBRARIES:
            if module in sys.modules:
                found = encoder(self, value, sys.modules[module])
                if found is not None:
                    return found
        raise Refused(_way_out(value))

    def integer(self, value):
        return value if abs(value) < 2**63 else {"t": "int", "v": hex(value)}

    def real(self, value):
        return value if math.isfinite(value) else {"t": "float", "v": repr(value)}

    def compound(self, value):
        return {"t": "complex", "v": [self.real(value.real), self.real(value.imag)]}

    def binary(self, value):
        return {"t": type(value).__name__, "blob": self.blob(bytes(value))}

    def sequence(self, value):
        items = [self.node(item) for item in value]
        return items if type(value) is list else {"t": type(value).__name__, "v": items}

    def mapping(self, value):
        return {"t": "dict", "v": [[self.node(key), self.node(item)] for key, item in value.items()]}

    def moment(self, value):
        return {"t": "datetime", "v": value.replace(tzinfo=None).isoformat(), "fold": value.fold, **_zone(value)}

    def clock(self, value):
        if value.tzinfo is not None:
            raise Refused("a time with a zone cannot cross: use a datetime")
        return {"t": "time", "v": value.isoformat()}

    def span(self, value):
        return {"t": "timedelta", "v": [value.days, value.seconds, value.microseconds]}

    def text(self, value):
        return {"t": type(value).__name__, "v": str(value)}

    METHODS = {
        int: integer, float: real, complex: compound, bytes: binary, bytearray: binary,
        list: sequence, tuple: sequence, set: sequence, frozenset: sequence, dict: mapping,
        datetime.datetime: moment, datetime.date: text, datetime.time: clock, datetime.timedelta: span,
        decimal.Decimal: text,
    }  # fmt: skip

    def array(self, value, np):
        if isinstance(value, np.generic):
            return {"t": "npscalar", "blob": self.npy(np.asarray(value), np)}
        if type(value) is np.ndarray:
            return {"t": "ndarray", "blob": self.npy(value, np)}
        return None

    def npy(self, array, np):
        if array.dtype.hasobject:
            raise Refused("arrays of Python objects cannot cross: use .tolist(), or a dtype of its own")
        stream = io.BytesIO()
        np.lib.format.write_array(stream, array, allow_pickle=False)
        return self.blob(stream.getvalue())

    def table(self, value, pd):
        if value is pd.NA or value is pd.NaT:
            return {"t": "NA" if value is pd.NA else "NaT"}
        if type(value) is pd.Timestamp:
            return {"t": "Timestamp", "v": value.isoformat(), **_zone(value)}
        if type(value) is pd.Timedelta:
            return {"t": "Timedelta", "v": value.isoformat()}
        if type(value) is pd.Series:
            name, data = self.node(value.name), self.column(value, pd)
            return {"t": "Series", "name": name, "index": self.index(value.index, pd), "data": data}
        if type(value) is pd.DataFrame:
            data = [self.column(value.iloc[:, i], pd) for i in range(value.shape[1])]
            columns = self.index(value.columns, pd)
            return {"t": "DataFrame", "columns": columns, "index": self.index(value.index, pd), "data": data}
        if isinstance(value, pd.Index):
            return {"t": "Index", "index": self.index(value, pd)}
        return None

    def index(self, index, pd):
        names = [self.node(name) for name in index.names]
        if type(index) is pd.RangeIndex:
            return {"range": [index.start, index.stop, index.step], "names": names}
        if isinstance(index, pd.MultiIndex):
            levels = [index.get_level_values(i) for i in range(index.nlevels)]
            return {"levels": [self.column(level.to_series(), pd) for level in levels], "names": names}
        return {"data": self.column(index.to_series(), pd), "names": names, "freq": getattr(index, "freqstr", None)}

    def column(self, series, pd):
        np, dtype = sys.modules["numpy"], series.dtype
        name = str(dtype)
        if isinstance(dtype, np.dtype):
            if dtype.hasobject:
                return {"dtype": "object", "values": [self.node(item) for item in series.tolist()]}
            return {"dtype": "numpy", "npy": self.npy(series.to_numpy(), np)}
        if isinstance(dtype, pd.DatetimeTZDtype):
            naive = series.dt.tz_convert("UTC").dt.tz_localize(None).to_numpy()
            return {"dtype": "tz", "npy": self.npy(naive, np), **_zone_of(dtype.tz)}
        if isinstance(dtype, pd.CategoricalDtype):
            codes = self.npy(series.cat.codes.to_numpy(), np)
            categories = self.column(pd.Series(dtype.categories), pd)
            return {"dtype": "category", "codes": codes, "categories": categories, "ordered": bool(dtype.ordered)}
        if isinstance(dtype, pd.StringDtype):
            missing = series.isna().tolist()
            values = [None if gone else item for item, gone in zip(series.tolist(), missing)]
            return {"dtype": name if name == "str" else "string", "values": values}
        if NULLABLE.fullmatch(name):
            mask = series.isna()
            filled = series.fillna(False if name == "boolean" else 0).to_numpy(dtype=_plain_dtype(name))
            return {"dtype": name, "npy": self.npy(filled, np), "mask": self.npy(mask.to_numpy(), np)}
        raise Refused(f"columns of type {name} cannot cross: use .astype() first")

    def image(self, value, pil):
        if not isinstance(value, pil.Image):
            return None
        if value.mode not in IMAGE_MODES:
            raise Refused(f'images of mode {value.mode} cannot cross: use .convert("RGB")')
        stream = io.BytesIO()
        value.save(stream, format="PNG")
        return {"t": "image", "blob": self.blob(stream.getvalue())}

    def figure(self, value, module):
        if not isinstance(value, module.Figure):
            return None
        stream = io.BytesIO()
        value.savefig(stream, format="png", bbox_inches="tight")
        return {"t": "figure", "blob": self.blob(stream.getvalue())}

    LIBRARIES = (("numpy", array), ("pandas", table), ("PIL.Image", image), ("matplotlib.figure", figure))


def _plain_dtype(name):
    return "bool" if name == "boolean" else name.lower()


def _zone(moment):
    if moment.tzinfo is None:
        return {}
    return _zone_of(moment.tzinfo, moment)


def _zone_of(zone, moment=None):
    key = getattr(zone, "key", None) or getattr(zone, "zone", None)
    if isinstance(key, str):
        return {"zone": key}
    offset = zone.utcoffset(moment)
    if offset is None:
        raise Refused(f"the time zone {zone!r} cannot cross: use one of zoneinfo")
    return {"offset": offset.total_seconds()}


def _way_out(value):
    kind = type(value)
    name = kind.__name__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__name__}"
    bases = [base.__name__ for base in (list, dict, tuple, set, str, int, float) if isinstance(value, base)]
    cure = f"make it a plain one with {bases[0]}(...)" if bases else "move it as a file, or take its data apart"
    return f"values of type {name} cannot cross: {cure}"


class _Decoder:
    def __init__(self, blobs):
        self.blobs = blobs

    def value(self, node):
        if isinstance(node, list):
            return [self.value(item) for item in node]
        if not isinstance(node, dict):
            return node
        method = self.METHODS.get(node.get("t"))
        if method is None:
            raise Refused("it has parts of an unknown kind")
        return method(self, node)

    def values(self, node):
        return [self.value(item) for item in node["v"]]

    def pairs(self, node):
        return {self.value(key): self.value(item) for key, item in node["v"]}

    def moment(self, node):
        naive = datetime.datetime.fromisoformat(node["v"])
        return naive.replace(tzinfo=_zone_back(node), fold=node["fold"])

    def exact(self, node):
        text = node["v"]
        if len(text) > 10_000:
            raise Refused("a number in it is too long")
        return decimal.Decimal(text)

    def npy(self, number):
        import numpy as np

        data = self.blobs[number]
        stream, form = io.BytesIO(data), np.lib.format
        version = form.read_magic(stream)
        if version not in ((1, 0), (2, 0)):
            raise Refused("an array in it has an unknown format")
        shape, _, dtype = (form.read_array_header_1_0 if version == (1, 0) else form.read_array_header_2_0)(stream)
        # Before numpy reads it: the header could claim objects, or more than there is.
        if dtype.hasobject:
            raise Refused("an array in it holds Python objects")
        count = 1
        for length in shape:
            count *= length
        if count < 0 or count * dtype.itemsize != len(data) - stream.tell() or (count > 1 and dtype.itemsize == 0):
            raise Refused("an array in it does not have the size it claims")
        stream.seek(0)
        return form.read_array(stream, allow_pickle=False)

    def timestamp(self, node):
        import pandas as pd

        moment, zone = pd.Timestamp(node["v"]), _zone_back(node)
        return moment if zone is None else moment.tz_convert(zone)

    def duration(self, node):
        import pandas as pd

        return pd.Timedelta(node["v"])

    def missing(self, node):
        import pandas as pd

        return pd.NA if node["t"] == "NA" else pd.NaT

    def series(self, node):
        import pandas as pd

        index = self.index(node["index"])
        column = self.column(node["data"], len(index))
        return pd.Series(column, index=index, name=self.value(node["name"]), copy=False)

    def frame(self, node):
        import pandas as pd

        index, columns = self.index(node["index"]), self.index(node["columns"])
        if len(columns) != len(node["data"]):
            raise Refused("its columns are not as many as their names")
        # By number first: names may come twice.
        data = {i: pd.Series(self.column(part, len(index)), index=index) for i, part in enumerate(node["data"])}
        frame = pd.DataFrame(data, index=index, columns=range(len(columns)) if not data else None)
        frame.columns = columns
        return frame

    def index(self, node):
        import pandas as pd

        names = [self.value(name) for name in node["names"]]
        if "range" in node:
            return pd.RangeIndex(*node["range"], name=names[0])
        if "levels" in node:
            levels = [self.column(level) for level in node["levels"]]
            return pd.MultiIndex.from_arrays(levels, names=names)
        index = pd.Index(self.column(node["data"]), name=names[0])
        if isinstance(node.get("freq"), str) and len(node["freq"]) < 20:
            index.freq = node["freq"]
        return index

    def column(self, node, length=None):
        import pandas as pd

        column = self._column(node, pd)
        if length is not None and len(column) != length:
            raise Refused("its columns do not have the same length")
        return column

    def _column(self, node, pd):
        kind = node["dtype"]
        if kind == "object":
            return pd.Series([self.value(item) for item in node["values"]], dtype=object).array
        if kind in ("str", "string"):
            if not all(item is None or isinstance(item, str) for item in node["values"]):
                raise Refused("a column of text holds other things")
            return pd.array(node["values"], dtype=kind if kind == "string" or hasattr(pd, "StringDtype") else object)
        if kind == "numpy":
            array = self.npy(node["npy"])
            if array.ndim != 1:
                raise Refused("a column of it is not one")
            return array
        if kind == "tz":
            naive = pd.Series(self.npy(node["npy"]))
            return naive.dt.tz_localize("UTC").dt.tz_convert(_zone_back(node)).array
        if kind == "category":
            categories = pd.Index(self.column(node["categories"]))
            return pd.Categorical.from_codes(self.npy(node["codes"]), categories, ordered=node["ordered"])
        if isinstance(kind, str) and NULLABLE.fullmatch(kind):
            column = pd.array(self.npy(node["npy"]), dtype=kind)
            column[self.npy(node["mask"]).astype(bool)] = pd.NA
            return column
        raise Refused("a column of it has an unknown type")

    def png(self, node):
        data = bytes(self.blobs[node["blob"]])
        if data[:8] != PNG or data[12:16] != b"IHDR":
            raise Refused("a picture in it is no PNG")
        width, height = struct.unpack(">II", data[16:24])
        if width * height > MAX_PIXELS:
            raise Refused(f"a picture in it has {width} x {height} pixels")
        return data

    def image(self, node):
        from PIL import Image

        image = Image.open(io.BytesIO(self.png(node)), formats=["PNG"])
        image.load()
        return image

    def figure(self, node):
        from IPython.display import Image

        return Image(data=self.png(node), format="png")

    METHODS = {
        "int": lambda self, node: int(node["v"], 16),
        "float": lambda self, node: float(node["v"]),
        "complex": lambda self, node: complex(*self.values(node)),
        "bytes": lambda self, node: bytes(self.blobs[node["blob"]]),
        "bytearray": lambda self, node: bytearray(self.blobs[node["blob"]]),
        "tuple": lambda self, node: tuple(self.values(node)),
        "set": lambda self, node: set(self.values(node)),
        "frozenset": lambda self, node: frozenset(self.values(node)),
        "dict": pairs,
        "datetime": moment,
        "date": lambda self, node: datetime.date.fromisoformat(node["v"]),
        "time": lambda self, node: datetime.time.fromisoformat(node["v"]),
        "timedelta": lambda self, node: datetime.timedelta(*node["v"]),
        "Decimal": exact,
        "ndarray": lambda self, node: self.npy(node["blob"]),
        "npscalar": lambda self, node: self.npy(node["blob"])[()],
        "NA": missing,
        "NaT": missing,
        "Timestamp": timestamp,
        "Timedelta": duration,
        "Series": series,
        "DataFrame": frame,
        "Index": lambda self, node: self.index(node["index"]),
        "image": image,
        "figure": figure,
    }


def _zone_back(node):
    if "zone" in node:
        from zoneinfo import ZoneInfo

        return ZoneInfo(node["zone"])
    if "offset" in node:
        return datetime.timezone(datetime.timedelta(seconds=node["offset"]))
    return None
