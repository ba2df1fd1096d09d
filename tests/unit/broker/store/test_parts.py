"""The parts of an open store, and truncating the log of a replica."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from broker.store.errors import GivenUp
from broker.store.log.epoch_file import load_epochs
from broker.store.state import state_kinds
from broker.store.state.state_kinds import StateChange
from remoting.protocol.errors import LocalMisuse, RemoteViolation
from runtime.files import DirectoryLocked
from tests.sim.replicas import ReplicaBench, log_bytes, pull
from tests.sim.stores import StoreBench, bodies, message


def test_a_failed_opening_leaves_the_directory_free(tmp_path: Path) -> None:
    """Refused for its epoch, the same directory opens in another role at once: lock and threads were given back."""
    bench = ReplicaBench(tmp_path / "data", epoch=4)
    bench.close()
    with pytest.raises(LocalMisuse):
        bench.open(epoch=4)
    bench.open(role="replica")
    with pytest.raises(DirectoryLocked):
        ReplicaBench(tmp_path / "data", role="replica")
    bench.close()
    bench.close()


def test_the_epoch_is_that_of_the_last_entry(tmp_path: Path) -> None:
    """0 for the empty log of a replica, one more per start of a node by itself, the given one of a master."""
    bench = ReplicaBench(tmp_path / "data", role="replica")
    assert (bench.store.epoch, bench.store.replica.epochs) == (0, [])
    for role, epoch in (({}, 1), ({}, 2), ({"epoch": 8}, 8), ({}, 9), ({"role": "replica"}, 9)):
        assert bench.reopen_as(**role).epoch == epoch
    bench.close()


def pair(tmp_path: Path, epoch: int = 3) -> tuple[ReplicaBench, ReplicaBench]:
    """A master in an epoch and an empty replica."""
    return ReplicaBench(tmp_path / "master", epoch=epoch), ReplicaBench(tmp_path / "replica", role="replica")


def test_replica_has_the_same_bytes_queues_and_state(tmp_path: Path) -> None:
    """Parts of any size: the log files agree byte for byte, and so does what is read of them."""
    master, replica = pair(tmp_path)
    queue = master.store.queues.open(b"q")
    for number in range(300):
        master.store.append(message([queue], b"%06d" % number + bytes(150)))
        if number % 7 == 0:
            master.store.append_state([StateChange(4, b"k%d" % (number % 5), b"%d" % number)])
    master.flush()
    pull(master.store, replica.store, 700)
    replica.flush()
    for store in (master.store, replica.store):
        store.positions.limit_confirm(store.end_position)
    assert replica.store.end_position == master.store.end_position
    assert log_bytes(replica.directory) == log_bytes(master.directory)
    assert replica.store.queues.find(b"q") == queue
    assert bodies(replica.store, queue) == bodies(master.store, queue)
    assert replica.store.state.copy() == master.store.state.copy()
    assert replica.store.replica.epochs == master.store.replica.epochs == [(3, 0)]
    master.close()
    replica.close()


def test_nothing_is_confirmed_beyond_the_limit(tmp_path: Path) -> None:
    """Callbacks, queue ends and listeners wait for the group; without a limit the node's own rule is enough."""
    master, _ = pair(tmp_path)
    store = master.store
    queue = store.queues.open(b"q")
    ends = [store.append(message([queue], b"%d" % number)).end_position for number in range(3)]
    heard: list[object] = []
    moved: list[object] = []
    store.positions.on_advance(moved.append)
    for end in ends:
        store.when_confirmed(end, lambda error, end=end: heard.append((end, error)))
    master.flush()
    assert (store.positions.flushed, store.confirm_position, heard, moved) == (ends[-1], 0, [], [])
    store.positions.limit_confirm(ends[1] + 8)
    assert store.confirm_position == ends[1]
    assert heard == [(ends[0], None), (ends[1], None)]
    assert store.reading.bounds(queue) == (0, 2)
    store.positions.limit_confirm(ends[0])
    assert store.confirm_position == ends[1], "what is confirmed stays confirmed"
    store.positions.limit_confirm(None)
    assert store.confirm_position == ends[2]
    assert moved == [[queue], [queue]]
    master.close()


def test_waiting_appends_fail_when_the_store_is_closed(tmp_path: Path) -> None:
    """The end of a role: what the group did not confirm fails, with an error that says why."""
    master, _ = pair(tmp_path)
    heard: list[Exception | None] = []
    end = master.store.append_state([StateChange(4, b"k", b"v")])
    master.store.when_confirmed(end, heard.append)
    master.close()
    assert len(heard) == 1
    assert "closed" in str(heard[0])


