"""One MQTT connection without its socket: bytes in, events out; answers in, bytes out.

    EXPECT_CONNECT --CONNECT--> DECIDING --accept()--> CONNECTED --DISCONNECT / violation / silence--> CLOSED
                                |  ^   └---refuse()-----------------------------------------------------┘
                    challenge() v  | AUTH
                              AUTHENTICATING                                                  (MQTT 5 only)

This file has the input; `answers` and `deliveries` have what the owner says, `session_state` what all of them know.

Which packet is allowed in which state is `_TABLE`, nothing else; a pair that is not in it is a violation. Each handler
lives in the `handle_*` module named after its rule.

Invariants: `feed` never raises on what a peer sends: a violation becomes the last event and the session is closed.
While a CONNECT is being decided nothing behind it is looked at [MQTT-3.1.4-5]; the bytes wait, bounded. Output comes
only from `take_bytes`. Cutting the input differently gives the same events and output. Answers and deliveries that come
after the end are ignored: they cross with it.
Loop rule: one event loop, no locks. Pure: time comes in as `now_ms` (monotonic).
"""

from __future__ import annotations

from collections.abc import Callable

from mqtt_proxy.mqtt.codec import packets
from mqtt_proxy.mqtt.codec.decode import UnsupportedLevel, decode, level_of
from mqtt_proxy.mqtt.codec.packets import LEVEL_5, PACKET_NAMES, Packet
from mqtt_proxy.mqtt.codec.reason_codes import PacketViolation, Reason
from mqtt_proxy.mqtt.codec.wire import encode_length, fixed_header
from mqtt_proxy.mqtt.session import handle_auth, handle_connect, handle_publish, handle_subscribe, keepalive
from mqtt_proxy.mqtt.session.answers import Answers
from mqtt_proxy.mqtt.session.events import Event
from mqtt_proxy.mqtt.session.scan import IN_USE
from mqtt_proxy.mqtt.session.states import State

Handler = Callable[["Session", Packet], None]

# Members of an enumeration are looked up slowly.
_EXPECT_CONNECT, _DECIDING, _AUTHENTICATING = State.EXPECT_CONNECT, State.DECIDING, State.AUTHENTICATING
_CONNECTED, _CLOSED = State.CONNECTED, State.CLOSED


