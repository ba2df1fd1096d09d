"""Where the log ends: torn tails, files that are too short, damaged ranges."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import structlog
from hypothesis import given
from hypothesis import strategies as st

from broker.store.errors import CorruptIndex, CorruptLog
from broker.store.log.commit_log import CommitLog
from broker.store.recovery import log_end
from broker.store.recovery.log_end import (
    QUARANTINE,
    TORN_FILES_MAX,
    Damage,
    DamagedRange,
    LogEnd,
    Quarantine,
    Scan,
    decide_end,
    durable_cuts,
    find_short_files,
    keep_torn_tail,
    load_quarantine,
    save_quarantine,
    scan_log,
)
from remoting.protocol.records.record import FILLER, FLAG_GROUP_OPEN, HEADER_SIZE, MESSAGE
from runtime.faults import FaultPoints
from tests.sim.stores import StoreBench, bodies, message
from tests.support.records import make_record


def scan(records_end: int, groups_end: int, reason: str = "bad") -> Scan:
    return Scan(records_end, groups_end, reason, 1, 0, 0)


def test_torn_tail_and_corruption() -> None:
    """The same failure is a torn tail above the durable position and damage below it."""
    assert decide_end(scan(100, 100), 100) == LogEnd(100, 0)
    assert decide_end(scan(100, 100), 101) == Damage(100, "bad")
    assert decide_end(scan(100, 60), 60) == LogEnd(60, 40)
    assert isinstance(decide_end(scan(100, 60), 61), Damage)
    assert decide_end(scan(100, 100, ""), 200) == Damage(100, "the log ends there")
    assert decide_end(scan(100, 60), 60, whole_to=101) == Damage(100, "bad")
    assert decide_end(scan(100, 60), 60, whole_to=100) == LogEnd(60, 40), "whole records of a group that is not"


@given(st.integers(0, 1000), st.integers(0, 1000), st.integers(0, 1000))
def test_never_ends_below_the_durable_position(groups_end: int, more: int, durable: int) -> None:
    """Whatever the scan found."""
    end = decide_end(scan(groups_end + more, groups_end), durable)
    assert isinstance(end, Damage) or end.position >= durable


SIZE = 96


def record(
    position: int, epoch: int = 1, flags: int = 0, magic: int = MESSAGE, body: bytes = b"0123456789abcdef"
) -> bytes:
    return make_record(
        body, topic=b"", position=position, epoch=epoch, flags=flags, store_ms=position, dispatch=(), magic_type=magic
    )


def make(tmp_path: Path) -> CommitLog:
    return CommitLog(tmp_path / "log", 4096, FaultPoints(), zeroed=False)


def put(log: CommitLog, data: bytes) -> None:
    position = log.end
    log.write([(log.segment_to_append(position), position, data)], position + len(data))


def test_ends_at_zeros(tmp_path: Path) -> None:
    """What was never written is where the log ends."""
    log = make(tmp_path)
    for n in range(3):
        put(log, record(n * SIZE))
    scan = scan_log(log, 0)
    assert (scan.records_end, scan.groups_end, scan.records, scan.store_ms) == (3 * SIZE, 3 * SIZE, 3, 2 * SIZE)
    log.close()


def test_a_torn_record_ends_the_log_wherever_it_is_cut(tmp_path: Path) -> None:
    """Zeros after the cut complete a record only where its own bytes are zeros."""
    whole = b"".join(record(n * SIZE) for n in range(3))
    for cut in range(0, len(whole), 7):
        (tmp_path / str(cut)).mkdir()
        log = make(tmp_path / str(cut))
        torn = whole[:cut] + bytes(len(whole) - cut)
        put(log, torn)
        end = next((at for at in range(0, len(whole), SIZE) if torn[at : at + SIZE] != whole[at : at + SIZE]), cut)
        assert scan_log(log, 0).records_end == end, cut
        log.close()


def test_an_open_group_is_left_out(tmp_path: Path) -> None:
    """An unfinished atomic group is no part of the log."""
    log = make(tmp_path)
    put(log, record(0))
    put(log, record(SIZE, flags=FLAG_GROUP_OPEN))
    put(log, record(2 * SIZE, flags=FLAG_GROUP_OPEN))
    scan = scan_log(log, 0)
    assert (scan.groups_end, scan.records_end) == (SIZE, 3 * SIZE)
    put(log, record(3 * SIZE))
    assert scan_log(log, 0).groups_end == 4 * SIZE
    log.close()


def test_stale_record_of_an_earlier_start_is_rejected(tmp_path: Path) -> None:
    """Right position, right checksum, lower epoch: a leftover after a shorter new tail."""
    log = make(tmp_path)
    put(log, record(0, epoch=2))
    put(log, record(SIZE, epoch=1))
    scan = scan_log(log, 0)
    assert scan.records_end == SIZE
    assert "epoch" in scan.reason
    log.close()


def test_filler_joins_segments_inside_a_group(tmp_path: Path) -> None:
    """A filler neither ends nor breaks an atomic group, and is never shown."""
    log = make(tmp_path)
    put(log, record(0, flags=FLAG_GROUP_OPEN))
    put(log, record(SIZE, magic=FILLER, body=bytes(4096 - SIZE - HEADER_SIZE)))
    assert scan_log(log, 0).groups_end == 0
    put(log, record(4096))
    assert scan_log(log, 0).groups_end == 4096 + SIZE
    log.close()


def test_full_last_segment_is_a_clean_end(tmp_path: Path) -> None:
    """No next file: the log ends where the last one does."""
    log = make(tmp_path)
    put(log, record(0, magic=FILLER, body=bytes(4096 - HEADER_SIZE)))
    scan = scan_log(log, 0)
    assert (scan.records_end, scan.reason) == (4096, "")
    log.close()


def files(folder: Path, *sizes: int) -> list[Path]:
    base, made = 0, []
    for size in sizes:
        made.append(folder / f"{base:020d}")
        made[-1].write_bytes(b"x" * size)
        base += 4096
    return made


def test_the_sizes_of_files(tmp_path: Path) -> None:
    """A middle one up to the next one, the last one its configured size; nothing is changed."""
    files(tmp_path, 4000, 4096, 0)
    found = find_short_files(tmp_path, 4096, 4096, 3999)
    assert [(file.base, file.size, file.full_size, file.cut) for file in found] == [
        (0, 4000, 4096, 4000), (8192, 0, 4096, 8192),
    ]  # fmt: skip
    assert not durable_cuts(found, 3999)
    assert [path.stat().st_size for path in sorted(tmp_path.iterdir())] == [4000, 4096, 0]


def test_a_cut_file_is_short_of_a_whole_size_whatever_the_settings_say(tmp_path: Path) -> None:
    """A file that was made larger than files are made now and lost its tail: a record would end behind its end."""
    files(tmp_path, 4096, 3998)
    found = find_short_files(tmp_path, 2048, 2048, 5000)
    assert [(file.base, file.size, file.full_size) for file in found] == [(4096, 3998, 4000)]


@pytest.mark.parametrize(
    ("sizes", "durable", "cut"), [((4000, 4096), 4001, 0), ((4096, 100), 4197, 4096), ((4000, 4096), 9000, 0)]
)
def test_missing_durable_bytes(tmp_path: Path, sizes, durable: int, cut: int) -> None:
    """They are distinguished from those that a torn tail may lack."""
    files(tmp_path, *sizes)
    assert [file.base for file in durable_cuts(find_short_files(tmp_path, 4096, 4096, durable), durable)][:1] == [cut]


def test_no_directory_and_longer_files(tmp_path: Path) -> None:
    """A fresh store has no files; larger ones of a former configuration stay as they are."""
    assert not find_short_files(tmp_path / "log", 4096, 4096, 0)
    files(tmp_path, 9000)
    assert not find_short_files(tmp_path, 4096, 4096, 0)


def test_the_last_file_is_as_large_as_the_log_made_it(tmp_path: Path) -> None:
    """A small file of a small log is complete; one shorter than it was made is not."""
    files(tmp_path, 4096, 4096)
    assert not find_short_files(tmp_path, 4096, 1 << 20, 8192)
    files(tmp_path, 4096, 4096, 4096)
    assert [file.full_size for file in find_short_files(tmp_path, 4096, 1 << 20, 8192)] == [8192]


def test_a_store_continues_in_a_truncated_file(tmp_path: Path) -> None:
    """Truncated after the last record: everything is there, and appends continue."""
    bench = StoreBench(tmp_path / "data")
    queue = bench.store.queues.open(b"q")
    bench.store.append(message([queue], b"1"))
    bench.settle()
    end = bench.store.end_position
    bench.close()
    os.truncate(tmp_path / "data" / "log" / "0".zfill(20), end + 3)
    bench.open()
    for _ in range(300):
        bench.store.append(message([queue], bytes(40)))
    bench.settle()
    assert len(bodies(bench.store, queue)) == 301
    bench.close()


def test_a_refused_start_leaves_the_newest_file_unchanged(tmp_path: Path) -> None:
    """A larger size of files is no reason to touch a damaged log."""
    bench = StoreBench(tmp_path / "data", segment_size_bytes=4096)
    queue = bench.store.queues.open(b"q")
    for _ in range(100):
        bench.store.append(message([queue], bytes(100)))
    bench.settle()
    bench.close()
    path = max((tmp_path / "data" / "log").glob("0*"))
    data = bytearray(path.read_bytes())
    data[20] ^= 1
    path.write_bytes(data)
    (tmp_path / "data" / "CHECKPOINT").unlink()
    (tmp_path / "data" / "state" / "SNAPSHOT").unlink()
    with pytest.raises(CorruptLog):
        StoreBench(tmp_path / "data", segment_size_bytes=64 * 1024, damage_policy="refuse")
    assert path.stat().st_size == 4096


@pytest.fixture
def log(tmp_path: Path) -> CommitLog:
    """A log of two files, with something in both."""
    made = CommitLog(tmp_path / "log", 4096, FaultPoints(), zeroed=False)
    made.segment_to_append(0).write(100, b"a" * 50)
    made.segment_to_append(4096).write(4096, b"b" * 8)
    return made


def test_bytes_are_kept_across_the_end_of_a_file(tmp_path: Path, log: CommitLog) -> None:
    """Zeros at the end are not."""
    keep_torn_tail(log, tmp_path, 140, 7, structlog.get_logger())
    (kept,) = (tmp_path / "quarantine").iterdir()
    assert kept.name == f"torn-{140:020d}-{7:010d}"
    assert kept.read_bytes() == b"a" * 10 + bytes(4096 - 150) + b"b" * 8
    assert kept.stat().st_mode & 0o077 == 0


def test_nothing_to_keep(tmp_path: Path, log: CommitLog) -> None:
    """Zeros alone make no file."""
    keep_torn_tail(log, tmp_path, 4200, 7, structlog.get_logger())
    assert not (tmp_path / "quarantine").exists()


def test_few_and_small(tmp_path: Path, log: CommitLog, monkeypatch: pytest.MonkeyPatch) -> None:
    """The newest ones stay, cut at the limit."""
    monkeypatch.setattr(log_end, "TORN_BYTES_MAX", 16)
    for epoch in range(TORN_FILES_MAX + 3):
        keep_torn_tail(log, tmp_path, 140 - epoch, epoch, structlog.get_logger())
    kept = sorted((tmp_path / "quarantine").iterdir(), key=lambda path: path.name.rpartition("-")[2])
    assert [int(path.name.rpartition("-")[2]) for path in kept] == [3, 4, 5, 6]
    assert {path.stat().st_size for path in kept} <= set(range(10, 17))


def test_no_room_does_not_stop_a_start(tmp_path: Path, log: CommitLog) -> None:
    """A file is where the folder should be."""
    (tmp_path / "quarantine").write_bytes(b"")
    keep_torn_tail(log, tmp_path, 140, 7, structlog.get_logger())
    assert (tmp_path / "quarantine").is_file()


def spans(ranges: Quarantine) -> list[tuple[int, int]]:
    return [(each.start, each.end) for each in ranges]


def test_found_by_position() -> None:
    """The end is exclusive."""
    ranges = Quarantine([DamagedRange(100, 200, "x"), DamagedRange(300, 308, "y")])
    assert [ranges.at(position) is not None for position in (99, 100, 199, 200, 300, 308)] == [
        False, True, True, False, True, False,
    ]  # fmt: skip
    assert (len(ranges), ranges.size_bytes) == (2, 108)


@pytest.mark.parametrize(
    ("new", "expected", "news"),
    [
        ((100, 150), [(100, 200), (300, 400)], False),
        ((150, 250), [(100, 250), (300, 400)], True),
        ((200, 300), [(100, 400)], True),
        ((50, 500), [(50, 500)], True),
        ((210, 220), [(100, 200), (210, 220), (300, 400)], True),
        ((8, 100), [(8, 200), (300, 400)], True),
    ],
)
def test_neighbours_are_joined(new: tuple[int, int], expected: list[tuple[int, int]], news: bool) -> None:
    """Touching ranges become one, which is not settled any more."""
    ranges = Quarantine([DamagedRange(100, 200, "x", settled=True), DamagedRange(300, 400, "y", settled=True)])
    assert ranges.add(DamagedRange(*new, "z")) == news
    assert spans(ranges) == expected
    assert all(each.settled for each in ranges) != news


def test_settled_and_expired(tmp_path: Path) -> None:
    """Both survive in the file; a range that has grown meanwhile is not settled."""
    known = [DamagedRange(100, 200, "x"), DamagedRange(300, 400, "y"), DamagedRange(500, 600, "z")]
    ranges = Quarantine(known)
    assert ranges.add(DamagedRange(600, 700, "z"))
    ranges.settle(known)
    assert ranges.drop_before(200)
    assert not ranges.drop_before(399)
    save_quarantine(tmp_path, ranges)
    assert list(load_quarantine(tmp_path)) == [DamagedRange(300, 400, "y", settled=True), DamagedRange(500, 700, "z")]
    assert (tmp_path / QUARANTINE).stat().st_mode & 0o077 == 0


def test_no_file_and_an_unreadable_one(tmp_path: Path) -> None:
    """Without a file there are none; an unreadable one is reported."""
    assert not len(load_quarantine(tmp_path))
    save_quarantine(tmp_path, [DamagedRange(1, 2, "x")])
    (tmp_path / QUARANTINE).write_bytes((tmp_path / QUARANTINE).read_bytes()[:-3] + b"00\n")
    with pytest.raises(CorruptIndex, match="checksum"):
        load_quarantine(tmp_path)


def test_more_ranges_than_are_kept_separately(monkeypatch: pytest.MonkeyPatch) -> None:
    """The two oldest become one."""
    monkeypatch.setattr(log_end, "RANGES_MAX", 2)
    ranges = Quarantine(DamagedRange(at, at + 8, "x") for at in (0, 100, 200))
    assert spans(ranges) == [(0, 108), (200, 208)]
