"""The CONNECT of one MQTT client: its identity, the client id, SESSION_OPEN, what must be sent again, CONNACK.

Where all of it is at hand (the identity is known without waiting, the broker is in this process, nothing is to be sent
again) it happens within the call that brings the CONNECT: no task, no turn of the loop. `client` has the rest, and
`openings` the order of several CONNECTs of one client id.

Invariant: a client that disconnects meanwhile is sent nothing, and its session stays as it was; each other one is sent
a CONNACK. Loop rule: on the loop's thread.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial
from typing import Protocol

from mqtt_proxy.access import admission
from mqtt_proxy.access.admission import Dialog
from mqtt_proxy.access.permissions import Permissions
from mqtt_proxy.delivery import resume
from mqtt_proxy.delivery.delivery import Delivery
from mqtt_proxy.delivery.resume import Redelivery
from mqtt_proxy.listening.connection import ClientConnection
from mqtt_proxy.mqtt.codec.packets import VERSIONS
from mqtt_proxy.mqtt.codec.reason_codes import ReasonCode
from mqtt_proxy.mqtt.session.events import ConnectRequested
from mqtt_proxy.sessions.ownership import SessionOwnership
from mqtt_proxy.sessions.qos2 import Qos2Exchanges
from mqtt_proxy.sessions.services import Owner, Services
from mqtt_proxy.subscriptions import Subscriptions
from remoting.access.rules import Identity, Unproven
from remoting.protocol.bodies.session_body import SessionOpened
from remoting.protocol.errors import LightMQError, Refused
from remoting.protocol.frames.codes import RequestCode, ResponseCode
from remoting.transport.contracts import REQUEST_TIMEOUT_MS
from remoting.transport.failures import RequestTimeout
from runtime.logs import get_logger

LOG = get_logger("proxy.client")

ANSWER_EXPECTED_MS = 24 * 3_600_000
"""How long an answer to SESSION_OPEN is still listened for: the session that it opens has to be given back."""
_NOT_IN_A_LEVEL = ("/", "+", "#")


class ConnectingClient(Owner, Protocol):
    """The client as the CONNECT exchange uses it."""

    @property
    def has_left(self) -> bool:
        """Whether the connection has ended, also when it has not been reported yet."""

    def dialogue(self) -> Dialog:
        """The AUTH packets of this connection."""

    def admitted(self, may: Permissions, user: str | None) -> None:
        """The identity and its permissions are known."""

    def opened(self, delivery: Delivery, subscriptions: Subscriptions, exact: Qos2Exchanges | None) -> None:
        """The broker opened the session."""

    def taken_meanwhile(self, epoch: int) -> bool:
        """Whether the session of this epoch has another owner by now; the connection ends then."""

    def has_lost(self, epoch: int) -> bool:
        """Whether the session of this epoch has another owner."""

    def give_up(self, reason: str) -> None:
        """End the connection for a reason that is not the client's."""


