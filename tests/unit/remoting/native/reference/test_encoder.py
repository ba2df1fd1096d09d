"""The encoder of the twin in place: offsets, fillers, refusals, batches; small and large ones alike."""

from __future__ import annotations

import pytest

from broker.store.placed import Placed
from remoting.native import core as native
from remoting.native.contracts import CONFIRMED, FLUSHED, NEXT, slot_column
from remoting.native.reference.encoder import lists_of, make_block
from remoting.protocol.errors import LocalMisuse, RecordTooLarge
from remoting.protocol.records.record import (
    BATCH_COUNT_MAX,
    FILLER,
    FLAG_GROUP_OPEN,
    HEADER,
    RecordView,
    body_codec,
    body_format,
    check_record,
)
from tests.sim.batches import CAPACITY, FLAGS_BATCH, QUEUES, Bench, bare
from tests.support.images import make_image, placed


def makers() -> list[object]:
    """The functions that make a block, of the twins there are."""
    return [make_block, *([native.compiled_core().make_block] if native.choice.name == "compiled" else [])]


def test_lists_of_a_block_and_its_parts() -> None:
    """A part of a block is a block."""
    block = make_block([1, 2, 3], [0, 0, 0], [0, 8, 16], [8, 8, 8], [5, 6, 7], [1, 2, 1])
    assert block.slice(1, 3).columns() == ([2, 3], [0, 0], [8, 16], [8, 8], [6, 7], [2, 1])
    assert (len(block), block.position(2), lists_of(block)[5]) == (3, 16, [1, 2, 1])


@pytest.mark.parametrize("make", makers())
def test_positions_of_messages_are_found_wherever_the_search_begins(make) -> None:
    """Messages of one queue among those of others; none but those that are there."""
    block = make([1, 2, 1, 2, 1], [7, 0, 8, 1, 9], [0, 8, 16, 24, 32], [8] * 5, [0] * 5, [1] * 5)
    for hint in (0, 2, 9):
        assert block.positions(1, 8, 2, min(hint, 2)) == [16, 32]
        assert block.positions(2, 1, 1, hint) == [24]
    assert block.positions(1, 9, 2, 0) == [32]
    assert block.positions(3, 0, 1, 0) == block.positions(1, 7, 0, 0) == []
    assert make([], [], [], [], [], []).positions(1, 0, 1, 0) == []


message = placed


def test_undo_store_and_find() -> None:
    """What was undone is given out again; what is stored is found by chain and by search."""
    bench = Bench(native.core)
    bench.ring.undo(bench.encode([message((0, 0, 3))]).entries)
    assert not any(bench.rows)
    count = 1
    for _ in range(CAPACITY - 4):
        entries = bench.encode([message((count % 2,))]).entries
        bench.ring.store(entries, 1, count)
        count += 1
    for offset, wanted in ((0, 5), (29, 9), (3, 0), (12, 1)):
        offsets, positions, sizes, tags, end = bench.ring.find(1, offset, wanted, 1, count)
        expected = slot_column(bench.slots, "position")[1:count:2][offset : offset + wanted].tolist()
        assert positions.tolist() == expected
        assert (offsets.tolist(), end) == (list(range(offset, end)), offset + len(expected))
        assert (len(sizes), len(tags)) == (len(expected), len(expected))


def test_claim_stops_at_the_first_entry_that_is_not_next() -> None:
    """A gap, a queue beyond the limit."""
    bench = Bench(native.core)
    entries = native.core.make_block([0, 0, 1, 0], [0, 1, 5, 2], [0] * 4, [8] * 4, [0] * 4, [1] * 4)
    assert bench.ring.claim(entries, 0, QUEUES) == 2
    assert bench.word(NEXT)[0] == 2
    assert bench.ring.claim(entries, 3, 0) == 3
    assert bench.ring.claim(entries, 3, QUEUES) == 4


def test_confirm_names_each_queue_once() -> None:
    """Over several blocks, in the order of their last entries; what does not move is not named."""
    bench = Bench(native.core)
    blocks = [
        native.core.make_block(q, o, o, o, o, [1] * len(q)) for q, o in (([1, 2, 1], [0, 0, 1]), ([2], [1]), ([], []))
    ]
    assert bench.ring.confirm(blocks) == [1, 2]
    assert bench.word(CONFIRMED)[:4].tolist() == [0, 2, 2, 0]
    assert bench.ring.confirm(blocks[1:]) == []


