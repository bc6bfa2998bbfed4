# mypy: ignore-errors
# ruff: noqa: B905, RUF012
"""pandas objects as parts of a value and back. Runs on both sides, see `variable_codec`.

A table is its columns and its index, each in the form that keeps its type: numbers and times are npy; text, bytes and
Arrow-typed columns are Arrow streams (`variable_arrow`), or JSON where a side lacks pyarrow; categories, intervals and
periods are made of these; objects are values of their own. Names are values, too, so pandas metadata is never needed.
"""

import re
import sys

from . import variable_arrow
from .variable_parts import Refused, zone_back, zone_of

NULLABLE = re.compile(r"U?Int(8|16|32|64)|Float(32|64)|boolean")
MAX_COLUMNS = 100_000
SHORT = 1000
"""Rows up to which text is JSON: as quick, and it asks nothing of the other side."""


def _plain_dtype(name):
    return "bool" if name == "boolean" else name.lower()


def _check_columns(count):
    if count > MAX_COLUMNS:
        raise Refused(f"it has {count} columns, over the limit of {MAX_COLUMNS}: use a numpy array")


class TableEncoder:
    """Needs `node`, `blob`, `npy`, `arrow` and `streams`, see `variable_codec`."""

    def table(self, value, pd):
        if value is pd.NA or value is pd.NaT:
            return {"t": "NA" if value is pd.NA else "NaT"}
        if type(value) is pd.Timestamp:
            return {"t": "Timestamp", "v": value.isoformat(), **zone_of(value.tzinfo, value)}
        if type(value) is pd.Timedelta:
            return {"t": "Timedelta", "v": value.isoformat()}
        if type(value) is pd.Series:
            name, data = self.node(value.name), self.column(value, pd)
            return {"t": "Series", "name": name, "index": self.index(value.index, pd), "data": data}
        if type(value) is pd.DataFrame:
            _check_columns(value.shape[1])
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
            return {"levels": [self.column(_series(level, pd), pd) for level in levels], "names": names}
        freq = index.freqstr if isinstance(index, (pd.DatetimeIndex, pd.TimedeltaIndex)) else None
        return {"data": self.column(_series(index, pd), pd), "names": names, "freq": freq}

    def column(self, series, pd):
        np, dtype = sys.modules["numpy"], series.dtype
        name = str(dtype)
        if isinstance(dtype, np.dtype):
            if dtype.hasobject:
                return self.object_column(series)
            return {"dtype": "numpy", "npy": self.npy(series.to_numpy(), np)}
        if isinstance(dtype, pd.DatetimeTZDtype):
            naive = series.dt.tz_convert("UTC").dt.tz_localize(None).to_numpy()
            return {"dtype": "tz", "npy": self.npy(naive, np), **zone_of(dtype.tz)}
        if isinstance(dtype, pd.CategoricalDtype):
            codes = self.npy(series.cat.codes.to_numpy(), np)
            categories = self.column(_series(dtype.categories, pd), pd)
            return {"dtype": "category", "codes": codes, "categories": categories, "ordered": bool(dtype.ordered)}
        if isinstance(dtype, pd.IntervalDtype):
            ends = [self.column(_series(end, pd), pd) for end in (series.array.left, series.array.right)]
            return {"dtype": "interval", "ends": ends, "closed": series.array.closed}
        if isinstance(dtype, pd.PeriodDtype):
            return {"dtype": "period", "npy": self.npy(series.array.asi8, np), "freq": name[len("period[") : -1]}
        if isinstance(dtype, pd.StringDtype):
            return self.text_column(series, dtype)
        if NULLABLE.fullmatch(name):
            mask = series.isna()
            filled = series.fillna(False if name == "boolean" else 0).to_numpy(dtype=_plain_dtype(name))
            return {"dtype": name, "npy": self.npy(filled, np), "mask": self.npy(mask.to_numpy(), np)}
        if hasattr(pd, "ArrowDtype") and isinstance(dtype, pd.ArrowDtype):
            stream = self.stream(series.array)
            if stream is not None:
                return {"dtype": "arrow", "arrow": stream}
        raise Refused(f"columns of type {name} cannot cross: use .astype() first")

    def object_column(self, series):
        values = series.tolist()
        kinds = {*map(type, values)} - {type(None)} if len(values) > SHORT else set()
        if kinds in ({str}, {bytes}):
            stream = self.stream(values, "large_string" if kinds == {str} else "large_binary")
            if stream is not None:
                return {"dtype": "object", "arrow": stream}
        return {"dtype": "object", "values": [self.node(item) for item in values]}

    def text_column(self, series, dtype):
        # pandas 2 had text with NaN as a storage of its own.
        storage = getattr(dtype, "storage", "python")
        with_nan = str(dtype) == "str" or storage.endswith("_numpy")
        form = {"dtype": "text", "storage": storage.replace("_numpy", ""), "nan": with_nan}
        stream = self.stream(series.array, "large_string") if len(series) > SHORT else None
        if stream is not None:
            return {**form, "arrow": stream}
        missing = series.isna().tolist()
        return {**form, "values": [None if gone else item for item, gone in zip(series.tolist(), missing)]}

    def stream(self, values, kind=None):
        """The number of the blob that holds `values` as an Arrow stream, if they can be one."""
        data = variable_arrow.stream_of(values, kind) if self.arrow and variable_arrow.available() else None
        if data is None:
            return None
        self.streams += 1
        return self.blob(data)


