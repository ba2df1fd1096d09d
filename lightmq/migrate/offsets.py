"""Consumer offsets of both clusters, kept alike: on which side a group has moved, and what follows.

    moved at one side     the other follows, back as well as on
    moved at both         what is further on wins: everything below it was consumed at one of the sides
    moved at neither      nothing

The first comparison after a start has nothing to compare with and counts as a move at both. What producers sent here
and is not at the source can be consumed here alone: the offset here follows up to such a message and no further. So an
offset may be lower than exact; then messages come again, and none is missed.

`follow` and `settled` are pure; `OffsetMirror` carries out what they decide. Loop thread only.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from broker.migration.offset_map import BothWays
from remoting.client.consumer import AsyncConsumer
from remoting.protocol.errors import Refused
from runtime.logs import get_logger

if TYPE_CHECKING:
    from lightmq.migrate.cluster import Cluster, GroupQueue
    from lightmq.migrate.copier import QueueCopier
    from lightmq.migrate.plan import QueueCopy


@dataclass(frozen=True, slots=True)
class Pair:
    """One group's offsets in one queue at both sides; None where it has committed none."""

    source: int | None
    target: int | None


@dataclass(frozen=True, slots=True)
class Follow:
    """The offset to commit at one side, and the pair that the sides have then."""

    at_source: bool
    offset: int
    result: Pair


def settled(now: Pair, copied: BothWays) -> Pair:
    """The pair to compare with later: what a side has beyond the messages of the other still has to follow."""
    source = None if now.source is None else min(now.source, copied.copied or 0)
    if now.target is None or not copied.back.runs:
        return Pair(source, now.target)
    return Pair(source, min(now.target, max(copied.forth.target_end, copied.back.target_end)))


def follow(now: Pair, last: Pair | None, copied: BothWays) -> Follow | None:
    """What to commit where; None when the sides agree."""
    if now in (last, Pair(None, None)):
        return None
    moved_source = last is None or now.source != last.source
    moved_target = last is None or now.target != last.target
    onward = None if now.source is None else copied.reach(now.target, copied.to_target(now.source))
    back = None if now.target is None else copied.to_source(now.target)
    if moved_source and onward is not None and (not moved_target or now.target is None or onward > now.target):
        return None if onward == now.target else Follow(False, onward, settled(Pair(now.source, onward), copied))
    if moved_target and back is not None and (not moved_source or now.source is None or back > now.source):
        return None if back == now.source else Follow(True, back, settled(Pair(back, now.target), copied))
    return None


class OffsetMirror:
    """The offsets of all groups at two clusters."""

    def __init__(self, source: Cluster, target: Cluster) -> None:
        self._source, self._target = source, target
        self._pairs: dict[tuple[str, QueueCopy], Pair] = {}
        self._log = get_logger("migrate")

    async def align(self, groups: Iterable[str], copiers: Iterable[QueueCopier]) -> int:
        """Commit at each side what has moved at the other; returns how many offsets. Raises LightMQError."""
        moved, copying = 0, list(copiers)
        for group in groups:
            there = await self._source.offsets(group, self._source.brokers)
            here = await self._target.offsets(group, self._target.brokers)
            topics = {topic for topic, _broker, _queue in (*there, *here)}
            for copier in copying:
                if copier.queue.topic in topics:
                    moved += await self._align(group, copier, there, here)
        return moved

    async def _align(
        self, group: str, copier: QueueCopier, there: dict[GroupQueue, int], here: dict[GroupQueue, int]
    ) -> bool:
        queue, copied = copier.queue, copier.offsets
        now = Pair(
            there.get((queue.topic, queue.source_broker, queue.source_queue)),
            here.get((queue.topic, queue.target_broker, queue.target_queue)),
        )
        step = follow(now, self._pairs.get((group, queue)), copied)
        if step is None:
            self._pairs[group, queue] = settled(now, copied)
            return False
        if step.at_source:
            at, number = self._source.connection(queue.source_broker), queue.source_queue
        else:
            at, number = self._target.connection(queue.target_broker), queue.target_queue
        try:
            await AsyncConsumer(at, group, queue.topic, number).commit(step.offset)
        except Refused as refused:  # it is locked by an orderly consumer or popped there: the next round tries again
            self._log.info("offset_not_moved", group=group, topic=queue.topic, reason=refused.remark)
            return False
        self._pairs[group, queue] = step.result
        return True
