"""Rows to messages: whatever a twin makes is what the careful way makes, and it makes nothing of what is not plain."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from broker.meta import hot
from broker.meta.hot import Core
from broker.publishing.append import image_message
from broker.publishing.placement import Placement, kind_of
from broker.sink.stages import AttemptKey, Stages, staged_messages
from broker.store.store_message import StoreMessage
from broker.subscriptions.dispatch import Dispatcher
from broker.subscriptions.filters import Filters
from broker.topics.topics import Topics, TopicSettings
from remoting.protocol.errors import Refused, RemoteViolation
from remoting.protocol.frames.codes import ResponseCode
from remoting.protocol.records.image import (
    QUEUE_INDEX_ANY,
    encode_batch_image,
    encode_image,
    encode_mqtt_image,
    image_views,
    wanted_queue,
)
from remoting.protocol.records.names import parent_topic
from remoting.protocol.records.record import FLAG_MQTT, FLAG_RETAIN, FLAG_STAGED, MQTT_TOPIC_KEY

KEY = AttemptKey("sink", 0, 0, 1)


@pytest.fixture(params=["pure", "compiled"])
def core(request: pytest.FixtureRequest) -> Core:
    if request.param == "pure":
        return hot.pure_core()
    if hot.choice.name != "compiled":
        pytest.skip(f"no compiled twin: {hot.choice.reason}")
    return hot.compiled_core()


def placement_of(store, *, auto_create: bool = True) -> Placement:
    topics = Topics(store, topics_max=20)
    filters = Filters(store, expiry_ms=0, filters_max=10, now_ms=0)
    dispatcher = Dispatcher(store, topics, filters, cached_topics_max=10, queue_count=3, auto_create=auto_create)
    limits = {"message_size_bytes_max": 200, "properties_bytes_max": 300}
    return Placement(topics, dispatcher, queue_count=3, auto_create=auto_create, **limits)


def mqtt(topic: bytes, *properties: tuple[bytes, bytes], flags: int = 1, body: bytes = b"x", **parts: bytes) -> bytes:
    """A row as Spark sends it: no client id."""
    return encode_image(
        flags=FLAG_MQTT | flags, queue_index=QUEUE_INDEX_ANY, born_ms=1 << 41, topic=parent_topic(topic),
        properties=((MQTT_TOPIC_KEY, topic), *properties), body=body, **parts,
    )  # fmt: skip


def plain(
    topic: bytes, *properties: tuple[bytes, bytes], flags: int = 0, index: int = QUEUE_INDEX_ANY, **parts
) -> bytes:
    parts = {"body": b"y", **parts}
    return encode_image(flags=flags, queue_index=index, born_ms=-1, topic=topic, properties=properties, **parts)


PLAIN = [
    mqtt(b"a/b"),
    mqtt(b"a/b", (b"unit", b"celsius"), (b"", b""), keys=b"key", tags=b"tag", body=b""),
    mqtt(b"new/topic", flags=7, tags=b"t" * 40, body=b"z" * 200),
    mqtt(b"a/c", (b"delay-ms-not", b"1"), (b"DELAY", b"9"), flags=2),
    mqtt(b"a/c", (b"mqttExpiry", b"9"), flags=0),
    encode_mqtt_image(b"a/b", b"from a proxy", 1, 5, b"client"),
    plain(b"orders"),
    plain(b"orders", (b"k", b"v" * 250), keys=b"k1 k2", tags=b"T", flags=3 | 5 << 16),
    plain(b"orders", (b"delay-ms", b"1")),
    plain(b"other", body=b"DELAY TIMER_"),
    plain(b"orders", index=2),
    plain(b"orders", (b"unit", b"celsius"), keys=b"device", tags=b"T", index=0),
    plain(b"fresh", index=1),
]
NOT_PLAIN = {
    "delay of MQTT": mqtt(b"a/b", (b"delay-ms", b"5")),
    "expiry of a retained one": mqtt(b"a/b", (b"mqttExpiry", b"9"), flags=FLAG_RETAIN),
    "delay of RocketMQ": plain(b"orders", (b"DELAY", b"3")),
    "timer": plain(b"orders", (b"TIMER_DELIVER_MS", b"3")),
    "light queues": plain(b"orders", (b"INNER_MULTI_DISPATCH", b"%LMQ%x")),
    "a queue that is not there": plain(b"orders", index=3),
    "the last number that is no wish for any": plain(b"orders", index=QUEUE_INDEX_ANY - 1),
    "packet id": encode_mqtt_image(b"a/b", b"", 2, 5, b"client", packet_id=7),
    "batch": encode_batch_image(topic=b"batches", queue_index=0, born_ms=1, body=b"packed", count=9, codec=1),
    "tag that is not ASCII": mqtt(b"a/b", tags="Ü".encode()),
    "too large": mqtt(b"a/b", body=b"x" * 201),
    "too many properties": mqtt(b"a/b", (b"k", b"v" * 300)),
}


def careful(placement: Placement, body: bytes):
    return [placement.place(image_message(one), kind_of(one.flags), wanted_queue(one)) for one in image_views(body)]


def test_plain_entries_are_placed_as_the_careful_way_places_them(bench, core: Core) -> None:
    """Field for field, also the turns of queues, from one request to the next."""
    body = b"".join(PLAIN)
    expected, found = placement_of(bench.store), placement_of(bench.store)
    for _ in range(3):
        wanted = careful(expected, body)
        made = core.placed(body, found.way)
        assert made in (None, wanted)
        if core.name == "pure":
            return
        assert made is not None
        assert [type(value) for value in vars_of(made[0])] == [type(value) for value in vars_of(wanted[0])]


def road(core: Core, placement: Placement, body: bytes) -> list[StoreMessage]:
    """What APPEND_MANY makes of a body: the core's messages, else those of the careful way."""
    made = core.placed(body, placement.way)
    return careful(placement, body) if made is None else made


