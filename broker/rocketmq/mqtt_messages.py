"""Messages between RocketMQ's clients and MQTT clients: the MQTT topic of a sent message, and requests in both forms.

A message that a RocketMQ client sends is an MQTT message when its property `originMqttTopic` names a topic whose parent
topic is the one it is sent to. Its QoS is the property `qosLevel` (1 without it); other properties are user properties,
or, with the names of `remoting.protocol.records.properties`, those of MQTT 5. In a message that a consumer returns for
a retry the property has no effect; sent to any other topic it is refused, because no MQTT subscriber would get it.

A request has a sender that waits for one answer:

    of an MQTT 5 client       Response Topic, Correlation Data (may be absent)
    as a RocketMQ client      REPLY_TO_CLIENT = `mqtt:` + Response Topic, CORRELATION_ID = Correlation Data in base64
      reads it                (`-` when absent), TTL = Message Expiry Interval in ms
    of a RocketMQ client      REPLY_TO_CLIENT = its client id, CORRELATION_ID
    as an MQTT 5 client       Response Topic = <cluster>_REPLY_TOPIC/<client id, percent-encoded>,
      reads it                Correlation Data = CORRELATION_ID

Invariant: an answer to either form names its request exactly as the request did; nothing about open requests is kept
here. Thread rule: pure functions.
"""

from __future__ import annotations

import zlib
from base64 import b64decode, b64encode
from binascii import Error as Base64Error
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import quote, unquote

from remoting.protocol.errors import LocalMisuse, Refused
from remoting.protocol.frames.codes import ResponseCode
from remoting.protocol.records import properties as record_properties
from remoting.protocol.records.image import encode_image
from remoting.protocol.records.names import group_of_derived, parent_topic
from remoting.protocol.records.properties import KEYS, TAGS, is_reserved
from remoting.protocol.records.record import FLAG_MQTT, MQTT_TOPIC_KEY
from remoting.protocol.records.rocketmq_form import (
    CORRELATION_ID,
    MQTT_SENDER,
    NO_CORRELATION,
    QOS_KEY,
    REPLY_TO_CLIENT,
    TTL,
)
from remoting.protocol.records.topics import validate_topic_name

if TYPE_CHECKING:
    from remoting.protocol.records.properties import MessageProperties

MESSAGE_TYPE, REPLY_TYPE = b"MSG_TYPE", b"reply"
QOS_DEFAULT = 1
QOS_VALUES = {b"0": 0, b"1": 1, b"2": 2}
COMPRESSED_FLAG, COMPRESSION_MASK, ZLIB = 0x1, 0x700, (0x000, 0x300)
"""Bits of sysFlag; producers compress with zlib unless they are configured otherwise."""
PROPERTIES_WITHOUT_MQTT = frozenset((b"DELAY", b"TIMER_DELAY_SEC", b"TIMER_DELAY_MS", b"TIMER_DELIVER_MS", b"TRAN_MSG"))
"""Properties that a message on an MQTT topic cannot have; such a message is delayed by `delay-ms`."""
NAME_BYTES_SHOWN_MAX = 80
"""Longer names are cut in remarks."""
REPLY_TOPIC_SUFFIX = "_REPLY_TOPIC"
TTL_MS_MAX, TTL_DIGITS_MAX = 4_294_967_295_000, 13
"""Largest TTL of a request: the largest Message Expiry Interval of MQTT 5, so that both forms have one limit."""


def reply_topic(cluster_name: str) -> str:
    """The topic RocketMQ's clients send answers to."""
    return cluster_name + REPLY_TOPIC_SUFFIX


def is_request(properties: Mapping[bytes, bytes]) -> bool:
    """Whether a sent message is a request of a RocketMQ client."""
    return REPLY_TO_CLIENT in properties and CORRELATION_ID in properties


def check_ttl(properties: Mapping[bytes, bytes]) -> None:
    """Refused(MESSAGE_ILLEGAL) for a request whose TTL is no time that its sender can wait; it may have none."""
    ttl = properties.get(TTL, b"")
    if ttl and not (ttl.isdigit() and len(ttl) <= TTL_DIGITS_MAX and int(ttl) <= TTL_MS_MAX):
        shown = ttl[: 2 * TTL_DIGITS_MAX].decode("utf-8", "replace")
        remark = f"the TTL of a request is a number of milliseconds from 0 to {TTL_MS_MAX}, not {shown!r}"
        raise Refused(ResponseCode.MESSAGE_ILLEGAL, remark)


