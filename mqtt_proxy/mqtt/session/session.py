"""One MQTT connection without its socket: bytes in, events out; answers in, bytes out.

    EXPECT_CONNECT --CONNECT--> DECIDING --accept()--> CONNECTED --DISCONNECT / violation / silence--> CLOSED
                                |  ^   └---refuse()-----------------------------------------------------┘
                    challenge() v  | AUTH
                              AUTHENTICATING                                                  (MQTT 5 only)

A session is assembled here: this file has the input, `answers` and `deliveries` the owner's calls, and all of them
share the same `session_state`.

Which packet is allowed in which status is `_TABLE`, nothing else; a pair that is not in it is a violation. The handlers
are in `handlers` and are given the state.

Invariants: `feed` never raises for any input: a violation becomes the last event and the session is closed. While a
CONNECT is being decided nothing after it is parsed [MQTT-3.1.4-5]; the bytes wait, bounded. Output is returned only by
`take_bytes`. Cutting the input differently gives the same events and output. Answers and deliveries after the end are
ignored: the two may cross.
Loop rule: one event loop, no locks. Pure: time comes in as `now_ms` (monotonic).
"""

from __future__ import annotations

from collections.abc import Callable

from mqtt_proxy.mqtt.codec import packets
from mqtt_proxy.mqtt.codec.decode import UnsupportedLevel, decode, level_of
from mqtt_proxy.mqtt.codec.limits import SessionLimits
from mqtt_proxy.mqtt.codec.packets import LEVEL_5, PACKET_NAMES, Packet
from mqtt_proxy.mqtt.codec.reason_codes import PacketViolation, Reason
from mqtt_proxy.mqtt.codec.wire import encode_length, fixed_header
from mqtt_proxy.mqtt.session import handlers, scan
from mqtt_proxy.mqtt.session.answers import Answers
from mqtt_proxy.mqtt.session.deliveries import Deliveries
from mqtt_proxy.mqtt.session.events import Event
from mqtt_proxy.mqtt.session.session_state import SessionState, Status
from mqtt_proxy.mqtt.session.topic_names import TopicNames

Handler = Callable[[SessionState, Packet], None]

# Looking up members of an enumeration is slow.
_EXPECT_CONNECT, _DECIDING, _AUTHENTICATING = Status.EXPECT_CONNECT, Status.DECIDING, Status.AUTHENTICATING
_CONNECTED, _CLOSED = Status.CONNECTED, Status.CLOSED


