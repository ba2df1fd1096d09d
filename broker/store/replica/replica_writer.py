"""The write path of a replica: bytes of another one's log are checked, written, indexed and applied as they are.

Bytes come in parts that end with a record but perhaps within an atomic group. They are written at once; index, state
and keys take in whole groups only. Invariant: what was written is byte for byte what the sender has, in files of the
same bases and sizes; nothing is written that fails a check; the entry of a new epoch is durable before its first byte.
Thread rule: loop thread.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from broker.store import hot
from broker.store.append.writer import Writer
from broker.store.errors import CorruptIndex, StoreFailed
from broker.store.index.index_flusher import IndexFlusher
from broker.store.log.commit_log import CommitLog
from broker.store.log.confirm import Confirm
from broker.store.log.disk_guard import DiskGuard
from broker.store.log.epoch_file import save_epochs, with_epoch
from broker.store.log.segment import Segment
from broker.store.log.taken_group import taken_groups
from broker.store.recovery.opened import Opened
from broker.store.recovery.replayer import Replayer, Stretch
from broker.store.replica.raw_part import RawPart
from broker.store.settings import SEGMENT_SIZE_BYTES_MAX, SEGMENT_SIZE_BYTES_MIN, StoreSettings
from broker.store.state.state_log import StateChange
from broker.store.store_message import StoreMessage
from remoting.native.contracts import Encoded, EntryBlock, Progress
from remoting.protocol.errors import LocalMisuse, RemoteViolation
from runtime.clock import Clock


class ReplicaWriter(Writer):
    """Writes what `append_raw` is given; nothing of its own."""

    def __init__(
        self,
        directory: Path,
        opened: Opened,
        settings: StoreSettings,
        confirm: Confirm,
        guard: DiskGuard,
        index_flusher: IndexFlusher,
        *,
        clock: Clock,
        events: Any,
        written: Callable[[], None],
        armed: Mapping[str, object],
    ) -> None:
        super().__init__(
            opened, settings, confirm, guard, index_flusher, clock=clock, events=events, written=written, armed=armed
        )
        self._folder = directory
        self._epochs = opened.epochs
        self._raw_log: CommitLog = opened.log
        self._raw_index = opened.index
        self._raw_confirm = confirm
        self._raw_guard = guard
        self._raw_flusher = index_flusher
        self._told = written
        self._blocks: list[EntryBlock] = []
        self._replayer = Replayer(opened.index, opened.tables, self._room, rebuilding=True)
        self._replayer.on_entries = lambda entries, _end: self._blocks.append(entries)
        end = opened.log.end
        self._seen = Progress(end, end, 0, opened.store_ms, 0, group_open=False)
        self._ends: deque[int] = deque()
        self._whole = end

    def append(
        self,
        messages: Sequence[StoreMessage],
        changes: Sequence[StateChange],
        *,
        atomic: bool,
        essential: bool = False,
    ) -> Encoded:
        """Refuse: a replica says nothing of its own."""
        raise LocalMisuse(
            f"{len(messages)} messages and {len(changes)} changes for a replica (atomic {atomic}, {essential})"
        )

    def whole_below(self, position: int) -> int:
        """Return the last end of a whole group at or below a position that was flushed; positions never fall."""
        while self._ends and self._ends[0] <= position:
            self._whole = self._ends.popleft()
        return self._whole

    def append_raw(self, part: RawPart) -> int:
        """Write the next part of the log; return where it ends.

        Raises LocalMisuse (not the next part), RemoteViolation (what no sound sender sends), StoreFull, StoreFailed;
        nothing is written then.
        """
        if self.failure is not None:
            raise self.failure
        if self._raw_guard.full:
            raise self._raw_guard.refusal()
        seen = self._checked(part)
        try:
            segment = self._file(part)
            self._note_epoch(part)
            self._raw_log.write([(segment, part.position, part.data)], part.end)
        except OSError as error:
            raise self.write_failed(error) from error
        except StoreFailed as failure:
            self.fail(failure)
            raise
        self._seen = seen
        self.last_store_ms = max(self.last_store_ms, seen.store_ms)
        if seen.groups_end > self._raw_index.end_position:
            self._take(part, seen.groups_end)
        self._told()
        if self._raw_log.needs_next():
            self.prepare()
        self._raw_flusher.flush_if_full()
        return part.end

    def _checked(self, part: RawPart) -> Progress:
        """Check place, records and epoch of a part; return how far the log is checked then."""
        position, size = part.position, len(part.data)
        if position != self._raw_log.end:
            raise LocalMisuse(f"bytes for position {position}, the log ends at {self._raw_log.end}")
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
        seen = hot.core.scan(part.data, position, size, before)
        if seen.reason or seen.epoch != part.epoch:
            raise RemoteViolation(f"position {seen.position}: {seen.reason or f'a record of epoch {seen.epoch}'}")
        return seen

    def _file(self, part: RawPart) -> Segment:
        """Return the file that takes the part, made or changed to the size that the sender's has."""
        log = self._raw_log
        log.use_size(part.segment_size)
        segment = log.segment_at(part.position)
        if segment is None and part.position == part.segment_base:
            segment = log.segment_to_append(part.position)
        if segment is None or segment.base != part.segment_base:
            raise RemoteViolation(f"no log file of this replica goes on at {part.position}, from {part.segment_base}")
        if segment.size != part.segment_size:
            segment = log.resize_last(part.segment_size)
        return segment

    def _note_epoch(self, part: RawPart) -> None:
        if not self._epochs or part.epoch > self._epochs[-1][0]:
            entries = with_epoch(self._epochs, part.epoch, part.position)
            save_epochs(self._folder, entries)
            self._epochs[:] = entries
            self._raw_index.tail.publish_epoch(part.epoch)

    def _take(self, part: RawPart, end: int) -> None:
        """Take in the whole groups up to `end`: index, state, keys, and what is to be confirmed."""
        index, log, first = self._raw_index, self._raw_log, self._raw_index.end_position
        stretch = Stretch(first, first, end)
        index.taking_until = end
        try:
            if first == part.position:  # the usual case, and the bytes are at hand
                seen = self._replayer.feed(part.data, first, first, end, stretch, starts_late=log.begin > 0)
                index.end_position = end
            else:
                seen = self._replayer.run(log, stretch)
            groups = taken_groups(first, end, self._blocks)
            if self.keys is not None:
                self.keys.take(groups[0])
        except (OSError, CorruptIndex) as error:
            failure = StoreFailed(f"what was written up to {end} cannot be indexed: {error}; restart the broker")
            self.fail(failure)
            raise failure from error
        self._blocks.clear()
        for group in groups:
            self._raw_confirm.add_group(group)
        self._ends.append(end)
        self.messages_total += seen
        index.tail.publish(end, self._raw_confirm.position)

    def _room(self, entries: int) -> None:
        if self._raw_index.tail.room < entries:
            self._raw_flusher.make_room(entries)
