"""Truncating a replica's log, and crashes on the way."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from broker.store.errors import StoreFailed
from broker.store.index.run import Manifest, load_manifest, run_path, save_manifest, write_run
from broker.store.log.epoch_file import load_epochs
from broker.store.log.metadata import load_checkpoint, load_mark
from broker.store.parts import lower_index
from broker.store.state.state_kinds import StateChange
from remoting.protocol.errors import LocalMisuse
from tests.sim.index_entries import run_data
from tests.sim.replicas import ReplicaBench, log_bytes, pull
from tests.sim.stores import bodies, drain, message

STEPS = ("tail", "index", "state", "mark", "log", "epochs", "settle")


class Crash(Exception):
    """The machine stops here."""


def diverged(tmp_path: Path, **settings) -> tuple[ReplicaBench, int]:
    """A former master with epochs 1 and 2, all of it confirmed in runs and a snapshot, and the begin of epoch 2."""
    bench = ReplicaBench(tmp_path / "data", epoch=1, **settings)
    queue = bench.store.queues.open(b"q")
    for number in range(60):
        bench.store.append(message([queue], b"%04d" % number + bytes(300)))
        bench.store.append_state([StateChange(4, b"k%d" % (number % 7), b"%d" % number)])
    bench.flush()
    bench.store.positions.limit_confirm(None)
    cut = bench.store.end_position
    bench.reopen_as(epoch=2)
    other = bench.store.queues.open(b"other")
    for number in range(120):
        bench.store.append(message([queue, other], b"wrong" + bytes(300)))
        bench.store.append_state([StateChange(4, b"k%d" % (number % 9), b"wrong")])
    bench.flush()
    bench.store.positions.limit_confirm(None)
    bench.reopen_as(role="replica")
    assert bench.store._parts.opened.index.manifest.end_position == bench.store.end_position > cut
    return bench, cut


def check_cut(bench: ReplicaBench, cut: int) -> None:
    """The store equals one that never had more than the log up to the cut."""
    store = bench.store
    assert store.end_position == store.positions.flushed == cut
    store.positions.limit_confirm(cut)
    queue = store.queues.find(b"q")
    assert queue is not None
    assert [body[:4] for body in bodies(store, queue)] == [b"%04d" % number for number in range(60)]
    assert store.queues.find(b"other") is None
    assert {key: value for key, (value, _) in store.state.copy()[4].items()} == {
        b"k%d" % (number % 7): b"%d" % number for number in range(60)
    }
    assert store.replica.epochs == load_epochs(bench.directory) == [(1, 0)]
    behind = b"".join(log_bytes(bench.directory).values())[cut:]
    assert not behind.strip(b"\0")


def test_index_state_and_epochs_follow_the_log(tmp_path: Path) -> None:
    """All of it was in runs and a snapshot; afterwards the next bytes fit, and a restart finds the same."""
    bench, cut = diverged(tmp_path)
    bench.store.replica.truncate(cut)
    check_cut(bench, cut)
    checkpoint, mark = load_checkpoint(bench.directory), load_mark(bench.directory)
    assert checkpoint is not None
    assert mark is not None
    assert checkpoint.position <= cut
    assert (mark.position <= cut, mark.epoch) == (True, 1)
    bench.reopen_as(role="replica")
    check_cut(bench, cut)
    master = ReplicaBench.copy_of(bench, tmp_path / "master")
    master.reopen_as(epoch=5)
    queue = master.store.queues.find(b"q")
    assert queue is not None
    master.store.append(message([queue], b"0060"))
    pull(master.store, bench.store, 4096)
    assert log_bytes(bench.directory) == log_bytes(master.directory)
    assert bench.store.replica.epochs == [(1, 0), (5, cut)]
    master.close()
    bench.close()


@pytest.mark.parametrize("victim", [3, 14], ids=["among others", "the last one"])
def test_damage_in_front_of_a_cut_is_no_torn_tail(tmp_path: Path, victim: int) -> None:
    """What was flushed, and perhaps acknowledged, does not go with what is cut off: the damage is known then."""
    master, bench = ReplicaBench(tmp_path / "master", epoch=1), ReplicaBench(tmp_path / "data", role="replica")
    queue = master.store.queues.open(b"q")
    ends = [master.store.append(message([queue], b"%04d" % number)).end_position for number in range(20)]
    pull(master.store, bench.store, 4096)
    bench.flush()
    with (bench.directory / "log" / "0".zfill(20)).open("r+b") as file:
        file.seek(ends[victim] - 8)
        file.write(b"damaged!")
    bench.store.replica.truncate(ends[14])
    assert bench.store.end_position == ends[14]
    (damage,) = bench.store.quarantined
    assert (damage.start, damage.end) == (ends[victim - 1], ends[victim])
    assert bench.store.replica.sound_end == ends[victim - 1]
    bench.store.replica.truncate(ends[victim - 1])
    assert not bench.store.quarantined
    pull(master.store, bench.store, 4096)
    bench.flush()
    assert log_bytes(bench.directory) == log_bytes(master.directory)
    master.close()
    bench.close()


def test_a_cut_within_a_group_is_no_damage(tmp_path: Path) -> None:
    master, bench = ReplicaBench(tmp_path / "master", epoch=1), ReplicaBench(tmp_path / "data", role="replica")
    queue = master.store.queues.open(b"q")
    start = master.store.append(message([queue], b"whole")).end_position
    master.store.append(*[message([queue], bytes(900)) for _ in range(4)], atomic=True)
    first = master.store.replica.raw(start, 1_000)
    assert first is not None
    pull(master.store, bench.store, 4096)
    bench.flush()
    bench.store.replica.truncate(first.end)
    assert (bench.store.end_position, list(bench.store.quarantined)) == (start, [])
    master.close()
    bench.close()


@pytest.mark.parametrize("step", STEPS)
def test_a_crash_on_the_way_leaves_a_log_that_opens(tmp_path: Path, step: str) -> None:
    """Whatever was done by then: no damage is reported, epochs give the same cut, and it is repeated."""
    bench, cut = diverged(tmp_path)
    end = bench.store.end_position
    bench.faults.arm(f"truncate.{step}", Crash())
    with pytest.raises(Crash):
        bench.store.replica.truncate(cut)
    with pytest.raises((StoreFailed, LocalMisuse)):
        bench.store.replica.truncate(cut)
    again = ReplicaBench.copy_of(bench, tmp_path / "again")
    assert cut <= again.store.end_position <= end
    assert not again.store.quarantined
    assert again.store.replica.epochs[0] == (1, 0)
    assert [start for _, start in again.store.replica.epochs[1:]] in ([cut], [])
    assert again.store.end_position == cut or len(again.store.replica.epochs) == 2
    again.store.replica.truncate(cut)
    check_cut(again, cut)
    again.close()


@pytest.mark.parametrize("step", ["tail", "state", "mark", "log", "epochs", "settle"])
def test_a_crash_during_a_reset(tmp_path: Path, step: str) -> None:
    """What opens is a beginning of the former log or nothing, and the reset is repeated."""
    bench, _ = diverged(tmp_path)
    bench.faults.arm(f"truncate.{step}", Crash())
    with pytest.raises(Crash):
        bench.store.replica.reset(1 << 20)
    again = ReplicaBench.copy_of(bench, tmp_path / "again")
    again.store.replica.reset(1 << 20)
    assert (again.store.begin_position, again.store.end_position, again.store.replica.epochs) == (1 << 20, 1 << 20, [])
    assert again.store.state.copy() == {}
    again.close()


def test_a_replica_begins_where_the_masters_log_does(tmp_path: Path) -> None:
    """A master whose log has expired in part: what is left is enough for queues that continue and state that holds."""
    master = ReplicaBench(tmp_path / "master", epoch=1, retention_size_bytes=65_536)
    queue, idle = master.store.queues.open_all([b"q", b"idle"])
    master.store.append(*[message([idle], b"x") for _ in range(5)])
    master.store.append_state([StateChange(4, b"k", b"v")])
    master.store.positions.limit_confirm(None)
    for number in range(200):
        master.store.append(message([queue], b"%04d" % number + bytes(900)))
        if number % 20 == 0:
            master.settle()
            for _ in range(20):
                master.store.maintain(0)
                drain(master.store)
                master.settle()
    master.settle()
    begin = master.store.begin_position
    assert begin > 0
    replica, _ = diverged(tmp_path / "other")
    replica.store.replica.reset(begin)
    assert (replica.store.begin_position, replica.store.end_position) == (begin, begin)
    pull(master.store, replica.store, 5000)
    replica.flush()
    replica.store.positions.limit_confirm(replica.store.end_position)
    for _ in range(2):
        assert replica.store.reading.bounds(queue) == master.store.reading.bounds(queue)
        assert replica.store.reading.bounds(idle) == master.store.reading.bounds(idle) == (5, 5)
        assert bodies(replica.store, queue) == bodies(master.store, queue)
        assert replica.store.state.copy() == master.store.state.copy()
        replica.reopen_as(role="replica")
        replica.store.positions.limit_confirm(replica.store.end_position)
    replica.reopen_as(epoch=9)
    assert replica.store.reading.next_offset(idle) == 5
    replica.close()
    master.close()


def test_cuts_that_do_nothing_and_cuts_that_are_refused(tmp_path: Path) -> None:
    """At the end only an epoch without bytes goes; outside of the log, and on a master, nothing is cut."""
    bench = ReplicaBench(tmp_path / "data", epoch=1)
    bench.store.queues.open(b"q")
    bench.flush()
    bench.reopen_as(epoch=2)
    end = bench.store.end_position
    for call in (bench.store.replica.truncate, bench.store.replica.reset):
        with pytest.raises(LocalMisuse, match="only the log of a replica"):
            call(end)
    bench.reopen_as(role="replica")
    state = bench.store.state
    bench.store.replica.truncate(end)
    assert bench.store.replica.epochs == load_epochs(bench.directory) == [(1, 0)]
    assert bench.store.state is state
    for position in (-8, end + 8):
        with pytest.raises(LocalMisuse):
            bench.store.replica.truncate(position)
    for position in (-8, 9):
        with pytest.raises(LocalMisuse):
            bench.store.replica.reset(position)
    bench.store.replica.truncate(0)
    assert (bench.store.end_position, bench.store.replica.epochs, bench.store.queues.find(b"q")) == (0, [], None)
    bench.close()


def test_a_cut_within_a_group_or_a_record_ends_before_it(tmp_path: Path) -> None:
    """Half a group is left out; the store reports where its log really ends."""
    bench = ReplicaBench(tmp_path / "data", epoch=1)
    queue = bench.store.queues.open(b"q")
    start = bench.store.end_position
    bench.store.append(*[message([queue], bytes(100)) for _ in range(3)], atomic=True)
    bench.flush()
    for position in (start + 300, start + 8, start):
        bench.reopen_as(role="replica")
        copy = ReplicaBench.copy_of(bench, tmp_path / f"copy{position}")
        copy.store.replica.truncate(position)
        assert copy.store.end_position == start
        assert copy.store.reading.next_offset(queue) == 0
        copy.close()
    bench.close()


def test_listeners_stay_and_truncated_bytes_are_never_acknowledged(tmp_path: Path) -> None:
    """What was written and not flushed is cut silently; the next flush is reported again."""
    master = ReplicaBench(tmp_path / "master", epoch=1)
    queue = master.store.queues.open(b"q")
    replica = ReplicaBench(tmp_path / "replica", role="replica")
    flushed: list[int] = []
    moved: list[object] = []
    replica.store.positions.on_kept(flushed.append)
    replica.store.positions.on_advance(moved.append)
    pull(master.store, replica.store, 1)
    replica.flush()
    end = replica.store.end_position
    master.store.append(message([queue], b"x"))
    pull(master.store, replica.store, 1)
    replica.store.replica.truncate(end)
    replica.turn()
    assert flushed == [end]
    pull(master.store, replica.store, 1)
    replica.flush()
    replica.store.positions.limit_confirm(master.store.end_position)
    assert flushed == [end, master.store.end_position]
    assert moved == [[queue]]
    replica.close()
    master.close()


def test_next_offsets_are_forgotten_with_the_log(tmp_path: Path) -> None:
    """An index has the next offsets of queues whose messages expired; they mean nothing to the next log."""
    bench = ReplicaBench(tmp_path / "data", epoch=1, retention_size_bytes=65_536, index_merge_runs=50)
    queue = expired(bench)
    bench.reopen_as(role="replica")
    master = ReplicaBench(tmp_path / "master", epoch=1)
    assert master.store.queues.open(b"other") == queue
    master.store.append(*[message([queue], b"%04d" % number + bytes(300)) for number in range(200)])
    begin = next(int(name) for name in log_bytes(master.directory) if int(name))
    bench.store.replica.reset(begin)
    pull(master.store, bench.store, 5000)
    for _ in range(2):
        assert bench.store._parts.opened.index.next_offset(queue) == 200
        bench.reopen_as(role="replica")
    bench.close()
    master.close()


def expired(bench: ReplicaBench) -> int:
    """Fill the log of a master until all runs are newer than the recorded next offsets; returns the one queue."""
    queue = bench.store.queues.open(b"q")
    for _ in range(100):
        bench.store.append(*[message([queue], bytes(900)) for _ in range(10)])
        bench.flush()
        bench.store.positions.limit_confirm(None)
        for _ in range(5):
            bench.store.maintain(0)
            drain(bench.store)
            bench.flush()
        manifest = bench.store._parts.opened.index.manifest
        if manifest.runs and 0 < manifest.offsets_id < manifest.runs[0]:
            return queue
    raise AssertionError("no run has expired")


def test_a_queue_that_appears_late_after_a_reset_is_no_damage(tmp_path: Path) -> None:
    """After a power cut: the runs do not have it, and the log begins after its first messages."""
    master = ReplicaBench(tmp_path / "master", epoch=1)
    often, seldom = master.store.queues.open_all([b"often", b"seldom"])
    master.store.append(*[message([seldom], b"x") for _ in range(5)])
    master.store.append(*[message([often], bytes(300)) for _ in range(100)])
    begin = next(int(name) for name in log_bytes(master.directory) if int(name))
    replica = ReplicaBench(tmp_path / "replica", role="replica")
    replica.store.replica.reset(begin)
    pull(master.store, replica.store, 5000)
    replica.flush()
    replica.store.positions.limit_confirm(replica.store.end_position)
    replica.reopen_as(role="replica")
    assert replica.store._parts.opened.index.manifest.end_position > begin > 0
    master.store.append(*[message([seldom], b"y") for _ in range(5)])
    pull(master.store, replica.store, 5000)
    replica.flush()
    shutil.copytree(replica.directory, tmp_path / "again")
    (tmp_path / "again" / "index" / "tail").unlink()
    with capture_logs() as events:
        again = ReplicaBench(tmp_path / "again", role="replica")
    assert "index_rebuilt" not in [each["event"] for each in events]
    assert again.store._parts.opened.index.next_offset(seldom) == 10
    for bench in (again, replica, master):
        bench.close()


def test_a_run_with_a_hole_at_the_cut_is_removed_too(tmp_path: Path) -> None:
    """What damage destroyed is in the index where the damage begins, and the run may end there."""
    for number, positions in enumerate(([0, 500], [1_000, 2_000]), 1):
        data = run_data([7, 7], [2 * number, 2 * number + 1], positions, [500, 0], [0, 0], [1, 1])
        write_run(run_path(tmp_path, number), number, 0, (1_000 * (number - 1), 1_000 * number), data)
    save_manifest(tmp_path, Manifest(next_file_id=3, end_position=2_000, runs=(1, 2)))
    assert lower_index(tmp_path, 2_001) == 2_000
    assert lower_index(tmp_path, 2_000) == 1_000
    lowered = load_manifest(tmp_path)
    assert lowered is not None
    assert (lowered.end_position, tuple(lowered.runs)) == (1_000, (1,))
