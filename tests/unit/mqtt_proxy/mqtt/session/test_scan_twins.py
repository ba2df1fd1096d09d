"""Both twins of the scan under a session: the same events, output and state as without them."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from mqtt_proxy.mqtt.codec import packets
from mqtt_proxy.mqtt.codec.encode import encode
from mqtt_proxy.mqtt.codec.limits import SessionLimits
from mqtt_proxy.mqtt.codec.packets import Publish
from mqtt_proxy.mqtt.codec.publish import image_of
from mqtt_proxy.mqtt.session import events, scan
from mqtt_proxy.mqtt.session.in_flight import Qos2Steps
from mqtt_proxy.mqtt.session.scan import ScanCore
from mqtt_proxy.mqtt.session.session import Session
from mqtt_proxy.mqtt.session.session_state import SessionState
from remoting.protocol.errors import LocalMisuse
from remoting.protocol.records.image import iter_images, packet_id_of
from remoting.protocol.records.properties import MessageProperties
from remoting.protocol.records.record import FLAG_MQTT, FLAG_RETAIN


@pytest.fixture(params=["pure", "compiled"])
def core(request: pytest.FixtureRequest) -> ScanCore:
    """One twin; the compiled one is skipped, with the reason, where it was not built."""
    if request.param == "pure":
        return scan.pure_core()
    if scan.choice.name != "compiled":
        pytest.skip(f"no compiled twin: {scan.choice.reason}")
    return scan.compiled_core()


def test_record_images(core: ScanCore) -> None:
    """What one client sent in one read, as it is stored."""
    one, two = Publish(b"t", b"abc", 1, False, False, 7), Publish(b"topic", b"", 0, True, False, 0)
    exact, said = (
        Publish(b"t", b"x" * 9, 2, False, False, 9),
        Publish(b"t", b"x", 0, False, False, 0, MessageProperties()),
    )
    said.properties.content_type = b"text"
    assert core.images([], b"c", 5, True) == (b"", [])
    for publishes, noted, ids in (
        ([one, two, one], True, [7, 7]),
        ([one, exact], True, [7, 9]),
        ([one, exact, two], False, [7, 9]),
        ([said, one], False, [7]),
    ):
        made = core.images(publishes, b"client", 1 << 41, noted)
        assert made[1] == ids
        assert made[0] == b"".join([image_of(each, b"client", 1 << 41, noted) for each in publishes])
        for image, each in zip(iter_images(made[0]), publishes, strict=True):
            assert (image.mqtt_topic, image.body, image.born_ms) == (each.topic, each.payload, 1 << 41)
            assert image.flags == FLAG_MQTT | each.qos | (FLAG_RETAIN if each.retain else 0)
            assert packet_id_of(image) == (each.packet_id if noted and each.qos == 2 else 0)
            assert dict(image.properties())[b"clientId"] == b"client"


def test_a_topic_and_client_id_that_fit_no_record(core: ScanCore) -> None:
    with pytest.raises(LocalMisuse):
        core.images([Publish(b"t" * 65_530, b"", 0, False, False, 0)], b"c", 1, False)


def test_the_choice_names_the_twin() -> None:
    assert scan.choice.core.name == scan.choice.name
    assert bool(scan.choice.reason) == (scan.choice.name == "pure")


@pytest.mark.parametrize("level", [4, 5])
def test_runs_of_publishes_and_acknowledgements(core: ScanCore, level: int) -> None:
    """Both kinds in turn, up to the first other packet; level 5 up to the Receive Maximum."""
    session = Session(SessionLimits(receive_maximum=2), assigned_client_id=lambda: "made")
    session.state.terms.level = level
    session.state.names.known[b"t"] = b"t"
    session.state.outgoing.window = {1: "one", 2: "two", 3: "three"}
    publish = encode(Publish(b"t", b"x", 1, False, False, 9), level)
    acknowledgements = b"\x40\x02\x00\x01\x40\x02\x00\x02"
    data = publish + acknowledgements + publish + b"\xc0\x00" + publish
    assert core.consume_runs(session.state, data, 0, len(data)) == 2 * len(publish) + 8
    gathered = session.state.gathered
    assert (len(gathered.publishes or ()), session.state.incoming.pending) == (2, [9, 9])
    assert (gathered.acknowledged, list(session.state.outgoing.window)) == (["one", "two"], [3])
    stop = core.consume_runs(session.state, publish, 0, len(publish))
    assert stop == (len(publish) if level == 4 else 0)
    assert core.consume_runs(session.state, b"", 0, 0) == 0


Runs = Callable[[SessionState, bytes, int, int], int]


def exchange(runs: Runs, level: int, seed: int, monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """The events and output of a session in a random exchange of all QoS, with a client that also repeats and makes
    mistakes."""
    rng = random.Random(seed)
    session = Session(SessionLimits(receive_maximum=30, in_flight_max=8), assigned_client_id=lambda: "made")
    session.feed(encode(packets.Connect("c", True, 0, level=level)), 0)
    session.answers.accept(False)
    if seed % 2:
        session.state.outgoing.steps = Qos2Steps()
    seen: list[object] = []
    for turn in range(60):
        if session.deliveries.window_free and rng.random() < 0.7:
            packet_id = session.deliveries.deliver(b"down", b"x", rng.choice((1, 2)), False, False, turn)
            session.deliveries.send_parked([packet_id])
        some = [
            rng.choice((
                packets.Publish(b"up", b"y", 0, False, False, 0),
                packets.Publish(b"up", b"y", qos := rng.choice((1, 2)), False, qos == 2, rng.randint(1, 40)),
                packets.Puback(rng.randint(1, 12)), packets.Pubrec(rng.randint(1, 12)),
                packets.Pubrel(rng.randint(1, 40)), packets.Pubcomp(rng.randint(1, 12)),
            ))
            for _ in range(rng.randint(1, 6))
        ]  # fmt: skip
        data = b"".join(encode(one, level) for one in some)
        monkeypatch.setattr(scan, "runs", runs)
        for one in session.feed(data, turn):
            seen.append(one)
            if isinstance(one, events.PublishBatch):
                session.answers.acknowledge([publish.packet_id for publish in one.publishes if publish.qos])
            elif isinstance(one, events.Received):
                session.deliveries.release(one.packet_ids)
            elif isinstance(one, events.Released):
                session.answers.complete(one.packet_ids)
        incoming, outgoing = session.state.incoming, session.state.outgoing
        seen += [session.take_bytes(), outgoing.stray, incoming.in_use, session.state.publish_bytes]
        seen += [dict(outgoing.window), dict(outgoing.phases), dict(incoming.exactly_once)]
    return [*seen, outgoing.steps.finished if outgoing.steps is not None else None]


@pytest.mark.parametrize("level", [4, 5])
def test_runs_change_only_the_time_it_takes(core: ScanCore, level: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same events, output and state as when every packet goes through the complete decoder and its handler."""
    for seed in range(150):
        taken = exchange(core.consume_runs, level, seed, monkeypatch)
        assert taken == exchange(lambda _s, _d, at, _e: at, level, seed, monkeypatch), seed


@pytest.mark.parametrize("level", [4, 5])
def test_bytes_of_publishes_are_those_received(core: ScanCore, level: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Headers and properties included, also of those the hot loop leaves alone; nothing else, however the input is
    cut."""
    monkeypatch.setattr(scan, "runs", core.consume_runs)
    properties = MessageProperties(content_type=b"a/b") if level == 5 else None
    sent = [
        Publish(b"t", b"x" * size, qos, False, False, qos * size, None) for size in (1, 200, 20_000) for qos in (0, 1)
    ]
    sent.append(Publish(b"t", b"abc", 0, False, False, 0, properties))
    encoded = [encode(one, level) for one in sent]
    data = b"".join(packet + encode(packets.Pingreq(), level) for packet in encoded)
    for step in (1, 7, 1_000, len(data)):
        session = Session(SessionLimits(), assigned_client_id=lambda: "made")
        session.feed(encode(packets.Connect("c", True, 0, level=level)), 0)
        session.answers.accept(False)
        for at in range(0, len(data), step):
            session.feed(data[at : at + step], 0)
        assert session.state.publish_bytes == sum(map(len, encoded))
