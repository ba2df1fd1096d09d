"""Opening: what can be rebuilt is rebuilt, what cannot is refused."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from broker.store import state_kinds
from broker.store.errors import CorruptLog
from broker.store.opening import Opening
from broker.store.state_log import StateChange
from tests.sim.log_judge import read_log
from tests.sim.stores import StoreBench, bodies, message


@pytest.fixture
def closed(tmp_path: Path) -> StoreBench:
    """A cleanly closed store with 300 messages and one session."""
    bench = StoreBench(tmp_path / "data")
    queue = bench.store.open_queue(b"q")
    for n in range(300):
        bench.store.append([message([queue], b"%d" % n)])
    bench.store.append_state([StateChange(state_kinds.SESSION, b"c", b"v")])
    bench.settle()
    bench.close()
    return bench


def check(bench: StoreBench) -> None:
    """Open, look, close."""
    store = bench.open()
    queue = store.find_queue(b"q")
    assert queue is not None
    assert bodies(store, queue) == [b"%d" % n for n in range(300)]
    assert store.state.get(state_kinds.SESSION, b"c")[0] == b"v"
    bench.close()


def damage(path: Path) -> None:
    """Flip a bit in the middle of a file."""
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize("victim", ["index/MANIFEST", "state/SNAPSHOT", "CHECKPOINT"])
def test_damaged_metadata_is_rebuilt(closed: StoreBench, victim: str) -> None:
    """One flipped bit in what is derived from the log costs only time."""
    damage(closed.directory / victim)
    check(closed)


@pytest.mark.parametrize("victim", ["index", "state", "CHECKPOINT"])
def test_missing_metadata_is_rebuilt(closed: StoreBench, victim: str) -> None:
    """So does a file or folder that is gone."""
    path = closed.directory / victim
    shutil.rmtree(path) if path.is_dir() else path.unlink()
    check(closed)


def test_missing_run_and_offsets_are_rebuilt(closed: StoreBench) -> None:
    """Files the manifest names; the unreadable index is kept for a look."""
    for pattern in ("run-*", "offsets-*"):
        next((closed.directory / "index").glob(pattern)).unlink()
        check(closed)
        assert (closed.directory / "index.unreadable").is_dir()


def test_everything_derived_gone(closed: StoreBench) -> None:
    """The log alone tells everything, and the epoch still rises."""
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
    """0700 and 0600 for everything that holds data."""
    for path in closed.directory.rglob("*"):
        if path.name != "lock":
            assert path.stat().st_mode & 0o077 == 0, path


def dies(*_: object, **__: object) -> None:
    """A start that is interrupted."""
    raise KeyboardInterrupt


def test_proof_of_durability_survives_a_start_that_dies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The tail file that proved it is made anew at every start; damage below is still no torn tail."""
    bench = StoreBench(tmp_path / "data")
    queue = bench.store.open_queue(b"q")
    for n in range(20):
        bench.store.append([message([queue], b"%d" % n)])
    bench.settle()
    bench.store._thread.drain()
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
        StoreBench(crashed)
