"""What crashes and failing disks leave behind: kill -9, bit flips, a full disk, EIO on fdatasync."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from broker.store.errors import CorruptLog, StoreFailed, StoreFull, UnreadableOffsets
from broker.store.state import state_kinds
from broker.store.state.state_kinds import StateChange
from tests.sim.log_judge import check_dense, read_log
from tests.sim.stores import StoreBench, bodies, drain, message

ROOT = Path(__file__).resolve().parents[4]
CHILD = Path(__file__).with_name("crash_child.py")


def run_child(directory: Path, first: int, lines: int) -> int:
    """Let a child append from number `first` on, kill -9 it after `lines` confirmations; return what it confirmed."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(
        [sys.executable, str(CHILD), str(directory), str(first)], stdout=subprocess.PIPE, env=environment, text=True
    ) as child:
        assert child.stdout is not None
        confirmed = first
        for _ in range(lines):
            confirmed = int(child.stdout.readline())
        child.kill()
        for line in child.stdout.read().splitlines():
            if len(line) and line.isdigit():
                confirmed = max(confirmed, int(line))
    return confirmed


def test_kill_nine_loses_nothing_confirmed(tmp_path: Path) -> None:
    """Killed again and again: every confirmed message is in the files, all queues dense, the index agrees."""
    directory = tmp_path / "data"
    number = 0
    for lines in (40, 3, 120):
        confirmed = run_child(directory, number, lines)
        records = [seen for seen in read_log(directory) if seen.kind == 1]
        check_dense(records)
        bench = StoreBench(directory)
        queue = bench.store.queues.find(b"parent")
        assert queue is not None
        stored = bodies(bench.store, queue)
        assert len(stored) >= confirmed
        assert stored == [b"%010d" % n for n in range(len(stored))]
        ledger = bench.store.state.get(state_kinds.LEDGER, b"sink")
        assert ledger is not None
        assert int(ledger[0]) == len(stored), "a group is in the log as a whole or not at all"
        lights = [bench.store.queues.find(b"light%d" % n) for n in range(7)]
        assert sum(bench.store.reading.bounds(light)[1] for light in lights) == len(stored)
        number = len(stored)
        bench.close()


def flip(directory: Path, position: int) -> Path:
    """Flip one bit of the byte at a log position."""
    path = max(p for p in (directory / "log").iterdir() if p.name.isdigit() and int(p.name) <= position)
    with path.open("r+b") as file:
        file.seek(position - int(path.name))
        byte = file.read(1)[0]
        file.seek(-1, os.SEEK_CUR)
        file.write(bytes([byte ^ 4]))
    return path


def filled(tmp_path: Path, **settings) -> tuple[StoreBench, int]:
    """A store with 50 confirmed messages in one queue."""
    bench = StoreBench(tmp_path / "data", **settings)
    queue = bench.store.queues.open(b"q")
    for n in range(50):
        bench.store.append(message([queue], b"%d" % n))
    bench.settle()
    return bench, queue


def test_a_bit_flip_below_the_durable_point_is_reported_at_read(tmp_path: Path) -> None:
    """A damaged record is reported by file and position, its neighbours stay readable, nothing is cut."""
    bench, queue = filled(tmp_path)
    victim = read_log(bench.directory)[30]
    bench.store.close()
    path = flip(bench.directory, victim.position + 100)
    before = path.read_bytes()
    bench.open()
    before_it = bench.store.reading.read(queue, 0, 100, 1 << 20).next_offset
    with pytest.raises(UnreadableOffsets, match=rf"{path.name}.*position {victim.position}") as told:
        bench.store.reading.read(queue, before_it, 100, 1 << 20)
    assert (told.value.queue, told.value.first_offset, told.value.next_offset) == (queue, before_it, before_it + 1)
    assert bench.store.reading.read(queue, before_it + 1, 100, 1 << 20).next_offset == 50
    assert [(each.start, each.end) for each in bench.store.quarantined] == [(victim.position, victim.end)]
    assert bench.store.metrics()["damaged_reads_total"] == 1
    bench.close()
    assert path.read_bytes() == before


