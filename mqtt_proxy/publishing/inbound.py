"""The publishes of one client: checked, passed on, charged to its quotas, acknowledged when the broker has stored them;
and when its socket is not read (`Pacing`).

A publish that is not allowed is refused in its acknowledgement to a client of MQTT 5 (with QoS 0 there is none: it is
dropped and counted) and closes the connection of a client of 3.1.1, which has no code for it. A client is not read
while its publishes wait for the broker, or when it has used up a publish quota. Only the reading of its socket is
paused: TCP slows the publisher down, nothing is lost, and its keep-alive is suspended meanwhile. What was read before
the pause is published.
Invariant: nothing is acknowledged that the broker has not confirmed; acknowledgements keep the order of receipt; the
socket is read exactly while no reason for a pause holds, and after `stop` nothing is resumed. Loop rule: on the loop's
thread.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from mqtt_proxy.access.permissions import Permissions
from mqtt_proxy.listening.connection import ClientConnection
from mqtt_proxy.metrics import ProxyMetrics
from mqtt_proxy.mqtt.codec.packets import LEVEL_3, VERSIONS, Publish
from mqtt_proxy.mqtt.codec.reason_codes import ReasonCode
from mqtt_proxy.publishing.publisher import Publisher
from mqtt_proxy.quotas import Pause, PublishRates, RatedPublisher
from remoting.protocol.frames.codes import ResponseCode
from runtime.clock import Clock
from runtime.logs import get_logger

BROKER, QUOTA = 1, 2  # why a client is not read

QUOTA_LOG = get_logger("proxy.quotas")


class PausableSocket(Protocol):
    """A socket whose input can be paused."""

    def pause_reading(self) -> None:
        """Stop reading for now."""

    def resume_reading(self) -> None:
        """Take up input after `pause_reading`."""


def ignore(_reason: str) -> None:
    """Gives up nothing: in the place of a client that has ended."""


class Pacing:
    """When one client's socket is read."""

    __slots__ = (
        "_clock",
        "_logged",
        "_metrics",
        "_over",
        "_paused_by",
        "_rates",
        "_readable",
        "_timer",
    )  # fmt: skip

    def __init__(self, readable: PausableSocket, rates: PublishRates, clock: Clock, metrics: ProxyMetrics) -> None:
        self._readable = readable
        self._rates = rates
        self._clock = clock
        self._metrics = metrics
        self._paused_by = 0
        self._timer: asyncio.TimerHandle | None = None
        self._over = False
        self._logged = False

    def pause(self) -> None:
        """Too much is published and not confirmed, over all clients."""
        self._stop_for(BROKER)

    def release(self) -> None:
        """The broker has caught up."""
        self._go_on(BROKER)

    def charge(self, who: RatedPublisher, publishes: Sequence[Publish]) -> None:
        """Charge publishes to the quotas of their publisher, and pause reading when that was too much."""
        size_bytes = sum([len(one.topic) + len(one.payload) for one in publishes])
        pause = self._rates.charge(who, len(publishes), size_bytes, self._clock.monotonic_ns() // 1_000_000)
        if pause is not None and not self._over:
            self._report(who, pause)
            if self._timer is not None:
                self._timer.cancel()
            self._timer = asyncio.get_running_loop().call_later(pause.ms / 1_000, self._go_on, QUOTA)
            self._stop_for(QUOTA)

    def stop(self) -> None:
        """The connection has ended."""
        self._over = True
        if self._timer is not None:
            self._timer.cancel()

    def _report(self, who: RatedPublisher, pause: Pause) -> None:
        self._metrics.publishes.rate_pauses.child(pause.quota).value += 1
        if not self._logged:
            self._logged = True  # once per connection: the counter has the rest
            QUOTA_LOG.info(
                "publish_rate_reached", quota=pause.quota, client_id=who.client_id, user=who.user, peer=who.address,
                pause_ms=pause.ms,
            )  # fmt: skip

    def _stop_for(self, why: int) -> None:
        if not self._over:
            if not self._paused_by:
                self._readable.pause_reading()
            self._paused_by |= why

    def _go_on(self, why: int) -> None:
        if self._paused_by & why and not self._over:
            self._paused_by &= ~why
            if not self._paused_by:
                self._readable.resume_reading()


LOG = get_logger("proxy.inbound")

REFUSAL_CODES = {
    ResponseCode.FLOW_CONTROL: ReasonCode.QUOTA_EXCEEDED,
    ResponseCode.NO_PERMISSION: ReasonCode.NOT_AUTHORIZED,
    ResponseCode.TOPIC_NOT_EXIST: ReasonCode.TOPIC_NAME_INVALID,
}
"""Response code of the broker for a message -> reason code for its publisher; for any other, 0x83."""


@dataclass(frozen=True, slots=True)
class PublishingParts:
    """Shared by all clients that publish."""

    publisher: Publisher
    rates: PublishRates
    clock: Clock
    metrics: ProxyMetrics
    retained_payload_bytes_max: int
    report_no_subscribers: bool


class Inbound:
    """The publishing half of one client."""

    __slots__ = (
        "_ended",
        "_flow",
        "_give_up",
        "_may",
        "_pacing",
        "_parts",
        "_publisher",
        "_rated",
        "_retained_max",
        "_session",
        "_who",
        "_wire",
        "asks",
        "client_id",
        "counters",
        "exact",
    )

    def __init__(self, wire: ClientConnection, parts: PublishingParts, give_up: Callable[[str], None]) -> None:
        self._parts = parts
        self._pacing = Pacing(wire, parts.rates, parts.clock, parts.metrics)
        self._rated = parts.rates.active
        self._wire = wire
        self._flow = wire.flow_in
        self._session = wire.session
        self._publisher = parts.publisher
        self._give_up = give_up
        self._ended = False
        self._may: Permissions | None = None
        self._who: RatedPublisher | None = None
        self.asks = False
        """Whether the client is informed which of its messages have no subscribers; 3.1.1 has no code for it."""
        self._retained_max = parts.retained_payload_bytes_max
        self.counters = parts.metrics.clients(wire.peer.listener, VERSIONS[wire.session.state.terms.level])
        """Where its messages are counted."""
        self.client_id = b""
        self.exact = False
        """Whether the broker notes the packet ids of QoS 2: the session outlives its connection."""

    def begin(self, may: Permissions, client_id: str, user: str | None, *, exact: bool) -> None:
        """Set the publisher; `exact`: the session outlives its connection."""
        self._may, self.client_id, self.exact = may, client_id.encode(), exact
        self.asks = self._parts.report_no_subscribers and self._session.state.terms.level != LEVEL_3
        if self._rated:
            self._who = RatedPublisher(client_id, user, self._wire.peer.address)

    def publish(self, publishes: list[Publish]) -> None:
        """Accept what the client published."""
        self._flow.add_messages(len(publishes))
        self._count_bytes()
        if self._ended:
            return
        allowed = self._sift(publishes)
        if self._retained_max:
            allowed = self._without_large_retained(allowed)
        if allowed:
            self._publisher.take(self, self.client_id, allowed, self.exact)
        if self._rated and not self._ended:
            assert self._who is not None
            self._pacing.charge(self._who, publishes)

    def _count_bytes(self) -> None:
        """Count the bytes of PUBLISHes read since the last call."""
        state = self._session.state
        self._publisher.counts.bytes_in.value += state.publish_bytes
        state.publish_bytes = 0

    def _sift(self, publishes: list[Publish]) -> list[Publish]:
        """The publishes that are allowed; the others are refused."""
        assert self._may is not None
        if self._session.state.terms.level == LEVEL_3:
            first = self._may.first_refused(publishes)
            if first is None:
                return publishes
            self._give_up(f"not_authorized: publish to {first.topic.decode('utf-8', 'replace')!r}")
            return []
        allowed, refused = self._may.sift(publishes)
        refused_ids = [one.packet_id for one in refused if one.qos]
        if refused_ids:
            self._session.answers.refuse_publishes(refused_ids, ReasonCode.NOT_AUTHORIZED)
            self._wire.flush()
        return allowed

    def _without_large_retained(self, publishes: list[Publish]) -> list[Publish]:
        """The publishes that are not retained or small enough; the others are refused."""
        large = [one for one in publishes if one.retain and len(one.payload) > self._retained_max]
        if not large:
            return publishes
        self.count_refused(len(large), "retained_payload", f"{large[0].topic!r}: {len(large[0].payload)} bytes")
        if self._session.state.terms.level == LEVEL_3:
            self._give_up(f"quota_exceeded: retained payloads have at most {self._retained_max} bytes")
            return []
        refused = [one.packet_id for one in large if one.qos]
        if refused:
            self._session.answers.refuse_publishes(
                refused, ReasonCode.QUOTA_EXCEEDED, "the payload is too large to be retained"
            )
            self._wire.flush()
        return [one for one in publishes if one not in large]

    def count_refused(self, count: int, reason: str, detail: str) -> None:
        """Count and log publishes that were refused because of a quota."""
        self._parts.metrics.publishes.refused.child(reason).value += count
        client_id = self.client_id.decode()
        LOG.info("publish_refused", client_id=client_id, messages=count, reason=reason, detail=detail)

    def end(self) -> None:
        """The connection has ended."""
        self._count_bytes()
        self._ended = True
        if self.exact and self._session.state.incoming.pending:
            # Before the session is closed, or the client has to send these QoS 2 messages again.
            self._publisher.send_now()
        self._pacing.stop()
        self._publisher.forget(self)

    def let_go(self) -> None:
        """Drop the reference to the client."""
        self._give_up = ignore

    def pause(self) -> None:
        """Too much is published and not confirmed, over all clients."""
        self._pacing.pause()

    def release(self) -> None:
        """The broker has caught up."""
        self._pacing.release()

    # -- from the publisher --------------------------------------------------------------------------------------------

    def unwanted(self, packet_ids: list[int]) -> None:
        """These have no subscribers, and are about to be confirmed."""
        self._session.answers.say_unwanted(packet_ids)

    def confirmed(self, packet_ids: list[int]) -> None:
        """The broker has stored these durably: acknowledge them."""
        if packet_ids:
            self._session.answers.acknowledge(packet_ids)
            self._wire.flush()

    def refused(self, packet_id: int, code: int, reason: str) -> None:
        """The broker did not accept this one message: MQTT 5 has a code for that, 3.1.1 has not."""
        if self._session.state.terms.level == LEVEL_3:
            self._give_up(reason)
        elif packet_id:
            reason_code = REFUSAL_CODES.get(code, ReasonCode.IMPLEMENTATION_SPECIFIC_ERROR)
            self._session.answers.refuse_publishes((packet_id,), reason_code, reason.partition(": ")[2])
            self._wire.flush()

    def rejected(self, reason: str) -> None:
        """The broker did not accept some of what this client published."""
        self._give_up(reason)
