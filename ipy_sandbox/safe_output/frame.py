"""The isolated frame: scripts run in it, and reach neither the page nor any host.

Two frames, one in the other. Both are sandboxed into an opaque origin: no cookie, no storage, no access to the page.
The Content-Security-Policy of the outer one holds for the inner one too, and `frame-src 'none'` keeps the inner one
from navigating itself to an address that carries data away.
"""

from __future__ import annotations

import base64
import gzip
import re
from collections.abc import Sequence
from html import escape

_SANDBOX = "allow-scripts"
_COMPRESS_ABOVE = 100_000
_HEAD = '<!doctype html><meta charset="utf-8"><meta http-equiv="x-dns-prefetch-control" content="off">'
_LOOK = "<style>:root{color-scheme:light dark}body{margin:0;font:13px/1.4 system-ui,sans-serif}</style>"
_FILL = (
    "<style>:root{color-scheme:light dark}body{margin:0}iframe{border:0;width:100%;height:100vh;display:block}</style>"
)
_UNPACK = (
    '<script>(async()=>{const b=Uint8Array.from(atob("%s"),c=>c.charCodeAt(0));'
    'const s=new Blob([b]).stream().pipeThrough(new DecompressionStream("gzip"));'
    "const t=await new Response(s).text();document.open();document.write(t);document.close()})()</script>"
)


def frame(html: str, *, hosts: Sequence[str] = (), height: int | None = None) -> str:
    """`html` in a frame that cannot reach the page, `height` pixels high (None: guessed) and resizable."""
    page = _HEAD + _LOOK + html
    if len(page) > _COMPRESS_ABOVE:
        page = _HEAD + _UNPACK % base64.b64encode(gzip.compress(page.encode(errors="replace"), mtime=0)).decode()
    outer = _HEAD + _policy(hosts) + _FILL + _iframe(page, "")
    style = "width:100%;height:100%;border:0;display:block"
    box = f"resize:vertical;overflow:hidden;height:{height or guess_height(html)}px"
    return f'<div style="{box}">{_iframe(outer, style)}</div>'


def _iframe(srcdoc: str, style: str) -> str:
    style = f' style="{style}"' if style else ""
    return f'<iframe sandbox="{_SANDBOX}" referrerpolicy="no-referrer"{style} srcdoc="{escape(srcdoc)}"></iframe>'


def _policy(hosts: Sequence[str]) -> str:
    named = " ".join(h for h in hosts if re.fullmatch(r"https?://[\w.:\[\]-]+", h))
    rules = {
        "default-src": "'none'",
        "script-src": f"'unsafe-inline' 'unsafe-eval' data: blob: {named}",
        "style-src": f"'unsafe-inline' data: {named}",
        "img-src": f"data: blob: {named}",
        "font-src": f"data: {named}",
        "media-src": f"data: blob: {named}",
        "connect-src": f"data: blob: {named}",
        "worker-src": "blob:",
        "frame-src": "'none'",
        "form-action": "'none'",
        "base-uri": "'none'",
    }
    content = "; ".join(f"{name} {value.strip()}" for name, value in rules.items())
    return f'<meta http-equiv="Content-Security-Policy" content="{escape(content)}">'


def guess_height(html: str) -> int:
    """Pixels that `html` probably needs: what it says itself, its table rows, or a common size."""
    said = [int(n) for n in re.findall(r"height[\"']?\s*[:=]\s*[\"']?(\d{2,4})(?:px|[\"',;}\s])", html[-200_000:])]
    if said:
        return min(max(said) + 20, 1200)
    rows = html.count("<tr")
    return min(30 * rows + 40, 500) if rows else 400
