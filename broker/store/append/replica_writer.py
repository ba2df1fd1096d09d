"""The write path of a replica, and the pieces of a log that it takes over: bytes of another one's log, as they stand.

A part is a whole number of records of one epoch in one log file, but perhaps ends within an atomic group. Parts are
checked and written at once; index, state and keys take in whole groups only. Invariant: what was written is byte for
byte what the sender has, in files of the same bases and sizes; nothing is written that fails a check; the entry of a
new epoch is durable before its first byte. Thread rule: loop thread; the bytes of a part may travel, they are those of
the mapped file.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from pathlib import Path

from broker.store.append.raw_part import RawPart
from broker.store.append.writer import WritePath
from broker.store.errors import CorruptIndex, CorruptLog, StoreFailed
from broker.store.log.commit_log import CommitLog, LogRepair, Segment, taken_groups
from broker.store.log.epoch_file import Epoch, epoch_at, save_epochs, with_epoch
from broker.store.placed import Placed
from broker.store.recovery.replayer import Replayer, Stretch
from broker.store.settings import SEGMENT_SIZE_BYTES_MAX, SEGMENT_SIZE_BYTES_MIN
from broker.store.state.state_kinds import StateChange
from remoting.native import core as native
from remoting.native.contracts import Encoded, EntryBlock, Progress
from remoting.protocol.errors import LocalMisuse, RemoteViolation


def raw_part(log: CommitLog, epochs: Sequence[Epoch], position: int, bytes_max: int) -> RawPart | None:
    """Return what stands from `position` on, None at the end of the log.

    Up to `bytes_max` bytes and the rest of the record that these end in. `position` is where a record begins. Raises
    LocalMisuse below the begin of the log, CorruptLog where the sizes of its records cannot be right.
    """
    if position >= log.end:
        return None
    segment = log.segment_at(position)
    if segment is None:
        raise LocalMisuse(f"position {position} has expired; the log begins at {log.begin}")
    epoch, next_start = epoch_at(epochs, position)
    limit = min(log.end, segment.end, log.end if next_start is None else next_start)
    end = limit
    if position + bytes_max < limit:
        wanted = position + max(1, bytes_max)
        end = native.core.record_end(segment.view, segment.base, position, wanted, limit)
        if end < 0:
            raise CorruptLog(segment.path, position, f"no records of {bytes_max} bytes follow each other there")
    at = position - segment.base
    return RawPart(position, segment.base, segment.size, epoch, segment.view[at : at + end - position])


class WholeGroups:
    """Where the atomic groups of a log that comes in parts end; anything behind may be lost at a restart."""

    def __init__(self, end: int) -> None:
        self._ends: deque[int] = deque()
        self._whole = end

    def add(self, end: int) -> None:
        """Note the end of a whole group; ends rise."""
        self._ends.append(end)

    def below(self, position: int) -> int:
        """Return the last end of a whole group at or below a position that was flushed; positions never fall."""
        while self._ends and self._ends[0] <= position:
            self._whole = self._ends.popleft()
        return self._whole


class ReplicaWriter:
    """Writes the bytes that `append_raw` is given; makes no records itself."""

    def __init__(self, directory: Path, path: WritePath, groups: WholeGroups) -> None:
        opened = path.opened
        self._directory = directory
        self._path = path
        self._log = opened.log
        self._index = opened.index
        self._epochs = opened.epochs
        self._groups = groups
        self._blocks: list[EntryBlock] = []
        self._replayer = Replayer(opened.index, opened.tables, self._make_room, rebuilding=True)
        self._replayer.on_entries = lambda entries, _end: self._blocks.append(entries)
        end = opened.log.end
        self._seen = Progress(end, end, 0, opened.store_ms, 0, group_open=False)
        self.last_store_ms = opened.store_ms
        self.messages_total = 0

    def append(
        self,
        placed: Sequence[Placed],
        changes: Sequence[StateChange],
        *,
        atomic: bool,
        essential: bool = False,
    ) -> Encoded:
        """Refuse: a replica makes no records itself."""
        raise LocalMisuse(
            f"{sum(map(len, placed))} messages and {len(changes)} changes for a replica (atomic {atomic}, {essential})"
        )

    def append_raw(self, part: RawPart) -> int:
        """Write the next part of the log; return where it ends.

        Raises LocalMisuse (not the next part), RemoteViolation (what no sound sender sends), StoreFull, StoreFailed;
        nothing is written then.
        """
        path = self._path
        path.failure.check()
        seen = self._checked(part)
        try:
            segment = self._file(part)
            self._note_epoch(part)
            self._log.write([(segment, part.position, part.data)], part.end)
        except OSError as error:
            raise path.failure.write_failed(error) from error
        except StoreFailed as failure:
            path.failure.fail(failure)
            raise
        self._seen = seen
        self.last_store_ms = max(self.last_store_ms, seen.store_ms)
        if seen.groups_end > self._index.end_position:
            self._take(part, seen.groups_end)
        path.written()
        if self._log.needs_next():
            path.prepare()
        path.index_flusher.flush_if_full()
        return part.end

    def _checked(self, part: RawPart) -> Progress:
        """Check place, records and epoch of a part; return how far the log is checked then."""
        position, size = part.position, len(part.data)
        if position != self._log.end:
            raise LocalMisuse(f"bytes for position {position}, the log ends at {self._log.end}")
        inside = part.segment_base <= position and part.end <= part.segment_base + part.segment_size
        fits = SEGMENT_SIZE_BYTES_MIN <= part.segment_size <= SEGMENT_SIZE_BYTES_MAX and not part.segment_size % 8
        if not size or not inside or not fits:
            raise RemoteViolation(
                f"{size} bytes at {position} for a log file of {part.segment_size} bytes at {part.segment_base}"
            )
        last = self._epochs[-1][0] if self._epochs else 0
        if part.epoch < last:
            raise RemoteViolation(f"bytes of epoch {part.epoch} behind those of epoch {last}")
        before = Progress(position, self._seen.groups_end, part.epoch, 0, 0, group_open=self._seen.group_open)
        seen = native.core.scan(part.data, position, size, before)
        if seen.reason or seen.epoch != part.epoch:
            raise RemoteViolation(f"position {seen.position}: {seen.reason or f'a record of epoch {seen.epoch}'}")
        return seen

    def _file(self, part: RawPart) -> Segment:
        """Return the file that takes the part, made or changed to the size that the sender's has."""
        log = self._log
        log.use_size(part.segment_size)
        segment = log.segment_at(part.position)
        if segment is None and part.position == part.segment_base:
            segment = log.segment_to_append(part.position)
        if segment is None or segment.base != part.segment_base:
            raise RemoteViolation(f"no log file of this replica continues at {part.position}, from {part.segment_base}")
        if segment.size != part.segment_size:
            segment = LogRepair(log).resize_last(part.segment_size)
        return segment

    def _note_epoch(self, part: RawPart) -> None:
        if not self._epochs or part.epoch > self._epochs[-1][0]:
            entries = with_epoch(self._epochs, part.epoch, part.position)
            save_epochs(self._directory, entries)
            self._epochs[:] = entries
            self._index.tail.publish_epoch(part.epoch)

    def _take(self, part: RawPart, end: int) -> None:
        """Take in the whole groups up to `end`: index, state, keys, and what is to be confirmed."""
        index, log, first = self._index, self._log, self._index.end_position
        stretch = Stretch(first, first, end)
        index.taking_until = end
        try:
            if first == part.position:  # the usual case, and the bytes are at hand
                seen = self._replayer.feed(part.data, first, first, end, stretch, starts_late=log.begin > 0)
                index.end_position = end
            else:
                seen = self._replayer.run(log, stretch)
            groups = taken_groups(first, end, self._blocks)
            if self._path.keys is not None:
                self._path.keys.take(groups[0])
        except (OSError, CorruptIndex) as error:
            failure = StoreFailed(f"what was written up to {end} cannot be indexed: {error}; restart the broker")
            raise self._path.failure.fail(failure) from error
        self._blocks.clear()
        for group in groups:
            self._path.confirm.add_group(group)
        self._groups.add(end)
        self.messages_total += seen
        index.tail.publish(end, self._path.confirm.position)

    def _make_room(self, entries: int) -> None:
        if self._index.tail.room < entries:
            self._path.index_flusher.make_room(entries)
