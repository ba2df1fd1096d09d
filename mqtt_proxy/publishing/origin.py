"""Who published, and what the publisher tells them.

Invariant: whoever asked hears to which messages nobody has subscribed before it hears that they are confirmed. Loop
rule: everything on the loop's thread.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from remoting.protocol.bodies.append_body import decode_unwanted
from remoting.protocol.records.image import iter_images
from remoting.protocol.records.record import FLAG_QOS_MASK

if TYPE_CHECKING:
    from mqtt_proxy.publishing.publisher import Run


class Origin(Protocol):
    """Who published: a connection."""

    asks: bool
    """Whether it is to be told to which of its messages nobody has subscribed."""

    def unwanted(self, packet_ids: list[int]) -> None:
        """To these nobody has subscribed; `confirmed` follows for them."""

    def confirmed(self, packet_ids: list[int]) -> None:
        """These are durable."""

    def rejected(self, reason: str) -> None:
        """Some of its messages were not accepted; `reason` starts with a stable word and a colon."""

    def refused(self, packet_id: int, code: int, reason: str) -> None:
        """This one message was not accepted, the broker's response code says why; `packet_id` is 0 for QoS 0."""

    def hold(self) -> None:
        """Do not read from it for now."""

    def release(self) -> None:
        """Read from it again."""


def is_asked(runs: Sequence[Run]) -> bool:
    """Whether somebody wants to know to which of these messages nobody has subscribed."""
    return any(run.packet_ids and run.origin.asks for run in runs)


def tell_unwanted(runs: Sequence[Run], reply: bytes) -> None:
    """Tell those who asked what the broker's answer to a request of these runs says about that."""
    unwanted = decode_unwanted(reply)
    if not unwanted:
        return
    first = 0
    for run in runs:
        ids = iter(run.packet_ids)
        each = [next(ids) if image.flags & FLAG_QOS_MASK else 0 for image in iter_images(run.images)]
        found = [packet_id for number, packet_id in enumerate(each, first) if packet_id and number in unwanted]
        if found and run.origin.asks:
            run.origin.unwanted(found)
        first += run.count
