"""The part of a session that sends messages: PUBLISH of either level, the QoS 2 exchange, what was in flight.

    QoS 2, nothing to be made durable   deliver(qos=2) ..... Received -> release(ids) ..... Acknowledged
    QoS 2, each step made durable       take_steps(), deliver(qos=2), then send_parked(ids) ..... Received, then release

Invariant: with QoS > 0 no more is in flight than the window and the client's Receive Maximum allow; no packet is larger
than the client's Maximum Packet Size: such a message returns TOO_LARGE, is not sent and counts as done [MQTT-3.1.2-25].
Calls after the end are ignored. Loop rule: one event loop, no locks.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from mqtt_proxy.mqtt.codec.encode import PUBREL_WORD, acknowledgements, publish_head, publish_properties
from mqtt_proxy.mqtt.codec.packets import LEVEL_3
from mqtt_proxy.mqtt.codec.wire import encode_binary, encode_length
from mqtt_proxy.mqtt.session import in_flight
from mqtt_proxy.mqtt.session.in_flight import Parts, Qos2Steps
from mqtt_proxy.mqtt.session.session_state import SessionState, Status
from remoting.protocol.errors import LocalMisuse
from remoting.protocol.records.properties import MessageProperties

TOO_LARGE = -1
"""Result of a delivery that is too large for the client; nothing was sent."""

_CONNECTED = Status.CONNECTED  # looking up a member of an enumeration is slow
_LEVEL_5_EXTRA_BYTES = 3
"""What stands between head and payload of a plain delivery of level 5: packet id and an empty property block."""


class Deliveries:
    """Messages to the client of one session."""

    __slots__ = ("_session",)

    def __init__(self, session: SessionState) -> None:
        self._session = session

    @property
    def window_free(self) -> int:
        """Deliveries with QoS > 0 that may be sent now."""
        return self._session.outgoing.free

    @property
    def is_plain(self) -> bool:
        """Whether `deliver_prepared` suffices for a message without properties: no topic aliases are in use."""
        return self._session.outgoing.aliases is None

    def deliver(
        self,
        topic: bytes,
        payload: bytes | memoryview,
        qos: int,
        retain: bool,
        dup: bool,
        token: object,
        properties: MessageProperties | None = None,
        subscription_ids: Sequence[int] = (),
        expiry_left_s: int | None = None,
    ) -> int:
        """Send a PUBLISH; its packet id, 0 for QoS 0, TOO_LARGE when the client cannot take it. `token` is returned in
        Acknowledged. LocalMisuse when the window is full.
        """
        session = self._session
        level = session.terms.level
        if level == LEVEL_3 or (
            session.outgoing.aliases is None and properties is None and expiry_left_s is None and not subscription_ids
        ):
            head = publish_head(topic, len(payload), qos, retain, dup, level)
            return self.deliver_prepared(head, payload, qos, token)
        if not session.expects(_CONNECTED):
            return 0
        framed = self._frame(topic, len(payload), qos, retain, dup, properties, subscription_ids, expiry_left_s)
        if framed is None:
            return TOO_LARGE
        packet_id = session.outgoing.assign(token) if qos else 0
        if qos == 2:
            before, behind = framed
            self._put_exact(packet_id, token, (before, packet_id.to_bytes(2, "big") + behind, payload))
        else:
            self._put(framed, packet_id, payload)
        return packet_id

    def deliver_prepared(self, head: bytes, payload: bytes | memoryview, qos: int, token: object) -> int:
        """`deliver` with a head from `encode.publish_head` for this session's level: a fan-out makes it once for all
        receivers.
        """
        session = self._session
        if session.status is not _CONNECTED and not session.expects(_CONNECTED):
            return 0
        at_level_3 = session.terms.level == LEVEL_3
        if not at_level_3:
            extra = _LEVEL_5_EXTRA_BYTES if qos else 0
            if len(head) + len(payload) + extra > session.terms.packet_size_out_max:
                return TOO_LARGE
        if qos == 0:
            self._leave((head, payload))
            return 0
        packet_id = session.outgoing.assign(token)
        parts = (head, packet_id.to_bytes(2, "big") if at_level_3 else (packet_id << 8).to_bytes(3, "big"), payload)
        if qos == 2:
            self._put_exact(packet_id, token, parts)
        else:
            self._leave(parts)
        return packet_id

    def _leave(self, parts: Parts) -> None:
        """Send a PUBLISH, or let it stand behind what is parked."""
        session = self._session
        lane = session.outgoing.lane()
        if lane is None:
            session.out += parts
        else:
            lane.follow(parts)

    def _put_exact(self, packet_id: int, token: object, parts: Parts) -> None:
        """Send a QoS 2 PUBLISH, or park it for an owner that notes the steps."""
        out = self._session.outgoing
        if out.steps is None:
            out.enter(packet_id, in_flight.PUBLISHED)
            self._session.out += parts
        else:
            out.enter(packet_id, in_flight.RESERVED)
            out.steps.park(packet_id, token, parts)

    # -- QoS 2 in steps ------------------------------------------------------------------------------------------------

    def take_steps(self) -> Qos2Steps:
        """From now on a QoS 2 PUBLISH waits for `send_parked`; the owner reads the steps from the returned object."""
        steps = self._session.outgoing.steps = Qos2Steps()
        return steps

    def send_parked(self, packet_ids: Iterable[int]) -> None:
        """The ids and their messages are noted durably: send them, and what stood behind them."""
        session = self._session
        if session.status is not _CONNECTED or session.outgoing.steps is None:
            return
        for number, parts in session.outgoing.steps.unpark(packet_ids):
            if number > 0:
                session.outgoing.advance(number, in_flight.RESERVED, in_flight.PUBLISHED)
            session.out += parts

    def release(self, packet_ids: Iterable[int]) -> None:
        """PUBREL: it is noted durably that the client has these."""
        session = self._session
        if session.status is not _CONNECTED:
            return
        ids = list(packet_ids)
        for packet_id in ids:
            session.outgoing.advance(packet_id, in_flight.RECEIVED, in_flight.RELEASED)
        session.out.append(acknowledgements([PUBREL_WORD | packet_id for packet_id in ids]))

    # -- a session that is resumed -------------------------------------------------------------------------------------

    def redeliver(
        self,
        packet_id: int,
        topic: bytes,
        payload: bytes | memoryview,
        qos: int,
        retain: bool,
        token: object,
        properties: MessageProperties | None = None,
        subscription_ids: Sequence[int] = (),
        expiry_left_s: int | None = None,
    ) -> int:
        """Send a delivery of the resumed session again: DUP set [MQTT-3.3.1-1], its original id [MQTT-4.4.0-1]. It
        waits inside while the client's Receive Maximum has no room. TOO_LARGE as in `deliver`; its id is free then.
        """
        if qos not in (1, 2):
            raise LocalMisuse(f"a delivery in flight has QoS 1 or 2, not {qos}")
        session = self._session
        if not session.expects(_CONNECTED):
            return 0
        session.outgoing.replace(packet_id, token, qos)
        framed = self._frame(topic, len(payload), qos, retain, True, properties, subscription_ids, expiry_left_s)
        if framed is None:
            session.outgoing.forget(packet_id)
            return TOO_LARGE
        before = len(session.out)
        self._put(framed, packet_id, payload)
        if len(session.outgoing.window) > session.outgoing.in_flight_max:
            publish = b"".join(session.out[before:])
            if session.outgoing.keep(packet_id, publish):
                del session.out[before:]
        return packet_id

    def forget(self, packet_id: int) -> None:
        """Free the window slot of a resumed delivery whose message no longer exists."""
        self._session.outgoing.forget(packet_id)

    def inflight(self) -> list[tuple[int, object, int]]:
        """(packet id, token, PHASE_PUBLISH or PHASE_PUBREL) of the deliveries not yet acknowledged, in order of
        sending.
        """
        return self._session.outgoing.inflight()

    # -- inside --------------------------------------------------------------------------------------------------------

    def _frame(
        self,
        topic: bytes,
        payload_size_bytes: int,
        qos: int,
        retain: bool,
        dup: bool,
        properties: MessageProperties | None,
        subscription_ids: Sequence[int],
        expiry_left_s: int | None,
    ) -> tuple[bytes, bytes] | None:
        """What stands before and behind the packet id of a PUBLISH; None when it is too large for the client."""
        terms, aliases = self._session.terms, self._session.outgoing.aliases
        if terms.level == LEVEL_3:
            return publish_head(topic, payload_size_bytes, qos, retain, dup), b""
        # A resend or a parked message may have to wait, so it must not depend on packets sent before it.
        waits = dup or (qos == 2 and self._session.outgoing.steps is not None)
        alias, known = aliases.look_up(topic) if aliases is not None and not waits else (0, False)
        block = publish_properties(
            properties, expiry_left_s=expiry_left_s, alias=alias, subscription_ids=subscription_ids
        )
        name = b"" if known else topic
        remaining = 2 + len(name) + (2 if qos else 0) + len(block) + payload_size_bytes
        length = encode_length(remaining)
        if 1 + len(length) + remaining > terms.packet_size_out_max:
            return None
        if alias and not known:
            assert aliases is not None
            aliases.given(topic, alias)
        first = 0x30 | dup << 3 | qos << 1 | retain
        return bytes((first,)) + length + encode_binary(name), block

    def _put(self, framed: tuple[bytes, bytes], packet_id: int, payload: bytes | memoryview) -> None:
        before, behind = framed
        self._leave((before, packet_id.to_bytes(2, "big") + behind if packet_id else behind, payload))
