"""Which queues a message goes to, and which messages are refused."""

from __future__ import annotations

import pytest

from broker.publishing.placement import Placement, QueueChoice
from broker.store.placed import property_value
from broker.subscriptions.filters import Dispatcher, Filters
from broker.topics.topics import Topics, TopicSettings
from remoting.native.contracts import Times
from remoting.protocol.errors import Refused, RemoteViolation
from remoting.protocol.frames.codes import ResponseCode
from remoting.protocol.records.image import QUEUE_INDEX_ANY, encode_batch_image, encode_image, encode_mqtt_image
from remoting.protocol.records.record import FLAG_GROUP_OPEN, FLAG_MQTT, FLAG_STAGED, RecordView


def make(store, *, auto_create: bool = True) -> tuple[Topics, Placement]:
    topics = Topics(store, topics_max=100)
    filters = Filters(store, expiry_ms=0, filters_max=10, per_user_max=10, now_ms=0)
    dispatcher = Dispatcher(store, topics, filters, cached_topics_max=10, queue_count=4, auto_create=auto_create)
    limits = {"message_size_bytes_max": 10, "properties_bytes_max": 200}
    choice = QueueChoice(topics, dispatcher, queue_count=4, auto_create=auto_create, **limits)
    return topics, Placement(choice)


class Elsewhere:
    """Every image with a time waits in queue 99; none is taken by the walk over images."""

    times = none_wait = Times({}, lambda _start: pytest.fail("no span is asked for"), lambda: (0, 0, 0, 0, 0))

    def divert(self, image: RecordView) -> tuple[bytes, tuple[int, ...]]:
        return b"kept" + bytes(image.raw[:4]), (99,)

    def check(self, image: RecordView) -> None:
        raise Refused(ResponseCode.MESSAGE_ILLEGAL, f"{image.total} bytes may not wait")


def queue_image(topic: bytes, properties=(), body: bytes = b"x", flags: int = 0, index: int = 0) -> bytes:
    return encode_image(flags=flags, queue_index=index, born_ms=1, topic=topic, properties=properties, body=body)


def queues_of(placement: Placement, image: bytes) -> tuple[int, ...]:
    (queues,) = placement.placed(image).queues
    return queues


@pytest.mark.parametrize("flags", [FLAG_GROUP_OPEN, FLAG_STAGED, FLAG_STAGED | FLAG_MQTT])
def test_a_sender_cannot_set_the_brokers_own_flags(bench, flags: int) -> None:
    _topics, placement = make(bench.store)
    with pytest.raises(RemoteViolation, match="not its maker's to set"):
        placement.placed(queue_image(b"orders", flags=flags))


def test_queues_are_chosen_in_turn_or_as_asked(bench) -> None:
    topics, placement = make(bench.store)
    ids = [queues_of(placement, queue_image(b"orders", index=QUEUE_INDEX_ANY))[0] for _ in range(5)]
    assert ids == [*topics.queue_ids("orders"), topics.queue_ids("orders")[0]]
    assert queues_of(placement, queue_image(b"orders", index=2)) == (topics.queue_ids("orders")[2],)
    with pytest.raises(Refused) as refused:
        placement.placed(queue_image(b"orders", index=4))
    assert refused.value.code == ResponseCode.INVALID_PARAMETER


def test_a_changed_topic_takes_the_next_message_as_it_is_then(bench) -> None:
    topics, placement = make(bench.store)
    assert queues_of(placement, queue_image(b"orders", index=3)) == (topics.queue_ids("orders")[3],)
    topics.put(TopicSettings(name="orders", read_queue_count=8, write_queue_count=8))
    assert queues_of(placement, queue_image(b"orders", index=7)) == (topics.queue_ids("orders")[7],)
    topics.put(TopicSettings(name="orders", permission=4))
    with pytest.raises(Refused):
        placement.placed(queue_image(b"orders"))
    topics.delete("orders")
    assert queues_of(placement, queue_image(b"orders", index=3)) == (topics.queue_ids("orders")[3],)


