"""Queues by name, and reading that knows which exist."""

from __future__ import annotations

from pathlib import Path

import pytest

from broker.store.index.reader import NO_SUCH_QUEUE
from broker.store.queues import Queues, Reading
from remoting.protocol.errors import LocalMisuse
from tests.sim.stores import StoreBench, message


def test_names_and_ids(tmp_path: Path) -> None:
    """Opened once, found again after a start, never reused once deleted; an empty name belongs to no queue."""
    bench = StoreBench(tmp_path / "data")
    queues: Queues = bench.store.queues
    first = queues.open(b"a")
    end = bench.store.end_position
    assert queues.open_all([b"b", b"a", b"b"]) == [first + 1, first, first + 1]
    assert bench.store.end_position > end
    with pytest.raises(LocalMisuse, match="not empty"):
        queues.open_all([b""])
    queues.delete([first])
    assert (queues.find(b"a"), queues.name(first + 1)) == (None, b"b")
    queues = bench.reopen().queues
    assert (queues.find(b"a"), queues.find(b"b"), queues.open(b"a")) == (None, first + 1, first + 2)
    with pytest.raises(LocalMisuse, match="does not exist"):
        queues.name(first)
    bench.close()


def test_a_queue_that_does_not_exist(tmp_path: Path) -> None:
    """A read returns a status; asking for its bounds is misuse."""
    bench = StoreBench(tmp_path / "data")
    queue, reading = bench.store.queues.open(b"q"), bench.store.reading
    assert isinstance(reading, Reading)
    bench.store.append(message([queue], b"x"))
    bench.settle()
    assert reading.bounds(queue) == (0, 1)
    assert reading.confirmed_end(queue) == reading.next_offset(queue) == 1
    assert reading.read(queue + 1, 3, 1, 1).status == NO_SUCH_QUEUE
    assert reading.read_range(queue + 1, 3, 1, 1, 9).status == NO_SUCH_QUEUE
    for ask in (reading.bounds, reading.next_offset, lambda each: reading.search_time(each, 0)):
        with pytest.raises(LocalMisuse, match="does not exist"):
            ask(queue + 1)
    bench.close()
