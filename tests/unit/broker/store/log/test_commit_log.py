"""The log and its files: growth, sync, truncation, repair, failed writes, missing files, ends of whole groups."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from broker.store.errors import CorruptLog, StoreFailed
from broker.store.log import commit_log
from broker.store.log.commit_log import (
    CommitLog,
    LogRepair,
    Segment,
    allocate,
    list_segments,
    segment_path,
    taken_groups,
    whole_groups,
)
from remoting.native import core as native
from runtime.faults import FaultPoints
from tests.sim.log_judge import read_log
from tests.sim.stores import StoreBench, message
from tests.support.plants import Plant, catches

DROP_NEWEST = "broker.store.log.commit_log:CommitLog.drop_newest"


def make(tmp_path: Path, faults: FaultPoints | None = None) -> CommitLog:
    return CommitLog(tmp_path / "log", 4096, faults or FaultPoints(), zeroed=True)


def put(log: CommitLog, position: int, data: bytes) -> None:
    log.write([(log.segment_to_append(position), position, data)], position + len(data))


def test_write_sync_reopen(tmp_path: Path) -> None:
    """Bytes are found again by position in the right file."""
    log = make(tmp_path)
    put(log, 0, b"a" * 4096)
    put(log, 4096, b"b" * 10)
    assert (log.end, log.begin, log.end - log.begin) == (4106, 0, 4106)
    assert log.sync() == 4106
    log.close()
    again = make(tmp_path)
    assert bytes(again.view(4096, 10) or b"") == b"b" * 10
    assert again.view(4090, 20) is None
    assert again.segment_at(9000) is None
    assert again.capacity_end == 8192
    again.close()


def test_missing_file_is_corruption(tmp_path: Path) -> None:
    """A hole between two files is named, nothing is deleted."""
    log = make(tmp_path)
    for position in (0, 4096, 8192):
        put(log, position, b"x" * 4096)
    log.close()
    (tmp_path / "log" / f"{4096:020d}").unlink()
    with pytest.raises(CorruptLog, match="no log file starts there"):
        make(tmp_path)


def test_a_failed_write_is_undone(tmp_path: Path) -> None:
    """After ENOSPC in the second piece the first one is removed too."""
    faults = FaultPoints()
    log = make(tmp_path, faults)
    put(log, 0, b"k" * 8)
    pieces = [(log.segment_to_append(0), 8, b"x" * 16), (log.segment_to_append(4096), 4096, b"y" * 16)]
    faults.arm("log.write", OSError(errno.ENOSPC, "full"), after=1)
    with pytest.raises(OSError, match="full"):
        log.write(pieces, 5000)
    assert log.end == 8
    assert bytes(log.view(8, 16) or b"") == bytes(16)
    log.close()


def test_remains_that_cannot_be_removed_are_final(tmp_path: Path) -> None:
    """When a failed write cannot even be undone the store has failed."""
    faults = FaultPoints()
    log = make(tmp_path, faults)
    segment = log.segment_to_append(0)
    faults.arm("log.write", lambda: os.close(segment.descriptor))  # the device is gone: every call fails
    with pytest.raises(StoreFailed, match="cannot be taken back"):
        log.write([(segment, 0, b"x" * 8)], 8)
    segment.descriptor = -1
    log.close()


def test_sync_flushes_only_files_with_something_new(tmp_path: Path) -> None:
    """What is durable is not flushed again; a write over the end of a file flushes both files."""
    faults, flushes = FaultPoints(), []
    log = make(tmp_path, faults)
    put(log, 0, b"x" * 4000)
    faults.arm("log.fsync", lambda: flushes.append(log.end), times=None)
    assert (log.sync(), log.sync(), len(flushes)) == (4000, 4000, 1)
    put(log, 4000, b"x" * 96)
    put(log, 4096, b"y" * 10)
    assert (log.sync(), len(flushes), log.durable) == (4106, 3, 4106)
    put(log, 4106, b"z")
    assert (log.sync(), len(flushes)) == (4107, 4)
    log.close()


def test_a_failed_sync_stays_failed(tmp_path: Path) -> None:
    """A second fdatasync must not count as success."""
    faults = FaultPoints()
    log = make(tmp_path, faults)
    put(log, 0, b"x")
    faults.arm("log.fsync", OSError(errno.EIO, "gone"))
    for _ in range(2):
        with pytest.raises(OSError, match="gone"):
            log.sync()
    log.close()


def test_truncation_zeroes_across_files(tmp_path: Path) -> None:
    """Everything after the cut is zero in every file."""
    log = make(tmp_path)
    for position in (0, 4096):
        put(log, position, b"x" * 4096)
    assert LogRepair(log).cut(100)
    assert not LogRepair(log).cut(100)
    assert log.end == 100
    assert bytes(log.view(0, 101) or b"") == b"x" * 100 + b"\0"
    assert bytes(log.view(4096, 4096) or b"") == bytes(4096)
    LogRepair(log).sync_from(0)
    log.close()


def test_prepared_segment_is_used(tmp_path: Path) -> None:
    """Half a segment asks for the next one; it becomes the next file by rename."""
    log = make(tmp_path)
    put(log, 0, b"x" * 2056)
    assert log.needs_next()
    log.prepare_next()
    assert not log.needs_next()
    assert (tmp_path / "log" / ".next").exists()
    put(log, 2056, b"x" * 2040)
    put(log, 4096, b"y")
    assert not (tmp_path / "log" / ".next").exists()
    assert log.segments[1].base == 4096
    log.close()


def test_files_grow_with_the_log(tmp_path: Path) -> None:
    """Each is as large as all before it together; the next one is prepared in the size it will have."""
    log = CommitLog(tmp_path / "log", 4 * 4096, FaultPoints(), zeroed=True, first_size=4096)
    for _ in range(5):
        segment = log.segment_to_append(log.end)
        put(log, log.end, bytes(segment.size))
        log.prepare_next()
        prepared = (tmp_path / "log" / ".next").stat().st_ino
        assert log.segment_to_append(log.end).path.stat().st_ino == prepared
    assert [segment.size // 4096 for segment in log.segments] == [1, 1, 2, 4, 4, 4]
    log.drop_before(log.segments[-1].base)
    put(log, log.end, bytes(4 * 4096))
    assert log.segment_to_append(log.end).size == 4 * 4096
    log.close()


def test_drop_before_keeps_the_last(tmp_path: Path) -> None:
    """Whole files below the position are deleted, oldest first; the file being written stays."""
    log = make(tmp_path)
    for position in (0, 4096, 8192):
        put(log, position, b"x" * 4096)
    assert log.drop_before(5000) == 4096
    assert log.begin == 4096
    assert log.drop_before(99_999) == 4096
    assert [segment.base for segment in log.segments] == [8192]
    assert log.drop_before(99_999) == 0
    log.close()


def test_files_deleted_together_are_deleted_durably_one_by_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A power cut must not restore an older one without its successor: that gap would be taken for damage."""
    log = make(tmp_path)
    for position in (0, 4096, 8192):
        put(log, position, b"x" * 4096)
    durable: list[list[int]] = []
    monkeypatch.setattr(
        commit_log, "fsync_dir", lambda path: durable.append([int(each.name) for each in list_segments(path)])
    )
    log.drop_before(8192)
    assert durable == [[4096, 8192], [8192]]
    log.close()


