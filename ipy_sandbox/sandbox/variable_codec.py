# mypy: ignore-errors
# ruff: noqa: RUF012
"""Values as bytes and back, without pickle. Runs on both sides, with the files named in `TEXTS` and no others.

The form: a line of magic, the length of a header, the header (JSON: the value, with blobs by number), the blobs.
Plain JSON values stand for themselves, all others are objects with a tag `t`. Arrays are npy, tables are their columns
(`variable_tables`), pictures are PNG. The other side is not trusted: sizes, types and nesting are checked before
anything is built.
It must run on Python 3.8 and with or without numpy, pandas, Pillow and matplotlib.
"""

import datetime
import decimal
import io
import json
import math
import struct
import sys
from typing import Any

from .variable_parts import Refused, zone_back, zone_of
from .variable_tables import TableDecoder, TableEncoder

TEXTS = ("variable_parts.py", "variable_arrow.py", "variable_tables.py", "variable_codec.py")
"""What runs in the sandbox, in the order of imports."""

MAGIC = b"ipy-sandbox value 1\n"
ARROW_MAGIC = b"ipy-sandbox value 2\n"
"""Who takes it needs pyarrow."""

MAX_HEADER = 64 * 1024 * 1024
MAX_PIXELS = 100_000_000
PNG = b"\x89PNG\r\n\x1a\n"
IMAGE_MODES = ("1", "L", "LA", "P", "RGB", "RGBA", "I", "I;16")


def encode(value: Any, *, arrow: bool = False) -> bytes:
    """`value` as bytes.

    Arguments:
        arrow: whether the other side may have pyarrow; if it must have it, the bytes begin with `ARROW_MAGIC`.
    """
    blobs = []
    encoder = _Encoder(blobs, arrow)
    try:
        tree = encoder.node(value)
        header = json.dumps({"value": tree, "blobs": [len(blob) for blob in blobs]}, allow_nan=False).encode()
    except RecursionError:
        raise Refused("it is nested too deeply, or contains itself") from None
    if len(header) > MAX_HEADER:
        raise Refused("it has too many small parts: use a numpy array, or a file")
    magic = ARROW_MAGIC if encoder.streams else MAGIC
    return b"".join([magic, struct.pack(">Q", len(header)), header, *blobs])


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
    if bytes(data[: len(MAGIC)]) not in (MAGIC, ARROW_MAGIC) or len(data) < start:
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


class _Encoder(TableEncoder):
    def __init__(self, blobs, arrow):
        self.blobs = blobs
        self.arrow = arrow
        self.streams = 0

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
        return {
            "t": "datetime",
            "v": value.replace(tzinfo=None).isoformat(),
            "fold": value.fold,
            **zone_of(value.tzinfo, value),
        }

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

    LIBRARIES = (("numpy", array), ("pandas", TableEncoder.table), ("PIL.Image", image), ("matplotlib.figure", figure))


def _way_out(value):
    kind = type(value)
    name = kind.__name__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__name__}"
    bases = [base.__name__ for base in (list, dict, tuple, set, str, int, float) if isinstance(value, base)]
    cure = f"make it a plain one with {bases[0]}(...)" if bases else "move it as a file, or take its data apart"
    return f"values of type {name} cannot cross: {cure}"


class _Decoder(TableDecoder):
    def __init__(self, blobs):
        self.blobs = dict(enumerate(blobs))
        self.pixels = 0

    def blob(self, number):
        # Once: a large one that is named often would be a bomb.
        return self.blobs.pop(number)

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
        return naive.replace(tzinfo=zone_back(node), fold=node["fold"])

    def exact(self, node):
        text = node["v"]
        if len(text) > 10_000:
            raise Refused("a number in it is too long")
        return decimal.Decimal(text)

    def npy(self, number):
        import numpy as np

        data = self.blob(number)
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

    def png(self, node):
        data = bytes(self.blob(node["blob"]))
        if data[:8] != PNG or data[12:16] != b"IHDR":
            raise Refused("a picture in it is no PNG")
        width, height = struct.unpack(">II", data[16:24])
        self.pixels += width * height
        if self.pixels > MAX_PIXELS:
            raise Refused(f"a picture in it has {width} x {height} pixels, and all may have {MAX_PIXELS}")
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
        "bytes": lambda self, node: bytes(self.blob(node["blob"])),
        "bytearray": lambda self, node: bytearray(self.blob(node["blob"])),
        "tuple": lambda self, node: tuple(self.values(node)),
        # Item by item: values of equal hashes take time with their square, in which nothing else of Python would run.
        "set": lambda self, node: {self.value(item) for item in node["v"]},
        "frozenset": lambda self, node: frozenset({self.value(item) for item in node["v"]}),
        "dict": pairs,
        "datetime": moment,
        "date": lambda self, node: datetime.date.fromisoformat(node["v"]),
        "time": lambda self, node: datetime.time.fromisoformat(node["v"]),
        "timedelta": lambda self, node: datetime.timedelta(*node["v"]),
        "Decimal": exact,
        "ndarray": lambda self, node: self.npy(node["blob"]),
        "npscalar": lambda self, node: self.npy(node["blob"])[()],
        "image": image,
        "figure": figure,
        **TableDecoder.TABLES,
    }
