"""One MQTT client until it has its session: who it is, the client id, SESSION_OPEN, what must be sent again, CONNACK.

Where all of it is at hand (nobody has to prove anything that is not known, the broker is in this process, nothing is to
be sent again) it happens within the call that brings the CONNECT: no task, no turn of the loop. `client` has the rest.

Invariant: a client that has gone meanwhile is told nothing, and leaves the session as it was found. Loop rule: on the
loop's thread.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from mqtt_proxy.bridge import admission, resume
from mqtt_proxy.bridge.delivery import Delivery
from mqtt_proxy.bridge.dialog import Dialog
from mqtt_proxy.bridge.exact import Exact
from mqtt_proxy.bridge.hold import Hold
from mqtt_proxy.bridge.inbound import Inbound
from mqtt_proxy.bridge.permissions import Permissions
from mqtt_proxy.bridge.response_information import response_information
from mqtt_proxy.bridge.services import Services
from mqtt_proxy.bridge.subscriptions import Subscriptions
from mqtt_proxy.bridge.wire import Wire
from mqtt_proxy.mqtt.events import ConnectRequested
from mqtt_proxy.mqtt.reason_codes import ReasonCode
from remoting.access.identity import Identity
from remoting.protocol.codes import ResponseCode
from remoting.protocol.errors import LightMQError, Refused
from remoting.protocol.session_body import SessionOpened
from runtime.logs import get_logger

LOG = get_logger("proxy.client")


class Connecting:
    """What a client knows, and its CONNECT."""

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
        # Each of these once it is needed: most of those who connect a fleet have nothing to prove and publish nothing.
        self._dialog: Dialog | None = None
        self._inbound: Inbound | None = None
        self._exact: Exact | None = None
        """There when the session outlives the connection."""
        self._delivery: Delivery | None = None
        self._subscriptions: Subscriptions | None = None

    # -- connecting ----------------------------------------------------------------------------------------------------

    def _connect(self, event: ConnectRequested) -> None:
        self._client_id = event.client_id
        self._hold.want(event)
        admitted = admission.at_hand(self._services.access, event, self._wire, self._present)
        if admitted is None:
            self._services.spawn(self._admit(event))
        else:
            self._admitted(event, admitted)

    async def _admit(self, event: ConnectRequested) -> None:
        """Who it is has to be found out."""
        admitted = await admission.admit(self._services.access, event, self._wire, self._present, self._dialogue())
        if not self._gone:
            self._admitted(event, admitted)

    def _admitted(self, event: ConnectRequested, admitted: Identity | admission.Refusal) -> None:
        services = self._services
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
        services.owners.take(event.client_id, self)
        self._hold.take(admitted, partial(self._opened, event), clean=event.clean)

    def _opened(self, event: ConnectRequested, opened: SessionOpened | None, error: Exception | None) -> None:
        if opened is None:
            assert error is not None
            self._open_failed(error)
            return
        if self._taken_meanwhile(opened.epoch):
            return
        self._hold.epoch = opened.epoch
        planned = resume.plan(opened) if opened.present else resume.NOTHING
        if planned.again and not self._gone:
            self._services.spawn(self._fetch(event, opened, planned))
        else:
            self._go_on(event, opened, planned, ())

    async def _fetch(self, event: ConnectRequested, opened: SessionOpened, planned: resume.ResumePlan) -> None:
        """Read what must be sent again."""
        try:
            again = await resume.fetch(self._services.link, planned.again)
        except (LightMQError, ValueError) as error:
            self._open_failed(error)
        else:
            self._go_on(event, opened, planned, again)

    def _go_on(
        self,
        event: ConnectRequested,
        opened: SessionOpened,
        planned: resume.ResumePlan,
        again: Sequence[resume.Again],
    ) -> None:
        if self._gone:
            self._give_back(opened)
            return
        try:
            self._resume(event, opened, planned, again)
        except (LightMQError, ValueError) as error:
            self._open_failed(error)

    def _present(self) -> bool:
        return not self._gone

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

    def _dialogue(self) -> Dialog:
        """Made when there is something to prove."""
        dialog = self._dialog = self._dialog or Dialog(self._wire, self._services.access)
        return dialog

    def _resume(
        self,
        event: ConnectRequested,
        opened: SessionOpened,
        planned: resume.ResumePlan,
        again: Sequence[resume.Again],
    ) -> None:
        services = self._services
        hold, may = self._hold, self._may
        assert may is not None
        delivery = self._deliver()
        delivery.outbound.may_read = may.may_read
        subscriptions = self._subscriptions = Subscriptions(
            self._client_id, opened.epoch, services, delivery, self._wire, may, durable=hold.durable
        )
        hold.is_open = True
        if opened.subscriptions:
            subscriptions.resume(opened.subscriptions, planned.cursors)
            self._revise(may)
            again = may.still_readable(again)
            delivery.outbound.may_be_given = may.may_be_given
        may.expires(services.clock, self.give_up)
        self._session.accept(
            opened.present,
            [(one.packet_id, delivery.place(one), one.phase) for one in again],
            opened.received,
            session_expiry_s=opened.expiry_s,
            server_keep_alive_s=services.quotas.keep_alive_s(event.keep_alive_s),
            response_information=response_information(services.config.response_topic_prefix, event),
            auth_data=None if self._dialog is None else self._dialog.proof,
        )
        going_on = delivery.send_again(again)
        if self._exact is not None:
            self._exact.begin(planned, going_on)
        services.metrics.connected.value += 1
        services.metrics.redelivered.value += len(again)
        self._wire.flush()
        if opened.subscriptions:
            subscriptions.begin_retained([(one, planned.retained) for one in delivery.sources[:1] if planned.retained])
        delivery.start()

    def _deliver(self) -> Delivery:
        """The outgoing half of the session, steps of QoS 2 noted where it outlives the connection."""
        if self._hold.durable:
            self._exact = Exact(self._wire, self._hold, self._services.exact)
        delivery = self._delivery = Delivery(self._session, self._services.tools, self._exact or self._wire, self)
        delivery.committed_key = self._client_id.encode() if self._hold.durable else None
        return delivery

    # -- what the rest of the client does ------------------------------------------------------------------------------

    def evict(self, reason: str, *, fenced: bool) -> None:
        """End now, from our side."""

    def fence(self, epoch: int, *, hand_over: bool = False) -> None:
        """The session has another owner."""

    def rules_changed(self) -> None:
        """What was allowed before is not remembered."""

    def revise(self) -> None:
        """Give up what may not be read any more."""

    def _revise(self, may: Permissions) -> None:
        """Give up what may not be read any more."""

    def reopen(self) -> None:
        """The broker was lost and is back."""

    def give_up(self, reason: str) -> None:
        """End the connection because of something that is not the client's doing."""
        self.evict(reason, fenced=False)
