"""Segments expire; state, queue ids and retained messages do not."""

from __future__ import annotations

import errno
import shutil
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.store.errors import StoreFull
from broker.store.read_result import OFFSET_TOO_SMALL
from broker.store.state import state_kinds
from broker.store.state.state_log import StateChange
from broker.store.upkeep.retention import AGE, FULL_DISK, SIZE, RetentionLimits, choose_segments
from remoting.protocol.records.record import FLAG_MQTT, FLAG_RETAIN, RecordView
from tests.sim.replicas import ReplicaBench, pull
from tests.sim.stores import StoreBench, bodies, message


def expire(bench: StoreBench, begin: int) -> None:
    """Maintain until the log begins at or above `begin`."""
    for _ in range(400):
        bench.store.maintain(bench.clock.now_ms())
        bench.settle()
        bench.store._site.thread.drain()
        if bench.store.begin_position >= begin and not bench.store._parts.opened.index.expired_runs():
            return
    raise AssertionError(f"the log still begins at {bench.store.begin_position}")


def test_old_segments_go_and_state_stays(tmp_path: Path) -> None:
    """Minimum offsets move, reads say so, and a rebuild from the log alone still knows everything."""
    bench = StoreBench(tmp_path / "data", retention_ms=1000, carry_entries_max=3)
    store = bench.store
    busy, idle = store.queues.open_all([b"busy", b"idle"])
    gone = store.queues.open(b"gone")
    store.queues.delete([gone])
    for n in range(10):
        store.append_state([StateChange(state_kinds.SESSION, b"client%d" % n, b"state%d" % n)])
    retained = message([busy], b"21.5", flags=FLAG_MQTT | FLAG_RETAIN, mqtt_topic=b"plant/temp")
    store.append(retained, message([idle], b"only one"))
    store.append_state([StateChange(state_kinds.SESSION, b"client3", None)])
    for n in range(400):
        store.append(message([busy], b"%06d" % n + bytes(100)))
        bench.clock.advance_ms(10)
    bench.settle()
    first_end = store._log.segments[0].end
    expire(bench, first_end)
    low, high = store.reading.bounds(busy)
    assert low > 0
    assert high == 401
    assert store.reading.bounds(idle) == (1, 1)
    result = store.reading.read(busy, 0, 5, 1 << 20)
    assert (result.status, result.first_offset) == (OFFSET_TOO_SMALL, low)
    assert bodies(store, busy) == [b"%06d" % n + bytes(100) for n in range(low - 1, 400)]

    def check(store) -> None:
        sessions = {key: value for key, (value, _) in store.state.items(state_kinds.SESSION)}
        assert sessions == {b"client%d" % n: b"state%d" % n for n in range(10) if n != 3}
        position = store.state.get(state_kinds.RETAINED, b"plant/temp")[1]
        record = RecordView(store.reading.read_at(position), 0)
        assert (record.mqtt_topic, bytes(record.body), record.dispatch()) == (b"plant/temp", b"21.5", [])
        assert (store.queues.find(b"busy"), store.queues.find(b"idle"), store.queues.find(b"gone")) == (
            busy,
            idle,
            None,
        )
        assert store.reading.next_offset(idle) == 1
        assert store.reading.bounds(busy) == (low, high)

    check(store)
    bench.reopen()
    check(bench.store)
    bench.store.close()
    shutil.rmtree(bench.directory / "index")
    shutil.rmtree(bench.directory / "state")
    (bench.directory / "CHECKPOINT").unlink()
    bench.open()
    check(bench.store)
    assert bench.store.queues.open(b"new") == gone + 1
    bench.close()


def test_size_limit(tmp_path: Path) -> None:
    """The oldest segments go until the log fits, and whole runs with them."""
    bench = StoreBench(tmp_path / "data", retention_size_bytes=40_000)
    queue = bench.store.queues.open(b"q")
    for n in range(900):
        bench.store.append(message([queue], b"%d" % n + bytes(100)))
        bench.store.maintain(0)
    bench.settle()
    expire(bench, bench.store.end_position - 40_000 - 16_384)
    assert bench.store.metrics()["segments_expired_bytes_total"] > 0
    assert all(run.end_position > bench.store.begin_position for run in bench.store._parts.opened.index.runs)
    low, high = bench.store.reading.bounds(queue)
    assert [int(body.rstrip(b"\0")) for body in bodies(bench.store, queue)] == list(range(low, high))
    bench.close()


