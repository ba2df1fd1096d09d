"""Runs plus tail: reads across both, minimum offsets, reopening."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from broker.store import hot
from broker.store.queue_index.index import QueueIndex
from broker.store.queue_index.index_flusher import IndexFlusher
from broker.store.settings import StoreSettings
from runtime.faults import FaultPoints


class InlineThread:
    """Runs each job at once."""

    def submit(self, job, done) -> None:
        done(job(), None)

    def drain(self) -> None:
        return


def flusher_of(index: QueueIndex, merge: int = 100) -> IndexFlusher:
    settings = StoreSettings(index_tail_entries=64, index_merge_runs=merge)
    return IndexFlusher(index, InlineThread(), lambda: 0, settings, FaultPoints(), lambda error: None)


def put(index: QueueIndex, queue: int, count: int) -> None:
    """Append entries of one queue; entry n of the log stands at position 10 n."""
    for _ in range(count):
        offset, at = index.next_offset(queue), index.end_position
        entries = hot.core.make_block([queue], [offset], [at], [10], [0])
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
    """Whole runs go, a run that is half in the log stays, an empty queue's minimum is its next offset."""
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


def test_strangers_are_removed(tmp_path: Path) -> None:
    """What a crash left without the manifest naming it."""
    QueueIndex(tmp_path, 64, 0).close()
    (tmp_path / "run-0000000007").write_bytes(b"x")
    (tmp_path / "offsets-0000000008").write_bytes(b"x")
    QueueIndex(tmp_path, 64, 0).close()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["tail"]


def test_floors_at_once(tmp_path: Path) -> None:
    """Only queues that are behind move."""
    index = QueueIndex(tmp_path / "index", 64, 0)
    index.set_floor(1, 7)
    index.set_floors(np.array([3, 5, 0]))
    assert [index.next_offset(queue) for queue in range(3)] == [3, 7, 0]
    assert index.flushed_next[:3].tolist() == [3, 7, 0]
    index.close()
