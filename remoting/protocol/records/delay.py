"""When an image is due: the properties by which MQTT's and RocketMQ's clients delay a message.

    MQTT image     delay-ms = milliseconds                      (user property)
    of a queue     TIMER_DELAY_SEC | TIMER_DELAY_MS | TIMER_DELIVER_MS = time in ms | DELAY = level 1..18

The first that has a value counts, in this order; a level above 18 is 18, a level of 0 no delay.
Invariant: a value that is not a number of at most `DIGITS_MAX` decimal digits is an error, never "now". Pure.
"""

from __future__ import annotations

from remoting.protocol.errors import RemoteViolation
from remoting.protocol.records.image import KIND_MQTT, KIND_QUEUE, kind_of
from remoting.protocol.records.record import RecordView

MQTT_DELAY = b"delay-ms"
DELAY_S, DELAY_MS, DELIVER_MS, LEVEL = b"TIMER_DELAY_SEC", b"TIMER_DELAY_MS", b"TIMER_DELIVER_MS", b"DELAY"
TIMED = frozenset((DELAY_S, DELAY_MS, DELIVER_MS, LEVEL))
"""Properties that may delay a message of a queue."""
LEVELS_S = (1, 5, 10, 30, 60, 120, 180, 240, 300, 360, 420, 480, 540, 600, 1_200, 1_800, 3_600, 7_200)
"""RocketMQ's delay levels, level 1 first."""
DIGITS_MAX = 15


def due_ms(image: RecordView, now_ms: int) -> int | None:
    """Return when an image is due; None when it names no time. Raises RemoteViolation for a value that is no number."""
    given: dict[bytes, bytes] = {}
    for key, value in image.properties():
        given.setdefault(key, value)
    if kind_of(image) == KIND_MQTT:
        value = given.get(MQTT_DELAY, b"")
        return now_ms + _number(MQTT_DELAY, value) if value else None
    for key, unit_ms in ((DELAY_S, 1_000), (DELAY_MS, 1)):
        if value := given.get(key, b""):
            return now_ms + _number(key, value) * unit_ms
    if value := given.get(DELIVER_MS, b""):
        return _number(DELIVER_MS, value)
    level = _number(LEVEL, given.get(LEVEL) or b"0")
    return now_ms + LEVELS_S[min(level, len(LEVELS_S)) - 1] * 1_000 if level else None


def names_a_time(image: RecordView) -> bool:
    """Return whether an image has a property that may say when it is to be delivered."""
    kind = kind_of(image)
    if kind == KIND_MQTT:
        return any(key == MQTT_DELAY for key, _value in image.properties())
    return kind == KIND_QUEUE and any(key in TIMED for key, _value in image.properties())


def _number(key: bytes, text: bytes) -> int:
    if not text.isdigit() or len(text) > DIGITS_MAX:
        raise RemoteViolation(f"property {key.decode()} is not a number of at most {DIGITS_MAX} digits")
    return int(text)