def test_unconfirmed_records_stay_unconfirmed_after_a_restart(tmp_path: Path) -> None:
    """A clean close writes runs and a snapshot only of what is confirmed; the rest waits for the group again."""
    master, _ = pair(tmp_path)
    queue = master.store.queues.open(b"q")
    ends = [master.store.append(message([queue], b"%d" % number)).end_position for number in range(4)]
    master.store.append_state([StateChange(4, b"k", b"v")])
    master.flush()
    master.store.positions.limit_confirm(ends[1])
    master.close()
    for opened in (master.open(role="replica"), master.reopen_as(epoch=9)):
        assert opened.confirm_position == ends[1]
        assert opened.reading.bounds(queue) == (0, 2)
        assert opened.reading.next_offset(queue) == 4
        assert opened.state.get(4, b"k") is not None
    master.store.positions.limit_confirm(master.store.end_position)
    assert bodies(master.store, queue) == [b"0", b"1", b"2", b"3"]
    master.close()


def test_waiting_and_later_callbacks_learn_of_the_end_of_a_mastership(tmp_path: Path) -> None:
    """At once and with the reason; nothing more is confirmed, whatever the group reported before."""
    master, _ = pair(tmp_path)
    store, heard = master.store, []
    queue = store.queues.open(b"q")
    first = store.append(message([queue], b"1")).end_position
    master.flush()
    store.positions.limit_confirm(first)
    end = store.append(message([queue], b"2")).end_position
    store.when_confirmed(end, heard.append)
    reason = GivenUp("replaced", {"masterAddress": "b:1"})
    store.positions.give_up(reason)
    assert heard == [reason]
    master.flush()
    store.positions.limit_confirm(end)
    store.when_confirmed(end, heard.append)
    assert heard == [reason, reason]
    assert (store.confirm_position, store.reading.bounds(queue)) == (first, (0, 1))
    assert master.reopen_as(role="replica").end_position == end
    master.close()


@pytest.mark.parametrize("is_killed", [False, True])
def test_unconfirmed_entries_in_runs_are_hidden_again_by_a_start(tmp_path: Path, is_killed: bool) -> None:
    """More than the tail holds waits for the group: a start, in any role, shows what was confirmed and no more."""
    master = ReplicaBench(tmp_path / "master", epoch=3, index_tail_entries=32)
    store = master.store
    even, odd = store.queues.open(b"even"), store.queues.open(b"odd")
    ends = [store.append(message([(even, odd)[one % 2]], b"%03d" % one)).end_position for one in range(200)]
    both = store.append(message([even, odd], b"200")).end_position
    master.flush()
    store.positions.limit_confirm(ends[30])
    ends += [store.append(message([even], b"x%03d" % one)).end_position for one in range(100)]
    master.flush()
    assert store._parts.opened.index.manifest.end_position > both > store.confirm_position == ends[30]
    if is_killed:
        master, former = ReplicaBench.copy_of(master, tmp_path / "killed", role="replica"), master
        former.close()
    for opened in (master.reopen_as(role="replica"), master.reopen_as(epoch=9)):
        assert opened.confirm_position <= ends[30]
        assert (opened.reading.bounds(even)[1], opened.reading.bounds(odd)[1]) == (16, 15)
        assert (opened.reading.next_offset(even), opened.reading.next_offset(odd)) == (201, 101)
    store = master.store
    store.positions.limit_confirm(both)
    assert store.confirm_position <= both, "one block of the index is confirmed together"
    assert store.reading.bounds(even)[1] <= 101
    store.positions.limit_confirm(None)
    assert bodies(store, even) == [b"%03d" % one for one in range(0, 201, 2)] + [b"x%03d" % one for one in range(100)]
    assert bodies(store, odd) == [b"%03d" % one for one in range(1, 200, 2)] + [b"200"]
    master.close()


def test_a_replay_that_fills_the_tail_confirms_nothing(tmp_path: Path) -> None:
    """The tail is smaller than what waits: the start itself writes runs, and a kill after it changes nothing."""
    master = ReplicaBench(tmp_path / "master", epoch=3)
    queue = master.store.queues.open(b"q")
    ends = [master.store.append(message([queue], b"%03d" % one)).end_position for one in range(200)]
    master.flush()
    master.store.positions.limit_confirm(ends[9])
    master.close()
    master.with_settings(index_tail_entries=32)
    opened = master.open(epoch=4)
    assert opened._parts.opened.index.manifest.end_position > ends[100]
    killed = ReplicaBench.copy_of(master, tmp_path / "killed", role="replica")
    for store in (opened, killed.store):
        assert (store.confirm_position, store.reading.bounds(queue)) == (ends[9], (0, 10))
        store.positions.limit_confirm(None)
        assert bodies(store, queue) == [b"%03d" % one for one in range(200)]
    killed.close()
    master.close()


