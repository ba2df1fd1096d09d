"""The queue index: queue id and queue offset -> log position, size and tag hash of the record.

Offsets below `flushed_next` of a queue are in the runs, the others in the tail; runs are in log order, so one queue's
offsets rise from run to run. An entry holds one message, or the messages of a batch. Invariant: entries of one queue
follow each other without a gap from its minimum offset to its next offset; the minimum moves only with the begin of the
log. Thread rule: loop thread; the index thread reads the sealed part of the tail and hands back finished runs
(`install`).
"""

from __future__ import annotations

import mmap
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from broker.store.errors import CorruptIndex
from broker.store.index.run import (
    Entries,
    Floors,
    Manifest,
    Run,
    load_manifest,
    next_offsets_of,
    offsets_path,
    run_path,
)
from broker.store.index.tail import Tail, rows_of
from broker.store.index.tail import read_durable as read_durable_of_tail
from remoting.native import core as native
from remoting.native.contracts import CONFIRMED, NEWEST, NEXT, ROW_WORDS, EntryBlock, RunData
from remoting.native.vectors import Column, column, nonzero, within
from runtime.files import fsync_dir, make_directory

BEHIND_MAX = 1 << 32
"""A queue cannot have been confirmed further ahead than this: the number is garbage."""


class FormerTail:
    """The ends of queues in the tail at `path`: a copy, so that a new tail can have the space of the file."""

    def __init__(self, path: Path) -> None:
        self._ends: Column | None = None
        try:
            with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
                rows = rows_of(memoryview(data))
                if rows is not None:
                    self._ends = rows[NEXT::ROW_WORDS].astype("q")
                del rows  # nothing may refer to the map when it is closed
        except (OSError, ValueError):  # there is none, or it is empty
            return

    def taken_beyond(self, next_offsets: Column) -> list[tuple[int, int]]:
        """Return (queue id, its end) of the queues of which offsets were taken beyond `next_offsets`, confirmed or not.

        A replica learns late what is confirmed; others may have shown it before.
        """
        if self._ends is None:
            return []
        count = min(len(self._ends), len(next_offsets))
        ends = self._ends[:count]
        behind = within(ends - next_offsets[:count], 1, BEHIND_MAX)
        return [(queue, ends[queue]) for queue in nonzero(behind)]

    def close(self) -> None:
        """Free the copy; nothing can be read afterwards."""
        self._ends = None


TAIL_NAME = "tail"
MINIMUMS_MAX = 65_536
"""Minimum offsets kept from one read to the next; beyond it they are looked up again."""


@dataclass(slots=True)
class Sealed:
    """The tail's entries up to number `number`, which cover the log in [first, end) positions."""

    number: int
    first: int
    end: int
    tail: Tail
    floors: tuple[Floors, ...]

    def sorted(self) -> RunData:
        """Return the entries as a run; for the index thread."""
        return self.tail.sorted(self.number)


