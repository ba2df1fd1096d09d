"""Messages that are to be delivered later: how a publisher says so, and whether it may.

    MQTT 5          user property `delay-ms` = milliseconds
    any version     topic `$delayed/<seconds>/<topic>`

Both become the same: the real topic and the property, which the broker acts by. What is judged, routed and remembered
is the real topic; the prefix goes no further than here.
Invariant: a packet that passed has at most one `delay-ms`, of digits, within the limit. Pure functions.
"""

from __future__ import annotations

from mqtt_proxy.mqtt.codec.limits import SessionLimits
from mqtt_proxy.mqtt.codec.packets import Publish
from mqtt_proxy.mqtt.codec.reason_codes import PacketViolation, Reason, ReasonCode
from remoting.protocol.records.mqtt_properties import MessageProperties

PREFIX = b"$delayed/"
DELAY_KEY = b"delay-ms"
DIGITS_MAX = 12


def unfold(packet: Publish) -> None:
    """Put the real topic and the property in the place of the topic form; PacketViolation when it is not one."""
    if not packet.topic.startswith(PREFIX):
        return
    seconds, _, topic = packet.topic[len(PREFIX) :].partition(b"/")
    if not _is_number(seconds) or not topic:
        detail = "a topic below $delayed/ is $delayed/<seconds>/<topic>"
        raise PacketViolation(Reason.TOPIC_NAME_REFUSED, detail)
    packet.topic = topic
    said = packet.properties or MessageProperties()
    user = [pair for pair in said.user if pair[0] != DELAY_KEY]
    packet.properties = MessageProperties(
        said.payload_format,
        said.expiry_s,
        said.content_type,
        said.response_topic,
        said.correlation_data,
        [*user, (DELAY_KEY, b"%d" % (int(seconds) * 1_000))],
    )


def refusal(limits: SessionLimits, properties: MessageProperties | None) -> tuple[ReasonCode, str] | None:
    """Why a message may not wait as long as it says, as code and words; None when it may or does not ask to."""
    if properties is None:
        return None
    wishes = [value for key, value in properties.user if key == DELAY_KEY]
    if not wishes:
        return None
    if len(wishes) > 1 or not _is_number(wishes[0]):
        return ReasonCode.IMPLEMENTATION_SPECIFIC_ERROR, "delay-ms is one number of milliseconds"
    if int(wishes[0]) > limits.delay_s_max * 1_000:
        return ReasonCode.QUOTA_EXCEEDED, f"a delay of {int(wishes[0])} ms, at most {limits.delay_s_max} s"
    return None


def _is_number(text: bytes) -> bool:
    return text.isdigit() and len(text) <= DIGITS_MAX
