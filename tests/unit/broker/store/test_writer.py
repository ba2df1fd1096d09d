"""The write path: time never goes back, retained messages follow their flags, background failures."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from broker.store import state_kinds
from broker.store.errors import StoreFailed, StoreFull
from remoting.protocol.record import FLAG_MQTT, FLAG_RETAIN, RecordView
from tests.sim.stores import StoreBench, message


@pytest.fixture
def bench(tmp_path: Path):
    made = StoreBench(tmp_path / "data")
    yield made
    made.close()


def test_retained_message_set_and_cleared(bench: StoreBench) -> None:
    """The table holds the record's position; an empty body clears it; subscribers hear both."""
    store, heard = bench.store, []
    queue = store.open_queue(b"q")
    store.state.subscribe(state_kinds.RETAINED, lambda *change: heard.append(change))
    flags = FLAG_MQTT | FLAG_RETAIN
    at = store.append([message([queue], b"on", flags=flags, mqtt_topic=b"a/b")]).first_position
    assert store.state.get(state_kinds.RETAINED, b"a/b") == (b"", at)
    gone = store.append([message([queue], b"", flags=flags, mqtt_topic=b"a/b")]).first_position
    assert store.state.get(state_kinds.RETAINED, b"a/b") is None
    assert heard == [(b"a/b", b"", at), (b"a/b", None, gone)]


def test_store_time_never_goes_back(bench: StoreBench) -> None:
    """A wall clock that jumps back does not break the search by time."""
    queue = bench.store.open_queue(b"q")
    bench.store.append([message([queue], b"1")])
    bench.clock.set_wall_ms(5)
    bench.store.append([message([queue], b"2")])
    bench.settle()
    stored = [RecordView(record, 0).store_ms for record in bench.store.read(queue, 0, 9, 1 << 20).records]
    assert stored[0] == stored[1] > 5


def test_failed_write_is_final(bench: StoreBench) -> None:
    """EIO from pwrite: StoreFailed now and for ever, with the first cause."""
    queue = bench.store.open_queue(b"q")
    bench.settle()
    bench.faults.arm("log.write", OSError(errno.EIO, "Input/output error"))
    for _ in range(2):
        with pytest.raises(StoreFailed, match="writing to the log failed"):
            bench.store.append([message([queue], b"x")])


def test_background_failures(bench: StoreBench) -> None:
    """No space refuses appends, a failing disk is final, a bug in a job is only reported."""
    queue = bench.store.open_queue(b"q")
    writer = bench.store._writer
    writer.background_failed(ValueError("bug"))
    bench.store.append([message([queue], b"x")])
    writer.background_failed(OSError(errno.ENOSPC, "full"))
    with pytest.raises(StoreFull):
        bench.store.append([message([queue], b"x")])
    writer.background_failed(OSError(errno.EIO, "gone"))
    with pytest.raises(StoreFailed):
        bench.store.append([message([queue], b"x")])
