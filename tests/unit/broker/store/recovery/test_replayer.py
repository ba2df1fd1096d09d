"""Replaying the log, and restoring what damage destroyed."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from broker.store.errors import CorruptIndex, UnreadableOffsets
from broker.store.index.queue_index import QueueIndex
from broker.store.inspection.verifier import verify
from broker.store.recovery.replayer import Replayer, Stretch
from broker.store.state import state_kinds
from broker.store.state.state_kinds import StateChange
from broker.store.state.state_tables import StateTables, queue_value
from remoting.protocol.records.record import FLAG_MQTT, FLAG_RETAIN
from tests.sim.log_judge import Seen, read_log
from tests.sim.stores import StoreBench, drain, message


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


def test_a_queue_known_only_from_the_state_continues_without_a_hole(tmp_path: Path) -> None:
    """A rebuild cut short by a crash has not yet recorded the next offsets of queues whose messages had all expired."""
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


def crashed(bench: StoreBench, target: Path) -> list[Seen]:
    """Copy the directory as a killed process leaves it; return its records."""
    bench.settle()
    drain(bench.store)
    shutil.copytree(bench.directory, target)
    (target / "lock").unlink()
    bench.close()
    return read_log(target)


def hurt(directory: Path, first: Seen, last: Seen) -> None:
    path = directory / "log" / "0".zfill(20)
    with path.open("r+b") as file:
        file.seek(first.position)
        file.write(bytes(last.end - first.position))


@pytest.fixture
def bench(tmp_path: Path) -> StoreBench:
    """A store with one large file."""
    return StoreBench(tmp_path / "data", segment_size_bytes=64 * 1024, index_tail_entries=4096)


def test_a_queue_whose_name_is_lost(tmp_path: Path, bench: StoreBench) -> None:
    """It gets a placeholder, keeps its id and its records, and no queue gets an id that may have been used."""
    kept = bench.store.queues.open(b"kept")
    lost = bench.store.queues.open(b"lost")
    gone = bench.store.queues.open(b"gone")
    bench.store.append(*[message([kept, lost], b"%d" % n) for n in range(5)])
    records = crashed(bench, tmp_path / "crashed")
    hurt(tmp_path / "crashed", records[1], records[2])
    after = StoreBench(tmp_path / "crashed", segment_size_bytes=64 * 1024)
    for start in range(2):
        store = after.reopen() if start else after.store
        assert store.queues.find(b"lost") is None
        assert store.queues.name(lost) == b"%%DAMAGED%%%d" % lost
        assert store.reading.read(lost, 0, 10, 1 << 20).next_offset == 5
        assert store.queues.find(b"gone") is None
    assert after.store.queues.open(b"new") > gone
    after.settle()
    after.close()
    for derived in ("index", "state"):
        shutil.rmtree(tmp_path / "crashed" / derived)
    store = after.open()
    assert store.queues.name(lost) == b"%%DAMAGED%%%d" % lost
    assert store.queues.find(b"new") is not None
    after.close()
    assert verify(tmp_path / "crashed").errors == []


def test_a_queue_whose_name_was_written_again_in_the_damage(tmp_path: Path) -> None:
    """Its first record has expired with its log file, and records of it lie on both sides of the second."""
    settings = {"retention_size_bytes": 64 * 1024}
    bench = StoreBench(tmp_path / "data", **settings)
    lost = bench.store.queues.open(b"lost")
    while not bench.store.begin_position:
        bench.store.append(message([lost], bytes(500)))
        bench.settle()
        bench.store.maintain(bench.clock.now_ms())
        drain(bench.store)
    bench.store.append(message([lost], b"last"))
    records = crashed(bench, tmp_path / "crashed")
    said = [seen for seen in records if b"lost" in seen.body]
    assert len(said) == 1
    assert records[0].dispatch[0][0] == records[-1].dispatch[0][0] == lost
    base = max(int(path.name) for path in (tmp_path / "crashed/log").iterdir() if int(path.name) <= said[0].position)
    with (tmp_path / "crashed/log" / f"{base:020}").open("r+b") as file:
        file.seek(said[0].position - base)
        file.write(bytes(said[0].end - said[0].position))
    for derived in ("index", "state"):
        shutil.rmtree(tmp_path / "crashed" / derived, ignore_errors=True)
    after = StoreBench(tmp_path / "crashed", **settings)
    assert after.store.queues.name(lost) == b"%%DAMAGED%%%d" % lost
    low, high = after.store.reading.bounds(lost)
    assert (low, high) == (records[0].dispatch[0][1], records[-1].dispatch[0][1] + 1)
    after.close()


def test_offsets_at_the_end_are_not_reused(tmp_path: Path, bench: StoreBench) -> None:
    """The last messages of a queue are lost: what was confirmed becomes a hole, new ones follow it."""
    queue, other = bench.store.queues.open_all([b"q", b"other"])
    bench.store.append(*[message([queue], b"%d" % n) for n in range(10)])
    bench.store.append(message([other], b"o"))
    records = crashed(bench, tmp_path / "crashed")
    hurt(tmp_path / "crashed", records[5], records[-1])
    after = StoreBench(tmp_path / "crashed", segment_size_bytes=64 * 1024)
    end = records[-1].end
    for turn in range(3):
        store = after.store
        assert store.reading.bounds(queue) == (0, 10 + turn)
        assert store.reading.bounds(other)[1] == 1
        with pytest.raises(UnreadableOffsets, match="offsets 4 to 9") as told:
            store.reading.read(queue, 4, 10, 1 << 20)
        assert told.value.position == records[5].position
        assert store.append(message([queue], b"new")).offsets == [10 + turn]
        assert store.end_position > end
        after.settle()
        if turn == 1:
            after.close()
            shutil.rmtree(tmp_path / "crashed" / "index")
            shutil.rmtree(tmp_path / "crashed" / "state")
            after.open()
        else:
            after.reopen()
    assert [(each.start, each.end) for each in after.store.quarantined] == [(records[5].position, end)]
    after.close()
    assert verify(tmp_path / "crashed").errors == []


def test_offsets_after_those_in_a_run_are_not_reused(tmp_path: Path, bench: StoreBench) -> None:
    """A run has entries of damaged records; confirmed offsets after those were lost too."""
    queue = bench.store.queues.open(b"q")
    bench.store.append(*[message([queue], b"%d" % n) for n in range(6)])
    bench.settle()
    bench.store._parts.index_flusher.flush()
    drain(bench.store)
    bench.settle()
    bench.store.append(*[message([queue], b"%d" % n) for n in range(6, 10)])
    records = crashed(bench, tmp_path / "crashed")
    hurt(tmp_path / "crashed", records[4], records[-1])
    after = StoreBench(tmp_path / "crashed", segment_size_bytes=64 * 1024)
    for turn in range(2):
        assert after.store.reading.bounds(queue) == (0, 10 + turn)
        assert after.store.append(message([queue], b"new")).offsets == [10 + turn]
        after.settle()
        after.reopen()
    assert after.store.reading.read(queue, 10, 10, 1 << 20).next_offset == 12
    after.close()


def test_holes_between_records(tmp_path: Path, bench: StoreBench) -> None:
    """What lies between two sound records of a queue is one hole, as many offsets long as are missing."""
    queue = bench.store.queues.open(b"q")
    bench.store.append(*[message([queue], b"%d" % n) for n in range(10)])
    records = crashed(bench, tmp_path / "crashed")
    hurt(tmp_path / "crashed", records[3], records[5])
    after = StoreBench(tmp_path / "crashed", segment_size_bytes=64 * 1024)
    assert after.store.reading.read(queue, 0, 10, 1 << 20).next_offset == 2
    with pytest.raises(UnreadableOffsets, match="offsets 2 to 4 cannot be read"):
        after.store.reading.read(queue, 2, 10, 1 << 20)
    assert after.store.reading.read(queue, 5, 10, 1 << 20).next_offset == 10
    after.close()


def test_state_known_from_a_snapshot_is_written_again(tmp_path: Path, bench: StoreBench) -> None:
    """So that the log alone has it again; a retained message that cannot be read is dropped."""
    bench.store.append_state([StateChange(state_kinds.SESSION, b"s", b"value")])
    bench.store.append(message([], b"kept", flags=0x0C, mqtt_topic=b"t"))
    bench.settle()
    bench.store._parts.snapshots.take()
    bench.store.append_state([StateChange(state_kinds.SESSION, b"later", b"x")])
    records = crashed(bench, tmp_path / "crashed")
    hurt(tmp_path / "crashed", records[0], records[1])
    for name in ("CHECKPOINT", "DURABLE"):
        (tmp_path / "crashed" / name).unlink()  # no epoch is known: the start reads the whole log
    after = StoreBench(tmp_path / "crashed", segment_size_bytes=64 * 1024)
    after.settle()
    after.close()
    for derived in ("index", "state"):
        shutil.rmtree(tmp_path / "crashed" / derived)
    store = after.open()
    assert store.state.get(state_kinds.SESSION, b"s")[0] == b"value"
    assert store.state.get(state_kinds.SESSION, b"later")[0] == b"x"
    assert store.state.get(state_kinds.RETAINED, b"t") is None
    after.close()
