"""The tail of a writer, looked at while it goes on."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from broker.store.attached.tail_view import Moved, TailView
from broker.store.index.tail import Tail
from remoting.native import core as native

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


def test_a_file_is_believed_when_its_writer_says_so(tmp_path: Path) -> None:
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


def test_what_is_not_published_is_not_there(filled: Filled, tmp_path: Path) -> None:
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


def test_written_over_while_it_was_read(filled: Filled, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The copy is thrown away when the writer took the slots meanwhile, whatever was in it."""
    filled.add([1] * 60)
    view = TailView(tmp_path / "tail")
    before = view._numbers_of

    def slow(queue: int, start: int) -> np.ndarray:
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
