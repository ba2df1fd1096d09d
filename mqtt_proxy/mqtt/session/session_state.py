"""What a session knows, and the two ways it ends: the ground that `deliveries`, `answers` and `session` stand on.

Invariant: after `close` the state is CLOSED and stays so; what was put out before may still be written. A client of
MQTT 5 is told why the server ends the connection, by CONNACK before it was accepted and by DISCONNECT after.
Loop rule: one event loop, no locks.
"""

from __future__ import annotations

from collections.abc import Callable

from mqtt_proxy.mqtt.codec import encode5
from mqtt_proxy.mqtt.codec.limits import PACKET_SIZE_BYTES_MAX, SessionLimits
from mqtt_proxy.mqtt.codec.packets import LEVEL_3, LEVEL_5, Publish, Will
from mqtt_proxy.mqtt.codec.properties import Properties
from mqtt_proxy.mqtt.codec.reason_codes import CLOSE_CODES, VIOLATION_CODES, ReasonCode
from mqtt_proxy.mqtt.session.aliases import IncomingAliases, OutgoingAliases
from mqtt_proxy.mqtt.session.events import Acknowledged, Event, PublishBatch, Received, Released, Violated
from mqtt_proxy.mqtt.session.incoming import Incoming
from mqtt_proxy.mqtt.session.outgoing import Outgoing
from mqtt_proxy.mqtt.session.qos2_steps import Qos2Steps
from mqtt_proxy.mqtt.session.states import State
from mqtt_proxy.mqtt.session.topic_names import TopicNames
from remoting.protocol.errors import LocalMisuse


