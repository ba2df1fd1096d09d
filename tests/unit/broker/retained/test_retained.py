"""Retained messages: the view by filter, how many and how large there may be, and the end of those that expire."""

from __future__ import annotations

import pytest

from broker.retained import feature as retained_module
from broker.retained.feature import Retained, RetainedExpiry, RetainedQuota
from broker.store.errors import StoreFull
from broker.store.placed import Placed
from broker.store.state import state_kinds
from broker.store.state.state_kinds import StateChange
from remoting.protocol.errors import Refused
from remoting.protocol.frames.codes import ResponseCode
from remoting.protocol.records.image import encode_image
from remoting.protocol.records.record import CLIENT_ID_KEY, FLAG_MQTT, FLAG_RETAIN, MQTT_TOPIC_KEY
from runtime.logs import get_logger


def positions(retained: Retained, topic_filter: bytes) -> list[int]:
    """Of the retained messages that a filter matches, oldest first."""
    return sorted([found[1] for found in retained.walk(topic_filter) if found is not None])


def publish(bench, make_entries, topic: bytes, body: bytes = b"v") -> int:
    (image,) = make_entries(topic, body=body, flags=FLAG_RETAIN | 1)
    return bench.store.append(Placed(bytes(image.raw), [(bench.store.queues.open(b"q"),)])).first_position


def test_the_newest_of_each_matching_topic_oldest_first(bench, make_entries) -> None:
    retained = Retained(bench.store)
    publish(bench, make_entries, b"plant/1/t")
    second = publish(bench, make_entries, b"plant/2/t")
    newest = publish(bench, make_entries, b"plant/1/t")
    publish(bench, make_entries, b"other/1/t")
    assert positions(retained, b"plant/+/t") == [second, newest]
    assert positions(retained, b"plant/1/t") == [newest]
    assert positions(retained, b"nothing/#") == []


def test_an_empty_payload_clears_and_a_restart_changes_nothing(bench, make_entries) -> None:
    retained = Retained(bench.store)
    kept = publish(bench, make_entries, b"a/b")
    publish(bench, make_entries, b"a/c")
    publish(bench, make_entries, b"a/c", body=b"")
    assert positions(retained, b"a/#") == [kept]
    assert positions(Retained(bench.reopen()), b"#") == [kept]


class World:
    """Retained messages are state entries here."""

    def __init__(self, bench, messages_max: int = 0, bytes_max: int = 0) -> None:
        self.store = bench.store
        self.retained = Retained(bench.store)
        self.quota = RetainedQuota(bench.store, self.retained, messages_max=messages_max, bytes_max=bytes_max)

    def put(self, *wanted: tuple[bytes, int]) -> None:
        self.quota.admit(wanted)
        for topic, size in wanted:
            self.store.append_state([StateChange(state_kinds.RETAINED, topic, b"" if size else None)])


def refused(world: World, *wanted: tuple[bytes, int]) -> bool:
    with pytest.raises(Refused) as error:
        world.put(*wanted)
    return error.value.code == ResponseCode.FLOW_CONTROL


def test_without_a_quota_nothing_is_counted(bench) -> None:
    """And nothing is kept."""
    world = World(bench)
    assert not world.quota.active
    world.quota.admit([(b"a", 10**9)])
    world.quota.seen(b"a", 5)
    assert world.quota.size_bytes == 0


def test_the_number_of_topics(bench) -> None:
    """Replacing and clearing are always possible; several of one frame count together."""
    world = World(bench, messages_max=3)
    world.put((b"a", 1), (b"b", 1))
    assert refused(world, (b"c", 1), (b"d", 1))
    world.put((b"c", 1), (b"c", 2))
    assert refused(world, (b"d", 1))
    world.put((b"a", 9))
    world.put((b"b", 0))
    world.put((b"d", 1), (b"nothing", 0))
    assert len(world.retained) == 3


def test_the_number_of_bytes(bench) -> None:
    """A smaller message frees the difference, and so does clearing; getting smaller is possible above the limit."""
    world = World(bench, bytes_max=100)
    world.put((b"a", 60), (b"b", 40))
    assert world.quota.size_bytes == 100
    assert refused(world, (b"c", 1))
    assert refused(world, (b"a", 61))
    world.put((b"a", 50))
    world.put((b"c", 10))
    world.put((b"b", 0))
    assert world.quota.size_bytes == 60
    world.quota.seen(b"old", 1_000)
    world.quota.seen(b"a", 1)
    assert world.quota.size_bytes == 1_060
    assert refused(world, (b"d", 1))
    world.put((b"a", 10))
    assert world.quota.size_bytes == 1_020


@pytest.mark.parametrize("limit", ["messages_max", "bytes_max"])
def test_a_refused_frame_leaves_nothing_behind(bench, limit: str) -> None:
    """All or none."""
    world = World(bench, **{limit: 1})
    assert refused(world, (b"a", 1), (b"b", 1))
    assert world.quota.size_bytes == 0
    world.put((b"b", 1))


class ExpiryWorld:
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
def world(bench) -> ExpiryWorld:
    return ExpiryWorld(bench)


def test_each_is_removed_when_its_time_has_come(world: ExpiryWorld) -> None:
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


def test_a_replacement_counts(world: ExpiryWorld) -> None:
    """Longer, for ever, or shorter than the one before."""
    for topic, first, then in ((b"a", 5, 50), (b"b", 5, None), (b"c", 50, 5)):
        world.publish(topic, first)
        world.publish(topic, then)
    assert world.after(6) == 1
    assert {topic for topic, _ in world.retained._tree.match(b"#")} == {b"a", b"b"}
    assert world.after(45) == 1
    assert world.after(100) == 0


def test_a_restart_finds_them_bit_by_bit(world: ExpiryWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    """What has expired meanwhile is removed when it is read."""
    monkeypatch.setattr(retained_module, "READS_PER_STEP", 3)
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


def test_an_unconfirmed_one_is_checked_again(world: ExpiryWorld) -> None:
    """Its record cannot be read until then."""
    world.publish(b"a", 0, settle=False)
    assert world.expiry.step(world.bench.clock.now_ms()) in (0, 1)
    world.bench.settle()
    world.after(1.1)
    assert len(world.retained) == 0


def test_repeatedly_published_topics_cost_one_entry_each(world: ExpiryWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also when each interval is shorter than the one before."""
    monkeypatch.setattr(retained_module, "STALE_MAX", 4)
    for seconds in range(60, 10, -1):
        world.expiry.note(b"a", seconds, 0)
        world.expiry.note(b"b", 100 - seconds, 0)
    assert len(world.expiry) == 2
    assert len(world.expiry._heap) <= 2 * 2 + 4 + 1


def test_a_failed_removal_is_tried_again(world: ExpiryWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is counted before it is done."""
    world.publish(b"a", 5)
    with monkeypatch.context() as full:
        full.setattr(world.bench.store, "append_state", lambda _: (_ for _ in ()).throw(StoreFull("full")))
        world.bench.clock.advance_ms(6_000)
        with pytest.raises(StoreFull):
            world.expiry.step(world.bench.clock.now_ms())
    assert world.expiry.expired == 0
    assert world.after(1.1) == 1
