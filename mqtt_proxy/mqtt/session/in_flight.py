"""What a session has in flight in either direction: deliveries and publishes until they are acknowledged.

Deliveries with QoS > 0 (`Outgoing`): packet ids, the in-flight window, the phases of QoS 2, resending with the original
ids.

    QoS 1   in the window from PUBLISH to PUBACK
    QoS 2   RESERVED (id taken, not sent) -> PUBLISHED -> RECEIVED (PUBREC came) -> RELEASED (PUBREL sent) -> PUBCOMP

Invariant: an id is in the window from its first PUBLISH to its PUBACK or PUBCOMP and is not assigned again meanwhile
[MQTT-2.3.1-4]; the window's order is the order of sending, also after a resume, so a resend keeps it [MQTT-4.6.0-1].
The window keeps the caller's tokens (a `DeliveryOrigin` and an offset), not payloads, except for what must not be sent
again yet after a resume (`held`): the client's Receive Maximum counts those too. An owner that makes each step of QoS 2
durable implements `Qos2Steps`; a parked id is in the window in phase RESERVED and has no topic alias, because packets
sent before it would not define the alias. Idle cost: an empty dict.

Publishes received and not yet acknowledged (`Incoming`): the order of PUBACK and PUBREC, and QoS 2 ids that must not be
accepted twice.
Invariant: acknowledgements leave in the order of receipt [MQTT-4.6.0-2] [MQTT-4.6.0-3], in whatever order the caller
confirms or refuses; an id in `exactly_once` is passed on once, and not again before its PUBREL [MQTT-4.3.3-2]. Idle
cost: an empty list. Loop rule: everything on the loop's thread.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable

from mqtt_proxy.mqtt.codec.encode import PUBACK_WORD, PUBCOMP_WORD, PUBREC_WORD, acknowledgements
from mqtt_proxy.mqtt.codec.limits import PACKET_ID_MAX
from mqtt_proxy.mqtt.codec.reason_codes import FAILURE_MIN
from mqtt_proxy.mqtt.session.topic_names import IncomingAliases, OutgoingAliases
from remoting.protocol.errors import LocalMisuse

PHASE_PUBLISH = 0
PHASE_PUBREL = 1
"""How an in-flight delivery is resumed: by its PUBLISH, or by its PUBREL because the client has the message."""

RESERVED, PUBLISHED, RECEIVED, RELEASED = 0, 1, 2, 3

_MISSING = object()
_NONE: dict[int, int] = {}
"""Stands for no phases, or no QoS 2 ids, in all sessions: only `Outgoing.enter`, `Incoming.take_new` and
`Incoming.restore` give a session a dict of its own."""


Parts = tuple[bytes | memoryview, ...]
"""The pieces of one PUBLISH."""


LANE_MESSAGES_MAX = 1_024
"""Messages of QoS 0 and 1 behind a parked one, with more of which nothing further is taken from the log."""
LANE_BYTES_MAX = 256 * 1024
"""The same in bytes."""


class Qos2Steps:
    """The steps that a session's owner has to note, and the lane of what leaves in its order meanwhile.

    Whatever is delivered while a PUBLISH is parked stands behind it in the lane, of any QoS: the order in which the
    client gets a topic's messages is that in which they were stored. What waits for the client (its PUBREC, its
    PUBCOMP) stands in no lane.
    """

    __slots__ = ("_lane", "_lane_bytes", "_noted", "_number", "finished", "on_room", "reserved")

    def __init__(self) -> None:
        self._lane: dict[int, Parts] = {}
        """Packet id of a parked PUBLISH, or a negative number for what only stands behind one -> its pieces."""
        self._lane_bytes = 0
        """Those of what stands behind: the window bounds what is parked."""
        self._noted: set[int] = set()
        """Parked packet ids that are noted and have others before them."""
        self._number = 0
        self.reserved: list[tuple[int, object]] = []
        """(packet id, token) of deliveries parked since the owner took them last."""
        self.finished: list[int] = []
        """Packet ids that were acknowledged or refused since the owner took them last."""
        self.on_room: Callable[[], None] | None = None
        """Called once when the lane is no longer full."""

    @property
    def waits(self) -> bool:
        """Whether a delivery is parked, so that others have to follow it."""
        return bool(self._lane)

    @property
    def is_full(self) -> bool:
        """Whether nothing further should be delivered before the lane moves."""
        return self._lane_bytes >= LANE_BYTES_MAX or len(self._lane) >= LANE_MESSAGES_MAX

    def park(self, packet_id: int, token: object, parts: Parts) -> None:
        """Keep a PUBLISH until its id is noted."""
        self._lane[packet_id] = parts
        self.reserved.append((packet_id, token))

    def follow(self, parts: Parts) -> None:
        """Keep packets that need no note until all that were parked before them have left."""
        self._number -= 1
        self._lane[self._number] = parts
        self._lane_bytes += sum([len(part) for part in parts])

    def take_reserved(self) -> list[tuple[int, object]]:
        """The steps to note; clears them."""
        taken, self.reserved = self.reserved, []
        return taken

    def take_finished(self) -> list[int]:
        """The ids to forget; clears them."""
        taken, self.finished = self.finished, []
        return taken

    def unpark(self, packet_ids: Iterable[int]) -> list[tuple[int, Parts]]:
        """These ids are noted: what may leave now, in order, as (packet id, or a negative number; pieces)."""
        lane, noted = self._lane, self._noted
        noted.update([packet_id for packet_id in packet_ids if packet_id in lane])
        ready = []
        for number, parts in lane.items():
            if number > 0 and number not in noted:
                break
            ready.append((number, parts))
        for number, parts in ready:
            del lane[number]
            if number > 0:
                noted.discard(number)
            else:
                self._lane_bytes -= sum([len(part) for part in parts])
        if self.on_room is not None and not self.is_full:
            tell, self.on_room = self.on_room, None
            tell()
        return ready


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
        """Set when the client accepts topic aliases."""
        self.steps: Qos2Steps | None = None
        """Set when the owner makes the steps of QoS 2 deliveries durable."""
        self.stray = 0
        """Acknowledgements of deliveries that were not in flight: ignored, counted."""

    def must_wait(self, wake: Callable[[], None]) -> bool:
        """Whether nothing may be delivered now, whatever its QoS: resends have to go first, or the lane is full.

        `wake` is called when the lane has room; after a resend the session is woken by its acknowledgements.
        """
        if self.held is not None:
            return True
        if self.steps is None or not self.steps.is_full:
            return False
        self.steps.on_room = wake
        return True

    def lane(self) -> Qos2Steps | None:
        """Where a PUBLISH has to wait because one before it is parked; None when it may leave."""
        return self.steps if self.steps is not None and self.steps.waits else None

    @property
    def free(self) -> int:
        """How many more deliveries may be sent before an acknowledgement; never negative."""
        return max(0, self.in_flight_max - len(self.window))

    def assign(self, token: object) -> int:
        """A free packet id, now taken by `token`. LocalMisuse when the window is full."""
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

    def keep(self, packet_id: int, publish: bytes) -> bool:
        """Whether a resend must wait; it is kept then, and `resend` returns it when there is room."""
        waiting = 0 if self.held is None else len(self.held)
        # The window contains all that was restored; the quota counts what has been sent or released of it.
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
        """A step of our own in the QoS 2 exchange. LocalMisuse when another step is due."""
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


RETAINED_QUEUE = 0xFFFF_FFFF
"""Queue id of a position that is a log position instead of a queue offset: a retained message."""


class DeliveryOrigin:
    """What an acknowledged delivery is reported to; this one only remembers where the message lies."""

    __slots__ = ("queue_id",)

    noted = True
    """Whether a closing session notes its unacknowledged deliveries from here, to send them again itself."""

    flow_bit = 0
    """Added to the queue id where a QoS 2 delivery from here is noted."""

    def __init__(self, queue_id: int) -> None:
        self.queue_id = queue_id

    def acknowledge(self, offset: int) -> None:
        """The client has the message at `offset`."""


TAKEN, CONFIRMED, COMPLETING = 0, 1, 2
"""Where a QoS 2 id is: handed to the caller, its PUBREC sent, its PUBREL come and PUBCOMP waiting for the caller."""


class Incoming:
    """The receiver's half of QoS 1 and QoS 2."""

    __slots__ = ("_answers", "_early", "_taken", "aliases", "exactly_once", "pending")

    def __init__(self) -> None:
        self.pending: list[int] = []
        """Packet ids in order of receipt, from PUBLISH to PUBACK or PUBREC; the hot loop appends here."""
        self.exactly_once: dict[int, int] = _NONE
        """QoS 2 id -> TAKEN, CONFIRMED or COMPLETING; from PUBLISH to PUBCOMP."""
        self._taken = 0
        """How many of `exactly_once` are TAKEN: those stand in `pending` too."""
        self._early: dict[int, int] | None = None
        self._answers: dict[int, bytes] | None = None
        """Packet id -> reason code, perhaps with properties, of its acknowledgement, until that has left."""
        self.aliases: IncomingAliases | None = None
        """Set when the client may use topic aliases."""

    @property
    def in_use(self) -> int:
        """Publishes with QoS > 0 that have not been answered: what the client's quota counts [4.9]."""
        return len(self.pending) + len(self.exactly_once) - self._taken

    def restore(self, packet_ids: Iterable[int]) -> None:
        """QoS 2 ids that the session's previous connection had confirmed."""
        self.exactly_once = dict.fromkeys(packet_ids, CONFIRMED)

    def say(self, packet_ids: Iterable[int], answer: bytes) -> None:
        """The acknowledgements of these will have this reason code, perhaps with properties."""
        self._answers = (self._answers or {}) | dict.fromkeys(packet_ids, answer)

    def acknowledge(self, packet_ids: Iterable[int], refusal: bytes = b"") -> bytes:
        """The acknowledgements that may be sent now that these publishes are durable, or refused: `refusal` is then the
        reason code with its properties. LocalMisuse for an id that is not pending.
        """
        confirmed = list(packet_ids)
        pending = self.pending
        if refusal:
            self.say(confirmed, refusal)
        if len(confirmed) == 1 and pending and pending[0] == confirmed[0] and not (self._early or self._answers):
            packet_id = confirmed[0]
            phase = self.exactly_once.get(packet_id)
            if phase is None or phase == TAKEN:
                del pending[0]
                if phase is None:
                    return (PUBACK_WORD | packet_id).to_bytes(4, "big")
                self._taken -= 1
                self.exactly_once[packet_id] = CONFIRMED
                return (PUBREC_WORD | packet_id).to_bytes(4, "big")
        if not self._early and pending[: len(confirmed)] == confirmed:
            del pending[: len(confirmed)]
            return self._encode(confirmed)
        early = self._early
        if early is None:
            early = self._early = {}
        for packet_id in confirmed:
            early[packet_id] = early.get(packet_id, 0) + 1
            if pending.count(packet_id) < early[packet_id]:
                raise LocalMisuse(f"packet id {packet_id} acknowledged, but no PUBLISH waits for it")
        return self._encode(self._in_order())

    def _in_order(self) -> list[int]:
        """Remove from `pending` the longest front whose ids have all been confirmed."""
        early = self._early or {}
        ready: list[int] = []
        for packet_id in self.pending:
            waiting = early.get(packet_id, 0)
            if waiting == 0:
                break
            if waiting == 1:
                del early[packet_id]
            else:
                early[packet_id] = waiting - 1
            ready.append(packet_id)
        del self.pending[: len(ready)]
        return ready

    def _encode(self, packet_ids: list[int]) -> bytes:
        exactly_once = self.exactly_once
        if not exactly_once and not self._answers:
            return acknowledgements([PUBACK_WORD | packet_id for packet_id in packet_ids])
        return b"".join([self._answer(packet_id) for packet_id in packet_ids])

    def _answer(self, packet_id: int) -> bytes:
        """PUBACK or PUBREC of one publish; a refused QoS 2 id is free again at once."""
        answer = self._answers.pop(packet_id, b"") if self._answers else b""
        word = PUBACK_WORD
        if self.exactly_once.get(packet_id) == TAKEN:
            word = PUBREC_WORD
            self._taken -= 1
            if answer and answer[0] >= FAILURE_MIN:
                del self.exactly_once[packet_id]
            else:  # the exchange continues: PUBREL follows [MQTT-4.3.3-4]
                self.exactly_once[packet_id] = CONFIRMED
        if not answer:
            return acknowledgements([word | packet_id])
        assert len(answer) < 0x7E, "an answer is a code, or a code and a short reason"
        return bytes((word >> 24, 2 + len(answer))) + packet_id.to_bytes(2, "big") + answer

    def take_new(self, packet_id: int) -> bool:
        """A QoS 2 PUBLISH came: whether it is new; nothing has changed if not."""
        if packet_id in self.exactly_once:
            return False
        if self.exactly_once is _NONE:
            self.exactly_once = {}
        self.exactly_once[packet_id] = TAKEN
        self._taken += 1
        self.pending.append(packet_id)
        return True

    def receive_exactly_once(self, packet_id: int) -> tuple[bool, bytes]:
        """A QoS 2 PUBLISH came: whether it is new, and the PUBREC to repeat at once if it was confirmed before."""
        if self.take_new(packet_id):
            return True, b""
        phase = self.exactly_once[packet_id]
        return False, acknowledgements([PUBREC_WORD | packet_id]) if phase == CONFIRMED else b""

    def release(self, packet_id: int) -> int | None:
        """PUBREL came: the phase the id was in; None when it is not known."""
        phase = self.exactly_once.get(packet_id)
        if phase == CONFIRMED:
            self.exactly_once[packet_id] = COMPLETING
        return phase

    def complete(self, packet_ids: Iterable[int]) -> bytes:
        """The PUBCOMPs: these ids may carry new messages from now on."""
        words = []
        for packet_id in packet_ids:
            if self.exactly_once.get(packet_id) != COMPLETING:
                raise LocalMisuse(f"packet id {packet_id} completed, but no PUBREL waits for it")
            del self.exactly_once[packet_id]
            words.append(PUBCOMP_WORD | packet_id)
        return acknowledgements(words)

    def confirmed(self) -> list[int]:
        """QoS 2 ids that are durable and not completed."""
        return [packet_id for packet_id, phase in self.exactly_once.items() if phase != TAKEN]
