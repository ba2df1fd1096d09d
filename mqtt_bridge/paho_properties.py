"""The properties of a message in paho-mqtt's form and in ours.

Invariant: user properties keep their order and repeats both ways. Text that is no UTF-8 cannot be said by paho; such a
pair is left out, which MQTT forbids a sender to send anyway. Pure functions.
"""

from __future__ import annotations

from typing import Any

from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

from remoting.protocol.records.mqtt_properties import MessageProperties


def to_paho(properties: MessageProperties) -> Properties:
    """The properties of a PUBLISH."""
    said = Properties(PacketTypes.PUBLISH)  # type: ignore[no-untyped-call]
    if properties.payload_format is not None:
        said.PayloadFormatIndicator = properties.payload_format
    if properties.expiry_s is not None:
        said.MessageExpiryInterval = properties.expiry_s
    if properties.content_type is not None:
        said.ContentType = properties.content_type.decode(errors="replace")
    if properties.response_topic is not None:
        said.ResponseTopic = properties.response_topic.decode(errors="replace")
    if properties.correlation_data is not None:
        said.CorrelationData = properties.correlation_data
    pairs = [(_text(key), _text(value)) for key, value in properties.user]
    texts = [(key, value) for key, value in pairs if key is not None and value is not None]
    if texts:
        said.UserProperty = texts
    return said


def from_paho(said: Properties | None) -> MessageProperties | None:
    """What a PUBLISH of the peer said; None when nothing."""
    if said is None or said.isEmpty():  # type: ignore[no-untyped-call]
        return None
    return MessageProperties(
        payload_format=getattr(said, "PayloadFormatIndicator", None),
        expiry_s=getattr(said, "MessageExpiryInterval", None),
        content_type=_bytes(getattr(said, "ContentType", None)),
        response_topic=_bytes(getattr(said, "ResponseTopic", None)),
        correlation_data=getattr(said, "CorrelationData", None),
        user=[(key.encode(), value.encode()) for key, value in getattr(said, "UserProperty", [])],
    )


def _text(raw: bytes) -> str | None:
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return None


def _bytes(text: Any) -> bytes | None:
    return None if text is None else str(text).encode()
