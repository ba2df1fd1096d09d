"""Runs plus tail: reads across both, minimum offsets, reopening, the former tail."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from broker.store.index import queue_index
from broker.store.index.index_flusher import IndexFlusher
from broker.store.index.queue_index import FormerTail, QueueIndex
from broker.store.settings import StoreSettings
from remoting.native import core as native
from remoting.native.contracts import CONFIRMED, NEXT
from remoting.native.vectors import column, empty
from runtime.faults import FaultPoints
from tests.sim.stores import StoreBench, message
from tests.support.plants import Plant, catches

INDEX = "broker.store.index.queue_index:QueueIndex."


class InlineThread:
    """Runs each job at once."""

    def submit(self, job, done) -> None:
        done(job(), None)

    def drain(self) -> None:
        return


def flusher_of(index: QueueIndex, merge: int = 100) -> IndexFlusher:
    wanted = StoreSettings(index_tail_entries=64, index_merge_runs=merge)
    return IndexFlusher(index, InlineThread(), lambda: 0, wanted, FaultPoints(), lambda error: None)


def put(index: QueueIndex, queue: int, count: int, messages: int = 1) -> None:
    """Append entries of one queue; entry n of the log is at position 10 n."""
    for _ in range(count):
        offset, at = index.next_offset(queue), index.end_position
        entries = native.core.make_block([queue], [offset], [at], [10], [0], [messages])
        assert index.tail.ring.claim(entries, 0, 1 << 20) == 1
        index.append(entries, at + 10)


def test_reads_across_runs_and_tail(tmp_path: Path) -> None:
    """Any offset, any count, also after reopening and merging."""
    index = QueueIndex(tmp_path, 64, 0)
    index.grow(2)
    flusher = flusher_of(index)
    for _ in range(5):
        put(index, 0, 7)
        put(index, 1, 3)
        flusher.flush()
    put(index, 0, 7)
    expected = [base * 100 + n * 10 for base in range(5) for n in range(7)] + [500 + n * 10 for n in range(7)]
    for offset in range(43):
        assert index.read(0, offset, 9).positions.tolist() == expected[offset : offset + 9]
    assert index.read(0, 0, 1000).positions.tolist() == expected
    flusher.flush()
    index.close()
    again = QueueIndex(tmp_path, 64, 0)
    assert (again.next_offset(0), again.next_offset(1)) == (42, 15)
    assert again.read(0, 0, 1000).positions.tolist() == expected
    flusher_of(again, merge=3).merge_if_many()
    assert len(again.runs) == 2
    assert again.read(0, 3, 1000).positions.tolist() == expected[3:]
    again.close()


def test_minimum_moves_with_the_begin(tmp_path: Path) -> None:
    """Whole runs are deleted, a run that is half in the log stays, an empty queue's minimum is its next offset."""
    index = QueueIndex(tmp_path, 64, 0)
    index.grow(2)
    flusher = flusher_of(index)
    put(index, 1, 2)
    put(index, 0, 8)
    flusher.flush()
    put(index, 0, 10)
    flusher.flush()
    assert (index.min_offset(0), index.min_offset(1)) == (0, 0)
    index.move_begin(50)
    assert (index.min_offset(0), index.min_offset(1)) == (3, 2)
    assert index.expired_runs() == []
    index.move_begin(100)
    assert (index.min_offset(0), index.min_offset(1)) == (8, 2)
    flusher.drop_runs(index.expired_runs())
    assert len(index.runs) == 1
    put(index, 1, 1)
    assert (index.min_offset(1), index.next_offset(1)) == (2, 3)
    flusher.flush()
    index.close()
    again = QueueIndex(tmp_path, 64, 100)
    assert (again.min_offset(0), again.min_offset(1), again.next_offset(1)) == (8, 2, 3)
    again.close()


def test_unknown_files_are_removed(tmp_path: Path) -> None:
    """Files that a crash left without an entry in the manifest."""
    QueueIndex(tmp_path, 64, 0).close()
    (tmp_path / "run-0000000007").write_bytes(b"x")
    (tmp_path / "offsets-0000000008").write_bytes(b"x")
    QueueIndex(tmp_path, 64, 0).close()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["tail"]


@catches(Plant("removed-before-it-is-durable", INDEX + "_remove_strangers", "fsync_dir(self.directory)", "pass"))
def test_unknown_files_stay_until_the_manifest_without_them_is_durable(tmp_path: Path, monkeypatch) -> None:
    """A power cut could bring back the manifest of before, which names them."""
    QueueIndex(tmp_path, 64, 0).close()
    stranger, seen = tmp_path / "run-00000099", []
    stranger.touch()
    monkeypatch.setattr(queue_index, "fsync_dir", lambda _directory: seen.append(stranger.exists()))
    QueueIndex(tmp_path, 64, 0).close()
    assert seen == [True]
    assert not stranger.exists()


@catches(
    Plant(
        "rows-with-entries",
        INDEX + "forget_rows",
        "if not (newest < tail.first).all() or not (confirmed == following).all():",
        "if False:",
    )
)
def test_rows_stay_while_there_are_entries_of_them(tmp_path: Path) -> None:
    """In the tail, or not confirmed: a deletion could still be cut from the log."""
    index = QueueIndex(tmp_path, 64, 0)
    index.grow(2)
    put(index, 1, 2)
    assert not index.forget_rows(0, 2)
    flusher_of(index).flush()
    assert not index.forget_rows(0, 2), "not confirmed"
    index.tail.row_column(CONFIRMED)[:2] = index.tail.row_column(NEXT)[:2]
    assert index.forget_rows(0, 2)
    index.close()


