"""QoS 2 deliveries of a session whose owner makes every step durable: what waits for that.

    deliver(qos=2): id taken, PUBLISH parked -> the owner notes id and message -> send_parked -> PUBREC ... PUBCOMP

The owner takes `reserved` and `finished` when it likes; a session without this object sends at once. A parked PUBLISH
says no topic alias, because what is sent before it would not know it.
Invariant: a parked id is in the window, in phase RESERVED; at most the window is parked. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable

Parts = tuple[bytes | memoryview, ...]
"""The pieces of one PUBLISH."""


class Qos2Steps:
    """What the owner of a session has to note."""

    __slots__ = ("_parked", "finished", "reserved")

    def __init__(self) -> None:
        self._parked: dict[int, Parts] = {}
        self.reserved: list[tuple[int, object]] = []
        """(packet id, token) of deliveries parked since the owner took them last."""
        self.finished: list[int] = []
        """Packet ids that were acknowledged or refused since the owner took them last."""

    def park(self, packet_id: int, token: object, parts: Parts) -> None:
        """A PUBLISH waits."""
        self._parked[packet_id] = parts
        self.reserved.append((packet_id, token))

    def take_reserved(self) -> list[tuple[int, object]]:
        """What is to be noted; leaves nothing behind."""
        taken, self.reserved = self.reserved, []
        return taken

    def take_finished(self) -> list[int]:
        """What is to be forgotten; leaves nothing behind."""
        taken, self.finished = self.finished, []
        return taken

    def unpark(self, packet_ids: Iterable[int]) -> list[tuple[int, Parts]]:
        """(packet id, PUBLISH) of those of the ids that are parked."""
        found = [(packet_id, self._parked.pop(packet_id, None)) for packet_id in packet_ids]
        return [(packet_id, parts) for packet_id, parts in found if parts is not None]
