"""Pull bodies round-trip, blobs keep their records, malformed bodies only violate."""

from __future__ import annotations

import contextlib
import itertools
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from remoting.protocol.bodies import pull_body as pb
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
def test_range_pull_reply_says_where_records_start(result):
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