class Connecting:
    """The CONNECT of one client; only what it waits for refers to it."""

    __slots__ = ("_client", "_deadline", "_dialog", "_event", "_may", "_ownership", "_services", "_session", "_wire")

    def __init__(
        self,
        client: ConnectingClient,
        wire: ClientConnection,
        services: Services,
        hold: SessionOwnership,
        event: ConnectRequested,
    ) -> None:
        self._client = client
        self._wire = wire
        self._session = wire.session
        self._services = services
        self._ownership = hold
        self._event = event
        self._dialog: Dialog | None = None
        """Set when the client authenticates with AUTH packets."""
        self._may: Permissions | None = None
        self._deadline: asyncio.TimerHandle | None = None
        """When the client is refused if its session is not open."""

    def begin(self) -> None:
        """The CONNECT was read."""
        event = self._event
        self._ownership.want(event)
        admitted = admission.at_hand(self._services.access, event, self._wire, self._present)
        if admitted is None:
            self._services.spawn(self._admit(event))
        else:
            self._admitted(event, admitted)

    async def _admit(self, event: ConnectRequested) -> None:
        """Determine the identity."""
        self._dialog = self._client.dialogue()
        admitted = await admission.admit(self._services.access, event, self._wire, self._present, self._dialog)
        if isinstance(admitted, admission.ConnectRefusal) and admitted.reason == Unproven.LEFT:
            self._wire.close("peer_closed")  # a socket that is not read does not report it
        elif not self._client.has_left:
            self._admitted(event, admitted)

    def _admitted(self, event: ConnectRequested, admitted: Identity | admission.ConnectRefusal) -> None:
        services = self._services
        admitted = admission.join(services.quotas, admitted, event)
        if isinstance(admitted, admission.ConnectRefusal):
            self._refuse(admitted.code, admitted.reason)
            return
        user = None if admitted.anonymous else admitted.name
        if services.owners.foreign(event.client_id, user) or services.openings.foreign(event.client_id, user):
            admission.leave(services.quotas, admitted, event.client_id)
            self._refuse(ReasonCode.NOT_AUTHORIZED, "foreign_session")
            return
        self._may = Permissions(services.access, admitted, services.metrics)
        self._client.admitted(self._may, user)
        self._deadline = asyncio.get_running_loop().call_later(REQUEST_TIMEOUT_MS / 1_000, self._late)
        services.openings.enter(event.client_id, self)

    @property
    def user(self) -> str | None:
        """Whose session it wants; None for an anonymous client."""
        return self._client.user

    @property
    def has_left(self) -> bool:
        """Whether the client has disconnected; a socket that is not read does not report it."""
        return self._client.has_left or self._wire.peer_left()

    def open(self) -> None:
        """Take the client id and ask the broker."""
        event, may = self._event, self._may
        assert may is not None
        try:
            self._services.owners.take(event.client_id, self._client)
            self._ownership.take(
                may.identity, partial(self._opened, event), clean=event.clean, timeout_ms=ANSWER_EXPECTED_MS
            )
        except BaseException:
            self._client.give_up("session not opened")
            raise

    def superseded(self, delay_ms: int) -> None:
        """Refuse the client, after this time: a newer CONNECT of its client id has come."""
        if delay_ms:
            asyncio.get_running_loop().call_later(delay_ms / 1_000, self.superseded, 0)
        elif not self._client.has_left:
            self._refuse(ReasonCode.SERVER_BUSY, "superseded")

    def left(self) -> None:
        """The client disconnected while it waited."""
        self._wire.close("peer_closed")

    def _late(self) -> None:
        """Refuse a client for whose session the broker has taken too long; an answer that comes later is given back."""
        if not self._client.has_left:
            self._open_failed(RequestTimeout(RequestCode.SESSION_OPEN, "the broker", REQUEST_TIMEOUT_MS))

    def _opened(self, event: ConnectRequested, opened: SessionOpened | None, error: Exception | None) -> None:
        """The broker has answered. Whatever comes of it, the next CONNECT of the client id has its turn."""
        if self._deadline is not None:
            self._deadline.cancel()
        is_fetching = False
        try:
            is_fetching = self._begun(event, opened, error)
        except BaseException:
            self._client.give_up("session not opened")  # nothing else ends it: its CONNECT has no deadline any more
            if opened is not None:
                self._give_back(opened)
            raise
        finally:
            if not is_fetching:
                self._services.openings.answered(event.client_id)

    def _begun(self, event: ConnectRequested, opened: SessionOpened | None, error: Exception | None) -> bool:
        """Go on with the answer; True while what must be sent again is read."""
        if opened is None:
            assert error is not None
            self._open_failed(error)
        elif self._client.taken_meanwhile(opened.epoch):
            self._give_back(opened)
        else:
            self._ownership.epoch = opened.epoch
            planned = resume.plan(opened) if opened.present else resume.NOTHING
            if planned.again and not self._client.has_left:
                self._services.spawn(self._fetch(event, opened, planned))
                return True
            self._go_on(event, opened, planned, ())
        return False

    async def _fetch(self, event: ConnectRequested, opened: SessionOpened, planned: resume.ResumePlan) -> None:
        """Read what must be sent again."""
        try:
            again = await resume.fetch(self._services.link, planned.again)
        except (LightMQError, ValueError) as error:
            self._open_failed(error)
            self._give_back(opened)
        except Exception:
            self._client.give_up("session not opened")
            self._give_back(opened)
            raise
        else:
            self._go_on(event, opened, planned, again)
        finally:
            self._services.openings.answered(event.client_id)

    def _go_on(
        self,
        event: ConnectRequested,
        opened: SessionOpened,
        planned: resume.ResumePlan,
        again: Sequence[resume.Again],
    ) -> None:
        if self._client.has_left:
            self._give_back(opened)
            return
        try:
            self._resume(event, opened, planned, again)
        except (LightMQError, ValueError) as error:
            self._open_failed(error)
            self._give_back(opened)

    def _present(self) -> bool:
        return not self._client.has_left

    def _open_failed(self, error: Exception) -> None:
        self._services.owners.release(self._event.client_id, self._client)
        if self._client.has_left:
            return
        foreign = isinstance(error, Refused) and error.code == ResponseCode.NO_PERMISSION
        LOG.warning("session_not_opened", client_id=self._event.client_id, error=str(error))
        code = ReasonCode.NOT_AUTHORIZED if foreign else ReasonCode.SERVER_UNAVAILABLE
        self._refuse(code, "foreign_session" if foreign else "broker")

    def _refuse(self, code: int, reason: str) -> None:
        self._services.metrics.sessions.refused.child(reason).value += 1
        LOG.info("connect_refused", peer=self._wire.peer.address, client_id=self._event.client_id, reason=reason)
        self._session.answers.refuse(code)
        self._wire.flush()

    def _give_back(self, opened: SessionOpened) -> None:
        """The client left, or was refused, before its session was open: leave the session as it was.

        One that was open is closed with its connection.
        """
        if not self._ownership.is_open and not self._client.has_lost(opened.epoch):
            self._ownership.give_back(opened)

    def _resume(
        self,
        event: ConnectRequested,
        opened: SessionOpened,
        planned: resume.ResumePlan,
        again: Sequence[resume.Again],
    ) -> None:
        services = self._services
        hold, may = self._ownership, self._may
        assert may is not None
        exact = Qos2Exchanges(self._wire, hold, services.exact) if hold.durable else None
        counters = services.metrics.clients(self._wire.peer.listener, VERSIONS[self._session.state.terms.level])
        delivery = Delivery(
            self._session, services.tools, exact or self._wire, self._client, counters, self._wire.flow_out
        )
        delivery.committed_key = event.client_id.encode() if hold.durable else None
        delivery.outbound.may_read = may.may_read
        subscriptions = Subscriptions(
            event.client_id, opened.epoch, services.subscribing, delivery, self._wire, may, durable=hold.durable
        )
        self._client.opened(delivery, subscriptions, exact)
        hold.is_open = True
        if opened.subscriptions:
            subscriptions.resume(opened.subscriptions, planned.cursors)
            self._client.revise()
            again = may.still_readable(again)
            delivery.outbound.may_be_given = may.may_be_given
        may.expires(services.clock, self._client.give_up)
        redelivery = Redelivery(delivery)
        self._session.answers.accept(
            opened.present,
            [(one.packet_id, redelivery.place(one), one.phase) for one in again],
            opened.received,
            session_expiry_s=opened.expiry_s,
            server_keep_alive_s=services.quotas.keep_alive_s(event.keep_alive_s),
            response_information=response_information(services.config.response_topic_prefix, event),
            auth_data=None if self._dialog is None else self._dialog.proof,
        )
        going_on = redelivery.send_again(again)
        if exact is not None:
            exact.begin(planned, going_on)
        counters.opened.value += 1
        services.metrics.deliveries.repeated.value += len(again)
        self._wire.flow_out.add_messages(len(again))
        self._wire.flush()
        if opened.subscriptions:
            subscriptions.begin_retained([(one, planned.retained) for one in delivery.sources[:1] if planned.retained])
        delivery.start()


def response_information(prefix: str, event: ConnectRequested) -> str | None:
    """The prefix of the response topics for a client of MQTT 5; None when it is sent none."""
    if not prefix or not event.request_response_information:
        return None
    if any(character in event.client_id for character in _NOT_IN_A_LEVEL):
        return None  # it would reach into the topics of others
    return f"{prefix}{event.client_id}/"