class TableDecoder:
    """Needs `value`, `blob` and `npy`, see `variable_codec`."""

    def timestamp(self, node):
        import pandas as pd

        moment, zone = pd.Timestamp(node["v"]), zone_back(node)
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
        return pd.Series(column, index, dtype=column.dtype, name=self.value(node["name"]), copy=False)

    def frame(self, node):
        import pandas as pd

        _check_columns(len(node["data"]))
        index, columns = self.index(node["index"]), self.index(node["columns"])
        if len(columns) != len(node["data"]):
            raise Refused("its columns are not as many as their names")
        # By number first: names may come twice.
        parts = [self.column(part, len(index)) for part in node["data"]]
        data = {i: pd.Series(part, index, dtype=part.dtype) for i, part in enumerate(parts)}
        frame = pd.DataFrame(data, index=index, columns=range(len(columns)) if not data else None)
        frame.columns = columns
        return frame

    def index(self, node):
        import pandas as pd

        names = [self.value(name) for name in node["names"]]
        if "range" in node:
            return pd.RangeIndex(*node["range"], name=names[0])
        if "levels" in node:
            levels = [_index(self.column(level), pd) for level in node["levels"]]
            return pd.MultiIndex.from_arrays(levels, names=names)
        index = _index(self.column(node["data"]), pd).rename(names[0])
        if node.get("freq") is not None:
            index.freq = _freq(node)
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
            return self.object_column(node, pd)
        if kind == "text":
            return self.text_column(node, pd)
        if kind == "numpy":
            return self.npy_column(node["npy"])
        if kind == "tz":
            naive, zone = pd.Series(self.npy_column(node["npy"])), zone_back(node)
            # By name, now that there is one of this name: pandas 2 makes a zone of pytz, its default, of it.
            return naive.dt.tz_localize("UTC").dt.tz_convert(node.get("zone", zone)).array
        if kind == "category":
            categories = _index(self.column(node["categories"]), pd)
            return pd.Categorical.from_codes(self.npy_column(node["codes"]), categories, ordered=node["ordered"])
        if kind == "interval":
            left, right = (self.column(end) for end in node["ends"])
            return pd.arrays.IntervalArray.from_arrays(left, right, closed=node["closed"])
        if kind == "period":
            ordinals = self.npy_column(node["npy"])
            if ordinals.dtype != "int64":
                raise Refused("a column of periods holds other things")
            return pd.arrays.PeriodArray(ordinals, dtype=pd.PeriodDtype(_freq(node)))
        if kind == "arrow":
            array = self.stream(node["arrow"])
            return pd.ArrowDtype(array.type).__from_arrow__(array)
        if isinstance(kind, str) and NULLABLE.fullmatch(kind):
            column = pd.array(self.npy_column(node["npy"]), dtype=kind)
            column[self.npy_column(node["mask"]).astype(bool)] = pd.NA
            return column
        raise Refused("a column of it has an unknown type")

    def npy_column(self, number):
        array = self.npy(number)
        if array.ndim != 1:
            raise Refused("a column of it is not one")
        return array

    def object_column(self, node, pd):
        if "arrow" in node:
            values = self.stream(node["arrow"], "large_string", "large_binary").to_numpy(zero_copy_only=False)
        else:
            values = [self.value(item) for item in node["values"]]
        return pd.Series(values, dtype=object).array

    def text_column(self, node, pd):
        dtype = _text_dtype(node, pd)
        if "arrow" in node:
            array = self.stream(node["arrow"], "large_string")
            return dtype.__from_arrow__(array) if dtype is not object else array.to_numpy(zero_copy_only=False)
        if not all(item is None or isinstance(item, str) for item in node["values"]):
            raise Refused("a column of text holds other things")
        return pd.array(node["values"], dtype=dtype)

    def stream(self, number, *kinds):
        array = variable_arrow.array_of(self.blob(number))
        if kinds and str(array.type) not in kinds:
            raise Refused("a column of text holds other things")
        return array

    TABLES = {
        "NA": missing,
        "NaT": missing,
        "Timestamp": timestamp,
        "Timedelta": duration,
        "Series": series,
        "DataFrame": frame,
        "Index": lambda self, node: self.index(node["index"]),
    }


# With a dtype: pandas would make its own text of objects that are.
def _series(index, pd):
    return pd.Series(index, dtype=index.dtype)


def _index(column, pd):
    return pd.Index(column, dtype=column.dtype)


def _freq(node):
    freq = node["freq"]
    if not isinstance(freq, str) or len(freq) >= 20:
        raise Refused("a column of it has an unknown frequency")
    return freq


def _text_dtype(node, pd):
    if node["storage"] not in ("python", "pyarrow"):
        raise Refused("a column of text has an unknown type")
    options = {"na_value": float("nan")} if node["nan"] else {}
    for storage in (node["storage"], "python"):
        try:
            return pd.StringDtype(storage, **options)
        except ImportError:  # that one is for pyarrow
            continue
        except TypeError:  # pandas before 2.3, where text with NaN was of type object, or before 1.3
            return object if node["nan"] else pd.StringDtype()
    raise Refused("a column of text has an unknown type")