# -- messages that RocketMQ clients send -------------------------------------------------------------------------------


def mqtt_topic_of(topic: str, properties: Mapping[bytes, bytes], *, batch: bool) -> bytes | None:
    """The MQTT topic of a message sent to `topic`; None when it is not an MQTT message.

    Raises:
        Refused: MESSAGE_ILLEGAL, the topic is not valid, or the message asks for what MQTT messages do not have.
    """
    wanted = properties.get(MQTT_TOPIC_KEY)
    if wanted is None or group_of_derived(topic):
        return None
    parent, problem = parent_topic(wanted), validate_topic_name(wanted)
    if problem is None and parent != topic.encode():
        problem = (
            f"the topic of {_name(wanted)} is {_name(parent)}, not {topic}: no MQTT subscriber would get the message"
        )
    if problem is None and wanted.startswith(b"$"):
        problem = "topics that begin with $ are the server's own"
    if problem is None and batch:
        problem = "messages for MQTT topics are sent one by one, not in a batch"
    if problem is None and not PROPERTIES_WITHOUT_MQTT.isdisjoint(properties):
        problem = "a message for an MQTT topic has no delay level, timer or transaction; `delay-ms` delays it"
    if problem is None and properties.get(QOS_KEY, b"1") not in QOS_VALUES:
        problem = "qosLevel is 0, 1 or 2"
    if problem is not None:
        raise Refused(ResponseCode.MESSAGE_ILLEGAL, f"originMqttTopic: {problem}")
    return wanted


def _name(name: bytes) -> str:
    return name[:NAME_BYTES_SHOWN_MAX].decode("utf-8", "replace")


def plain_body(system_flag: int, body: bytes | memoryview, size_bytes_max: int) -> bytes | memoryview:
    """The body before its producer compressed it, for those who read it as it is. Refused when it cannot be read."""
    if not system_flag & COMPRESSED_FLAG:
        return body
    if system_flag & COMPRESSION_MASK not in ZLIB:
        raise Refused(
            ResponseCode.MESSAGE_ILLEGAL,
            "messages for MQTT topics, and batches as a whole, are compressed with zlib only",
        )
    inflate = zlib.decompressobj()
    try:
        plain = inflate.decompress(body, size_bytes_max + 1)
    except zlib.error as error:
        raise Refused(ResponseCode.MESSAGE_ILLEGAL, f"the body cannot be decompressed: {error}") from error
    if len(plain) > size_bytes_max or not inflate.eof:
        raise Refused(ResponseCode.MESSAGE_ILLEGAL, f"the body is cut short, or larger than {size_bytes_max} bytes")
    return plain


def mqtt_image(
    topic: bytes, properties: Mapping[bytes, bytes], body: bytes | memoryview, born_ms: int, answers_at: str
) -> bytes:
    """The record image of a message for an MQTT topic; a request gets its Response Topic below `answers_at`.

    Raises:
        Refused: MESSAGE_ILLEGAL, the properties are too long.
    """
    kept = dict(properties)
    tags, keys = kept.pop(TAGS, b""), kept.pop(KEYS, b"")
    qos = QOS_VALUES[kept.pop(QOS_KEY, b"%d" % QOS_DEFAULT)]
    kept.pop(MQTT_TOPIC_KEY, None)
    if is_request(kept) and record_properties.RESPONSE_TOPIC not in kept:
        kept[record_properties.RESPONSE_TOPIC] = record_properties.quoted(_address(answers_at, kept[REPLY_TO_CLIENT]))
        kept[record_properties.CORRELATION_DATA] = b64encode(kept[CORRELATION_ID])
    return _image(
        flags=FLAG_MQTT | qos,
        born_ms=born_ms,
        topic=parent_topic(topic),
        keys=keys,
        tags=tags,
        properties=[(MQTT_TOPIC_KEY, topic), *kept.items()],
        body=body,
    )


def _image(**parts: Any) -> bytes:
    """The record image; Refused when the client's properties do not fit into it."""
    try:
        return encode_image(**parts)
    except LocalMisuse as error:
        raise Refused(ResponseCode.MESSAGE_ILLEGAL, f"the message cannot be one on an MQTT topic: {error}") from error


