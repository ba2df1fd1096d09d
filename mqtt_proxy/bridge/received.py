"""QoS 2 packet ids a closed connection had taken and not released: its successor must not take them again.

A client that loses its connection in the middle of the handshake sends the PUBLISH again under the same id; whoever
knows the id answers without storing the message twice [MQTT-4.3.3-2]. The ids live here between two connections of a
session through this proxy. They are trusted only when nobody else held the session in between: its epoch, which the
broker raises at every opening, must still be the one they were left under. A restart of proxy or broker forgets them;
such a message may then be stored twice, never lost.
Invariant: at most `ids_max` ids in all; the sessions that closed first are forgotten first. Loop rule: on the loop's
thread.
"""

from __future__ import annotations

from collections.abc import Sequence

IDS_MAX = 100_000
"""Packet ids remembered for all closed sessions together: some 10 MB."""


class ReceivedIds:
    """Client id -> (epoch of its last connection, QoS 2 ids in order of receipt)."""

    __slots__ = ("_by_client", "_count", "_ids_max")

    def __init__(self, ids_max: int = IDS_MAX) -> None:
        self._by_client: dict[str, tuple[int, Sequence[int]]] = {}
        self._ids_max = ids_max
        self._count = 0

    def keep(self, client_id: str, epoch: int, packet_ids: Sequence[int]) -> None:
        """The connection of this epoch has ended, or heard of one more confirmation after its end."""
        known = self._by_client.get(client_id)
        if known is not None and known[0] > epoch:
            return
        self._drop(client_id)
        if packet_ids:
            self._by_client[client_id] = (epoch, packet_ids)
            self._count += len(packet_ids)
            while self._count > self._ids_max:
                self._drop(next(iter(self._by_client)))

    def take(self, client_id: str, epoch: int) -> Sequence[int]:
        """Return the ids left under this epoch, and forget what is known of the client."""
        known = self._by_client.get(client_id)
        self._drop(client_id)
        return known[1] if known is not None and known[0] == epoch else ()

    def _drop(self, client_id: str) -> None:
        known = self._by_client.pop(client_id, None)
        if known is not None:
            self._count -= len(known[1])
