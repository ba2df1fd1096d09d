"""The origins of publishes: what they are informed of, and which publishes may be repeated after the broker was lost.

    QoS 0   arrives at most once: dropped
    QoS 1   may arrive twice: sent again to the next broker, in the order of receipt

Invariant: an origin that asked is informed which messages have no subscribers before they are confirmed to it. Bytes
and messages that are dropped are counted once, in `take_dropped`. Loop rule: everything on the loop's thread.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Protocol

from remoting.protocol.bodies.append_body import decode_unwanted
from remoting.protocol.records.image import iter_images
from remoting.protocol.records.record import FLAG_QOS_MASK

if TYPE_CHECKING:
    from mqtt_proxy.metrics import ClientCounters
    from mqtt_proxy.publishing.publisher import PublishRun


class Origin(Protocol):
    """The publisher of messages: a connection."""

    asks: bool
    """Whether it is to be informed which of its messages have no subscribers."""
    counters: ClientCounters
    """Where its messages are counted."""

    def unwanted(self, packet_ids: list[int]) -> None:
        """These have no subscribers; `confirmed` follows for them."""

    def confirmed(self, packet_ids: list[int]) -> None:
        """These are durable."""

    def rejected(self, reason: str) -> None:
        """Some of its messages were not accepted; `reason` starts with a stable word and a colon."""

    def refused(self, packet_id: int, code: int, reason: str) -> None:
        """This one message was not accepted, with the broker's response code; `packet_id` is 0 for QoS 0."""

    def pause(self) -> None:
        """Stop reading from it for now."""

    def release(self) -> None:
        """Read from it again."""


def is_asked(runs: Sequence[PublishRun]) -> bool:
    """Whether the broker has to be asked which of these messages have no subscribers."""
    return any(run.packet_ids and run.origin.asks for run in runs)


def tell_unwanted(runs: Sequence[PublishRun], reply: bytes) -> None:
    """Inform the origins that asked which messages have no subscribers, by the broker's answer to a request of runs."""
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


QOS_EXACT = 2


class Unanswered:
    """Unanswered publishes that wait for the next broker."""

    def __init__(self) -> None:
        self.runs: list[PublishRun] = []
        """In order of receipt."""
        self._dropped_count = self._dropped_bytes = 0

    def __bool__(self) -> bool:
        return bool(self.runs)

    def has(self, origin: Origin) -> bool:
        """Whether something of this connection waits."""
        return any(run.origin is origin for run in self.runs)

    def add(self, runs: Sequence[PublishRun]) -> list[Origin]:
        """Add these after those before; returns the origins whose messages cannot be repeated from here."""
        once: dict[Origin, None] = {}
        for run in runs:
            each = each_qos(run)
            if max(each) == QOS_EXACT:
                once[run.origin] = None
            kept = again(run, each)
            if kept is not None:
                self.runs.append(kept)
            self._drop(run, kept)
        return list(once)

    def give_up(self, origins: Collection[Origin], more: Sequence[PublishRun]) -> None:
        """Drop what waits of these origins, and `more` of theirs."""
        for run in (*(one for one in self.runs if one.origin in origins), *more):
            self._drop(run, None)
        self.runs = [run for run in self.runs if run.origin not in origins]

    def take(self) -> list[PublishRun]:
        """All of it, to be sent before anything else."""
        runs, self.runs = self.runs, []
        return runs

    def take_dropped(self) -> tuple[int, int]:
        """(messages, bytes) that were dropped since the last call."""
        dropped = self._dropped_count, self._dropped_bytes
        self._dropped_count = self._dropped_bytes = 0
        return dropped

    def _drop(self, run: PublishRun, kept: PublishRun | None) -> None:
        self._dropped_count += run.count - (0 if kept is None else kept.count)
        self._dropped_bytes += run.size_bytes - (0 if kept is None else kept.size_bytes)


def each_qos(run: PublishRun) -> list[int]:
    """The QoS of every message of a run."""
    return [image.flags & FLAG_QOS_MASK for image in iter_images(run.images)]


def again(run: PublishRun, each: Sequence[int]) -> PublishRun | None:
    """The part of a run that may be sent twice; None when nothing is left."""
    if all(each):
        return run
    kept = [bytes(image.raw) for image in iter_images(run.images) if image.flags & FLAG_QOS_MASK]
    if not kept:
        return None
    return type(run)(run.origin, b"".join(kept), run.packet_ids, len(kept), run.taken_ns)
