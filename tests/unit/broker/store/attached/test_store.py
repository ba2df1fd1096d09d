"""What another process reads of tail, runs and segments, whatever the writer does meanwhile."""

from __future__ import annotations

from pathlib import Path

import pytest

from broker.store.attached import store
from broker.store.attached import store as attached_store
from broker.store.attached.store import AttachedStore, IndexView, LogView, Moved, RunSet, TailView
from broker.store.errors import CorruptIndex, CorruptLog, Unsettled
from broker.store.index.reader import NO_SUCH_QUEUE, OFFSET_TOO_LARGE, OFFSET_TOO_SMALL, OK
from broker.store.index.tail import Tail
from broker.store.log.commit_log import segment_path
from remoting.native import core as native
from remoting.native.vectors import Column


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


def test_a_segment_deleted_before_the_new_begin_is_published(pair) -> None:
    """The file is deleted but the new begin is not published yet: offset too small, no damage."""
    pair.append(400)
    pair.make_run()
    pair.bench.store._log.drop_before(pair.bench.store._log.segments[1].base)
    found = pair.attached.read_range(pair.queue, 0, 1 << 20, 1 << 20, 1 << 20)
    assert found.status == OFFSET_TOO_SMALL
    assert pair.attached.retries == 1
    pair.bench.store._parts.opened.index.move_begin(pair.bench.store._log.begin)
    assert pair.bench.store.reading.bounds(pair.queue)[0] == found.first_offset


def test_a_damaged_record_is_not_returned(pair) -> None:
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
    """The next start quarantines a damaged range; here as at the store itself its offsets have no record."""
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


def test_until_the_next_writer_is_ready_the_last_one_counts(pair) -> None:
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


def test_what_never_settles_is_refused(pair, monkeypatch: pytest.MonkeyPatch) -> None:
    pair.append(5)

    def moves(*_: object) -> None:
        raise Moved("again")

    monkeypatch.setattr(pair.attached._attached(), "read", moves)
    with pytest.raises(Unsettled, match="again"):
        pair.read(0)
    assert pair.attached.retries == attached_store.ATTEMPTS_MAX - 1


def test_an_empty_directory_stays_empty(tmp_path: Path) -> None:
    with pytest.raises(Unsettled):
        AttachedStore(tmp_path / "data")
    assert list(tmp_path.iterdir()) == []


CAPACITY = 64


class Filled:
    """A tail with entries of known positions."""

    def __init__(self, directory: Path) -> None:
        self.tail = Tail(directory / "tail", CAPACITY)
        self.offsets: dict[int, int] = {}
        self.position = 0

    def add(self, queues: list[int], count: int = 1, *, publish: bool = True) -> None:
        offsets = []
        for queue in queues:
            offsets.append(self.offsets.get(queue, 0))
            self.offsets[queue] = offsets[-1] + count
        positions = [self.position + 8 * n for n in range(1, len(queues) + 1)]
        self.position += 8 * len(queues)
        n = len(queues)
        entries = native.core.make_block(queues, offsets, positions, [8] * n, [7] * n, [count] * n)
        assert self.tail.ring.claim(entries, 0, 1 << 20) == n
        self.tail.append(entries)
        self.tail.ring.confirm([entries])
        if publish:
            self.tail.publish(self.position, self.position)


@pytest.fixture
def filled(tmp_path: Path) -> Filled:
    made = Filled(tmp_path)
    made.tail.publish(0, 0)
    made.tail.publish_epoch(3)
    return made


def offsets(view: TailView, queue: int, offset: int, limit: int, start: int = 1) -> list[int]:
    return view.find(queue, offset, limit, start)[0].offsets.tolist()