class QueueIndex:
    """Runs plus tail of one data directory. Raises CorruptIndex when a file it needs is unreadable."""

    def __init__(self, directory: Path, tail_entries: int, begin: int) -> None:
        make_directory(directory, mode=0o700, inner=True)
        self.directory = directory
        self.proved_durable = read_durable_of_tail(directory / TAIL_NAME)
        self.manifest = load_manifest(directory) or Manifest()
        self.runs = [self._open_run(file_id) for file_id in self.manifest.runs]
        self._table = native.core.make_run_table(self.runs)
        stored = next_offsets_of(directory, self.manifest, self.runs)
        count = len(stored)
        self.tail = Tail(directory / TAIL_NAME, tail_entries, count)
        self.end_position = max(self.manifest.end_position, begin)
        """Log position up to which entries have been taken in."""
        self._begin = begin
        self.begin_of: Callable[[int], int] = lambda _queue: 0
        """Log position below which a queue shows nothing although the log still has it; see `forget_minimums`."""
        self.queue_count = count
        """How many queue ids have rows."""
        self._minimums: dict[int, int] = {}
        self._floors: list[Floors] = []
        """What `set_floors` raised and no file of the index records yet."""
        self._floors_at: list[int] = []
        """Log position up to which the index was complete when it was last published."""
        self.taking_until = 0
        """End of what a replica is taking in at the moment; it is in the index before the writer reports it."""
        self.tail.row_column(NEXT)[:count] = stored
        self.tail.row_column(CONFIRMED)[:count] = stored
        self.tail.publish_begin(begin)
        self._remove_strangers()

    def _open_run(self, file_id: int) -> Run:
        path = run_path(self.directory, file_id)
        try:
            return Run(path)
        except OSError as error:
            raise CorruptIndex(path, f"the manifest names it but it cannot be opened: {error}") from error

    def _remove_strangers(self) -> None:
        """Delete what a crash left behind: files the MANIFEST does not name, once its own name is on the disk."""
        fsync_dir(self.directory)
        named = {run.path.name for run in self.runs}
        named.add(offsets_path(self.directory, self.manifest.offsets_id).name)
        for path in self.directory.iterdir():
            if path.name.startswith(("run-", "offsets-", ".")) and path.name not in named:
                path.unlink()

    def grow(self, queue_count: int) -> None:
        """Make rows for queue ids below `queue_count`. Raises OSError when the disk has no room for them."""
        if queue_count > self.queue_count:
            self.tail.grow(queue_count)
            self.queue_count = queue_count

    def forget_rows(self, first: int, end: int) -> bool:
        """Free the rows of the ids [first, end), all deleted; false: not yet, there are entries of them."""
        tail = self.tail
        newest, confirmed, following = (tail.row_column(word)[first:end] for word in (NEWEST, CONFIRMED, NEXT))
        if not (newest < tail.first).all() or not (confirmed == following).all():
            return False
        tail.forget(first, end)
        return True

    def set_floor(self, queue: int, next_offset: int) -> None:
        """Make `queue` continue at `next_offset` or later: its earlier entries have expired."""
        self.grow(queue + 1)
        if self.next_offset(queue) < next_offset:
            rows, at = self.tail.rows, ROW_WORDS * queue
            rows[at + NEXT] = rows[at + CONFIRMED] = next_offset
            rows[at + NEWEST] = 0
            self._note_floors((column([queue], "q"), column([next_offset], "q")))
            self._minimums.pop(queue, None)

    def set_floors(self, next_offsets: Column) -> None:
        """Do what `set_floor` does for the queue ids from 0 on, all at once."""
        count = len(next_offsets)
        self.grow(count)
        following, confirmed = self.tail.row_column(NEXT)[:count], self.tail.row_column(CONFIRMED)
        behind = nonzero(following < next_offsets)
        if len(behind):
            following[behind] = confirmed[behind] = next_offsets[behind]
            self._note_floors((behind, next_offsets[behind]))
            self._minimums.clear()

    def _note_floors(self, floors: Floors) -> None:
        self._floors.append(floors)
        self._floors_at.append(max(self.end_position, self.taking_until))

    def serve(self, end: int, epoch: int, queue_count: int, confirmed: int | None = None) -> None:
        """Let readers see what was recovered up to log position `end`, all of which is durable.

        With `confirmed` only what is below that position; the rows already reflect it.
        """
        self.grow(queue_count)
        if confirmed is None:
            self.tail.row_column(CONFIRMED)[:] = self.tail.row_column(NEXT)
            confirmed = end
        self.tail.publish(end, confirmed)
        self.tail.publish_confirm(confirmed, end)
        self.tail.publish_epoch(epoch)

    def next_offset(self, queue: int) -> int:
        """Offset the queue's next record gets."""
        return self.tail.rows[ROW_WORDS * queue + NEXT]

    def confirmed_end(self, queue: int) -> int:
        """Offset behind the queue's last confirmed message."""
        return self.tail.confirmed_end(queue)

    def append(self, entries: EntryBlock, end_position: int) -> None:
        """Take in entries in log order whose offsets the tail's rows have given out. The tail must have room.

        `end_position` is where the log ends behind them.
        """
        self.tail.append(entries)
        self.end_position = end_position

    def read(self, queue: int, offset: int, count: int) -> Entries:
        """Return the entries that hold messages [offset, offset + count); `offset` is at least the minimum offset."""
        tail, limit = self.tail, offset + count
        flushed = tail.flushed_next(queue)
        if offset >= flushed:
            return tail.find(queue, offset, count)
        older = Entries(*self._table.find(queue, offset, limit))
        if older.end < limit and older.end >= flushed:
            newer = tail.find(queue, older.end, limit - older.end)
            if len(newer):
                return Entries.joined([older, newer]) if len(older) else newer
        return older

    def min_offset(self, queue: int) -> int:
        """Return the oldest offset whose record is still in the log; the next offset when none is."""
        minimum = self._minimums.get(queue)
        if minimum is None:
            minimum = self._look_up_minimum(queue)
            if len(self._minimums) >= MINIMUMS_MAX:
                self._minimums.clear()
            self._minimums[queue] = minimum
        return minimum

    def empty(self, queues: Column) -> list[int]:
        """Return which of these queues have no entry whose record is in the log."""
        ids = queues[self.tail.row_column(NEWEST)[queues] < self.tail.first]
        return [queue for queue in ids.tolist() if self.is_empty(queue)]

    def is_empty(self, queue: int) -> bool:
        """Whether a queue has no entry whose record is in the log, confirmed or not."""
        following = self.next_offset(queue)
        return self._look_up_minimum(queue) == following == self.confirmed_end(queue)

    def _look_up_minimum(self, queue: int) -> int:
        begin = max(self._begin, self.begin_of(queue))
        found = self._table.first_at(queue, begin)
        if found >= 0:
            return found
        flushed = self.tail.flushed_next(queue)
        if begin <= self.manifest.end_position:
            return flushed
        entries = self.tail.find(queue, flushed, self.next_offset(queue) - flushed)
        expired = entries.positions.searchsorted(begin)
        return entries.offsets[expired] if expired < len(entries) else self.next_offset(queue)

    def forget_minimums(self) -> None:
        """Look minimum offsets up again: the results of `begin_of` have changed."""
        self._minimums.clear()

    def seal(self, limit: int | None = None) -> Sealed:
        """Take the tail for a run, all of it or what stands below the log position `limit`."""
        first = max(self.manifest.end_position, self._begin)
        if limit is None or limit >= self.end_position:
            return Sealed(self.tail.count, first, self.end_position, self.tail, tuple(self._floors))
        end = max(limit, first)
        floors = tuple(self._floors[: bisect_right(self._floors_at, end)])
        return Sealed(self.tail.number_at(end), first, end, self.tail, floors)

    def install(self, manifest: Manifest, run: Run | None, sealed: Sealed) -> None:
        """Read from `run` what was in the sealed part of the tail (run None: there was nothing)."""
        if run is not None:
            self.runs.append(run)
            self._table = native.core.make_run_table(self.runs)
        self.manifest = manifest
        self.tail.publish_runs()
        self.tail.release(sealed.number)
        del self._floors[: len(sealed.floors)], self._floors_at[: len(sealed.floors)]

    def replace_runs(self, manifest: Manifest, old: Sequence[Run], new: Sequence[Run]) -> None:
        """Read from `new` instead of the neighbouring runs `old`, whose files may then be deleted."""
        at = self.runs.index(old[0])
        assert self.runs[at : at + len(old)] == list(old)
        self.runs[at : at + len(old)] = new
        self._table = native.core.make_run_table(self.runs)
        self.manifest = manifest
        self.tail.publish_runs()

    def move_begin(self, begin: int) -> None:
        """Hide entries below log position `begin`."""
        assert self._begin <= begin <= self.manifest.end_position, (self._begin, begin, self.manifest)
        self._begin = begin
        self._minimums.clear()
        self.tail.publish_begin(begin)

    def expired_runs(self) -> list[Run]:
        """Return the runs (the oldest ones) that hold nothing that is still in the log."""
        return [run for run in self.runs if run.end_position <= self._begin]

    def close(self) -> None:
        """Give the descriptors back."""
        self.tail.close()
