"""What one client publishes: judged, handed on, charged to its quotas, acknowledged when the broker has it.

A publish that may not be is refused in its acknowledgement to a client of MQTT 5 (with QoS 0 there is none: it is
dropped and counted) and closes the connection of a client of 3.1.1, which has no word for it.
Invariant: nothing is acknowledged that the broker has not confirmed; acknowledgements keep the order of receipt.
Loop rule: on the loop's thread.
"""

from __future__ import annotations

from collections.abc import Callable

from mqtt_proxy.bridge.pacing import Paced, nobody
from mqtt_proxy.bridge.permissions import Permissions
from mqtt_proxy.bridge.services import Services
from mqtt_proxy.bridge.wire import Wire
from mqtt_proxy.front.publish_rates import Publisher
from mqtt_proxy.mqtt.packets import LEVEL_3, Publish
from mqtt_proxy.mqtt.reason_codes import ReasonCode
from remoting.protocol.codes import ResponseCode
from runtime.logs import get_logger

LOG = get_logger("proxy.inbound")

REFUSAL_CODES = {
    ResponseCode.FLOW_CONTROL: ReasonCode.QUOTA_EXCEEDED,
    ResponseCode.NO_PERMISSION: ReasonCode.NOT_AUTHORIZED,
    ResponseCode.TOPIC_NOT_EXIST: ReasonCode.TOPIC_NAME_INVALID,
}
"""What the broker says of a message -> what its publisher is told; anything else is our own affair, 0x83."""


class Inbound(Paced):
    """The publishing half of one client."""

    __slots__ = (
        "_ended",
        "_give_up",
        "_may",
        "_publisher",
        "_retained_max",
        "_services",
        "_session",
        "_who",
        "_wire",
        "asks",
        "client_id",
        "exact",
    )

    def __init__(self, wire: Wire, services: Services, give_up: Callable[[str], None]) -> None:
        super().__init__(wire, services.quotas.rates, services.clock, services.metrics)
        self._wire = wire
        self._session = wire.session
        self._services = services
        self._publisher = services.publisher
        self._give_up = give_up
        self._ended = False
        self._may: Permissions | None = None
        self._who: Publisher | None = None
        self.asks = False
        """Whether the client is told to which of its messages nobody has subscribed; 3.1.1 has no word for it."""
        self._retained_max = services.config.quotas.retained_payload_bytes_max
        self.client_id = b""
        self.exact = False
        """Whether the broker notes the packet ids of QoS 2: the session outlives its connection."""

    def begin(self, may: Permissions, client_id: str, user: str | None, *, exact: bool) -> None:
        """Whose publishes these are; `exact`: the session outlives its connection."""
        self._may, self.client_id, self.exact = may, client_id.encode(), exact
        self.asks = self._services.config.report_no_subscribers and self._session.level != LEVEL_3
        if self._rates.active:
            self._who = Publisher(client_id, user, self._wire.peer_address)

    def publish(self, publishes: list[Publish]) -> None:
        """Take over what the client published."""
        self._count_bytes()
        if self._ended:
            return
        allowed = self._sift(publishes)
        if self._retained_max:
            allowed = self._without_large_retained(allowed)
        if allowed:
            self._publisher.take(self, self.client_id, allowed, self.exact)
        if self._rates.active and not self._ended:
            assert self._who is not None
            self.charge(self._who, publishes)

    def _count_bytes(self) -> None:
        """Count what the socket brought in PUBLISHes since the last time."""
        session = self._session
        self._services.metrics.published_bytes.value += session.publish_bytes
        session.publish_bytes = 0

    def _sift(self, publishes: list[Publish]) -> list[Publish]:
        """Those that may be published; the others are refused."""
        assert self._may is not None
        if self._session.level == LEVEL_3:
            first = self._may.first_refused(publishes)
            if first is None:
                return publishes
            self._give_up(f"not_authorized: publish to {first.topic.decode('utf-8', 'replace')!r}")
            return []
        allowed, refused = self._may.sift(publishes)
        refused_ids = [one.packet_id for one in refused if one.qos]
        if refused_ids:
            self._session.refuse_publishes(refused_ids, ReasonCode.NOT_AUTHORIZED)
            self._wire.flush()
        return allowed

    def _without_large_retained(self, publishes: list[Publish]) -> list[Publish]:
        """Those that are not retained or small enough to be; the others are refused."""
        large = [one for one in publishes if one.retain and len(one.payload) > self._retained_max]
        if not large:
            return publishes
        self.count_refused(len(large), "retained_payload", f"{large[0].topic!r}: {len(large[0].payload)} bytes")
        if self._session.level == LEVEL_3:
            self._give_up(f"quota_exceeded: retained payloads have at most {self._retained_max} bytes")
            return []
        refused = [one.packet_id for one in large if one.qos]
        if refused:
            self._session.refuse_publishes(
                refused, ReasonCode.QUOTA_EXCEEDED, "the payload is too large to be retained"
            )
            self._wire.flush()
        return [one for one in publishes if one not in large]

    def count_refused(self, count: int, reason: str, detail: str) -> None:
        """Count and log publishes that were refused because of a quota."""
        self._services.metrics.refused_publishes.child(reason).value += count
        client_id = self.client_id.decode()
        LOG.info("publish_refused", client_id=client_id, messages=count, reason=reason, detail=detail)

    def end(self) -> None:
        """The connection has ended."""
        self._count_bytes()
        self._ended = True
        if self.exact and self._session.incoming.pending:
            # Before the session is given back, or the client has to send these QoS 2 messages again.
            self._services.publisher.hurry()
        self.stop_pacing()
        self._services.publisher.forget(self)

    def let_go(self) -> None:
        """Nobody is there any more to give up."""
        self._give_up = nobody

    # -- from the publisher --------------------------------------------------------------------------------------------

    def unwanted(self, packet_ids: list[int]) -> None:
        """Nobody has subscribed to these, which are about to be confirmed."""
        self._session.say_unwanted(packet_ids)

    def confirmed(self, packet_ids: list[int]) -> None:
        """The broker holds these durably: acknowledge them."""
        if packet_ids:
            self._session.acknowledge(packet_ids)
            self._wire.flush()

    def refused(self, packet_id: int, code: int, reason: str) -> None:
        """The broker did not accept this one message: MQTT 5 has a word for that, 3.1.1 has not."""
        if self._session.level == LEVEL_3:
            self._give_up(reason)
        elif packet_id:
            said = REFUSAL_CODES.get(code, ReasonCode.IMPLEMENTATION_SPECIFIC_ERROR)
            self._session.refuse_publishes((packet_id,), said, reason.partition(": ")[2])
            self._wire.flush()

    def rejected(self, reason: str) -> None:
        """The broker did not accept some of what this client published."""
        self._give_up(reason)
