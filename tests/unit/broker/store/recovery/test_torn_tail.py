"""Torn tails are kept, few and small."""

from __future__ import annotations

from pathlib import Path

import pytest
import structlog

from broker.store.log.commit_log import CommitLog
from broker.store.recovery import log_end
from broker.store.recovery.log_end import TORN_FILES_MAX, keep_torn_tail
from runtime.faults import FaultPoints


@pytest.fixture
def log(tmp_path: Path) -> CommitLog:
    """A log of two files, with something in both."""
    made = CommitLog(tmp_path / "log", 4096, FaultPoints(), zeroed=False)
    made.segment_to_append(0).write(100, b"a" * 50)
    made.segment_to_append(4096).write(4096, b"b" * 8)
    return made


def test_bytes_are_kept_over_the_end_of_a_file(tmp_path: Path, log: CommitLog) -> None:
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


def test_no_room_is_no_reason_to_stop(tmp_path: Path, log: CommitLog) -> None:
    """A file stands where the folder should be."""
    (tmp_path / "quarantine").write_bytes(b"")
    keep_torn_tail(log, tmp_path, 140, 7, structlog.get_logger())
    assert (tmp_path / "quarantine").is_file()
