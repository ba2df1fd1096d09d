"""Messages in flight between our log and the peer, in either direction, until they are acknowledged.

Outbox: what of the log has been sent to the peer, and up to where the peer has everything. A cursor for each parent
queue: `position` is the next offset to read, `low` the lowest that is not settled. A record may go out in several
copies (to several topics of the peer); it is settled with the last of them. Copies are known by the packet id the MQTT
library gave them. When the connection ends, everything unsettled is read again from `low`. Invariant: `low` never
passes a record of which a copy is not settled, so a commit of `low` loses nothing; at most `window` copies are in
flight. The window of `remoting.client.in_flight` does not fit here: nothing is gathered or kept in memory, the peer
acknowledges each copy in any order, and what is lost is read again from the log.

Inbox: messages of the peer between their arrival and our acknowledgement: acknowledged in the order in which they came.
Invariant: a message is acknowledged to the peer only when everything that came before it was stored (or needs no
storing) too, as MQTT demands; nothing is acknowledged on another connection than the one it arrived by: a new
connection has a new inbox. Loop rule: none, plain data; one owner.
"""

from __future__ import annotations

from collections import deque

Key = tuple[str, int]
"""(parent topic, number of the queue in it)."""


class Cursor:
    """One parent queue."""

    __slots__ = ("committed", "position", "queue_id", "unsettled")

    def __init__(self, queue_id: int, start: int, committed: int | None) -> None:
        self.queue_id = queue_id
        self.position = start
        self.committed = committed
        self.unsettled: dict[int, int] = {}
        """Offset -> copies that are not settled, in order of the offsets."""

    @property
    def low(self) -> int:
        """The lowest offset that is not settled."""
        return next(iter(self.unsettled), self.position)


class Outbox:
    """The cursors of one connection and the copies in flight."""

    def __init__(self, window: int) -> None:
        self.cursors: dict[Key, Cursor] = {}
        self._window = window
        self._limit = window
        self._flying: dict[int, tuple[Cursor, int]] = {}

    @property
    def in_flight(self) -> int:
        """Copies sent and not settled."""
        return len(self._flying)

    @property
    def free(self) -> int:
        """Copies that may be sent now."""
        return max(0, self._limit - len(self._flying))

    def limit(self, receive_maximum: int) -> None:
        """The peer takes no more than this at a time on the present connection."""
        self._limit = min(self._window, receive_maximum)

    def track(self, cursor: Cursor, offset: int, copies: int) -> None:
        """A record of which `copies` copies are about to be sent; it is the highest read so far."""
        assert offset >= cursor.position, (offset, cursor.position)
        cursor.unsettled[offset] = copies
        cursor.position = offset + 1

    def passed(self, cursor: Cursor, position: int) -> None:
        """Everything below `position` was read."""
        cursor.position = max(cursor.position, position)

    def sent(self, packet_id: int, cursor: Cursor, offset: int) -> None:
        """A copy of a tracked record was sent."""
        assert packet_id not in self._flying, packet_id
        self._flying[packet_id] = (cursor, offset)

    def place(self, packet_id: int) -> tuple[Cursor, int] | None:
        """The record of a copy in flight."""
        return self._flying.get(packet_id)

    def settled(self, packet_id: int) -> bool:
        """The peer has the copy (or will never take it); False for a packet id that is not in flight."""
        flying = self._flying.pop(packet_id, None)
        if flying is None:
            return False
        self.settle_copy(*flying)
        return True

    def settle_copy(self, cursor: Cursor, offset: int) -> None:
        """One copy of a tracked record is no longer waited for."""
        left = cursor.unsettled[offset] - 1
        if left:
            cursor.unsettled[offset] = left
        else:
            del cursor.unsettled[offset]

    def rewind(self) -> None:
        """The connection ended: everything that is not settled is read again."""
        self._flying.clear()
        self._limit = self._window
        for cursor in self.cursors.values():
            cursor.position = cursor.low
            cursor.unsettled.clear()

    def due(self) -> list[tuple[Key, int]]:
        """(queue, offset) of every queue whose committed offset is behind."""
        return [(key, cursor.low) for key, cursor in self.cursors.items() if cursor.low != cursor.committed]


class Arrived:
    """One message of the peer; `packet_id` is 0 with QoS 0."""

    __slots__ = ("done", "packet_id", "size_bytes")

    def __init__(self, packet_id: int, size_bytes: int) -> None:
        self.packet_id = packet_id
        self.size_bytes = size_bytes
        self.done = False


class Inbox:
    """Messages that arrived by one connection and are not acknowledged."""

    def __init__(self) -> None:
        self._waiting: deque[Arrived] = deque()
        self.unconfirmed_bytes = 0

    def __len__(self) -> int:
        return len(self._waiting)

    def arrive(self, packet_id: int, size_bytes: int) -> Arrived:
        """Note a message that came; acknowledge it when the returned entry is settled."""
        arrived = Arrived(packet_id, size_bytes)
        self._waiting.append(arrived)
        self.unconfirmed_bytes += size_bytes
        return arrived

    def done(self, arrived: Arrived) -> list[int]:
        """It is stored, or was dropped: the packet ids to acknowledge now, in order."""
        arrived.done = True
        due = []
        while self._waiting and self._waiting[0].done:
            first = self._waiting.popleft()
            self.unconfirmed_bytes -= first.size_bytes
            if first.packet_id:
                due.append(first.packet_id)
        return due