@catches(
    Plant(
        "in-no-file",
        INDEX + "set_floor",
        'self._note_floors((column([queue], "q"), column([next_offset], "q")))',
        "pass",
    ),
    Plant("in-a-file-of-before", INDEX + "seal", "self._floors[: bisect_right(self._floors_at, end)]", "self._floors"),
)
def test_a_floor_is_in_the_file_that_covers_it_and_in_none_before(tmp_path: Path) -> None:
    """A file that ends before it would say more than the log did there."""
    index = QueueIndex(tmp_path, 64, 0)
    index.grow(1)
    put(index, 0, 3)
    index.set_floor(1, 7)
    assert index.seal(10).floors == ()
    assert len(index.seal().floors) == 1
    index.close()


def test_floors_at_once(tmp_path: Path) -> None:
    """Only queues that are behind move."""
    index = QueueIndex(tmp_path / "index", 64, 0)
    index.set_floor(1, 7)
    index.set_floors(column([3, 5, 0], "q"))
    assert [index.next_offset(queue) for queue in range(3)] == [3, 7, 0]
    assert [index.tail.flushed_next(queue) for queue in range(3)] == [3, 7, 0]
    assert [index.confirmed_end(queue) for queue in range(3)] == [3, 7, 0]
    index.close()


STEPS = st.lists(
    st.tuples(st.integers(0, 2), st.integers(1, 5), st.sampled_from([1, 1, 2, 40]))
    | st.sampled_from(["flush", "merge", "reopen", "begin"]),
    max_size=40,
)


@settings(deadline=None, max_examples=80)
@given(STEPS, st.integers(1, 60))
def test_like_a_list_of_messages(steps, wanted: int) -> None:
    """Batches and single messages in runs and tail: every offset, over flushes, merges, reopening and expiry."""
    with tempfile.TemporaryDirectory() as folder:
        index, model, begin = QueueIndex(Path(folder), 64, 0), {0: [], 1: [], 2: []}, 0
        index.grow(3)
        for step in steps:
            flusher = flusher_of(index, merge=2)
            if step == "begin":
                begin = index.manifest.end_position
                index.move_begin(begin)
                flusher.drop_runs(index.expired_runs())
            elif step == "reopen":
                if index.tail.count > index.tail.first:
                    flusher.flush()
                index.close()
                index = QueueIndex(Path(folder), 64, begin)
                index.grow(3)
            elif step in {"flush", "merge"}:
                flusher.merging = step == "merge"
                flusher.flush()
            else:
                queue, count, messages = step
                if index.tail.room < count:
                    flusher.flush()
                for _ in range(count):
                    model[queue].append((index.next_offset(queue), index.end_position))
                    put(index, queue, 1, messages)
            for queue, entries in model.items():
                check(index, queue, [entry for entry in entries if entry[1] >= begin], wanted)
        index.close()


def check(index: QueueIndex, queue: int, entries: list[tuple[int, int]], wanted: int) -> None:
    """Minimum, next offset, and reads from the first and the last message of every entry."""
    following = index.next_offset(queue)
    assert index.min_offset(queue) == (entries[0][0] if entries else following)
    ends = [first for first, _ in entries[1:]] + [following] * bool(entries)
    for (first, _), end in zip(entries, ends, strict=True):
        for offset in (first, end - 1):
            found = index.read(queue, offset, wanted)
            expected = [
                entry for entry, behind in zip(entries, ends, strict=True) if behind > offset
                and entry[0] < offset + wanted
            ]  # fmt: skip
            assert list(zip(found.offsets.tolist(), found.positions.tolist(), strict=True)) == expected
            assert found.end == ends[entries.index(expected[-1])]
    assert len(index.read(queue, following, wanted)) == 0


def test_floors_survive_with_the_next_run(tmp_path: Path) -> None:
    """The index knows the next offset of a queue without live entries after the next run, whatever the state holds."""
    index = QueueIndex(tmp_path, 64, 0)
    index.set_floors(column([0, 7], "q"))
    put(index, 0, 1)
    flusher_of(index).flush()
    put(index, 1, 1)
    index.close()
    again = QueueIndex(tmp_path, 64, 0)
    assert (again.next_offset(0), again.next_offset(1)) == (1, 7)
    again.close()


def test_confirmed_ends_outlive_the_process(tmp_path: Path) -> None:
    """Also when another file has taken the name."""
    bench = StoreBench(tmp_path / "data")
    first, second = bench.store.queues.open_all([b"a", b"b"])
    bench.store.append(*[message([first], b"x") for _ in range(5)])
    bench.settle()
    path = tmp_path / "tail"
    shutil.copy(tmp_path / "data" / "index" / "tail", path)
    following = bench.store._parts.opened.index.tail.row_column(NEXT)[:2].astype("q")
    bench.close()
    former = FormerTail(path)
    path.unlink()
    assert former.taken_beyond(following) == []
    following[first] = 2
    assert former.taken_beyond(following) == [(first, 5)]
    following[:] = 0
    assert former.taken_beyond(following) == [(first, 5)]
    assert second == 1
    former.close()
    assert former.taken_beyond(following) == []


def test_invalid_files_say_nothing(tmp_path: Path) -> None:
    """No file, an empty one, one of another layout, a truncated one."""

    path = tmp_path / "tail"
    none = empty(4, "q")
    assert FormerTail(path).taken_beyond(none) == []
    for data in (b"", b"x" * 100, b"x" * 10_000, b"LMQTAIL2" + b"\xff" * 5_000):
        path.write_bytes(data)
        assert FormerTail(path).taken_beyond(none) == []
