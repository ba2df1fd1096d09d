"""Images to queues: both twins choose the same, report what needs more work, and refuse with the same text."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from broker.publishing.placement import QueueChoice
from broker.store.placed import Placed
from broker.subscriptions.filters import Dispatcher, Filters
from broker.topics.topics import Topics, TopicSettings
from remoting.native import core as native
from remoting.native.contracts import SPAN_MS, Core, DueSpan, Times
from remoting.protocol.errors import Refused, RemoteViolation
from remoting.protocol.frames.codes import ResponseCode
from remoting.protocol.records.image import (
    QUEUE_INDEX_ANY,
    encode_batch_image,
    encode_image,
    encode_mqtt_image,
    image_views,
)
from remoting.protocol.records.names import parent_topic
from remoting.protocol.records.record import FLAG_MQTT, FLAG_RETAIN, FLAG_STAGED, MQTT_TOPIC_KEY, RecordView


@pytest.fixture(params=["pure", "compiled"])
def core(request: pytest.FixtureRequest) -> Core:
    if request.param == "pure":
        return native.pure_core()
    if native.choice.name != "compiled":
        pytest.skip(f"no compiled twin: {native.choice.reason}")
    return native.compiled_core()


def placement_of(store, *, auto_create: bool = True) -> QueueChoice:
    topics = Topics(store, topics_max=20)
    filters = Filters(store, expiry_ms=0, filters_max=10, per_user_max=10, now_ms=0)
    dispatcher = Dispatcher(store, topics, filters, cached_topics_max=10, queue_count=3, auto_create=auto_create)
    limits = {"message_size_bytes_max": 200, "properties_bytes_max": 300}
    return QueueChoice(topics, dispatcher, queue_count=3, auto_create=auto_create, **limits)


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
ASKING = {
    "expiry of a retained one": mqtt(b"a/b", (b"mqttExpiry", b"9"), flags=FLAG_RETAIN),
    "a queue that is not there": plain(b"orders", index=3),
    "the last number that does not mean any queue": plain(b"orders", index=QUEUE_INDEX_ANY - 1),
    "packet id": encode_mqtt_image(b"a/b", b"", 2, 5, b"client", packet_id=7),
    "batch": encode_batch_image(topic=b"batches", queue_index=0, born_ms=1, body=b"packed", count=9, codec=1),
}


INDEXES = st.sampled_from([0, 1, 2, 2, 3, 4, QUEUE_INDEX_ANY - 1, QUEUE_INDEX_ANY, QUEUE_INDEX_ANY])
NAMES = st.sampled_from([b"k", b"__k", b"DELAYED", b"DELAY", b"TIMER_", b"TIMER_DELIVER_MS", b"INNER_MULTI_DISPATCH"])
NOW_MS = 1_700_000_000_000
TIMED = st.builds(
    lambda name, value, topic, first: (
        mqtt(topic, (b"delay-ms", value)) if name == b"delay-ms" else plain(b"wide", *first, (name, value))
    ),
    st.sampled_from([b"delay-ms", b"TIMER_DELAY_SEC", b"TIMER_DELAY_MS", b"TIMER_DELIVER_MS", b"DELAY"]),
    st.one_of(
        st.sampled_from([b"", b"0", b"5", b"99", b"-1", b"1.5", b"9" * 15, b"9" * 16, b"%d" % (NOW_MS + 1_000)]),
        st.integers(0, 700_000).map(lambda number: b"%d" % number),
    ),
    st.sampled_from([b"a/b", b"a/c"]),
    st.sampled_from(
        [(), ((b"TIMER_DELAY_MS", b""),), ((b"DELAY", b"2"),), ((b"INNER_MULTI_DISPATCH", b"%LMQ%x,%LMQ%y"),)]
    ),
)
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
ROWS = st.lists(st.one_of(OF_QUEUES, OF_QUEUES, TIMED, st.sampled_from(PLAIN), st.sampled_from([*ASKING.values()])))


def outcome(make, *arguments) -> object:
    """The result of a call, or the refusal as its sender sees it."""
    try:
        return make(*arguments)
    except Refused as refused:
        return refused.code, refused.remark
    except RemoteViolation as violation:
        return violation.reason


def waiting(core: Core, *, delay_ms_max: int = 600_000, room: int = 9, per_second_max: int = 2) -> Times:
    """Where images wait at `NOW_MS`, for queue 9."""
    spans: dict[int, DueSpan] = {}
    return Times(
        spans, lambda start: spans.setdefault(start, core.make_span((9,))),
        lambda: (NOW_MS, NOW_MS, delay_ms_max, room, per_second_max),
    )  # fmt: skip


def counts_of(times: Times) -> dict[int, list[int]]:
    """Start of each span -> messages in each second."""
    return {start: [span.count(second) for second in range(300)] for start, span in times.spans.items()}


def test_a_message_that_names_a_time_waits_for_it(bench, core: Core) -> None:
    """It gets the queue of its span and becomes a staged one; others stay as they were."""
    images = [PLAIN[0], plain(b"orders", (b"TIMER_DELAY_MS", b"70000")), PLAIN[6], mqtt(b"a/b", (b"delay-ms", b"0"))]
    times = waiting(core)
    queues, odd, made, dues = core.placed(b"".join(images), placement_of(bench.store).way, times)
    due_ms = NOW_MS + 70_000
    assert (odd, queues[1], dues) == ([], (9,), due_ms.to_bytes(8, "little"))
    start = due_ms - due_ms % SPAN_MS
    hidden = native.pure_core().hidden(images[1], due_ms - start)
    assert made == b"".join([images[0], hidden, *images[2:]])
    assert times.spans[start].fullest() == (due_ms % SPAN_MS // 1_000, 1)


@pytest.mark.parametrize(
    ("limits", "value"),
    [
        ({"delay_ms_max": 4_999}, b"5000"), ({"room": 0}, b"5000"), ({}, b"-5"), ({}, b"soon"), ({}, b"9" * 15),
        ({"per_second_max": 1}, b"5000"),
    ],
)  # fmt: skip
def test_what_may_not_wait_is_reported(bench, core: Core, limits, value: bytes) -> None:
    """The one that has a place before it does not matter."""
    times = waiting(core, **limits)
    if "per_second_max" in limits:
        times.opened((NOW_MS + 5_000) // SPAN_MS * SPAN_MS).add((NOW_MS + 5_000) % SPAN_MS // 1_000, 1)
    body = PLAIN[6] + plain(b"orders", (b"TIMER_DELAY_MS", value))
    queues, odd, made, dues = core.placed(body, placement_of(bench.store).way, times)
    assert (odd, queues[1], made, dues) == ([(1, len(PLAIN[6]))], None, body, b"")


def test_what_is_refused_is_not_counted(bench, core: Core) -> None:
    """A message waits, the next one is malformed, too large or for no topic."""
    Topics(bench.store, topics_max=20).put(TopicSettings(name="closed", permission=4))
    way = placement_of(bench.store).way
    first = plain(b"orders", (b"TIMER_DELAY_MS", b"5000"))
    for wrong in (first[:-8], plain(b"orders", body=b"x" * 201), plain(b"closed")):
        times = waiting(core)
        with pytest.raises((Refused, RemoteViolation)):
            core.placed(first + wrong, way, times)
        assert not any(map(any, counts_of(times).values()))


def test_light_queues_follow_the_parent_queue(bench, core: Core) -> None:
    """Created by use, remembered, and refused when they are none."""
    choice = placement_of(bench.store)
    named = plain(b"orders", (b"INNER_MULTI_DISPATCH", b"%LMQ%x,,%LMQ%y,%LMQ%x"), index=1)
    for _ in range(2):
        queues, odd, *_rest = core.placed(
            named + plain(b"orders", (b"INNER_MULTI_DISPATCH", b""), index=1), choice.way, None
        )
        light = [bench.store.queues.find(name) for name in (b"%LMQ%x", b"%LMQ%y")]
        assert odd == []
        assert queues == [(queues[1][0], *light), queues[1]]
    bench.store.queues.delete([light[0]])
    again, *_rest = core.placed(named, choice.way, None)
    assert again[0][1] == bench.store.queues.find(b"%LMQ%x") != light[0]
    with pytest.raises(Refused, match="LMQ"):
        core.placed(plain(b"orders", (b"INNER_MULTI_DISPATCH", b"x")), choice.way, None)


def test_plain_images_get_the_queues_of_their_topics(bench, core: Core) -> None:
    """The turns of queues continue from one request to the next."""
    placement = placement_of(bench.store)
    queues, odd, images, dues = core.placed(b"".join(PLAIN), placement.way, None)
    assert (odd, images, dues) == ([], b"".join(PLAIN), b"")
    orders = Topics(bench.store, topics_max=20).queue_ids("orders")
    assert [one[0] for one, image in zip(queues, PLAIN, strict=True) if b"orders" in image] == [
        orders[0], orders[1], orders[2], orders[2], orders[0],
    ]  # fmt: skip
    again, *_rest = core.placed(plain(b"orders"), placement.way, None)
    assert again == [(orders[0],)], "three of them had turns before"
    assert core.topics(b"".join(PLAIN)) == {b"a/b", b"new/topic", b"a/c", b"orders", b"other", b"fresh"}


@pytest.mark.parametrize("name", ASKING)
def test_what_needs_more_work_is_reported(bench, core: Core, name: str) -> None:
    """By its number and by where it begins."""
    images = [*PLAIN, ASKING[name], *PLAIN]
    queues, odd, *_rest = core.placed(b"".join(images), placement_of(bench.store).way, None)
    assert odd == [(len(PLAIN), sum(map(len, PLAIN)))]
    assert [number for number, one in enumerate(queues) if one is None] == [len(PLAIN)]


@pytest.mark.parametrize("image", [mqtt(b"a/b", body=b"x" * 201), mqtt(b"a/b", (b"k", b"v" * 300))])
def test_what_is_too_large_is_refused(bench, core: Core, image: bytes) -> None:
    with pytest.raises(Refused, match="exceed"):
        core.placed(PLAIN[0] + image, placement_of(bench.store).way, None)


def test_both_twins_agree(bench, core: Core) -> None:
    """Any mixture: the same queues and turns, or the same refusal; "narrow" has two queues to write to."""
    topics = Topics(bench.store, topics_max=20)
    topics.put(TopicSettings(name="closed", permission=4))
    outcomes = set()

    @given(ROWS)
    @settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
    def compare(images: list[bytes]) -> None:
        topics.put(TopicSettings(name="narrow", read_queue_count=5, write_queue_count=2))
        expected, found = placement_of(bench.store), placement_of(bench.store)
        spans, others = waiting(native.pure_core()), waiting(core)
        for _ in range(2):
            wanted = outcome(native.pure_core().placed, b"".join(images), expected.way, spans)
            assert outcome(core.placed, b"".join(images), found.way, others) == wanted
            assert counts_of(spans) == counts_of(others)
            outcomes.add(type(wanted[0]))

    compare()
    assert outcomes == {list, int} or len(outcomes) == 2


def test_staged_images_are_restored_as_they_were_sent(bench, core: Core) -> None:
    """Through the log, whichever twin hides and shows them; damage is not copied under a fresh checksum."""
    images = [*PLAIN, *(image for name, image in ASKING.items() if name != "packet id")]
    hidden = core.hidden(b"".join(images), 0xFFFF_FFFE)
    assert hidden == native.pure_core().hidden(b"".join(images), 0xFFFF_FFFE)
    queue = bench.store.queues.open(b"hidden")
    bench.store.append(Placed(hidden, [(queue,)] * len(images)))
    bench.settle()
    rows = bench.store.reading.read_range(queue, 0, 100, 1 << 20, 100)
    assert core.shown(rows.blob, rows.starts) == b"".join(images)
    assert all(RecordView(rows.blob, int(start)).flags & FLAG_STAGED for start in rows.starts)
    rows.blob[200] ^= 1
    assert core.shown(rows.blob, rows.starts) is None


def test_malformed_images_are_refused_with_the_same_text(bench, core: Core) -> None:
    """Every cut, and every byte of a small request changed: no crash, and the error of `check_image`."""
    placement = placement_of(bench.store)
    images = PLAIN[1] + PLAIN[6]
    wrong = [images[:size] for size in range(len(images))] + [images + bytes(1)]
    for at in range(len(images)):
        for bit in (1, 0x80):
            changed = bytearray(images)
            changed[at] ^= bit
            wrong.append(bytes(changed))
    for one in wrong:
        wanted = outcome(image_views, one)
        if isinstance(wanted, str):
            assert outcome(core.placed, one, placement.way, None) == outcome(core.topics, one) == wanted
        else:
            outcome(core.placed, one, placement_of(bench.store).way, None)


def test_a_topic_that_cannot_be_written_to_is_refused(bench, core: Core) -> None:
    placement = placement_of(bench.store, auto_create=False)
    Topics(bench.store, topics_max=20).put(TopicSettings(name="closed", permission=4))
    closed = placement_of(bench.store, auto_create=False)
    for image, where, code in (
        (plain(b"closed"), closed, ResponseCode.NO_PERMISSION),
        (plain(b"unknown"), placement, ResponseCode.TOPIC_NOT_EXIST),
        (mqtt(b"unknown/x"), placement, ResponseCode.TOPIC_NOT_EXIST),
    ):
        with pytest.raises(Refused) as refused:
            core.placed(image, where.way, None)
        assert refused.value.code == code


def test_flags_of_the_broker_cannot_be_set(bench, core: Core) -> None:
    """A sender sets QoS, retain and sysFlag, nothing else."""
    for image in (mqtt(b"a/b", flags=0x10), mqtt(b"a/b", flags=0x20), plain(b"orders", flags=0x04)):
        with pytest.raises(RemoteViolation, match="flags"):
            core.placed(image, placement_of(bench.store).way, None)