def _address(answers_at: str, client_id: bytes) -> bytes:
    return f"{answers_at}/{quote(client_id.decode('utf-8', 'replace'), safe='@')}".encode()


# -- answers of MQTT clients -------------------------------------------------------------------------------------------


class MqttAnswer(NamedTuple):
    """An MQTT client's answer to a request of a RocketMQ client."""

    client_id: str
    properties: dict[bytes, bytes]
    """As RocketMQ's client expects them, with the message's user properties."""


def answer_of(topic: bytes, answers_at: str, pairs: Iterable[tuple[bytes, bytes]]) -> MqttAnswer:
    """The answer in a message below the reply topic.

    Raises:
        Refused: MESSAGE_ILLEGAL, it names no client, or its Correlation Data is not that of any RocketMQ client's
            request: those are text in UTF-8 without the separators of properties.
    """
    prefix = answers_at.encode() + b"/"
    found = record_properties.from_pairs(pairs)
    if not topic.startswith(prefix):
        raise Refused(ResponseCode.MESSAGE_ILLEGAL, "an answer is published to the Response Topic of its request")
    if found is None or not found.correlation_data:
        raise Refused(ResponseCode.MESSAGE_ILLEGAL, "an answer needs the Correlation Data of its request")
    if not _is_text(found.correlation_data):
        raise Refused(ResponseCode.MESSAGE_ILLEGAL, "the Correlation Data is not that of a RocketMQ client's request")
    client_id = unquote(topic[len(prefix) :].decode("utf-8", "replace"))
    properties = {
        **_shown(found),
        MESSAGE_TYPE: REPLY_TYPE,
        REPLY_TO_CLIENT: client_id.encode(),
        CORRELATION_ID: found.correlation_data,
    }
    if not _is_text(properties[REPLY_TO_CLIENT]):
        raise Refused(ResponseCode.MESSAGE_ILLEGAL, "the topic names no RocketMQ client")
    return MqttAnswer(client_id, properties)


def _is_text(value: bytes) -> bool:
    """Whether RocketMQ's text form of properties holds the value as it is."""
    try:
        value.decode()
    except UnicodeDecodeError:
        return False
    return b"\x01" not in value and b"\x02" not in value


def _shown(found: MessageProperties) -> dict[bytes, bytes]:
    """The user properties that RocketMQ's text form can hold."""
    return {
        key: value
        for key, value in found.user
        if key and not is_reserved(key) and not any(mark in key + value for mark in (b"\x01", b"\x02"))
    }


# -- requests of MQTT clients ------------------------------------------------------------------------------------------


def response_image(properties: Mapping[bytes, bytes], body: bytes | memoryview, born_ms: int) -> tuple[bytes, bytes]:
    """(Response Topic, record image) of a RocketMQ client's answer to a request of an MQTT client.

    Raises:
        Refused: MESSAGE_ILLEGAL, the answer's REPLY_TO_CLIENT or CORRELATION_ID are not those of such a request, or its
            properties are too long.
    """
    topic = record_properties.unquoted(properties[REPLY_TO_CLIENT].removeprefix(MQTT_SENDER))
    problem = validate_topic_name(topic)
    if problem is None and topic.startswith(b"$"):
        problem = "topics that begin with $ are the server's own"
    if problem is not None:
        raise Refused(ResponseCode.MESSAGE_ILLEGAL, f"REPLY_TO_CLIENT: {problem}")
    correlation = properties[CORRELATION_ID]
    try:
        data = None if correlation == NO_CORRELATION else b64decode(correlation, validate=True)
    except Base64Error as error:
        raise Refused(ResponseCode.MESSAGE_ILLEGAL, "CORRELATION_ID is not that of an MQTT request") from error
    user = [(key, value) for key, value in properties.items() if not is_reserved(key)]
    kept = record_properties.to_pairs(record_properties.MessageProperties(correlation_data=data, user=user))
    image = _image(
        flags=FLAG_MQTT | QOS_DEFAULT,
        born_ms=born_ms,
        topic=parent_topic(topic),
        properties=[(MQTT_TOPIC_KEY, topic), *kept],
        body=body,
    )
    return topic, image