@catches(
    Plant(
        "only-the-last-is-durable", DROP_NEWEST, "        fsync_dir(self.directory)", "    fsync_dir(self.directory)"
    ),
    Plant("none-is-durable", DROP_NEWEST, "fsync_dir(self.directory)", "pass"),
)
@pytest.mark.parametrize("way", ["truncate", "restart", "resize"])
def test_the_newest_files_are_deleted_durably_one_by_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    """What was cut must not come back after a power cut: its records would follow others by then."""
    log = make(tmp_path)
    for position in (0, 4096, 8192):
        put(log, position, b"x" * 4096)
    durable: list[list[int]] = []
    monkeypatch.setattr(
        commit_log, "fsync_dir", lambda path: durable.append([int(each.name) for each in list_segments(path)])
    )
    if way == "truncate":
        LogRepair(log).truncate(100)
    elif way == "restart":
        LogRepair(log).restart(9_000)
    else:
        log.end = log.durable = 100
        LogRepair(log).resize_last(4096)
    assert durable[:2] == [[0, 4096], [0]]
    log.close()


def test_the_names_a_start_finds_are_durable_before_it_uses_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process that renamed the newest file may have been killed before it flushed the name."""
    log = make(tmp_path)
    put(log, 0, b"x" * 4096)
    log.close()
    durable: list[list[int]] = []
    monkeypatch.setattr(
        commit_log, "fsync_dir", lambda path: durable.append([int(each.name) for each in list_segments(path)])
    )
    make(tmp_path).close()
    assert durable == [[0]]


def test_a_log_that_is_soon_closed_prepares_nothing(tmp_path: Path) -> None:
    """What was begun is dropped, and the next file is made when it is needed after all."""
    log = make(tmp_path)
    log.segment_to_append(0)
    log.growing = False
    log.prepare_next()
    log.end = 4096
    assert log.needs_next() is False
    assert log.segment_to_append(4096).size == 4096
    log.close()


def test_the_last_file_is_resized(tmp_path: Path) -> None:
    """Longer in place, shorter as another file; bytes below the end and views of them stay."""
    log = make(tmp_path)
    segment = log.segment_to_append(0)
    log.write([(segment, 0, b"x" * 800)], 800)
    view = log.view(0, 800)
    for size in (8192, 1024, 4096):
        log.use_size(size)
        assert LogRepair(log).resize_last(size).size == size
        assert (tmp_path / "log" / f"{0:020d}").stat().st_size == size
        assert bytes(log.view(0, 800) or b"") == bytes(view or b"") == b"x" * 800
        assert log.capacity_end == size
    log.segment_to_append(4096)
    assert [path.name for path in sorted((tmp_path / "log").iterdir())] == [f"{0:020d}", f"{4096:020d}"]
    log.close()


@pytest.mark.parametrize("size", [1024, 8192])
def test_empty_files_after_the_end_are_deleted_when_its_file_is_resized(tmp_path: Path, size: int) -> None:
    """A power cut can leave the names of files whose bytes were lost."""
    log = make(tmp_path)
    for base in (0, 4096, 8192):
        segment = log.segment_to_append(base)
        log.write([(segment, base, b"y" * 4096)], base + 4096)
    LogRepair(log).cut(4096 + 800)
    log.use_size(size)
    assert (LogRepair(log).resize_last(size).base, log.capacity_end) == (4096, 4096 + size)
    assert sorted(path.name for path in (tmp_path / "log").iterdir()) == [f"{0:020d}", f"{4096:020d}"]
    assert bytes(log.view(4096, 800) or b"") == b"y" * 800
    log.close()


def test_files_after_a_cut_are_deleted_and_the_rest_is_zeros(tmp_path: Path) -> None:
    """Truncated within the second of three files, then restarted elsewhere."""
    log = make(tmp_path)
    for base in (0, 4096, 8192):
        segment = log.segment_to_append(base)
        log.write([(segment, base, b"y" * 4096)], base + 4096)
    LogRepair(log).truncate(5000)
    assert (log.end, log.durable, log.capacity_end, log.begin) == (5000, 5000, 8192, 0)
    assert bytes(log.view(4096, 4096) or b"") == b"y" * 904 + bytes(4096 - 904)
    LogRepair(log).restart(1 << 20)
    assert (log.begin, log.end, log.capacity_end) == (1 << 20, 1 << 20, (1 << 20) + 4096)
    assert len(list((tmp_path / "log").iterdir())) == 1
    log.close()


def test_a_range_without_entries_is_one_group() -> None:
    """State changes alone are confirmed too."""
    (group,) = taken_groups(8, 96, [])
    assert (group.first_position, group.end_position, len(group.entries), group.pieces) == (8, 96, 0, [])


def test_blocks_that_end_within_a_group_wait_for_its_end(tmp_path: Path) -> None:
    """Whatever the blocks cover, each is confirmed with the whole group that it ends in, the last one with the log."""
    bench = StoreBench(tmp_path / "data")
    queue = bench.store.queues.open(b"q")
    for count in (1, 4, 1, 3):
        bench.store.append(*[message([queue], bytes(50)) for _ in range(count)], atomic=True)
    ends = [seen.end for seen in read_log(bench.directory)]
    block = native.core.make_block([queue], [0], [0], [0], [0], [1])
    groups = whole_groups(bench.store._log, 0, [(block, end) for end in ends])
    assert [group.end_position for group in groups] == [
        ends[0], ends[1], *[ends[5]] * 4, ends[6], *[ends[9]] * 3
    ]  # fmt: skip
    part = whole_groups(bench.store._log, 0, [(block, ends[3])])
    assert [(group.end_position, len(group.entries)) for group in part] == [(ends[9], 1)]
    part = whole_groups(bench.store._log, 0, [(block, ends[5])])
    assert [(group.end_position, len(group.entries)) for group in part] == [(ends[5], 1), (ends[9], 0)]
    assert whole_groups(bench.store._log, ends[9], []) == []
    bench.close()


def segment_of(tmp_path: Path, base: int = 4096, size: int = 65536, zeroed: bool = False) -> Segment:
    path = segment_path(tmp_path, base)
    allocate(path, size, zeroed=zeroed)
    return Segment(path)


def test_file_is_private_and_full_size(tmp_path: Path) -> None:
    """0600, the asked size, all zeros, whether written out or reserved."""
    for zeroed in (False, True):
        segment = segment_of(tmp_path, zeroed=zeroed)
        assert segment.path.stat().st_mode & 0o777 == 0o600
        assert (segment.size, segment.end) == (65536, 4096 + 65536)
        assert bytes(segment.view) == bytes(65536)
        segment.drop()


def test_write_shows_in_the_view(tmp_path: Path) -> None:
    """What pwrite wrote there is visible in the read-only map."""
    segment = segment_of(tmp_path)
    segment.write(4100, b"hello")
    segment.sync()
    segment.release_pages()
    assert bytes(segment.view[4:9]) == b"hello"
    segment.close()
    segment.close()


def test_zero_finds_and_removes_what_is_there(tmp_path: Path) -> None:
    """Zeroing returns whether there was anything, and leaves what is before it."""
    segment = segment_of(tmp_path)
    segment.write(4096, b"keep")
    segment.write(50_000, b"torn")
    assert segment.zero(4100, segment.end)
    assert not segment.zero(4100, segment.end)
    assert bytes(segment.view[:4]) == b"keep"
    segment.close()


def test_views_survive_the_drop(tmp_path: Path) -> None:
    """A reader's view stays readable after retention has deleted the file."""
    segment = segment_of(tmp_path)
    segment.write(4096, b"still here")
    view = segment.view[:10]
    segment.drop()
    assert bytes(view) == b"still here"
    assert list_segments(tmp_path) == []


