"""QoS 2 of durable sessions: the broker notes every step before it is visible to the client.

    out   id parked -> noted -> PUBLISH ... PUBREC -> noted -> PUBREL ... PUBCOMP -> forgotten, some time later
    in    PUBREL -> forgotten -> PUBCOMP   (taken ids are noted by the broker with their messages)

The steps of all sessions of a loop turn are sent as one SESSION_FLOW; while `FLOWS_IN_FLIGHT` wait for the disk,
further steps gather. Every step may be repeated, and unanswered ones are once the session is taken again; none is sent
before, since the broker leaves out, and says so, what names an epoch that is over. A refusal (the disk is full) is
repeated after `RETRY_S`; until then those exchanges stand still, and so does what the same client is to be given behind
a PUBLISH that is not noted yet: a topic's messages keep their order whatever their QoS.
Invariant: the steps of one session take effect in the order in which they were made, at most one request of them in
flight. Loop rule: on the loop's thread.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Collection, Sequence
from typing import Protocol, cast

from mqtt_proxy.delivery.resume import ResumePlan
from mqtt_proxy.link import Link, LinkDownError
from mqtt_proxy.listening.connection import ClientConnection
from mqtt_proxy.metrics import ProxyMetrics
from mqtt_proxy.mqtt.codec.packets import QOS_2
from mqtt_proxy.mqtt.session.in_flight import RECEIVED, DeliveryOrigin, Qos2Steps
from remoting.protocol.bodies.session_body import FlowBatch, FlowNoted, SessionFlow, decode, encode, is_shared_place
from remoting.protocol.errors import RemoteViolation
from remoting.protocol.frames.codes import RequestCode
from remoting.transport.turn import soon
from runtime.logs import get_logger

FLOWS_IN_FLIGHT = 2
"""SESSION_FLOW requests that wait for the disk; see `publish.APPENDS_IN_FLIGHT`."""
SESSIONS_PER_FLOW_MAX = 4_096
"""Sessions in one request; more go in the next."""
FORGET_S = 0.2
"""How long a PUBCOMP may wait for other steps before it is noted by itself."""
RETRY_S = 1.0
"""Pause before steps that the broker refused are repeated."""

LOG = get_logger("proxy.exact")


class OwnedSession(Protocol):
    """The session's key at the broker."""

    client_id: str
    epoch: int
    is_retaking: bool


class Qos2Exchanges:
    """The QoS 2 exchanges of a connection whose session outlives it; steps of any other need not be noted."""

    __slots__ = ("_flows", "_next", "_ownership", "_session", "_steps", "_wire", "is_under_way")

    def __init__(self, wire: ClientConnection, hold: OwnedSession, flows: Qos2Flows) -> None:
        self._wire = wire
        self._session = wire.session
        self._ownership = hold
        self._flows = flows
        self._steps: Qos2Steps | None = None
        self._next = SessionFlow("", 0)
        self.is_under_way = False

    @property
    def may_send(self) -> bool:
        """Whether steps can be noted now: the session is ours, and none of its steps are under way."""
        return not self.is_under_way and not self._ownership.is_retaking

    def begin(self, planned: ResumePlan, again: Collection[int]) -> None:
        """The session is open: its steps are noted from now on.

        `again` is what continues of what was planned: the rest is forgotten.
        """
        self._steps = self._session.deliveries.take_steps()
        gone = [one.packet_id for one in planned.again if one.sent_qos == QOS_2 and one.packet_id not in again]
        self._steps.finished += [*planned.over, *gone]
        self.acknowledged()

    def flush(self) -> None:
        """The session has been given deliveries: note the parked ones, write the others."""
        if self._steps is not None and self._steps.reserved:
            self._flows.wake(self)
        self._wire.flush()

    def received(self, packet_ids: Sequence[int]) -> None:
        """PUBREC came for these packet ids."""
        self._next.received += packet_ids
        self._flows.wake(self)

    def released(self, packet_ids: Sequence[int]) -> None:
        """PUBREL came for these packet ids."""
        self._next.released += packet_ids
        self._flows.wake(self)

    def acknowledged(self) -> None:
        """Deliveries are finished, some perhaps of QoS 2."""
        if self._steps is not None and self._steps.finished:
            self._flows.wake_later(self)

    def reopened(self) -> None:
        """The session was taken again after a loss: repeat unanswered steps."""
        if self._steps is not None:
            self._flows.wake(self)

    def end(self) -> None:
        """The connection has ended: send the last steps before its SESSION_CLOSE."""
        if self._steps is not None:
            self._flows.end(self)

    def take(self) -> SessionFlow | None:
        """The steps to send now; None when there are none."""
        assert self._steps is not None
        flow, self._next = self._next, SessionFlow("", 0)
        flow.client_id, flow.epoch = self._ownership.client_id, self._ownership.epoch
        flow.completed += self._steps.take_finished()
        for packet_id, token in self._steps.take_reserved():
            place, offset = cast("tuple[DeliveryOrigin, int]", token)
            flow.reserved.append((packet_id, place.queue_id | place.flow_bit, offset))
        return flow if flow.released or flow.completed or flow.received or flow.reserved else None

    def take_last(self) -> SessionFlow | None:
        """The same at the end; messages of a group that were not sent go to another member, so they are left out."""
        flow = self.take()
        if flow is not None:
            flow.reserved = [one for one in flow.reserved if not is_shared_place(one[1])]
        return flow

    def done(self, flow: SessionFlow) -> None:
        """These steps are durable: take the next ones."""
        session = self._session
        if session.state.close_reason is not None:
            return
        if flow.released:
            session.answers.complete(flow.released)
        if flow.received:
            session.deliveries.send_parked(flow.received)
            phases = session.state.outgoing.phases
            taken = [packet_id for packet_id in flow.received if phases.get(packet_id) == RECEIVED]
            if taken:
                session.deliveries.release(taken)
        if flow.reserved:
            session.deliveries.send_parked([packet_id for packet_id, _queue_id, _offset in flow.reserved])
        self._wire.flush()

    def failed(self, flow: SessionFlow) -> None:
        """It is unknown whether these steps are durable: repeat them, before what was made since."""
        later, self._next = self._next, flow
        flow.released += later.released
        flow.completed += later.completed
        flow.received += later.received
        flow.reserved += later.reserved