@given(
    st.lists(st.integers(1, 100), max_size=10),
    st.integers(0, 800),
    st.integers(0, 12),
    st.integers(0, 800),
    st.booleans(),
)
def test_choice_is_a_prefix(sizes, size_max: int, oldest_ms: int, held: int, make_room: bool) -> None:
    """Only whole segments from the oldest on, never more than the rules ask for; what is held goes for size alone."""
    ends, total = [], 0
    for n, size in enumerate(sizes):
        total += size
        ends.append((total, n))
    end = total + 10
    chosen = choose_segments(0, ends, end, RetentionLimits(oldest_ms, size_max, held, make_room=make_room))
    assert [position for position, _ in chosen] == [position for position, _ in ends[: len(chosen)]]
    begin = 0
    for (position, reason), (_, newest_ms) in zip(chosen, ends, strict=False):
        assert reason != SIZE or end - begin > size_max > 0
        assert reason != AGE or (newest_ms < oldest_ms and position <= held)
        assert reason != FULL_DISK or (make_room and begin == 0)
        begin = position
    if len(chosen) < len(ends):
        following, newest_ms = ends[len(chosen)]
        assert size_max == 0 or end - begin <= size_max
        assert newest_ms >= oldest_ms or following > held
        assert chosen or not make_room


def test_state_is_not_lost_when_there_is_no_room_to_say_it_again(tmp_path: Path) -> None:
    """A carry that finds a full disk is tried again; the segment stays until it went through."""
    bench = StoreBench(tmp_path / "data", retention_size_bytes=20_000)
    store = bench.store
    store.append_state([StateChange(state_kinds.SESSION, b"client", b"state")])
    queue = store.queues.open(b"q")
    for _ in range(60):
        store.append(message([queue], bytes(1000)))
    bench.settle()
    bench.faults.arm("log.write", OSError(errno.ENOSPC, "full"), times=2)
    for _ in range(3):
        store.maintain(0)
        assert store.begin_position == 0
    expire(bench, 1)
    bench.close()
    shutil.rmtree(bench.directory / "state")
    bench.open()
    assert bench.store.begin_position > 0
    assert bench.store.state.get(state_kinds.SESSION, b"client")[0] == b"state"
    bench.close()


def test_a_segment_waits_for_what_replaced_its_state(tmp_path: Path) -> None:
    """A record that is not on the disk yet does not make the old word needless: a crash would lose both."""
    bench = StoreBench(tmp_path / "data", retention_size_bytes=32 * 1024)
    store = bench.store
    store.append_state([StateChange(state_kinds.SESSION, b"client", b"old")])
    for _ in range(600):
        store.append(message([], bytes(100)))
    bench.settle()
    flushed = store.positions.flushed
    store.append_state([StateChange(state_kinds.SESSION, b"client", b"new")])
    for _ in range(50):
        store.retention.step(bench.clock.now_ms(), flushed)
        store._site.thread.drain()
        bench.turn()
        assert store.begin_position == 0
    bench.settle()
    for _ in range(50):
        store.retention.step(bench.clock.now_ms(), store.positions.flushed)
        store._site.thread.drain()
        bench.turn()
    assert store.begin_position > 0
    bench.close()


def test_a_full_disk_lets_the_oldest_segment_go_only_where_that_is_allowed(tmp_path: Path) -> None:
    """Below the floor nothing goes by default; with `expire_when_full` segment after segment, until there is room."""
    for allowed in (False, True):
        bench = StoreBench(tmp_path / str(allowed), expire_when_full=allowed)
        store = bench.store
        queue = store.queues.open(b"q")
        store.append_state([StateChange(state_kinds.SESSION, b"client", b"state")])
        for n in range(100):
            store.append(message([queue], b"%03d" % n + bytes(1000)))
        bench.settle()
        bench.faults.arm("disk.free", OSError(errno.ENOSPC, "full"), times=30)
        for _ in range(12):
            store.maintain(bench.clock.now_ms())
            bench.settle()
            store._site.thread.drain()
        assert store.disk.full
        assert (store.begin_position > 0) is allowed
        assert (store.metrics()["segments_expired_disk_full_bytes_total"] > 0) is allowed
        for _ in range(30):
            store.maintain(bench.clock.now_ms())
        assert not store.disk.full
        low = store.reading.bounds(queue)[0]
        store.append(message([queue], b"100"))
        bench.settle()
        assert [int(body[:3]) for body in bodies(store, queue)] == list(range(low, 101))
        assert store.state.get(state_kinds.SESSION, b"client")[0] == b"state"
        bench.close()


