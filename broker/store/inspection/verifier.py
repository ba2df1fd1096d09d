"""Checks a whole data directory: every record, every queue, every run, and the state both ways.

Sound means: no record fails below the durable position, every queue's offsets are dense, each run says exactly what the
log says, and the state from snapshot and log is the state from the log alone. Invariant: nothing is changed; beside a
live broker only what was promised before the check began is held against it. Thread rule: one thread.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from broker.store.errors import CorruptIndex
from broker.store.inspection.directory import DataDirectory, open_directory
from broker.store.inspection.index_check import LogEntries, check_cover, check_run
from broker.store.inspection.log_files import Walk
from broker.store.inspection.state_replay import StateReplay
from broker.store.recovery import Damage, Scan, decide_end
from broker.store.state_kinds import NAMES
from broker.store.state_snapshot import restore
from broker.store.state_tables import StateTables
from remoting.protocol.errors import CorruptRecord

ERRORS_MAX = 1000
"""Errors listed; `errors_total` counts all of them."""
STATE_DIFFERENCES_MAX = 20


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is wrong; `check` is log, density, index, state or metadata."""

    check: str
    path: str
    text: str


@dataclass(slots=True)
class Report:
    """What was found; sound when `errors` is empty. Positions are bytes of the log, the ends exclusive."""

    directory: str
    in_use_by: int | None = None
    records: int = 0
    entries: int = 0
    queues: int = 0
    runs: int = 0
    run_entries: int = 0
    state_entries: int = 0
    epoch: int = 0
    begin_position: int = 0
    end_position: int = 0
    durable_position: int = 0
    stopped: str = ""
    errors_total: int = 0
    errors: list[Finding] = field(default_factory=list)

    def add(self, check: str, path: Path, text: str) -> None:
        """Note something wrong."""
        self.errors_total += 1
        if len(self.errors) < ERRORS_MAX:
            self.errors.append(Finding(check, str(path), text))


def verify(path: Path) -> Report:
    """Check the data directory at `path`. Raises NoDataDirectory, OSError."""
    found = open_directory(path)
    report = Report(
        str(found.path), found.owner_pid, runs=len(found.runs),
        begin_position=found.files.begin, durable_position=found.durable,
    )  # fmt: skip
    for error in found.unreadable:
        report.add("metadata", error.path, error.reason)
    whole, short = _replays(found)
    entries = LogEntries()
    scan = _walk(found, report, entries, [replay for replay in (whole, short) if replay is not None])
    _check_end(found, scan, report)
    _check_index(found, report, entries)
    if short is not None:
        _check_state(found, whole.tables, short.tables, report)
    report.entries, report.queues = len(entries), len(entries.next_offsets)
    report.state_entries = sum(whole.tables.count(kind) for kind in NAMES)
    return report


def _replays(found: DataDirectory) -> tuple[StateReplay, StateReplay | None]:
    whole = StateReplay(StateTables(), found.files.begin)
    snapshot = found.snapshot
    if snapshot is None or snapshot.position < found.files.begin:
        return whole, None
    short = StateReplay(StateTables(), snapshot.position)
    restore(snapshot, short.tables)
    return whole, short


def _walk(found: DataDirectory, report: Report, entries: LogEntries, replays: list[StateReplay]) -> Scan:
    walk = Walk(found.files, found.files.begin)
    for file, at, head in walk:
        report.records += 1
        if head[11]:
            for text in entries.add(file.view, at, file.base + at, head):
                report.add("density", file.path, text)
        try:
            for replay in replays:
                replay.take(file, at, head)
        except CorruptRecord as error:
            report.add("state", file.path, f"control record at {file.base + at}: {error.reason}")
    return walk.scan


def _check_end(found: DataDirectory, scan: Scan, report: Report) -> None:
    end = decide_end(scan, found.durable)
    file = found.files.file_at(scan.records_end)
    path = file.path if file else found.files.directory
    report.epoch, report.end_position = scan.epoch, end.position
    if scan.reason:
        report.stopped = f"{path.name} at {scan.records_end}: {scan.reason}"
    if isinstance(end, Damage):
        report.add("log", path, f"position {end.position} is below the durable {found.durable}: {end.reason}")


def _check_index(found: DataDirectory, report: Report, entries: LogEntries) -> None:
    begin, directory = report.begin_position, found.path / "index"
    if 0 < found.manifest.end_position < begin:
        report.add("index", directory, f"it covers the log to {found.manifest.end_position}, which begins at {begin}")
        return
    for text in check_cover(found.runs, begin, found.manifest.end_position):
        report.add("index", directory, text)
    for run in found.runs:
        report.run_entries += int((run.positions >= begin).sum())
        try:
            for text in check_run(run, entries, begin):
                report.add("index", run.path, text)
        except CorruptIndex as error:
            report.add("index", error.path, error.reason)


def _check_state(found: DataDirectory, whole: StateTables, short: StateTables, report: Report) -> None:
    for kind, name in NAMES.items():
        wrong = [key for key, entry in whole.items(kind) if short.get(kind, key) != entry]
        wrong += [key for key, _ in short.items(kind) if whole.get(kind, key) is None]
        for key in sorted(wrong)[:STATE_DIFFERENCES_MAX]:
            said, snapshot = whole.get(kind, key), short.get(kind, key)
            report.add("state", found.path / "state", f"{name} {key!r}: log says {said}, snapshot and log {snapshot}")
