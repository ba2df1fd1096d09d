"""`python -m broker.store.verify DIR [--json]`: check a data directory without changing it.

Every record of the log (sizes, position, checksum, epoch) up to what CHECKPOINT says was durable, the density of every
queue, every run (both checksums), and that the runs say exactly what the log says. Exit status 0: sound, 1: damaged,
2: not a data directory.
Invariant: nothing is opened for writing, so it may run beside a live broker (which then moves on while it reads).
Thread rule: one thread, its own process.
"""

from __future__ import annotations

import argparse
import json
import mmap
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from broker.store.checkpoint import load_checkpoint
from broker.store.errors import StoreError
from broker.store.queue_index.manifest import Manifest, load_manifest
from broker.store.queue_index.run import Run, run_path
from broker.store.segment import list_segments
from remoting.protocol.errors import CorruptRecord
from remoting.protocol.record import FILLER, HEADER, RecordView, check_record

Place = tuple[int, int]


@dataclass(slots=True)
class Report:
    """What was found; sound when `errors` is empty."""

    records: int = 0
    entries: int = 0
    queues: int = 0
    run_entries: int = 0
    begin_position: int = 0
    end_position: int = 0
    stopped: str = ""
    errors: list[str] = field(default_factory=list)


class Verifier:
    """One pass over one directory."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self.report = Report()
        self._next: dict[int, int] = {}
        self._log: dict[Place, int] = {}
        self._epoch = 0

    def run(self) -> Report:
        """Check the log, then what was durable and the index against it."""
        durable = self._durable_position()  # read first: a live broker moves it on meanwhile
        report, paths = self.report, list_segments(self._directory / "log")
        position = report.begin_position = int(paths[0].name) if paths else 0
        for path in paths:
            if int(path.name) != position:
                report.errors.append(f"{path}: the file before ends at {position}")
                break
            stopped_at = self._check_segment(path)
            if stopped_at is not None:
                position = stopped_at
                break
            position = int(path.name) + path.stat().st_size
        report.end_position = position
        if position < durable:
            report.errors.append(f"the log is readable up to {position}, but {durable} bytes were durable")
        report.entries, report.queues = len(self._log), len(self._next)
        self._check_index()
        return report

    def _durable_position(self) -> int:
        try:
            checkpoint = load_checkpoint(self._directory)
        except StoreError as error:
            self.report.errors.append(str(error))
            return 0
        return 0 if checkpoint is None else checkpoint.position

    def _check_segment(self, path: Path) -> int | None:
        """Check one file; return the position of its first byte that is no record, None when there is none."""
        data, base, at = mapped(path), int(path.name), 0
        while at < len(data):
            try:
                total = check_record(data, at, base + at)
                head = HEADER.unpack_from(data, at)
                if head[3] < self._epoch:
                    raise CorruptRecord(f"epoch fell from {self._epoch} to {head[3]}")
            except CorruptRecord as error:
                self.report.stopped = f"{path.name} at {base + at}: {error.reason}"
                return base + at
            self._epoch = head[3]
            if head[1] != FILLER:
                self.report.records += 1
                self._check_dispatch(data, at, base + at)
            at += total
        return None

    def _check_dispatch(self, data: memoryview, at: int, position: int) -> None:
        for queue, offset in RecordView(data, at).dispatch():
            expected = self._next.get(queue, offset)
            if offset != expected:
                self.report.errors.append(f"queue {queue}: offset {offset} at {position} follows {expected - 1}")
            self._next[queue] = offset + 1
            self._log[queue, offset] = position

    def _check_index(self) -> None:
        report, directory = self.report, self._directory / "index"
        try:
            manifest = load_manifest(directory) or Manifest()
            if manifest.end_position > report.end_position:
                report.errors.append(f"index covers {manifest.end_position}, the log ends at {report.end_position}")
            indexed: dict[Place, int] = {}
            for file_id in manifest.runs:
                self._take_run(Run(run_path(directory, file_id)), indexed)
        except (StoreError, OSError) as error:
            report.errors.append(str(error))
            return
        report.run_entries = len(indexed)
        said = {place: position for place, position in self._log.items() if position < manifest.end_position}
        wrong = [place for place in said.keys() | indexed.keys() if said.get(place) != indexed.get(place)]
        report.errors += [
            f"queue {queue} offset {offset}: log says {said.get((queue, offset))}, index {indexed.get((queue, offset))}"
            for queue, offset in sorted(wrong)[:20]
        ]

    def _take_run(self, run: Run, indexed: dict[Place, int]) -> None:
        run.verify()
        for queue in run.queues.tolist():
            span = run.span(queue)
            assert span is not None
            first, start, end = span
            for offset, position in enumerate(run.positions[start:end].tolist(), first):
                if position >= self.report.begin_position:
                    indexed[queue, offset] = position


def mapped(path: Path) -> memoryview:
    """The file's bytes, read as they are looked at: a segment is a gigabyte from birth, mostly empty at its end."""
    with path.open("rb") as file:
        if path.stat().st_size == 0:
            return memoryview(b"")
        return memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))


def main(arguments: Sequence[str] | None = None) -> int:
    """Check the directory named on the command line."""
    parser = argparse.ArgumentParser(prog="python -m broker.store.verify", description="check a data directory")
    parser.add_argument("directory", type=Path)
    parser.add_argument("--json", action="store_true", help="one JSON object")
    options = parser.parse_args(arguments)
    if not (options.directory / "log").is_dir():
        sys.stderr.write(f"{options.directory}: no log directory in it\n")
        return 2
    report = Verifier(options.directory).run()
    if options.json:
        sys.stdout.write(json.dumps(asdict(report)) + "\n")
    else:
        lines = [f"{name}: {value}" for name, value in asdict(report).items() if name != "errors"]
        sys.stdout.write("\n".join(lines + [f"error: {error}" for error in report.errors]) + "\n")
    return 1 if report.errors else 0


if __name__ == "__main__":
    sys.exit(main())
