# mypy: ignore-errors
"""Columns as Arrow IPC streams and back: text, bytes and Arrow-typed ones. Runs on both sides, see `variable_codec`.

A stream holds one schema of one field and one record batch, uncompressed
(https://arrow.apache.org/docs/format/Columnar.html).
One that comes is a stranger's: its schema is searched for extension types (whose Python classes may unpickle) before
Arrow reads it, its type must be one of the plain ones below, and all of it is validated before it is used.
"""

import re
import struct

from .variable_parts import Refused, zone_back

OLDEST = (14, 0, 1)
"""Older ones unpickle what extension types say (CVE-2023-47248)."""

MAX_SCHEMA = 100_000
MAX_DEPTH = 16


def available() -> bool:
    """Whether there is a pyarrow that may read what a stranger wrote."""
    try:
        import pyarrow
    except Exception:  # there is none, or it does not fit the rest
        return False
    return tuple(int(number) for number in re.findall(r"\d+", pyarrow.__version__)[:3]) >= OLDEST


def stream_of(values, kind=None):
    """A column as a stream, None if Arrow cannot take it as it is.

    Arguments:
        values: a pandas array, or a list.
        kind: name of the type to make of it, such as "large_string".
    """
    import pyarrow as pa

    try:
        array = pa.array(values)
        array = array.cast(getattr(pa, kind)()) if kind else array
        array = array.combine_chunks() if isinstance(array, pa.ChunkedArray) else array
    except (pa.ArrowException, UnicodeError, OverflowError):
        return None
    if not _is_plain(array.type, pa):
        return None
    batch, stream = pa.record_batch([array], names=[""]), pa.BufferOutputStream()
    with pa.ipc.new_stream(stream, batch.schema, options=pa.ipc.IpcWriteOptions(compression=None)) as writer:
        writer.write_batch(batch)
    return stream.getvalue().to_pybytes()


def array_of(data):
    """The Arrow array of a stream."""
    if not available():
        raise Refused("it needs pyarrow 14.0.1 or newer: install that")
    import pyarrow as pa

    # A copy: Arrow wants its buffers aligned, and an array should not keep all that came with it.
    stream = pa.BufferReader(pa.py_buffer(bytes(data)))
    head, body = pa.ipc.read_message(stream), pa.ipc.read_message(stream)
    if head.type != "schema" or body.type != "record batch" or head.metadata.size > MAX_SCHEMA:
        raise Refused("a column of it is not in the form of one")
    if b"ARROW:extension" in head.metadata.to_pybytes():
        raise Refused("a column of it has an extension type")
    schema = pa.ipc.read_schema(head)
    if len(schema) != 1 or not _is_plain(schema.field(0).type, pa):
        raise Refused("a column of it has a type that is not allowed")
    if _is_compressed(body.metadata.to_pybytes()):
        raise Refused("a column of it is compressed")
    batch = pa.ipc.read_record_batch(body, schema)
    batch.validate(full=True)
    return batch.column(0)


def _is_plain(kind, pa, depth=0):
    """Whether a type has data for each value, so that its length is bound by the bytes there are.

    Types without (null, run-end encoded, of width 0) and those whose values may all be the same bytes (views,
    dictionaries) would be bombs.
    """
    types = pa.types
    if depth > MAX_DEPTH:
        return False
    if types.is_struct(kind):
        inner = [kind.field(i).type for i in range(kind.num_fields)]
    elif types.is_map(kind):
        inner = [kind.key_type, kind.item_type]
    elif types.is_list(kind) or types.is_large_list(kind):
        inner = [kind.value_type]
    elif types.is_fixed_size_list(kind):
        inner = [kind.value_type] if kind.list_size > 0 else []
    else:
        return _is_simple(kind, types)
    return bool(inner) and all(_is_plain(part, pa, depth + 1) for part in inner)


def _is_simple(kind, types):
    if types.is_timestamp(kind):
        return kind.tz is None or bool(re.fullmatch(r"[+-]\d\d:\d\d", kind.tz) or zone_back({"zone": kind.tz}))
    if types.is_decimal(kind):
        return abs(kind.scale) <= kind.precision
    if types.is_fixed_size_binary(kind):
        return kind.byte_width > 0
    numbers = (types.is_boolean, types.is_integer, types.is_floating)
    times = (types.is_date, types.is_time, types.is_duration)
    texts = (types.is_string, types.is_large_string, types.is_binary, types.is_large_binary)
    return any(is_it(kind) for is_it in numbers + times + texts)


def _is_compressed(metadata):
    """Whether the message of a record batch has the field `compression` (Message.fbs of Arrow: RecordBatch, the 4th).

    Asked of the FlatBuffer itself: Arrow would decompress, to any size, before it could be asked.
    """

    def number(form, at):
        return struct.unpack_from(form, metadata, at)[0]

    def field(table, place):
        vtable, entry = table - number("<i", table), 4 + 2 * place
        offset = number("<H", vtable + entry) if entry < number("<H", vtable) else 0
        return table + offset if offset else None

    header = field(number("<I", 0), 2)
    return field(header + number("<I", header), 3) is not None
