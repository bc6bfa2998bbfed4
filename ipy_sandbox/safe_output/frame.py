"""The isolated frame: scripts run in it, and reach neither the page nor any host.

Two frames, one in the other, both sandboxed into an opaque origin: no cookie, no storage, no access to the page. The
Content-Security-Policy of the outer one holds for the inner one too, and `frame-src 'none'` keeps the inner one from
navigating itself to an address that carries data away.

No policy covers WebRTC, which can carry data too. So the inner frame loses it before anything else runs, and cannot
make a fresh frame that has it: those would need `srcdoc`, which Trusted Types guard (Chromium, Safari, Firefox from
2026 on). What remains is the name look-up of a link hint; it carries data only to who runs the reader's name server.
"""

from __future__ import annotations

import base64
import gzip
import re
from collections.abc import Sequence
from html import escape, unescape

_COMPRESS_ABOVE = 100_000
_HEAD = '<!doctype html><meta charset="utf-8"><meta http-equiv="x-dns-prefetch-control" content="off">'
_LOOK = "<style>:root{color-scheme:light}body{margin:0;font:13px/1.4 system-ui,sans-serif}</style>"

# A frame sees nothing of the page but its own size. So a dark page makes the outer frame taller by this much, which
# the box around it cuts off; the outer frame takes the hint and tells the inner one.
_HINT = "20000px"
_PAGE_STYLE = (
    "<style>:is([data-jp-theme-light=false],.vscode-dark,[theme=dark]) .ipy-sandbox-frame"
    f"{{color-scheme:dark;height:calc(100% + {_HINT})!important}}</style>"
)
_OUTER_STYLE = (
    "<style>:root{color-scheme:light}body{margin:0}iframe{border:0;width:100%;height:100vh;display:block}"
    f"@media(min-height:{_HINT}){{:root{{color-scheme:dark}}iframe{{height:calc(100vh - {_HINT})}}}}</style>"
)
_OUTER_SCRIPT = f"""<script>
const dark = matchMedia("(min-height:{_HINT})"), tell = () => frames[0].postMessage({{dark: dark.matches}}, "*");
addEventListener("message", tell); dark.addEventListener("change", tell);
</script>"""

_LOCK = """<script>(async packed => {
const bind = f => Function.prototype.call.bind(f), has = bind(String.prototype.includes);
const lower = bind(String.prototype.toLowerCase), parse = bind(DOMParser.prototype.parseFromString);
for (const name of ["RTCPeerConnection", "webkitRTCPeerConnection", "XSLTProcessor"]) delete window[name];
DOMParser.prototype.parseFromString = function (text, type) {
  text = `${text}`;
  const risky = type !== "text/html" && (has(lower(text), "iframe") || has(text, "<!"));
  return parse(this, risky ? "<removed/>" : text, type);
};
const follow = () => {
  addEventListener("message", e => {
    if (e.source === parent) document.documentElement.style.colorScheme = e.data.dark ? "dark" : "light";
  });
  parent.postMessage("theme", "*");
};
let page = null;
window.trustedTypes?.createPolicy("default", {
  createHTML: (text, type, sink) => {
    sink = lower(sink);
    if (has(sink, "document write")) return text === page ? text : "";
    return has(sink, "srcdoc") || has(lower(text), "<iframe") ? "" : text;
  },
  createScript: text => text,
  createScriptURL: text => text,
});
if (!packed) return follow();
const bytes = Uint8Array.from(atob(packed), c => c.charCodeAt(0));
const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
page = await new Response(stream).text();
document.open(); document.write(page); document.close();
page = null;
follow();
})("PACKED")</script>"""