def test_a_file_is_used_when_its_writer_has_published_it(tmp_path: Path) -> None:
    path = tmp_path / "tail"
    with pytest.raises(FileNotFoundError):
        TailView(path)
    for junk in (b"", b"LMQTAIL2" + bytes(16), b"x" * 5000):
        path.write_bytes(junk)
        with pytest.raises(Moved):
            TailView(path)
    tail = Tail(path, CAPACITY)
    with pytest.raises(Moved, match="not ready"):
        TailView(path)
    tail.publish_epoch(7)
    view = TailView(path)
    assert (view.epoch, view.count, view.first, view.confirm_position) == (7, tail.count, 1, 0)
    path.write_bytes(path.read_bytes()[:5000])
    with pytest.raises(Moved, match="being made"):
        TailView(path)
    view.close()
    view.close()


def test_entries_of_a_queue(filled: Filled, tmp_path: Path) -> None:
    filled.add([1, 2, 1, 1, 2])
    view = TailView(tmp_path / "tail")
    assert offsets(view, 1, 0, 99) == [0, 1, 2]
    assert offsets(view, 1, 1, 2) == [1]
    assert offsets(view, 1, 3, 99) == []
    assert offsets(view, 9, 0, 99) == []
    found, behind = view.find(2, 0, 99, 1)
    assert (found.positions.tolist(), found.end, behind) == ([16, 40], 2, filled.tail.count)
    assert (view.first_offset(2, 1), view.first_offset(9, 1)) == (0, None)
    assert (view.confirmed_end(1), view.confirmed_end(2), view.confirmed_end(1 << 20)) == (3, 2, None)
    filled.add([1])
    assert offsets(view, 1, 0, 99) == [0, 1, 2, 3], "the same view sees what was added"
    view.close()


def test_what_is_not_published_is_invisible(filled: Filled, tmp_path: Path) -> None:
    filled.add([1, 1])
    filled.add([1, 1], publish=False)
    view = TailView(tmp_path / "tail")
    assert offsets(view, 1, 0, 99) == [0, 1]
    filled.tail.publish(0, 0)
    assert offsets(view, 1, 0, 99) == [0, 1, 2, 3]
    view.close()


def test_batches_hold_many_offsets(filled: Filled, tmp_path: Path) -> None:
    filled.add([1, 1, 1], count=10)
    view = TailView(tmp_path / "tail")
    assert offsets(view, 1, 15, 20) == [10]
    assert offsets(view, 1, 15, 21) == [10, 20]
    found, _ = view.find(1, 29, 99, 1)
    assert (found.offsets.tolist(), found.end) == ([20], 30)
    assert offsets(view, 1, 30, 99) == []
    view.close()


def test_around_the_end_of_the_ring(filled: Filled, tmp_path: Path) -> None:
    filled.add([1] * 60)
    view = TailView(tmp_path / "tail")
    filled.tail.release(filled.tail.count)
    filled.add([2, 1] * 20)
    assert offsets(view, 1, 60, 99, filled.tail.first) == list(range(60, 80))
    assert offsets(view, 1, 0, 99, filled.tail.first) == []
    view.close()


