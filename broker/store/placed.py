"""Messages on their way into the store, and what the store says about where they went.

Invariant: one entry of `queues` for each image, the parent queue first; the store copies an image's bytes behind the
dispatch entries that it makes of them. Thread rule: plain values of the loop thread.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Protocol

from remoting.protocol.records.record import RecordView

Queues = tuple[int, ...]


@dataclass(slots=True)
class Placed:
    """Record images back to back and the ids of the queues of each; `count` messages, those of batches counted."""

    images: bytes = b""
    queues: list[Queues] = field(default_factory=list)
    count: int = -1
    """As many as images where it is not said."""

    def __post_init__(self) -> None:
        if self.count < 0:
            self.count = len(self.queues)

    def __len__(self) -> int:
        return len(self.queues)

    def __iter__(self) -> Iterator[tuple[RecordView, Queues]]:
        at = 0
        for queues in self.queues:
            image = RecordView(self.images, at)
            yield image, queues
            at += image.total


class Appended(Protocol):
    """Where an append went; `offsets[i]` is message i's offset in its first queue (-1 when it has no queue)."""

    first_position: int
    end_position: int
    offsets: list[int]


def together(parts: Iterable[Placed]) -> Placed:
    """The messages of all parts, in order, as one."""
    parts = list(parts)
    if len(parts) == 1:
        return parts[0]
    queues = [one for part in parts for one in part.queues]
    return Placed(b"".join([part.images for part in parts]), queues, sum([part.count for part in parts]))


def property_value(image: RecordView, wanted: bytes) -> bytes:
    """Value of an image's property, b"" when it is not there."""
    for key, value in image.properties():
        if key == wanted:
            return value
    return b""
