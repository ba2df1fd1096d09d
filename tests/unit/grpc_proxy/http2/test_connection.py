"""HTTP/2 connections by clauses of RFC 9113, with frames cut anywhere, and with frames that no client sends."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grpc_proxy.http2.connection import DATA, DRAINED, REQUEST, RESET, Http2Connection
from grpc_proxy.http2.errors import ErrorCode
from grpc_proxy.http2.frames import ACK, END_HEADERS, END_STREAM, PADDED, PREFACE, PRIORITISED, Kind, SettingName
from grpc_proxy.http2.hpack import block
from grpc_proxy.http2.limits import AddressBudget, Http2Limits
from tests.unit.grpc_proxy.http2.frames_of_client import (
    HELLO,
    REQUEST_FIELDS,
    data,
    frame,
    headers,
    number,
    split,
)

BLOCK, END = block(((b":status", b"200"),)), block(((b"grpc-status", b"0"),))


def greeted(**limits: int) -> Http2Connection:
    made = Http2Connection(Http2Limits(**limits))
    assert made.receive(HELLO) == []
    made.take()
    return made


def kinds(events: Any) -> list[tuple[int, int]]:
    return [(event, stream.stream_id) for event, stream, _what, _last in events]


def opened(connection: Http2Connection, stream_id: int = 1) -> Any:
    ((event, stream, _fields, _last),) = connection.receive(headers(stream_id))
    assert event == REQUEST
    return stream


def test_the_server_begins_with_its_settings():
    sent = split(Http2Connection(Http2Limits()).take())
    assert [(kind, stream) for kind, _flags, stream, _payload in sent] == [(Kind.SETTINGS, 0), (Kind.WINDOW_UPDATE, 0)]


def test_a_request_and_its_answer():
    connection = greeted()
    events = connection.receive(headers(1) + data(1, b"abc", end=True))
    assert [(event, what, last) for event, _stream, what, last in events] == [
        (REQUEST, list(REQUEST_FIELDS), False),
        (DATA, b"abc", True),
    ]
    connection.answer(events[0][1], BLOCK, b"xyz", END)
    assert split(connection.take()) == [
        (Kind.HEADERS, END_HEADERS, 1, BLOCK),
        (Kind.DATA, 0, 1, b"xyz"),
        (Kind.HEADERS, END_HEADERS | END_STREAM, 1, END),
    ]
    assert connection.streams == {}


def test_an_answer_before_the_end_of_its_request_ends_both():
    """Section 8.1: the rest of the request is not wanted; what is on its way is ignored."""
    connection = greeted()
    stream = opened(connection)
    connection.finish(stream, END)
    assert split(connection.take())[-1] == (Kind.RST_STREAM, 0, 1, number(ErrorCode.NO_ERROR))
    assert connection.receive(data(1, b"late") + headers(1, ((b"x", b"y"),), END_HEADERS | END_STREAM)) == []
    assert connection.failure is None


@settings(max_examples=60)
@given(st.lists(st.integers(1, 60), max_size=40), st.integers(0, 5))
def test_frames_mean_the_same_however_they_are_cut(sizes, padding):
    padded = frame(Kind.DATA, PADDED | END_STREAM, 3, bytes((padding,)) + b"defg" + bytes(padding))
    raw = HELLO + headers(1) + headers(3) + data(1, b"abc", end=True) + padded
    raw += frame(Kind.PING, 0, 0, b"12345678") + frame(0x77, 1, 5, b"unknown") + frame(Kind.PRIORITY, 0, 9, b"12345")
    connection, events, at = Http2Connection(Http2Limits()), [], 0
    for size in [*sizes, len(raw)]:
        events += connection.receive(raw[at : at + size])
        at += size
    assert connection.failure is None
    assert kinds(events) == [(REQUEST, 1), (REQUEST, 3), (DATA, 1), (DATA, 3)]
    assert [what for _event, _stream, what, _last in events][2:] == [b"abc", b"defg"]
    assert (Kind.PING, ACK, 0, b"12345678") in split(connection.take())


CONNECTION_FAULTS: list[tuple[str, bytes, ErrorCode]] = [
    ("4.2 size", b"\x00\x40\x01\x00\x00\x00\x00\x00\x01", ErrorCode.FRAME_SIZE_ERROR),
    ("4.3 compression", frame(Kind.HEADERS, END_HEADERS, 1, b"\xff" * 7), ErrorCode.COMPRESSION_ERROR),
    ("5.1 idle data", data(1, b"x"), ErrorCode.PROTOCOL_ERROR),
    ("5.1 idle reset", frame(Kind.RST_STREAM, 0, 1, number(8)), ErrorCode.PROTOCOL_ERROR),
    ("5.1 idle window", frame(Kind.WINDOW_UPDATE, 0, 1, number(1)), ErrorCode.PROTOCOL_ERROR),
    ("5.1 closed", headers(1) + frame(Kind.RST_STREAM, 0, 1, number(8)) + data(1, b"x"), ErrorCode.STREAM_CLOSED),
    ("5.1.1 even", headers(2), ErrorCode.PROTOCOL_ERROR),
    ("5.1.1 older", headers(5) + headers(3), ErrorCode.STREAM_CLOSED),
    ("6.1 no stream", data(0, b"x"), ErrorCode.PROTOCOL_ERROR),
    ("6.1 padding", headers(1) + frame(Kind.DATA, PADDED, 1, b"\x05abc"), ErrorCode.PROTOCOL_ERROR),
    ("6.2 priority", frame(Kind.HEADERS, END_HEADERS | PRIORITISED, 1, b"abc"), ErrorCode.FRAME_SIZE_ERROR),
    ("6.3 no stream", frame(Kind.PRIORITY, 0, 0, b"12345"), ErrorCode.PROTOCOL_ERROR),
    ("6.4 size", headers(1) + frame(Kind.RST_STREAM, 0, 1, b"123"), ErrorCode.FRAME_SIZE_ERROR),
    ("6.5 stream", frame(Kind.SETTINGS, 0, 1), ErrorCode.PROTOCOL_ERROR),
    ("6.5 size", frame(Kind.SETTINGS, 0, 0, b"12345"), ErrorCode.FRAME_SIZE_ERROR),
    ("6.5 acknowledged", frame(Kind.SETTINGS, ACK, 0, b"123456"), ErrorCode.FRAME_SIZE_ERROR),
    ("6.5.2 push", frame(Kind.SETTINGS, 0, 0, b"\0\2" + number(2)), ErrorCode.PROTOCOL_ERROR),
    ("6.5.2 window", frame(Kind.SETTINGS, 0, 0, b"\0\4" + number(2**31)), ErrorCode.FLOW_CONTROL_ERROR),
    ("6.5.2 frame", frame(Kind.SETTINGS, 0, 0, b"\0\5" + number(16_383)), ErrorCode.PROTOCOL_ERROR),
    ("6.6 push", frame(Kind.PUSH_PROMISE, 0, 1, b"1234"), ErrorCode.PROTOCOL_ERROR),
    ("6.7 size", frame(Kind.PING, 0, 0, b"123"), ErrorCode.FRAME_SIZE_ERROR),
    ("6.7 stream", frame(Kind.PING, 0, 1, b"12345678"), ErrorCode.PROTOCOL_ERROR),
    ("6.8 stream", frame(Kind.GOAWAY, 0, 1, b"12345678"), ErrorCode.PROTOCOL_ERROR),
    ("6.9 size", frame(Kind.WINDOW_UPDATE, 0, 0, b"123"), ErrorCode.FRAME_SIZE_ERROR),
    ("6.9 nothing", frame(Kind.WINDOW_UPDATE, 0, 0, number(0)), ErrorCode.PROTOCOL_ERROR),
    ("6.9.1 overflow", frame(Kind.WINDOW_UPDATE, 0, 0, number(2**31 - 1)), ErrorCode.FLOW_CONTROL_ERROR),
    ("6.10 alone", frame(Kind.CONTINUATION, END_HEADERS, 1, b""), ErrorCode.PROTOCOL_ERROR),
    ("6.10 between", headers(1, flags=0) + frame(Kind.PING, 0, 0, b"12345678"), ErrorCode.PROTOCOL_ERROR),
    ("6.10 other", headers(1, flags=0) + frame(Kind.CONTINUATION, 0, 3, b""), ErrorCode.PROTOCOL_ERROR),
]  # fmt: skip


@pytest.mark.parametrize(("clause", "raw", "code"), CONNECTION_FAULTS, ids=[each[0] for each in CONNECTION_FAULTS])
def test_faults_of_a_connection_end_it_with_their_code(clause, raw, code):
    connection = greeted()
    connection.receive(raw)
    assert connection.failure is not None
    assert connection.failure.code == code
    kind, _flags, _stream, payload = split(connection.take())[-1]
    assert (kind, payload[4:8]) == (Kind.GOAWAY, number(code))
    assert connection.receive(headers(7)) == []


def announced(length: bytes) -> bytes:
    return headers(1, (*REQUEST_FIELDS, (b"content-length", length)))


WITHOUT = [[field for field in REQUEST_FIELDS if field[0] != name] for name in (b":method", b":scheme", b":path")]
STREAM_FAULTS: list[tuple[str, bytes, ErrorCode]] = [
    ("5.1 half-closed", headers(1, flags=END_HEADERS | END_STREAM) + data(1, b"x"), ErrorCode.STREAM_CLOSED),
    ("6.3 size", headers(1) + frame(Kind.PRIORITY, 0, 1, b"123"), ErrorCode.FRAME_SIZE_ERROR),
    ("6.9 nothing", headers(1) + frame(Kind.WINDOW_UPDATE, 0, 1, number(0)), ErrorCode.PROTOCOL_ERROR),
    ("6.9.1 overflow", headers(1) + frame(Kind.WINDOW_UPDATE, 0, 1, number(2**31 - 1)), ErrorCode.FLOW_CONTROL_ERROR),
    ("8.1 trailers", headers(1) + headers(1, ((b"x", b"y"),)), ErrorCode.PROTOCOL_ERROR),
    ("8.1.1 longer", announced(b"2") + data(1, b"abc"), ErrorCode.PROTOCOL_ERROR),
    ("8.1.1 shorter", announced(b"9") + data(1, b"abc", end=True), ErrorCode.PROTOCOL_ERROR),
    ("8.1.1 number", announced(b"x"), ErrorCode.PROTOCOL_ERROR),
    ("8.2.2 connection", headers(1, (*REQUEST_FIELDS, (b"connection", b"close"))), ErrorCode.PROTOCOL_ERROR),
    ("8.2.2 te", headers(1, (*REQUEST_FIELDS, (b"te", b"gzip"))), ErrorCode.PROTOCOL_ERROR),
    ("8.3 behind", headers(1, (*REQUEST_FIELDS, (b":path", b"/"))), ErrorCode.PROTOCOL_ERROR),
    ("8.3.1 path", headers(1, ((b":path", b""), *WITHOUT[2])), ErrorCode.PROTOCOL_ERROR),
    ("8.3 twice", headers(1, (REQUEST_FIELDS[0], *REQUEST_FIELDS)), ErrorCode.PROTOCOL_ERROR),
    ("8.3 unknown", headers(1, ((b":what", b"x"), *REQUEST_FIELDS)), ErrorCode.PROTOCOL_ERROR),
    *((f"8.3.1 missing {at}", headers(1, fields), ErrorCode.PROTOCOL_ERROR) for at, fields in enumerate(WITHOUT)),
]  # fmt: skip


@pytest.mark.parametrize(("clause", "raw", "code"), STREAM_FAULTS, ids=[each[0] for each in STREAM_FAULTS])
def test_faults_of_a_stream_end_it_alone(clause, raw, code):
    connection = greeted()
    events = connection.receive(raw)
    assert (Kind.RST_STREAM, 0, 1, number(code)) in split(connection.take())
    assert connection.failure is None
    assert all(event in (REQUEST, DATA, RESET) for event, _stream in kinds(events))
    assert kinds(connection.receive(headers(3))) == [(REQUEST, 3)]


@pytest.mark.parametrize("raw", [b"GET / HTTP/1.1\r\n", b"\x16\x03\x01", PREFACE[:-1] + b"x", PREFACE + headers(1)])
def test_what_is_not_http_2_is_refused(raw):
    connection = Http2Connection(Http2Limits())
    connection.receive(raw)
    assert connection.failure is not None
    assert not connection.is_greeted


def test_continuation_goes_on_with_a_block():
    connection = greeted()
    whole = block(REQUEST_FIELDS)
    raw = frame(Kind.HEADERS, 0, 1, whole[:3]) + frame(Kind.CONTINUATION, 0, 1, whole[3:9])
    assert connection.receive(raw) == []
    ((_event, _stream, fields, last),) = connection.receive(frame(Kind.CONTINUATION, END_HEADERS, 1, whole[9:]))
    assert (fields, last) == (list(REQUEST_FIELDS), False)


def flood(name: str) -> tuple[bytes, dict[str, int]]:
    """Bytes beyond one bound, and the bound."""
    limits = {"control_frames_max": 20, "resets_max": 10, "continuations_max": 4, "header_list_bytes_max": 1_024}
    raw = {
        "ping": frame(Kind.PING, 0, 0, b"12345678") * 21,
        "settings": frame(Kind.SETTINGS, 0, 0) * 21,
        "empty data": headers(1) + data(1, b"") * 21,
        "priority": frame(Kind.PRIORITY, 0, 1, b"12345") * 21,
        "unknown": frame(0x55, 0, 0, b"x") * 21,
        "rapid reset": b"".join(headers(n) + frame(Kind.RST_STREAM, 0, n, number(8)) for n in range(1, 24, 2)),
        "refused": b"".join(headers(n, ((b"a", b"b"),)) for n in range(1, 24, 2)),
        "continuation": headers(1, flags=0) + frame(Kind.CONTINUATION, 0, 1, b"") * 5,
        "block": headers(1, flags=0) + frame(Kind.CONTINUATION, 0, 1, bytes(10_000)) * 3,
    }  # fmt: skip
    return raw[name], limits


@pytest.mark.parametrize(
    "name",
    ["ping", "settings", "empty data", "priority", "unknown", "rapid reset", "refused", "continuation", "block"],
)
def test_floods_end_the_connection(name):
    raw, limits = flood(name)
    connection = greeted(**limits)
    connection.receive(raw)
    assert connection.failure is not None
    assert connection.failure.code == ErrorCode.ENHANCE_YOUR_CALM
    assert "max is reached" in connection.failure.reason


def test_a_budget_lasts_for_a_period_and_work_earns_more():
    connection = greeted(control_frames_max=20)
    pings = frame(Kind.PING, 0, 0, b"12345678") * 15
    for refill in (connection.refill, lambda: connection.begin(opened(connection), BLOCK)):
        connection.receive(pings)
        refill()
        connection.receive(pings)
        connection.refill()
    assert connection.failure is None


def test_many_connections_of_an_address_have_the_budget_of_a_few():
    """What one gives up now and then is spared; another address is not charged, and a period is a new beginning."""
    limits = Http2Limits(resets_max=100, budgets_per_address=2)
    address = AddressBudget(limits)
    resets = b"".join(headers(n) + frame(Kind.RST_STREAM, 0, n, number(8)) for n in range(1, 161, 2))
    made = [greeted(resets_max=100) for _ in range(10)]
    for connection in made:
        connection.share(address)
        connection.receive(resets)
    assert [connection.failure is None for connection in made] == [True] * 2 + [False] * 8
    assert made[9].failure.reason == "resets_max of the address is reached"
    spared, other = greeted(resets_max=100), greeted(resets_max=100)
    spared.share(address)
    spared.receive(resets[: len(resets) // 10])
    other.share(AddressBudget(limits))
    other.receive(resets)
    assert (spared.failure, other.failure) == (None, None)
    address.refill()
    spared.refill()
    spared.receive(resets[len(resets) // 10 :])
    assert spared.failure is None


def test_streams_beyond_the_limit_are_refused():
    """Section 5.1.2; the header table goes on."""
    connection = greeted(streams_max=2)
    events = connection.receive(headers(1) + headers(3) + headers(5))
    assert kinds(events) == [(REQUEST, 1), (REQUEST, 3)]
    assert (Kind.RST_STREAM, 0, 5, number(ErrorCode.REFUSED_STREAM)) in split(connection.take())


def test_a_list_that_is_too_large_arrives_as_none():
    connection = greeted(header_list_bytes_max=1_024)
    ((event, _stream, fields, _last),) = connection.receive(headers(1, (*REQUEST_FIELDS, (b"x", b"y" * 2_000))))
    assert (event, fields) == (REQUEST, None)


def test_data_waits_for_the_windows_of_the_peer():
    """Section 6.9: both windows hold, trailers come behind the data, small answers overtake large ones."""
    connection = greeted()
    large, small = opened(connection, 1), opened(connection, 3)
    connection.answer(large, BLOCK, b"x" * 100_000, END)
    first = split(connection.take())
    assert sum(len(payload) for kind, _f, _s, payload in first if kind == Kind.DATA) == 65_535, "all that may go goes"
    connection.receive(frame(Kind.WINDOW_UPDATE, 0, 1, number(1_000_000)))
    assert connection.take() == b"", "the connection's window is still closed"
    connection.answer(small, BLOCK, b"y" * 10, END)
    connection.receive(frame(Kind.WINDOW_UPDATE, 0, 0, number(1_000_000)))
    rest = split(connection.take())
    order = [(stream, kind) for kind, _f, stream, _p in rest if kind != Kind.RST_STREAM]
    assert order.index((3, Kind.DATA)) < max(at for at, each in enumerate(order) if each == (1, Kind.DATA))
    assert sum(len(p) for k, _f, s, p in first + rest if (k, s) == (Kind.DATA, 1)) == 100_000
    assert order[-1] == (1, Kind.HEADERS)
    assert connection.streams == {}


def test_settings_change_the_windows_of_open_streams():
    """Section 6.9.2: also to less than nothing."""
    connection = greeted()
    stream = opened(connection)
    connection.receive(frame(Kind.SETTINGS, 0, 0, b"\0\4" + number(0)))
    connection.begin(stream, BLOCK)
    connection.send(stream, b"abc")
    assert stream.pending_bytes == 3
    events = connection.receive(frame(Kind.SETTINGS, 0, 0, b"\0\4" + number(10)))
    assert kinds(events) == [(DRAINED, 1)]
    assert (Kind.DATA, 0, 1, b"abc") in split(connection.take())


def test_a_smaller_header_table_is_acknowledged_in_the_next_block():
    """Section 4.3.1."""
    connection = greeted()
    stream = opened(connection)
    connection.receive(frame(Kind.SETTINGS, 0, 0, bytes((0, SettingName.HEADER_TABLE_SIZE)) + number(0)))
    connection.begin(stream, BLOCK)
    assert split(connection.take())[-1] == (Kind.HEADERS, END_HEADERS, 1, b"\x20" + BLOCK)


def test_a_peer_beyond_its_windows_is_refused():
    connection = greeted(window_bytes=65_535, connection_window_bytes=200_000)
    events = connection.receive(headers(1) + data(1, bytes(16_384)) * 4)
    assert (RESET, 1) in kinds(events)
    assert connection.failure is None
    greedy = greeted(window_bytes=10**6, connection_window_bytes=65_535)
    greedy.receive(headers(1) + data(1, bytes(16_384)) * 4)
    assert greedy.failure is not None
    assert greedy.failure.code == ErrorCode.FLOW_CONTROL_ERROR


def test_windows_grow_as_data_is_consumed():
    connection = greeted(window_bytes=65_535, connection_window_bytes=65_535)
    stream = opened(connection)
    for _ in range(50):
        connection.receive(data(1, bytes(16_000)))
        connection.consumed(stream, 16_000)
    assert connection.failure is None
    assert {s for k, _f, s, _p in split(connection.take()) if k == Kind.WINDOW_UPDATE} == {0, 1}


def test_after_goaway_nothing_new_is_served():
    """Section 6.8: what was opened before is; what the peer may try elsewhere is not."""
    connection = greeted()
    stream = opened(connection)
    connection.go_away()
    assert connection.receive(headers(3)) == []
    connection.answer(stream, BLOCK, b"x", END)
    sent = split(connection.take())
    assert (Kind.RST_STREAM, 0, 3, number(ErrorCode.REFUSED_STREAM)) in sent
    assert (Kind.DATA, 0, 1, b"x") in sent


FRAMES = st.builds(
    frame,
    st.integers(0, 11),
    st.integers(0, 255),
    st.sampled_from([0, 1, 2, 3, 5, 7, 2**31 - 1]),
    st.binary(max_size=40),
)
GOOD = st.sampled_from([headers(1), headers(3), headers(5, flags=5), data(1, b"abc"), data(3, b"d", end=True)])


@settings(max_examples=300)
@given(st.lists(FRAMES | GOOD | st.binary(max_size=30), max_size=30))
def test_nothing_that_comes_raises_or_stays(parts):
    """Frames of every kind, and bytes that are none: what is kept stays within the limits."""
    connection = greeted(streams_max=3)
    for part in parts:
        for _event, stream, what, _last in connection.receive(part):
            if isinstance(what, bytes):
                connection.consumed(stream, len(what))
            connection.send(stream, b"answer")
        split(connection.take())
    assert len(connection.streams) <= 3
    assert connection.pending_bytes < 100_000
