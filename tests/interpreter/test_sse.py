"""The decoder of server-sent events, and the encoder."""

from __future__ import annotations

import itertools
import json
from collections.abc import AsyncIterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ipy_sandbox import UpstreamError
from ipy_sandbox.interpreter.sse import KEEPALIVE, ServerEvent, SSEDecoder, decode, encode


def read(*pieces: bytes) -> list[ServerEvent]:
    decoder = SSEDecoder()
    return [event for piece in pieces for event in decoder.feed(piece)] + decoder.flush()


@pytest.mark.parametrize(
    ("body", "events"),
    [
        (b"data: one\n\n", [("", "one")]),
        (b"data:one\r\n\r\ndata:  two\r\r", [("", "one"), ("", " two")]),
        (b"\xef\xbb\xbfdata: one\n\n", [("", "one")]),
        (b"event: error\ndata: a\ndata: b\n\n", [("error", "a\nb")]),
        (b"event: e\r\ndata: a\r\ndata: b\r\n\r\n", [("e", "a\nb")]),
        (b"event: a\ndata: 1\n\ndata: 2\n\n", [("a", "1"), ("", "2")]),
        (b": hello\n\ndata: 1\n: in between\n\n", [("", "1")]),
        (b"id: 7\n\n: ping\n\nretry: 9\n\nevent: lonely\n\n", []),
        (b"data\n\ndata:\n\n", [("", ""), ("", "")]),
        (b"data: [DONE]\n\n", [("", "[DONE]")]),
        (b"data: cut off", [("", "cut off")]),
        ("data: a\u2028b\u0085c\x0bd\n\n".encode(), [("", "a\u2028b\u0085c\x0bd")]),
        (b' {"a":\n 1}', [("", ' {"a":\n 1}')]),
        (b'\xef\xbb\xbf[{"error": 1}]\n', [("", '[{"error": 1}]\n')]),
        (b"<html>Bad Gateway</html>", []),
        (b"", []),
    ],
)
def test_what_a_body_says_however_it_is_cut(body: bytes, events: list[tuple[str, str]]) -> None:
    for pieces in ([body], [body[i : i + 1] for i in range(len(body))], [body[:1], body[1:]]):
        assert [(e.name, e.data) for e in read(*pieces)] == events


def test_an_event_is_there_as_soon_as_its_blank_line_is() -> None:
    decoder = SSEDecoder()
    assert decoder.feed(b"data: 1\r\n") == []
    assert decoder.feed(b"\r") == [ServerEvent("1")]
    assert decoder.feed(b"\ndata: 2\n\n") == [ServerEvent("2")]


def test_payload_is_none_for_what_is_not_json() -> None:
    done, keepalive, blank, cut, good = read(
        b'data: [DONE]\n\ndata: : keepalive\n\ndata: \n\ndata: {"a":\n\ndata: {"a": 1}\n\n'
    )
    assert (done.is_done, done.payload) == (True, None)
    assert (keepalive.payload, blank.payload, cut.payload) == (None, None, None)
    assert good.payload == {"a": 1}


def test_bytes_that_are_no_utf8_do_not_end_the_stream() -> None:
    assert read(b"data: a\xffb\n\ndata: c\n\n") == [ServerEvent("a\ufffdb"), ServerEvent("c")]


@pytest.mark.parametrize("piece", [b"x" * 100, b"data: x\n", b'{"a": '])
def test_an_endless_event_is_refused(piece: bytes) -> None:
    decoder = SSEDecoder(max_event=1000)

    def feed_for_ever() -> None:
        for _ in range(1000):
            decoder.feed(piece)

    with pytest.raises(UpstreamError, match="more than 1000 bytes"):
        feed_for_ever()


def test_many_events_are_no_endless_event() -> None:
    decoder = SSEDecoder(max_event=100)
    assert sum(len(decoder.feed(b"data: 123\n\n" * 5)) for _ in range(100)) == 500


payloads = st.dictionaries(st.text(max_size=5), st.text() | st.integers() | st.none(), max_size=3)
names = st.sampled_from([None, "response.created", "error"])


@given(st.lists(st.tuples(payloads, names), max_size=4), st.lists(st.integers(0, 1000), max_size=9))
def test_what_is_encoded_is_decoded(events: list[tuple[dict[str, object], str | None]], places: list[int]) -> None:
    body = b"".join(encode(payload, name) + KEEPALIVE for payload, name in events)
    bounds = sorted({0, len(body), *(place % (len(body) + 1) for place in places)})
    read_back = read(*(body[a:b] for a, b in itertools.pairwise(bounds)))
    assert [(e.payload, e.name or None) for e in read_back] == events


def test_the_wire_format_of_both_apis() -> None:
    assert encode({"type": "x", "sequence_number": 0}, "x") == b'event: x\ndata: {"type":"x","sequence_number":0}\n\n'
    assert encode({"text": "\u2028é"}) == b'data: {"text":"\\u2028\\u00e9"}\n\n'
    assert json.loads(encode({"half": "\ud83d"})[6:]) == {"half": "\ud83d"}


@pytest.mark.anyio
async def test_decode_reads_an_asynchronous_body() -> None:
    async def body() -> AsyncIterator[bytes]:
        yield b"data: 1\n\ndata"
        yield b": 2"

    assert [e.data async for e in decode(body())] == ["1", "2"]
