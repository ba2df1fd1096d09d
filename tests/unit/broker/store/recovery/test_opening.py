"""Opening: what can be rebuilt is rebuilt, what cannot is refused."""

from __future__ import annotations

import errno
import gc
import shutil
import threading
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from broker.store import log_store, parts
from broker.store.errors import CorruptLog, UnreadableOffsets
from broker.store.recovery import opening
from broker.store.recovery.opening import Opened, Opening
from broker.store.state import state_kinds
from broker.store.state.state_kinds import StateChange
from broker.store.upkeep.damage import DamageWatch
from remoting.protocol.records.record import RecordView
from tests.sim.log_judge import read_log
from tests.sim.stores import StoreBench, bodies, drain, message


@pytest.fixture
def closed(tmp_path: Path) -> StoreBench:
    """A cleanly closed store with 300 messages and one session."""
    bench = StoreBench(tmp_path / "data")
    queue = bench.store.queues.open(b"q")
    for n in range(300):
        bench.store.append(message([queue], b"%d" % n))
    bench.store.append_state([StateChange(state_kinds.SESSION, b"c", b"v")])
    bench.settle()
    bench.close()
    return bench


def check(bench: StoreBench) -> None:
    """Open, check, close."""
    store = bench.open()
    queue = store.queues.find(b"q")
    assert queue is not None
    assert bodies(store, queue) == [b"%d" % n for n in range(300)]
    assert store.state.get(state_kinds.SESSION, b"c")[0] == b"v"
    bench.close()


def damage(path: Path) -> None:
    """Flip a bit in the middle of a file."""
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def test_the_result_of_an_opening(closed: StoreBench) -> None:
    """A clean directory has nothing to replay, to confirm later, or to append again."""
    opened = Opening(
        closed.directory, closed.settings, closed.faults, closed.log, lambda _index, _confirmed: lambda _entries: None
    ).run()
    assert isinstance(opened, Opened)
    assert (opened.replayed_records, opened.confirmed, opened.unconfirmed) == (0, opened.log.end, [])
    assert not opened.mending
    opened.index.close()
    opened.log.close()


@pytest.mark.parametrize("victim", ["index/MANIFEST", "state/SNAPSHOT", "CHECKPOINT"])
def test_damaged_metadata_is_rebuilt(closed: StoreBench, victim: str) -> None:
    """One flipped bit in what is derived from the log costs only time."""
    damage(closed.directory / victim)
    check(closed)


@pytest.mark.parametrize("victim", ["index", "state", "CHECKPOINT"])
def test_missing_metadata_is_rebuilt(closed: StoreBench, victim: str) -> None:
    """So does a missing file or folder."""
    path = closed.directory / victim
    shutil.rmtree(path) if path.is_dir() else path.unlink()
    check(closed)


def test_missing_run_and_offsets_are_rebuilt(closed: StoreBench) -> None:
    """Files the manifest names; the unreadable index is kept for inspection."""
    for pattern in ("run-*", "offsets-*"):
        next((closed.directory / "index").glob(pattern)).unlink()
        check(closed)
        assert (closed.directory / "index.unreadable").is_dir()


def test_all_derived_files_are_missing(closed: StoreBench) -> None:
    """The log alone has everything, and the epoch still rises."""
    epoch = closed.store.epoch
    for name in ("index", "state"):
        shutil.rmtree(closed.directory / name)
    (closed.directory / "CHECKPOINT").unlink()
    check(closed)
    assert closed.store.epoch == epoch + 1


def test_missing_log_is_refused(closed: StoreBench) -> None:
    """Durable positions without files are no fresh start."""
    for path in (closed.directory / "log").iterdir():
        path.unlink()
    with pytest.raises(CorruptLog, match="durable"):
        closed.open()


def test_directories_and_files_are_private(closed: StoreBench) -> None:
    """0700 and 0600 for everything that contains data."""
    for path in closed.directory.rglob("*"):
        if path.name != "lock":
            assert path.stat().st_mode & 0o077 == 0, path


def dies(*_: object, **__: object) -> None:
    """A start that is interrupted."""
    raise KeyboardInterrupt


def held(directory: Path) -> list[str]:
    """What this process has open below the directory."""
    found = []
    for descriptor in Path("/proc/self/fd").iterdir():
        with suppress(OSError):
            found.append(str(descriptor.readlink()))
    return [path for path in found if path.startswith(str(directory))]


def fails(*_: object, **__: object) -> None:
    """A start on a disk that does not work."""
    raise OSError(errno.EIO, "input/output error")


