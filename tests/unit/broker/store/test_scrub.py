"""A pass over a replica's log: every flushed byte is read, damage is told once, in small steps."""

from __future__ import annotations

from pathlib import Path

import pytest

from broker.store import scrub
from tests.sim.replicas import ReplicaBench, pull
from tests.sim.stores import message


def filled(directory: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[ReplicaBench, list[int]]:
    """A stopped replica with forty records in several files, one larger than a piece; where each begins."""
    monkeypatch.setattr(scrub, "PIECE_BYTES", 1_000)
    master = ReplicaBench(directory / "master", epoch=1, segment_size_bytes=8192)
    replica = ReplicaBench(directory / "replica", role="replica", segment_size_bytes=8192)
    queue, begins = master.store.open_queue(b"q"), []
    for number in range(40):
        begins.append(master.store.end_position)
        master.store.append([message([queue], bytes(3_000 if number == 9 else 300))])
    master.flush()
    pull(master.store, replica.store, 4096)
    replica.flush()
    for bench in (replica, master):
        bench.store.limit_confirm(bench.store.end_position)
        bench.close()
    return replica, begins


def walk(bench: ReplicaBench, now_ms: int = 1) -> None:
    """One pass, to its end."""
    while bench.store.maintain(now_ms):
        bench.store._thread.drain()
    bench.store._thread.drain()


def flip(bench: ReplicaBench, position: int) -> None:
    """Change one bit of the record at `position`, in its file."""
    path = max(
        each for each in (bench.directory / "log").iterdir() if each.name.isdigit() and int(each.name) <= position
    )
    with path.open("r+b") as file:
        file.seek(position - int(path.name) + 200)
        byte = file.read(1)[0]
        file.seek(-1, 1)
        file.write(bytes([byte ^ 4]))


def test_a_sound_log_is_read_once_and_again_a_day_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every byte of it; the second pass begins when its time has come."""
    replica, _ = filled(tmp_path, monkeypatch)
    store = replica.open()
    walk(replica)
    size = store.end_position - store.begin_position
    assert (store._scrub.passes_total, store.metrics()["scrubbed_bytes_total"]) == (1, size)
    walk(replica, scrub.PAUSE_MS)
    assert store._scrub.passes_total == 1
    walk(replica, scrub.PAUSE_MS + 1)
    assert (store._scrub.passes_total, store.metrics()["scrubbed_bytes_total"]) == (2, 2 * size)
    assert store.sound_end == store.end_position
    replica.close()


@pytest.mark.parametrize("number", [0, 9, 30])
def test_damage_is_found_where_a_clean_start_does_not_look(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    """And the log is sound again once it was cut there and taken anew."""
    replica, begins = filled(tmp_path, monkeypatch)
    flip(replica, begins[number])
    store = replica.open()
    assert not store.quarantined
    walk(replica)
    assert [(each.start, each.end) for each in store.quarantined] == [(begins[number], begins[number + 1])]
    assert store.sound_end == begins[number]
    master = ReplicaBench(tmp_path / "master", role="replica", segment_size_bytes=8192)
    store.truncate(store.sound_end)
    assert not store.quarantined
    pull(master.store, store, 4096)
    replica.flush()
    walk(replica)
    assert not store.quarantined
    assert store.end_position == master.store.end_position
    master.close()
    replica.close()


def test_a_masters_log_is_not_scrubbed(tmp_path: Path) -> None:
    """Whoever reads from it finds what is damaged."""
    master = ReplicaBench(tmp_path / "master", epoch=1)
    assert master.store.metrics()["scrubbed_bytes_total"] == 0
    assert not master.store.maintain(1)
    master.close()