def test_overwritten_while_it_was_read(filled: Filled, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The copy is discarded when the writer reused the slots meanwhile, whatever was in it."""
    filled.add([1] * 60)
    view = TailView(tmp_path / "tail")
    before = view._numbers_of

    def slow(queue: int, start: int) -> Column:
        found = before(queue, start)
        filled.tail.release(filled.tail.count)
        filled.add([2] * 60)
        return found

    monkeypatch.setattr(view, "_numbers_of", slow)
    with pytest.raises(Moved, match="in a run"):
        view.find(1, 0, 99, 1)
    with pytest.raises(Moved):
        view.first_offset(1, 1)
    view.close()


def test_a_batch_larger_than_the_tail_is_released_before_it_is_published(filled: Filled, tmp_path: Path) -> None:
    filled.add([1] * 40, publish=False)
    filled.tail.release(filled.tail.count)
    view = TailView(tmp_path / "tail")
    assert view.first > view.count
    assert offsets(view, 1, 0, 99, view.first) == []
    view.close()


def test_more_queues(filled: Filled, tmp_path: Path) -> None:
    view = TailView(tmp_path / "tail")
    filled.add([1])
    assert view.confirmed_end(50_000) is None
    filled.tail.grow(50_001)
    assert view.confirmed_end(50_000) == 0
    filled.add([50_000, 1])
    assert (view.confirmed_end(50_000), view.confirmed_end(1)) == (1, 2)
    assert offsets(view, 50_000, 0, 99) == [0]
    view.close()


def view_of(pair) -> IndexView:
    return IndexView(pair.directory / "index", TailView(pair.directory / "index" / "tail"))


def test_a_read_across_runs_and_tail(pair) -> None:
    for _ in range(2):
        pair.append(10)
        pair.make_run()
    pair.append(10)
    view = view_of(pair)
    assert view.read(pair.queue, 0, 100).offsets.tolist() == list(range(30))
    assert view.read(pair.queue, 15, 10).offsets.tolist() == list(range(15, 25))
    assert view.read(pair.queue, 25, 2).offsets.tolist() == [25, 26]
    assert view.position == pair.bench.store.confirm_position
    with pytest.raises(Moved, match="neither"):
        view.read(pair.queue, 30, 1)
    view.close()


def test_following_reads_new_entries_only(pair, monkeypatch: pytest.MonkeyPatch) -> None:
    view = view_of(pair)
    starts = []
    find = view.tail.find
    monkeypatch.setattr(view.tail, "find", lambda *wanted: starts.append(wanted[3]) or find(*wanted))
    for turn in range(4):
        pair.append(5)
        assert view.read(pair.queue, 5 * turn, 5).end == 5 * turn + 5
    assert starts == [starts[0] + 5 * turn for turn in range(4)]
    assert view.read(pair.queue, 3, 1).offsets.tolist() == [3], "going back reads from the beginning"
    assert starts[-1] == starts[0]
    pair.make_run()
    pair.append(5)
    assert view.read(pair.queue, 20, 5).end == 25, "an expired position is not used"
    view.close()


def test_entries_that_move_into_a_run_during_the_read(pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything moved between reading the runs and the tail: nothing is missing, `Moved` is raised."""
    pair.append(20)
    view = view_of(pair)
    load = view._runs.load

    def then_all_moves(generation: int) -> None:
        load(generation)
        if not pair.bench.store._parts.opened.index.runs:
            pair.make_run()

    monkeypatch.setattr(view._runs, "load", then_all_moves)
    with pytest.raises(Moved):
        view.read(pair.queue, 0, 100)
    assert view.read(pair.queue, 0, 100).offsets.tolist() == list(range(20))
    view.close()


def test_the_oldest_offset(pair, monkeypatch: pytest.MonkeyPatch) -> None:
    view = view_of(pair)
    assert view.min_offset(pair.queue) == 0
    pair.append(400)
    pair.append(2, pair.other)
    base = pair.bench.store._log.segments[1].base
    pair.expire(base)
    wanted = pair.bench.store.reading.bounds(pair.queue)[0]
    assert wanted > 0
    assert view.min_offset(pair.queue) == wanted
    monkeypatch.setattr(view, "_look_up_minimum", lambda queue: pytest.fail("looked up twice"))
    assert view.min_offset(pair.queue) == wanted
    monkeypatch.undo()
    monkeypatch.setattr(store, "REMEMBERED_MAX", 1)
    assert view.min_offset(pair.other) == 0
    assert view.min_offset(pair.queue) == wanted
    pair.append(1)
    view.read(pair.queue, 400, 1)
    view.read(pair.other, 0, 1)
    assert len(view._places) <= 1
    view.close()


def test_a_queue_whose_records_have_all_expired(pair) -> None:
    pair.append(3, pair.other)
    pair.append(400)
    pair.expire(pair.bench.store._log.segments[1].base)
    view = view_of(pair)
    assert view.min_offset(pair.other) == view.confirmed_end(pair.other) == 3
    pair.append(1, pair.other)
    assert view.min_offset(pair.other) == 3
    assert view.read(pair.other, 3, 1).end == 4
    view.close()


def test_runs_are_written_merged_and_deleted(pair) -> None:
    runs = RunSet(pair.directory / "index")
    runs.load(0)
    assert runs.runs == []
    pair.append(5)
    pair.make_run()
    runs.load(0)
    assert runs.runs == [], "the writer has not published anything"
    runs.load(1)
    (first,) = runs.runs
    pair.append(5)
    pair.make_run()
    runs.load(2)
    assert runs.runs[0] is first, "what is known is not opened again"
    assert len(runs.runs) == 2
    pair.append(5)
    pair.make_run()
    runs.load(pair.attached._attached().tail.generation)
    assert [run.entry_count for run in runs.runs] == [15], "three of them were merged"


def test_a_run_deleted_before_it_was_opened(pair, monkeypatch: pytest.MonkeyPatch) -> None:
    pair.append(5)
    pair.make_run()
    runs = RunSet(pair.directory / "index")
    (path,) = (pair.directory / "index").glob("run-*")
    path.rename(path.with_name("elsewhere"))
    with pytest.raises(Moved):
        runs.load(1)
    path.with_name("elsewhere").rename(path)
    runs.load(1)
    assert len(runs.runs) == 1


def test_a_manifest_that_cannot_be_read(pair) -> None:
    pair.append(5)
    pair.make_run()
    manifest = pair.directory / "index" / "MANIFEST"
    content = manifest.read_bytes()
    manifest.write_bytes(b"{}")
    with pytest.raises(CorruptIndex):
        RunSet(pair.directory / "index").load(1)
    manifest.unlink()
    nothing = RunSet(pair.directory / "index")
    nothing.load(1)
    assert nothing.runs == []
    manifest.write_bytes(content)


SIZE = 4096


def make(directory: Path, base: int, fill: bytes, size: int = SIZE) -> None:
    segment_path(directory, base).write_bytes(fill * size)


def mapped(directory: Path) -> list[int]:
    """Bases of the mapped segments; what other tests have open, and release meanwhile, does not count."""
    maps = Path("/proc/self/maps").read_text().splitlines()
    return sorted({int(Path(line.split()[-1]).name) for line in maps if str(directory) in line})


def test_positions_find_their_segment_as_it_appears_and_disappears(tmp_path: Path) -> None:
    view = LogView(tmp_path)
    assert (view.begin(), view.segment_at(0)) == (0, None)
    make(tmp_path, 0, b"a")
    first = view.segment_at(SIZE - 1)
    assert first is not None
    assert first.view[0:1] == b"a"
    assert view.segment_at(SIZE) is None
    make(tmp_path, SIZE, b"b")
    second = view.segment_at(SIZE)
    assert second is not None
    assert (second.base, second.end, second.view[0:1]) == (SIZE, 2 * SIZE, b"b")
    segment_path(tmp_path, 0).unlink()
    assert view.segment_at(0) is first, "a mapping stays valid"
    view.let_go()
    assert view.segment_at(0) is None
    assert first.view[0:1] == b"a"
    assert view.begin() == SIZE


def test_the_newest_segment_may_grow(tmp_path: Path) -> None:
    view = LogView(tmp_path)
    make(tmp_path, 0, b"a")
    assert view.segment_at(SIZE) is None
    with segment_path(tmp_path, 0).open("ab") as file:
        file.write(b"b" * SIZE)
    grown = view.segment_at(SIZE)
    assert grown is not None
    assert (grown.size, grown.view[SIZE : SIZE + 1]) == (2 * SIZE, b"b")


def test_an_empty_file_is_not_used_yet(tmp_path: Path) -> None:
    segment_path(tmp_path, 0).touch()
    assert LogView(tmp_path).segment_at(0) is None
    assert LogView(tmp_path / "none").segment_at(0) is None


def test_the_number_of_mappings_has_a_bound(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(store, "SEGMENTS_MAX", 2)
    view = LogView(tmp_path)
    for base in range(0, 4 * SIZE, SIZE):
        make(tmp_path, base, b"x")
    for base in range(0, 4 * SIZE, SIZE):
        assert view.segment_at(base) is not None
    assert mapped(tmp_path) == [2 * SIZE, 3 * SIZE]
    assert view.segment_at(0) is not None, "what was unmapped is mapped again"
