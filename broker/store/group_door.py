"""The door of a store for the group of replicas it belongs to; see `role`.

The master hands out its log as bytes (`raw`) and hears from the group how far it is confirmed (`limit_confirm`). A
replica takes the bytes over (`append_raw`), is told the same, and cuts its log where it parts from the master's.
Invariant: nothing is confirmed beyond the limit, and in a group the limit of a fresh start is what the MANIFEST
remembers as confirmed, until `limit_confirm` is called. Thread rule: loop thread.
"""

from __future__ import annotations

from collections.abc import Callable

from broker.store.errors import GivenUp
from broker.store.log.epoch_file import Epoch, below, save_epochs
from broker.store.log.role import UNLIMITED
from broker.store.recovery.truncation import Truncation
from broker.store.replica.raw_part import RawPart, raw_part
from broker.store.replica.replica_writer import ReplicaWriter
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

    @property
    def sound_end(self) -> int:
        """Where the first damage of the log begins that is known; its end when there is none."""
        return min([each.start for each in self._damage.quarantine], default=self._log.end)

    def raw(self, position: int, bytes_max: int) -> RawPart | None:
        """Return the bytes from `position` on, None at the end of the log; see `raw_part`.

        Raises LocalMisuse when `position` lies below the begin of the log.
        """
        return raw_part(self._log, self._epochs, position, bytes_max)

    def on_written(self, listener: Heard) -> None:
        """Call `listener(end position)` after every append, before it is flushed."""
        self._written_listeners.append(listener)

    def on_kept(self, listener: Heard) -> None:
        """Call `listener(kept position)` each time it may have moved and what it allows has been confirmed."""
        self._kept_listeners.append(listener)

    def append_raw(self, part: RawPart) -> int:
        """Take over the next bytes of the master's log; return where the log ends then.

        Raises LocalMisuse (not a replica, or not the next bytes), RemoteViolation, StoreFull, StoreFailed.
        """
        writer = self._writer
        if not isinstance(writer, ReplicaWriter):
            raise LocalMisuse("bytes of another log for a store that writes its own")
        return writer.append_raw(part)

    def truncate(self, position: int) -> None:
        """Let the log end at `position`, durably; everything that was made of the log follows, also `state` and `keys`.

        An epoch that starts there or behind has no byte left and goes. Where `position` lies within a group the log
        ends before it: ask `end_position`. Raises LocalMisuse (not a replica, or outside of the log), OSError.
        """
        self._check_replica()
        if not self._log.begin <= position <= self._log.end:
            raise LocalMisuse(f"cut at {position} of a log from {self._log.begin} to {self._log.end}")
        kept = below(self._epochs, position)
        if position == self._log.end:
            if kept != self._epochs:
                save_epochs(self.directory, kept)
                self._epochs[:] = kept
            return
        limit = self._limit
        self._rebuild(lambda change: change.cut_back(position))
        self.limit_confirm(min(limit, position))

    def reset(self, position: int) -> None:
        """Drop everything and begin anew at `position`, where the master's log begins. Raises LocalMisuse, OSError."""
        self._check_replica()
        if position < 0 or position % 8:
            raise LocalMisuse(f"no log begins at {position}")
        self._rebuild(lambda change: change.begin_anew(position))

    def _check_replica(self) -> None:
        if not self._role.replica:
            raise LocalMisuse("only the log of a replica is cut")
        if self._closed or self._writer.failure is not None:
            raise self._writer.failure or LocalMisuse("the store is closed")

    def _rebuild(self, change: Callable[[Truncation], None]) -> None:
        """Put the parts to rest, change the directory and make them anew; what fails leaves a store that is closed."""
        listeners, self._kept_listeners = self._kept_listeners, []  # they shall not acknowledge what goes
        try:
            self._dismantle()
            change(Truncation(self.directory, self._log, self._epochs, self._faults, self._events))
            self._log.close()
            self._mount()
        except BaseException as error:
            self._abandon(error)
            raise
        finally:
            self._kept_listeners = listeners

    def limit_confirm(self, position: int | None) -> None:
        """Confirm up to `position` at most, None: as far as this node by itself would; what is confirmed stays so."""
        if self._given_up:
            return
        self._limit = UNLIMITED if position is None else position
        if self._writer.failure is None and not self._closed:
            self._advance(self._kept)

    def give_up(self, reason: GivenUp) -> None:
        """Tell all who wait to have something confirmed, and all who ask later, that it may stay or go: see `GivenUp`.

        Nothing more is confirmed by this opening; what was is. For a master that is one no more.
        """
        self._limit, self._given_up = self._confirm.position, True
        self._confirm.fail(reason)

    def _whole_below(self, position: int) -> int:
        """Return how much of what was flushed is whole groups; anything else may be gone after a restart."""
        writer = self._writer
        return writer.whole_below(position) if isinstance(writer, ReplicaWriter) else position

    def _tell_written(self) -> None:
        end = self._log.end
        for listener in self._written_listeners:
            listener(end)

    def _tell_kept(self) -> None:
        for listener in self._kept_listeners:
            listener(self._kept)
