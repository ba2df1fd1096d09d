"""One MQTT client of the proxy: takes the session core's events and hands each to the part that knows what to do.

    CONNECT -> authenticate -> own the client id -> SESSION_OPEN -> read what must be sent again -> CONNACK -> deliver
    close   -> give the client id up -> SESSION_CLOSE with offsets and what is in flight; the will is the broker's

Invariant: after `_end` nothing is sent to the session, and the broker was told about the session exactly once.
Loop rule: on the loop's thread; what must wait for the broker runs as a task that looks whether the client is still
there.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from mqtt_proxy.access.identity import Shown
from mqtt_proxy.bridge import admission, resume
from mqtt_proxy.bridge.delivery import Delivery
from mqtt_proxy.bridge.dialog import Dialog
from mqtt_proxy.bridge.exact import Exact
from mqtt_proxy.bridge.hold import Hold
from mqtt_proxy.bridge.inbound import Inbound
from mqtt_proxy.bridge.link import LinkDownError
from mqtt_proxy.bridge.offsets import UNKNOWN
from mqtt_proxy.bridge.permissions import Permissions
from mqtt_proxy.bridge.response_information import response_information
from mqtt_proxy.bridge.services import Services
from mqtt_proxy.bridge.subscriptions import Subscriptions
from mqtt_proxy.bridge.sys_tree import Follower
from mqtt_proxy.bridge.wire import Wire
from mqtt_proxy.front.publish_rates import Publisher
from mqtt_proxy.mqtt.events import (
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
from mqtt_proxy.mqtt.reason_codes import ReasonCode
from remoting.protocol.codes import ResponseCode
from remoting.protocol.errors import LightMQError, Refused
from remoting.protocol.session_body import SessionOpened
from runtime.logs import get_logger

LOG = get_logger("proxy.client")


class Client:
    """The handler of one connection."""

    __slots__ = (
        "_client_id", "_delivery", "_dialog", "_ended", "_exact", "_fenced_epoch", "_hold", "_inbound", "_may",
        "_services", "_session", "_subscriptions", "_unbegun", "_wire", "user",
    )  # fmt: skip

    def __init__(self, wire: Wire, services: Services) -> None:
        self._wire = wire
        self._session = wire.session
        self._services = services
        self._may: Permissions | None = None
        """Known once the CONNECT is admitted."""
        self._client_id = ""
        self.user: str | None = None
        """Whose the session is; None for whoever has proved no name."""
        self._hold = Hold(services)
        self._ended = False
        self._fenced_epoch = 0
        self._unbegun = 0
        """SUBSCRIBEs and UNSUBSCRIBEs whose request has not been sent yet; what follows must not overtake them."""
        self._dialog = Dialog(wire, services.access)
        self._inbound = Inbound(wire, services, self._give_up)
        self._exact = Exact(wire, self._hold, services.exact)
        self._delivery = Delivery(wire.session, services.tools, self._exact.flush, self._give_up)
        self._subscriptions: Subscriptions | None = None

    # -- from the connection -------------------------------------------------------------------------------------------

    def on_events(self, events: list[Event]) -> None:
        """Events of one read."""
        for event in events:
            _HANDLERS[type(event)](self, event)

    def on_writable(self, writable: bool) -> None:
        """The socket takes deliveries again, or no longer."""
        self._delivery.set_writable(writable)

    def on_closed(self, reason: str, will_due: bool) -> None:
        """The connection has ended."""
        self._end(reason, will_due=will_due, fenced=False)

    def _published(self, event: PublishBatch) -> None:
        if self._unbegun:
            self._services.spawn(self._publish_behind(event))
            return
        self._inbound.publish(event.publishes)

    async def _publish_behind(self, event: PublishBatch) -> None:
        self._inbound.publish(event.publishes)  # behind what came before it: tasks begin in the order of their making

    def _publish_refused(self, event: PublishRefused) -> None:
        self._inbound.count_refused(1, event.reason, event.detail)

    # -- connecting ----------------------------------------------------------------------------------------------------

    def _connect(self, event: ConnectRequested) -> None:
        self._client_id, self._inbound.client_id = event.client_id, event.client_id.encode()
        self._hold.want(event)
        self._services.spawn(self._open(event))

    async def _open(self, event: ConnectRequested) -> None:
        services = self._services
        admitted = await admission.admit(services.access, event, self._wire, lambda: not self._gone, self._dialog)
        if self._gone:
            return
        admitted = admission.join(services.quotas, admitted, event)
        if isinstance(admitted, admission.Refusal):
            self._refuse(admitted.code, admitted.reason)
            return
        user = self.user = None if admitted.anonymous else admitted.name
        if services.owners.foreign(event.client_id, user):
            admission.leave(services.quotas, admitted, event.client_id)
            self._refuse(ReasonCode.NOT_AUTHORIZED, "foreign_session")
            return
        self._may = Permissions(services.access, admitted, services.metrics)
        self._inbound.begin(self._may, Publisher(event.client_id, user, self._wire.peer_address))
        services.owners.take(event.client_id, self)
        try:
            opened = await self._hold.take(admitted, clean=event.clean)
            if self._taken_meanwhile(opened.epoch):
                return
            self._hold.epoch = opened.epoch
            planned = resume.plan(opened)
            again = [] if self._gone else await resume.fetch(services.link, planned.again)
            if self._gone:
                self._give_back(opened)
                return
            self._resume(event, opened, planned, again)
        except (LightMQError, ValueError) as error:
            self._open_failed(error)

    @property
    def _gone(self) -> bool:
        """Whether the connection has ended, also when it has not been reported yet."""
        return self._ended or self._session.close_reason is not None

    def _taken_meanwhile(self, epoch: int) -> bool:
        if self._fenced_epoch < epoch:
            return False
        self.evict("taken_over: the client id connected through another proxy", fenced=True)
        return True

    def _open_failed(self, error: Exception) -> None:
        self._services.owners.release(self._client_id, self)
        if self._gone:
            return
        foreign = isinstance(error, Refused) and error.code == ResponseCode.NO_PERMISSION
        LOG.warning("session_not_opened", client_id=self._client_id, error=str(error))
        code = ReasonCode.NOT_AUTHORIZED if foreign else ReasonCode.SERVER_UNAVAILABLE
        self._refuse(code, "foreign_session" if foreign else "broker")

    def _refuse(self, code: int, reason: str) -> None:
        self._services.metrics.refused_connects.child(reason).value += 1
        LOG.info("connect_refused", peer=self._wire.peer_address, client_id=self._client_id, reason=reason)
        self._session.refuse(code)
        self._wire.flush()

    def _give_back(self, opened: SessionOpened) -> None:
        """The client left before its session was open: leave the session as it was found."""
        if self._fenced_epoch < opened.epoch:
            self._hold.give_back(opened)

    def _sys_follower(self) -> Follower:
        """Made when a filter of `$SYS` is subscribed: few sessions have one."""
        return self._services.sys_tree.follower(self._session, self._wire.flush, lambda: self._delivery.writable)

    def _resume(
        self, event: ConnectRequested, opened: SessionOpened, planned: resume.ResumePlan, again: list[resume.Again]
    ) -> None:
        services = self._services
        subscriptions = self._subscriptions = Subscriptions(
            self._client_id,
            services.link,
            self._delivery,
            services.metrics,
            durable=self._hold.durable,
            filters_max=services.config.subscriptions_per_session_max,
            too_wide=services.quotas.filter_refused,
            sys_follower=self._sys_follower,
        )
        self._hold.is_open, subscriptions.epoch = True, opened.epoch
        self._delivery.committed_key = self._inbound.client_id if self._hold.durable else None
        subscriptions.resume(opened.subscriptions, planned.cursors)
        assert self._may is not None
        self._revise(self._may)
        again = self._may.still_readable(again)
        self._delivery.outbound.may_be_given = self._may.may_be_given
        self._may.expires(services.clock.now_ms(), self._give_up)
        self._session.accept(
            opened.present,
            [(one.packet_id, self._delivery.place(one), one.phase) for one in again],
            opened.received,
            session_expiry_s=opened.expiry_s,
            server_keep_alive_s=services.quotas.keep_alive_s(event.keep_alive_s),
            response_information=response_information(services.config.response_topic_prefix, event),
            auth_data=self._dialog.proof,
        )
        self._inbound.exact = self._hold.durable
        self._exact.begin(planned, self._delivery.send_again(again))
        services.metrics.connected.value += 1
        services.metrics.redelivered.value += len(again)
        self._wire.flush()
        subscriptions.begin_retained(
            [(one, planned.retained) for one in self._delivery.sources[:1] if planned.retained]
        )
        self._delivery.start()

    def _subscribe(self, event: SubscribeRequested) -> None:
        self._unbegun += 1
        self._services.spawn(self._guarded(self._do_subscribe, event))

    async def _do_subscribe(self, event: SubscribeRequested) -> None:
        self._unbegun -= 1
        assert self._subscriptions is not None
        assert self._may is not None
        revision = self._may.revision
        codes, runs = await self._subscriptions.subscribe(event, self._may.qos_allowed)
        if not self._ended:
            if self._may.revision != revision:
                self._revise(self._may)
            self._session.grant(event.packet_id, codes)
            self._wire.flush()
            self._subscriptions.begin_retained(runs)

    def rules_changed(self) -> None:
        """What was allowed before is not remembered."""
        if self._may is not None:
            self._may.rules_changed()

    def revise(self) -> None:
        """Give up what may not be read any more."""
        if self._may is not None and self._hold.is_open and not self._ended:
            self._revise(self._may)

    def _revise(self, may: Permissions) -> None:
        """Give up, now and at the broker, what may not be read any more."""
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
            self._session.unsubscribed(event.packet_id, codes)
            self._wire.flush()

    async def _guarded(self, work: Callable[[Any], Any], event: object) -> None:
        """Do something that needs the broker; when it cannot be done the connection ends and the client tries again."""
        try:
            await work(event)
        except LinkDownError as error:
            self._give_up(f"broker_lost: {error}")
        except (LightMQError, ValueError) as error:
            self._give_up(f"broker_refused: {error}")

    def _acknowledged(self, event: Acknowledged) -> None:
        self._delivery.acknowledged(event.tokens)
        self._exact.acknowledged()

    def _received(self, event: Received) -> None:
        self._exact.received(event.packet_ids)

    def _released(self, event: Released) -> None:
        self._exact.released(event.packet_ids)

    def _authenticating(self, event: AuthReceived) -> None:
        shown = Shown(client_id=self._client_id, address=self._wire.peer_address)
        self._dialog.received(event, None if self._may is None else self._may.identity, shown)

    # -- the end -------------------------------------------------------------------------------------------------------

    def _over(self, event: Disconnected | Violated) -> None:
        """The connection closes by itself and says so with `on_closed`; deliver nothing meanwhile."""
        if isinstance(event, Disconnected):
            self._hold.leave(event)
        self._delivery.stop()

    def _give_up(self, reason: str) -> None:
        self.evict(reason, fenced=False)

    def evict(self, reason: str, *, fenced: bool) -> None:
        """End now, from our side."""
        if not self._ended:
            LOG.info("connection_ended", client_id=self._client_id, peer=self._wire.peer_address, reason=reason)
            self._end(reason, will_due=self._session.will_due, fenced=fenced)
        self._wire.close(reason)

    def fence(self, epoch: int, *, hand_over: bool = False) -> None:
        """The session of this epoch belongs to another proxy now, or will when it was handed in."""
        self._fenced_epoch = max(self._fenced_epoch, epoch)
        if self._hold.is_open and self._hold.epoch <= epoch:
            self.evict("taken_over: the client id connected through another proxy", fenced=not hand_over)

    def _end(self, reason: str, *, will_due: bool, fenced: bool) -> None:
        if self._ended:
            return
        self._ended = True
        services = self._services
        services.metrics.closed(reason).value += 1
        self._inbound.end()
        self._dialog.end()
        if self._may is not None:
            admission.leave(services.quotas, self._may.identity, self._client_id)
            self._may.close()
        services.owners.release(self._client_id, self)
        services.tools.offsets.forget(self._delivery)
        self._delivery.stop()
        if not fenced:
            self._exact.end()
            self._hold.close(self._session, self._delivery, will_due=will_due)
        self._delivery.release()
        self._let_go()

    def _let_go(self) -> None:
        """Keep nothing that leads back here: what has ended is to be freed now, not by the next full collection."""
        self._inbound.let_go()
        self._delivery.let_go()
        if self._subscriptions is not None:
            self._subscriptions.let_go()

    # -- a broker that comes back --------------------------------------------------------------------------------------

    def reopen(self) -> None:
        """The broker was lost and is back: take the session again and go on at our own cursors."""
        if self._hold.is_open and not self._ended:
            self._services.spawn(self._guarded(self._do_reopen, None))

    async def _do_reopen(self, _event: None) -> None:
        assert self._subscriptions is not None
        assert self._may is not None
        opened = await self._hold.take(self._may.identity, clean=not self._hold.durable)
        if self._ended or self._taken_meanwhile(opened.epoch):
            return
        self._hold.epoch = self._subscriptions.epoch = opened.epoch
        stored = {subscription.filter for subscription in opened.subscriptions}
        if stored != set(self._subscriptions.by_filter):
            await self._subscriptions.subscribe_again()
        self._subscriptions.rejoin()
        for source in self._delivery.sources:
            source.committed = UNKNOWN
            if source.history is not None:
                source.history.committed = UNKNOWN
        if self._hold.durable:
            self._services.tools.offsets.mark(self._delivery)
        self._exact.reopened()
        self._delivery.wake()


_HANDLERS: dict[type, Callable[[Client, Any], None]] = {
    ConnectRequested: Client._connect,  # noqa: SLF001 - the table belongs to the class
    PublishBatch: Client._published,  # noqa: SLF001
    PublishRefused: Client._publish_refused,  # noqa: SLF001
    Acknowledged: Client._acknowledged,  # noqa: SLF001
    Received: Client._received,  # noqa: SLF001
    Released: Client._released,  # noqa: SLF001
    AuthReceived: Client._authenticating,  # noqa: SLF001
    SubscribeRequested: Client._subscribe,  # noqa: SLF001
    UnsubscribeRequested: Client._unsubscribe,  # noqa: SLF001
    Disconnected: Client._over,  # noqa: SLF001
    Violated: Client._over,  # noqa: SLF001
}