def test_release_names_the_first_offset_that_is_left() -> None:
    """Only where the chain led below it; the others were reported when they were stored."""
    bench = Bench(native.core)
    made = bench.encode([message((queue,)) for queue in (0, 1, 0, 2, 0)])
    bench.ring.store(made.entries, 1, 1)
    assert bench.word(FLUSHED)[:3].tolist() == [0, 0, 0]
    bench.ring.release(3, 6)
    assert bench.word(FLUSHED)[:3].tolist() == [1, 0, 0]


message = placed


def test_offsets_are_dense_also_within_a_record() -> None:
    """One queue twice in one record, and again in the next."""
    bench = Bench(native.core)
    made = bench.encode([message((1, 1, 2)), message(()), message((2, 1))])
    assert made.offsets == [0, -1, 1]
    assert made.entries.columns()[:2] == ([1, 1, 2, 2, 1], [0, 1, 0, 1, 2])
    assert [bench.word(NEXT)[queue] for queue in (1, 2)] == [3, 2]


def test_a_filler_ends_a_segment_and_records_continue_in_the_next() -> None:
    """The bytes of every segment are records to its last byte."""
    bench = Bench(native.core)
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
    made = Bench(native.core).encode([message((0,)), bare(b"a"), bare(b"b")], atomic=True)
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
        (Placed(make_image()[:-8], [(0,)]), LocalMisuse, "cut short"),
        (Placed(make_image() + bytes(8), [(0,)]), LocalMisuse, "8 bytes of images without queues"),
        (Placed(make_image(), [(0,), (0,)]), LocalMisuse, "cut short"),
        (message((0,), count=2), LocalMisuse, "2 messages in a record with flags 0x0"),
        (message((0,), count=0), LocalMisuse, "0 messages in"),
        (message((0,), flags=FLAGS_BATCH, count=0), LocalMisuse, "0 messages in"),
        (message((0,), flags=FLAGS_BATCH, count=BATCH_COUNT_MAX + 1), LocalMisuse, "65537 messages in"),
    ],
)
def test_a_refused_batch_leaves_the_rows_unchanged(wrong: Placed, error: type, words: str) -> None:
    """Whatever is wrong with the last message, the first one's offsets are undone."""
    bench = Bench(native.core)
    bench.encode([message((0, 1))])
    before = bench.rows.tolist()
    with pytest.raises(error, match=words):
        bench.encode([message((0, 2)), wrong])
    assert bench.rows.tolist() == before


def test_a_segment_that_cannot_be_made_undoes_the_offsets() -> None:
    """OSError is raised, and no offset is used."""
    bench = Bench(native.core)

    def full(_: int) -> int:
        raise OSError(28, "full")

    bench.next_segment = full  # type: ignore[method-assign]
    with pytest.raises(OSError, match="full"):
        bench.encode([message((0,), bytes(300)) for _ in range(5)])
    assert not any(bench.rows)


def test_a_batch_advances_its_queues_by_its_count() -> None:
    """The record has it, the entries have it, and claiming, confirming and undoing follow."""
    bench = Bench(native.core)
    made = bench.encode([message((1, 2, 1), flags=FLAGS_BATCH, count=5), message((1,))])
    head = RecordView(memoryview(made.pieces[0][1]))
    assert (head.type, head.count, body_format(head.flags), body_codec(head.flags)) == (2, 5, 1, 1)
    assert head.dispatch() == [(1, 0), (2, 0), (1, 5)]
    assert made.offsets == [0, 10]
    columns = made.entries.columns()
    assert (columns[1], columns[5]) == ([0, 0, 5, 10], [5, 5, 5, 1])
    assert bench.word(NEXT)[:3].tolist() == [0, 11, 5]
    bench.ring.undo(made.entries)
    assert not any(bench.rows)
    assert bench.ring.claim(made.entries, 0, QUEUES) == 4
    assert bench.word(NEXT)[:3].tolist() == [0, 11, 5]
    assert bench.ring.confirm([made.entries]) == [2, 1]
    assert bench.word(CONFIRMED)[:3].tolist() == [0, 11, 5]


def test_a_whole_batch_or_a_part_of_it_in_each_segment() -> None:
    """Entries of all records, wherever the file ends."""
    bench = Bench(native.core)
    made = [bench.encode([message((n % 3, 4)) for n in range(count)]) for count in (3, 12, 30, 1)]
    assert [len(batch.entries) for batch in made] == [6, 24, 60, 2]
    assert [offset for batch in made for offset in batch.entries.columns()[1][1::2]] == list(range(46))
    assert bench.word(NEXT)[:5].tolist() == [16, 15, 15, 0, 46]
