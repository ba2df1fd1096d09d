"""The session core at level 5: cuts and damage of the input, and both QoS 2 exchanges over many connections."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from mqtt_proxy.mqtt.codec import packets
from mqtt_proxy.mqtt.codec import properties as props
from mqtt_proxy.mqtt.codec.decode import decode
from mqtt_proxy.mqtt.codec.encode import encode
from mqtt_proxy.mqtt.codec.limits import SessionLimits
from mqtt_proxy.mqtt.codec.wire import fixed_header
from mqtt_proxy.mqtt.session.events import (
    Acknowledged,
    Disconnected,
    Event,
    PublishBatch,
    Received,
    Released,
    Violated,
)
from mqtt_proxy.mqtt.session.in_flight import PHASE_PUBLISH
from mqtt_proxy.mqtt.session.session import Session
from mqtt_proxy.mqtt.session.session_state import Status
from tests.unit.mqtt_proxy.mqtt.samples5 import EVERYTHING, PUBLISHES

CONNECT = packets.Connect("dev", True, 10, will=packets.Will(b"w", b"gone", 1, True), level=5)
PACKETS = st.lists(
    st.one_of(
        PUBLISHES,
        st.sampled_from(EVERYTHING),
        st.builds(packets.Pubrel, st.integers(1, 3)),
        st.builds(packets.Pubrec, st.integers(1, 3), st.sampled_from([0, 0x80])),
        st.builds(packets.Pubcomp, st.integers(1, 3)),
        st.builds(packets.Puback, st.integers(1, 3)),
    ),
    max_size=8,
)


def fresh() -> Session:
    """A session that allows little."""
    return Session(SessionLimits(receive_maximum=3, topic_alias_maximum=2), assigned_client_id=lambda: "made")


def flat(events: list[Event]) -> list[object]:
    """What must not depend on how the input was cut: runs taken apart."""
    out: list[object] = []
    apart: list[object] = []
    for event in events:
        if isinstance(event, PublishBatch):
            out += event.publishes
        elif isinstance(event, Acknowledged | Received):
            apart += event.tokens
        elif isinstance(event, Released):
            apart += event.packet_ids
        else:
            out.append(event)
    return [*out, sorted(map(str, apart))]


def run(pieces: list[bytes]) -> tuple[list[object], bytes, str | None]:
    """Events, output and end of a session that is fed these pieces; it has three deliveries in flight."""
    session = fresh()
    events: list[Event] = []
    output = b""
    for piece in pieces:
        new = session.feed(piece, 1_000)
        if session.state.status is Status.DECIDING:
            session.answers.accept(False)
            for qos in (1, 2, 2):
                session.deliveries.deliver(b"t", b"", qos, False, False, f"token-{qos}")
            new = new + session.feed(b"", 1_000)
        events += new
        output += session.take_bytes()
    return flat(events), output, session.state.close_reason


@given(PACKETS, st.binary(max_size=6), st.lists(st.integers(1, 40), max_size=30))
def test_cutting_the_input_changes_nothing(sent: list[packets.Packet], junk: bytes, cuts: list[int]) -> None:
    """Whole, byte by byte, and in pieces of any size: the same events, output and end."""
    data = encode(CONNECT) + b"".join(encode(packet, 5) for packet in sent) + junk
    whole = run([data])
    assert run([data[n : n + 1] for n in range(len(data))]) == whole
    pieces, position = [], 0
    for cut in cuts:
        pieces.append(data[position : position + cut])
        position += cut
    assert run([*pieces, data[position:]]) == whole


@given(PACKETS, st.lists(st.tuples(st.integers(0, 2_000), st.integers(0, 255)), max_size=4))
def test_damage_never_raises(sent: list[packets.Packet], damage: list[tuple[int, int]]) -> None:
    """Any byte changed anywhere: the session continues or reports what is wrong, and then nothing more."""
    data = bytearray(encode(CONNECT) + b"".join(encode(packet, 5) for packet in sent))
    for at, value in damage:
        data[at % len(data)] = value
    session = fresh()
    events = session.feed(bytes(data), 1_000)
    if session.state.status is Status.DECIDING:
        session.answers.accept(False)
        events = events + session.feed(b"", 1_000)
    assert all(not isinstance(event, Violated | Disconnected) for event in events[:-1])
    assert (session.state.status is Status.CLOSED) == (bool(events) and isinstance(events[-1], Violated | Disconnected))
    if session.state.status is Status.CLOSED:
        assert session.feed(b"\xc0\x00", 1_000) == []


class Peers:
    """A server and a client that keep what they must across connections, and a wire that may break."""

    def __init__(self, receive_maximum: int) -> None:
        self.receive_maximum = receive_maximum
        self.session = fresh()
        self.inflight: list[tuple[int, object, int]] = []
        self.received: list[int] = []
        self.sent: list[tuple[int, int]] = []
        """(number, QoS) of what the server was to deliver, in order."""
        self.taken: list[int] = []
        """Numbers the client's application got."""
        self.held: set[int] = set()
        """QoS 2 ids the client has and has not been released from."""
        self.waiting: list[packets.Packet] = []
        """What the client has yet to answer."""
        self.open: dict[int, int] = {}
        """QoS 2 publishes of the client: id -> number, until PUBREC."""
        self.releasing: set[int] = set()
        self.published = 0
        self.stored: list[int] = []
        self.connect(resume=False)

    def connect(self, *, resume: bool) -> None:
        """A new connection; of an existing session when `resume`."""
        self.session = fresh()
        found = {props.RECEIVE_MAXIMUM: self.receive_maximum, props.SESSION_EXPIRY: 100}
        self.feed(packets.Connect("dev", not resume, 0, level=5, properties=found))
        self.session.answers.accept(resume, self.inflight, self.received)
        self.waiting = []
        for packet_id, token, phase in self.inflight:
            if phase == PHASE_PUBLISH:
                number, qos = token  # type: ignore[misc]
                self.session.deliveries.redeliver(packet_id, b"t", b"%d" % number, qos, False, token)
        for packet_id, number in list(self.open.items()):
            self.feed(packets.Publish(b"up", b"%d" % number, 2, False, True, packet_id))
        for packet_id in sorted(self.releasing):
            self.feed(packets.Pubrel(packet_id))

    def feed(self, packet: packets.Packet) -> None:
        """The client sends."""
        for event in self.session.feed(encode(packet, 5), 0):
            assert not isinstance(event, Violated), event
            if isinstance(event, PublishBatch):
                self.stored += [int(publish.payload) for publish in event.publishes]
                self.session.answers.acknowledge([publish.packet_id for publish in event.publishes])
            elif isinstance(event, Received):
                self.session.deliveries.release(event.packet_ids)
            elif isinstance(event, Released):
                self.session.answers.complete(event.packet_ids)

    def pump(self) -> None:
        """The server's output reaches the client, which answers it later."""
        data, position = self.session.take_bytes(), 0
        while position < len(data):
            header = fixed_header(data, position, len(data))
            assert header is not None
            stop = header[0] + header[1]
            packet = decode(data[position], data[header[0] : stop], 5)
            position = stop
            if isinstance(packet, packets.Publish):
                if packet.qos == 0 or packet.qos == 1 or packet.packet_id not in self.held:
                    self.taken.append(int(packet.payload))
                if packet.qos == 2:
                    self.held.add(packet.packet_id)
                if packet.qos:
                    self.waiting.append(packet)
                    under_way = [one for one in self.waiting if isinstance(one, packets.Publish)]
                    assert len(under_way) <= self.receive_maximum
            elif isinstance(packet, packets.Pubrel):
                self.waiting.append(packet)
            elif isinstance(packet, packets.Pubrec) and packet.packet_id in self.open:
                del self.open[packet.packet_id]
                self.releasing.add(packet.packet_id)
                self.waiting.append(packet)
            elif isinstance(packet, packets.Pubcomp):
                self.releasing.discard(packet.packet_id)

    def answer(self, index: int, *, lost: bool = False) -> None:
        """The client answers something it has received; when the answer is `lost` the connection breaks with it."""
        self.pump()
        if not self.waiting:
            return
        packet = self.waiting.pop(index % len(self.waiting))
        if lost:
            if isinstance(packet, packets.Pubrel):
                self.held.discard(packet.packet_id)
            self.break_wire(self.receive_maximum, output_lost=True)
            return
        if isinstance(packet, packets.Pubrel):
            self.held.discard(packet.packet_id)
            self.feed(packets.Pubcomp(packet.packet_id))
        elif isinstance(packet, packets.Pubrec):
            self.feed(packets.Pubrel(packet.packet_id))
        elif isinstance(packet, packets.Publish):
            self.feed(packets.Puback(packet.packet_id) if packet.qos == 1 else packets.Pubrec(packet.packet_id))

    def deliver(self, qos: int) -> None:
        """The server has a message for the client."""
        if self.session.deliveries.window_free:
            number = len(self.sent)
            self.sent.append((number, qos))
            self.session.deliveries.deliver(b"t", b"%d" % number, qos, False, False, (number, qos))

    def publish(self) -> None:
        """The client publishes with QoS 2, within the server's Receive Maximum."""
        if len(self.open) + len(self.releasing) < self.session.state.limits.receive_maximum:
            packet_id = next(n for n in range(1, 9) if n not in self.open and n not in self.releasing)
            self.open[packet_id] = self.published
            self.published += 1
            self.feed(packets.Publish(b"up", b"%d" % self.open[packet_id], 2, False, False, packet_id))

    def break_wire(self, receive_maximum: int, *, output_lost: bool) -> None:
        """The connection breaks, perhaps with what was in flight; the session is resumed, with other limits."""
        if not output_lost:
            self.pump()
        self.inflight, self.received = self.session.deliveries.inflight(), self.session.answers.received_ids()
        self.session.close("peer_closed")
        self.receive_maximum = receive_maximum
        self.connect(resume=True)

    def settle(self) -> None:
        """Everything is answered."""
        self.pump()
        while self.waiting:
            self.answer(0)
            self.pump()