class SessionState:
    """The fields of a session. `assigned_client_id` makes the id of a client that sends none; `opened_ms` starts the
    deadline.
    """

    __slots__ = (
        "_held",
        "_needed_bytes",
        "acknowledged",
        "aliases_in",
        "aliases_out",
        "assigned_client_id",
        "auth_method",
        "bridge",
        "challenged",
        "clean",
        "client_id",
        "client_id_assigned",
        "close_reason",
        "events",
        "exact",
        "incoming",
        "keep_alive_s",
        "last_packet_ms",
        "level",
        "limits",
        "names",
        "out",
        "outgoing",
        "packet_size_out_max",
        "problem_information",
        "publish_bytes",
        "publishes",
        "received",
        "released",
        "session_expiry_s",
        "state",
        "stray_acknowledgements",
        "will",
    )

    def __init__(
        self,
        limits: SessionLimits,
        *,
        assigned_client_id: Callable[[], str],
        names: TopicNames | None = None,
        opened_ms: int = 0,
    ) -> None:
        self.limits = limits
        self.names = TopicNames(limits) if names is None else names
        self.assigned_client_id = assigned_client_id
        self.state = State.EXPECT_CONNECT
        self.level = LEVEL_3
        """Protocol level, 4 or 5; of meaning once CONNECT was read."""
        self.client_id = ""
        self.client_id_assigned = False
        self.clean = True
        self.session_expiry_s = 0
        self.keep_alive_s = 0
        self.will: Will | None = None
        """The will that is due when the connection ends; None before acceptance and after DISCONNECT."""
        self.auth_method: str | None = None
        self.bridge = False
        """Whether the client is another broker: it is not sent what it published itself, and sees the retain flags."""
        self.challenged = False
        """Whether the owner waits for the client's AUTH."""
        self.problem_information = True
        """Whether the client wants reason strings and user properties with every answer."""
        self.packet_size_out_max = PACKET_SIZE_BYTES_MAX
        self.close_reason: str | None = None
        self.publish_bytes = 0
        """Bytes of the PUBLISH packets received, headers included, since the owner took them last."""
        self.stray_acknowledgements = 0
        """Acknowledgements of deliveries that were not in flight: ignored, counted."""
        self.incoming = Incoming()
        self.outgoing = Outgoing(limits.in_flight_max)
        self.aliases_in: IncomingAliases | None = None
        self.aliases_out: OutgoingAliases | None = None
        self.out: list[bytes | memoryview] = []
        self.events: list[Event] | None = None
        """Those of the read that is being taken; like the lists below there while there is something to be said."""
        self.exact: Qos2Steps | None = None
        """There when the owner makes the steps of QoS 2 deliveries durable."""
        self.publishes: list[Publish] | None = None
        self.acknowledged: list[object] | None = None
        self.received: list[int] | None = None
        """Packet ids of QoS 2 deliveries whose PUBREC came in this read."""
        self.released: list[int] | None = None
        """Packet ids of QoS 2 publishes whose PUBREL came in this read."""
        self._held: bytearray | None = None
        self._needed_bytes = 0
        self.last_packet_ms = opened_ms

    # -- what the handlers use -----------------------------------------------------------------------------------------

    def emit(self, event: Event) -> None:
        """Add an event that must stay behind the publishes before it."""
        self.end_run()
        self._add(event)

    def _add(self, event: Event) -> None:
        if self.events is None:
            self.events = []
        self.events.append(event)

    def publishing(self) -> list[Publish]:
        """Where the publishes of this read go."""
        if self.publishes is None:
            self.publishes = []
        return self.publishes

    def acknowledging(self) -> list[object]:
        """Where the tokens acknowledged in this read go."""
        if self.acknowledged is None:
            self.acknowledged = []
        return self.acknowledged

    def receiving(self) -> list[int]:
        """Where the packet ids of this read's PUBRECs go."""
        if self.received is None:
            self.received = []
        return self.received

    def releasing(self) -> list[int]:
        """Where the packet ids of this read's PUBRELs go."""
        if self.released is None:
            self.released = []
        return self.released

    def end_run(self) -> None:
        """Make events of what was gathered."""
        if self.publishes is not None:
            if self.publishes:
                self._add(PublishBatch(self.publishes))
            self.publishes = None
        if self.acknowledged is not None:
            if self.acknowledged:
                self._add(Acknowledged(self.acknowledged))
                self.out += self.outgoing.resend()
            self.acknowledged = None
        if self.received is not None:
            window = self.outgoing.window
            self._add(Received([window[packet_id] for packet_id in self.received], self.received))
            self.received = None
        if self.released is not None:
            self._add(Released(self.released))
            self.released = None

    def fail(self, reason: str, detail: str) -> None:
        """End the session because of its peer; adds the Violated event."""
        self._add(Violated(reason, detail))
        if self.level == LEVEL_5:
            self.say_why(VIOLATION_CODES.get(reason, ReasonCode.UNSPECIFIED_ERROR), detail)
        self.close(reason)

    def close(self, reason: str) -> None:
        """No input is looked at and no output is made from now on; what is in `out` may still be written.

        A `reason` whose first word is one of `CLOSE_CODES` is told to a client of MQTT 5.
        """
        if self.state is State.CONNECTED and self.level == LEVEL_5:
            code = CLOSE_CODES.get(reason.partition(":")[0])
            if code is not None:
                self.say_why(code, "")
        if self.state in (State.DECIDING, State.AUTHENTICATING):
            self.will = None  # a connection that was never accepted leaves no will
        if self.state is not State.CLOSED:
            self.state = State.CLOSED
            self.close_reason = reason
            self._held = None

    def say_why(self, code: int, reason_string: str, server_reference: Properties | None = None) -> None:
        """The last packet of a session of MQTT 5; nothing when it has ended already."""
        properties = encode5.reason_properties(reason_string) | (server_reference or {})
        if self.state is State.CONNECTED:
            packet = encode5.disconnect(code, properties)
            bare = encode5.disconnect(code, server_reference)
        elif self.state is not State.CLOSED:
            packet = encode5.connack(False, code, properties)
            bare = encode5.connack(False, code, server_reference)
        else:
            return
        # A reason string must be left out when it would make the packet too large for its receiver [MQTT-3.14.2-3].
        packet = packet if len(packet) <= self.packet_size_out_max else bare
        if len(packet) <= self.packet_size_out_max:
            self.out.append(packet)

    def explained(self, reason_string: str, user: list[tuple[bytes, bytes]] | None = None) -> Properties:
        """Reason string and user properties of an acknowledgement, unless the client wants none [MQTT-3.1.2-29]."""
        return encode5.reason_properties(reason_string, user or ()) if self.problem_information else {}

    def answers(self, *states: State) -> bool:
        """Whether an answer is wanted: an ended session takes none, in another state it is our own bug."""
        if self.state not in states and self.state is not State.CLOSED:
            names = " or ".join(state.name for state in states)
            raise LocalMisuse(f"this call needs state {names}, the session is {self.state.name}")
        return self.state in states
