"""Publishing by the console: one message as the record that a device's publish becomes, in the viewer's name.

The answer comes when the broker has made the record durable. In a cluster it goes to the group that serves MQTT: the
one that has the topic, or the first. Invariant: the broker checks the right to publish; nothing is reported as stored
that was not acknowledged.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from console.cluster import BrokerGroupsView
from console.tail import message_id
from console.viewers import Viewer
from remoting.protocol.bodies.append_body import decode_append_reply
from remoting.protocol.bodies.pull_body import VIEW, decode_range_pull_reply, encode_range_pull
from remoting.protocol.errors import LightMQError, Refused
from remoting.protocol.frames.codes import RequestCode as Code
from remoting.protocol.frames.codes import ResponseCode
from remoting.protocol.records.image import encode_image
from remoting.protocol.records.names import parent_topic
from remoting.protocol.records.properties import MessageProperties, to_pairs
from remoting.protocol.records.record import CLIENT_ID_KEY, FLAG_MQTT, FLAG_RETAIN, MQTT_TOPIC_KEY, iter_records

PAYLOAD_BYTES_MAX = 4 * 1_048_576
POSITION_BYTES = 1
"""A read returns one record at least, whatever its size."""
CLIENT = b"console"
"""Client id of what the console publishes."""
DELAY_KEY = b"delay-ms"
"""The user property by which a publish asks for a later delivery."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NewPublish:
    """A message to publish, its texts in bytes; times in the units of their names."""

    topic: bytes
    payload: bytes
    qos: int
    retain: bool
    delay_ms: int = 0
    expiry_s: int | None = None
    user: tuple[tuple[bytes, bytes], ...] = ()
    content_type: bytes = b""
    response_topic: bytes = b""
    correlation_data: bytes = b""


def to_image(message: NewPublish, now_ms: int) -> bytes:
    """Return the record image of a message. Raises LocalMisuse when a part does not fit."""
    user = [*message.user, *([(DELAY_KEY, b"%d" % message.delay_ms)] if message.delay_ms else ())]
    properties = MessageProperties(
        expiry_s=message.expiry_s, content_type=message.content_type or None,
        response_topic=message.response_topic or None, correlation_data=message.correlation_data or None, user=user,
    )  # fmt: skip
    return encode_image(
        flags=FLAG_MQTT | message.qos | (FLAG_RETAIN if message.retain else 0), born_ms=now_ms,
        topic=parent_topic(message.topic), body=message.payload,
        properties=[(MQTT_TOPIC_KEY, message.topic), (CLIENT_ID_KEY, CLIENT), *to_pairs(properties)],
    )  # fmt: skip


async def publish(cluster: BrokerGroupsView, viewer: Viewer, message: NewPublish, now_ms: int) -> dict[str, Any]:
    """Append a message; return where it is. Raises LightMQError."""
    broker = await _broker_for(cluster, viewer, message.topic)
    answer = await cluster.ask(broker, viewer, Code.APPEND_MANY, body=to_image(message, now_ms))
    _end, places = decode_append_reply(answer.body)
    queue, offset = places[0] if places else (0, -1)
    position = await _position(cluster, broker, queue, offset)
    return {
        "acknowledged": True, "broker": broker, "queue_id": queue, "offset": offset,
        "message_id": message_id(broker, position) if position is not None else "",
    }  # fmt: skip


async def _position(cluster: BrokerGroupsView, broker: str, queue_id: int, offset: int) -> int | None:
    """Return where in the log a message is, which the answer to its publisher does not say; None: it is gone."""
    if offset < 0:
        return None
    try:
        body = encode_range_pull(queue_id, offset, offset + 1, POSITION_BYTES)
        pulled = decode_range_pull_reply((await cluster.ask(broker, None, Code.RANGE_PULL, VIEW, body)).body)
    except LightMQError:
        return None
    return next((record.position for record in iter_records(pulled.blob)), None)


async def _broker_for(cluster: BrokerGroupsView, viewer: Viewer, topic: bytes) -> str:
    masters = list(await cluster.masters())
    if not masters:
        raise Refused(ResponseCode.SERVICE_NOT_AVAILABLE, "the controllers know no broker group")
    if len(masters) == 1:
        return masters[0]
    for name in masters:
        try:
            await cluster.ask(name, viewer, Code.GET_TOPIC_CONFIG, {"topic": parent_topic(topic).decode()})
        except LightMQError:
            continue
        return name
    return masters[0]
