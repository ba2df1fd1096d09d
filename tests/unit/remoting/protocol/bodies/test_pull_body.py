"""Pull bodies round-trip, blobs keep their records, malformed bodies only violate."""

from __future__ import annotations

import contextlib
import itertools
import json
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from remoting.protocol.bodies import pull_body as bb
from remoting.protocol.bodies import pull_body as pb
from remoting.protocol.bodies.pull_body import (
    NAMES_MAX,
    PulledRange,
    RowFilter,
    decode_filtered_pull,
    decode_filtered_reply,
    decode_row_filter,
    encode_filtered_pull,
    encode_filtered_reply,
    encode_row_filter,
)
from remoting.protocol.errors import RemoteViolation

U32 = st.integers(0, 2**32 - 1)
I64 = st.integers(-(2**63), 2**63 - 1)
RECORDS = st.lists(st.binary(max_size=50), max_size=5)
RESULT = st.builds(pb.QueueRecords, U32, st.integers(0, 3), I64, I64, I64, I64, RECORDS)


@given(wants=st.lists(st.tuples(U32, I64, U32, U32)))
def test_multi_pull(wants):
    decoded = pb.decode_multi_pull(pb.encode_multi_pull(wants))
    assert [(want.queue_id, want.offset, want.max_count, want.max_bytes) for want in decoded] == wants


@given(results=st.lists(RESULT, max_size=5))
def test_multi_pull_reply(results):
    pulled = pb.decode_multi_pull_reply(pb.encode_multi_pull_reply(results))
    assert len(pulled) == len(results)
    for got, sent in zip(pulled, results, strict=True):
        for name in ("queue_id", "status", "first_offset", "next_offset", "min_offset", "max_offset"):
            assert getattr(got, name) == getattr(sent, name)
        assert got.count == len(sent.records)
        assert got.blob == b"".join(sent.records)


@given(queue_id=U32, offset=I64, end=I64, size=U32)
def test_range_pull(queue_id, offset, end, size):
    assert pb.decode_range_pull(pb.encode_range_pull(queue_id, offset, end, size)) == pb.RangeWant(
        queue_id, offset, end, size
    )


@given(result=RESULT)
def test_range_pull_reply_has_the_starts_of_records(result):
    got = pb.decode_range_pull_reply(pb.encode_range_pull_reply(result))
    starts = struct.unpack(f"<{got.count}I", got.starts)
    edges = [*starts, len(got.blob)]
    assert [bytes(got.blob[a:b]) for a, b in itertools.pairwise(edges)] == result.records
    assert (got.status, got.first_offset, got.next_offset) == (result.status, result.first_offset, result.next_offset)
    assert (got.min_offset, got.max_offset) == (result.min_offset, result.max_offset)


@given(positions=st.lists(st.integers(0, 2**64 - 1)))
def test_records_at(positions):
    assert pb.decode_records_at(pb.encode_records_at(positions)) == positions


DECODERS = (
    pb.decode_multi_pull, pb.decode_multi_pull_reply, pb.decode_range_pull, pb.decode_range_pull_reply,
    pb.decode_records_at,
)  # fmt: skip


@pytest.mark.parametrize("decode", DECODERS)
def test_arbitrary_bytes_only_violate(decode):
    @given(raw=st.one_of(st.binary(max_size=200), st.binary(max_size=200).map(lambda raw: b"\1\0\0\0" + raw)))
    def check(raw):
        with contextlib.suppress(RemoteViolation):
            decode(raw)

    check()


def test_blobs_must_end_with_the_body():
    body = pb.encode_multi_pull_reply([pb.QueueRecords(1, 0, 0, 1, 0, 1, [b"record"])])
    with pytest.raises(RemoteViolation, match="pass the body's end"):
        pb.decode_multi_pull_reply(body[:-1])
    with pytest.raises(RemoteViolation, match="1 bytes follow"):
        pb.decode_multi_pull_reply(body + b"x")
    with pytest.raises(RemoteViolation, match="does not hold 1 starts"):
        pb.decode_range_pull_reply(pb.encode_range_pull_reply(pb.QueueRecords(1, 0, 0, 1, 0, 1, [b"record"])) + b"x")


