"""The whole of it: what another process reads, whatever the writer does meanwhile."""

from __future__ import annotations

from pathlib import Path

import pytest

from broker.store.attached import store as attached_store
from broker.store.attached.store import AttachedStore
from broker.store.attached.tail_view import Moved
from broker.store.errors import CorruptLog, Unsettled
from broker.store.read_result import NO_SUCH_QUEUE, OFFSET_TOO_LARGE, OFFSET_TOO_SMALL, OK


def test_reads_like_the_store_itself(pair) -> None:
    pair.append(30)
    pair.make_run()
    pair.append(30)
    store, attached = pair.bench.store, pair.attached
    assert attached.bounds(pair.queue) == store.reading.bounds(pair.queue) == (0, 60)
    assert attached.confirmed_end(pair.queue) == 60
    assert attached.confirm_position == store.confirm_position
    assert attached.epoch == store.epoch
    assert pair.read(0) == list(range(60))
    for wanted in ((10, 5, 1 << 20, 60), (10, 100, 500, 60), (10, 100, 1, 60), (55, 100, 1 << 20, 57), (60, 9, 9, 99)):
        here, there = attached.read_range(pair.queue, *wanted), store.reading.read_range(pair.queue, *wanted)
        assert (here.status, here.first_offset, here.next_offset) == (
            there.status,
            there.first_offset,
            there.next_offset,
        )
        assert (here.min_offset, here.max_offset, here.blob) == (there.min_offset, there.max_offset, there.blob)
        assert here.starts.tolist() == there.starts.tolist()
    assert attached.read_range(pair.queue, 61, 1, 1, 99).status == OFFSET_TOO_LARGE
    assert attached.read_range(1 << 31, 0, 1, 1, 1).status == NO_SUCH_QUEUE
    assert attached.retries == 0


def test_nothing_above_the_confirm_position(pair) -> None:
    pair.append(5)
    from tests.sim.stores import message

    pair.bench.store.append(message([pair.queue], b"%06d" % 99))
    assert pair.read(0) == list(range(5))
    found = pair.attached.read_range(pair.queue, 5, 9, 9999, 99)
    assert (found.status, len(found.starts), found.max_offset) == (OK, 0, 5)
    pair.bench.settle()
    assert pair.read(5) == [99]


def test_what_has_expired(pair) -> None:
    pair.append(400)
    assert pair.read(0, 3) == [0, 1, 2]
    pair.expire(pair.bench.store._log.segments[2].base)
    low, _ = pair.bench.store.reading.bounds(pair.queue)
    found = pair.attached.read_range(pair.queue, 0, 1 << 20, 1 << 20, 1 << 20)
    assert (found.status, found.first_offset, found.min_offset) == (OFFSET_TOO_SMALL, low, low)
    assert pair.read(0) == list(range(low, 400))
    pair.attached.let_go()
    assert pair.read(0) == list(range(low, 400))


def test_a_segment_that_goes_before_the_writer_says_so(pair) -> None:
    """The file is gone, the begin that is published is not there yet: too small, no damage."""
    pair.append(400)
    pair.make_run()
    pair.bench.store._log.drop_before(pair.bench.store._log.segments[1].base)
    found = pair.attached.read_range(pair.queue, 0, 1 << 20, 1 << 20, 1 << 20)
    assert found.status == OFFSET_TOO_SMALL
    assert pair.attached.retries == 1
    pair.bench.store._parts.opened.index.move_begin(pair.bench.store._log.begin)
    assert pair.bench.store.reading.bounds(pair.queue)[0] == found.first_offset


def test_a_damaged_record_is_no_answer(pair) -> None:
    pair.append(10)
    segment = pair.bench.store._log.segments[0]
    position = int(pair.attached._attached().read(pair.queue, 4, 1).positions[0])
    with segment.path.open("r+b") as file:
        file.seek(position - segment.base + 16)
        file.write(b"\xff")
    with pytest.raises(CorruptLog, match=str(position)):
        pair.read(0)
    assert pair.read(0, 4) == list(range(4))


@pytest.mark.parametrize("in_a_run", [True, False])
def test_what_is_quarantined_is_refused_and_all_else_is_read(pair, in_a_run: bool) -> None:
    """The next start puts a damaged stretch aside; here as at the store itself its offsets have no record."""
    pair.append(20)
    if in_a_run:
        pair.make_run()
    store = pair.bench.store
    segment = store._log.segments[0]
    position = int(pair.attached._attached().read(pair.queue, 7, 1).positions[0])
    pair.bench.close()
    with segment.path.open("r+b") as file:
        file.seek(position - segment.base)
        file.write(bytes(100))
    store = pair.bench.open()
    pair.append(5)
    read = 0
    for offset in range(25):
        try:
            wanted = store.reading.read_range(pair.queue, offset, 1, 1 << 20, 1 << 20)
        except CorruptLog:
            with pytest.raises(CorruptLog):
                pair.attached.read_range(pair.queue, offset, 1, 1 << 20, 1 << 20)
        else:
            found = pair.attached.read_range(pair.queue, offset, 1, 1 << 20, 1 << 20)
            assert (found.status, found.first_offset, found.next_offset, found.blob) == (
                wanted.status, wanted.first_offset, wanted.next_offset, wanted.blob
            )  # fmt: skip
            read += len(found.starts)
    assert read == 24


def test_a_writer_that_starts_again(pair) -> None:
    pair.append(40)
    epoch = pair.attached.epoch
    pair.bench.reopen()
    assert pair.attached.epoch == epoch + 1
    pair.append(5)
    assert pair.read(0) == list(range(45))
    assert pair.attached.attachments == 2


def test_until_the_next_writer_is_ready_the_last_one_is_believed(pair) -> None:
    pair.append(10)
    tail = pair.directory / "index" / "tail"
    content = tail.read_bytes()
    pair.bench.close()
    for half_made in (b"", content[:4096], content[:128] + bytes(8) + content[136:]):
        tail.with_name("new").write_bytes(half_made)
        tail.with_name("new").replace(tail)
        assert pair.read(0) == list(range(10))
    tail.unlink()
    assert pair.read(0) == list(range(10))
    with pytest.raises(Unsettled, match="no writer"):
        AttachedStore(pair.directory)
    pair.bench.open()
    pair.append(1)
    assert pair.read(0) == list(range(11))


def test_more_queues_than_before(pair) -> None:
    assert not pair.attached.has_queue(10_000)
    for first in range(0, 10_000, 100):
        queues = pair.bench.store.queues.open_all([b"n%d" % number for number in range(first, first + 100)])
        pair.bench.settle()
    pair.append(3, queues[-1])
    assert pair.attached.has_queue(queues[-1])
    assert pair.read(0, queue=queues[-1]) == [0, 1, 2]


def test_what_never_comes_to_rest_is_refused(pair, monkeypatch: pytest.MonkeyPatch) -> None:
    pair.append(5)

    def moves(*_: object) -> None:
        raise Moved("again")

    monkeypatch.setattr(pair.attached._attached(), "read", moves)
    with pytest.raises(Unsettled, match="again"):
        pair.read(0)
    assert pair.attached.retries == attached_store.ATTEMPTS_MAX - 1


def test_nothing_is_made_where_nothing_is(tmp_path: Path) -> None:
    with pytest.raises(Unsettled):
        AttachedStore(tmp_path / "data")
    assert list(tmp_path.iterdir()) == []