def test_a_topic_that_was_deleted_leaves_no_turn_behind(bench) -> None:
    topics, placement = make(bench.store)
    first, second = (queues_of(placement, queue_image(b"orders", index=QUEUE_INDEX_ANY)) for _ in range(2))
    assert first != second
    topics.put(TopicSettings(name="orders"))
    assert placement.choice._turn == {"orders": 2}
    topics.delete("orders")
    assert placement.choice._turn == {}


def test_named_light_queues_are_dispatched_to(bench) -> None:
    _topics, placement = make(bench.store)
    image = queue_image(b"orders", [(b"k", b"v"), (b"INNER_MULTI_DISPATCH", b"%LMQ%one")])
    assert property_value(RecordView(image), b"k") == b"v"
    assert property_value(RecordView(image), b"none") == b""
    placed = placement.placed(queue_image(b"orders") + image + queue_image(b"orders"))
    assert [len(queues) for queues in placed.queues] == [1, 2, 1]
    assert placed.queues[1][1] == bench.store.queues.find(b"%LMQ%one")


def test_size_permission_and_unknown_topics_are_refused(bench) -> None:
    topics, placement = make(bench.store, auto_create=False)
    topics.put(TopicSettings(name="closed", permission=4))
    cases = [
        (queue_image(b"closed", body=b"x" * 11), ResponseCode.MESSAGE_ILLEGAL),
        (queue_image(b"closed", [(b"k", b"v" * 200)]), ResponseCode.MESSAGE_ILLEGAL),
        (queue_image(b"closed"), ResponseCode.NO_PERMISSION),
        (queue_image(b"unknown"), ResponseCode.TOPIC_NOT_EXIST),
    ]
    for image, code in cases:
        for place in (placement.placed, placement.check):
            with pytest.raises(Refused) as refused:
                place(image)
            assert refused.value.code == code


def batch_image(topic: bytes, codec: int = 1, index: int = 0) -> bytes:
    return encode_batch_image(topic=topic, queue_index=index, born_ms=1, body=b"packed", count=9, codec=codec)


def test_a_batch_goes_to_a_batch_topic_alone(bench) -> None:
    topics, placement = make(bench.store)
    topics.put(TopicSettings(name="batches", attributes={"queue.type": "BatchCQ"}))
    topics.ensure("plain", 2)
    image = batch_image(b"batches", index=2)
    placed = placement.placed(image)
    assert (placed.images, placed.queues, placed.count) == (image, [(topics.queue_ids("batches")[2],)], 9)
    assert placement.check(image + image) == (2, 18)
    assert placement.placed(queue_image(b"batches")).count == 1, "single messages go there too"
    for wrong, code in (
        (batch_image(b"plain"), ResponseCode.MESSAGE_ILLEGAL),
        (batch_image(b"unknown"), ResponseCode.TOPIC_NOT_EXIST),
        (batch_image(b"batches", codec=7), ResponseCode.MESSAGE_ILLEGAL),
    ):
        with pytest.raises(Refused) as refused:
            placement.placed(wrong)
        assert refused.value.code == code
    topics.put(TopicSettings(name="batches", attributes={"queue.type": "BatchCQ"}, permission=4))
    with pytest.raises(Refused) as refused:
        placement.placed(batch_image(b"batches"))
    assert refused.value.code == ResponseCode.NO_PERMISSION


def test_delayed_and_omitted_messages_are_cut_out_of_the_images(bench) -> None:
    """The others stay the bytes that came."""
    _topics, placement = make(bench.store)
    waiting, noted = queue_image(b"t", [(b"DELAY", b"3")]), encode_mqtt_image(b"a/b", b"", 2, 1, b"c", 7)
    plain = queue_image(b"t")
    placement = Placement(placement.choice, Elsewhere())
    seen: list[int] = []
    placed = placement.placed(
        plain + noted + plain + waiting + noted, admit=lambda number, _image: seen.append(number) or number > 1
    )
    assert (placed.images, seen) == (plain + plain + b"kept" + waiting[:4] + noted, [1, 4])
    assert (len(placed.queues), placed.queues[2], placed.count) == (4, (99,), 4)
    assert placement.placed(waiting, now=True).images == Placement(placement.choice).placed(waiting).images == waiting
    with pytest.raises(Refused, match="may not wait"):
        placement.check(waiting)
