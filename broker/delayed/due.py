"""When a message wants to be delivered: what its properties say, in the words of MQTT clients and of RocketMQ's.

    MQTT           delay-ms = milliseconds                      (user property)
    queue          TIMER_DELAY_SEC | TIMER_DELAY_MS | TIMER_DELIVER_MS = time in ms | DELAY = level 1..18

The first that is there counts, in this order; a level above 18 is 18, a level of 0 no delay. Invariant: what is not a
number in decimal digits is refused, never taken for "now".
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from broker.publishing.placement import MQTT_DELAY
from broker.store.placed import property_value
from remoting.protocol.errors import Refused
from remoting.protocol.frames.codes import ResponseCode
from remoting.protocol.records.image import KIND_MQTT, kind_of
from remoting.protocol.records.record import RecordView

if TYPE_CHECKING:
    from broker.delayed.delayed import Delayed
    from runtime.clock import Clock

DELIVER_MS, DELAY_MS, DELAY_S, LEVEL = b"TIMER_DELIVER_MS", b"TIMER_DELAY_MS", b"TIMER_DELAY_SEC", b"DELAY"
LEVELS_S = (1, 5, 10, 30, 60, 120, 180, 240, 300, 360, 420, 480, 540, 600, 1_200, 1_800, 3_600, 7_200)
"""RocketMQ's delay levels, level 1 first."""
DIGITS_MAX = 15


def due_ms(image: RecordView, now_ms: int) -> int | None:
    """When an image is due; None when it says nothing. Refused(MESSAGE_ILLEGAL) for what is no number."""
    if kind_of(image) == KIND_MQTT:
        wish = property_value(image, MQTT_DELAY)
        return now_ms + _number(MQTT_DELAY, wish) if wish else None
    for key, unit_ms in ((DELAY_S, 1_000), (DELAY_MS, 1)):
        if wish := property_value(image, key):
            return now_ms + _number(key, wish) * unit_ms
    if wish := property_value(image, DELIVER_MS):
        return _number(DELIVER_MS, wish)
    level = _number(LEVEL, property_value(image, LEVEL) or b"0")
    return now_ms + LEVELS_S[min(level, len(LEVELS_S)) - 1] * 1_000 if level else None


def _number(key: bytes, text: bytes) -> int:
    if not text.isdigit() or len(text) > DIGITS_MAX:
        raise Refused(ResponseCode.MESSAGE_ILLEGAL, f"property {key.decode()} is not a number of at most 15 digits")
    return int(text)


class Diversion:
    """Sends images that name a later time to where they wait."""

    def __init__(self, delayed: Delayed, clock: Clock) -> None:
        self._delayed = delayed
        self._clock = clock

    def divert(self, image: RecordView) -> tuple[bytes, tuple[int, ...]] | None:
        """The waiting image made of one and its queue; None for what is due now. Raises Refused if it may not wait."""
        now_ms = self._clock.now_ms()
        at_ms = due_ms(image, now_ms)
        return None if at_ms is None else self._delayed.put(image, at_ms, now_ms)

    def check(self, image: RecordView) -> None:
        """Refused when the message names a later time and may not wait for it."""
        now_ms = self._clock.now_ms()
        at_ms = due_ms(image, now_ms)
        if at_ms is not None:
            self._delayed.admit(at_ms, now_ms)