class Qos2Flows:
    """The steps of all sessions of the proxy."""

    def __init__(self, link: Link, metrics: ProxyMetrics) -> None:
        self._link = link
        self._metrics = metrics
        self._awake: dict[Qos2Exchanges, None] = {}
        self._later: dict[Qos2Exchanges, None] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._in_flight = 0
        self._scheduled = False

    def wake(self, exact: Qos2Exchanges) -> None:
        """A session has steps to send, in this turn."""
        self._awake[exact] = None
        self._schedule()

    def wake_later(self, exact: Qos2Exchanges, delay_s: float = FORGET_S) -> None:
        """A session has steps that need not be sent at once."""
        self._later[exact] = None
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(delay_s, self._ripe)

    def end(self, exact: Qos2Exchanges) -> None:
        """The session's connection has ended: send its last steps before its SESSION_CLOSE."""
        self._awake.pop(exact, None)
        self._later.pop(exact, None)
        if self._link.up:
            flow = exact.take_last()
            if flow is not None:
                self._link.call(RequestCode.SESSION_FLOW, encode(FlowBatch([flow])), lambda _body, _error: None)

    def stop(self) -> None:
        """No further timer."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _ripe(self) -> None:
        self._timer = None
        self._awake |= self._later
        self._later.clear()
        self._schedule()

    def _schedule(self) -> None:
        if not self._scheduled and self._awake and self._in_flight < FLOWS_IN_FLIGHT:
            self._scheduled = True
            soon(self._send)

    def _send(self) -> None:
        self._scheduled = False
        if not self._link.up:
            return
        sent: list[tuple[Qos2Exchanges, SessionFlow]] = []
        for exact in [one for one in self._awake if one.may_send][:SESSIONS_PER_FLOW_MAX]:
            del self._awake[exact]
            self._later.pop(exact, None)
            flow = exact.take()
            if flow is not None:
                exact.is_under_way = True
                sent.append((exact, flow))
        if sent:
            self._in_flight += 1
            body = encode(FlowBatch([flow for _exact, flow in sent]))
            self._link.call(RequestCode.SESSION_FLOW, body, functools.partial(self._answered, sent))
            self._metrics.sessions.flow_requests.value += 1

    def _answered(
        self, sent: Sequence[tuple[Qos2Exchanges, SessionFlow]], body: bytes, error: Exception | None
    ) -> None:
        self._in_flight -= 1
        fenced: Collection[int] = ()
        if body and error is None:
            try:
                fenced = frozenset(decode(FlowNoted, body).fenced)
            except RemoteViolation as violation:
                error = violation
        for number, (exact, flow) in enumerate(sent):
            exact.is_under_way = False
            if error is None and number not in fenced:
                exact.done(flow)
                continue
            exact.failed(flow)
            # After a loss of the broker `reopened` repeats them. What was left out is repeated here: the session may
            # have been reopened meanwhile, and if another connection has taken it, this one is about to be closed.
            if not isinstance(error, LinkDownError):
                self.wake_later(exact, RETRY_S)
        if error is not None:
            LOG.warning("steps_not_noted", sessions=len(sent), error=str(error))
        elif fenced:  # another connection has taken the session, as it may
            LOG.info("steps_not_noted", sessions=len(fenced), error="the session was taken over")
        self._schedule()
