"""When a message wants to be delivered: what its properties say, in the words of MQTT clients and of RocketMQ's.

    MQTT entry     delay-ms = milliseconds                      (user property)
    queue entry    TIMER_DELAY_SEC | TIMER_DELAY_MS | TIMER_DELIVER_MS = time in ms | DELAY = level 1..18

The first that is there counts, in this order; a level above 18 is 18, a level of 0 no delay. Invariant: what is not a
number in decimal digits is refused, never taken for "now". Pure functions.
"""

from __future__ import annotations

from broker.meta.placement import KIND_MQTT, MQTT_DELAY, property_value
from broker.store.store_message import StoreMessage
from remoting.protocol.codes import ResponseCode
from remoting.protocol.errors import Refused

DELIVER_MS, DELAY_MS, DELAY_S, LEVEL = b"TIMER_DELIVER_MS", b"TIMER_DELAY_MS", b"TIMER_DELAY_SEC", b"DELAY"
LEVELS_S = (1, 5, 10, 30, 60, 120, 180, 240, 300, 360, 420, 480, 540, 600, 1_200, 1_800, 3_600, 7_200)
"""RocketMQ's delay levels, level 1 first."""
DIGITS_MAX = 15


def due_ms(message: StoreMessage, kind: int, now_ms: int) -> int | None:
    """When the message is due; None when it says nothing. Refused(MESSAGE_ILLEGAL) for what is no number."""
    if kind == KIND_MQTT:
        wish = property_value(message, MQTT_DELAY)
        return now_ms + _number(MQTT_DELAY, wish) if wish else None
    for key, unit_ms in ((DELAY_S, 1_000), (DELAY_MS, 1)):
        if wish := property_value(message, key):
            return now_ms + _number(key, wish) * unit_ms
    if wish := property_value(message, DELIVER_MS):
        return _number(DELIVER_MS, wish)
    level = _number(LEVEL, property_value(message, LEVEL) or b"0")
    return now_ms + LEVELS_S[min(level, len(LEVELS_S)) - 1] * 1_000 if level else None


def _number(key: bytes, text: bytes) -> int:
    if not text.isdigit() or len(text) > DIGITS_MAX:
        raise Refused(ResponseCode.MESSAGE_ILLEGAL, f"property {key.decode()} is not a number of at most 15 digits")
    return int(text)
