"""The door of the store: append, read, confirm, state. One instance owns one data directory.

    loop thread: append, read, callbacks | flusher thread: fdatasync | index thread: runs, merges, snapshots, files

Invariant: a message is confirmed only when every byte of its group is on the disk (flush = "sync"); nobody sees
anything at or above the confirm position; offsets are dense per queue; what is confirmed survives any crash. Thread
rule: every method belongs to the owner's loop thread; `schedule` runs a function there and may be called from any
thread.
"""

from __future__ import annotations

from collections.abc import Sequence, Sized

from broker.store.group_door import GroupDoor
from broker.store.log.confirm import Callback, FreshListener, Listener
from broker.store.read_result import NO_SUCH_QUEUE, RangeResult, ReadResult
from broker.store.state.state_log import StateChange
from broker.store.store_message import Appended, StoreMessage
from remoting.protocol.errors import LocalMisuse


class LogStore(GroupDoor):
    """The commit log with its queue index and state tables; made by :meth:`open`."""

    def _written(self) -> None:
        if self._written_listeners:  # before the flush: what they send is on its way then
            self._tell_written()
        self._flusher.request()
        if self._is_async and not self._confirm_pending:
            self._confirm_pending = True
            (self._soon or self._schedule)(self._confirm_written)

    # -- append -------------------------------------------------------------------------------------------------------

    def append(
        self, messages: Sequence[StoreMessage], *, atomic: bool = False, changes: Sequence[StateChange] = ()
    ) -> Appended:
        """Append messages, then state changes; with changes, or `atomic`, all is confirmed and recovered as one.

        Raises StoreFull, StoreFailed, RecordTooLarge, LocalMisuse (an unknown queue id); nothing is appended then.
        """
        return self._writer.append(messages, changes, atomic=atomic or bool(changes))

    def append_state(self, changes: Sequence[StateChange]) -> int:
        """Append state changes as one group; return its end position. Deletions are taken even on a full disk."""
        essential = all(change.value is None for change in changes)
        return self._writer.append((), changes, atomic=True, essential=essential).end_position

    # -- queues -------------------------------------------------------------------------------------------------------

    def open_queue(self, name: bytes) -> int:
        """Return the id of the queue `name`, made if it is not there (one state record)."""
        queue = self._registry.find(name)
        return self.open_queues([name])[0] if queue is None else queue

    def open_queues(self, names: Sequence[bytes]) -> list[int]:
        """Return the ids of the queues `names`; the missing ones are made by one state record."""
        find = self._registry.find
        missing = list(dict.fromkeys(name for name in names if find(name) is None))
        if missing:
            if b"" in missing:
                raise LocalMisuse("a queue name is not empty")
            try:
                self._index.grow(self._registry.next_id + len(missing))
            except OSError as error:
                raise self._writer.write_failed(error) from error
            self.append_state(self._registry.creation(missing))
        return [self._registry.find(name) or 0 for name in names]

    def find_queue(self, name: bytes) -> int | None:
        """Return the id of the queue `name`, None when there is none."""
        return self._registry.find(name)

    def queue_name(self, queue: int) -> bytes:
        """Return the name of a queue. Raises LocalMisuse when there is none with that id."""
        name = self._registry.name(queue)
        if name is None:
            raise LocalMisuse(f"queue id {queue} does not exist")
        return name

    def _known(self, queue: int) -> None:
        if not self._registry.exists(queue):
            raise LocalMisuse(f"queue id {queue} does not exist")

    def delete_queues(self, queues: Sequence[int], changes: Sequence[StateChange] = ()) -> int:
        """Delete queues for ever, as one with `changes`, on a full disk too; return the end position."""
        gone = [change for queue in queues if self.queue_name(queue) for change in self._registry.deletion(queue)]
        return self._carry((), [*changes, *gone])

    # -- read ---------------------------------------------------------------------------------------------------------

    def bounds(self, queue: int) -> tuple[int, int]:
        """Return (oldest offset, confirmed end) of a queue. Raises LocalMisuse when there is none with that id."""
        self._known(queue)
        return self._reader.bounds(queue)

    def next_offset(self, queue: int) -> int:
        """Return the offset the queue's next record gets; it may lie above the confirmed end."""
        self._known(queue)
        return self._index.next_offset(queue)

    def read(
        self, queue: int, offset: int, max_count: int, max_bytes: int, end_offset: int | None = None
    ) -> ReadResult:
        """Return confirmed records of `queue` from `offset` on. Raises UnreadableOffsets when the first is damaged."""
        if not self._registry.exists(queue):
            return ReadResult(NO_SUCH_QUEUE, offset, offset, 0, 0)
        return self._damage.read(queue, offset, max_count, max_bytes, end_offset)

    def read_range(self, queue: int, offset: int, max_count: int, max_bytes: int, end_offset: int) -> RangeResult:
        """Return many confirmed records of `queue` in one piece, checksums unread. Raises UnreadableOffsets."""
        if not self._registry.exists(queue):
            return RangeResult(NO_SUCH_QUEUE, offset, offset, 0, 0)
        return self._damage.read_range(queue, offset, max_count, max_bytes, end_offset)

    def read_at(self, position: int) -> memoryview | None:
        """Return the confirmed record at `position`, None when it has expired. Raises CorruptLog."""
        return self._reader.read_at(position)

    def positions(self, queue: int, offset: int, count: int) -> list[int]:
        """Return where the messages [offset, offset + count) of `queue` stand; fewer when the index has fewer."""
        return [int(position) for position in self._index.read(queue, offset, count).positions]

    def search_time(self, queue: int, store_ms: int, upper: bool = False) -> int:
        """Return the first offset stored at or after `store_ms` (`upper`: after it)."""
        self._known(queue)
        return self._times.first_offset(queue, *self._reader.bounds(queue), store_ms + 1 if upper else store_ms)

    # -- confirm ------------------------------------------------------------------------------------------------------

    def when_confirmed(self, position: int, callback: Callback) -> None:
        """Call `callback(None)` once all below `position` is confirmed, or with StoreFailed if never."""
        self._confirm.when_confirmed(position, callback)

    def on_advance(self, listener: Listener, among: Sized | None = None) -> None:
        """Tell `listener` the ids of queues whose confirmed end moved, once per move; with `among` while it has any."""
        self._listeners.append((listener, among))
        self._confirm.on_advance(listener, among)

    def on_fresh(self, listener: FreshListener) -> None:
        """Give `listener` the small batches that were confirmed, just before `on_advance` tells of the same move."""
        self._confirm.on_fresh(listener)

    def _confirm_written(self) -> None:
        self._confirm_pending = False
        if self._writer.failure is None and not self._closed:
            self._keep(self._index.end_position)  # the end of whole groups

    def _on_flushed(self, position: int) -> None:
        self._flushed = position = self._whole_below(position)
        self._keep(position)

    def _keep(self, position: int) -> None:
        """What stands below is as safe as the settings ask."""
        if position > self._kept:
            self._kept = position
        self._advance(self._kept)
        if self._kept_listeners:
            self._tell_kept()

    def _advance(self, position: int) -> None:
        limit = self._limit
        self._confirm.advance(min(position, limit))
        self._index.tail.publish_confirm(self._confirm.position, self._flushed)

    # -- upkeep -------------------------------------------------------------------------------------------------------

    def maintain(self, now_ms: int) -> bool:
        """Do a bounded piece of upkeep (disk, segments, runs, snapshot, retention). Call about once a second.

        Return whether there is more to do: call again soon then, but let the loop serve others in between.
        """
        if self._writer.failure is None and not self._closed:
            self._guard.check()
            self._maintenance.step(now_ms, self._flushed)
            if self._scrub is not None:
                self._scrub.step(now_ms, self._flushed)
                return self._retention.working or self._scrub.working
        return self._retention.working

    def metrics(self) -> dict[str, int]:
        """Return gauges and totals of the store."""
        return {
            "begin_position": self._log.begin,
            "end_position": self._log.end,
            "flushed_position": self._flushed,
            "confirm_position": self._confirm.position,
            "messages_total": self._writer.messages_total,
            "bytes_total": self._writer.bytes_total,
            "flushes_total": self._flusher.flushes_total,
            "queues": self._registry.count,
            "segments": len(self._log.segments),
            "index_runs": len(self._index.runs),
            "index_tail_entries": self._index.tail.count - self._index.tail.first,
            "index_runs_written_total": self._index_flusher.runs_written_total,
            "index_merges_total": self._index_flusher.merges_total,
            **self._retention.metrics(),
            "disk_free_bytes": self._guard.free_bytes,
            "disk_full": int(self._guard.full),
            "failed": int(self._writer.failure is not None),
            **(self.keys.metrics() if self.keys is not None else {}),
            **self._damage.metrics(),
            **(self._scrub.metrics() if self._scrub is not None else {}),
        }