def staged_road(core: Core, placement: Placement, stages: Stages, body: bytes) -> list[StoreMessage]:
    """What STAGE makes of a body."""
    attempt = stages.open(KEY, 0)
    made = core.staged(body, placement.way, (attempt.queue_id,))
    if made is not None:
        return made
    made = []
    for one in image_views(body):
        message = placement.place_staged(image_message(one), kind_of(one.flags), wanted_queue(one))
        message.flags = one.flags
        made.append(stages.stage(message, kind_of(one.flags), wanted_queue(one), attempt))
    return made


def shown_road(core: Core, placement: Placement, store, stages: Stages, count: int) -> list[StoreMessage]:
    """What COMMIT_BATCH makes of the staged rows."""
    queue_id = stages.open(KEY, 0).queue_id
    rows = store.reading.read_range(queue_id, 0, count, 1 << 20, count)
    made = core.shown(rows.blob, rows.starts, placement.way)
    if made is not None:
        return made
    records = store.reading.read(queue_id, 0, count, 1 << 20).records
    made = [placement.place(*one) for one in staged_messages(records)]
    for one in made:
        one.body = bytes(one.body)
    return made


def outcome(make, *arguments) -> list[object]:
    """The messages, or the refusal as its sender sees it."""
    try:
        return list(make(*arguments))
    except Refused as refused:
        return [refused.code, refused.remark]


INDEXES = st.sampled_from([0, 1, 2, 2, 3, 4, QUEUE_INDEX_ANY - 1, QUEUE_INDEX_ANY, QUEUE_INDEX_ANY])
NAMES = st.sampled_from([b"k", b"__k", b"DELAYED", b"DELAY", b"TIMER_", b"TIMER_DELIVER_MS", b"INNER_MULTI_DISPATCH"])
OF_QUEUES = st.builds(
    lambda topic, properties, index, keys, tags, flags: plain(
        topic, *properties, index=index, keys=keys, tags=tags, flags=flags
    ),
    st.sampled_from([b"narrow", b"narrow", b"wide", b"fresh", b"closed"]),
    st.lists(st.tuples(NAMES, st.binary(max_size=5)), max_size=3),
    INDEXES,
    st.sampled_from([b"", b"device-1"]),
    st.sampled_from([b"", b"T", "Ü".encode()]),
    st.integers(0, 3),
)
ROWS = st.lists(st.one_of(OF_QUEUES, OF_QUEUES, st.sampled_from(PLAIN), st.sampled_from([*NOT_PLAIN.values()])))


def test_rows_that_name_queues_go_where_the_careful_way_sends_them(bench, core: Core) -> None:
    """Whatever is mixed: the same messages and queues, or the same refusal, also of rows staged before a topic shrank.

    The topic "narrow" has five queues, two of them to write to.
    """
    topics = Topics(bench.store, topics_max=20)
    topics.put(TopicSettings(name="closed", permission=4))
    outcomes = set()

    def prepared() -> Placement:
        """A placement of its own: a refusal leaves turns counted on the careful way alone."""
        topics.put(TopicSettings(name="narrow", read_queue_count=5, write_queue_count=2))
        return placement_of(bench.store)

    @given(ROWS)
    @example([plain(b"narrow", index=2)])
    @example([plain(b"narrow"), plain(b"narrow", index=1), plain(b"narrow")])
    @settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
    def compare(entries: list[bytes]) -> None:
        body = b"".join(entries)
        expected, found = prepared(), prepared()
        for _ in range(2):
            wanted = outcome(careful, expected, body)
            assert outcome(road, core, found, body) == wanted
            if wanted and not isinstance(wanted[0], StoreMessage):
                outcomes.add(wanted[0])
                break
        stages = Stages(bench.store, set(), expiry_ms=1_000, attempts_max=9, now_ms=0)
        stages.abort(KEY.sink, KEY.batch)
        staged = outcome(staged_road, core, prepared(), stages, body)
        assert staged == outcome(staged_road, hot.pure_core(), prepared(), stages, body)
        if not staged or not isinstance(staged[0], StoreMessage):
            return
        bench.store.append(staged)
        bench.settle()
        for count in (2, 1):
            expected, found = prepared(), prepared()
            for one in (expected, found):
                one._topics.put(TopicSettings(name="narrow", read_queue_count=5, write_queue_count=count))
            arguments = (bench.store, stages, len(staged))
            wanted = outcome(shown_road, hot.pure_core(), expected, *arguments)
            assert outcome(shown_road, core, found, *arguments) == wanted
            outcomes.add(f"{'shown' if isinstance(wanted[0], StoreMessage) else 'refused'} with {count}")

    compare()
    assert outcomes >= {ResponseCode.INVALID_PARAMETER, "shown with 2", "refused with 1"}


