"""The policy: what becomes of each MIME type of a sandbox's output.

=============================== ====================================================================================
`text/plain`                    control sequences removed, colours kept; always there, made up if missing
`text/html`                     sanitised inline; in an isolated frame if it needs scripts, own styles or drawings
`text/markdown`                 rendered here and sanitised, shown as `text/html`
`text/latex`                    without commands that link, fetch, style or define
`image/png`, `jpeg`, `gif`,     shown if the data is base64 and begins as such a file does
`webp`
`image/svg+xml`                 shown as an `<img>`, where scripts do not run and nothing is fetched
`application/json`              shown if it is JSON
`application/vnd.plotly.v1+json` shown if it is a plain figure: no maps, links, remote images or HTML
`application/vnd.vega*+json`    shown if it is a plain chart: no URLs, expressions or signals
`application/javascript`        never
anything else                   left out and named
=============================== ====================================================================================

Metadata: only numbers for an image's width and height, and flags that change looks.
A type over the size limit is left out and named; a `text/plain` over it is cut in the middle.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..surrogates import encodable
from .charts import altair_chart, plain_plotly, plain_vega
from .frame import closed_hosts
from .html import safe_html, text_of
from .images import checked_image, is_image_type
from .latex import safe_latex
from .markdown import safe_markdown
from .plotly import PlotlyLibrary
from .text import safe_text

LIMIT = 20_000_000
"""Characters that one type of an output may have."""
TEXT_LIMIT = 1_000_000
"""Characters of `text/plain`; of more, the middle is left out."""
TYPES = 30
"""Types of one output that are looked at."""


@dataclass(frozen=True, slots=True)
class SafeBundle:
    """What may be published; `dropped` names the types left out, with the reason where it is not the type itself."""

    data: dict[str, Any]
    metadata: dict[str, Any] = field(default_factory=dict)
    dropped: list[str] = field(default_factory=list)


class OutputPolicy:
    """Applies the policy to the outputs of one session.

    Arguments:
        trusted: publish everything as it comes; the reader's own choice, said aloud by whoever offers it.
        hosts: origins that isolated frames may load from.
        limit: characters that one type of an output may have.
    """

    def __init__(self, *, trusted: bool = False, hosts: Sequence[str] = (), limit: int = LIMIT) -> None:
        self.trusted = trusted
        self.hosts = tuple(hosts)
        self.limit = limit
        self._plotly = PlotlyLibrary()

    def bundle(self, data: Mapping[str, Any], metadata: Mapping[str, Any] | None = None) -> SafeBundle:
        """The part of a MIME bundle that may be published, in its safe form."""
        if self.trusted:
            return SafeBundle(dict(data), dict(metadata or {}))
        shown: dict[str, Any] = {}
        dropped: list[str] = []
        # What the sandbox calls HTML comes before what is turned into HTML here.
        types = sorted(data, key=lambda m: m != "text/html")
        if len(types) > TYPES:
            dropped.append(f"{len(types) - TYPES} more types")
        for mime in types[:TYPES]:
            value = _joined(data[mime]) if mime.startswith(("text/", "image/")) else data[mime]
            try:
                made = self._html(value, dropped) if mime == "text/html" else self._show(mime, value)
            except _Refused as reason:
                dropped.append(f"{mime[:100]} ({reason})" if str(reason) else mime[:100])
            else:
                shown = made | shown
        if (shown or dropped) and _OBJECT.fullmatch(str(shown.get("text/plain", "<o object>"))):
            shown["text/plain"] = _description(data, shown, dropped)
        return SafeBundle(shown, _safe_metadata(metadata or {}, shown), dropped)

    def _html(self, value: Any, dropped: list[str]) -> dict[str, Any]:
        html = self._within_limit(value)
        if not isinstance(html, str):
            raise _Refused
        if (chart := altair_chart(html)) is not None:
            return {"application/vnd.vegalite.v5+json": chart}
        whole = self._plotly.complete(html)
        if html and not whole:
            return {}
        dropped += [
            f"scripts from {host} (closed: %config SandboxMagics.frame_hosts opens it)"
            for host in closed_hosts(html, self.hosts)[:TYPES]
        ]
        return {"text/html": safe_html(whole, hosts=self.hosts)}

    def _within_limit(self, value: Any) -> Any:
        value = encodable(value) if isinstance(value, str) else _encodable_json(value)
        size = len(value) if isinstance(value, str) else len(json.dumps(value))
        if size > self.limit:
            raise _Refused(f"{_megabytes(size)}, over the limit of {_megabytes(self.limit)}: --result NAME keeps it")
        return value

    def _show(self, mime: str, value: Any) -> dict[str, Any]:
        if mime == "text/plain":
            return {mime: _cut(safe_text(str(value)))}
        value = self._within_limit(value)
        if mime in _CHARTS:
            return _checked(mime, value, _CHARTS[mime])
        if mime == "application/json":
            return {mime: value}
        if not isinstance(value, str):
            raise _Refused
        match mime:
            case "text/markdown":
                return {"text/html": safe_markdown(_cut(value))}
            case "text/latex":
                return {mime: safe_latex(value)}
            case "image/svg+xml":
                return {"text/html": _svg(value)}
            case _ if is_image_type(mime):
                try:
                    return {mime: checked_image(mime, value)}
                except ValueError as error:
                    raise _Refused(str(error)) from None
        raise _Refused


def safe_bundle(
    data: Mapping[str, Any],
    metadata: Mapping[str, Any] | None = None,
    *,
    trusted: bool = False,
    hosts: Sequence[str] = (),
    limit: int = LIMIT,
) -> SafeBundle:
    """The part of one MIME bundle that may be published, in its safe form; see `OutputPolicy`."""
    return OutputPolicy(trusted=trusted, hosts=hosts, limit=limit).bundle(data, metadata)


class _Refused(Exception):
    """This type of this output is not shown; the text says why, where it is not the type itself."""


_OBJECT = re.compile(r"<[\w.]+ object( at 0x[0-9a-f]+)?>")
_CHARTS: dict[str, Callable[[Any], bool]] = {
    "application/vnd.plotly.v1+json": plain_plotly,
    **{f"application/vnd.vegalite.v{n}+json": plain_vega for n in range(2, 7)},
}


def _joined(value: Any) -> Any:
    """Text, which the notebook format allows as a list of lines too."""
    return "".join(str(line) for line in value) if isinstance(value, list) else value


def _checked(mime: str, value: Any, plain: Callable[[Any], bool]) -> dict[str, Any]:
    if not plain(value):
        raise _Refused("not a plain chart")
    return {mime: value}


def _svg(source: str) -> str:
    encoded = base64.b64encode(source.encode(errors="replace")).decode()
    return f'<img src="data:image/svg+xml;base64,{encoded}" style="max-width:100%">'


def _encodable_json(value: Any) -> Any:
    try:
        return json.loads(encodable(json.dumps(value, allow_nan=False, ensure_ascii=False)))
    except (TypeError, ValueError, RecursionError):
        raise _Refused("not JSON") from None


def _cut(text: str) -> str:
    if len(text) <= TEXT_LIMIT:
        return text
    half = TEXT_LIMIT // 2
    return f"{text[:half]}\n[... {len(text) - TEXT_LIMIT:,} characters left out ...]\n{text[-half:]}"


def _megabytes(size: int) -> str:
    return f"{size / 1e6:.1f} MB" if size >= 100_000 else f"{size / 1e3:.1f} kB"


def _description(data: Mapping[str, Any], shown: Mapping[str, Any], dropped: Sequence[str]) -> str:
    """The `text/plain` of an output that came without one, or with one that only names a class."""
    for mime in ("text/markdown", "text/latex"):
        if mime in data and mime not in dropped:
            return _cut(safe_text(str(_joined(data[mime]))))
    if "image/svg+xml" not in data and (text := text_of(str(shown.get("text/html", "")))):
        return _cut(safe_text(text))
    if shown.keys() - {"text/plain"}:
        return f"[{', '.join(shown.keys() - {'text/plain'})}]"
    return str(shown.get("text/plain") or f"[Not shown: {', '.join(dropped)}]")


def _safe_metadata(metadata: Mapping[str, Any], shown: Mapping[str, Any]) -> dict[str, Any]:
    safe = {}
    for mime in shown.keys() & metadata.keys():
        given = metadata[mime]
        looks = {k: v for k, v in given.items() if _is_look(k, v)} if isinstance(given, Mapping) else {}
        if looks:
            safe[mime] = looks
    return safe


def _is_look(key: str, value: Any) -> bool:
    if key in ("width", "height"):
        return isinstance(value, (int, float)) and 0 < value < 20_000
    return (key in ("expanded", "unconfined") and isinstance(value, bool)) or (
        key == "needs_background" and value in ("light", "dark")
    )
