"""Checks a whole data directory: every record, every queue, every run, and the state both ways.

Sound means: no record fails below the durable position but in what is in quarantine already, every queue's offsets
are dense, each run has exactly the log's entries, and the state from snapshot and log is the state from the log alone.
A run holds exactly the entries of the records in its part of the log, in the same order, with the same queue offsets,
sizes and tags; what it holds more are holes, which lie in damaged stretches: 32 bytes of memory per entry of the log.
Changes of a group are taken in when its last record was seen, so an unfinished group at the tail leaves no trace.
Invariant: nothing is changed; beside a live broker only what was promised before the check began is held against it.
Thread rule: one thread.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from broker.store.errors import CorruptIndex
from broker.store.index.run import Run
from broker.store.inspection.directory import (
    DataDirectory,
    Header,
    LogFile,
    LogKeys,
    NoDataDirectory,
    Stretches,
    check_keys,
    different_rows,
    open_directory,
)
from broker.store.recovery.log_end import Damage, decide_end
from broker.store.recovery.replayer import Passed
from broker.store.state import state_kinds
from broker.store.state.state_kinds import NAMES, StateChange, decode_changes
from broker.store.state.state_tables import StateTables, restore
from remoting.native import core as native
from remoting.native.vectors import Column, empty, full, joined
from remoting.protocol.errors import CorruptRecord
from remoting.protocol.records.record import (
    CONTROL,
    FLAG_GROUP_OPEN,
    FLAG_MQTT,
    FLAG_RETAIN,
    FLAG_STAGED,
    HEADER,
    RecordView,
)

_RETAINED = FLAG_MQTT | FLAG_RETAIN


class StateReplay:
    """Feeds records to `tables`, those at or behind `start`."""

    def __init__(self, tables: StateTables, start: int) -> None:
        self.tables = tables
        self.start = start
        self._group: list[tuple[StateChange, int]] = []

    def take(self, file: LogFile, at: int, head: Header) -> None:
        """Take in one record of a walk over all of them. Raises CorruptRecord when it contradicts itself."""
        self.note(file, at, head)
        if not head[9] & FLAG_GROUP_OPEN:
            self.end_group()

    def note(self, file: LogFile, at: int, head: Header) -> None:
        """Note what one record changes; it counts once its group has ended."""
        position = file.base + at
        if position < self.start:
            return
        if head[1] == CONTROL:
            body = file.view[at + head[8] : at + head[8] + head[7]]
            self._group += [(change, position) for change in decode_changes(body)]
        elif head[9] & (_RETAINED | FLAG_STAGED) == _RETAINED:
            topic = RecordView(file.view, at).mqtt_topic
            if topic is not None:
                self._group.append((StateChange(state_kinds.RETAINED, topic, b"" if head[7] else None), position))

    def note_marked(self, file: LogFile, marks: list[int]) -> None:
        """Note the records at these positions. Raises CorruptRecord."""
        for position in marks:
            at = position - file.base
            self.note(file, at, HEADER.unpack_from(file.view, at))

    def end_group(self, below: int | None = None) -> None:
        """Apply what was noted, with `below` only what was set below that position."""
        for change, said in self._group:
            if below is None or said < below:
                self.tables.apply(change, said)
        self._group.clear()


DIFFERENCES_MAX = 20
"""Differences named per run; the first ones are enough to see what happened."""
Columns = tuple[Column, ...]
_NOTHING: Columns = tuple(empty(0, kind) for kind in "IqqII")


class LogEntries:
    """Every dispatch of the log in order, as columns, and each queue's next offset."""

    def __init__(self) -> None:
        self._next = empty(0, "q")
        self._last = empty(0, "q")
        self._parts: list[Columns] = []
        self._joined: Columns | None = None
        self._damage = -1

    def __len__(self) -> int:
        return sum(len(part[0]) for part in self._parts)

    @property
    def queues(self) -> int:
        """How many queues have entries."""
        return (self._next >= 0).sum()

    def pass_damage(self, position: int) -> None:
        """The log is damaged at `position`: queues may continue at a higher offset after it."""
        self._damage = position

    def add(self, columns: Columns) -> Iterator[str]:
        """Take in (queue, offset, position, size, tag, count) in log order; yield what is wrong with the offsets."""
        *kept, counts = columns
        if not len(counts):
            return
        self._parts.append(tuple(kept))
        self._joined = None
        queues, offsets, positions = kept[:3]
        self._grow(queues.max() + 1)
        wrong = native.core.follow(queues, offsets, positions, counts, self._next, self._last, self._damage)
        for row, expected in wrong:
            yield f"queue {queues[row]}: offset {offsets[row]} at {positions[row]} follows {expected - 1}"

    def _grow(self, count: int) -> None:
        missing = max(0, count - len(self._next))
        if missing:
            more = full(missing + len(self._next) // 2, -1, "q")
            self._next, self._last = joined([self._next, more]), joined([self._last, more])

    def part(self, start: int, end: int) -> Columns:
        """Return (queue, offset, position, size, tag) of the records in [start, end), sorted by queue."""
        if self._joined is None:
            self._joined = tuple(joined(columns) for columns in zip(*self._parts, strict=True)) or _NOTHING
            self._parts = [self._joined]
        first, last = self._joined[2].searchsorted(start), self._joined[2].searchsorted(end)
        chosen = [column[first:last] for column in self._joined]
        order = native.core.order_by_queue(chosen[0])
        return tuple(column[order] for column in chosen)


def check_run(run: Run, entries: LogEntries, begin: int, gaps: Sequence[tuple[int, int]] = ()) -> Iterator[str]:
    """Yield how `run` differs from the log, which begins at `begin` and is damaged at `gaps`.

    Raises CorruptIndex (a checksum).
    """
    queues, offsets, positions, sizes, tags = run.columns()
    kept = (positions >= begin) & (sizes > 0)  # older ones have expired with their log file, holes are not in the log
    for start, end in gaps:
        kept &= (positions < start) | (positions >= end)
    said = [column[kept] for column in (queues, offsets, positions, sizes, tags)]
    meant = entries.part(max(run.first_position, begin), run.end_position)
    if len(said[0]) != len(meant[0]):
        yield f"{run.path.name}: {len(said[0])} entries where the log has {len(meant[0])}"
        return
    wrong = different_rows(said, meant)
    names = ("queue", "offset", "position", "size", "tag")
    for at in wrong[:DIFFERENCES_MAX].tolist():
        pairs = [f"{name} {a[at]}/{b[at]}" for name, a, b in zip(names, said, meant, strict=True)]
        yield f"{run.path.name}: index/log say {', '.join(pairs)}"


def check_cover(runs: list[Run], begin: int, end: int) -> Iterator[str]:
    """Yield the holes in what `runs` cover of the log from `begin` to `end`, where the manifest says they end."""
    at = begin
    for run in runs:
        if run.first_position > at:
            yield f"{run.path.name} begins at {run.first_position}, the run before ends at {at}"
        at = max(at, run.end_position)
    if at > max(begin, end):  # an index being rebuilt has no manifest yet, wherever the log begins
        yield f"the runs end at {at}, the manifest says {end}"


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


def verify(path: Path, passed: Passed = lambda _done, _total: None) -> Report:
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
    replays = [replay for replay in (whole, short) if replay is not None]
    _walk(found, stretches, report, entries, keys, replays, passed)
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
    passed: Passed,
) -> None:
    begin, total = found.files.begin, max(found.durable - found.files.begin, 0)
    for file, first, end in stretches:
        known = [each.start for each in found.quarantine if each.start < end]  # also where bytes are sound again
        entries.pass_damage(max([-1, *known, *(start for start, _, _ in stretches.damage)]))
        records, columns, marks = native.core.survey(file.view, file.base, first, end)
        report.records += records
        keys.add(file.view, file.base, first, end)
        for text in entries.add(columns):
            report.add("density", file.path, text)
        for replay in replays:
            try:
                replay.note_marked(file, marks)
            except CorruptRecord as error:
                report.add("state", file.path, f"a control record between {first} and {end}: {error.reason}")
        passed(min(end - begin, total), total)
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
        report.run_entries += (run.positions >= begin).sum()
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


def render(report: Report) -> str:
    """Return a report as lines for people."""
    lines = [
        f"{name.replace('_', ' ')}: {value}"
        for name, value in asdict(report).items()
        if name not in ("errors", "errors_total", "quarantined") and value not in (None, "")
    ]
    lines += [f"in quarantine: {each.path}: {each.text}" for each in report.quarantined]
    lines += [f"error: {error.check}: {error.path}: {error.text}" for error in report.errors]
    count = report.errors_total
    lines.append(f"{count} {'error' if count == 1 else 'errors'}" if count else "sound")
    return "\n".join(lines) + "\n"


def main(arguments: Sequence[str] | None = None) -> int:
    """Check the directory named on the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m broker.store.inspection.verifier", description="check a data directory"
    )
    parser.add_argument("directory", type=Path)
    parser.add_argument("--json", action="store_true", help="one JSON object")
    options = parser.parse_args(arguments)
    try:
        report = verify(options.directory)
    except NoDataDirectory as error:
        sys.stderr.write(f"{error}\n")
        return 2
    sys.stdout.write(json.dumps(asdict(report)) + "\n" if options.json else render(report))
    return 1 if report.errors else 0


if __name__ == "__main__":
    sys.exit(main())
