"""The door of a store for the group of replicas it belongs to; see `role`.

The master hands out its log as bytes (`raw`) and hears from the group how far it is confirmed (`limit_confirm`). A
replica takes the bytes over (`append_raw`), is told the same, and cuts its log where it parts from the master's.
Invariant: nothing is confirmed beyond the limit, and in a group the limit of a fresh start is what the index runs
remember as confirmed, until `limit_confirm` is called. Thread rule: loop thread.
"""

from __future__ import annotations

from collections.abc import Callable

from broker.store.epoch_file import Epoch
from broker.store.raw_part import RawPart, raw_part
from broker.store.replica_writer import ReplicaWriter
from broker.store.role import UNLIMITED
from broker.store.store_base import StoreBase
from remoting.protocol.errors import LocalMisuse

Heard = Callable[[int], None]


class GroupDoor(StoreBase):
    """What replication needs of a store."""

    @property
    def is_replica(self) -> bool:
        """Whether the log grows by `append_raw` alone."""
        return self._role.replica

    @property
    def epochs(self) -> list[Epoch]:
        """(epoch, position of its first byte) of the log, oldest first; the last one may have no byte yet."""
        return list(self._epochs)

    def raw(self, position: int, bytes_max: int) -> RawPart | None:
        """Return the bytes from `position` on, None at the end of the log; see `raw_part`.

        Raises LocalMisuse when `position` lies below the begin of the log.
        """
        return raw_part(self._log, self._epochs, position, bytes_max)

    def on_written(self, listener: Heard) -> None:
        """Call `listener(end position)` after every append, before it is flushed."""
        self._written_listeners.append(listener)

    def on_flushed(self, listener: Heard) -> None:
        """Call `listener(flushed position)` each time it has moved and what it allows has been confirmed."""
        self._flushed_listeners.append(listener)

    def append_raw(self, part: RawPart) -> int:
        """Take over the next bytes of the master's log; return where the log ends then.

        Raises LocalMisuse (not a replica, or not the next bytes), RemoteViolation, StoreFull, StoreFailed.
        """
        writer = self._writer
        if not isinstance(writer, ReplicaWriter):
            raise LocalMisuse("bytes of another log for a store that writes its own")
        return writer.append_raw(part)

    def limit_confirm(self, position: int | None) -> None:
        """Confirm up to `position` at most, None: as far as this node by itself would; what is confirmed stays so."""
        self._limit = UNLIMITED if position is None else position
        local = self._log.end if self._is_async and not self._role.replica else self._flushed
        if self._writer.failure is None and not self._closed:
            self._advance(local)

    def _whole_below(self, position: int) -> int:
        """Return how much of what was flushed is whole groups; anything else may be gone after a restart."""
        writer = self._writer
        return writer.whole_below(position) if isinstance(writer, ReplicaWriter) else position

    def _tell_written(self) -> None:
        end = self._log.end
        for listener in self._written_listeners:
            listener(end)

    def _tell_flushed(self) -> None:
        for listener in self._flushed_listeners:
            listener(self._flushed)
