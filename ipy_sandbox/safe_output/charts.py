"""Plotly and Vega-Lite charts as JSON: a front end draws them in the page itself, so only plain ones pass.

Both languages can fetch (images, maps, data by URL), link and, in Vega, hold expressions that have been a way to
run scripts more than once. Hence lists of what is allowed; a chart that says more is shown by its other types.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

_TRACES = frozenset(
    """scatter scattergl bar pie histogram histogram2d histogram2dcontour box violin heatmap contour scatter3d surface
    mesh3d cone streamtube isosurface volume scatterpolar scatterpolargl barpolar scatterternary scattersmith carpet
    scattercarpet contourcarpet parcoords parcats sankey treemap sunburst icicle funnel funnelarea waterfall
    indicator candlestick ohlc table splom""".split()
)
_PLOTLY_UNSAFE_KEYS = re.compile(r"images|source|geo\d*|map\d*|mapbox\d*|.*url.*|.*token.*|.*server.*|modebar.*", re.I)
_PLOTLY_CONFIG = {"responsive", "displayModeBar", "scrollZoom", "displaylogo"}
_PLAIN_TAGS = re.compile(r"</?(b|i|u|s|em|strong|sub|sup|br|extra)\s*/?>", re.IGNORECASE)
_RISKY_TEXT = re.compile(r"<[a-z/!?]|javascript:|data:[a-z]+/", re.IGNORECASE)

_VEGA_KEYS = frozenset(
    """$schema data datasets name values format type mark encoding config width height title subtitle description view
    layer hconcat vconcat concat columns spacing resolve scale axis legend x y x2 y2 xOffset yOffset color fill stroke
    opacity fillOpacity strokeOpacity strokeWidth strokeDash size shape detail order tooltip text theta theta2 radius
    radius2 row column facet field bin maxbins step aggregate sort stack timeUnit value domain range scheme zero nice
    base exponent clamp padding paddingInner paddingOuter reverse interpolate point line filled orient grid ticks
    tickCount labels labelAngle labelFontSize titleFontSize titleColor labelColor font fontSize fontWeight angle align
    baseline dx dy cornerRadius innerRadius outerRadius padAngle band bandPosition bandwidth extent thickness background
    continuousWidth continuousHeight discreteWidth discreteHeight anchor offset content fit contains autosize op as
    groupby fields transform fold pivot window frame density regression method params select encodings""".split()
)
_VEGA_NAMES = {"field", "fields", "as", "groupby", "name", "sort"}
_VEGA_RISKY = re.compile(r"https?:|//|javascript:|data:|[<>\\`]", re.IGNORECASE)


def plain_plotly(figure: Any) -> bool:
    """Whether a figure only has traces that draw numbers, and texts without links or markup of their own."""
    if not isinstance(figure, dict) or not figure.keys() <= {"data", "layout", "config"}:
        return False
    traces, config = figure.get("data"), figure.get("config") or {}
    if not isinstance(traces, list) or not isinstance(config, dict) or not config.keys() <= _PLOTLY_CONFIG:
        return False
    kinds = [t.get("type", "scatter") if isinstance(t, dict) else None for t in traces]
    if not all(isinstance(kind, str) and kind in _TRACES for kind in kinds):
        return False
    layout = _without_unused_maps(figure.get("layout"))
    return not any(_plotly_refuses(key, value) for key, value in _walk({"data": traces, "layout": layout}))


def _without_unused_maps(layout: Any) -> Any:
    """Templates style maps too; without a trace on one, none is drawn."""
    match layout:
        case {"template": {"layout": dict(styles)} as template}:
            styles = {key: value for key, value in styles.items() if key not in ("geo", "map", "mapbox")}
            return {**layout, "template": {**template, "layout": styles}}
    return layout


def _plotly_refuses(key: str, value: Any) -> bool:
    if isinstance(value, str):
        return bool(_RISKY_TEXT.search(_PLAIN_TAGS.sub("", value)))
    return bool(_PLOTLY_UNSAFE_KEYS.fullmatch(key)) and not _is_numbers(value)


def _is_numbers(value: Any) -> bool:
    if isinstance(value, dict):
        return value.keys() <= {"dtype", "bdata", "shape"}
    return isinstance(value, (int, float)) or (
        isinstance(value, list) and all(isinstance(v, (int, float)) for v in value)
    )


def altair_chart(html: str) -> dict[str, Any] | None:
    """The Vega-Lite chart in the HTML that altair shows by default, which draws with scripts from a public host."""
    if "altair-viz-" not in html[:2000] or (call := re.search(r"\}\)\(\s*(?=\{)", html)) is None:
        return None
    try:
        chart, _ = json.JSONDecoder().raw_decode(html, call.end())
    except (ValueError, RecursionError):
        return None
    return chart if plain_vega(chart) else None


def plain_vega(chart: Any) -> bool:
    """Whether a Vega-Lite chart holds its data itself and uses no expression, selection, link or address."""
    if not isinstance(chart, dict):
        return False
    schema = chart.get("$schema", "")
    if not re.fullmatch(r"https://vega\.github\.io/schema/vega-lite/v[\d.]+\.json", str(schema)):
        return False
    spec = {key: value for key, value in chart.items() if key not in ("$schema", "datasets")}
    rows = chart.get("datasets", {})
    return isinstance(rows, dict) and all(_vega_allows(key, value) for key, value in _walk(spec, rows="values"))


def _vega_allows(key: str, value: Any) -> bool:
    if key == "bind":
        return bool(value == "scales")
    if key in _VEGA_NAMES and isinstance(value, str) and re.search(r"['\"\[\]()]", value):
        return False
    return key in _VEGA_KEYS and not (isinstance(value, str) and _VEGA_RISKY.search(value))


def _walk(node: Any, key: str = "data", rows: str = "") -> Iterator[tuple[str, Any]]:
    """All (key, value) pairs below `node`, but for the `rows` of a `data`; the items of a list have its key."""
    stack = [(key, node)]
    while stack:
        key, node = stack.pop()
        yield key, node
        if isinstance(node, dict):
            stack += [(str(k), v) for k, v in node.items() if not (key == "data" and k == rows)]
        elif isinstance(node, list):
            stack += [(key, v) for v in node]