class Session:
    """One client connection. `assigned_client_id` makes the id of a client that sends none; `opened_ms` starts the
    deadline.
    """

    __slots__ = ("_held", "_needed_bytes", "answers", "deliveries", "state")

    def __init__(
        self,
        limits: SessionLimits,
        *,
        assigned_client_id: Callable[[], str],
        names: TopicNames | None = None,
        opened_ms: int = 0,
    ) -> None:
        names = TopicNames(limits) if names is None else names
        self.state = SessionState(limits, assigned_client_id, names, opened_ms)
        self.answers = Answers(self.state)
        """The owner's answers to requests."""
        self.deliveries = Deliveries(self.state)
        """The owner's deliveries."""
        self._held: bytearray | None = None
        """Input that waits: the beginning of a packet, or what followed a CONNECT that is being decided."""
        self._needed_bytes = 0

    # -- input ---------------------------------------------------------------------------------------------------------

    def feed(self, data: bytes, now_ms: int) -> list[Event]:
        """Take bytes from the socket; returns the events in order. Empty `data` continues with input held back.

        After `accept` call it with b"" when `input_held` is true. Never raises for any input.
        """
        state = self.state
        if self._held is not None:
            self._held += data
            if len(self._held) < self._needed_bytes or state.status is _DECIDING:
                self._note_packet(now_ms)
                self._bound_wait()
                return state.take_events()
            data = bytes(self._held)
            self._held = None
        if state.status is _CLOSED or not data:
            return []
        position = scan.runs(state, data, 0, len(data)) if state.status is _CONNECTED else 0
        if position == len(data):  # nothing but plain publishes and acknowledgements
            state.last_packet_ms = now_ms
            return state.take_events()
        try:
            position = self._consume(data, position)
        except PacketViolation as violation:
            if isinstance(violation, UnsupportedLevel):
                state.out.append(handlers.level_refusal(violation))
            state.end_run()
            state.fail(violation.reason, violation.detail)
            return state.take_events()
        state.end_run()
        if position:
            state.last_packet_ms = now_ms
        else:
            self._note_packet(now_ms)
        if position < len(data) and state.close_reason is None:
            self._held = bytearray(data[position:] if position else data)
            self._bound_wait()
        return state.take_events()

    def _note_packet(self, now_ms: int) -> None:
        """A part of a packet arrived: an accepted client in the middle of a large one is not silent."""
        if self.state.status is _CONNECTED:
            self.state.last_packet_ms = now_ms

    def _bound_wait(self) -> None:
        """End a session that sends too much while its CONNECT is being decided."""
        state = self.state
        held_bytes = len(self._held or b"")
        if state.status is _DECIDING and held_bytes > state.limits.unauthenticated_bytes_max:
            self._held = None
            state.fail(Reason.UNACCEPTED_INPUT, f"{held_bytes} bytes sent before CONNACK")

    def _consume(self, data: bytes, position: int) -> int:
        """Handle every complete packet from `position` on; where the first incomplete or held back one begins."""
        end = len(data)
        state = self.state
        self._needed_bytes = 0
        while position < end:
            status = state.status
            if status is _CONNECTED:
                position = scan.runs(state, data, position, end)
                if position == end:
                    break
            elif status is _DECIDING or status is _CLOSED:
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
            if status is _EXPECT_CONNECT:
                state.terms.level = level_of(data[body:stop])
            if state.terms.level == LEVEL_5 and body - position - 1 != len(encode_length(length)):
                raise PacketViolation(Reason.LENGTH, "remaining length is longer than it need be [MQTT-1.5.5-1]")
            if data[position] >> 4 == packets.PUBLISH:
                state.publish_bytes += stop - position
            self._handle(data[position], data[body:stop])
            position = stop
        return position

    def _check_size(self, first: int, size_bytes: int) -> None:
        """Check a packet, header included [3.1.2.11.4], by its header alone, before any of it is kept."""
        state = self.state
        if state.status is _EXPECT_CONNECT:
            if first >> 4 != packets.CONNECT:
                name = PACKET_NAMES.get(first >> 4, "a reserved packet type")
                raise PacketViolation(Reason.UNEXPECTED, f"{name} before CONNECT [MQTT-3.1.0-1]")
            size_bytes_max = state.limits.unauthenticated_bytes_max
        elif state.status is _AUTHENTICATING:
            size_bytes_max = state.limits.unauthenticated_bytes_max
        else:
            size_bytes_max = state.limits.packet_size_bytes_max
        if size_bytes > size_bytes_max:
            raise PacketViolation(Reason.TOO_LARGE, f"packet of {size_bytes} bytes, at most {size_bytes_max}")

    def _handle(self, first: int, body: bytes) -> None:
        state = self.state
        handler = _TABLE[state.status].get(first >> 4)
        if handler is None and first >> 4 in PACKET_NAMES:
            name = PACKET_NAMES[first >> 4]
            clause = " [MQTT-3.1.0-2]" if first >> 4 == packets.CONNECT else ""
            raise PacketViolation(Reason.UNEXPECTED, f"{name} from a client with status {state.status.name}{clause}")
        packet = decode(first, body, state.terms.level)
        assert handler is not None, first  # decode refuses the reserved types
        handler(state, packet)

    @property
    def input_held(self) -> bool:
        """Whether bytes wait inside: `feed(b"", now_ms)` continues with them after `accept`."""
        return self._held is not None and self.state.status is not _CLOSED

    # -- output, time and the end --------------------------------------------------------------------------------------

    def take_bytes(self) -> bytes:
        """Everything to be written now, joined; clears it."""
        out = self.state.out
        joined = b"".join(out)
        out.clear()
        return joined

    def next_deadline_ms(self) -> int | None:
        """When `tick` has to be called if nothing arrives until then; None = never."""
        return self.state.deadline_ms()

    def tick(self, now_ms: int) -> list[Event]:
        """Violated when the deadline has passed, else nothing."""
        due_ms = self.state.deadline_ms()
        if due_ms is None or now_ms < due_ms:
            return []
        reason, detail = self.state.overdue()
        self.state.fail(reason, detail)
        self._held = None
        return self.state.take_events()

    def excuse_silence(self, now_ms: int) -> None:
        """Restart the keep-alive: this side did not read."""
        self.state.last_packet_ms = now_ms

    def close(self, reason: str) -> None:
        """End the connection: as `SessionState.close`, and drop waiting input."""
        self.state.close(reason)
        self._held = None


_TABLE: dict[Status, dict[int, Handler]] = {
    Status.EXPECT_CONNECT: {packets.CONNECT: handlers.connect},
    Status.DECIDING: {},
    Status.AUTHENTICATING: {packets.AUTH: handlers.authenticate, packets.DISCONNECT: handlers.disconnect},
    Status.CONNECTED: {
        packets.PUBLISH: handlers.publish,
        packets.PUBACK: handlers.acknowledged,
        packets.PUBREC: handlers.received,
        packets.PUBREL: handlers.release,
        packets.PUBCOMP: handlers.completed,
        packets.SUBSCRIBE: handlers.subscribe,
        packets.UNSUBSCRIBE: handlers.unsubscribe,
        packets.PINGREQ: handlers.ping,
        packets.DISCONNECT: handlers.disconnect,
        packets.AUTH: handlers.authenticate,
    },
    Status.CLOSED: {},
}
"""status -> packet type -> handler; what is not here closes the connection."""
