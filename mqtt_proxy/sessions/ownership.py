"""A connection's ownership of its session at the broker: taking it, taking it again after a loss, giving it back.

    lost, back -> retake -> SESSION_OPEN (continues the old epoch) -> retaken: the new epoch
                        a connection that ends in between: its SESSION_CLOSE waits for the new epoch

Invariant: requests about the session carry the epoch under which this connection owns it. A session taken again names
the epoch it continues, so that neither its will nor a session that another connection has meanwhile is touched. A
session retaken for a connection that has ended is closed at once, for otherwise the broker would keep its will as that
of a live client. Loop rule: on the loop's thread.
"""

from __future__ import annotations

from mqtt_proxy.delivery import resume
from mqtt_proxy.delivery.delivery import Delivery
from mqtt_proxy.delivery.resume import Redelivery
from mqtt_proxy.mqtt.codec.packets import Will
from mqtt_proxy.mqtt.session.events import ConnectRequested, Disconnected
from mqtt_proxy.mqtt.session.session import Session
from mqtt_proxy.sessions.services import Answered, Services
from mqtt_proxy.wills import will_spec
from remoting.access.rules import Identity
from remoting.protocol.bodies.session_body import (
    WILL_DISCARD,
    WILL_DUE,
    SessionClose,
    SessionOpen,
    SessionOpened,
)
from remoting.transport.contracts import REQUEST_TIMEOUT_MS


class SessionOwnership:
    """One connection and its session."""

    __slots__ = (
        "_left_expiry_s", "_services", "_will", "client_id", "closing", "durable", "epoch", "expiry_s", "is_open",
        "is_retaking", "retakes",
    )  # fmt: skip

    def __init__(self, services: Services) -> None:
        self._services = services
        self._will: Will | None = None
        self._left_expiry_s: int | None = None
        self.client_id = ""
        self.durable = False
        self.expiry_s = 0
        self.epoch = 0
        self.is_open = False
        """Whether the client was sent a CONNACK for the session."""
        self.is_retaking = False
        """Whether the broker was lost and has not opened the session again yet."""
        self.retakes = 0
        """How often the broker was reconnected."""
        self.closing: SessionClose | None = None
        """The close to send once the session has been taken again; the connection has ended."""

    def want(self, event: ConnectRequested) -> None:
        """The request of a CONNECT; the broker says how long it keeps the session at most."""
        self.client_id, self._will = event.client_id, event.will
        self.expiry_s = event.session_expiry_s
        self.durable = self.expiry_s > 0

    def leave(self, event: Disconnected) -> None:
        """A DISCONNECT may change how long the session is kept."""
        if event.session_expiry_s is not None:
            self._left_expiry_s = event.session_expiry_s

    def take(
        self,
        identity: Identity,
        answered: Answered[SessionOpened],
        *,
        clean: bool,
        timeout_ms: int = REQUEST_TIMEOUT_MS,
    ) -> None:
        """Open the session, for the first time or again."""
        # An anonymous client's name proves nothing, so its session has no owner.
        user = None if identity.anonymous else identity.name
        will = None if self._will is None else will_spec(self._will, identity)
        request = SessionOpen(self.client_id, clean, user, self.expiry_s, will, self.epoch)
        self._services.calls.open(request, answered, timeout_ms)

    def retake(self) -> int:
        """The broker is back and will be asked for the session: a close waits from now on. Returns the number of this
        time."""
        self.is_retaking = True
        self.retakes += 1
        return self.retakes

    def retaken(self, epoch: int) -> bool:
        """The broker opened the session again; False if the connection has ended meanwhile, which is reported."""
        self.is_retaking = False
        self.epoch = epoch
        closing, self.closing = self.closing, None
        if closing is None:
            return True
        closing.epoch = epoch
        self._say(closing)
        return False

    def give_back(self, opened: SessionOpened) -> None:
        """The client left before its session was open: leave the session as it was."""
        if self._services.link.up:
            self._say(SessionClose(self.client_id, opened.epoch, self.durable, [], opened.inflight))

    def close(self, session: Session, delivery: Delivery, *, will_due: bool) -> None:
        """The connection has ended: report how far the client has come."""
        is_up = self._services.link.up
        # While the broker is away it notices by itself that clients are lost, but not a normal DISCONNECT.
        if not self.is_open or not (is_up or (self._will is not None and not will_due)):
            return
        if is_up:
            self._services.tools.shared.flush()  # reports what its client has acknowledged
        closing = SessionClose(self.client_id, self.epoch, self.durable, [], [])
        closing.expiry_s = self._left_expiry_s
        closing.will = WILL_DUE if will_due else WILL_DISCARD
        if self.durable:
            exact = session.state.outgoing.phases  # those of QoS 2, which the broker knows
            again = [
                resume.Again(packet_id, token[0].queue_id, token[1])  # type: ignore[index]  # every token of ours
                for packet_id, token, _phase in session.deliveries.inflight()
                if packet_id not in exact and token[0].noted  # type: ignore[index]
            ]
            cursors = [(source.queue_id, source.cursor) for source in delivery.sources]
            closing.offsets = [(source.queue_id, source.lowest()) for source in delivery.sources]
            for run in [source.history for source in delivery.sources if source.history is not None]:
                if run.located:
                    closing.offsets.append((run.queue_id, run.lowest()))
                    cursors.append((run.queue_id, run.cursor))
            closing.inflight = resume.note(cursors, again, Redelivery(delivery).retained_to_note())
            closing.removed = delivery.outbound.removed.take()
        if is_up and not self.is_retaking:
            self._say(closing)
        else:
            self.closing = closing

    def _say(self, closing: SessionClose) -> None:
        self._services.calls.close(closing)
