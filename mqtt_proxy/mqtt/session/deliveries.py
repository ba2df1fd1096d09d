"""The session's half that sends messages: PUBLISH of either level, the QoS 2 exchange, what was in flight.

    QoS 2, nothing to be made durable   deliver(qos=2) ..... Received -> release(ids) ..... Acknowledged
    QoS 2, each step made durable       take_steps(), deliver(qos=2), then send_parked(ids) ..... Received, then release

Invariant: with QoS > 0 no more is under way than the window and the client's Receive Maximum allow; no packet is larger
than the client's Maximum Packet Size: such a message answers TOO_LARGE, is not sent and counts as done [MQTT-3.1.2-25].
Calls after the end are ignored. Loop rule: one event loop, no locks.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from mqtt_proxy.mqtt.codec.encode import PUBREL_WORD, acknowledgements, publish_head
from mqtt_proxy.mqtt.codec.encode5 import publish_properties
from mqtt_proxy.mqtt.codec.packets import LEVEL_3
from mqtt_proxy.mqtt.codec.wire import encode_binary, encode_length
from mqtt_proxy.mqtt.session import outgoing
from mqtt_proxy.mqtt.session.qos2_steps import Parts, Qos2Steps
from mqtt_proxy.mqtt.session.session_state import SessionState
from mqtt_proxy.mqtt.session.states import State
from remoting.protocol.errors import LocalMisuse
from remoting.protocol.records.mqtt_properties import MessageProperties

TOO_LARGE = -1
"""What a delivery answers that its client could not take; nothing was sent."""

_LEVEL_5_EXTRA_BYTES = 3
"""What stands between head and payload of a plain delivery of level 5: packet id and an empty property block."""


class Deliveries(SessionState):
    """Messages to the client."""

    __slots__ = ()

    @property
    def window_free(self) -> int:
        """Deliveries with QoS > 0 that may be sent now."""
        return self.outgoing.free

    @property
    def is_plain(self) -> bool:
        """Whether `deliver_prepared` says all that a message without properties needs: no topic aliases are in use."""
        return self.aliases_out is None

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
        """Send a PUBLISH; its packet id, 0 for QoS 0, TOO_LARGE when the client cannot take it. `token` comes back in
        Acknowledged. LocalMisuse when the window is full.
        """
        if self.level == LEVEL_3 or (
            self.aliases_out is None and properties is None and expiry_left_s is None and not subscription_ids
        ):
            head = publish_head(topic, len(payload), qos, retain, dup, self.level)
            return self.deliver_prepared(head, payload, qos, token)
        if not self.answers(State.CONNECTED):
            return 0
        framed = self._frame(topic, len(payload), qos, retain, dup, properties, subscription_ids, expiry_left_s)
        if framed is None:
            return TOO_LARGE
        packet_id = self.outgoing.assign(token) if qos else 0
        if qos == 2:
            before, behind = framed
            self._put_exact(packet_id, token, (before, packet_id.to_bytes(2, "big") + behind, payload))
        else:
            self._put(framed, packet_id, payload)
        return packet_id

    def deliver_prepared(self, head: bytes, payload: bytes | memoryview, qos: int, token: object) -> int:
        """`deliver` with the head made before by `encode.publish_head` for this session's level: a fan-out makes it
        once for all receivers.
        """
        if self.state is not State.CONNECTED and not self.answers(State.CONNECTED):
            return 0
        if self.level == LEVEL_3:
            if qos == 0:
                self.out += (head, payload)
                return 0
            packet_id = self.outgoing.assign(token)
            if qos == 2:
                self._put_exact(packet_id, token, (head, packet_id.to_bytes(2, "big"), payload))
            else:
                self.out += (head, packet_id.to_bytes(2, "big"), payload)
            return packet_id
        extra = _LEVEL_5_EXTRA_BYTES if qos else 0
        if len(head) + len(payload) + extra > self.packet_size_out_max:
            return TOO_LARGE
        if qos == 0:
            self.out += (head, payload)
            return 0
        packet_id = self.outgoing.assign(token)
        if qos == 2:
            self._put_exact(packet_id, token, (head, (packet_id << 8).to_bytes(3, "big"), payload))
        else:
            self.out += (head, (packet_id << 8).to_bytes(3, "big"), payload)
        return packet_id

    def _put_exact(self, packet_id: int, token: object, parts: Parts) -> None:
        """Send a QoS 2 PUBLISH, or park it for an owner who takes steps."""
        if self.exact is None:
            self.outgoing.enter(packet_id, outgoing.PUBLISHED)
            self.out += parts
        else:
            self.outgoing.enter(packet_id, outgoing.RESERVED)
            self.exact.park(packet_id, token, parts)

    # -- QoS 2 in steps ------------------------------------------------------------------------------------------------

    def take_steps(self) -> Qos2Steps:
        """From now on a QoS 2 PUBLISH waits for `send_parked`; the owner looks into what this returns."""
        self.exact = Qos2Steps()
        return self.exact

    def send_parked(self, packet_ids: Iterable[int]) -> None:
        """It is durable which messages these ids are: send them."""
        if self.state is not State.CONNECTED or self.exact is None:
            return
        for packet_id, parts in self.exact.unpark(packet_ids):
            self.outgoing.advance(packet_id, outgoing.RESERVED, outgoing.PUBLISHED)
            self.out += parts

    def release(self, packet_ids: Iterable[int]) -> None:
        """PUBREL: it is durable that the client has these."""
        if self.state is not State.CONNECTED:
            return
        ids = list(packet_ids)
        for packet_id in ids:
            self.outgoing.advance(packet_id, outgoing.RECEIVED, outgoing.RELEASED)
        self.out.append(acknowledgements([PUBREL_WORD | packet_id for packet_id in ids]))

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
        if not self.answers(State.CONNECTED):
            return 0
        self.outgoing.replace(packet_id, token, qos)
        framed = self._frame(topic, len(payload), qos, retain, True, properties, subscription_ids, expiry_left_s)
        if framed is None:
            self.outgoing.forget(packet_id)
            return TOO_LARGE
        before = len(self.out)
        self._put(framed, packet_id, payload)
        if len(self.outgoing.window) > self.outgoing.in_flight_max:
            publish = b"".join(self.out[before:])
            if self.outgoing.hold(packet_id, publish):
                del self.out[before:]
        return packet_id

    def forget(self, packet_id: int) -> None:
        """Free the window slot of a resumed delivery whose message no longer exists."""
        self.outgoing.forget(packet_id)

    def inflight(self) -> list[tuple[int, object, int]]:
        """(packet id, token, PHASE_PUBLISH or PHASE_PUBREL) of the deliveries not yet acknowledged, in order of
        sending.
        """
        return self.outgoing.inflight()

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
        if self.level == LEVEL_3:
            return publish_head(topic, payload_size_bytes, qos, retain, dup), b""
        # A resend or a parked message may have to wait, so it must not depend on what is said before it.
        waits = dup or (qos == 2 and self.exact is not None)
        alias, known = self.aliases_out.look_up(topic) if self.aliases_out is not None and not waits else (0, False)
        block = publish_properties(
            properties, expiry_left_s=expiry_left_s, alias=alias, subscription_ids=subscription_ids
        )
        name = b"" if known else topic
        remaining = 2 + len(name) + (2 if qos else 0) + len(block) + payload_size_bytes
        length = encode_length(remaining)
        if 1 + len(length) + remaining > self.packet_size_out_max:
            return None
        if alias and not known:
            assert self.aliases_out is not None
            self.aliases_out.given(topic, alias)
        first = 0x30 | dup << 3 | qos << 1 | retain
        return bytes((first,)) + length + encode_binary(name), block

    def _put(self, framed: tuple[bytes, bytes], packet_id: int, payload: bytes | memoryview) -> None:
        before, behind = framed
        self.out += (before, packet_id.to_bytes(2, "big") + behind if packet_id else behind, payload)
