"""What `lightmq store stat`, `dump` and `rebuild-index` do with a data directory.

`stat` gives numbers and is cheap, because only the end of the log is walked. `dump` gives records as plain values; a
damaged stretch below the durable position is one item of its own, behind that position the log simply ends; bytes that
are not UTF-8 are given in base64 under a name that shows it. `rebuild-index` builds the index of a stopped store again
from its log. Invariant: the log is never changed, and beside a live broker the output is of the moment its parts were
opened; a former index is put aside, goes only when the new one is complete and durable, and is put back when the log
turns out to be damaged. Thread rule: one thread, which owns a store whose index it rebuilds.
"""

from __future__ import annotations

import base64
import shutil
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

from broker.store.inspection.directory import DataDirectory, LogFile, Walk, locate, open_directory
from broker.store.inspection.verifier import StateReplay
from broker.store.keys.key_index import DIRECTORY as KEYS
from broker.store.log.commit_log import list_segments
from broker.store.log.metadata import Checkpoint, save_checkpoint
from broker.store.log_store import LogStore
from broker.store.recovery.log_end import Scan, decide_end
from broker.store.recovery.replayer import Passed
from broker.store.settings import SEGMENT_SIZE_BYTES_MIN, StoreSettings
from broker.store.state.state_kinds import NAMES, QUEUE, decode_changes
from broker.store.state.state_tables import StateTables, restore
from remoting.protocol.errors import LocalMisuse
from remoting.protocol.records.record import (
    CONTROL,
    HEADER,
    HEADER_SIZE,
    MAGIC,
    MAGIC_MASK,
    RecordView,
    dispatch_fields,
    header_of,
)
from runtime.clock import Clock
from runtime.faults import FaultPoints
from runtime.files import DirectoryLock


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


_TYPES = {1: "message", 2: "batch", 3: "control"}


def records(path: Path, *, start: int = 0, queue: str = "", limit: int = 0) -> Iterator[dict[str, Any]]:
    """Yield records from log position `start` on, at most `limit` (0: all), only those of `queue` when it is given.

    Damaged stretches stand in their place. A queue is named by its id or its name. Raises NoDataDirectory, LocalMisuse
    (no such queue), OSError.
    """
    found = open_directory(path)
    queue_id = _queue_id(path, queue) if queue else None
    first = found.files.record_start(max(start, found.files.begin))
    walk = Walk(found.files, first, found.durable, found.quarantine)

    def chosen() -> Iterator[dict[str, Any]]:
        told = 0
        for file, at, head in walk:
            yield from map(_damaged, walk.damage[told:])
            told = len(walk.damage)
            if queue_id is None or any(qid == queue_id for qid, _ in dispatch_fields(file.view, at)):
                yield record(file.view, at, head[1])
        yield from map(_damaged, walk.damage[told:])

    return islice(chosen(), limit or None)


def _damaged(damage: tuple[int, int, str]) -> dict[str, Any]:
    """Return what stands in the place of records that cannot be read."""
    start, end, reason = damage
    return {"position": start, "size": end - start, "type": "damaged", "reason": reason}


def record(view: memoryview, at: int, magic_type: int) -> dict[str, Any]:
    """Return one checked record as plain values."""
    seen = RecordView(view, at)
    made: dict[str, Any] = {
        "position": seen.position,
        "size": seen.total,
        "type": _TYPES.get(seen.type, str(seen.type)),
        "epoch": header_of(seen).epoch,
        "store_ms": seen.store_ms,
        "flags": seen.flags,
    }
    if magic_type == CONTROL:
        made["changes"] = [
            {"kind": NAMES.get(change.kind, str(change.kind)), **text("key", change.key)}
            | ({"deleted": True} if change.value is None else text("value", change.value))
            for change in decode_changes(seen.body)
        ]
        return made
    made |= {"born_ms": seen.born_ms, "count": seen.count, "queues": [list(place) for place in seen.dispatch()]}
    for name, value in (("topic", seen.topic), ("keys", seen.keys), ("tags", seen.tags)):
        if value:
            made |= text(name, value)
    made["properties"] = [[_shown(key), _shown(value)] for key, value in seen.properties()]
    return made | text("body", bytes(seen.body))


def text(name: str, value: bytes) -> dict[str, str]:
    """Return {name: text}, or {name_base64: ...} for bytes that are no printable UTF-8."""
    try:
        decoded = value.decode()
    except UnicodeDecodeError:
        decoded = "\x00"
    if "\x00" in decoded:
        return {f"{name}_base64": base64.b64encode(value).decode()}
    return {name: decoded}


def _shown(value: bytes) -> str:
    return value.decode(errors="backslashreplace")


def _queue_id(path: Path, queue: str) -> int:
    if queue.isdigit():
        return int(queue)
    found = state_of(open_directory(path))[0].get(QUEUE, queue.encode())
    if found is None:
        raise LocalMisuse(
            f"{path}: there is no queue named {queue!r}; give its id, or see: lightmq store stat --queues"
        )
    return int.from_bytes(found[0][:4], "little")


ASIDE = "index.former"


def rebuild_index(path: Path, *, clock: Clock, log: Any, passed: Passed | None = None) -> dict[str, int]:
    """Rebuild and return what was read: `records`, `queues`, `end_position`; `passed` is told how far it is.

    Raises NoDataDirectory, DirectoryLocked (a broker uses it), CorruptLog, OSError.
    """
    directory = locate(path)
    aside = directory / ASIDE
    with DirectoryLock(directory):
        _keep_durable(directory)
        shutil.rmtree(directory / KEYS, ignore_errors=True)
        if (directory / "index").exists():
            shutil.rmtree(aside, ignore_errors=True)
            (directory / "index").rename(aside)
    due: deque[Callable[[], None]] = deque()
    settings = StoreSettings(
        segment_size_bytes=_file_size(directory), ballast_size_bytes=0, free_space_bytes_min=0, flush_interval_ms=1,
        damage_policy="refuse",
    )  # fmt: skip
    try:
        store = LogStore.open(
            directory, settings, clock=clock, faults=FaultPoints(), schedule=due.append, log=log, passed=passed
        )
    except BaseException:
        if aside.exists():
            shutil.rmtree(directory / "index", ignore_errors=True)
            aside.rename(directory / "index")
        raise
    found = store.metrics()
    records = store.replayed_records
    store.close()
    while due:
        due.popleft()()
    shutil.rmtree(aside, ignore_errors=True)
    return {"records": records, "queues": found["queues"], "end_position": found["end_position"]}


def _file_size(directory: Path) -> int:
    """Return the size the log files have, so that opening the store leaves the last one as it is."""
    sizes = [path.stat().st_size for path in list_segments(directory / "log")]
    return max(SEGMENT_SIZE_BYTES_MIN, max(sizes, default=0) & ~7)


def _keep_durable(directory: Path) -> None:
    """Note how far the log was durable: the index that is put aside may be the only one to prove it."""
    found = open_directory(directory)
    checkpoint = found.checkpoint
    if found.durable > (checkpoint.position if checkpoint else 0):
        save_checkpoint(directory, Checkpoint(checkpoint.epoch if checkpoint else 0, found.durable, clean=False))
