"""A store in this process, and its directory as another process would see it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from broker.store.attached.store import AttachedStore
from remoting.protocol.records.record import RecordView, check_record
from tests.sim.stores import StoreBench, drain, message


class Pair:
    """A writer and a reader of one directory."""

    def __init__(self, directory: Path, **settings: object) -> None:
        self.directory = directory
        self.bench = StoreBench(directory, **settings)
        self.queue, self.other = self.bench.store.queues.open_all([b"q", b"other"])
        self.bench.settle()
        self.written = 0
        self.attached = AttachedStore(directory)

    def append(self, count: int, queue: int | None = None) -> None:
        """Numbered messages, one append each, confirmed."""
        queue = self.queue if queue is None else queue
        for _ in range(count):
            self.bench.store.append(message([queue], b"%06d" % self.written))
            self.written += 1
        self.bench.settle()

    def make_run(self) -> None:
        """Move the tail into a run, with whatever merge follows."""
        drain(self.bench.store)
        self.bench.store._parts.index_flusher.flush()
        drain(self.bench.store)

    def expire(self, before: int) -> None:
        """Let retention take the segments below a log position."""
        store = self.bench.store
        if store._parts.opened.index.manifest.end_position < before:
            self.make_run()
        store._log.drop_before(before)
        store._parts.opened.index.move_begin(store._log.begin)
        store._parts.index_flusher.drop_runs(store._parts.opened.index.expired_runs())
        drain(store)

    def read(self, offset: int, end: int = 1 << 40, queue: int | None = None) -> list[int]:
        """The numbers of a range, checked."""
        found = self.attached.read_range(self.queue if queue is None else queue, offset, 1 << 20, 1 << 30, end)
        numbers = []
        for start in found.starts.tolist():
            check_record(memoryview(found.blob), start, None)
            numbers.append(int(bytes(RecordView(memoryview(found.blob), start).body)))
        return numbers

    def close(self) -> None:
        self.attached.close()
        self.bench.close()


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    made = Pair(tmp_path / "data")
    yield made
    made.close()
