"""Checks a whole data directory: every record, every queue, every run, and the state both ways.

Sound means: no record fails below the durable position but in what is in quarantine already, every queue's offsets
are dense, each run says exactly what the log says, and the state from snapshot and log is the state from the log alone.
Invariant: nothing is changed; beside a live broker only what was promised before the check began is held against it.
Thread rule: one thread.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from broker.store import hot
from broker.store.errors import CorruptIndex
from broker.store.inspection.directory import DataDirectory, open_directory
from broker.store.inspection.index_check import LogEntries, check_cover, check_run
from broker.store.inspection.key_check import LogKeys, check_keys
from broker.store.inspection.log_files import Stretches
from broker.store.inspection.state_replay import StateReplay
from broker.store.recovery.log_end import Damage, decide_end
from broker.store.state.state_kinds import NAMES
from broker.store.state.state_snapshot import restore
from broker.store.state.state_tables import StateTables
from remoting.protocol.errors import CorruptRecord

ERRORS_MAX = 1000
"""Errors listed; `errors_total` counts all of them."""
STATE_DIFFERENCES_MAX = 20
EMPTY = "magic 0x00000000 is no record"
"""How a scan calls the room after the last record, which is all zeros."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is wrong; `check` is log, density, index, keys, state or metadata."""

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
    key_runs: int = 0
    keys: int = 0
    state_entries: int = 0
    epoch: int = 0
    begin_position: int = 0
    end_position: int = 0
    durable_position: int = 0
    stopped: str = ""
    quarantined: list[Finding] = field(default_factory=list)
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
        key_runs=len(found.keys.runs), keys=sum(run.entry_count for run in found.keys.runs),
        begin_position=found.files.begin, durable_position=found.durable,
    )  # fmt: skip
    for error in found.unreadable:
        report.add("metadata", error.path, error.reason)
    whole, short = _replays(found)
    entries = LogEntries()
    stretches = Stretches(found.files, found.files.begin, found.durable, found.quarantine)
    keys = LogKeys(found.keys)
    _walk(found, stretches, report, entries, keys, [replay for replay in (whole, short) if replay is not None])
    _check_end(found, stretches, report)
    _check_index(found, report, entries, stretches)
    for file, text in check_keys(found.keys, keys, report.begin_position, [gap[:2] for gap in stretches.damage]):
        report.add("keys", file, text)
    if short is not None and not any(start < short.start for start, _, _ in stretches.damage):
        _check_state(found, whole.tables, short.tables, report)
    report.entries, report.queues = len(entries), entries.queues
    report.state_entries = sum(whole.tables.count(kind) for kind in NAMES)
    return report


def _replays(found: DataDirectory) -> tuple[StateReplay, StateReplay | None]:
    """Return a replay of the whole log and, with a usable snapshot, one from there on.

    What the snapshot alone still knows of a damaged stretch is no error, so they are compared without such ones only.
    """
    whole = StateReplay(StateTables(), found.files.begin)
    snapshot = found.snapshot
    if snapshot is None or snapshot.position < found.files.begin:
        return whole, None
    short = StateReplay(StateTables(), snapshot.position)
    restore(snapshot, short.tables)
    return whole, short


def _walk(
    found: DataDirectory,
    stretches: Stretches,
    report: Report,
    entries: LogEntries,
    keys: LogKeys,
    replays: list[StateReplay],
) -> None:
    for file, first, end in stretches:
        known = [each.start for each in found.quarantine if each.start < end]  # also where bytes are sound again
        entries.pass_damage(max([-1, *known, *(start for start, _, _ in stretches.damage)]))
        records, columns, marks = hot.core.survey(file.view, file.base, first, end)
        report.records += records
        keys.add(file.view, file.base, first, end)
        for text in entries.add(columns):
            report.add("density", file.path, text)
        for replay in replays:
            try:
                replay.note_marked(file, marks)
            except CorruptRecord as error:
                report.add("state", file.path, f"a control record between {first} and {end}: {error.reason}")
    for replay in replays:
        replay.end_group(below=stretches.scan.groups_end)


def _check_end(found: DataDirectory, stretches: Stretches, report: Report) -> None:
    scan = stretches.scan
    end = decide_end(scan, found.durable, keep_parts=bool(stretches.damage))
    file = found.files.file_at(scan.records_end)
    path = file.path if file else found.files.directory
    report.epoch, report.end_position = scan.epoch, end.position
    if scan.reason:
        reason = "no further record" if scan.reason == EMPTY else scan.reason
        report.stopped = f"{path.name} at {scan.records_end}: {reason}"
    if isinstance(end, Damage):
        report.add("log", path, f"position {end.position} is below the durable {found.durable}: {end.reason}")
    for start, behind, reason in stretches.damage:
        known = found.quarantine.at(start)
        if known is not None and behind <= known.end:
            report.quarantined.append(Finding("quarantine", str(_path(found, start)), f"{start} to {behind}: {reason}"))
        else:
            text = f"positions {start} to {behind} are below the durable {found.durable}: {reason}"
            report.add("log", _path(found, start), text)


def _path(found: DataDirectory, position: int) -> Path:
    file = found.files.file_at(position)
    return file.path if file else found.files.directory


def _check_index(found: DataDirectory, report: Report, entries: LogEntries, stretches: Stretches) -> None:
    begin, directory = report.begin_position, found.path / "index"
    if 0 < found.manifest.end_position < begin:
        report.add("index", directory, f"it covers the log to {found.manifest.end_position}, which begins at {begin}")
        return
    for text in check_cover(found.runs, begin, found.manifest.end_position):
        report.add("index", directory, text)
    gaps = [(start, end) for start, end, _ in stretches.damage]
    for run in found.runs:
        report.run_entries += int((run.positions >= begin).sum())
        try:
            for text in check_run(run, entries, begin, gaps):
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