@pytest.mark.parametrize("step", [
    (log_store, "check_format"), (Opening, "_recover"), (opening, "save_checkpoint"), (parts, "_assembled"),
    (DamageWatch, "settle"),
], ids=lambda step: step[1])  # fmt: skip
def test_a_failed_opening_holds_nothing(
    closed: StoreBench, step: tuple[object, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A broker that tries again and again runs out of neither descriptors nor threads, and the next try opens."""
    before = set(threading.enumerate())
    with monkeypatch.context() as failing:
        failing.setattr(*step, fails)
        with pytest.raises(OSError, match="input/output"):
            closed.open()
    for thread in set(threading.enumerate()) - before:
        thread.join(20)
        assert not thread.is_alive()
    del closed.store  # the closed one
    gc.collect()  # maps go with the last view of them
    assert held(closed.directory) == []
    check(closed)


def test_proof_of_durability_survives_a_start_that_dies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The tail file that proved it is recreated at every start; damage below is still no torn tail."""
    bench = StoreBench(tmp_path / "data")
    queue = bench.store.queues.open(b"q")
    for n in range(20):
        bench.store.append(message([queue], b"%d" % n))
    bench.settle()
    drain(bench.store)
    crashed = tmp_path / "crashed"
    shutil.copytree(bench.directory, crashed)
    bench.close()
    with monkeypatch.context() as dying:
        dying.setattr(Opening, "_recover", dies)
        with pytest.raises(KeyboardInterrupt):
            StoreBench(crashed)
    path = crashed / "log" / "0".zfill(20)
    data = bytearray(path.read_bytes())
    data[read_log(crashed)[-1].position + 50] ^= 1
    path.write_bytes(data)
    with pytest.raises(CorruptLog):
        StoreBench(crashed, damage_policy="refuse")


def test_the_epoch_is_never_reused(closed: StoreBench) -> None:
    """Either copy of it is enough, also after starts that wrote no record."""
    epoch = closed.store.epoch
    for lost in ("CHECKPOINT", "DURABLE", "CHECKPOINT"):
        closed.open()
        closed.close()
        damage(closed.directory / lost) if lost == "CHECKPOINT" else (closed.directory / lost).unlink()
        closed.open()
        assert closed.store.epoch == epoch + 2
        epoch = closed.store.epoch
        closed.close()


@pytest.mark.parametrize("clean", [True, False])
def test_store_times_do_not_fall(tmp_path: Path, clean: bool) -> None:
    """The clock was set back between two starts, with nothing to scan in the log."""
    bench = StoreBench(tmp_path / "data")
    queue = bench.store.queues.open(b"q")
    bench.store.append(message([queue], b"1"))
    bench.settle()
    late = RecordView(bench.store.reading.read(queue, 0, 1, 1).records[0]).store_ms
    if clean:
        bench.close()
    else:
        bench.store._parts.maintenance.settle()
        shutil.copytree(bench.directory, tmp_path / "crashed")
        bench.close()
        bench.directory = tmp_path / "crashed"
        (bench.directory / "lock").unlink()
    bench.clock.set_wall_ms(1_000)
    bench.open()
    bench.store.append(message([queue], b"2"))
    bench.settle()
    assert RecordView(bench.store.reading.read(queue, 1, 1, 1).records[0]).store_ms == late
    bench.close()


def test_a_torn_tail_is_kept_before_it_is_zeroed(closed: StoreBench) -> None:
    """So that a cause can be found."""
    end = read_log(closed.directory)[-1].end
    path = closed.directory / "log" / f"{end // (16 * 1024) * 16 * 1024:020d}"
    with path.open("r+b") as file:
        file.seek(end % (16 * 1024))
        file.write(b"torn")
    (closed.directory / "CHECKPOINT").unlink()
    check(closed)
    (kept,) = (closed.directory / "quarantine").iterdir()
    assert kept.read_bytes() == b"torn"
    assert kept.name.startswith(f"torn-{end:020d}")


def test_damage_under_both_policies(closed: StoreBench) -> None:
    """Refused with no log file changed; or quarantined, once, and everything else is there."""
    victim = read_log(closed.directory)[100]
    path = closed.directory / "log" / f"{victim.position // (16 * 1024) * 16 * 1024:020d}"
    data = bytearray(path.read_bytes())
    data[victim.position % (16 * 1024) + 90] ^= 1
    path.write_bytes(data)
    for name in ("index", "state"):
        shutil.rmtree(closed.directory / name)
    closed.settings = replace(closed.settings, damage_policy="refuse")
    with pytest.raises(CorruptLog, match=f"position {victim.position}"):
        closed.open()
    closed.settings = replace(closed.settings, damage_policy="quarantine")
    store = closed.open()
    assert [(each.start, each.end) for each in store.quarantined] == [(victim.position, victim.end)]
    (lost,) = [offset for _, offset in victim.dispatch]
    with pytest.raises(UnreadableOffsets) as told:
        store.reading.read(0, lost, 1, 1)
    assert told.value.next_offset == lost + 1
    assert store.reading.read(0, lost + 1, 1000, 1 << 30).next_offset == 300
    assert store.append(message([0], b"new")).offsets == [300]
    closed.settle()
    assert path.read_bytes()[: len(data) - 100] == bytes(data)[: len(data) - 100]
    closed.close()