def test_a_segment_waits_for_what_others_keep_in_it(tmp_path: Path) -> None:
    """Who keeps something is asked until it has said all of it again; a full disk only puts it off."""
    bench = StoreBench(tmp_path / "data", retention_ms=1000)
    store = bench.store
    busy, kept = store.queues.open_all([b"busy", b"kept"])
    asked: list[int] = []

    def keep(target: int, append) -> bool:
        asked.append(target)
        if len(asked) == 1:
            raise StoreFull("no room")
        if len(asked) < 4:
            append(message([kept], b"again"), [StateChange(state_kinds.DELAYED, b"k", b"%d" % len(asked))])
            return False
        return True

    store.retention.keep(keep)
    for n in range(400):
        store.append(message([busy], b"%06d" % n + bytes(100)))
        bench.clock.advance_ms(10)
    bench.settle()
    first_end = store._log.segments[0].end
    begin = store.begin_position
    while len(asked) < 4:
        store.maintain(bench.clock.now_ms())
        bench.settle()
        assert store.begin_position == begin
    expire(bench, first_end)
    assert set(asked[:4]) == {asked[0]}
    assert bodies(store, kept) == [b"again"] * 2
    assert store.state.get(state_kinds.DELAYED, b"k")[0] == b"3"
    bench.close()


def expiring(tmp_path: Path, kept: int) -> tuple[ReplicaBench, ReplicaBench]:
    """A master that has let much of its log go, and a replica that keeps `kept` bytes and has all of it."""
    master = ReplicaBench(tmp_path / "master", epoch=1, retention_size_bytes=40_000)
    replica = ReplicaBench(tmp_path / "replica", role="replica", retention_size_bytes=kept)
    queue = master.store.queues.open(b"q")
    master.store.append_state([StateChange(4, b"k", b"v")])
    for _ in range(20):
        for _ in range(10):
            master.store.append(message([queue], bytes(900)))
        master.flush()
        pull(master.store, replica.store, 5000)
        replica.flush()
        limit = replica.store.positions.flushed
        master.store.positions.limit_confirm(limit)
        replica.store.positions.limit_confirm(limit)
        for bench in (master, replica):
            bench.store.maintain(0)
            bench.store._site.thread.drain()
            bench.turn()
    return master, replica


@pytest.mark.parametrize(("kept", "holds"), [(40_000, False), (20_000, False), (10**6, True)])
def test_a_replica_lets_go_what_the_master_has_announced(tmp_path: Path, kept: int, holds: bool) -> None:
    """By its own settings and never more; what it has left tells the same state after a restart without a snapshot."""
    master, replica = expiring(tmp_path, kept)
    assert master.store.begin_position > 0
    assert (replica.store.begin_position == 0) == holds
    assert replica.store.begin_position <= master.store.begin_position
    state = replica.store.state.copy()
    assert state[4][b"k"][0] == b"v"
    replica.close()
    (replica.directory / "state" / "SNAPSHOT").unlink()
    assert replica.open().state.copy() == state
    replica.close()
    master.close()


def test_a_replica_lets_nothing_go_that_was_not_announced(tmp_path: Path) -> None:
    """The log of a node by itself says nothing: its replica keeps all, whatever its settings."""
    single = ReplicaBench(tmp_path / "single")
    queue = single.store.queues.open(b"q")
    for _ in range(100):
        single.store.append(message([queue], bytes(900)))
    single.settle()
    replica = ReplicaBench(tmp_path / "replica", role="replica", retention_size_bytes=20_000)
    pull(single.store, replica.store, 5000)
    replica.flush()
    replica.store.positions.limit_confirm(replica.store.end_position)
    for _ in range(20):
        replica.store.maintain(0)
        replica.store._site.thread.drain()
        replica.turn()
    assert replica.store.begin_position == 0
    single.close()
    replica.close()