def vars_of(message) -> list[object]:
    return [getattr(message, name) for name in type(message).__slots__]


def test_plain_entries_are_staged_and_come_back(bench, core: Core) -> None:
    """Staged and read back by the twin they are what was sent, with their queues."""
    body = b"".join(PLAIN)
    placement = placement_of(bench.store)
    stages = Stages(bench.store, set(), expiry_ms=1_000, attempts_max=9, now_ms=0)
    attempt = stages.open(KEY, 0)
    wanted = []
    for one in image_views(body):
        message = placement.place_staged(image_message(one), kind_of(one.flags), wanted_queue(one))
        message.flags = one.flags
        wanted.append(stages.stage(message, kind_of(one.flags), wanted_queue(one), attempt))
    made = core.staged(body, placement.way, (attempt.queue_id,))
    assert made in (None, wanted)
    assert (made is None) == (core.name == "pure")
    assert {message.flags for message in wanted} == {FLAG_STAGED, FLAG_STAGED | 5 << 16}
    bench.store.append(wanted)
    bench.settle()
    expected, found = placement_of(bench.store), placement_of(bench.store)
    records = bench.store.reading.read(attempt.queue_id, 0, 100, 1 << 20).records
    placed = [expected.place(*one) for one in staged_messages(records)]
    rows = bench.store.reading.read_range(attempt.queue_id, 0, 100, 1 << 20, 100)
    shown = core.shown(rows.blob, rows.starts, found.way)
    assert (shown is None) == (core.name == "pure")
    for one in placed:
        one.body = bytes(one.body)
    assert shown in (None, placed)
    rows.blob[200] ^= 1
    assert core.shown(rows.blob, rows.starts, found.way) is None, "damage is not copied under a fresh checksum"


@pytest.mark.parametrize("name", NOT_PLAIN)
def test_what_is_not_plain_is_left_to_the_careful_way(bench, core: Core, name: str) -> None:
    """One such row is enough, wherever it stands."""
    placement = placement_of(bench.store)
    for entries in ([NOT_PLAIN[name]], [*PLAIN, NOT_PLAIN[name]], [NOT_PLAIN[name], *PLAIN]):
        body = b"".join(entries)
        assert core.placed(body, placement.way) is None
        assert core.staged(body, placement.way, (1,)) is None


def test_malformed_bodies_are_left_to_the_careful_way(bench, core: Core) -> None:
    """Every cut, and every byte of a small body changed: no crash, and nothing that the careful way would not make."""
    placement = placement_of(bench.store)
    body = PLAIN[1] + PLAIN[6]
    assert core.topics(body) in (None, {b"a/b", b"orders"})
    for size in set(range(len(body))) - {len(PLAIN[1])}:
        assert core.placed(body[:size], placement.way) is None
        assert core.topics(body[:size]) is None
    assert core.placed(body + b"\0", placement.way) is None
    for at in range(len(body)):
        for bit in (1, 0x80):
            wrong = bytearray(body)
            wrong[at] ^= bit
            try:
                made = core.placed(bytes(wrong), placement_of(bench.store).way)
            except Refused:
                continue
            if made is not None:
                assert made == careful(placement_of(bench.store), bytes(wrong))


def test_a_topic_that_cannot_be_written_to_is_refused(bench, core: Core) -> None:
    """In the words of the careful way."""
    placement = placement_of(bench.store, auto_create=False)
    Topics(bench.store, topics_max=20).put(TopicSettings(name="closed", permission=4))
    closed = placement_of(bench.store, auto_create=False)
    for entry, where in ((plain(b"closed"), closed), (plain(b"unknown"), placement), (mqtt(b"unknown/x"), placement)):
        body = b"".join([entry])
        if core.name == "pure":
            assert core.placed(body, where.way) is None
            continue
        with pytest.raises(Refused) as refused:
            core.placed(body, where.way)
        with pytest.raises(Refused) as wanted:
            careful(where, body)
        assert str(refused.value) == str(wanted.value)


def test_flags_of_the_broker_cannot_be_set(bench, core: Core) -> None:
    """A sender says QoS, retain and sysFlag, nothing else."""
    for image in (mqtt(b"a/b", flags=0x10), mqtt(b"a/b", flags=0x20), plain(b"orders", flags=0x04)):
        assert core.placed(image, placement_of(bench.store).way) is None
        with pytest.raises(RemoteViolation, match="flags"):
            careful(placement_of(bench.store), image)
