"""The memory of the key index takes in what the records say, and stops where it is full."""

from __future__ import annotations

from remoting.native import core as native
from remoting.native.reference.keys import store_second
from remoting.protocol.records.properties import KEYS_PER_RECORD_MAX, key_hash
from tests.sim.keyed import back_to_back


def test_entries_stand_in_log_order_with_position_size_and_second() -> None:
    """A record of several keys gives several entries; one without keys gives none."""
    records = [
        {"keys": b"a b", "store_ms": 5999, "properties": [(b"UNIQ_KEY", b"id")]},
        {"keys": b""},
        {"keys": b"a  a", "store_ms": 7000, "topic": b"u"},
    ]
    data, positions = back_to_back(records, base=4096)
    chunk = native.core.make_key_chunk(200)
    assert chunk.take(data, 4096, 4096, 4096 + len(data)) == 4096 + len(data)
    hashes, found, sizes, seconds = (column.tolist() for column in chunk.columns())
    assert hashes == [key_hash(b"t", b"id"), key_hash(b"t", b"a"), key_hash(b"t", b"b"), key_hash(b"u", b"a")]
    assert found == [positions[0]] * 3 + [positions[2]]
    assert sizes == [positions[1] - positions[0]] * 3 + [4096 + len(data) - positions[2]]
    assert seconds == [5, 5, 5, 7]
    assert chunk.count == 4


def test_a_record_that_may_not_fit_is_left_for_the_next_chunk() -> None:
    """The position of the first record not taken in comes back; what was taken in stays."""
    data, positions = back_to_back([{"keys": b"k%d" % n} for n in range(3)])
    chunk = native.core.make_key_chunk(KEYS_PER_RECORD_MAX + 1)
    assert chunk.take(data, 0, 0, len(data)) == positions[2]
    assert chunk.take(memoryview(data), 0, positions[2], len(data)) == positions[2]
    assert [column.tolist() for column in chunk.columns()][1] == positions[:2]


def test_seconds_stay_in_their_range() -> None:
    """Times before 1970 and behind 2106 are kept at the ends."""
    assert [store_second(ms) for ms in (-1, 0, 1999, 2**32 * 1000)] == [0, 0, 1, 2**32 - 1]
