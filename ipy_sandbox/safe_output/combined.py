"""Several outputs as one MIME bundle, for objects that show themselves."""

from __future__ import annotations

import re
from collections.abc import Iterable
from html import escape
from typing import Any

from .policy import OutputPolicy, SafeBundle
from .text import safe_text

_COLOUR = re.compile(r"\x1b\[[0-9;:]*m")


def combined_bundle(outputs: Iterable[str | tuple[dict[str, Any], dict[str, Any]]]) -> SafeBundle:
    """One bundle of many outputs, made safe.

    Arguments:
        outputs: texts (streams, tracebacks) and `(data, metadata)` of rich outputs, in the order to be shown.
    """
    policy = OutputPolicy()
    parts = [o if isinstance(o, str) else policy.bundle(*o) for o in outputs if o]
    if len(parts) == 1 and isinstance(parts[0], SafeBundle):
        return parts[0]
    bundles = [p for p in parts if isinstance(p, SafeBundle)]
    data = {"text/plain": "\n".join(_as_text(p).strip("\n") for p in parts)}
    for bundle in bundles:
        # A front end that knows pictures only shows the last one.
        data.update({mime: value for mime, value in bundle.data.items() if mime.startswith("image/")})
    if any(bundle.data.keys() - {"text/plain"} for bundle in bundles):
        data["text/html"] = "\n".join(_as_html(p) for p in parts)
    return SafeBundle(data, {}, [name for bundle in bundles for name in bundle.dropped])


def _as_text(part: str | SafeBundle) -> str:
    return safe_text(part) if isinstance(part, str) else str(part.data.get("text/plain", ""))


def _as_html(part: str | SafeBundle) -> str:
    if isinstance(part, SafeBundle):
        if "text/html" in part.data:
            return str(part.data["text/html"])
        for mime, value in part.data.items():
            if mime.startswith("image/"):
                return f'<img src="data:{mime};base64,{value}" style="max-width:100%">'
    return f"<pre>{escape(_COLOUR.sub('', _as_text(part)))}</pre>"
