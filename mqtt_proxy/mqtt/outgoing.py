"""Deliveries with QoS > 0: packet ids, the in-flight window, resending with the original ids.

Invariant: an id is in the window from its first PUBLISH to its PUBACK and is not given out again meanwhile
[MQTT-2.3.1-4]; the window's order is the order of sending, also after a resume, so a resend keeps it [MQTT-4.6.0-1].
The window holds the caller's tokens, never payloads.
Idle cost: one empty dict.
"""

from __future__ import annotations

from collections.abc import Iterable

from mqtt_proxy.mqtt.packets import PACKET_ID_MAX
from remoting.protocol.errors import LocalMisuse


class Outgoing:
    """The sender's half of QoS 1: packet id -> token, in the order of sending."""

    __slots__ = ("_last_id", "in_flight_max", "window")

    def __init__(self, in_flight_max: int) -> None:
        self.in_flight_max = in_flight_max
        self.window: dict[int, object] = {}
        self._last_id = 0

    @property
    def free(self) -> int:
        """How many more deliveries may be sent before an acknowledgement; never negative."""
        return max(0, self.in_flight_max - len(self.window))

    def assign(self, token: object) -> int:
        """A packet id that is in no use, now taken by `token`. LocalMisuse when the window is full."""
        window = self.window
        if len(window) >= self.in_flight_max:
            raise LocalMisuse(f"{len(window)} deliveries in flight, the most is {self.in_flight_max}")
        packet_id = self._last_id
        while True:
            packet_id = packet_id + 1 if packet_id < PACKET_ID_MAX else 1
            if packet_id not in window:
                break
        self._last_id = packet_id
        window[packet_id] = token
        return packet_id

    def restore(self, inflight: Iterable[tuple[int, object]]) -> None:
        """Take over the window of the session's previous connection, in its order of sending."""
        assert not self.window, "a window is restored before anything is delivered"
        for packet_id, token in inflight:
            if not 0 < packet_id <= PACKET_ID_MAX or packet_id in self.window:
                raise LocalMisuse(f"in-flight packet id {packet_id} is out of range or there twice")
            self.window[packet_id] = token
            self._last_id = packet_id

    def replace(self, packet_id: int, token: object) -> None:
        """Give an id of the restored window its token for this connection, keeping its place."""
        if packet_id not in self.window:
            raise LocalMisuse(f"packet id {packet_id} is not in flight, it cannot be sent again")
        self.window[packet_id] = token

    def forget(self, packet_id: int) -> None:
        """Drop an id whose message no longer exists and can never be sent again."""
        self.window.pop(packet_id, None)
