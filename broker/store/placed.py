"""Messages on their way into the store, and where the store put them.

Invariant: one entry of `queues` for each image, the parent queue first; the store copies an image's bytes behind the
dispatch entries that it makes of them. Thread rule: plain values of the loop thread.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol

from remoting.native.contracts import EntryBlock
from remoting.protocol.records.record import RecordView

Queues = tuple[int, ...]


class Placed:
    """Record images back to back and the ids of the queues of each; `count` messages, those of batches counted."""

    def __init__(self, images: bytes = b"", queues: list[Queues] | None = None, count: int = -1) -> None:
        """`count`: as many as images unless given."""
        self.images = images
        self.queues: list[Queues] = [] if queues is None else queues
        self.count = len(self.queues) if count < 0 else count

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

    @property
    def entries(self) -> EntryBlock:
        """The index entries of the append: one for each queue of each message."""
        ...


def parts_of(placed: Sequence[Placed]) -> tuple[list[bytes], list[list[Queues]]]:
    """(images of each, queues of each): what the store makes records of."""
    images: list[bytes] = []
    queues: list[list[Queues]] = []
    for part in placed:
        images.append(part.images)
        queues.append(part.queues)
    return images, queues


def spread(parts: Sequence[Placed], queues_max: int) -> list[Placed]:
    """The same messages, none for more than `queues_max` queues: what is over is in further images at the end.

    A message keeps its number and its first queues, among them its parent's. A queue that got a message there gets all
    that follow it there too, also where a filter came or went between two messages: each queue keeps their order.
    """
    kept: list[Placed] = []
    images: list[bytes] = []
    behind: list[Queues] = []
    late: set[int] = set()
    """Queues in `behind`."""
    for part in parts:
        at = 0
        first_queues: list[Queues] = []
        for image, queues in part:
            if len(queues) > queues_max or not late.isdisjoint(queues):
                first = (queues[0], *(queue for queue in queues[1:] if queue not in late))[:queues_max]
                taken = set(first)
                over = [queue for queue in queues if queue not in taken]
                for begin in range(0, len(over), queues_max):
                    images.append(part.images[at : at + image.total])
                    behind.append(tuple(over[begin : begin + queues_max]))
                late.update(over)
                queues = first
            first_queues.append(queues)
            at += image.total
        kept.append(Placed(part.images, first_queues, part.count))
    return [*kept, Placed(b"".join(images), behind, 0)]


def together(parts: Sequence[Placed]) -> Placed:
    """The messages of all parts, in order, as one."""
    if len(parts) == 1:
        return parts[0]
    images: list[bytes] = []
    queues: list[Queues] = []
    count = 0
    for part in parts:
        images.append(part.images)
        queues.extend(part.queues)
        count += part.count
    return Placed(b"".join(images), queues, count)


def property_value(image: RecordView, wanted: bytes) -> bytes:
    """Value of an image's property, b"" when it is not there."""
    for key, value in image.properties():
        if key == wanted:
            return value
    return b""
