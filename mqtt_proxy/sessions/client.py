"""One MQTT client of the proxy: takes the session core's events and passes each to the part that handles it.

    CONNECT -> `connecting`: authenticate -> own the client id -> SESSION_OPEN -> CONNACK -> deliver
    close   -> release the client id -> SESSION_CLOSE with offsets and deliveries in flight; the will is the broker's

Invariant: after `_end` nothing is sent to the session, and the broker was informed about the session exactly once. Loop
rule: on the loop's thread; code that waited for the broker checks whether the client is still connected.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any

from mqtt_proxy.access import admission
from mqtt_proxy.access.admission import Dialog
from mqtt_proxy.access.permissions import Permissions
from mqtt_proxy.delivery.delivery import Delivery
from mqtt_proxy.delivery.offsets import UNKNOWN
from mqtt_proxy.delivery.source import Source
from mqtt_proxy.link import LinkDownError
from mqtt_proxy.listening.connection import ClientConnection
from mqtt_proxy.mqtt.codec.reason_codes import ReasonCode
from mqtt_proxy.mqtt.session.events import (
    Acknowledged,
    AuthReceived,
    ConnectRequested,
    Disconnected,
    Event,
    PublishBatch,
    PublishRefused,
    Received,
    Released,
    SubscribeRequested,
    UnsubscribeRequested,
    Violated,
)
from mqtt_proxy.mqtt.session.session_state import Status
from mqtt_proxy.publishing.inbound import Inbound
from mqtt_proxy.sessions.connecting import Connecting
from mqtt_proxy.sessions.ownership import SessionOwnership
from mqtt_proxy.sessions.qos2 import Qos2Exchanges
from mqtt_proxy.sessions.services import Services
from mqtt_proxy.subscriptions import PendingSubscribe, Subscriptions
from remoting.access.rules import Shown
from remoting.protocol.bodies.session_body import SessionOpened, Subscribed
from remoting.protocol.errors import LightMQError, Refused
from remoting.protocol.frames.codes import ResponseCode
from runtime.logs import get_logger

LOG = get_logger("proxy.client")
ELSEWHERE = "taken_over: the client id connected through another proxy"


class Client:
    """The handler of one connection."""

    __slots__ = (
        "_asked_epoch",
        "_client_id",
        "_delivery",
        "_dialog",
        "_ended",
        "_exact",
        "_fenced_epoch",
        "_inbound",
        "_may",
        "_ownership",
        "_services",
        "_session",
        "_subscriptions",
        "_unbegun",
        "_wire",
        "since_ms",
        "user",
    )  # fmt: skip

    def __init__(self, wire: ClientConnection, services: Services) -> None:
        self._wire = wire
        self._session = wire.session
        self._services = services
        self._may: Permissions | None = None
        """Set once the CONNECT is admitted."""
        self._client_id = ""
        self.user: str | None = None
        """The user of the session; None for an anonymous client."""
        self.since_ms = 0
        """When its CONNECT was admitted, ms since 1970."""
        self._ownership = SessionOwnership(services)
        self._ended = False
        self._fenced_epoch = 0
        """The newest epoch of which another connection has the session."""
        self._asked_epoch = 0
        """The newest epoch whose session is to be handed in for another connection."""
        self._unbegun = 0
        """UNSUBSCRIBEs whose request has not been sent yet; later requests must not overtake them."""
        # Each of these is created when needed: most clients of a fleet prove nothing with AUTH and publish nothing.
        self._dialog: Dialog | None = None
        self._inbound: Inbound | None = None
        self._exact: Qos2Exchanges | None = None
        """Set when the session outlives the connection."""
        self._delivery: Delivery | None = None
        self._subscriptions: Subscriptions | None = None

    # -- from the connection -------------------------------------------------------------------------------------------

    def on_events(self, events: list[Event]) -> None:
        """Events of one read."""
        for event in events:
            kind = type(event)
            if kind is PublishBatch:  # these two are nearly all events
                self._published(event)  # type: ignore[arg-type]  # of this kind
            elif kind is Acknowledged:
                self._acknowledged(event)  # type: ignore[arg-type]
            else:
                _HANDLERS[kind](self, event)

    def on_writable(self, writable: bool) -> None:
        """The socket accepts deliveries again, or no longer."""
        if self._delivery is not None:
            self._delivery.set_writable(writable)

    def on_closed(self, reason: str, will_due: bool) -> None:
        """The connection has ended."""
        self._end(reason, will_due=will_due, fenced=False)

    def _published(self, event: PublishBatch) -> None:
        if self._unbegun:
            self._services.spawn(self._publish_behind(event))
            return
        inbound = self._inbound
        if inbound is None:
            inbound = self._publishing()
        inbound.publish(event.publishes)

    async def _publish_behind(self, event: PublishBatch) -> None:
        self._publishing().publish(
            event.publishes
        )  # after what came before it: tasks begin in the order of their creation

    def _publish_refused(self, event: PublishRefused) -> None:
        self._wire.flow_in.add_messages(1)
        self._publishing().count_refused(1, event.reason, event.detail)

    def _publishing(self) -> Inbound:
        """Created when something is published."""
        inbound = self._inbound
        if inbound is None:
            assert self._may is not None
            inbound = self._inbound = Inbound(self._wire, self._services.publishing, self.give_up)
            inbound.begin(self._may, self._client_id, self.user, exact=self._ownership.durable)
            if self._ended:
                inbound.end()
        return inbound

    # -- connecting ----------------------------------------------------------------------------------------------------

    def _connect(self, event: ConnectRequested) -> None:
        self._client_id = event.client_id
        Connecting(self, self._wire, self._services, self._ownership, event).begin()

    def admitted(self, may: Permissions, user: str | None) -> None:
        """The identity and its permissions are known."""
        self._may, self.user = may, user
        self.since_ms = self._services.clock.now_ms()

    @property
    def parts(self) -> tuple[ClientConnection, Delivery | None]:
        """Its connection, and what is delivered to it once the session is open: for those who look at it."""
        return self._wire, self._delivery

    def opened(self, delivery: Delivery, subscriptions: Subscriptions, exact: Qos2Exchanges | None) -> None:
        """The broker opened the session."""
        self._delivery, self._subscriptions, self._exact = delivery, subscriptions, exact

    def dialogue(self) -> Dialog:
        """The AUTH packets of this connection; created when needed."""
        dialog = self._dialog = self._dialog or Dialog(self._wire, self._services.access)
        return dialog

    @property
    def has_left(self) -> bool:
        """Whether the connection has ended, also when it has not been reported yet."""
        return self._ended or self._session.state.close_reason is not None

    def taken_meanwhile(self, epoch: int) -> bool:
        """Whether the session of this epoch has another owner by now; the connection ends then."""
        if not self.has_lost(epoch) and self._asked_epoch < epoch:
            return False
        self.evict(ELSEWHERE, fenced=True)
        return True

    def has_lost(self, epoch: int) -> bool:
        """Whether the session of this epoch has another owner."""
        return self._fenced_epoch >= epoch

    # -- in use --------------------------------------------------------------------------------------------------------

    def _subscribe(self, event: SubscribeRequested) -> None:
        if self._unbegun:
            self._services.spawn(self._subscribe_behind(event))
        else:
            self._ask(event)

    async def _subscribe_behind(self, event: SubscribeRequested) -> None:
        if not self._ended:
            self._ask(event)

    def _ask(self, event: SubscribeRequested) -> None:
        assert self._subscriptions is not None
        assert self._may is not None
        asked = self._subscriptions.ask(event, self._may.qos_allowed)
        if asked.request is None:
            self._grant(asked, [])
            return
        self._services.calls.subscribe(asked.request, partial(self._subscribed, asked, self._may.revision))

    def _subscribed(
        self, asked: PendingSubscribe, revision: int, reply: Subscribed | None, error: Exception | None
    ) -> None:
        if reply is None:
            self._unable(error)
            return
        assert self._subscriptions is not None
        assert self._may is not None
        try:
            runs = self._subscriptions.granted(asked, reply)
        except (LightMQError, ValueError) as wrong:
            self._unable(wrong)
            return
        if not self._ended:
            if self._may.revision != revision:
                self._revise(self._may)
            self._grant(asked, runs)

    def _grant(self, asked: PendingSubscribe, runs: list[tuple[Source, list[int]]]) -> None:
        assert self._subscriptions is not None
        self._session.answers.grant(asked.packet_id, asked.codes)
        self._wire.flush()
        if runs:
            assert self._delivery is not None
            assert self._may is not None
            self._delivery.outbound.may_be_given = self._may.may_be_given
        self._subscriptions.begin_retained(runs)

    def rules_changed(self) -> None:
        """Drop cached permissions."""
        if self._may is not None:
            self._may.rules_changed()
        if self._subscriptions is not None:
            self._subscriptions.judge_all()

    def revise(self) -> None:
        """Give up subscriptions that may not be read any more."""
        if self._may is not None and self._ownership.is_open and not self._ended:
            self._revise(self._may)

    def _revise(self, may: Permissions) -> None:
        """Give up, now and at the broker, subscriptions that may not be read any more."""
        assert self._subscriptions is not None
        lost = may.revoked(self._subscriptions.by_filter.items())
        if lost:
            self._subscriptions.drop(lost)
            self._services.spawn(self._guarded(self._subscriptions.unsubscribe, lost))

    def _unsubscribe(self, event: UnsubscribeRequested) -> None:
        self._unbegun += 1
        self._services.spawn(self._guarded(self._do_unsubscribe, event))

    async def _do_unsubscribe(self, event: UnsubscribeRequested) -> None:
        self._unbegun -= 1
        assert self._subscriptions is not None
        codes = await self._subscriptions.unsubscribe(event.filters)
        if not self._ended:
            self._session.answers.unsubscribed(event.packet_id, codes)
            self._wire.flush()

    async def _guarded(self, work: Callable[[Any], Any], event: object) -> None:
        """Do something that needs the broker; when it fails the connection ends and the client tries again."""
        try:
            await work(event)
        except (LightMQError, ValueError) as error:
            self._unable(error)

    def _unable(self, error: Exception | None) -> None:
        if isinstance(error, Refused) and error.code == ResponseCode.ILLEGAL_OPERATION:
            self.evict(ELSEWHERE, fenced=True)  # the broker's word has overtaken that of the new owner
            return
        self.give_up(f"{'broker_lost' if isinstance(error, LinkDownError) else 'broker_refused'}: {error}")

    def _acknowledged(self, event: Acknowledged) -> None:
        assert self._delivery is not None
        self._delivery.acknowledged(event.tokens)
        if self._exact is not None:
            self._exact.acknowledged()

    def _received(self, event: Received) -> None:
        if self._exact is not None:
            self._exact.received(event.packet_ids)
        else:
            self._session.deliveries.release(event.packet_ids)
            self._wire.flush()

    def _released(self, event: Released) -> None:
        if self._exact is not None:
            self._exact.released(event.packet_ids)
        else:
            self._session.answers.complete(event.packet_ids)
            self._wire.flush()

    def _authenticating(self, event: AuthReceived) -> None:
        shown = Shown(client_id=self._client_id, address=self._wire.peer.address)
        self.dialogue().received(event, None if self._may is None else self._may.identity, shown)

    # -- the end -------------------------------------------------------------------------------------------------------

    def _over(self, event: Disconnected | Violated) -> None:
        """The connection closes by itself and reports it with `on_closed`; deliver nothing meanwhile."""
        if isinstance(event, Disconnected):
            self._ownership.leave(event)
        if self._delivery is not None:
            self._delivery.stop()

    def evict(self, reason: str, *, fenced: bool) -> None:
        """End now, from our side."""
        if not self._ended:
            LOG.info("connection_ended", client_id=self._client_id, peer=self._wire.peer.address, reason=reason)
            self._end(reason, will_due=self._session.state.will_due, fenced=fenced)
        if self._session.state.status is Status.DECIDING:
            self._session.answers.refuse(ReasonCode.SERVER_BUSY)
        self._wire.close(reason)

    def give_up(self, reason: str) -> None:
        """End the connection for a reason that is not the client's."""
        self.evict(reason, fenced=False)

    def fence(self, epoch: int, *, hand_over: bool = False) -> None:
        """The session of this epoch belongs to another proxy now, or will when this one has reported its state."""
        if hand_over:
            self._asked_epoch = max(self._asked_epoch, epoch)
        else:
            self._fenced_epoch = max(self._fenced_epoch, epoch)
        if self._ownership.is_open and self._ownership.epoch <= epoch:
            self.evict(ELSEWHERE, fenced=not hand_over)

    def _end(self, reason: str, *, will_due: bool, fenced: bool) -> None:
        if self._ended:
            return
        self._ended = True
        services = self._services
        services.metrics.sessions.closed(reason).value += 1
        if self._inbound is not None:
            self._inbound.end()
        if self._dialog is not None:
            self._dialog.end()
        if self._may is not None:
            admission.leave(services.quotas, self._may.identity, self._client_id)
            self._may.close()
            services.owners.release(self._client_id, self)
        if self._delivery is not None:
            self._stop_delivering(self._delivery, will_due=will_due, fenced=fenced)
        # Keep no reference back here: what has ended is to be freed now, not by the next full collection.
        if self._inbound is not None:
            self._inbound.let_go()
        if self._subscriptions is not None:
            self._subscriptions.let_go()

    def _stop_delivering(self, delivery: Delivery, *, will_due: bool, fenced: bool) -> None:
        self._services.tools.offsets.forget(delivery)
        delivery.stop()
        if not fenced:
            if self._exact is not None:
                self._exact.end()
            self._ownership.close(self._session, delivery, will_due=will_due)
            if self._ownership.closing is not None and not self._services.link.up:
                self._services.owners.close_later(self)
        delivery.release()

    # -- a broker that reconnects --------------------------------------------------------------------------------------

    def reopen(self) -> None:
        """The broker was lost and is back: reopen the session and continue at our own cursors, or close it."""
        if self._ownership.is_open and (not self._ended or self._ownership.closing is not None):
            self._services.spawn(self._guarded(self._reopen, self._ownership.retake()))

    async def _reopen(self, number: int) -> None:
        try:
            await self._do_reopen()
        except LinkDownError as error:
            LOG.info("session_not_reopened", client_id=self._client_id, error=str(error))
            self._reopen_again(number)

    def _reopen_again(self, number: int) -> None:
        if number != self._ownership.retakes:
            return  # reopened already
        if self._services.link.up:
            self.reopen()  # the broker is there, but did not answer in time
        elif self._ownership.closing is not None:
            self._services.owners.close_later(self)
        # Else the broker is lost again, or was not the master: the next one is asked.

    async def _do_reopen(self) -> None:
        assert self._subscriptions is not None
        assert self._delivery is not None
        assert self._may is not None
        taken: asyncio.Future[SessionOpened] = asyncio.get_running_loop().create_future()
        self._ownership.take(self._may.identity, partial(_settle, taken), clean=not self._ownership.durable)
        opened = await taken
        if self.has_lost(opened.epoch):
            self.evict(ELSEWHERE, fenced=True)
            return
        if not self._ownership.retaken(opened.epoch) or self._ended:
            return
        if self._asked_epoch >= opened.epoch:  # its new owner waits for the state, which is known to this proxy alone
            self.evict(ELSEWHERE, fenced=False)
            return
        self._subscriptions.epoch = opened.epoch
        stored = {subscription.filter for subscription in opened.subscriptions}
        if stored != set(self._subscriptions.by_filter):
            await self._subscriptions.subscribe_again()
        self._subscriptions.rejoin()
        for source in self._delivery.sources:
            source.committed = UNKNOWN
            if source.history is not None:
                source.history.committed = UNKNOWN
        if self._ownership.durable:
            self._services.tools.offsets.mark(self._delivery)
        if self._exact is not None:
            self._exact.reopened()
        self._delivery.wake()


def _settle(future: asyncio.Future[SessionOpened], opened: SessionOpened | None, error: Exception | None) -> None:
    """Set the result of a future, unless it was cancelled."""
    if future.done():
        return
    if opened is None:
        assert error is not None
        future.set_exception(error)
    else:
        future.set_result(opened)


_HANDLERS: dict[type, Callable[[Client, Any], None]] = {  # of events that `on_events` does not know itself
    ConnectRequested: Client._connect,  # noqa: SLF001 - the table belongs to the class
    PublishRefused: Client._publish_refused,  # noqa: SLF001
    Received: Client._received,  # noqa: SLF001
    Released: Client._released,  # noqa: SLF001
    AuthReceived: Client._authenticating,  # noqa: SLF001
    SubscribeRequested: Client._subscribe,  # noqa: SLF001
    UnsubscribeRequested: Client._unsubscribe,  # noqa: SLF001
    Disconnected: Client._over,  # noqa: SLF001
    Violated: Client._over,  # noqa: SLF001
}
