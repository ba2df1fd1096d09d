"""Replay gives what the writer had."""

from __future__ import annotations

from pathlib import Path

import pytest

from broker.store.errors import CorruptIndex
from broker.store.index.queue_index import QueueIndex
from broker.store.recovery.replayer import Replayer, Stretch
from broker.store.state import state_kinds
from broker.store.state.queue_registry import queue_value
from broker.store.state.state_log import StateChange
from broker.store.state.state_tables import StateTables
from remoting.protocol.records.record import FLAG_MQTT, FLAG_RETAIN
from tests.sim.stores import StoreBench, message


def test_same_tables_and_offsets(tmp_path: Path) -> None:
    """From the log alone, in pieces smaller than the tail."""
    bench = StoreBench(tmp_path / "data", index_tail_entries=4096)
    store = bench.store
    queues = store.queues.open_all([b"a", b"b"])
    for n in range(300):
        flags = FLAG_MQTT | FLAG_RETAIN if n % 3 else FLAG_MQTT
        topic = b"p/%d" % (n % 7)
        store.append(
            message(queues[: 1 + n % 2], b"" if n % 11 == 0 else b"x", flags=flags, mqtt_topic=topic),
            changes=[StateChange(state_kinds.LEDGER, b"%d" % (n % 5), b"%d" % n if n % 4 else None)],
        )
    index, tables = QueueIndex(tmp_path / "index", 4096, 0), StateTables()
    Replayer(index, tables, lambda entries: None, rebuilding=True).run(store._log, Stretch(0, 0, store.end_position))
    assert tables.copy() == store.state.copy()
    assert tables.count(state_kinds.RETAINED) > 0
    for queue in queues:
        count = store.reading.next_offset(queue)
        assert index.next_offset(queue) == count
        ours, theirs = index.read(queue, 0, count), store._parts.opened.index.read(queue, 0, count)
        assert ours.positions.tolist() == theirs.positions.tolist()
        assert ours.sizes.tolist() == theirs.sizes.tolist()
    index.set_floor(queues[0], 10_000)
    with pytest.raises(CorruptIndex, match="expects 10000"):
        Replayer(index, tables, lambda entries: None, rebuilding=False).run(
            store._log, Stretch(0, 0, store.end_position)
        )
    index.close()
    bench.close()


def test_a_queue_that_only_the_state_knows_goes_on_without_a_hole(tmp_path: Path) -> None:
    """A rebuild that a crash cut short has not said yet where queues go on whose messages had all expired."""
    bench = StoreBench(tmp_path / "data", index_tail_entries=4096)
    store = bench.store
    queue = store.queues.open(b"a")
    said = store.append_state([StateChange(state_kinds.QUEUE, b"late", queue_value(queue + 1, 94))])
    assert store.append(message([queue + 1], b"x")).offsets == [94]
    index, tables = QueueIndex(tmp_path / "index", 4096, 0), StateTables()
    for start, end, rebuilding in ((0, said, True), (said, store.end_position, False)):
        replayer = Replayer(index, tables, lambda entries: None, rebuilding=rebuilding)
        replayer.run(store._log, Stretch(start, start, end))
        assert replayer.holes == 0
    assert (index.min_offset(queue + 1), index.next_offset(queue + 1)) == (94, 95)
    index.close()
    bench.close()
