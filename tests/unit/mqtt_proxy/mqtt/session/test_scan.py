"""The hot loops against the complete decoder: they may stop early but never accept more."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from mqtt_proxy.mqtt.codec import packets
from mqtt_proxy.mqtt.codec.decode import decode
from mqtt_proxy.mqtt.codec.encode import encode
from mqtt_proxy.mqtt.codec.wire import fixed_header
from mqtt_proxy.mqtt.session.in_flight import Incoming
from mqtt_proxy.mqtt.session.scan import scan_acknowledgements, scan_publishes

TOPICS = st.sampled_from([b"a", b"a/b", b"a/b/c" * 30])
KNOWN = {name: name for name in (b"a", b"a/b", b"a/b/c" * 30)}
QOS_1 = st.builds(
    packets.Publish, TOPICS, st.binary(max_size=200), st.just(1), st.booleans(), st.booleans(), st.integers(1, 65_535)
)
QOS_2 = st.builds(
    packets.Publish, TOPICS, st.binary(max_size=200), st.just(2), st.booleans(), st.booleans(), st.integers(1, 65_535)
)
QOS_0 = st.builds(
    packets.Publish, TOPICS, st.binary(max_size=200), st.just(0), st.booleans(), st.just(False), st.just(0)
)
OTHERS = st.sampled_from([packets.Publish(b"new", b"", 0, False, False, 0), packets.Pingreq(), packets.Puback(3)])


def scan(data: bytes, size_max: int = 100_000) -> tuple[int, list[packets.Publish], list[int]]:
    publishes: list[packets.Publish] = []
    incoming = Incoming()
    stop = scan_publishes(
        data, 0, len(data), packet_size_bytes_max=size_max, known_topics=KNOWN, publishes=publishes, incoming=incoming
    )
    return stop, publishes, incoming.pending


@given(st.lists(st.one_of(QOS_0, QOS_1), max_size=8), OTHERS, st.lists(QOS_1, max_size=2))
def test_takes_the_whole_run_and_stops_at_its_end(
    run: list[packets.Publish], other: packets.Packet, rest: list[packets.Publish]
) -> None:
    """All plain packets before the first other one."""
    front = b"".join(map(encode, run))
    stop, publishes, ids = scan(front + encode(other) + b"".join(map(encode, rest)))
    if isinstance(other, packets.Publish):
        assert publishes == run
    assert stop == len(front)
    assert ids == [packet.packet_id for packet in run if packet.qos]


@given(st.lists(QOS_2, max_size=8))
def test_takes_an_id_of_qos_2_once(run: list[packets.Publish]) -> None:
    """A second PUBLISH with an id takes the complete path: it may be a repetition."""
    ids = [packet.packet_id for packet in run]
    fresh = next((at for at, packet_id in enumerate(ids) if packet_id in ids[:at]), len(run))
    stop, publishes, pending = scan(b"".join(map(encode, run)))
    assert (stop, publishes, pending) == (sum(len(encode(one)) for one in run[:fresh]), run[:fresh], ids[:fresh])


@given(st.lists(st.one_of(QOS_0, QOS_1, QOS_2), min_size=1, max_size=4), st.data())
def test_agrees_with_the_decoder_on_broken_input(run: list[packets.Publish], data: st.DataObject) -> None:
    """With any byte changed or the end cut off, each packet accepted is one the decoder accepts, and equal."""
    raw = bytearray(b"".join(map(encode, run)))
    raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    cut = bytes(raw[: data.draw(st.integers(0, len(raw)))])
    stop, publishes, _ = scan(cut)
    position = 0
    for publish in publishes:
        header = fixed_header(cut, position, len(cut))
        assert header is not None
        end = header[0] + header[1]
        assert decode(cut[position], cut[header[0] : end]) == publish
        position = end
    assert position == stop


@given(st.binary(max_size=60))
def test_any_bytes(data: bytes) -> None:
    """Nothing raises, and nothing is read beyond the end."""
    stop, _, _ = scan(b"\x32" + data)
    assert 0 <= stop <= len(data) + 1


def test_a_long_packet_is_left_to_the_decoder() -> None:
    """Over the limit or over 16 KB the complete path decides."""
    packet = packets.Publish(b"a", bytes(300), 0, False, False, 0)
    assert scan(encode(packet), size_max=200)[0] == 0
    assert scan(encode(packet), size_max=305)[0] == 0
    assert scan(encode(packet), size_max=306)[1] == [packet]
    assert scan(encode(packets.Publish(b"a", bytes(20_000), 0, False, False, 0)))[0] == 0


def test_acknowledgements() -> None:
    """The run of PUBACKs in flight; the first other packet ends it."""
    window: dict[int, object] = {1: "one", 2: "two", 3: "three"}
    tokens: list[object] = []
    data = b"".join(encode(packets.Puback(n)) for n in (2, 1, 9, 3)) + b"\x40\x02\x00"
    assert scan_acknowledgements(data, 0, len(data), window, tokens) == 8
    assert tokens == ["two", "one"]
    assert window == {3: "three"}
    assert scan_acknowledgements(data, 12, len(data), window, tokens) == 16