def test_bit_flip_in_what_recovery_scans_is_refused(tmp_path: Path) -> None:
    """Below the durable position a failing record is no torn tail: the start is refused, the data is kept."""
    bench, _ = filled(tmp_path)
    drain(bench.store)
    crashed = tmp_path / "crashed"
    shutil.copytree(bench.directory, crashed)
    bench.close()
    victim = read_log(crashed)[30]
    path = flip(crashed, victim.position + 90)
    before = path.read_bytes()
    with pytest.raises(CorruptLog, match=f"position {victim.position}"):
        StoreBench(crashed, damage_policy="refuse")
    assert path.read_bytes() == before


def test_a_full_disk_refuses_messages_and_continues_reading(tmp_path: Path) -> None:
    """Below the floor: StoreFull with the numbers; reads and deletions continue; with room again appends do too."""
    bench, queue = filled(tmp_path, ballast_size_bytes=4096)
    store = bench.store
    store.append_state([StateChange(state_kinds.SESSION, b"c", b"x")])
    assert (bench.directory / "BALLAST").exists()
    bench.faults.arm("disk.free", OSError(errno.ENOSPC, "full"), times=1)
    store.maintain(0)
    assert store.disk.full
    assert not (bench.directory / "BALLAST").exists()
    with pytest.raises(StoreFull, match="disk full"):
        store.append(message([queue], b"no"))
    with pytest.raises(StoreFull):
        store.append_state([StateChange(state_kinds.SESSION, b"d", b"x")])
    end = store.append_state([StateChange(state_kinds.SESSION, b"c", None)])
    bench.settle(end)
    assert len(bodies(store, queue)) == 50
    store.maintain(0)
    store.append(message([queue], b"yes"))
    bench.settle()
    assert bodies(store, queue)[-1] == b"yes"
    bench.close()


@pytest.mark.parametrize("point", ["log.write", "log.allocate"])
def test_enospc_stores_nothing(tmp_path: Path, point: str) -> None:
    """A write that finds no space is refused as a whole and leaves no trace, also not after a restart."""
    bench, queue = filled(tmp_path)
    store = bench.store
    end = store.end_position
    bench.faults.arm(point, OSError(errno.ENOSPC, "No space left on device"))
    with pytest.raises(StoreFull):
        store.append(*[message([queue], bytes(3000)) for _ in range(10)])
    assert (store.end_position, store.reading.next_offset(queue)) == (end, 50)
    store.maintain(0)
    store.append(message([queue], b"after"))
    bench.settle()
    bench.reopen()
    assert bodies(bench.store, queue)[50:] == [b"after"]
    bench.close()


def test_failed_fdatasync_is_final(tmp_path: Path) -> None:
    """After EIO nothing is acknowledged: every waiting callback and every append gets StoreFailed; reads continue."""
    bench, queue = filled(tmp_path)
    store, heard = bench.store, []
    bench.faults.arm("log.fsync", OSError(errno.EIO, "Input/output error"))
    for n in range(3):
        end = store.append(message([queue], b"lost%d" % n)).end_position
        store.when_confirmed(end, heard.append)
    deadline = time.monotonic() + 10
    while len(heard) < 3:
        bench.turn()
        assert time.monotonic() < deadline
        time.sleep(0.001)
    assert all(isinstance(error, StoreFailed) for error in heard)
    with pytest.raises(StoreFailed, match="fdatasync"):
        store.append(message([queue], b"x"))
    store.when_confirmed(store.end_position, heard.append)
    assert isinstance(heard[-1], StoreFailed)
    assert len(bodies(store, queue)) == 50
    bench.close()
    bench.faults.disarm("log.fsync")
    bench.open()
    assert bodies(bench.store, queue)[:50] == [b"%d" % n for n in range(50)]
    bench.close()
