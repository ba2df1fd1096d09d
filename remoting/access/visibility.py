"""Where a message becomes visible: the resources whose right to write its sender needs, whatever carries the message.

    message                                          resources of `publish`
    on an MQTT topic: a publish, a will, a row,      the MQTT topic. Its parent topic holds it too and is not asked
    `originMqttTopic` below the topic it is sent to  for: a right to part of a parent topic would be none
    for a lite topic (`__LITE_TOPIC`)                `topic/lite topic`, which is its MQTT topic
    any other one of a RocketMQ client               the RocketMQ topic
    that names light queues (INNER_MULTI_DISPATCH)   besides, the topic or filter of each queue

A message that waits (delayed, the half of a transaction, staged rows) is judged by where it will be visible. `of_image`
judges what is about to be stored and is what counts; `of_send` says the same of a request before it has had any effect.
The resource of a retry or dead-letter topic is its name: `remoting.access.key_policy` judges it by the right to its
group.

Invariant: `of_send` has all resources that `of_image` has of the image made of that request. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from remoting.access.rights import of_topic
from remoting.protocol.records.image import image_views, show
from remoting.protocol.records.names import parent_topic
from remoting.protocol.records.record import FLAG_MQTT, FLAG_STAGED, MQTT_TOPIC_KEY, RecordView
from remoting.protocol.records.rocketmq_form import INNER_MULTI_DISPATCH

LITE_TOPIC = b"__LITE_TOPIC"
"""Property of a message sent to a lite topic."""
_NAMES_QUEUES = re.compile(re.escape(INNER_MULTI_DISPATCH))
_NAMES_MORE = re.compile(b"|".join(map(re.escape, (INNER_MULTI_DISPATCH, MQTT_TOPIC_KEY, LITE_TOPIC))))


def names_more(text: bytes | memoryview) -> bool:
    """Whether properties may name more than the topic a message is sent to: a search, to keep the usual case cheap."""
    return _NAMES_MORE.search(text) is not None


def names_queues(images: bytes | memoryview) -> bool:
    """Whether some of the images may name light queues."""
    return _NAMES_QUEUES.search(images) is not None


def of_send(topic: str, properties: Mapping[bytes, bytes]) -> list[str]:
    """The resources of a message with these properties that a RocketMQ client sends to `topic`."""
    lite, mqtt = properties.get(LITE_TOPIC), properties.get(MQTT_TOPIC_KEY)
    found = topic
    if lite:
        found = f"{topic}/{_text(lite)}"
    elif mqtt is not None and parent_topic(mqtt) == topic.encode():
        found = _text(mqtt)
    return [found, *_light_queues(properties.get(INNER_MULTI_DISPATCH, b""))]


def of_image(image: RecordView) -> list[str]:
    """The resources of an image that is to be stored, or of a record that waits."""
    if image.flags & FLAG_STAGED:
        image = RecordView(show(image))
    mqtt = image.mqtt_topic if image.flags & FLAG_MQTT else None
    return [_text(image.topic if mqtt is None else mqtt), *_queues_of(image)]


def of_light_queues(images: bytes | memoryview) -> set[str]:
    """The resources of all light queues that the images name."""
    return {one for image in image_views(images) for one in _queues_of(image)}


def _queues_of(image: RecordView) -> Iterator[str]:
    for key, value in image.properties():
        if key == INNER_MULTI_DISPATCH:
            yield from _light_queues(bytes(value))


def _light_queues(value: bytes) -> Iterator[str]:
    return (of_topic(_text(name)) for name in value.split(b",") if name)


def _text(name: bytes | memoryview) -> str:
    return bytes(name).decode("utf-8", "replace")
