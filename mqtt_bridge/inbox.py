"""Messages of the peer between their arrival and our acknowledgement: acknowledged in the order in which they came.

Invariant: a message is acknowledged to the peer only when everything that came before it was stored (or needs no
storing) too, as MQTT demands of acknowledgements; nothing is acknowledged on a connection it did not come by: a new
connection has a new inbox. Loop rule: none, plain data; one owner.
"""

from __future__ import annotations

from collections import deque


class Arrived:
    """One message of the peer; `packet_id` is 0 with QoS 0."""

    __slots__ = ("done", "packet_id", "size_bytes")

    def __init__(self, packet_id: int, size_bytes: int) -> None:
        self.packet_id = packet_id
        self.size_bytes = size_bytes
        self.done = False


class Inbox:
    """What one connection brought and is not acknowledged."""

    def __init__(self) -> None:
        self._waiting: deque[Arrived] = deque()
        self.unconfirmed_bytes = 0

    def __len__(self) -> int:
        return len(self._waiting)

    def arrive(self, packet_id: int, size_bytes: int) -> Arrived:
        """A message came."""
        arrived = Arrived(packet_id, size_bytes)
        self._waiting.append(arrived)
        self.unconfirmed_bytes += size_bytes
        return arrived

    def done(self, arrived: Arrived) -> list[int]:
        """It is stored, or never will be and that was said: the packet ids to acknowledge now, in order."""
        arrived.done = True
        due = []
        while self._waiting and self._waiting[0].done:
            first = self._waiting.popleft()
            self.unconfirmed_bytes -= first.size_bytes
            if first.packet_id:
                due.append(first.packet_id)
        return due
