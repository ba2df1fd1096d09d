"""What is found after damage, on both twins."""

from __future__ import annotations

from pathlib import Path

import pytest

from broker.store.errors import CorruptLog
from broker.store.inspection.directory import LogFiles
from broker.store.log.commit_log import CommitLog
from broker.store.recovery.log_end import DamagedRange, Quarantine, find_next, scan_over_damage
from remoting.protocol.records.record import FILLER, FLAG_GROUP_OPEN, MESSAGE, encode_record
from runtime.faults import FaultPoints

SEGMENT = 4096


def record(position: int, body: bytes = b"body", *, epoch: int = 1, magic: int = MESSAGE, flags: int = 0) -> bytes:
    return encode_record(
        magic_type=magic, epoch=epoch, position=position, born_ms=1, store_ms=2, flags=flags,
        count=int(magic != FILLER), dispatch=(), counts=(0, 0, 0, 0, 0), tag_hash=0, producer_seq=0,
        meta=b"", body=body,
    )  # fmt: skip


def filled(directory: Path, bodies: list[bytes]) -> tuple[CommitLog, list[int]]:
    """A log of two files with these records; returns the position of each, and the end."""
    log = CommitLog(directory, SEGMENT, FaultPoints(), zeroed=False)
    position, positions = 0, []
    for body in bodies:
        data = record(position, body)
        segment = log.segment_to_append(position - position % SEGMENT)
        if position % SEGMENT + len(data) + 80 > SEGMENT:
            segment.write(position, record(position, bytes(segment.end - position - 80), magic=FILLER))
            position = segment.end
            segment, data = log.segment_to_append(position), record(position, body)
        segment.write(position, data)
        positions.append(position)
        position += len(data)
    return log, [*positions, position]


def hurt(log: CommitLog, position: int, data: bytes) -> None:
    segment = log.segment_at(position)
    assert segment is not None
    segment.write(position, data)


@pytest.mark.parametrize("at", [0, 4, 16, 40, 90])
def test_one_record_is_left_out(tmp_path: Path, at: int) -> None:
    """Whatever byte of it is damaged: size, magic, position, lengths, body; both searches agree."""
    log, positions = filled(tmp_path, [b"x" * 50] * 40)
    victim = positions[7]
    hurt(log, victim + at, b"\xee")
    scan, found = scan_over_damage(log, 0, positions[-1], Quarantine(), log.capacity_end)
    assert [(each.start, each.end) for each in found] == [(victim, positions[8])]
    assert scan.gaps == ((victim, positions[8]),)
    assert (scan.records_end, scan.groups_end) == (positions[-1], positions[-1])
    assert LogFiles(tmp_path).next_sound(victim, 1) == positions[8]


def test_damage_over_the_end_of_a_file(tmp_path: Path) -> None:
    """A zeroed filler and the first record of the next file."""
    log, positions = filled(tmp_path, [b"x" * 500] * 12)
    first = max(position for position in positions if position < SEGMENT)
    hurt(log, first, bytes(SEGMENT - first))
    hurt(log, SEGMENT, bytes(200))
    scan, found = scan_over_damage(log, 0, positions[-1], Quarantine(), log.capacity_end)
    behind = min(position for position in positions if position > SEGMENT)
    assert [(each.start, each.end) for each in found] == [(first, behind)]
    assert scan.records_end == positions[-1]


def test_bytes_of_a_message_are_never_taken_for_a_record(tmp_path: Path) -> None:
    """A body contains a forged record for its very position; the body is damaged elsewhere."""
    log, positions = filled(tmp_path, [b"x" * 50] * 3)
    at = positions[-1]
    inner = at + 80 + 40
    data = record(at, b"y" * 40 + record(inner, b"forged") + b"z" * 80)
    log.segment_to_append(0).write(at, data)
    hurt(log, at + len(data) - 60, b"?")
    behind = at + len(data)
    log.segment_to_append(0).write(behind, record(behind, b"after"))
    assert find_next(log, at, 1) == behind
    assert LogFiles(tmp_path).next_sound(at, 1) == behind


def test_stale_records_of_earlier_epochs_do_not_count(tmp_path: Path) -> None:
    """They are left from before."""
    log, positions = filled(tmp_path, [b"x" * 50] * 5)
    assert find_next(log, positions[1], 1) == positions[2]
    assert find_next(log, positions[1], 2) == 0
    assert LogFiles(tmp_path).next_sound(positions[1], 2) == 0


def test_nothing_after_the_damage(tmp_path: Path) -> None:
    """The log continues where it was durable; a torn tail above it ends the scan."""
    log, positions = filled(tmp_path, [b"x" * 50] * 5)
    hurt(log, positions[3], bytes(positions[-1] - positions[3]))
    scan, found = scan_over_damage(log, 0, positions[-1], Quarantine(), log.capacity_end)
    assert [(each.start, each.end) for each in found] == [(positions[3], positions[-1])]
    assert scan.records_end == positions[-1]
    scan, found = scan_over_damage(log, 0, positions[3], Quarantine(), log.capacity_end)
    assert not found
    assert scan.records_end == positions[3]


def test_known_damage_is_skipped_and_a_repaired_range_is_read(tmp_path: Path) -> None:
    """A known range matters only where a record fails."""
    log, positions = filled(tmp_path, [b"x" * 50] * 6)
    known = Quarantine([DamagedRange(positions[2], positions[4], "known")])
    whole, found = scan_over_damage(log, 0, 0, known, log.capacity_end)
    assert (whole.records, whole.gaps, found) == (6, (), [])
    hurt(log, positions[3] + 90, b"?")
    scan, found = scan_over_damage(log, 0, 0, known, log.capacity_end)
    assert (scan.records, scan.gaps, found) == (5, ((positions[3], positions[4]),), [])


def test_a_group_does_not_stay_open_over_damage(tmp_path: Path) -> None:
    """Its last record is damaged; what follows is complete all the same."""
    log, positions = filled(tmp_path, [b"x" * 50] * 4)
    hurt(log, positions[1], record(positions[1], b"x" * 50, flags=FLAG_GROUP_OPEN))
    hurt(log, positions[2] + 90, b"?")
    hurt(log, positions[3] + 90, b"?")
    scan, _ = scan_over_damage(log, 0, positions[-1], Quarantine(), log.capacity_end)
    assert scan.groups_end == scan.records_end == positions[-1]


def test_missing_files_are_refused(tmp_path: Path) -> None:
    """What was durable must have a file."""
    log, positions = filled(tmp_path, [b"x" * 50] * 4)
    with pytest.raises(CorruptLog, match="were durable"):
        scan_over_damage(log, 0, SEGMENT + 8, Quarantine(), log.capacity_end)
    assert positions[-1] < SEGMENT
