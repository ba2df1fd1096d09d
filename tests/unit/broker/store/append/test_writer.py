"""The write path: time never goes back, retained messages follow their flags, background failures."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from broker.store.errors import StoreFailed, StoreFull
from broker.store.state import state_kinds
from broker.store.state.state_kinds import StateChange
from remoting.protocol.records.record import FLAG_MQTT, FLAG_RETAIN, RecordView
from tests.sim.stores import StoreBench, bodies, message


@pytest.fixture
def bench(tmp_path: Path):
    made = StoreBench(tmp_path / "data")
    yield made
    made.close()


def test_retained_message_set_and_cleared(bench: StoreBench) -> None:
    """The table holds the record's position; an empty body clears it; subscribers get both."""
    store, heard = bench.store, []
    queue = store.queues.open(b"q")
    store.state.subscribe(state_kinds.RETAINED, lambda *change: heard.append(change))
    flags = FLAG_MQTT | FLAG_RETAIN
    at = store.append(message([queue], b"on", flags=flags, mqtt_topic=b"a/b")).first_position
    assert store.state.get(state_kinds.RETAINED, b"a/b") == (b"", at)
    gone = store.append(message([queue], b"", flags=flags, mqtt_topic=b"a/b")).first_position
    assert store.state.get(state_kinds.RETAINED, b"a/b") is None
    assert heard == [(b"a/b", b"", at), (b"a/b", None, gone)]


@pytest.mark.parametrize("fast", [True, False])
def test_a_message_for_more_queues_than_a_record_names_reaches_all(bench: StoreBench, fast: bool) -> None:
    """In one append, also with state changes and after a restart: whoever opens queues refuses nobody's message."""
    store = bench.store
    queues = [store.queues.open(b"q%d" % number) for number in range(75)]  # 32 to a record, with this index
    bench.settle()
    changes = [] if fast else [StateChange(state_kinds.LEDGER, b"k", b"v")]
    flags = FLAG_MQTT | FLAG_RETAIN
    first = message([queues[0]], b"0")
    wide = message(queues, b"wide", flags=flags, mqtt_topic=b"a/b")
    appended = store.append(first, wide, message([queues[-1]], b"2"), changes=changes)
    assert appended.offsets[:3] == [0, 1, 0]
    bench.settle()
    for opened in (lambda: store, bench.reopen):
        again = opened()
        assert bodies(again, queues[0]) == [b"0", b"wide"]
        assert bodies(again, queues[40]) == [b"wide"]
        assert bodies(again, queues[-1]) == [b"2", b"wide"]
        position = again.state.get(state_kinds.RETAINED, b"a/b")[1]
        assert bytes(RecordView(again.reading.read_at(position)).body) == b"wide"


def test_store_time_never_goes_back(bench: StoreBench) -> None:
    """A wall clock that jumps back does not break the search by time."""
    queue = bench.store.queues.open(b"q")
    bench.store.append(message([queue], b"1"))
    bench.clock.set_wall_ms(5)
    bench.store.append(message([queue], b"2"))
    bench.settle()
    stored = [RecordView(record, 0).store_ms for record in bench.store.reading.read(queue, 0, 9, 1 << 20).records]
    assert stored[0] == stored[1] > 5


def test_failed_write_is_final(bench: StoreBench) -> None:
    """EIO from pwrite: StoreFailed now and for ever, with the first cause."""
    queue = bench.store.queues.open(b"q")
    bench.settle()
    bench.faults.arm("log.write", OSError(errno.EIO, "Input/output error"))
    for _ in range(2):
        with pytest.raises(StoreFailed, match="writing to the log failed"):
            bench.store.append(message([queue], b"x"))


class FailingPen:
    """Leaves half of a write in the file and fails."""

    attempted = 64

    def __init__(self, bench: StoreBench, number: int) -> None:
        self.segment = bench.store._log.segment_at(bench.store.end_position)
        self.number = number

    def aim(self, *_: object) -> None:
        """Stay as it is."""

    def write(self, _images, _queues, _atomic, _store_ms, position: int, *_: object):
        self.segment.write(position, b"\xff" * 32)
        raise OSError(self.number, "no")


@pytest.mark.parametrize(("number", "error"), [(errno.ENOSPC, StoreFull), (errno.EIO, StoreFailed)])
def test_what_a_failed_native_write_leaves_is_erased(bench: StoreBench, number: int, error: type) -> None:
    """A full disk refuses, anything else is final, as on the path in Python."""
    store = bench.store
    queue = store.queues.open(b"q")
    end = store.append(message([queue], b"x")).end_position
    store._writer._segments = FailingPen(bench, number)
    with pytest.raises(error):
        store.append(message([queue], b"y"))
    assert bytes(store._log.view(end, 64) or b"") == bytes(64)
    assert (store.end_position, store.reading.next_offset(queue), store.disk.full) == (end, 1, error is StoreFull)


def test_both_write_paths_make_one_log(bench: StoreBench) -> None:
    """Over many files, with state changes and armed faults in between: dense queues, all bodies in order."""
    store = bench.store
    queues, sent = store.queues.open_all([b"a", b"b"]), []
    bench.faults.arm("log.write", lambda: None, after=10_000, times=None)
    for number in range(400):
        if number == 200:
            bench.faults.disarm("log.write")
        if number % 50 == 0:
            store.queues.open(b"q%d" % number)
        body = b"%d" % number + bytes(number % 97)
        store.append(message(queues, body), message(queues[:1], body))
        sent.append(body)
    bench.settle()
    assert bodies(store, queues[1]) == sent
    assert bodies(store, queues[0]) == [body for body in sent for _ in range(2)]
    assert len(store._log.segments) > 5
    assert store.metrics()["bytes_total"] == store.end_position


def test_background_failures(bench: StoreBench) -> None:
    """No space refuses appends, a failing disk is final, a bug in a job is only reported."""
    queue = bench.store.queues.open(b"q")
    failure = bench.store._parts.failure
    failure.background_failed(ValueError("bug"))
    bench.store.append(message([queue], b"x"))
    failure.background_failed(OSError(errno.ENOSPC, "full"))
    with pytest.raises(StoreFull):
        bench.store.append(message([queue], b"x"))
    failure.background_failed(OSError(errno.EIO, "gone"))
    with pytest.raises(StoreFailed):
        bench.store.append(message([queue], b"x"))
