"""One MQTT connection without its socket: bytes in, events out; answers in, bytes out.

    EXPECT_CONNECT --CONNECT--> DECIDING --accept()--> CONNECTED --DISCONNECT / violation / silence--> CLOSED
                                   └------refuse()------------------------------------------------------┘

Which packet is allowed in which state is `_TABLE`, nothing else; a pair that is not in it is a violation. Each handler
lives in the `handle_*` module named after its rule.

Invariants: `feed` never raises on what a peer sends: a violation becomes the last event and the session is closed.
While a CONNECT is being decided nothing behind it is looked at [MQTT-3.1.4-5]; the bytes wait, bounded. Output comes
only from `take_bytes`. Cutting the input differently gives the same events and output. Answers and deliveries that come
after the end are ignored: they cross with it.
Loop rule: one event loop, no locks. Pure: time comes in as `now_ms` (monotonic).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from mqtt_proxy.mqtt import handle_connect, handle_publish, handle_subscribe, keepalive, packets
from mqtt_proxy.mqtt.codec import UnsupportedLevel, decode
from mqtt_proxy.mqtt.encode import connack, publish_head, suback, unsuback
from mqtt_proxy.mqtt.events import Acknowledged, Event, PublishBatch, Violated
from mqtt_proxy.mqtt.incoming import Incoming
from mqtt_proxy.mqtt.limits import SessionLimits
from mqtt_proxy.mqtt.outgoing import Outgoing
from mqtt_proxy.mqtt.packets import PACKET_NAMES, Packet, Publish, Will
from mqtt_proxy.mqtt.reason_codes import ConnectCode, PacketViolation, Reason
from mqtt_proxy.mqtt.scan import scan_acknowledgements, scan_publishes
from mqtt_proxy.mqtt.states import State
from mqtt_proxy.mqtt.topic_names import TopicNames
from mqtt_proxy.mqtt.wire import fixed_header
from remoting.protocol.errors import LocalMisuse

Handler = Callable[["Session", Packet], None]


class Session:
    """One client connection. `assigned_client_id` makes the id of a client that sends none; `opened_ms` starts the
    deadline.
    """

    __slots__ = (
        "_held",
        "_needed_bytes",
        "acknowledged",
        "assigned_client_id",
        "clean",
        "client_id",
        "close_reason",
        "events",
        "incoming",
        "keep_alive_s",
        "last_packet_ms",
        "limits",
        "names",
        "out",
        "outgoing",
        "publishes",
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
        self.client_id = ""
        self.clean = True
        self.keep_alive_s = 0
        self.will: Will | None = None
        """The will that is due when the connection ends; None before acceptance and after DISCONNECT."""
        self.close_reason: str | None = None
        self.stray_acknowledgements = 0
        """Acknowledgements of deliveries that were not in flight: ignored, counted."""
        self.incoming = Incoming()
        self.outgoing = Outgoing(limits.in_flight_max)
        self.out: list[bytes | memoryview] = []
        self.events: list[Event] = []
        self.publishes: list[Publish] = []
        self.acknowledged: list[object] = []
        self._held: bytearray | None = None
        self._needed_bytes = 0
        self.last_packet_ms = opened_ms

    # -- input ---------------------------------------------------------------------------------------------------------

    def feed(self, data: bytes, now_ms: int) -> list[Event]:
        """Take what the socket had; the events it causes, in order. Empty `data` goes on with what was held back.

        After `accept` call it with b"" when `input_held` is true. Never raises on peer data.
        """
        if self._held is not None:
            self._held += data
            if len(self._held) < self._needed_bytes or self.state is State.DECIDING:
                return self._bounded_wait()
            data = bytes(self._held)
            self._held = None
        if self.state is State.CLOSED or not data:
            return []
        events: list[Event] = []
        self.events = events
        try:
            position = self._consume(data)
        except PacketViolation as violation:
            if isinstance(violation, UnsupportedLevel):
                self.out.append(handle_connect.level_refusal(violation))
            self._end_run()
            self.fail(violation.reason, violation.detail)
            return events
        self._end_run()
        if position:
            self.last_packet_ms = now_ms
        if position < len(data) and self.close_reason is None:
            self._held = bytearray(data[position:] if position else data)
            if self.state is State.DECIDING:
                events += self._bounded_wait()
        return events

    def _bounded_wait(self) -> list[Event]:
        """Hold input back while there is too little of it or a CONNECT is being decided."""
        held_bytes = len(self._held or b"")
        if self.state is State.DECIDING and held_bytes > self.limits.unauthenticated_bytes_max:
            events: list[Event] = []
            self.events = events
            self.fail(Reason.UNACCEPTED_INPUT, f"{held_bytes} bytes sent before CONNACK")
            return events
        return []

    def _consume(self, data: bytes) -> int:
        """Handle every complete packet at the front of `data`; where the first incomplete or held back one begins."""
        position = 0
        end = len(data)
        self._needed_bytes = 0
        while position < end:
            state = self.state
            if state is State.CONNECTED:
                position = self._consume_runs(data, position, end)
                if position == end:
                    break
            elif state is not State.EXPECT_CONNECT:
                break
            header = fixed_header(data, position, end)
            if header is None:
                self._needed_bytes = end - position + 1
                break
            body, length = header
            self._check_size(data[position], length)
            stop = body + length
            if stop > end:
                self._needed_bytes = stop - position
                break
            self._handle(data[position], data[body:stop])
            position = stop
        return position

    def _consume_runs(self, data: bytes, position: int, end: int) -> int:
        """Take the runs of plain PUBLISHes and PUBACKs at `position`; the position of the first packet that is
        neither.
        """
        before = -1
        while position != before and position < end:
            before = position
            if data[position] == 0x40:
                position = scan_acknowledgements(data, position, end, self.outgoing.window, self.acknowledged)
            else:
                position = scan_publishes(
                    data,
                    position,
                    end,
                    body_size_bytes_max=self.limits.packet_size_bytes_max,
                    known_topics=self.names.known,
                    publishes=self.publishes,
                    packet_ids=self.incoming.pending,
                )
        return position

    def _check_size(self, first: int, length: int) -> None:
        """Judge a packet by its header alone, before any of it is kept."""
        if self.state is State.EXPECT_CONNECT:
            if first >> 4 != packets.CONNECT:
                name = PACKET_NAMES.get(first >> 4, "a reserved packet type")
                raise PacketViolation(Reason.UNEXPECTED, f"{name} before CONNECT [MQTT-3.1.0-1]")
            size_bytes_max = self.limits.unauthenticated_bytes_max
        else:
            size_bytes_max = self.limits.packet_size_bytes_max
        if length > size_bytes_max:
            raise PacketViolation(Reason.TOO_LARGE, f"packet of {length} bytes, at most {size_bytes_max}")

    def _handle(self, first: int, body: bytes) -> None:
        handler = _TABLE[self.state].get(first >> 4)
        if handler is None and first >> 4 in PACKET_NAMES:
            name = PACKET_NAMES[first >> 4]
            clause = " [MQTT-3.1.0-2]" if first >> 4 == packets.CONNECT else ""
            raise PacketViolation(Reason.UNEXPECTED, f"{name} from a client in state {self.state.name}{clause}")
        packet = decode(first, body)
        assert handler is not None, first  # decode refuses the reserved types
        handler(self, packet)

    # -- what the handlers use -----------------------------------------------------------------------------------------

    def emit(self, event: Event) -> None:
        """Add an event that must stay behind the publishes before it."""
        self._end_run()
        self.events.append(event)

    def _end_run(self) -> None:
        if self.publishes:
            self.events.append(PublishBatch(self.publishes))
            self.publishes = []
        if self.acknowledged:
            self.events.append(Acknowledged(self.acknowledged))
            self.acknowledged = []

    def fail(self, reason: str, detail: str) -> None:
        """End the session because of its peer; adds the Violated event."""
        self.events.append(Violated(reason, detail))
        self.close(reason)

    def close(self, reason: str) -> None:
        """No input is looked at and no output is made from now on; what is in `out` may still be written."""
        if self.state is State.DECIDING:
            self.will = None  # a connection that was never accepted leaves no will
        if self.state is not State.CLOSED:
            self.state = State.CLOSED
            self.close_reason = reason
            self._held = None

    # -- answers -------------------------------------------------------------------------------------------------------

    def accept(
        self,
        session_present: bool,
        inflight: Sequence[tuple[int, object]] = (),
        received_ids: Iterable[int] = (),
    ) -> None:
        """CONNACK 0. `inflight` = deliveries of the resumed session not yet acknowledged, in order of sending (then
        call `redeliver` for each), `received_ids` = QoS 2 ids its previous connection had taken (`received_ids()` of
        that session).
        """
        if not self._answers(State.DECIDING):
            return
        if session_present and self.clean:
            raise LocalMisuse("a clean session has nothing present [MQTT-3.2.2-1]")
        self.outgoing.restore(inflight)
        self.incoming.exactly_once = dict.fromkeys(received_ids, True)
        self.out.append(connack(session_present, ConnectCode.ACCEPTED))
        self.state = State.CONNECTED

    def refuse(self, code: int) -> None:
        """CONNACK with a code of `ConnectCode`; the connection must be closed after `take_bytes`."""
        if not self._answers(State.DECIDING):
            return
        if code == ConnectCode.ACCEPTED:
            raise LocalMisuse("a refusal needs a code above 0")
        self.out.append(connack(False, code))
        self.close(Reason.REFUSED)

    def acknowledge(self, packet_ids: Iterable[int]) -> None:
        """These publishes are durable: PUBACK or PUBREC, in the order of receipt. Once the session is closed only
        `received_ids` learns of it.
        """
        if self.state is State.CONNECTED:
            ready = self.incoming.acknowledge(packet_ids)
            if ready:
                self.out.append(ready)
        elif self.incoming.pending:
            self.incoming.acknowledge(packet_ids)

    def grant(self, packet_id: int, codes: Sequence[int]) -> None:
        """SUBACK: the granted QoS or `SUBSCRIBE_FAILURE` per filter."""
        if self.state is State.CONNECTED:
            self.out.append(suback(packet_id, codes))

    def unsubscribed(self, packet_id: int) -> None:
        """UNSUBACK."""
        if self.state is State.CONNECTED:
            self.out.append(unsuback(packet_id))

    # -- deliveries ----------------------------------------------------------------------------------------------------

    @property
    def window_free(self) -> int:
        """Deliveries with QoS > 0 that may be sent now."""
        return self.outgoing.free

    def deliver(
        self, topic: bytes, payload: bytes | memoryview, qos: int, retain: bool, dup: bool, token: object
    ) -> int:
        """Send a PUBLISH; its packet id, 0 for QoS 0. `token` comes back in Acknowledged. LocalMisuse when the window
        is full.
        """
        return self.deliver_prepared(publish_head(topic, len(payload), qos, retain, dup), payload, qos, token)

    def deliver_prepared(self, head: bytes, payload: bytes | memoryview, qos: int, token: object) -> int:
        """`deliver` with the head made before by `encode.publish_head`: a fan-out makes it once for all receivers."""
        if self.state is not State.CONNECTED and not self._answers(State.CONNECTED):
            return 0
        if qos == 0:
            self.out += (head, payload)
            return 0
        packet_id = self.outgoing.assign(token)
        self.out += (head, packet_id.to_bytes(2, "big"), payload)
        return packet_id

    def redeliver(
        self, packet_id: int, topic: bytes, payload: bytes | memoryview, qos: int, retain: bool, token: object
    ) -> None:
        """Send a delivery of the resumed session again: DUP set [MQTT-3.3.1-1], its original id [MQTT-4.4.0-1]."""
        if not self._answers(State.CONNECTED):
            return
        self.outgoing.replace(packet_id, token)
        head = publish_head(topic, len(payload), qos, retain, True)
        self.out += (head, packet_id.to_bytes(2, "big"), payload)

    def forget(self, packet_id: int) -> None:
        """Free the window slot of a resumed delivery whose message no longer exists."""
        self.outgoing.forget(packet_id)

    def inflight(self) -> list[tuple[int, object]]:
        """(packet id, token) of the deliveries not yet acknowledged, in order of sending."""
        return list(self.outgoing.window.items())

    def received_ids(self) -> list[int]:
        """QoS 2 ids whose message is durable and whose PUBREL has not come: for `accept` of the next connection."""
        return [packet_id for packet_id, confirmed in self.incoming.exactly_once.items() if confirmed]

    # -- output and time -----------------------------------------------------------------------------------------------

    @property
    def output_pending(self) -> bool:
        """Whether `take_bytes` has something."""
        return bool(self.out)

    def take_bytes(self) -> bytes:
        """Everything to be written now, joined; leaves nothing behind."""
        joined = b"".join(self.out)
        self.out.clear()
        return joined

    @property
    def input_held(self) -> bool:
        """Whether bytes wait inside: `feed(b"", now_ms)` goes on with them after `accept`."""
        return self._held is not None

    @property
    def will_due(self) -> bool:
        """Whether a will has to be published if the connection ends now."""
        return self.will is not None and self.state is not State.DECIDING

    def next_deadline_ms(self) -> int | None:
        """When `tick` has something to say if nothing arrives until then; None = never."""
        return keepalive.deadline_ms(self)

    def tick(self, now_ms: int) -> list[Event]:
        """Violated when the deadline has passed, else nothing."""
        due_ms = keepalive.deadline_ms(self)
        if due_ms is None or now_ms < due_ms:
            return []
        self.events = []
        self.fail(*keepalive.overdue(self))
        return self.events

    def excuse_silence(self, now_ms: int) -> None:
        """Restart the keep-alive: it was this side that did not read."""
        self.last_packet_ms = now_ms

    def _answers(self, state: State) -> bool:
        """Whether an answer is wanted: an ended session takes none, in another state it is our own bug."""
        if self.state is not state and self.state is not State.CLOSED:
            raise LocalMisuse(f"this call needs state {state.name}, the session is {self.state.name}")
        return self.state is state


_TABLE: dict[State, dict[int, Handler]] = {
    State.EXPECT_CONNECT: {packets.CONNECT: handle_connect.connect},
    State.DECIDING: {},
    State.CONNECTED: {
        packets.PUBLISH: handle_publish.publish,
        packets.PUBACK: handle_publish.acknowledged,
        packets.PUBREC: handle_publish.stray,
        packets.PUBREL: handle_publish.release,
        packets.PUBCOMP: handle_publish.stray,
        packets.SUBSCRIBE: handle_subscribe.subscribe,
        packets.UNSUBSCRIBE: handle_subscribe.unsubscribe,
        packets.PINGREQ: handle_connect.ping,
        packets.DISCONNECT: handle_connect.disconnect,
    },
    State.CLOSED: {},
}
"""state -> packet type -> handler; what is not here closes the connection."""