def frame(html: str, *, hosts: Sequence[str] = (), height: int | None = None) -> str:
    """`html` in a frame that cannot reach the page.

    Arguments:
        hosts: origins (`https://cdn.example.org`) that the frame may load from.
        height: pixels; None means guessed from the content. The reader can drag it larger.
    """
    html = _without_frames(html)
    page = _HEAD + _LOCK.replace("PACKED", "") + _LOOK + html
    if len(page) > _COMPRESS_ABOVE:
        packed = base64.b64encode(gzip.compress((_HEAD + _LOOK + html).encode(), mtime=0)).decode()
        page = _HEAD + _LOCK.replace("PACKED", packed)
    outer = _HEAD + _policy(hosts) + _OUTER_STYLE + _iframe(page, "") + _OUTER_SCRIPT
    box = f"resize:vertical;overflow:hidden;height:{height or guess_height(html)}px"
    look = ' class="ipy-sandbox-frame" style="width:100%;height:100%;border:0;display:block"'
    return f'{_PAGE_STYLE}<div style="{box}">{_iframe(outer, look)}</div>'


def closed_hosts(html: str, hosts: Sequence[str]) -> list[str]:
    """The origins whose scripts and style sheets `html` asks for, but may not load."""
    asked = re.findall(
        r"<(?:script|link)\b[^<>]*?\s(?:src|href)=[\"']?(https?://[\w.:-]+)(?![^>]*mathjax)", html, re.IGNORECASE
    )
    return [host for host in dict.fromkeys(asked) if host not in hosts]


def _without_frames(html: str) -> str:
    """A page that is all in one `srcdoc` (folium), taken out; other frames are no frames any more."""
    inner = re.search(r"<iframe\b[^<>]*?\ssrcdoc=\"([^\"]*)\"", html, re.IGNORECASE)
    if inner and not re.search(r"<script\b", html, re.IGNORECASE):
        html = unescape(inner[1])
    return re.sub(r"<(/?)iframe", r"<\1x-iframe", html, flags=re.IGNORECASE)


def _iframe(srcdoc: str, look: str) -> str:
    return f'<iframe sandbox="allow-scripts" referrerpolicy="no-referrer"{look} srcdoc="{escape(srcdoc)}"></iframe>'


def _policy(hosts: Sequence[str]) -> str:
    named = " ".join(h for h in hosts if re.fullmatch(r"https?://[\w.:\[\]-]+", h))
    rules = {
        "default-src": "'none'",
        "script-src": f"'unsafe-inline' 'unsafe-eval' data: blob: {named}",
        "style-src": f"'unsafe-inline' data: {named}",
        "img-src": f"data: blob: {named}",
        "font-src": f"data: {named}",
        "media-src": f"data: blob: {named}",
        # Neither data: nor blob:, which would parse documents past the lock.
        "connect-src": named or "'none'",
        "worker-src": "blob:",
        "frame-src": "'none'",
        "form-action": "'none'",
        "base-uri": "'none'",
        "require-trusted-types-for": "'script'",
        "trusted-types": "default",
    }
    content = "; ".join(f"{name} {value.strip()}" for name, value in rules.items())
    return f'<meta http-equiv="Content-Security-Policy" content="{escape(content)}">'


def _ends(html: str) -> str:
    """The markup before the first script, and what comes last: libraries in between say nothing about this page."""
    return re.split(r"<script\b", html[:200_000], maxsplit=1, flags=re.IGNORECASE)[0] + html[-100_000:]


def guess_height(html: str) -> int:
    """Pixels that `html` probably needs: what it says itself, or its table rows, or its blocks of text."""
    said = [int(n) for n in re.findall(r"height[\"']?\s*[:=]\s*[\"']?(\d{2,4})(?:px|[\"',;}\s])", _ends(html))]
    if said:
        return min(max(said) + 20, 1200)
    markup = re.sub(r"<(script|style)\b.*?</\1\s*>", "", html[:20_000], flags=re.DOTALL | re.IGNORECASE)
    blocks = len(
        re.findall(r"<(?:p|div|h\d|li|tr|br|button|summary|section|pre|input|select)\b", markup, re.IGNORECASE)
    )
    lines = blocks + len(re.sub(r"<[^>]*>", "", markup)) // 110
    drawn = re.search(r"<(?:canvas|svg|x-iframe|video|object|embed)\b", markup, re.IGNORECASE) or not lines
    return min(max(50 + 28 * lines, 300 if drawn else 80), 500)
