"""Birth certificates: which names and data types stand behind the aliases of a node's or device's messages.

A certificate is in force for what was stored behind it and before the next one of its topic; "behind" is by position in
the broker's log, the one order that all queues of a broker share. So the answer for a message never changes, whichever
task or batch asks. Invariant: certificates of a topic rise in position and none is missing between the first and
`known_to`. Pure.
"""

from __future__ import annotations

import bisect
import sys
from dataclasses import dataclass, field
from typing import Any

from spark_connector.decode.sparkplug_payload import payload_class

KEPT_PER_TOPIC_MAX = 64
"""Certificates of one topic that are remembered; older ones are read again where an old message needs them."""


@dataclass(slots=True)
class Certificate:
    """What one birth told."""

    position: int
    aliases: dict[int, tuple[str, int]]
    """Alias → name and data type."""
    datatypes: dict[str, int]
    """Name → data type."""
    broken: str = ""
    """Why it cannot be read; empty when it was."""


def read_certificate(position: int, body: bytes) -> Certificate:
    """Return what a birth's payload tells."""
    made = Certificate(position, {}, {})
    try:
        payload = payload_class().FromString(body)
        for metric in payload.metrics:
            name = sys.intern(metric.name)
            if metric.HasField("alias"):
                made.aliases[metric.alias] = (name, metric.datatype)
            made.datatypes[name] = metric.datatype
    except Exception as failure:  # noqa: BLE001 - how the library refuses bytes differs between its versions
        return Certificate(position, {}, {}, f"the birth certificate cannot be read: {failure}")
    return made


@dataclass(slots=True)
class TopicBirths:
    """The certificates of one topic that are known."""

    queue_id: int | None = None
    next_offset: int = 0
    """First offset of the topic's queue that was not read."""
    whole: bool = True
    """Whether there was nothing before the first certificate."""
    known_to: int = -1
    """Position up to which every certificate is known."""
    refused: str = ""
    """Why the broker does not let us read them; empty when it does."""
    certificates: list[Certificate] = field(default_factory=list)

    def add(self, certificate: Certificate, low: int) -> None:
        """Append the next one; of too many the oldest is forgotten, if no message from `low` on needs it."""
        self.certificates.append(certificate)
        while len(self.certificates) > KEPT_PER_TOPIC_MAX and self.certificates[1].position < low:
            del self.certificates[0]
            self.whole = False

    def covers(self, low: int) -> bool:
        """Whether the one in force for a message at this position is known, or known not to exist."""
        return self.whole or bool(self.certificates and self.certificates[0].position < low)

    def at(self, position: int) -> Certificate | None:
        """The one in force for a message at this position; None where there was none."""
        if self.refused:
            return Certificate(-1, {}, {}, self.refused)
        place = bisect.bisect_left(self.certificates, position, key=_position)
        return self.certificates[place - 1] if place else None

    @property
    def size(self) -> int:
        """Metrics remembered."""
        return sum(len(one.datatypes) for one in self.certificates)


def _position(certificate: Any) -> int:
    found: int = certificate.position
    return found
