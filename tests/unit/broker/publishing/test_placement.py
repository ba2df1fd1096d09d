"""Where a message goes, and what may not go anywhere."""

from __future__ import annotations

import pytest

from broker.publishing.append import image_message
from broker.publishing.placement import KIND_BATCH, KIND_MQTT, KIND_QUEUE, Placement
from broker.store.store_message import property_value
from broker.subscriptions.dispatch import Dispatcher
from broker.subscriptions.filters import Filters
from broker.topics.topics import Topics, TopicSettings
from remoting.protocol.errors import Refused, RemoteViolation
from remoting.protocol.frames.codes import ResponseCode
from remoting.protocol.records.image import QUEUE_INDEX_ANY, encode_batch_image, encode_image, image_views
from remoting.protocol.records.record import (
    FLAG_CODEC_SHIFT,
    FLAG_FORMAT_SHIFT,
    FLAG_GROUP_OPEN,
    FLAG_MQTT,
    FLAG_STAGED,
    FORMAT_ARROW,
)


def make(store, *, auto_create: bool = True) -> tuple[Topics, Placement]:
    topics = Topics(store, topics_max=100)
    filters = Filters(store, expiry_ms=0, filters_max=10, now_ms=0)
    dispatcher = Dispatcher(store, topics, filters, cached_topics_max=10, queue_count=4, auto_create=auto_create)
    limits = {"message_size_bytes_max": 10, "properties_bytes_max": 200}
    return topics, Placement(topics, dispatcher, queue_count=4, auto_create=auto_create, **limits)


def queue_message(topic: bytes, properties=(), body: bytes = b"x", flags: int = 0):
    raw = encode_image(flags=flags, queue_index=0, born_ms=1, topic=topic, properties=properties, body=body)
    return image_message(image_views(b"".join([raw]))[0])


@pytest.mark.parametrize("flags", [FLAG_GROUP_OPEN, FLAG_STAGED, FLAG_STAGED | FLAG_MQTT])
def test_a_sender_cannot_set_the_brokers_own_flags(flags: int) -> None:
    with pytest.raises(RemoteViolation, match="not its maker's to set"):
        queue_message(b"orders", flags=flags)


def test_queues_are_chosen_in_turn_or_as_asked(bench) -> None:
    topics, placement = make(bench.store)
    ids = [placement.place(queue_message(b"orders"), KIND_QUEUE, QUEUE_INDEX_ANY).queues[0] for _ in range(5)]
    assert ids == [*topics.queue_ids("orders"), topics.queue_ids("orders")[0]]
    assert placement.place(queue_message(b"orders"), KIND_QUEUE, 2).queues == (topics.queue_ids("orders")[2],)
    with pytest.raises(Refused) as refused:
        placement.place(queue_message(b"orders"), KIND_QUEUE, 4)
    assert refused.value.code == ResponseCode.INVALID_PARAMETER


def test_named_light_queues_are_dispatched_to(bench) -> None:
    _topics, placement = make(bench.store)
    message = queue_message(b"orders", [(b"k", b"v"), (b"INNER_MULTI_DISPATCH", b"%LMQ%one")])
    assert property_value(message, b"k") == b"v"
    assert property_value(message, b"none") == b""
    assert placement.place(message, KIND_QUEUE, 0).queues[1] == bench.store.queues.find(b"%LMQ%one")


def test_size_permission_kind_and_unknown_topics_are_refused(bench) -> None:
    topics, placement = make(bench.store, auto_create=False)
    topics.put(TopicSettings(name="closed", permission=4))
    cases = [
        (queue_message(b"closed", body=b"x" * 11), KIND_QUEUE, ResponseCode.MESSAGE_ILLEGAL),
        (queue_message(b"closed", [(b"k", b"v" * 200)]), KIND_QUEUE, ResponseCode.MESSAGE_ILLEGAL),
        (queue_message(b"closed"), KIND_QUEUE, ResponseCode.NO_PERMISSION),
        (queue_message(b"unknown"), KIND_QUEUE, ResponseCode.TOPIC_NOT_EXIST),
        (queue_message(b"closed"), 7, ResponseCode.MESSAGE_ILLEGAL),
        (queue_message(b"closed"), KIND_MQTT, ResponseCode.MESSAGE_ILLEGAL),
    ]
    for message, kind, code in cases:
        with pytest.raises(Refused) as refused:
            placement.place(message, kind, 0)
        assert refused.value.code == code


def batch_message(topic: bytes, codec: int = 1):
    raw = encode_batch_image(topic=topic, queue_index=0, born_ms=1, body=b"packed", count=9, codec=codec)
    return image_message(image_views(b"".join([raw]))[0])


def test_a_batch_goes_to_a_batch_topic_alone(bench) -> None:
    topics, placement = make(bench.store)
    topics.put(TopicSettings(name="batches", attributes={"queue.type": "BatchCQ"}))
    topics.ensure("plain", 2)
    placed = placement.place(batch_message(b"batches"), KIND_BATCH, 2)
    assert (placed.queues, placed.count) == ((topics.queue_ids("batches")[2],), 9)
    assert placed.flags == FORMAT_ARROW << FLAG_FORMAT_SHIFT | 1 << FLAG_CODEC_SHIFT
    assert placement.place(queue_message(b"batches"), KIND_QUEUE, 0).count == 1, "single messages go there too"
    for message, code in (
        (batch_message(b"plain"), ResponseCode.MESSAGE_ILLEGAL),
        (batch_message(b"unknown"), ResponseCode.TOPIC_NOT_EXIST),
        (batch_message(b"batches", codec=7), ResponseCode.MESSAGE_ILLEGAL),
    ):
        with pytest.raises(Refused) as refused:
            placement.place(message, KIND_BATCH, 0)
        assert refused.value.code == code
    topics.put(TopicSettings(name="batches", attributes={"queue.type": "BatchCQ"}, permission=4))
    with pytest.raises(Refused) as refused:
        placement.place(batch_message(b"batches"), KIND_BATCH, 0)
    assert refused.value.code == ResponseCode.NO_PERMISSION
