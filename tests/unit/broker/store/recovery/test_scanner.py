"""Scanning and replaying the log."""

from __future__ import annotations

from pathlib import Path

from broker.store.log.commit_log import CommitLog
from broker.store.recovery.log_end import scan_log
from remoting.protocol.records.record import FILLER, FLAG_GROUP_OPEN, HEADER_SIZE, MESSAGE
from runtime.faults import FaultPoints
from tests.support.records import make_record

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
    """Zeros behind the cut complete a record only where they are what stood there."""
    whole = b"".join(record(n * SIZE) for n in range(3))
    for cut in range(0, len(whole), 7):
        (tmp_path / str(cut)).mkdir()
        log = make(tmp_path / str(cut))
        torn = whole[:cut] + bytes(len(whole) - cut)
        put(log, torn)
        end = next((at for at in range(0, len(whole), SIZE) if torn[at : at + SIZE] != whole[at : at + SIZE]), cut)
        assert scan_log(log, 0).records_end == end, cut
        log.close()


def test_open_group_ends_before_it(tmp_path: Path) -> None:
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
    """Right place, right checksum, lower epoch: a leftover behind a shorter new tail."""
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
