"""One record, or one of three answers that are never the same."""

from __future__ import annotations

from pathlib import Path

from broker.store.index.absence import Absence
from tests.sim.stores import StoreBench, message


def test_one_record_or_why_there_is_none(tmp_path: Path) -> None:
    """Confirmed, deleted, not confirmed, not there yet: no two of these are the same answer."""
    bench = StoreBench(tmp_path / "data")
    queue, deleted = bench.store.queues.open_all([b"q", b"r"])
    bench.store.append(message([queue], b"x"))
    bench.store.queues.delete([deleted])
    bench.settle()
    bench.store.append(message([queue], b"y"))
    reading = bench.store.reading
    found = [reading.record(queue, 0), reading.record(queue, 1), reading.record(queue, 2)]
    assert isinstance(found[0], memoryview)
    assert found[1:] == [Absence.NOT_YET, Absence.NOT_YET]
    assert (reading.record(deleted, 0), reading.record(deleted + 1, 0)) == (Absence.GONE, Absence.NOT_YET)
    bench.settle()
    assert isinstance(reading.record(queue, 1), memoryview)
    bench.close()
