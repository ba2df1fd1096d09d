"""A pass over a log: every flushed byte is read, damage is reported once, in small steps."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
from structlog.testing import capture_logs

from broker.store.log_store import LogStore
from broker.store.upkeep import damage
from tests.sim.replicas import ReplicaBench, pull
from tests.sim.stores import StoreBench, drain, message


def filled(directory: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[ReplicaBench, list[int]]:
    """A stopped replica with forty records in several files, one larger than a piece; returns where each begins."""
    monkeypatch.setattr(damage, "PIECE_BYTES", 1_000)
    master = ReplicaBench(directory / "master", epoch=1, segment_size_bytes=8192)
    replica = ReplicaBench(directory / "replica", role="replica", segment_size_bytes=8192)
    queue, begins = master.store.queues.open(b"q"), []
    for number in range(40):
        begins.append(master.store.end_position)
        master.store.append(message([queue], bytes(3_000 if number == 9 else 300)))
    master.flush()
    pull(master.store, replica.store, 4096)
    replica.flush()
    for bench in (replica, master):
        bench.store.positions.limit_confirm(bench.store.end_position)
        bench.close()
    return replica, begins


def writer(directory: Path, **settings: int) -> tuple[StoreBench, list[int]]:
    """A cleanly stopped single node with forty records in several files; returns where each begins."""
    bench = StoreBench(directory / "data", segment_size_bytes=8192, **settings)
    queue, begins = bench.store.queues.open(b"q"), []
    for _ in range(40):
        begins.append(bench.store.end_position)
        bench.store.append(message([queue], bytes(300)))
    bench.settle()
    bench.close()
    return bench, begins


def walk(bench: ReplicaBench, now_ms: int = 1) -> None:
    """One pass, to its end."""
    while bench.store.maintain(now_ms):
        drain(bench.store)
    drain(bench.store)


def flip(bench: StoreBench, position: int) -> None:
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
    assert (store._parts.scrub.passes_total, store.metrics()["scrubbed_bytes_total"]) == (1, size)
    walk(replica, damage.PAUSE_MS)
    assert store._parts.scrub.passes_total == 1
    walk(replica, damage.PAUSE_MS + 1)
    assert (store._parts.scrub.passes_total, store.metrics()["scrubbed_bytes_total"]) == (2, 2 * size)
    assert store.replica.sound_end == store.end_position
    replica.close()


@pytest.mark.parametrize("number", [0, 9, 30])
def test_damage_is_found_where_a_clean_start_does_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    """And the log is sound again after it was truncated there and copied again."""
    replica, begins = filled(tmp_path, monkeypatch)
    flip(replica, begins[number])
    store = replica.open()
    assert not store.quarantined
    walk(replica)
    assert [(each.start, each.end) for each in store.quarantined] == [(begins[number], begins[number + 1])]
    assert store.replica.sound_end == begins[number]
    master = ReplicaBench(tmp_path / "master", role="replica", segment_size_bytes=8192)
    store.replica.truncate(store.replica.sound_end)
    assert not store.quarantined
    pull(master.store, store, 4096)
    replica.flush()
    walk(replica)
    assert not store.quarantined
    assert store.end_position == master.store.end_position
    master.close()
    replica.close()


def test_damage_of_a_cleanly_stopped_writer_is_found_while_it_serves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No start and no reader read it; it is reported with the command to run, counted, and known after a restart."""
    monkeypatch.setattr(damage, "PIECE_BYTES", 1_000)
    bench, begins = writer(tmp_path, scrub_bytes_per_second=2_000)
    flip(bench, begins[3])
    with capture_logs() as events:
        store = read_again(bench)
    told = store.metrics()
    [found] = [each for each in events if each["event"] == "log_damage_found"]
    assert f"lightmq store verify {bench.directory}" in found["remedy"]
    assert [each.start for each in store.quarantined] == [begins[3]]
    assert (told["scrub_damaged_ranges_total"], told["scrub_passes_total"]) == (1, 1)
    assert (told["scrub_position"], told["quarantined_ranges"]) == (store.end_position, 1)
    assert 0 < told["scrub_completed_ms"] < 60_000
    bench.close()
    assert [each.start for each in bench.open().quarantined] == [begins[3]]
    bench.close()


def read_again(bench: StoreBench) -> LogStore:
    """Open, find nothing while opening, and let a minute pass."""
    store = bench.open()
    assert not store.quarantined
    for now_ms in range(0, 60_000, 500):
        store.maintain(now_ms)
        drain(store)
    return store


def test_a_writer_keeps_to_the_rate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Time earns bytes, at most a second's worth at once; a piece may overdraw it once."""
    monkeypatch.setattr(damage, "PIECE_BYTES", 500)
    bench, _ = writer(tmp_path, scrub_bytes_per_second=1_000)
    store = bench.open()
    for second in range(6):
        while store.maintain(second * 1000):
            drain(store)
        drain(store)
        assert store.metrics()["scrubbed_bytes_total"] <= second * 1_000 + 1_000
    assert store.metrics()["scrubbed_bytes_total"] >= 4_000
    before = store.metrics()["scrubbed_bytes_total"]
    while store.maintain(1_000_000):
        drain(store)
    drain(store)
    assert store.metrics()["scrubbed_bytes_total"] - before <= 2_000
    bench.close()


def test_a_writer_need_not_read_its_log_again(tmp_path: Path) -> None:
    """With a rate of 0."""
    bench, _ = writer(tmp_path, scrub_bytes_per_second=0)
    store = bench.open()
    store.maintain(0)
    assert not store.maintain(10_000)
    drain(store)
    assert "scrub_position" not in store.metrics()
    bench.close()


def test_a_file_deleted_before_it_is_read_is_no_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Retention or a new size may delete it before the index thread comes to it."""
    bench, begins = writer(tmp_path)
    store, jobs, failures = bench.open(), [], []
    thread = SimpleNamespace(submit=lambda job, done: jobs.append((job, done)))
    walk = damage.Scrub(store._log, thread, failures.append, failures.append)
    walk.step(0, store.positions.flushed)
    store._log.segments[0].close()
    [(job, done)] = jobs
    done(job(), None)
    assert (failures, walk.position > begins[0]) == ([], True)
    bench.close()


def test_damage_that_has_expired_with_the_log_is_damage_no_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A replica would never follow: its sound part would end below its begin."""
    replica, begins = filled(tmp_path, monkeypatch)
    flip(replica, begins[0])
    store = replica.open()
    walk(replica)
    assert store.replica.sound_end == begins[0]
    assert store._log.drop_before(store._log.segments[1].base)
    assert not store.quarantined
    assert store.replica.sound_end == store.end_position
    assert store.metrics()["quarantined_ranges"] == 0
    replica.close()