@given(result=RESULT)
def test_records_in_one_piece_make_the_same_range_reply_and_begin_at_a_word(result):
    """Whether the broker joins the records or the encoder does, the bytes are the same."""
    whole = pb.encode_range_pull_reply(result)
    pulled = pb.decode_range_pull_reply(whole)
    assert pb.encode_pulled_range(pulled) == whole
    assert (len(whole) - len(pulled.blob)) % 8 == 0


def test_round_trip() -> None:
    wanted = RowFilter(mqtt=("a/#",), tags=("t",), keys=("k",), sql="a = 1", born_from_ms=1, born_until_ms=2)
    want = decode_filtered_pull(encode_filtered_pull(7, 1, 9, 100, encode_row_filter(wanted)))
    assert (want.queue_id, want.offset, want.end_offset, want.max_bytes) == (7, 1, 9, 100)
    assert decode_row_filter(want.row_filter) == wanted
    starts, offsets = memoryview(b"\0\0\0\0\x08\0\0\0"), memoryview(b"\x02\0\0\0\x05\0\0\0")
    pulled = PulledRange(0, 4, 30, 0, 99, 2, starts, memoryview(b"x" * 16), offsets)
    back = decode_filtered_reply(encode_filtered_reply(pulled))
    assert (back.next_offset, back.count, bytes(back.starts), bytes(back.blob)) == (30, 2, bytes(starts), b"x" * 16)
    assert back.offsets is not None
    assert bytes(back.offsets) == bytes(offsets)


def test_an_empty_filter_wants_everything() -> None:
    assert not RowFilter()
    assert RowFilter(tags=("t",))
    assert RowFilter(born_from_ms=0)


@pytest.mark.parametrize("body", [b"", b"x" * 30, b"\xff" * 60])
def test_what_is_not_a_body(body: bytes) -> None:
    with pytest.raises(RemoteViolation):
        decode_filtered_reply(body)
    with pytest.raises(RemoteViolation):
        decode_row_filter(decode_filtered_pull(body).row_filter)


def test_names_are_bounded() -> None:
    with pytest.raises(RemoteViolation):
        decode_row_filter(encode_row_filter(RowFilter(tags=tuple(map(str, range(NAMES_MAX + 1))))))


def test_the_documented_request():
    raw = b'{"topics":["machines"],"filter":null,"at_ms":null,"known":{"machines":{"0":12}},"wait_ms":100}'
    request = bb.QueueBoundsRequest(["machines"], None, None, {"machines": {"0": 12}}, 100)
    assert bb.decode_bounds_request(raw) == request
    assert bb.encode_bounds_request(request) == raw
    assert bb.decode_bounds_request(b'{"filter":"a/+"}') == bb.QueueBoundsRequest(filter="a/+")


def test_the_documented_reply():
    reply = bb.QueueBoundsReply(
        "broker-a", 1, 123, [bb.QueueBounds("machines", 0, 17, 0, 99, 5)], bb.LightBounds(3, 0, 7), log="9f"
    )
    raw = bb.encode_bounds_reply(reply)
    assert json.loads(raw) == {
        "broker": "broker-a",
        "epoch": 1,
        "confirm": 123,
        "queues": [{"topic": "machines", "queue": 0, "id": 17, "min": 0, "max": 99, "at": 5}],
        "light": {"id": 3, "min": 0, "max": 7, "at": None},
        "readers": None,
        "log": "9f",
    }
    assert bb.decode_bounds_reply(raw) == reply


@pytest.mark.parametrize(
    "raw", [b"", b"[]", b'{"topics":"a"}', b'{"wait_ms":-1}', b'{"wait_ms":60001}', b'{"known":{"a":{"0":"x"}}}']
)
def test_malformed_requests(raw):
    with pytest.raises(RemoteViolation, match="malformed QueueBoundsRequest"):
        bb.decode_bounds_request(raw)