@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("deliver"), st.integers(1, 2)),
            st.tuples(st.just("pump"), st.just(0)),
            st.tuples(st.just("answer"), st.integers(0, 9)),
            st.tuples(st.just("lose"), st.integers(0, 9)),
            st.tuples(st.just("publish"), st.just(0)),
            st.tuples(st.just("break"), st.integers(0, 7)),
        ),
        min_size=15,
        max_size=40,
    ),
    st.integers(1, 4),
)
@settings(max_examples=500)
def test_each_message_arrives_as_often_as_its_qos_says(steps: list[tuple[str, int]], receive_maximum: int) -> None:
    """QoS 1 at least once, QoS 2 exactly once, in both directions, however often the connection breaks and wherever."""
    peers = Peers(receive_maximum)
    for step, value in steps:
        if step == "deliver":
            peers.deliver(value)
        elif step == "pump":
            peers.pump()
        elif step == "answer":
            peers.answer(value)
        elif step == "lose":
            peers.answer(value, lost=True)
        elif step == "publish":
            peers.publish()
        else:
            peers.break_wire(1 + value // 2, output_lost=value % 2 == 1)
    peers.settle()
    assert set(peers.taken) == {number for number, _ in peers.sent}
    exactly_once = [number for number, qos in peers.sent if qos == 2]
    assert sorted(number for number in peers.taken if number in exactly_once) == exactly_once
    assert peers.session.deliveries.inflight() == []
    assert sorted(peers.stored) == list(range(peers.published))
    assert not peers.releasing
    assert not peers.open
