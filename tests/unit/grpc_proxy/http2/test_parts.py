"""gRPC's messages and outcomes, requests, and the sending side, each by itself."""

from __future__ import annotations

import gzip

import pytest
from hypothesis import given
from hypothesis import strategies as st

from grpc_proxy.http2.errors import Http2Violation
from grpc_proxy.http2.grpc_form import Assembler, CallFault, StatusCode, framed, is_grpc, percent, timeout_ns, trailers
from grpc_proxy.http2.hpack import HeaderDecoder
from grpc_proxy.http2.limits import Http2Limits
from grpc_proxy.http2.outgoing import Http2Stream, SendingSide
from grpc_proxy.http2.requests import HeaderBlocks, check_request
from tests.unit.grpc_proxy.http2.frames_of_client import REQUEST_FIELDS, split

SIZE_MAX = 1_000


@given(st.lists(st.binary(max_size=200), max_size=6), st.lists(st.integers(0, 50), max_size=60))
def test_messages_are_put_together_however_they_come(messages, sizes):
    raw, at, found = b"".join(map(framed, messages)), 0, []
    assembler = Assembler(b"", SIZE_MAX)
    for size in [*sizes, len(raw)]:
        found += assembler.feed(raw[at : at + size])
        at += size
    assert (found, assembler.held_bytes) == (messages, 0)


@pytest.mark.parametrize(
    ("encoding", "raw", "code"),
    [
        (b"snappy", b"", StatusCode.UNIMPLEMENTED),
        (b"", b"\0" + (SIZE_MAX + 1).to_bytes(4, "big"), StatusCode.RESOURCE_EXHAUSTED),
        (b"", b"\1\0\0\0\1x", StatusCode.INTERNAL),
        (b"gzip", b"\2\0\0\0\1x", StatusCode.INTERNAL),
        (b"gzip", b"\1\0\0\0\3abc", StatusCode.INTERNAL),
        (b"gzip", b"\1" + framed(gzip.compress(b"x" * 100, mtime=0)[:-9])[1:], StatusCode.INTERNAL),
        (b"gzip", b"\1" + framed(gzip.compress(bytes(10**6), mtime=0))[1:], StatusCode.RESOURCE_EXHAUSTED),
    ],
)
def test_messages_that_are_none_end_the_call(encoding, raw, code):
    with pytest.raises(CallFault) as caught:
        Assembler(encoding, SIZE_MAX).feed(raw)
    assert caught.value.code == code


def test_compressed_and_plain_messages_follow_each_other():
    packed = gzip.compress(b"packed")
    assert Assembler(b"gzip", SIZE_MAX).feed(b"\1" + framed(packed)[1:] + framed(b"plain")) == [b"packed", b"plain"]


@pytest.mark.parametrize(
    ("text", "ns"),
    [(b"1H", 3_600 * 10**9), (b"2S", 2 * 10**9), (b"3m", 3 * 10**6), (b"99999999n", 99_999_999), (b"", None),
     (b"100000000n", None), (b"1x", None), (b"S", None), (b"-1S", None)],
)  # fmt: skip
def test_timeouts(text, ns):
    assert timeout_ns(text) == ns


@pytest.mark.parametrize(
    ("kind", "is_one"),
    [(b"application/grpc", True), (b"application/grpc+proto", True), (b"application/grpc;charset=utf-8", True),
     (b"application/grpc-web", False), (b"application/json", False), (b"", False), (b"application/grpc+json", False)],
)  # fmt: skip
def test_content_types(kind, is_one):
    assert is_grpc(kind) is is_one


def test_outcomes_are_written_in_ascii():
    assert percent("50 % für\n") == b"50 %25 f%C3%BCr%0A"
    found = HeaderDecoder().decode(trailers(StatusCode.INTERNAL, "é", alone=True), 10_000)
    assert found is not None
    assert found[0] == (b":status", b"200")
    assert found[-2:] == [(b"grpc-status", b"13"), (b"grpc-message", b"%C3%A9")]
    assert HeaderDecoder().decode(trailers(), 10_000) == [(b"grpc-status", b"0")]


def test_a_request_says_how_long_it_is():
    assert check_request(1, list(REQUEST_FIELDS)) == -1
    assert check_request(1, [*REQUEST_FIELDS, (b"content-length", b"12")]) == 12
    with pytest.raises(Http2Violation) as caught:
        check_request(7, [*REQUEST_FIELDS, (b"upgrade", b"h2c")])
    assert caught.value.stream_id == 7


def test_a_block_in_parts_is_bounded():
    blocks = HeaderBlocks(Http2Limits(continuations_max=3))
    blocks.begin(1, 0, b"a")
    assert [blocks.go_on(b"b", 0), blocks.go_on(b"c", 0), blocks.go_on(b"d", 4)] == [None, None, b"abcd"]
    assert blocks.stream_id == 0


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 40_000)), max_size=30))
def test_no_window_is_exceeded_and_nothing_is_lost(steps):
    """Data, windows of a stream and of the connection, in any order."""
    sending, stream = SendingSide(), Http2Stream(1, 65_535, 0)
    given_bytes, windows, sent = 0, [65_535, 65_535], 0
    for kind, size in steps:
        if kind == 0:
            sending.data(stream, bytes(size))
            given_bytes += size
        else:
            sending.opened(stream if kind == 1 else None, size)
            windows[kind - 1] += size
            sending.pump()
        sent += sum(len(payload) for _kind, _flags, _stream, payload in split(sending.take()))
        assert sent == min(given_bytes, *windows)
    assert sending.pending_bytes == given_bytes - sent
