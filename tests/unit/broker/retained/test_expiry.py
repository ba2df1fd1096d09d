"""Retained messages go when their time has come, and no other ones."""

from __future__ import annotations

import pytest

from broker.retained import expiry as retained_expiry
from broker.retained.expiry import RetainedExpiry
from broker.retained.retained import Retained
from broker.store.errors import StoreFull
from broker.store.placed import Placed
from remoting.protocol.records.image import encode_image
from remoting.protocol.records.record import CLIENT_ID_KEY, FLAG_MQTT, FLAG_RETAIN, MQTT_TOPIC_KEY
from runtime.logs import get_logger


class World:
    """A store, the view over its retained messages, and their expiry."""

    def __init__(self, bench) -> None:
        self.bench = bench
        self.build()

    def build(self) -> None:
        self.seen: list[tuple[bytes, int]] = []
        self.retained = Retained(self.bench.store)
        self.expiry = RetainedExpiry(
            self.bench.store, get_logger("test"), lambda topic, size: self.seen.append((topic, size))
        )

    def publish(self, topic: bytes, expiry_s: int | None, *, settle: bool = True) -> None:
        properties = [(MQTT_TOPIC_KEY, topic), (CLIENT_ID_KEY, b"c")]
        if expiry_s is not None:
            properties.append((b"mqttExpiry", b"%d" % expiry_s))
            self.expiry.note(topic, expiry_s, self.bench.clock.now_ms())
        image = encode_image(
            flags=FLAG_MQTT | FLAG_RETAIN, queue_index=0, born_ms=5, topic=topic,
            properties=properties, body=b"x",
        )  # fmt: skip
        self.bench.store.append(Placed(image, [()]))
        if settle:
            self.bench.settle()

    def after(self, seconds: float) -> int:
        self.bench.clock.advance_ms(int(seconds * 1_000))
        gone = self.expiry.step(self.bench.clock.now_ms())
        self.bench.settle()
        return gone


@pytest.fixture
def world(bench) -> World:
    return World(bench)


def test_each_goes_when_its_time_has_come(world: World) -> None:
    """Not a step sooner; one without an interval stays."""
    world.publish(b"five", 5)
    world.publish(b"nine", 9)
    world.publish(b"ever", None)
    assert world.after(4.9) == 0
    assert world.after(0.2) == 1
    assert len(world.retained) == 2
    assert world.after(4) == 1
    assert world.after(10**6) == 0
    assert len(world.retained) == 1
    assert world.expiry.expired == 2
    assert len(world.expiry) == 0


def test_what_took_its_place_counts(world: World) -> None:
    """Longer, for ever, or shorter than the one before."""
    for topic, first, then in ((b"a", 5, 50), (b"b", 5, None), (b"c", 50, 5)):
        world.publish(topic, first)
        world.publish(topic, then)
    assert world.after(6) == 1
    assert {topic for topic, _ in world.retained._tree.match(b"#")} == {b"a", b"b"}
    assert world.after(45) == 1
    assert world.after(100) == 0


def test_a_restart_finds_them_bit_by_bit(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """What has expired meanwhile goes with the look at it."""
    monkeypatch.setattr(retained_expiry, "LOOKS_PER_STEP", 3)
    for number in range(8):
        world.publish(b"t/%d" % number, 5 if number % 2 else 100)
    world.bench.reopen()
    world.build()
    assert len(world.expiry) == 0
    assert sum(world.after(3) for _ in range(4)) == 4
    assert {(b"t/%d" % number, 1) for number in range(0, 8, 2)} <= set(world.seen)
    assert len(world.expiry) == 4
    assert world.after(100) == 4
    assert len(world.retained) == 0


def test_one_that_is_not_confirmed_yet_is_looked_at_again(world: World) -> None:
    """Its record cannot be read until then."""
    world.publish(b"a", 0, settle=False)
    assert world.expiry.step(world.bench.clock.now_ms()) in (0, 1)
    world.bench.settle()
    world.after(1.1)
    assert len(world.retained) == 0


def test_topics_that_come_again_and_again_cost_one_entry_each(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also when each interval is shorter than the one before."""
    monkeypatch.setattr(retained_expiry, "STALE_MAX", 4)
    for seconds in range(60, 10, -1):
        world.expiry.note(b"a", seconds, 0)
        world.expiry.note(b"b", 100 - seconds, 0)
    assert len(world.expiry) == 2
    assert len(world.expiry._heap) <= 2 * 2 + 4 + 1


def test_a_failed_removal_is_tried_again(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is counted before it is done."""
    world.publish(b"a", 5)
    with monkeypatch.context() as full:
        full.setattr(world.bench.store, "append_state", lambda _: (_ for _ in ()).throw(StoreFull("full")))
        world.bench.clock.advance_ms(6_000)
        with pytest.raises(StoreFull):
            world.expiry.step(world.bench.clock.now_ms())
    assert world.expiry.expired == 0
    assert world.after(1.1) == 1
