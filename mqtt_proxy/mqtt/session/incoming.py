"""Publishes received and not yet acknowledged: the order of PUBACK/PUBREC, and QoS 2 ids that may not be accepted
again.

Invariant: acknowledgements leave in the order of receipt [MQTT-4.6.0-2] [MQTT-4.6.0-3], whatever order the caller
confirms or refuses in; an id in `exactly_once` was handed to the caller once and is not handed out again before its
PUBREL [MQTT-4.3.3-2]. Idle cost: an empty list.
"""

from __future__ import annotations

from collections.abc import Iterable

from mqtt_proxy.mqtt.codec.encode import PUBACK_WORD, PUBCOMP_WORD, PUBREC_WORD, acknowledgements
from mqtt_proxy.mqtt.codec.reason_codes import FAILURE_MIN
from mqtt_proxy.mqtt.session.topic_names import IncomingAliases
from remoting.protocol.errors import LocalMisuse

TAKEN, CONFIRMED, RELEASED = 0, 1, 2
"""Where a QoS 2 id is: handed to the caller, its PUBREC sent, its PUBREL come and PUBCOMP waiting for the caller."""


_NONE: dict[int, int] = {}
"""Stands for no QoS 2 ids at all, one for all sessions: nobody but `take_new` and `restore` gives a session its own."""


class Incoming:
    """The receiver's half of QoS 1 and QoS 2."""

    __slots__ = ("_early", "_said", "_taken", "aliases", "exactly_once", "pending")

    def __init__(self) -> None:
        self.pending: list[int] = []
        """Packet ids in order of receipt, from PUBLISH to PUBACK or PUBREC; the hot loop appends here."""
        self.exactly_once: dict[int, int] = _NONE
        """QoS 2 id -> TAKEN, CONFIRMED or RELEASED; from PUBLISH to PUBCOMP."""
        self._taken = 0
        """How many of `exactly_once` are TAKEN: those stand in `pending` too."""
        self._early: dict[int, int] | None = None
        self._said: dict[int, bytes] | None = None
        """Packet id -> reason code, perhaps with properties, of its acknowledgement, until that has left."""
        self.aliases: IncomingAliases | None = None
        """There when the client may use topic aliases."""

    @property
    def in_use(self) -> int:
        """Publishes with QoS > 0 that the client has not been answered: what its quota counts [4.9]."""
        return len(self.pending) + len(self.exactly_once) - self._taken

    def restore(self, packet_ids: Iterable[int]) -> None:
        """QoS 2 ids that the session's previous connection had confirmed."""
        self.exactly_once = dict.fromkeys(packet_ids, CONFIRMED)

    def say(self, packet_ids: Iterable[int], said: bytes) -> None:
        """The acknowledgements of these will have this reason code, perhaps with properties."""
        self._said = (self._said or {}) | dict.fromkeys(packet_ids, said)

    def acknowledge(self, packet_ids: Iterable[int], refusal: bytes = b"") -> bytes:
        """The acknowledgements that may leave now that these publishes are durable, or refused: `refusal` is then the
        reason code with its properties. LocalMisuse for an id nobody waits for.
        """
        confirmed = list(packet_ids)
        pending = self.pending
        if refusal:
            self.say(confirmed, refusal)
        if len(confirmed) == 1 and pending and pending[0] == confirmed[0] and not (self._early or self._said):
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
        """Take off `pending` the longest front whose ids have all been confirmed."""
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
        if not exactly_once and not self._said:
            return acknowledgements([PUBACK_WORD | packet_id for packet_id in packet_ids])
        return b"".join([self._answer(packet_id) for packet_id in packet_ids])

    def _answer(self, packet_id: int) -> bytes:
        """PUBACK or PUBREC of one publish; a refused QoS 2 id is free again at once."""
        said = self._said.pop(packet_id, b"") if self._said else b""
        word = PUBACK_WORD
        if self.exactly_once.get(packet_id) == TAKEN:
            word = PUBREC_WORD
            self._taken -= 1
            if said and said[0] >= FAILURE_MIN:
                del self.exactly_once[packet_id]
            else:  # the exchange goes on: PUBREL follows [MQTT-4.3.3-4]
                self.exactly_once[packet_id] = CONFIRMED
        if not said:
            return acknowledgements([word | packet_id])
        assert len(said) < 0x7E, "what is said is a code, or a code and a short reason"
        return bytes((word >> 24, 2 + len(said))) + packet_id.to_bytes(2, "big") + said

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
        """A QoS 2 PUBLISH came: whether it is new, and the PUBREC to repeat at once if it is an old one already
        confirmed.
        """
        if self.take_new(packet_id):
            return True, b""
        phase = self.exactly_once[packet_id]
        return False, acknowledgements([PUBREC_WORD | packet_id]) if phase == CONFIRMED else b""

    def release(self, packet_id: int) -> int | None:
        """PUBREL came: the phase the id was in; None when it is not known."""
        phase = self.exactly_once.get(packet_id)
        if phase == CONFIRMED:
            self.exactly_once[packet_id] = RELEASED
        return phase

    def complete(self, packet_ids: Iterable[int]) -> bytes:
        """The PUBCOMPs: these ids may carry new messages from now on."""
        words = []
        for packet_id in packet_ids:
            if self.exactly_once.get(packet_id) != RELEASED:
                raise LocalMisuse(f"packet id {packet_id} completed, but no PUBREL waits for it")
            del self.exactly_once[packet_id]
            words.append(PUBCOMP_WORD | packet_id)
        return acknowledgements(words)

    def confirmed(self) -> list[int]:
        """QoS 2 ids that are durable and not completed."""
        return [packet_id for packet_id, phase in self.exactly_once.items() if phase != TAKEN]
