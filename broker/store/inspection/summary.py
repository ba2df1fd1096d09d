"""What is in a data directory, in numbers; cheap, because only the end of the log is walked.

Invariant: nothing is changed; beside a live broker the numbers are of the moment its parts were opened.
Thread rule: one thread.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from broker.store.inspection.directory import DataDirectory, open_directory
from broker.store.inspection.log_files import LogFile, Walk
from broker.store.inspection.state_replay import StateReplay
from broker.store.recovery.log_end import Scan, decide_end
from broker.store.state.state_kinds import NAMES, QUEUE
from broker.store.state.state_snapshot import restore
from broker.store.state.state_tables import StateTables
from remoting.protocol.records.record import HEADER, HEADER_SIZE, MAGIC, MAGIC_MASK


@dataclass(slots=True)
class Summary:
    """Counts and positions of one directory; times are ms since 1970, sizes bytes."""

    directory: str
    in_use_by: int | None
    clean: bool
    epoch: int
    first_epoch: int
    begin_position: int
    end_position: int
    durable_position: int
    snapshot_position: int
    indexed_position: int
    keys_indexed_position: int
    oldest_store_ms: int
    newest_store_ms: int
    segments: int
    segment_bytes: int
    queues: int
    runs: list[dict[str, int]] = field(default_factory=list)
    key_runs: list[dict[str, int]] = field(default_factory=list)
    state: dict[str, dict[str, int]] = field(default_factory=dict)
    quarantined: list[dict[str, object]] = field(default_factory=list)
    unreadable: list[str] = field(default_factory=list)


def summarise(path: Path) -> Summary:
    """Return the numbers of the data directory at `path`. Raises NoDataDirectory, OSError."""
    found = open_directory(path)
    tables, scan = state_of(found)
    state = {NAMES[kind]: _sizes(tables, kind) for kind in NAMES if tables.count(kind)}
    checkpoint = found.checkpoint
    first = _first_header(found.files.files)
    return Summary(
        directory=str(found.path),
        in_use_by=found.owner_pid,
        clean=found.owner_pid is None and checkpoint is not None and checkpoint.clean,
        epoch=max(scan.epoch, checkpoint.epoch if checkpoint else 0, found.mark.epoch if found.mark else 0),
        first_epoch=first[0],
        begin_position=found.files.begin,
        end_position=decide_end(scan, found.durable, keep_parts=True).position,
        durable_position=found.durable,
        snapshot_position=found.snapshot.position if found.snapshot else 0,
        indexed_position=found.manifest.end_position,
        keys_indexed_position=found.keys.manifest.end_position,
        oldest_store_ms=first[1],
        newest_store_ms=max(scan.store_ms, _first_header(found.files.files[::-1])[1]),
        segments=len(found.files.files),
        segment_bytes=found.files.size_bytes,
        queues=sum(1 for _ in queues_of(tables)),
        runs=[{"id": run.file_id, "level": run.level, "queues": len(run.queues), "entries": run.entry_count,
               "first_position": run.first_position, "end_position": run.end_position} for run in found.runs],
        key_runs=[{"id": run.file_id, "level": run.level, "entries": run.entry_count,
                   "first_position": run.first_position, "end_position": run.end_position} for run in found.keys.runs],
        state=state,
        quarantined=[asdict(each) for each in found.quarantine],
        unreadable=[str(error) for error in found.unreadable],
    )  # fmt: skip


def state_of(found: DataDirectory) -> tuple[StateTables, Scan]:
    """Return the state at the end of the log, from the snapshot on when there is a usable one."""
    snapshot = found.snapshot
    usable = snapshot is not None and snapshot.position >= found.files.begin
    start = snapshot.position if snapshot is not None and usable else found.files.begin
    replay = StateReplay(StateTables(), start)
    if snapshot is not None and usable:
        restore(snapshot, replay.tables)
    walk = Walk(found.files, start, found.durable, found.quarantine)
    for file, at, head in walk:
        replay.take(file, at, head)
    return replay.tables, walk.scan


def queues_of(tables: StateTables) -> Iterator[tuple[int, bytes]]:
    """Yield (id, name) of every queue."""
    for name, (value, _) in tables.items(QUEUE):
        if name:
            yield int.from_bytes(value[:4], "little"), name


def _sizes(tables: StateTables, kind: int) -> dict[str, int]:
    keys = values = count = 0
    for key, (value, _) in tables.items(kind):
        count += 1
        keys += len(key)
        values += len(value)
    return {"entries": count, "key_bytes": keys, "value_bytes": values}


def _first_header(files: list[LogFile]) -> tuple[int, int]:
    """Return (epoch, store time) of the first record of the first of `files` that starts with one."""
    for file in files:
        if len(file.view) >= HEADER_SIZE:
            head: tuple[Any, ...] = HEADER.unpack_from(file.view, 0)
            if head[1] & MAGIC_MASK == MAGIC:
                return head[3], head[6]
    return 0, 0
