"""What one source sent: when each of its numbered messages was sent and acknowledged, and its content.

A payload is `source:number:padding`; the padding follows from the number, so bytes that changed are found.
Thread rule: one writer; others read it after the run, or only its counters.
"""

from __future__ import annotations

import hashlib
import math
from array import array

PAYLOAD_BYTES = 100


def payload(source: str, number: int) -> bytes:
    """The bytes of one message."""
    head = f"{source}:{number}:".encode()
    return head + hashlib.blake2b(head, digest_size=32).hexdigest().encode()[: PAYLOAD_BYTES - len(head)]


def parse(data: bytes) -> tuple[str, int] | None:
    """Source and number of a payload; None when it is not what was sent."""
    source, _, rest = data.partition(b":")
    number, _, _ = rest.partition(b":")
    if not number.isdigit():
        return None
    found = source.decode(errors="replace"), int(number)
    return found if payload(*found) == data else None


class Ledger:
    """One source's messages by number."""

    def __init__(self, source: str, topic: str) -> None:
        self.source = source
        self.topic = topic
        self.sent = array("d")
        self.acknowledged = array("d")
        """Seconds since the start of the run; NaN: not acknowledged."""
        self.places: dict[int, tuple[int, int]] = {}
        """Number -> (queue, offset), where the acknowledgement tells it."""
        self.count = 0
        """How many are acknowledged."""

    def send(self, at: float) -> int:
        """The number of a message that is sent now."""
        self.sent.append(at)
        self.acknowledged.append(math.nan)
        return len(self.sent) - 1

    def acknowledge(self, number: int, at: float) -> None:
        """The first acknowledgement of a message."""
        if math.isnan(self.acknowledged[number]):
            self.acknowledged[number] = at
            self.count += 1

    def is_acknowledged(self, number: int) -> bool:
        """Whether the message was acknowledged."""
        return not math.isnan(self.acknowledged[number])

    def back_after(self, at: float) -> float | None:
        """Seconds from a moment to the first acknowledgement of a message that was sent after it."""
        low, high = 0, len(self.sent)
        while low < high:  # sent times only rise
            middle = (low + high) // 2
            low, high = (middle + 1, high) if self.sent[middle] < at else (low, middle)
        found = [time for time in self.acknowledged[low : low + 20_000] if not math.isnan(time)]
        return min(found) - at if found else None