class Session(Answers):
    """One client connection."""

    __slots__ = ()

    # -- input ---------------------------------------------------------------------------------------------------------

    def feed(self, data: bytes, now_ms: int) -> list[Event]:
        """Take what the socket had; the events it causes, in order. Empty `data` goes on with what was held back.

        After `accept` call it with b"" when `input_held` is true. Never raises on peer data.
        """
        if self._held is not None:
            self._held += data
            if len(self._held) < self._needed_bytes or self.state is _DECIDING:
                self._heard(now_ms)
                return self._bounded_wait()
            data = bytes(self._held)
            self._held = None
        if self.state is _CLOSED or not data:
            return []
        events: list[Event] = []
        self.events = events
        position = IN_USE.runs(self, data, 0, len(data)) if self.state is _CONNECTED else 0
        if position == len(data):  # nothing but plain publishes and acknowledgements
            self.last_packet_ms = now_ms
            self.end_run()
            return events
        try:
            position = self._consume(data, position)
        except PacketViolation as violation:
            if isinstance(violation, UnsupportedLevel):
                self.out.append(handle_connect.level_refusal(violation))
            self.end_run()
            self.fail(violation.reason, violation.detail)
            return events
        self.end_run()
        if position:
            self.last_packet_ms = now_ms
        else:
            self._heard(now_ms)
        if position < len(data) and self.close_reason is None:
            self._held = bytearray(data[position:] if position else data)
            if self.state is _DECIDING:
                events += self._bounded_wait()
        return events

    def _heard(self, now_ms: int) -> None:
        """A piece of a packet has come: an accepted client that is in the middle of a large one is not silent."""
        if self.state is _CONNECTED:
            self.last_packet_ms = now_ms

    def _bounded_wait(self) -> list[Event]:
        """Hold input back while there is too little of it or a CONNECT is being decided."""
        held_bytes = len(self._held or b"")
        if self.state is _DECIDING and held_bytes > self.limits.unauthenticated_bytes_max:
            events: list[Event] = []
            self.events = events
            self.fail(Reason.UNACCEPTED_INPUT, f"{held_bytes} bytes sent before CONNACK")
            return events
        return []

    def _consume(self, data: bytes, position: int) -> int:
        """Handle every complete packet from `position` on; where the first incomplete or held back one begins."""
        end = len(data)
        self._needed_bytes = 0
        while position < end:
            state = self.state
            if state is _CONNECTED:
                position = IN_USE.runs(self, data, position, end)
                if position == end:
                    break
            elif state is _DECIDING or state is _CLOSED:
                break
            header = fixed_header(data, position, end)
            if header is None:
                self._needed_bytes = end - position + 1
                break
            body, length = header
            self._check_size(data[position], body - position + length)
            stop = body + length
            if stop > end:
                self._needed_bytes = stop - position
                break
            if state is _EXPECT_CONNECT:
                self.level = level_of(data[body:stop])
            if self.level == LEVEL_5 and body - position - 1 != len(encode_length(length)):
                raise PacketViolation(Reason.LENGTH, "remaining length is longer than it need be [MQTT-1.5.5-1]")
            if data[position] >> 4 == packets.PUBLISH:
                self.publish_bytes += stop - position
            self._handle(data[position], data[body:stop])
            position = stop
        return position

    def _check_size(self, first: int, size_bytes: int) -> None:
        """Judge a packet, header included [3.1.2.11.4], by its header alone, before any of it is kept."""
        if self.state is _EXPECT_CONNECT:
            if first >> 4 != packets.CONNECT:
                name = PACKET_NAMES.get(first >> 4, "a reserved packet type")
                raise PacketViolation(Reason.UNEXPECTED, f"{name} before CONNECT [MQTT-3.1.0-1]")
            size_bytes_max = self.limits.unauthenticated_bytes_max
        elif self.state is _AUTHENTICATING:
            size_bytes_max = self.limits.unauthenticated_bytes_max
        else:
            size_bytes_max = self.limits.packet_size_bytes_max
        if size_bytes > size_bytes_max:
            raise PacketViolation(Reason.TOO_LARGE, f"packet of {size_bytes} bytes, at most {size_bytes_max}")

    def _handle(self, first: int, body: bytes) -> None:
        handler = _TABLE[self.state].get(first >> 4)
        if handler is None and first >> 4 in PACKET_NAMES:
            name = PACKET_NAMES[first >> 4]
            clause = " [MQTT-3.1.0-2]" if first >> 4 == packets.CONNECT else ""
            raise PacketViolation(Reason.UNEXPECTED, f"{name} from a client in state {self.state.name}{clause}")
        packet = decode(first, body, self.level)
        assert handler is not None, first  # decode refuses the reserved types
        handler(self, packet)

    # -- output and time -----------------------------------------------------------------------------------------------

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
        return self.will is not None and self.state not in (_DECIDING, _AUTHENTICATING)

    def next_deadline_ms(self) -> int | None:
        """When `tick` has something to say if nothing arrives until then; None = never."""
        return keepalive.deadline_ms(self)

    def tick(self, now_ms: int) -> list[Event]:
        """Violated when the deadline has passed, else nothing."""
        due_ms = keepalive.deadline_ms(self)
        if due_ms is None or now_ms < due_ms:
            return []
        events: list[Event] = []
        self.events = events
        reason, detail = keepalive.overdue(self)
        self.fail(reason, detail)
        return events

    def excuse_silence(self, now_ms: int) -> None:
        """Restart the keep-alive: it was this side that did not read."""
        self.last_packet_ms = now_ms


_TABLE: dict[State, dict[int, Handler]] = {
    State.EXPECT_CONNECT: {packets.CONNECT: handle_connect.connect},
    State.DECIDING: {},
    State.AUTHENTICATING: {packets.AUTH: handle_auth.answer, packets.DISCONNECT: handle_connect.disconnect},
    State.CONNECTED: {
        packets.PUBLISH: handle_publish.publish,
        packets.PUBACK: handle_publish.acknowledged,
        packets.PUBREC: handle_publish.received,
        packets.PUBREL: handle_publish.release,
        packets.PUBCOMP: handle_publish.completed,
        packets.SUBSCRIBE: handle_subscribe.subscribe,
        packets.UNSUBSCRIBE: handle_subscribe.unsubscribe,
        packets.PINGREQ: handle_connect.ping,
        packets.DISCONNECT: handle_connect.disconnect,
        packets.AUTH: handle_auth.answer,
    },
    State.CLOSED: {},
}
"""state -> packet type -> handler; what is not here closes the connection."""
