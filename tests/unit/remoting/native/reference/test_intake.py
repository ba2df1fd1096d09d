"""Publishes to store messages: both twins make what the constructor makes, and refuse alike."""

from __future__ import annotations

import gc

import pytest

from broker.api import hot
from broker.api.hot import Core
from broker.store.store_message import StoreMessage
from mqtt_proxy.mqtt.codec.packets import Publish
from remoting.protocol.errors import LocalMisuse
from remoting.protocol.records.image import encode_mqtt_image, image_views


@pytest.fixture(params=["pure", "compiled"])
def core(request: pytest.FixtureRequest) -> Core:
    if request.param == "pure":
        return hot.pure_core()
    if hot.choice.name != "compiled":
        pytest.skip(f"no compiled twin: {hot.choice.reason}")
    return hot.compiled_core()


def missed(topic: bytes) -> tuple[int, ...]:
    if topic == b"refused":
        raise PermissionError(topic)
    return (99, len(topic))


def made(core: Core, *runs, body: int = 1_000, properties: int = 1_000) -> list[StoreMessage]:
    return core.messages(runs, {b"a/b": (1, 2, 3)}, missed, lambda *sizes: ValueError(sizes), body, properties)


def test_messages_are_those_of_the_frames_entries(core: Core) -> None:
    publishes = [
        Publish(b"a/b", b"payload", 1, False, True, 5),
        Publish(b"a/b", b"", 0, True, False, 0),
        Publish(b"new", b"x" * 1_000, 2, True, False, 6),
    ]
    found = made(core, (b"device", 1 << 40, publishes), (b"", -1, publishes[:1]), (b"c", 0, []))
    entries = image_views(
        b"".join([
            encode_mqtt_image(one.topic, one.payload, one.qos | one.retain << 2, born_ms, client_id)
            for client_id, born_ms, one in [(b"device", 1 << 40, one) for one in publishes] + [(b"", -1, publishes[0])]
        ])
    )  # fmt: skip
    queues = [(1, 2, 3), (1, 2, 3), (99, 3), (1, 2, 3)]
    assert found == [
        StoreMessage(
            ids,
            one.born_ms,
            one.flags,
            0,
            one.counts[0],
            one.counts[1],
            0,
            0,
            one.counts[4],
            bytes(one.meta),
            bytes(one.body),
        )
        for ids, one in zip(queues, entries, strict=True)
    ]
    assert all(message.producer_seq == 0 and message.count == 1 and message.keys_len == 0 for message in found)


def test_what_is_too_large_is_refused(core: Core) -> None:
    fits = Publish(b"a/b", b"x" * 10, 1, False, False, 1)
    assert len(made(core, (b"c", 1, [fits]), body=10)) == 1
    with pytest.raises(ValueError, match="10, "):
        made(core, (b"c", 1, [fits]), body=9)
    size = made(core, (b"c", 1, [fits]))[0].props_len
    assert len(made(core, (b"c", 1, [fits]), properties=size)) == 1
    with pytest.raises(ValueError, match=str(size)):
        made(core, (b"c", 1, [fits]), properties=size - 1)
    with pytest.raises(LocalMisuse):
        made(core, (b"c" * 65_535, 1, [fits]))


def test_a_refused_topic_ends_it(core: Core) -> None:
    with pytest.raises(PermissionError):
        made(core, (b"c", 1, [Publish(b"refused", b"", 0, False, False, 0)]))


def test_messages_are_ordinary_objects(core: Core) -> None:
    (message,) = made(core, (b"c", 1, [Publish(b"a/b", b"x", 0, False, False, 0)]))
    assert gc.is_tracked(message) == gc.is_tracked(StoreMessage((), 1, 0, 0, 0, 0, 0, 0, 0, b"", b""))
    message.queues = (7,)
    message.flags |= 1
    assert (message.queues, message.flags & 1) == ((7,), 1)
