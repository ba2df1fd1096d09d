"""The write side of the twin in place: offsets, fillers, refusals, the ring, confirming."""

from __future__ import annotations

from array import array

import pytest

from broker.store import hot
from broker.store.errors import RecordTooLarge
from broker.store.store_message import StoreMessage
from remoting.protocol.errors import LocalMisuse
from remoting.protocol.record import FILLER, FLAG_GROUP_OPEN, HEADER, RecordView, check_record
from tests.sim.batches import CAPACITY, QUEUES, Bench, bare


def message(queues: tuple[int, ...], body: bytes = b"x", **changes: int) -> StoreMessage:
    made = StoreMessage(queues, 5, 0, 0, 0, 1, 0, 0, 0, b"t", body)
    for name, value in changes.items():
        setattr(made, name, value)
    return made


def test_offsets_are_dense_also_within_a_record() -> None:
    """One queue twice in one record, and again in the next."""
    bench = Bench(hot.core)
    made = bench.encode([message((1, 1, 2)), message(()), message((2, 1))])
    assert made.offsets == [0, -1, 1]
    assert made.entries.columns()[:2] == ([1, 1, 2, 2, 1], [0, 1, 0, 1, 2])
    assert bench.rows[[2, 4]].tolist() == [3, 2]


def test_a_filler_ends_a_segment_and_records_go_on_in_the_next() -> None:
    """The bytes of every segment are records to its last byte."""
    bench = Bench(hot.core)
    made = bench.encode([message((0,), bytes(300)) for _ in range(5)])
    assert bench.made == [1024, 2048]
    assert [position for position, _ in made.pieces] == [0, 1024, 2048]
    for position, piece in made.pieces:
        at, kinds = 0, []
        while at < len(piece):
            kinds.append(HEADER.unpack_from(piece, at)[1])
            at += check_record(piece, at, position + at)
        assert (kinds[-1] == FILLER) == (position < 2048)
        assert position == 2048 or len(piece) == 1024


def test_groups_are_open_but_at_their_end() -> None:
    """Atomic messages, then controls: only the very last record closes the group."""
    made = Bench(hot.core).encode([message((0,)), bare(b"a"), bare(b"b")], 2, atomic=True)
    view = memoryview(made.pieces[0][1])
    heads = [RecordView(view, at) for at in (0, *made.controls)]
    assert [bool(head.flags & FLAG_GROUP_OPEN) for head in heads] == [True, True, False]
    assert [head.type for head in heads] == [1, 3, 3]
    assert made.offsets == [0]


@pytest.mark.parametrize(
    ("wrong", "error", "words"),
    [
        (message((0,), bytes(900)), RecordTooLarge, "512"),
        (message((QUEUES,)), LocalMisuse, "does not exist"),
        (message((-1,)), LocalMisuse, "does not exist"),
        (message((0,) * 9), LocalMisuse, "at most 8"),
        (message((0,), topic_len=2), LocalMisuse, "meta of 1 bytes"),
        (message((0,), flags=1 << 32), LocalMisuse, "out of range"),
        (message((0,), born_ms=1 << 63), LocalMisuse, "out of range"),
        (message((0,), producer_seq=-1), LocalMisuse, "out of range"),
        (message((0,), n_props=1 << 16), LocalMisuse, "meta of|out of range"),
    ],
)
def test_a_refused_batch_leaves_the_rows_as_they_were(wrong: StoreMessage, error: type, words: str) -> None:
    """Whatever is wrong with the last message, the first one's offsets are taken back."""
    bench = Bench(hot.core)
    bench.encode([message((0, 1))])
    before = bench.rows.tolist()
    with pytest.raises(error, match=words):
        bench.encode([message((0, 2)), wrong])
    assert bench.rows.tolist() == before


def test_a_segment_that_cannot_be_made_takes_the_offsets_back() -> None:
    """OSError comes through, nothing is given out."""
    bench = Bench(hot.core)

    def full(_: int) -> int:
        raise OSError(28, "full")

    bench.next_segment = full  # type: ignore[method-assign]
    with pytest.raises(OSError, match="full"):
        bench.encode([message((0,), bytes(300)) for _ in range(5)])
    assert not bench.rows.any()


def test_undo_store_and_find() -> None:
    """What was taken back is given out again; what is stored is found by chain and by search."""
    bench = Bench(hot.core)
    bench.ring.undo(bench.encode([message((0, 0, 3))]).entries)
    assert not bench.rows.any()
    count = 0
    for _ in range(CAPACITY - 4):
        entries = bench.encode([message((count % 2,))]).entries
        bench.ring.store(entries, 0, count)
        count += 1
    for offset, wanted in ((0, 5), (29, 9), (3, 0), (12, 1)):
        positions, sizes, tags = bench.ring.find(1, offset, wanted, 0, count)
        expected = bench.columns[2][1:count:2][offset : offset + wanted].tolist()
        assert positions.tolist() == expected
        assert (len(sizes), len(tags)) == (len(expected), len(expected))


def test_claim_stops_at_the_first_entry_that_is_not_next() -> None:
    """A gap, a queue beyond the limit."""
    bench = Bench(hot.core)
    entries = hot.core.make_block([0, 0, 1, 0], [0, 1, 5, 2], [0] * 4, [8] * 4, [0] * 4)
    assert bench.ring.claim(entries, 0, QUEUES) == 2
    assert bench.rows[0] == 2
    assert bench.ring.claim(entries, 3, 0) == 3
    assert bench.ring.claim(entries, 3, QUEUES) == 4


def test_confirm_names_each_queue_once() -> None:
    """Over several blocks; the next stamp starts anew."""
    ends, stamps = array("q", [0] * 4), array("I", [0] * 4)
    blocks = [hot.core.make_block(q, o, o, o, o) for q, o in (([1, 2, 1], [0, 0, 1]), ([2], [1]), ([], []))]
    assert hot.core.confirm(blocks, ends, stamps, 1) == [1, 2]
    assert ends.tolist() == [0, 2, 2, 0]
    assert hot.core.confirm(blocks[1:], ends, stamps, 2) == [2]
