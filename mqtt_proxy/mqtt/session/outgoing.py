"""Deliveries with QoS > 0: packet ids, the in-flight window, the phases of QoS 2, resending with the original ids.

    QoS 1   in the window from PUBLISH to PUBACK
    QoS 2   RESERVED (id taken, not sent) -> PUBLISHED -> RECEIVED (PUBREC came) -> RELEASED (PUBREL sent) -> PUBCOMP

Invariant: an id is in the window from its first PUBLISH to its PUBACK or PUBCOMP and is not given out again meanwhile
[MQTT-2.3.1-4]; the window's order is the order of sending, also after a resume, so a resend keeps it [MQTT-4.6.0-1].
The window holds the caller's tokens, never payloads, but for what a resume may not send again yet (`held`): the
client's Receive Maximum counts those too.
Idle cost: an empty dict.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from mqtt_proxy.mqtt.codec.packets import PACKET_ID_MAX
from remoting.protocol.errors import LocalMisuse

PHASE_PUBLISH = 0
PHASE_PUBREL = 1
"""What an in-flight delivery is resumed with: its PUBLISH, or its PUBREL because the client has the message."""

RESERVED, PUBLISHED, RECEIVED, RELEASED = 0, 1, 2, 3

_NONE: dict[int, int] = {}
"""Stands for no phases at all, one for all sessions: nobody but `enter` puts anything into `phases`."""


class Outgoing:
    """The sender's half of QoS 1 and 2: packet id -> token, in the order of sending."""

    __slots__ = ("_last_id", "held", "in_flight_max", "phases", "window")

    def __init__(self, in_flight_max: int) -> None:
        self.in_flight_max = in_flight_max
        self.window: dict[int, object] = {}
        self.phases: dict[int, int] = _NONE
        """Packet id -> phase, of the QoS 2 deliveries in the window."""
        self.held: deque[tuple[int, bytes]] | None = None
        """Resends that wait for the client's Receive Maximum: (packet id, PUBLISH)."""
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

    def enter(self, packet_id: int, phase: int) -> None:
        """A QoS 2 delivery is in this phase now."""
        if self.phases is _NONE:
            self.phases = {}
        self.phases[packet_id] = phase

    def restore(self, inflight: Iterable[tuple[int, object, int]]) -> list[int]:
        """Take over the window of the session's previous connection, in its order of sending; the ids whose PUBREL
        must be sent again.
        """
        assert not self.window, "a window is restored before anything is delivered"
        released = []
        for packet_id, token, phase in inflight:
            if not 0 < packet_id <= PACKET_ID_MAX or packet_id in self.window:
                raise LocalMisuse(f"in-flight packet id {packet_id} is out of range or there twice")
            self.window[packet_id] = token
            self._last_id = packet_id
            if phase == PHASE_PUBREL:
                self.enter(packet_id, RELEASED)
                released.append(packet_id)
        return released

    def replace(self, packet_id: int, token: object, qos: int) -> None:
        """Give an id of the restored window its token for this connection, keeping its place."""
        if packet_id not in self.window:
            raise LocalMisuse(f"packet id {packet_id} is not in flight, it cannot be sent again")
        self.window[packet_id] = token
        if qos == 2:
            self.enter(packet_id, PUBLISHED)

    def hold(self, packet_id: int, publish: bytes) -> bool:
        """Whether a resend must wait; it is kept then, and `resend` gives it when there is room."""
        waiting = 0 if self.held is None else len(self.held)
        # The window holds all that was restored; what may be sent is what has been sent or released of it.
        if not waiting and self._position(packet_id) < self.in_flight_max:
            return False
        if self.held is None:
            self.held = deque()
        self.held.append((packet_id, publish))
        return True

    def _position(self, packet_id: int) -> int:
        """How many deliveries that count against the quota stand before this one."""
        if len(self.window) <= self.in_flight_max:
            return 0
        position = 0
        for other in self.window:
            if other == packet_id:
                break
            position += self.phases.get(other) != RELEASED
        return position

    def resend(self) -> list[bytes]:
        """Resends there is room for now that the window has become smaller."""
        held = self.held
        ready: list[bytes] = []
        if held is None:
            return ready
        while held and len(self.window) - len(held) < self.in_flight_max:
            packet_id, publish = held.popleft()
            if packet_id in self.window:
                ready.append(publish)
        if not held:
            self.held = None
        return ready

    def advance(self, packet_id: int, before: int, after: int) -> None:
        """A step of our own in the QoS 2 exchange. LocalMisuse when it is not this step's turn."""
        if self.phases.get(packet_id) != before:
            raise LocalMisuse(f"packet id {packet_id} is in phase {self.phases.get(packet_id)}, not {before}")
        self.enter(packet_id, after)

    def forget(self, packet_id: int) -> None:
        """Drop an id whose message no longer exists and can never be sent again."""
        self.window.pop(packet_id, None)
        self.phases.pop(packet_id, None)

    def inflight(self) -> list[tuple[int, object, int]]:
        """(packet id, token, PHASE_PUBLISH or PHASE_PUBREL) in order of sending."""
        phases = self.phases
        return [
            (packet_id, token, PHASE_PUBREL if phases.get(packet_id, 0) >= RECEIVED else PHASE_PUBLISH)
            for packet_id, token in self.window.items()
        ]
