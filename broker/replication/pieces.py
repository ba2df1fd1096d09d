"""Parts of the log as they are sent: replicas that lack the same get the same, its checksum taken once.

Invariant: a piece is sent only to those who asked for exactly it; none is held when all have been served, because it
keeps its log file mapped. Loop rule: owner's thread.
"""

from __future__ import annotations

from broker.replication.epochs import Epochs
from broker.replication.frames import Transfer, encode_transfer_head
from broker.store.log_store import LogStore
from broker.store.replica.raw_part import RawPart


class Piece:
    """One of them: the head of its frame, and the bytes of the log, which are those of the mapped file."""

    __slots__ = ("data", "head")

    def __init__(self, part: RawPart, epoch_start: int, confirm: int) -> None:
        self.data = part.data
        self.head = encode_transfer_head(
            Transfer(part.epoch, epoch_start, part.position, confirm, part.segment_base, part.segment_size, part.data)
        )


class Pieces:
    """Remembers the last one."""

    def __init__(self) -> None:
        self._asked = (-1, 0, 0, 0)
        self._last: Piece | None = None

    def at(self, store: LogStore, epochs: Epochs, position: int, bytes_max: int) -> Piece | None:
        """Return what stands at `position`, None at the end. Raises LocalMisuse when it has expired."""
        confirm = store.confirm_position
        asked = (position, bytes_max, store.end_position, confirm)
        if self._last is None or asked != self._asked:
            part = store.raw(position, bytes_max)
            if part is None:
                return None
            _, start = epochs.at(position) or (part.epoch, position)
            self._asked, self._last = asked, Piece(part, start, confirm)
        return self._last

    def forget(self) -> None:
        """Hold nothing."""
        self._last = None
