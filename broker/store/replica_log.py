"""The log of a store as its group of replicas sees it; see `role`.

The master hands out its log as bytes (`raw`). A replica takes the bytes over (`append_raw`) and cuts its log where it
parts from the master's. Invariant: a cut is durable when it returns, and everything that was made of the log has been
made anew from what is left. Thread rule: loop thread.
"""

from __future__ import annotations

from collections.abc import Callable

from broker.store.append.replica_writer import RawPart, ReplicaWriter, raw_part
from broker.store.log.epoch_file import Epoch, below, save_epochs
from broker.store.parts import Parts, Site
from broker.store.recovery.truncation import Truncation
from remoting.protocol.errors import LocalMisuse

Change = Callable[[Truncation], None]


class ReplicaLog:
    """What replication needs of a store; `rebuild` changes the directory and makes the parts anew."""

    def __init__(self, site: Site, parts: Parts, rebuild: Callable[[Change], Parts]) -> None:
        self._site = site
        self._parts = parts
        self._rebuild = rebuild

    @property
    def is_replica(self) -> bool:
        """Whether the log grows by `append_raw` alone."""
        return self._site.role.replica

    @property
    def epochs(self) -> list[Epoch]:
        """(epoch, position of its first byte) of the log, oldest first; the last one may have no byte yet."""
        return list(self._parts.opened.epochs)

    @property
    def sound_end(self) -> int:
        """Where the first damage of the log begins that is known; its end when there is none."""
        return min([each.start for each in self._parts.damage.quarantine], default=self._parts.opened.log.end)

    def raw(self, position: int, bytes_max: int) -> RawPart | None:
        """Return the bytes from `position` on, None at the end of the log; see `raw_part`.

        Raises LocalMisuse when `position` lies below the begin of the log.
        """
        return raw_part(self._parts.opened.log, self._parts.opened.epochs, position, bytes_max)

    def append_raw(self, part: RawPart) -> int:
        """Take over the next bytes of the master's log; return where the log ends then.

        Raises LocalMisuse (not a replica, or not the next bytes), RemoteViolation, StoreFull, StoreFailed.
        """
        writer = self._parts.writer
        if not isinstance(writer, ReplicaWriter):
            raise LocalMisuse("bytes of another log for a store that writes its own")
        return writer.append_raw(part)

    def truncate(self, position: int) -> None:
        """Let the log end at `position`, durably; everything that was made of the log follows, also `state` and `keys`.

        An epoch that starts there or behind has no byte left and goes. Where `position` lies within a group the log
        ends before it: ask `end_position`. Raises LocalMisuse (not a replica, or outside of the log), OSError.
        """
        self._check_replica()
        log, epochs = self._parts.opened.log, self._parts.opened.epochs
        if not log.begin <= position <= log.end:
            raise LocalMisuse(f"cut at {position} of a log from {log.begin} to {log.end}")
        kept = below(epochs, position)
        if position == log.end:
            if kept != epochs:
                save_epochs(self._site.directory, kept)
                epochs[:] = kept
            return
        limit = self._parts.positions.limit
        self._parts = self._rebuild(lambda change: change.cut_back(position))
        self._parts.positions.limit_confirm(min(limit, position))

    def reset(self, position: int) -> None:
        """Drop everything and begin anew at `position`, where the master's log begins. Raises LocalMisuse, OSError."""
        self._check_replica()
        if position < 0 or position % 8:
            raise LocalMisuse(f"no log begins at {position}")
        self._parts = self._rebuild(lambda change: change.begin_anew(position))

    def _check_replica(self) -> None:
        if not self.is_replica:
            raise LocalMisuse("only the log of a replica is cut")
        if self._parts.failure.error is not None:
            raise self._parts.failure.error
