"""Deliveries with QoS > 0: packet ids, the in-flight window, the phases of QoS 2, resending with the original ids.

    QoS 1   in the window from PUBLISH to PUBACK
    QoS 2   RESERVED (id taken, not sent) -> PUBLISHED -> RECEIVED (PUBREC came) -> RELEASED (PUBREL sent) -> PUBCOMP

Invariant: an id is in the window from its first PUBLISH to its PUBACK or PUBCOMP and is not given out again meanwhile
[MQTT-2.3.1-4]; the window's order is the order of sending, also after a resume, so a resend keeps it [MQTT-4.6.0-1].
The window holds the caller's tokens, never payloads, but for what a resume may not send again yet (`held`): the
client's Receive Maximum counts those too. The owner who makes every step of QoS 2 durable takes `reserved` and
`finished` of `Qos2Steps` when it likes; a parked id is in the window, in phase RESERVED, and says no topic alias,
because what is sent before it would not know it.
Idle cost: an empty dict.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from mqtt_proxy.mqtt.codec.limits import PACKET_ID_MAX
from mqtt_proxy.mqtt.session.topic_names import OutgoingAliases
from remoting.protocol.errors import LocalMisuse

PHASE_PUBLISH = 0
PHASE_PUBREL = 1
"""What an in-flight delivery is resumed with: its PUBLISH, or its PUBREL because the client has the message."""

RESERVED, PUBLISHED, RECEIVED, RELEASED = 0, 1, 2, 3

_MISSING = object()
_NONE: dict[int, int] = {}
"""Stands for no phases at all, one for all sessions: nobody but `enter` puts anything into `phases`."""


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
        """Keep a PUBLISH until its id is noted."""
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


class Outgoing:
    """The sender's half of QoS 1 and 2: packet id -> token, in the order of sending."""

    __slots__ = ("aliases", "held", "in_flight_max", "last_id", "phases", "steps", "stray", "window")

    def __init__(self, in_flight_max: int) -> None:
        self.in_flight_max = in_flight_max
        self.window: dict[int, object] = {}
        self.phases: dict[int, int] = _NONE
        """Packet id -> phase, of the QoS 2 deliveries in the window."""
        self.held: deque[tuple[int, bytes]] | None = None
        """Resends that wait for the client's Receive Maximum: (packet id, PUBLISH)."""
        self.last_id = 0
        self.aliases: OutgoingAliases | None = None
        """There when the client takes topic aliases."""
        self.steps: Qos2Steps | None = None
        """There when the owner makes the steps of QoS 2 deliveries durable."""
        self.stray = 0
        """Acknowledgements of deliveries that were not in flight: ignored, counted."""

    @property
    def free(self) -> int:
        """How many more deliveries may be sent before an acknowledgement; never negative."""
        return max(0, self.in_flight_max - len(self.window))

    def assign(self, token: object) -> int:
        """A packet id that is in no use, now taken by `token`. LocalMisuse when the window is full."""
        window = self.window
        if len(window) >= self.in_flight_max:
            raise LocalMisuse(f"{len(window)} deliveries in flight, the most is {self.in_flight_max}")
        packet_id = self.last_id
        while True:
            packet_id = packet_id + 1 if packet_id < PACKET_ID_MAX else 1
            if packet_id not in window:
                break
        self.last_id = packet_id
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
            self.last_id = packet_id
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

    def finish(self, packet_id: int, tokens: list[object]) -> None:
        """The client has acknowledged a delivery, or refused it: its token goes to `tokens`, its id is free. A stray
        acknowledgement is counted.
        """
        if self.phases.pop(packet_id, None) is not None and self.steps is not None:
            self.steps.finished.append(packet_id)
        token = self.window.pop(packet_id, _MISSING)
        if token is _MISSING:
            self.stray += 1
        else:
            tokens.append(token)

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
