"""A paho-mqtt client that reports every reason code, and those codes in words.

paho 2 ignores the reason code of PUBREC: it answers a refusal with PUBREL and reports the message as published when the
PUBCOMP comes. Here a refused PUBREC ends the exchange, as [MQTT-4.3.3-4] asks, and `on_publish` receives its code; it
also receives the code of a PUBREC that is not plain success (no matching subscribers).
Invariant: `on_publish` is called once per message, with the code that decided about it. Thread rule: as paho's own;
the method below runs on the network thread.

The properties of a message in paho-mqtt's form and in ours.

Invariant: user properties keep their order and repeats both ways. Paho cannot express text that is not UTF-8; such a
pair is left out, which MQTT forbids to send anyway. Pure functions.
"""

from __future__ import annotations

from typing import Any

from paho.mqtt.client import Client
from paho.mqtt.enums import MQTTErrorCode, MQTTProtocolVersion
from paho.mqtt.exception import MQTTException
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties
from paho.mqtt.reasoncodes import ReasonCode

from remoting.protocol.records.properties import MessageProperties

FAILURE = 0x80
"""Reason codes from here on are refusals."""
SUCCESS = 0
PUBREC_CODE_AT = 2
"""Where the reason code stands in PUBREC, behind the packet id; a shorter packet means success."""
PUBREC_PROPERTIES_AT = 3
CAUSES_OF_3_1_1 = (
    "MQTT 3.1.1 gives no reason; likely causes: the access list denies it, the disk is full, a quota or the size "
    "limit is exceeded, the topic may not be created, or another client uses the same client id; MQTT 5 and the "
    "server's log give the reason"
)

CAUSES_OF_3_1_1_SUBACK = (
    "MQTT 3.1.1 gives no reason; likely causes: the access list denies it, the share name is invalid, or there are "
    "too many filters; MQTT 5 and the server's log give the reason"
)


CAUSES_OF_3_1_1_UNAVAILABLE = (
    "MQTT 3.1.1 gives no reason; likely causes: its disk is full, a quota is reached, or it has no broker; MQTT 5 and "
    "the server's log give the reason"
)


class CheckedClient(Client):
    """`Client` that checks the reason code of PUBREC."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._received: dict[int, int] = {}
        """Packet id -> code of its PUBREC, where that is a success other than 0, until its PUBCOMP comes."""

    def _handle_pubrec(self) -> MQTTErrorCode:
        body = self._in_packet["packet"]
        if self._protocol == MQTTProtocolVersion.MQTTv5 and len(body) > PUBREC_CODE_AT:
            packet_id, code = int.from_bytes(body[:PUBREC_CODE_AT], "big"), body[PUBREC_CODE_AT]
            if code >= FAILURE:
                return self._refused(packet_id, code, body[PUBREC_PROPERTIES_AT:])
            if code:
                self._received[packet_id] = code
        return super()._handle_pubrec()

    def _do_on_publish(self, mid: int, reason_code: ReasonCode, properties: Properties) -> MQTTErrorCode:
        code = self._received.pop(mid, 0)
        if code and not reason_code.is_failure:
            reason_code = ReasonCode(PacketTypes.PUBREC, identifier=code)
        return super()._do_on_publish(mid, reason_code, properties)

    def _refused(self, packet_id: int, code: int, rest: bytes | bytearray) -> MQTTErrorCode:
        properties = Properties(PacketTypes.PUBREC)  # type: ignore[no-untyped-call]
        try:
            reason = ReasonCode(PacketTypes.PUBREC, identifier=code)
            if rest:
                properties.unpack(rest)  # type: ignore[no-untyped-call]
        except (LookupError, ValueError, MQTTException):
            return MQTTErrorCode.MQTT_ERR_PROTOCOL
        with self._out_message_mutex:
            if packet_id in self._out_messages:
                return self._do_on_publish(packet_id, reason, properties)
        return MQTTErrorCode.MQTT_ERR_SUCCESS


def comes_too_late(reason: ReasonCode) -> bool:
    """Whether it is the failure of a PUBCOMP: the server has accepted the message before, with its PUBREC [4.3.3]."""
    return reason.is_failure and reason.packetType == PacketTypes.PUBCOMP


def in_words(reason: ReasonCode, properties: Properties | None = None) -> str:
    """A reason code as people read it, with the server's reason string if there is one."""
    name = reason.getName()
    text = f"{name[0].lower()}{name[1:]} ({reason.value:#04x})".replace("qoS", "QoS")
    detail = getattr(properties, "ReasonString", "")
    return f"{text}: {detail}" if detail else text


def code_in_words(packet_type: int, code: int) -> str:
    """A code of PUBACK or SUBACK as people read it."""
    try:
        return in_words(ReasonCode(packet_type, identifier=code))
    except (LookupError, ValueError):
        return f"unknown code ({code:#04x})"


HINTS = {0x83: "usually its disk is full or a limit of the broker is reached; see its log"}
"""Codes of DISCONNECT that leave open what happened."""


def why_ended(flags: Any, reason: ReasonCode, properties: Properties | None, *, is_v5: bool) -> str:
    """Why a connection ended that this side did not end, from the arguments of `on_disconnect`."""
    if flags.is_disconnect_packet_from_server:
        hint = HINTS.get(reason.value, "")
        text = f"the server ended the connection: {in_words(reason, properties)}"
        return f"{text}; {hint}" if hint and not hasattr(properties, "ReasonString") else text
    if not reason.is_failure:
        return "closed by this side"
    if reason.getName() == "Keep alive timeout":
        return "the server did not answer within the keep-alive time"
    if reason.getName() == "Protocol error":
        return "the server sent invalid MQTT"
    return "the connection was lost" if is_v5 else f"the connection was closed; {CAUSES_OF_3_1_1}"


def to_paho(properties: MessageProperties) -> Properties:
    """The properties of a PUBLISH."""
    packed = Properties(PacketTypes.PUBLISH)  # type: ignore[no-untyped-call]
    if properties.payload_format is not None:
        packed.PayloadFormatIndicator = properties.payload_format
    if properties.expiry_s is not None:
        packed.MessageExpiryInterval = properties.expiry_s
    if properties.content_type is not None:
        packed.ContentType = properties.content_type.decode(errors="replace")
    if properties.response_topic is not None:
        packed.ResponseTopic = properties.response_topic.decode(errors="replace")
    if properties.correlation_data is not None:
        packed.CorrelationData = properties.correlation_data
    pairs = [(_text(key), _text(value)) for key, value in properties.user]
    texts = [(key, value) for key, value in pairs if key is not None and value is not None]
    if texts:
        packed.UserProperty = texts
    return packed


def from_paho(packed: Properties | None) -> MessageProperties | None:
    """The properties of a PUBLISH of the peer; None when it has none."""
    if packed is None or packed.isEmpty():  # type: ignore[no-untyped-call]
        return None
    return MessageProperties(
        payload_format=getattr(packed, "PayloadFormatIndicator", None),
        expiry_s=getattr(packed, "MessageExpiryInterval", None),
        content_type=_bytes(getattr(packed, "ContentType", None)),
        response_topic=_bytes(getattr(packed, "ResponseTopic", None)),
        correlation_data=getattr(packed, "CorrelationData", None),
        user=[(key.encode(), value.encode()) for key, value in getattr(packed, "UserProperty", [])],
    )


def _text(raw: bytes) -> str | None:
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return None


def _bytes(text: Any) -> bytes | None:
    return None if text is None else str(text).encode()
