"""Bodies of FILTERED_PULL there and back, and what is no body."""

from __future__ import annotations

import pytest

from remoting.protocol.bodies.filtered_body import (
    NAMES_MAX,
    RowFilter,
    decode_filtered_pull,
    decode_filtered_reply,
    decode_row_filter,
    encode_filtered_pull,
    encode_filtered_reply,
    encode_row_filter,
)
from remoting.protocol.bodies.pull_body import PulledRange
from remoting.protocol.errors import RemoteViolation


def test_there_and_back() -> None:
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
def test_what_is_no_body(body: bytes) -> None:
    with pytest.raises(RemoteViolation):
        decode_filtered_reply(body)
    with pytest.raises(RemoteViolation):
        decode_row_filter(decode_filtered_pull(body).row_filter)


def test_names_are_bounded() -> None:
    with pytest.raises(RemoteViolation):
        decode_row_filter(encode_row_filter(RowFilter(tags=tuple(map(str, range(NAMES_MAX + 1))))))