def test_flushed_end_of_a_replica_is_the_end_of_whole_groups(tmp_path: Path) -> None:
    """Half an atomic group may be written, but it is neither indexed nor acknowledged, and a restart removes it."""
    master, replica = pair(tmp_path)
    queue = master.store.queues.open(b"q")
    start = master.store.end_position
    master.store.append(*[message([queue], bytes(900)) for _ in range(4)], atomic=True)
    first = master.store.replica.raw(0, start + 1000)
    assert first is not None
    replica.store.replica.append_raw(first)
    replica.flush()
    assert start < first.end == replica.store.end_position < master.store.end_position
    assert replica.store.positions.flushed == start
    assert replica.store.reading.next_offset(queue) == 0
    replica.close()
    store = replica.open()
    assert store.end_position == start
    pull(master.store, store, 64)
    replica.flush()
    assert store.positions.flushed == master.store.end_position
    assert store.reading.next_offset(queue) == 4
    replica.close()
    master.close()


def test_epochs_are_durable_and_bytes_never_cross_them(tmp_path: Path) -> None:
    """A master's next epoch begins at the end of its log; a part ends where an epoch does; the replica records both."""
    master, replica = pair(tmp_path)
    queue = master.store.queues.open(b"q")
    middle = master.store.end_position
    master.flush()
    master.reopen_as(epoch=7)
    master.reopen_as(epoch=8)
    assert master.store.replica.epochs == load_epochs(master.directory) == [(3, 0), (8, middle)], "7 wrote nothing"
    master.store.append(message([queue], b"x"))
    part = master.store.replica.raw(0, 1 << 20)
    assert part is not None
    assert (part.epoch, part.end) == (3, middle)
    pull(master.store, replica.store, 1 << 20)
    assert replica.store.replica.epochs == load_epochs(replica.directory) == [(3, 0), (8, middle)]
    assert replica.store.epoch == 8
    for used in (8, 3):
        master.close()
        with pytest.raises(LocalMisuse, match=f"epoch {used} for a log that has seen epoch 8"):
            master.open(epoch=used)
    replica.close()


def test_a_replica_refuses_what_no_correct_master_sends(tmp_path: Path) -> None:
    """Flipped bits, another epoch, another file, bytes for another position: nothing is written, the log continues."""
    master, replica = pair(tmp_path)
    queue = master.store.queues.open(b"q")
    master.store.append(message([queue], bytes(100)))
    part = master.store.replica.raw(0, 1 << 20)
    assert part is not None
    flipped = bytearray(part.data)
    flipped[-20] ^= 1
    wrong = [
        replace(part, data=memoryview(flipped)),
        replace(part, data=part.data[:-8]),
        replace(part, data=part.data[:0]),
        replace(part, epoch=2),
        replace(part, epoch=4),
        replace(part, segment_base=8),
        replace(part, segment_size=len(part.data) - 8),
    ]
    for each in wrong:
        with pytest.raises(RemoteViolation):
            replica.store.replica.append_raw(each)
    with pytest.raises(LocalMisuse):
        replica.store.replica.append_raw(replace(part, position=8))
    assert replica.store.end_position == 0
    assert replica.store.replica.append_raw(part) == part.end
    older = replace(part, position=part.end, epoch=2)
    with pytest.raises(RemoteViolation, match="behind those of epoch 3"):
        replica.store.replica.append_raw(older)
    replica.close()
    master.close()


def test_a_replica_appends_nothing_and_a_master_accepts_no_bytes(tmp_path: Path) -> None:
    """Each way to append is refused in the other role."""
    master, replica = pair(tmp_path)
    master.store.queues.open(b"q")
    part = master.store.replica.raw(0, 1 << 20)
    assert part is not None
    with pytest.raises(LocalMisuse):
        master.store.replica.append_raw(part)
    with pytest.raises(LocalMisuse):
        replica.store.append_state([StateChange(4, b"k", b"v")])
    with pytest.raises(LocalMisuse):
        replica.store.queues.open(b"other")
    assert (master.store.replica.is_replica, replica.store.replica.is_replica) == (False, True)
    with pytest.raises(LocalMisuse):
        StoreBench(tmp_path / "third").store.open(
            tmp_path / "fourth", master.settings, clock=master.clock, faults=master.faults,
            schedule=master.due.append, log=master.log, role="leader",
        )  # fmt: skip
    replica.close()
    master.close()


