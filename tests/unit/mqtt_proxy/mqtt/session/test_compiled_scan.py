"""The compiled scan accepts what the pure one accepts, byte for byte, for any bytes."""

from __future__ import annotations

import random

import pytest

from mqtt_proxy.mqtt.codec.encode import encode
from mqtt_proxy.mqtt.codec.limits import SessionLimits
from mqtt_proxy.mqtt.codec.packets import Publish
from mqtt_proxy.mqtt.session import scan
from mqtt_proxy.mqtt.session.in_flight import Incoming
from mqtt_proxy.mqtt.session.session import Session

pytestmark = pytest.mark.skipif(scan.choice.name != "compiled", reason=f"no compiled twin: {scan.choice.reason}")
KNOWN = {name: name for name in (b"a", b"some/topic", b"x" * 120)}


def scanned(core, level: int, data: bytes, position: int, largest: int) -> tuple:
    publishes: list = []
    incoming = Incoming()
    arguments = {"packet_size_bytes_max": largest, "known_topics": KNOWN, "publishes": publishes, "incoming": incoming}
    if level == 5:
        stop = core.scan_publishes_5(data, position, len(data), room=3, **arguments)
    else:
        stop = core.scan_publishes(data, position, len(data), **arguments)
    return stop, publishes, incoming.pending, incoming.exactly_once, incoming.in_use


def some_publish(rng: random.Random) -> Publish:
    qos = rng.choice((0, 1, 1, 2))
    topic = rng.choice((b"a", b"some/topic", b"x" * 120, b"unknown"))
    payload = bytes(rng.choice((0, 1, 10, 100, 127, 128, 300, 17_000)))
    return Publish(
        topic,
        payload,
        qos,
        rng.random() < 0.2,
        bool(qos) and rng.random() < 0.2,
        rng.choice((1, 2, 300, 65_535)) * (qos > 0),
    )


@pytest.mark.parametrize("level", [4, 5])
def test_runs_of_publishes(level: int) -> None:
    pure, compiled, rng = scan.pure_core(), scan.compiled_core(), random.Random(level)
    taken = 0
    for _ in range(3_000):
        data = bytearray(b"".join([encode(some_publish(rng), level) for _ in range(rng.randint(1, 6))]))
        for _ in range(rng.choice((0, 0, 1, 2))):
            data[rng.randrange(min(len(data), 200))] = rng.choice((0, 1, 2, 0x30, 0x32, 0x7F, 0x80, 0xFF))
        cut = bytes(data[: rng.choice((len(data), rng.randint(0, len(data))))])
        largest = rng.choice((1 << 20, 100))
        found = scanned(compiled, level, cut, 0, largest)
        assert found == scanned(pure, level, cut, 0, largest), cut
        taken += len(found[1])
    assert taken > 500


def test_runs_of_acknowledgements() -> None:
    pure, compiled, rng = scan.pure_core(), scan.compiled_core(), random.Random(1)
    for _ in range(3_000):
        ids = [rng.randint(1, 20) for _ in range(rng.randint(0, 8))]
        data = bytearray(b"".join([b"\x40\x02" + one.to_bytes(2, "big") for one in ids]))
        if data and rng.random() < 0.3:
            data[rng.randrange(len(data))] = rng.randrange(256)
        cut = bytes(data[: rng.choice((len(data), rng.randint(0, len(data))))])
        exactly_once = {number: 1 for number in range(20) if rng.random() < 0.1}
        results = []
        for core in (pure, compiled):
            window = {number: f"token {number}" for number in range(1, 15)}
            tokens: list = []
            results.append((core.scan_acknowledgements(cut, 0, len(cut), window, tokens, exactly_once), window, tokens))
        assert results[0] == results[1], cut


def test_an_end_beyond_the_bytes_is_refused() -> None:
    core = scan.compiled_core()
    with pytest.raises(IndexError):
        core.scan_publishes(b"x", 0, 9, packet_size_bytes_max=9, known_topics=KNOWN, publishes=[], incoming=Incoming())
    with pytest.raises(IndexError):
        core.scan_acknowledgements(b"x", 0, 9, {}, [])
    with pytest.raises(IndexError):
        core.scan_exact(Session(SessionLimits(), assigned_client_id=str).state, b"x", 0, 9)
    with pytest.raises(IndexError):
        core.consume_runs(Session(SessionLimits(), assigned_client_id=str).state, b"x", 0, 9)
