"""Queue id and queue offset -> log position, in another process than the one that writes: tail plus runs, no lock.

Everything below the tail's first live entry is in the runs of the generation published before it. So we read the first
live entry, then the generation, and have the whole index between the two; should the tail move on meanwhile, `Moved`
says so. A MANIFEST is whole at every moment, and a run it names is deleted only after another one took its place, so a
run that is missing means: read again. Invariant: confirmed ends are read before the entries below them are looked for,
so those are there. Thread rule: one thread.
"""

from __future__ import annotations

from pathlib import Path

from broker.store.attached.tail_view import Moved, TailView
from broker.store.index.entries import Entries
from broker.store.index.manifest import load_manifest
from broker.store.index.run import Run, run_path
from remoting.native import core as native


class RunSet:
    """The runs of one life of a writer; file ids are not used twice within it."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.runs: list[Run] = []
        """Oldest first."""
        self.table = native.core.make_run_table(self.runs)
        """The look-up over all of them."""
        self.generation = -1

    def load(self, generation: int) -> None:
        """Have the runs of this generation at least; nothing to do when they are here. Raises Moved, CorruptIndex."""
        if generation == self.generation:
            return
        manifest = load_manifest(self.directory)
        known = {run.file_id: run for run in self.runs}
        try:
            self.runs = [
                known.get(file_id) or Run(run_path(self.directory, file_id))
                for file_id in (manifest.runs if manifest is not None else ())
            ]
        except FileNotFoundError as error:
            raise Moved(f"{error.filename} has been merged or dropped") from error
        self.table = native.core.make_run_table(self.runs)
        self.generation = generation


REMEMBERED_MAX = 65_536
"""Queues whose minimum, or whose place in the tail, is kept from one read to the next; all are forgotten then."""


class IndexView:
    """The index of one life of a writer; offers what `reader.Reader` asks of an index."""

    def __init__(self, directory: Path, tail: TailView) -> None:
        self.tail = tail
        self._runs = RunSet(directory)
        self._begin = 0
        self._minimums: dict[int, int] = {}
        self._places: dict[int, tuple[int, int]] = {}
        """Queue -> (offset, number): its entries from that offset on have at least that number."""

    @property
    def position(self) -> int:
        """Everything below this log position may be shown."""
        return self.tail.confirm_position

    def confirmed_end(self, queue: int) -> int:
        """Offset behind the queue's last confirmed message; 0 when it has no row."""
        return self.tail.confirmed_end(queue) or 0

    def move_begin(self, begin: int) -> None:
        """Hide entries below log position `begin`; it never moves back."""
        if begin > self._begin:
            self._begin = begin
            self._minimums.clear()

    def min_offset(self, queue: int) -> int:
        """Return the oldest offset whose record is still in the log. Raises Moved."""
        self.move_begin(self.tail.begin)
        minimum = self._minimums.get(queue)
        if minimum is None:
            minimum = self._look_up_minimum(queue)
            if len(self._minimums) >= REMEMBERED_MAX:
                self._minimums.clear()
            self._minimums[queue] = minimum
        return minimum

    def _look_up_minimum(self, queue: int) -> int:
        end = self.confirmed_end(queue)
        start = self._settle()
        found = self._runs.table.first_at(queue, self._begin)
        if found >= 0:
            return min(found, end)
        first = self.tail.first_offset(queue, start)
        return end if first is None else min(first, end)

    def read(self, queue: int, offset: int, count: int) -> Entries:
        """Return the entries that hold messages [offset, offset + count), which are below the confirmed end.

        At least the one that holds `offset`. Raises Moved.
        """
        start = self._settle()
        limit = offset + count
        parts = [Entries(*self._runs.table.find(queue, offset, limit))]
        if parts[0].end < limit:
            parts.append(self._find_in_tail(queue, parts[0].end, limit, start))
        parts = [part for part in parts if len(part)]
        if not parts:
            raise Moved(f"offset {offset} of queue {queue} is neither in the tail nor in a run")
        return Entries.joined(parts, offset)

    def _find_in_tail(self, queue: int, offset: int, limit: int, start: int) -> Entries:
        """Search from where the last read of this queue ended if that still exists, else through the whole tail."""
        known, number = self._places.get(queue, (offset, start))
        if known > offset or number < start:
            number = start
        found, behind = self.tail.find(queue, offset, limit, number)
        if len(found):
            if len(self._places) >= REMEMBERED_MAX:
                self._places.clear()
            self._places[queue] = (found.end, behind)
        return found

    def _settle(self) -> int:
        """Have the runs that hold everything below the tail's first live entry; the number of that entry."""
        start = self.tail.first
        self._runs.load(self.tail.generation)
        return start

    def close(self) -> None:
        """Give the descriptors back."""
        self.tail.close()
