"""What is done once per publish and per acknowledgement: both twins."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from mqtt_proxy.delivery.record_cache import Feed
from mqtt_proxy.delivery.source import Source
from mqtt_proxy.mqtt.codec import packets
from mqtt_proxy.mqtt.codec.encode import encode
from mqtt_proxy.mqtt.codec.limits import SessionLimits
from mqtt_proxy.mqtt.codec.packets import Publish
from mqtt_proxy.mqtt.session import events, scan
from mqtt_proxy.mqtt.session.outgoing import Qos2Steps
from mqtt_proxy.mqtt.session.place import DeliveryOrigin
from mqtt_proxy.mqtt.session.session import Session
from mqtt_proxy.mqtt.session.session_state import SessionState
from remoting.native.packet_contracts import Core
from remoting.protocol.records.mqtt_properties import MessageProperties


def test_survey(core: Core) -> None:
    one, two = Publish(b"t", b"abc", 1, False, False, 7), Publish(b"topic", b"", 0, True, False, 0)
    assert core.survey([], True) == (True, 0, [])
    assert core.survey([one, two, one], True) == (True, 13, [7, 7])
    assert core.survey([one, Publish(b"t", b"x", 2, False, False, 9)], True) == (False, 6, [7, 9])
    assert core.survey([one, Publish(b"t", b"x", 2, False, False, 9)], False) == (True, 6, [7, 9])
    assert core.survey([Publish(b"t", b"x", 0, False, False, 0, MessageProperties())], False) == (False, 2, [])


def source(queue_id: int, *unacked: int) -> Source:
    made = Source("t", Feed(queue_id), 1, 0, queue_id)
    made.unacked = dict.fromkeys(unacked)
    return made


def test_settle(core: Core) -> None:
    one, two = source(1, 4, 5, 6), source(2, 4, 5)
    assert core.settle([]) == 0
    assert core.settle([(one, 5), (two, 4), (one, 4), (DeliveryOrigin(9), 1), (one, 99)]) == 5
    assert (list(one.unacked), list(two.unacked)) == ([6], [5])


def test_settle_takes_copies_in_younger_sources_along(core: Core) -> None:
    one, two = source(1, 4), source(2)
    two.leave_to(one, 8, 4)
    assert list(two.unacked) == [8]
    assert core.settle([(one, 4)]) == 1
    assert not one.unacked
    assert not two.unacked


def test_sessions_call_the_twin_in_use() -> None:
    from mqtt_proxy import hot

    assert scan.IN_USE.runs is hot.core.consume_runs


@pytest.mark.parametrize("level", [4, 5])
def test_runs_into_a_session(core: Core, level: int) -> None:
    """Both kinds in turn, up to the first packet that is neither; level 5 up to the Receive Maximum."""
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


def exchange(runs: Runs, level: int, seed: int) -> list[object]:
    """What a session says and writes in a random exchange of all QoS with a client that also repeats and errs."""
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
        scan.IN_USE.runs = runs
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
def test_runs_change_nothing_but_the_time_it_takes(core: Core, level: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same events, output and state as when every packet goes by the complete decoder and its handler."""
    monkeypatch.setattr(scan.IN_USE, "runs", scan.IN_USE.runs)
    for seed in range(150):
        assert exchange(core.consume_runs, level, seed) == exchange(lambda _s, _d, at, _e: at, level, seed), seed


@pytest.mark.parametrize("level", [4, 5])
def test_bytes_of_publishes_are_those_received(core: Core, level: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Headers and properties included, of those the hot loop leaves alone too; nothing else, however it is cut."""
    monkeypatch.setattr(scan.IN_USE, "runs", core.consume_runs)
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
