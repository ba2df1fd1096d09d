"""The write path of a replica, where it fails."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from broker.store.errors import StoreFailed, StoreFull
from tests.sim.replicas import ReplicaBench, log_bytes, pull
from tests.sim.stores import bodies, message


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


def test_a_full_disk_refuses_and_goes_on(tmp_path: Path) -> None:
    """Nothing is taken over while there is no room, and the same part once there is."""
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


def test_a_failed_write_is_for_good(tmp_path: Path) -> None:
    """An I/O error ends this instance; opened anew, the log is what had been written."""
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


def test_runs_snapshots_and_keys_while_bytes_come_in(tmp_path: Path) -> None:
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
    replica.store._site.thread.drain()
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


def test_a_tail_that_nothing_confirms_is_emptied_all_the_same(tmp_path: Path) -> None:
    """More than the tail holds without a word from the master: runs take what is not confirmed, nothing stops."""
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
