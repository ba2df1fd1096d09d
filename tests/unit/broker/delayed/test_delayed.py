"""Waiting messages on a real store: hidden, in time, once, over restarts, over retention, within bounds."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from broker.delayed import delayed as room
from broker.delayed.buckets import BUCKET_MS, NEAR_MS, RECALLED
from broker.delayed.delayed import GRACE_MS, LATENESS_S, Delayed, DelayLimits
from broker.publishing.placement import Placement, QueueChoice
from broker.store.errors import StoreFull
from broker.store.placed import Placed
from broker.store.state import state_kinds
from broker.subscriptions.filters import Dispatcher, Filters
from broker.topics.topics import Topics
from remoting.protocol.errors import LocalMisuse, Refused
from remoting.protocol.frames.codes import ResponseCode
from remoting.protocol.records.image import encode_image, encode_mqtt_image
from remoting.protocol.records.names import light_queue_name
from remoting.protocol.records.record import FLAG_GROUP_OPEN, FLAG_STAGED, RecordView, header_of
from runtime.logs import get_logger
from runtime.metrics import Histogram
from tests.sim.stores import StoreBench as SmallFiles
from tests.sim.stores import drain
from tests.sim.stores import message as filler

START = 1_700_000_100_000
"""The beginning of a bucket."""


class World:
    """A store and the parts that waiting messages need."""

    def __init__(self, bench, **limits: int) -> None:
        self.bench = bench
        self.limits = DelayLimits(**({"delay_ms_max": 10 * BUCKET_MS, "messages_max": 1_000} | limits))
        self.lateness = Histogram("rocketmq_lateness", "", LATENESS_S)
        self.now = START
        self.build()

    def build(self) -> None:
        store = self.store = self.bench.store
        self.topics = Topics(store, topics_max=100)
        filters = Filters(store, expiry_ms=0, filters_max=100, per_user_max=100, now_ms=0)
        dispatcher = Dispatcher(store, self.topics, filters, cached_topics_max=100, queue_count=1)
        choice = QueueChoice(
            self.topics, dispatcher, queue_count=1, auto_create=True, message_size_bytes_max=4_000_000,
            properties_bytes_max=1_000,
        )  # fmt: skip
        self.placement = Placement(choice)
        self.hidden: set[int] = set()
        log = get_logger("test")
        self.delayed = Delayed(
            store, self.placement, self.hidden, limits=self.limits, lateness=self.lateness, now_ms=self.now, log=log
        )
        store.retention.carried.keep(self.delayed.keep_from)

    def restart(self) -> None:
        self.bench.reopen()
        self.build()

    def put(self, body: bytes, after_ms: int, topic: bytes = b"t/x", flags: int = 1, *, settle: bool = True) -> None:
        self.wait(encode_mqtt_image(topic, body, flags, 7, b"device"), after_ms)
        if settle:
            self.bench.settle()

    def wait(self, image: bytes, after_ms: int) -> None:
        """Store an image as a waiting one; returns it unchanged when it is due already."""
        placed = self.placement.placed(image, now=True)
        waiting = self.delayed.put(RecordView(image), self.now + after_ms, self.now)
        self.store.append(placed if waiting is None else Placed(waiting[0], [waiting[1]]))

    def at(self, after_ms: int) -> None:
        """Advance the clock and deliver everything due."""
        self.now = START + after_ms
        while self.delayed.due(self.now):
            self.bench.settle()
        self.bench.settle()

    def got(self, topic: bytes = b"t/x") -> list[bytes]:
        queue = self.store.queues.find(light_queue_name(topic))
        if queue is None:
            return []
        low, high = self.store.reading.bounds(queue)
        return [bytes(RecordView(record).body) for record in self.store.reading.read(queue, low, high, 10**7).records]


@pytest.fixture
def world(bench) -> Iterator[World]:
    assert START % BUCKET_MS == 0
    return World(bench)


def test_hidden_until_it_is_due_then_as_it_was_sent(world: World) -> None:
    """Flags, properties and time of birth; the retain flag takes effect at delivery, not before."""
    world.put(b"later", 1_000, flags=1 | 4)
    (queue,) = world.hidden
    assert RecordView(world.store.reading.read(queue, 0, 1, 10_000).records[0]).flags & FLAG_STAGED
    assert world.store.state.count(state_kinds.RETAINED) == 0
    world.at(999)
    assert world.got() == []
    world.at(1_000)
    assert world.got() == [b"later"]
    record = RecordView(
        world.store.reading.read(world.store.queues.find(light_queue_name(b"t/x")), 0, 1, 10_000).records[0]
    )
    assert (record.born_ms, record.mqtt_topic, record.flags & 0xF) == (7, b"t/x", 1 | 4 | 8)
    assert header_of(record).producer_seq == 0
    assert world.store.state.get(state_kinds.RETAINED, b"t/x") is not None
    assert (world.delayed.counts.delivered, world.delayed.waiting) == (1, 0)


def test_in_order_of_time_over_buckets(world: World) -> None:
    """Whatever the order of sending."""
    for body, after in ((b"4", 2 * BUCKET_MS), (b"2", 900), (b"1", 100), (b"3", BUCKET_MS), (b"0", 100 - 1)):
        world.put(body, after)
    assert world.delayed.waiting == 5
    world.at(3 * BUCKET_MS)
    assert world.got() == [b"0", b"1", b"2", b"3", b"4"]


def test_what_is_due_already_does_not_wait(world: World) -> None:
    """It is returned unchanged."""
    world.put(b"now", 0)
    world.put(b"past", -5_000)
    assert world.got() == [b"now", b"past"]
    assert world.hidden == set()


def test_bounds_are_refused(bench) -> None:
    """Too late, too many."""
    world = World(bench, delay_ms_max=1_000, messages_max=2)
    with pytest.raises(Refused, match="exceeds 1000"):
        world.put(b"x", 1_001)
    world.put(b"a", 1_000)
    world.put(b"b", 1_000)
    with pytest.raises(Refused, match="delayed_messages_max"):
        world.put(b"c", 1_000)
    world.at(1_000)
    world.put(b"c", 1_000)
    assert world.delayed.waiting == 1


def test_a_full_second_accepts_no_more(bench) -> None:
    """Refused and counted; another second does, and so does this one when a message of it was recalled."""
    world = World(bench, per_second_max=2)
    for _ in range(2):
        world.put(b"x", 5_100)
    with pytest.raises(Refused, match="same second") as refused:
        world.put(b"y", 5_900)
    assert refused.value.code == ResponseCode.FLOW_CONTROL
    assert world.delayed.counts.refused == {"congested": 1}
    world.put(b"y", 6_000)
    assert world.delayed.numbers(START)["fullest_second"] == {"second_ms": START + 5_000, "messages": 2}
    bucket = world.delayed.buckets.find(START + 5_100)
    world.delayed.drop(bucket, (START + 5_100, 0), RECALLED)
    world.put(b"y", 5_900)


def test_seconds_are_counted_again_after_a_restart(bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """A part at a time; until then a second may accept more."""
    monkeypatch.setattr("broker.delayed.seconds.STEP", 2)
    world = World(bench, per_second_max=5)
    for number in range(5):
        world.put(b"x", 5_000 + number)
    world.put(b"far", 3 * BUCKET_MS)
    world.delayed.drop(world.delayed.buckets.find(START), (START + 5_001, 1), RECALLED)
    world.bench.settle()
    world.restart()
    assert world.delayed.seconds.fullest() == (0, 0)
    for expected in (1, 3, 4, 4):
        world.delayed.seconds.count_earlier(2)
        assert world.delayed.seconds.fullest() == (START + 5_000, expected)
    world.put(b"x", 5_500)
    with pytest.raises(Refused, match="same second"):
        world.put(b"x", 5_500)


def test_deliveries_close_to_each_other_are_combined(bench) -> None:
    """The first comes at its time, the next ones together and late by less than the precision; none is early."""
    world = World(bench, precision_ms=100)
    for after in (50, 60, 120, 151, 400):
        world.put(b"%d" % after, after)
    found = []
    for after in range(30, 500, 10):
        world.at(after)
        found.append((after, len(world.got())))
    changes = [(after, count) for (after, count), (_, before) in zip(found[1:], found, strict=False) if count != before]
    assert changes == [(50, 1), (150, 3), (250, 4), (400, 5)]
    assert world.lateness.read() == 5
    assert world.lateness.counts[0] == 2
    assert world.lateness.total == pytest.approx((0 + 90 + 30 + 99 + 0) / 1_000)


def test_when_the_next_delivery_may_be(bench) -> None:
    world = World(bench, precision_ms=100)
    world.put(b"1", 50)
    world.put(b"2", 60)
    world.at(50)
    assert world.delayed.next_due_ms() == START + 150


def test_a_restart_neither_repeats_nor_forgets(world: World) -> None:
    """Half are delivered, then the broker stops; the rest became due meanwhile."""
    for number in range(10):
        world.put(b"%d" % number, 100 * number + 50)
    world.at(449)
    assert world.got() == [b"0", b"1", b"2", b"3"]
    world.restart()
    assert world.delayed.waiting == 6
    world.at(2_000)
    assert world.got() == [b"%d" % number for number in range(10)]
    world.restart()
    world.at(3_000)
    assert len(world.got()) == 10


def test_a_clock_that_was_set_back_loses_nothing(world: World) -> None:
    """What arrives then does not sort before what was delivered."""
    world.put(b"1", 60_000)
    world.at(60_000)
    world.now = START + 10_000
    world.restart()
    world.put(b"2", 20_000)
    world.put(b"3", 55_000)
    world.at(70_000)
    assert sorted(world.got()) == [b"1", b"2", b"3"]


def test_only_what_was_confirmed_is_delivered_and_nothing_overtakes(world: World) -> None:
    """An unconfirmed message that is due earlier delays a later one, and is not lost behind its mark."""
    world.put(b"2", 20)
    world.now += 5
    world.put(b"1", 1, settle=False)
    world.now = START + 50
    world.delayed.due(world.now)
    assert world.got() in ([], [b"1", b"2"])
    world.bench.settle()
    world.at(60)
    assert world.got() == [b"1", b"2"]


def test_a_finished_bucket_is_deleted(world: World) -> None:
    """With its queue and its state, but not before all messages in flight can have come."""
    world.put(b"x", 1_000)
    world.at(BUCKET_MS + GRACE_MS - 1)
    assert len(world.hidden) == 1
    world.at(BUCKET_MS + GRACE_MS)
    assert world.hidden == set()
    assert world.store.state.count(state_kinds.DELAYED) == 0
    assert world.delayed.next_due_ms() is None
    world.restart()
    assert world.hidden == set()
    assert world.got() == [b"x"]


def test_when_the_timer_must_wake(world: World) -> None:
    """At the first message that is due; before a bucket begins; never without one."""
    assert world.delayed.next_due_ms() is None
    world.put(b"x", 2 * BUCKET_MS + 7)
    world.at(0)
    assert world.delayed.next_due_ms() == START + 2 * BUCKET_MS - NEAR_MS
    world.put(b"y", 500)
    world.at(1)
    assert world.delayed.next_due_ms() == START + 500
    world.at(2 * BUCKET_MS - NEAR_MS)
    assert world.delayed.next_due_ms() == START + 2 * BUCKET_MS + 7


def test_large_groups_are_cut(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """By number and by bytes; each group has its own mark."""
    monkeypatch.setattr(room, "GROUP_MAX", 4)
    monkeypatch.setattr(room, "GROUP_BYTES_MAX", 5_000)
    for number in range(9):
        world.put(bytes([number]) * 2_000, 10)
    groups = 0
    world.now = START + 10
    while world.delayed.due(world.now):
        groups += 1
        world.bench.settle()
    assert [body[0] for body in world.got()] == list(range(9))
    assert groups >= 4


def test_a_deleted_topic_loses_only_its_own_messages(world: World) -> None:
    """Counted and logged, and the others are delivered."""
    world.topics.ensure("four", 4)
    world.wait(encode_image(flags=1 << 16, queue_index=3, born_ms=1, topic=b"four", body=b"q"), 10)
    world.put(b"mqtt", 20)
    world.topics.delete("four")
    world.topics.ensure("four", 2)
    world.at(30)
    assert world.got() == [b"mqtt"]
    assert (world.delayed.counts.undeliverable, world.delayed.counts.delivered, world.delayed.waiting) == (1, 1, 0)


def test_a_queue_message_goes_to_its_queue_with_rocketmqs_flags(world: World) -> None:
    """The system flags have the compression of the body."""
    world.topics.ensure("four", 4)
    world.wait(encode_image(flags=1 << 16, queue_index=3, born_ms=1, topic=b"four", body=b"q"), 10)
    world.bench.settle()
    world.at(10)
    queue = world.topics.queue_ids("four")[3]
    assert RecordView(world.store.reading.read(queue, 0, 1, 1_000).records[0]).flags & ~FLAG_GROUP_OPEN == 1 << 16


def test_what_the_store_never_accepts_delays_no_other(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """The store refuses one of a group: only that one is given up."""
    for body in (b"1", b"bad", b"3"):
        world.put(body, 10)
    append = world.store.append

    def picky(*placed, **options):
        if any(image.body == b"bad" for one in placed for image, _queues in one):
            raise LocalMisuse("a bad one")
        return append(*placed, **options)

    monkeypatch.setattr(world.store, "append", picky)
    world.at(10)
    assert world.got() == [b"1", b"3"]
    assert (world.delayed.counts.undeliverable, world.delayed.counts.delivered) == (1, 2)


def test_a_full_disk_delays_and_loses_nothing(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """The pass fails as a whole and is repeated."""
    world.put(b"1", 10)
    world.put(b"2", 20)
    with monkeypatch.context() as full:
        full.setattr(world.store, "append", lambda *_, **__: (_ for _ in ()).throw(StoreFull("full")))
        with pytest.raises(StoreFull):
            world.delayed.due(START + 30)
    world.at(30)
    assert world.got() == [b"1", b"2"]


def test_retention_removes_no_waiting_message(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """What waits below the position is appended again, what was delivered is not; also after a restart."""
    monkeypatch.setattr(room, "GROUP_MAX", 3)
    for number in range(8):
        world.put(b"%d" % number, 100 if number % 2 else 2_000)
    world.put(b"far", 3 * BUCKET_MS)
    world.at(100)
    assert world.got() == [b"1", b"3", b"5", b"7"]
    target = world.store.end_position
    world.put(b"young", 1_900)

    def append(messages, changes):
        return world.store.append(messages, changes=changes).end_position

    steps = 0
    while not world.delayed.keep_from(target, append):
        steps += 1
        world.bench.settle()
    assert steps >= 3
    assert world.delayed.counts.carried == 5
    assert world.delayed.numbers(world.now)["waiting"] == 6
    for queue in world.hidden:
        bucket = next(one for one in world.delayed.buckets if one.queue_id == queue)
        for record in world.store.reading.read(queue, bucket.floor, 100, 10**6).records:
            assert RecordView(record).position >= target
    world.restart()
    assert world.delayed.waiting == 6
    world.at(2_000)
    assert sorted(world.got()[4:]) == [b"0", b"2", b"4", b"6", b"young"]
    world.at(3 * BUCKET_MS)
    assert world.got()[-1] == b"far"
    assert len(world.got()) == 10


def test_what_is_appended_again_late_is_not_lost(world: World) -> None:
    """A message overdue when it is appended again must not sort before what was delivered meanwhile."""
    world.put(b"1", 10)
    world.put(b"2", 30)
    world.now = START + 20
    world.delayed._time(START + 40)

    def append(messages, changes):
        return world.store.append(messages, changes=changes).end_position

    target = world.store.end_position
    while not world.delayed.keep_from(target, append):
        world.bench.settle()
    world.at(50)
    assert sorted(world.got()) == [b"1", b"2"]


def test_files_expire_and_what_waits_in_them_stays(tmp_path: Path) -> None:
    """The real retention, again and again, over a restart; the log keeps a second of messages."""
    bench = SmallFiles(tmp_path / "data", retention_ms=1_000, carry_entries_max=3)
    world = World(bench)
    for number in range(10):
        world.put(b"%d" % number, 100_000 + number)
    world.put(b"soon", 1)
    world.at(1)
    busy = world.store.queues.open(b"busy")
    begin = world.store.begin_position
    for turn in range(3):
        for number in range(400):
            world.store.append(filler([busy], b"%06d" % number + bytes(100)))
            bench.clock.advance_ms(10)
        bench.settle()
        for _ in range(200):
            world.store.maintain(bench.clock.now_ms())
            bench.settle()
            drain(world.store)
        assert world.store.begin_position > begin, turn
        begin = world.store.begin_position
        if turn == 1:
            world.restart()
    assert world.delayed.counts.carried >= 10
    assert world.delayed.numbers(world.now)["waiting"] == 10
    world.at(100_005)
    assert sorted(world.got()[-6:]) == [b"%d" % number for number in range(6)]
    world.at(200_000)
    assert sorted(world.got()[-10:]) == [b"%d" % number for number in range(10)]
    bench.close()
