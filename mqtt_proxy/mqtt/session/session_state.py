"""The state of a session, shared by `session`, `answers`, `deliveries` and the handlers, each of which is given it.

    SessionState   where the connection stands, its two windows, its output
      .terms       what CONNECT asked for and CONNACK granted
      .gathered    events of the read that is being taken

Which packet each status allows is the table in `session`; nothing else decides it.
Invariant: after `close` the status stays CLOSED; output from before may still be written. A client of MQTT 5 is sent
the reason when the server ends the connection, by CONNACK before it was accepted and by DISCONNECT after. Loop rule:
one event loop, no locks.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum

from mqtt_proxy.mqtt.codec.encode import connack5, disconnect5, reason_properties
from mqtt_proxy.mqtt.codec.limits import PACKET_SIZE_BYTES_MAX, SessionLimits
from mqtt_proxy.mqtt.codec.packets import LEVEL_3, LEVEL_5, Publish, Will
from mqtt_proxy.mqtt.codec.properties import Properties
from mqtt_proxy.mqtt.codec.reason_codes import CLOSE_CODES, VIOLATION_CODES, Reason, ReasonCode
from mqtt_proxy.mqtt.session.events import Acknowledged, Event, PublishBatch, Received, Released, Violated
from mqtt_proxy.mqtt.session.in_flight import Incoming, Outgoing
from mqtt_proxy.mqtt.session.topic_names import TopicNames
from remoting.protocol.errors import LocalMisuse


class Status(Enum):
    """The status of a connection between its opening and its end."""

    EXPECT_CONNECT = "nothing has come yet, only CONNECT may"
    DECIDING = "CONNECT is with the owner, who accepts or refuses"
    AUTHENTICATING = "the owner has asked for more before it decides, only AUTH may come"
    CONNECTED = "accepted"
    CLOSED = "ended; input is discarded"


class Terms:
    """What CONNECT requested and CONNACK granted; valid once CONNECT was read."""

    __slots__ = (
        "auth_method", "bridge", "clean", "client_id", "client_id_assigned", "keep_alive_s", "level",
        "packet_size_out_max", "problem_information", "session_expiry_s", "will",
    )  # fmt: skip

    def __init__(self) -> None:
        self.level = LEVEL_3
        """Protocol level, 4 or 5."""
        self.client_id = ""
        self.client_id_assigned = False
        self.clean = True
        self.session_expiry_s = 0
        self.keep_alive_s = 0
        self.will: Will | None = None
        """The will that is due when the connection ends; None before acceptance and after DISCONNECT."""
        self.auth_method: str | None = None
        self.bridge = False
        """Whether the client is another broker: it is not sent its own messages, and sees the retain flags."""
        self.problem_information = True
        """Whether the client wants reason strings and user properties with every answer."""
        self.packet_size_out_max = PACKET_SIZE_BYTES_MAX


class Gathered:
    """The events of one read, and lists gathered until they become an event. Each list exists while it has contents:
    between reads there is none.
    """

    __slots__ = ("acknowledged", "events", "publishes", "received", "released")

    def __init__(self) -> None:
        self.events: list[Event] | None = None
        self.publishes: list[Publish] | None = None
        self.acknowledged: list[object] | None = None
        self.received: list[int] | None = None
        self.released: list[int] | None = None

    def add(self, event: Event) -> None:
        """Add an event after those of this read."""
        if self.events is None:
            self.events = []
        self.events.append(event)

    def publishing(self) -> list[Publish]:
        """The list for the publishes of this read."""
        if self.publishes is None:
            self.publishes = []
        return self.publishes

    def acknowledging(self) -> list[object]:
        """The list for the tokens acknowledged in this read."""
        if self.acknowledged is None:
            self.acknowledged = []
        return self.acknowledged

    def receiving(self) -> list[int]:
        """The list for packet ids of QoS 2 deliveries whose PUBREC came in this read."""
        if self.received is None:
            self.received = []
        return self.received

    def releasing(self) -> list[int]:
        """The list for packet ids of QoS 2 publishes whose PUBREL came in this read."""
        if self.released is None:
            self.released = []
        return self.released


class SessionState:
    """The state of one connection. `assigned_client_id` makes the id of a client that sends none; `opened_ms` starts
    the deadline.
    """

    __slots__ = (
        "assigned_client_id", "challenged", "close_reason", "gathered", "incoming", "last_packet_ms", "limits", "names",
        "out", "outgoing", "publish_bytes", "status", "terms",
    )  # fmt: skip

    def __init__(
        self, limits: SessionLimits, assigned_client_id: Callable[[], str], names: TopicNames, opened_ms: int
    ) -> None:
        self.limits = limits
        self.names = names
        self.assigned_client_id = assigned_client_id
        self.status = Status.EXPECT_CONNECT
        self.close_reason: str | None = None
        self.terms = Terms()
        self.challenged = False
        """Whether the owner waits for the client's AUTH."""
        self.incoming = Incoming()
        self.outgoing = Outgoing(limits.in_flight_max)
        self.out: list[bytes | memoryview] = []
        self.gathered = Gathered()
        self.publish_bytes = 0
        """Bytes of the PUBLISH packets received, headers included, since the owner last reset it."""
        self.last_packet_ms = opened_ms

    # -- events --------------------------------------------------------------------------------------------------------

    def emit(self, event: Event) -> None:
        """Add an event that must stay behind the publishes before it."""
        self.end_run()
        self.gathered.add(event)

    def end_run(self) -> None:
        """Turn the gathered lists into events."""
        gathered = self.gathered
        if gathered.publishes is not None:
            if gathered.publishes:
                gathered.add(PublishBatch(gathered.publishes))
            gathered.publishes = None
        if gathered.acknowledged is not None:
            if gathered.acknowledged:
                gathered.add(Acknowledged(gathered.acknowledged))
                self.out += self.outgoing.resend()
            gathered.acknowledged = None
        if gathered.received is not None:
            window = self.outgoing.window
            tokens = [window[packet_id] for packet_id in gathered.received]
            gathered.add(Received(tokens, gathered.received))
            gathered.received = None
        if gathered.released is not None:
            gathered.add(Released(gathered.released))
            gathered.released = None

    def take_events(self) -> list[Event]:
        """The events of a finished read; clears them."""
        self.end_run()
        gathered = self.gathered
        events = gathered.events
        gathered.events = None
        return [] if events is None else events

    # -- the end -------------------------------------------------------------------------------------------------------

    def fail(self, reason: str, detail: str) -> None:
        """End the session because of its peer; adds the Violated event."""
        self.gathered.add(Violated(reason, detail))
        if self.terms.level == LEVEL_5:
            self.say_why(VIOLATION_CODES.get(reason, ReasonCode.UNSPECIFIED_ERROR), detail)
        self.close(reason)

    def close(self, reason: str) -> None:
        """Process no input and make no output from now on; what is in `out` may still be written.

        A `reason` whose first word is in `CLOSE_CODES` is sent to a client of MQTT 5.
        """
        if self.status is Status.CONNECTED and self.terms.level == LEVEL_5:
            code = CLOSE_CODES.get(reason.partition(":")[0])
            if code is not None:
                self.say_why(code, "")
        if self.status in (Status.DECIDING, Status.AUTHENTICATING):
            self.terms.will = None  # a connection that was never accepted leaves no will
        if self.status is not Status.CLOSED:
            self.status = Status.CLOSED
            self.close_reason = reason

    def say_why(self, code: int, reason_string: str, server_reference: Properties | None = None) -> None:
        """The last packet of a session of MQTT 5; nothing when it has ended already."""
        properties = reason_properties(reason_string) | (server_reference or {})
        if self.status is Status.CONNECTED:
            packet = disconnect5(code, properties)
            bare = disconnect5(code, server_reference)
        elif self.status is not Status.CLOSED:
            packet = connack5(False, code, properties)
            bare = connack5(False, code, server_reference)
        else:
            return
        # A reason string must be left out when it would make the packet too large for its receiver [MQTT-3.14.2-3].
        packet = packet if len(packet) <= self.terms.packet_size_out_max else bare
        if len(packet) <= self.terms.packet_size_out_max:
            self.out.append(packet)

    @property
    def will_due(self) -> bool:
        """Whether a will has to be published if the connection ends now."""
        return self.terms.will is not None and self.status not in (Status.DECIDING, Status.AUTHENTICATING)

    # -- answers -------------------------------------------------------------------------------------------------------

    def expects(self, *statuses: Status) -> bool:
        """Whether an answer can be sent: an ended session ignores it, in another status it is our own bug."""
        if self.status not in statuses and self.status is not Status.CLOSED:
            names = " or ".join(status.name for status in statuses)
            raise LocalMisuse(f"this call needs status {names}, the session is {self.status.name}")
        return self.status in statuses

    def explained(self, reason_string: str) -> Properties:
        """The reason string of an acknowledgement, unless the client refuses them [MQTT-3.1.2-29]."""
        return reason_properties(reason_string) if self.terms.problem_information else {}

    # -- keep-alive ----------------------------------------------------------------------------------------------------

    def deadline_ms(self) -> int | None:
        """When it is overdue: one and a half times its keep-alive [MQTT-3.1.2-24], or the deadline for CONNECT, or for
        the answer to a challenge. Never while the CONNECT is with the owner: that time is not the client's."""
        if self.status is Status.CONNECTED:
            return self.last_packet_ms + self.terms.keep_alive_s * 1_500 if self.terms.keep_alive_s else None
        if self.status is Status.DECIDING or self.status is Status.CLOSED:
            return None
        return self.last_packet_ms + self.limits.connect_deadline_ms

    def overdue(self) -> tuple[str, str]:
        """Reason and detail for ending an overdue session."""
        if self.status is Status.CONNECTED:
            return Reason.KEEP_ALIVE, f"silent for 1.5 x {self.terms.keep_alive_s} s [MQTT-3.1.2-24]"
        missing = "CONNECT" if self.status is Status.EXPECT_CONNECT else "answer to the AUTH packet"
        return Reason.CONNECT_TIMEOUT, f"no {missing} within {self.limits.connect_deadline_ms} ms"
