"""Publishes received and not yet acknowledged: the order of PUBACK/PUBREC, and QoS 2 ids that may not be accepted
again.

Invariant: acknowledgements leave in the order of receipt [MQTT-4.6.0-2] [MQTT-4.6.0-3], whatever order the caller
confirms in; an id in `exactly_once` was handed to the caller once and is not handed out again before its PUBREL
[MQTT-4.3.3-2]. Idle cost: an empty list and an empty dict.
"""

from __future__ import annotations

from collections.abc import Iterable

from mqtt_proxy.mqtt.encode import PUBACK_WORD, PUBREC_WORD, acknowledgements
from remoting.protocol.errors import LocalMisuse


class Incoming:
    """The receiver's half of QoS 1 and QoS 2."""

    __slots__ = ("_early", "exactly_once", "pending")

    def __init__(self) -> None:
        self.pending: list[int] = []
        """Packet ids in order of receipt, from PUBLISH to PUBACK or PUBREC; the hot loop appends here."""
        self.exactly_once: dict[int, bool] = {}
        """QoS 2 id -> whether its PUBREC has been sent; from PUBLISH to PUBREL."""
        self._early: dict[int, int] = {}

    def acknowledge(self, packet_ids: Iterable[int]) -> bytes:
        """The acknowledgements that may leave now that these publishes are durable.

        LocalMisuse for an id nobody waits for.
        """
        confirmed = list(packet_ids)
        pending = self.pending
        if not self._early and pending[: len(confirmed)] == confirmed:
            del pending[: len(confirmed)]
            return self._encode(confirmed)
        early = self._early
        for packet_id in confirmed:
            early[packet_id] = early.get(packet_id, 0) + 1
            if pending.count(packet_id) < early[packet_id]:
                raise LocalMisuse(f"packet id {packet_id} acknowledged, but no PUBLISH waits for it")
        return self._encode(self._in_order())

    def _in_order(self) -> list[int]:
        """Take off `pending` the longest front whose ids have all been confirmed."""
        early = self._early
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
        if not exactly_once:
            return acknowledgements([PUBACK_WORD | packet_id for packet_id in packet_ids])
        words = []
        for packet_id in packet_ids:
            if exactly_once.get(packet_id) is False:
                exactly_once[packet_id] = True
                words.append(PUBREC_WORD | packet_id)
            else:
                words.append(PUBACK_WORD | packet_id)
        return acknowledgements(words)

    def receive_exactly_once(self, packet_id: int) -> tuple[bool, bytes]:
        """A QoS 2 PUBLISH came: whether it is new, and the PUBREC to repeat at once if it is an old one already
        confirmed.
        """
        confirmed = self.exactly_once.get(packet_id)
        if confirmed is None:
            self.exactly_once[packet_id] = False
            self.pending.append(packet_id)
            return True, b""
        return False, acknowledgements([PUBREC_WORD | packet_id]) if confirmed else b""

    def release(self, packet_id: int) -> None:
        """PUBREL came: the id may carry a new message from now on."""
        if self.exactly_once.get(packet_id):
            del self.exactly_once[packet_id]