def test_the_list_is_in_order_and_ignores_other_files(tmp_path: Path) -> None:
    """Only 20-digit names are segments."""
    for name in ("0" * 19 + "9", "0" * 18 + "10", "notes.txt", ".next"):
        (tmp_path / name).write_bytes(b"")
    assert [int(path.name) for path in list_segments(tmp_path)] == [9, 10]


def test_a_truncated_file_gets_its_size_back_with_its_space_reserved(tmp_path: Path) -> None:
    """A hole would be space that does not exist: reading it through the map ends the process on a full tmpfs."""
    path = segment_path(tmp_path, 0)
    allocate(path, 256 * 1024, zeroed=True)
    os.truncate(path, 10_000)
    segment = Segment(path)
    segment.lengthen(256 * 1024)
    assert segment.size == 256 * 1024
    assert bytes(segment.view[-8:]) == bytes(8)
    assert path.stat().st_blocks * 512 >= 256 * 1024
    segment.close()


def test_unneeded_zeros_are_not_written(tmp_path: Path) -> None:
    """A log that is about to be closed does not wait for its next file."""
    asked = iter([True, True, False])
    allocate(tmp_path / "next", 1 << 20, zeroed=True, wanted=lambda: next(asked))
    assert next(asked, None) is None
    (tmp_path / "next").unlink()
