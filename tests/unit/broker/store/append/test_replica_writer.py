"""The write path of a replica where it fails, and the parts of a log it is given."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from broker.store.append.raw_part import RawPart
from broker.store.errors import StoreFailed, StoreFull
from remoting.protocol.errors import LocalMisuse
from tests.sim.log_judge import read_log
from tests.sim.replicas import ReplicaBench, log_bytes, pull
from tests.sim.stores import bodies, drain, message


def filled(tmp_path: Path, **settings) -> tuple[ReplicaBench, ReplicaBench, int]:
    """A master with 50 messages and a replica with the creation of their queue."""
    master = ReplicaBench(tmp_path / "master", epoch=1)
    queue = master.store.queues.open(b"q")
    master.store.append(*[message([queue], b"%04d" % number) for number in range(50)])
    master.flush()
    replica = ReplicaBench(tmp_path / "replica", role="replica", **settings)
    pull(master.store, replica.store, 1)
    replica.flush()
    return master, replica, queue


def test_a_full_disk_refuses_and_continues(tmp_path: Path) -> None:
    """Nothing is appended while there is no room, and the same part once there is."""
    master, replica, queue = filled(tmp_path)
    master.store.append(message([queue], b"0050"))
    replica.faults.arm("log.write", OSError(errno.ENOSPC, "full"))
    end = replica.store.end_position
    with pytest.raises(StoreFull):
        pull(master.store, replica.store, 4096)
    assert replica.store.end_position == end
    replica.faults.disarm("log.write")
    replica.store.maintain(0)
    pull(master.store, replica.store, 4096)
    assert replica.store.reading.next_offset(queue) == 51
    replica.close()
    master.close()


def test_a_failed_write_is_final(tmp_path: Path) -> None:
    """An I/O error ends this instance; after a reopen the log is what had been written."""
    master, replica, queue = filled(tmp_path)
    master.store.append(message([queue], b"0050"))
    replica.faults.arm("log.write", OSError(errno.EIO, "broken"))
    with pytest.raises(StoreFailed):
        pull(master.store, replica.store, 4096)
    with pytest.raises(StoreFailed):
        pull(master.store, replica.store, 4096)
    replica.close()
    replica.open()
    pull(master.store, replica.store, 4096)
    assert replica.store.reading.next_offset(queue) == 51
    replica.close()
    master.close()


def test_runs_snapshots_and_keys_while_bytes_arrive(tmp_path: Path) -> None:
    """A small tail is emptied into runs of what is confirmed; after a kill all of it is found again."""
    master, replica, queue = filled(tmp_path, index_tail_entries=32, snapshot_log_bytes=4096)
    for number in range(50, 400):
        master.store.append(message([queue], b"%04d" % number))
        if number % 10 == 0:
            master.flush()
            pull(master.store, replica.store, 4096)
            replica.flush()
            replica.store.positions.limit_confirm(master.store.end_position - 1000)
            replica.store.maintain(number)
    index = replica.store._parts.opened.index
    assert len(index.runs) > 1
    assert index.manifest.end_position <= replica.store.confirm_position
    drain(replica.store)
    assert 0 < replica.store._parts.snapshots.saved_position <= replica.store.confirm_position
    master.flush()
    pull(master.store, replica.store, 4096)
    replica.flush()
    killed = ReplicaBench.copy_of(replica, tmp_path / "killed")
    assert killed.store.end_position == master.store.end_position
    killed.store.positions.limit_confirm(killed.store.end_position)
    assert bodies(killed.store, queue) == [b"%04d" % number for number in range(400)]
    assert killed.store.state.copy() == master.store.state.copy()
    assert log_bytes(killed.directory) == log_bytes(master.directory)
    for bench in (killed, replica, master):
        bench.close()


def test_a_tail_that_is_never_confirmed_is_emptied_all_the_same(tmp_path: Path) -> None:
    """More than the tail holds without a confirm position: runs take what is not confirmed, nothing stops."""
    master, replica, queue = filled(tmp_path, index_tail_entries=32)
    for _ in range(8):
        master.store.append(*[message([queue], b"x") for _ in range(20)])
        pull(master.store, replica.store, 4096)
    assert replica.store.reading.next_offset(queue) == 210
    assert replica.store.confirm_position == 0
    replica.flush()
    replica.store.positions.limit_confirm(replica.store.end_position)
    assert len(bodies(replica.store, queue)) == 210
    replica.close()
    master.close()


def test_parts_are_whole_records_within_one_file_and_one_epoch(tmp_path: Path) -> None:
    """Laid end to end they are the log; none is much larger than requested, and each carries its position."""
    bench = ReplicaBench(tmp_path / "data", epoch=1)
    queue = bench.store.queues.open(b"q")
    for epoch in (2, 3, 4):
        for number in range(40):
            bench.store.append(message([queue], bytes(10 * number)))
        bench.flush()
        bench.reopen_as(epoch=epoch)
    ends = {seen.end for seen in read_log(bench.directory)} | {16 * 1024 * n for n in range(9)}
    largest = max(seen.end - seen.position for seen in read_log(bench.directory))
    for bytes_max in (1, 500, 3000, 1 << 20):
        position = 0
        while (part := bench.store.replica.raw(position, bytes_max)) is not None:
            assert (part.position, part.segment_size) == (position, 16 * 1024)
            assert part.segment_base == position // (16 * 1024) * (16 * 1024)
            assert part.end in ends
            assert len(part.data) < bytes_max + largest
            starts = [start for _, start in bench.store.replica.epochs]
            assert not any(position < start < part.end for start in starts)
            file = log_bytes(bench.directory)[f"{part.segment_base:020d}"]
            assert bytes(part.data) == file[position - part.segment_base : part.end - part.segment_base]
            position = part.end
        assert position == bench.store.end_position
    bench.close()


def test_expired_bytes_are_refused(tmp_path: Path) -> None:
    """Below the begin there is nothing to send: the replica must start over."""
    bench = ReplicaBench(tmp_path / "data", retention_size_bytes=49_152)
    queue = bench.store.queues.open(b"q")
    for _ in range(60):
        bench.store.append(message([queue], bytes(1000)))
        bench.settle()
    while bench.store.begin_position == 0:
        bench.store.maintain(0)
        bench.settle()
    with pytest.raises(LocalMisuse, match="expired"):
        bench.store.replica.raw(0, 100)
    assert isinstance(bench.store.replica.raw(bench.store.begin_position, 100), RawPart)
    bench.close()