def test_listeners_are_told_of_writes_and_flushes(tmp_path: Path) -> None:
    """The sender is notified of every append, the acknowledger of every flush that moved the end."""
    master, replica = pair(tmp_path)
    written: list[int] = []
    flushed: list[int] = []
    master.store.positions.on_written(written.append)
    replica.store.positions.on_kept(flushed.append)
    end = master.store.append_state([StateChange(4, b"k", b"v")])
    assert written == [end]
    pull(master.store, replica.store, 1 << 20)
    assert flushed == []
    replica.flush()
    assert flushed == [end]
    replica.close()
    master.close()


def test_async_counts_what_is_written(tmp_path: Path) -> None:
    """Before any flush, to the end of whole groups; the files still prove only what was flushed."""
    settings = {"flush": "async", "flush_interval_ms": 3_600_000}
    master = ReplicaBench(tmp_path / "master", epoch=1, **settings)
    replica = ReplicaBench(tmp_path / "replica", role="replica", **settings)
    kept: list[int] = []
    replica.store.positions.on_kept(kept.append)
    queue = master.store.queues.open(b"q")
    start = master.store.end_position
    pull(master.store, replica.store, 1 << 20)
    end = master.store.append(*[message([queue], bytes(900)) for _ in range(4)], atomic=True).end_position
    part = master.store.replica.raw(start, 1_000)
    assert part is not None
    replica.store.replica.append_raw(part)
    for bench in (master, replica):
        bench.turn()
    assert (master.store.positions.kept, replica.store.positions.kept, kept) == (end, start, [start])
    pull(master.store, replica.store, 1 << 20)
    replica.turn()
    assert kept == [start, end]
    assert (replica.store.positions.kept, replica.store.positions.flushed) == (end, 0)
    for store in (master.store, replica.store):
        store.positions.limit_confirm(end)
        assert (store.confirm_position, store.reading.bounds(queue)) == (end, (0, 4))
    replica.close()
    assert replica.open().positions.kept == end
    replica.close()
    master.close()


def test_files_of_another_size_are_resized_to_the_masters(tmp_path: Path) -> None:
    """A master with larger or smaller files than the replica's settings, and one whose last file was made larger."""
    for name, sizes in (("up", (8192, 32768)), ("down", (32768, 8192))):
        master = ReplicaBench(tmp_path / name / "master", epoch=1, segment_size_bytes=8192)
        replica = ReplicaBench(tmp_path / name / "replica", role="replica", segment_size_bytes=sizes[0])
        queue = master.store.queues.open(b"q")
        for round_number, size in enumerate((8192, sizes[1], sizes[0])):
            for _ in range(20):
                master.store.append(message([queue], bytes(700)))
            master.flush()
            pull(master.store, replica.store, 1500)
            replica.flush()
            master.with_settings(segment_size_bytes=size)
            master.reopen_as(epoch=2 + round_number)
            replica.close()
            replica.open()
        master.store.append(message([queue], bytes(700)))
        pull(master.store, replica.store, 1500)
        assert log_bytes(replica.directory) == log_bytes(master.directory)
        replica.close()
        master.close()


def test_a_store_of_one_node_becomes_the_first_replica(tmp_path: Path) -> None:
    """Opened in a group its records' epochs are listed, a new epoch must be higher, and the way back is the same."""
    bench = ReplicaBench(tmp_path / "data")
    queue = bench.store.queues.open(b"q")
    for _ in range(3):
        bench.store.append(message([queue], b"x"))
        bench.flush()
        bench.reopen_as()
    (bench.directory / "EPOCHS").unlink()
    bench.reopen_as()
    bench.close()
    with pytest.raises(LocalMisuse):
        bench.open(epoch=4)
    store = bench.open(role="replica")
    assert [epoch for epoch, _ in store.replica.epochs] == [1, 2, 3, 5]
    store = bench.reopen_as(epoch=12)
    assert store.replica.epochs[-1] == (12, store.end_position)
    assert bodies(store, queue) == [b"x"] * 3, "what one node had confirmed stays so"
    assert store.state.get(state_kinds.QUEUE, b"q") is not None
    store = bench.reopen_as()
    assert store.epoch == 13
    store.append(message([queue], b"y"))
    bench.settle()
    assert bodies(store, queue) == [b"x"] * 3 + [b"y"]
    bench.close()
