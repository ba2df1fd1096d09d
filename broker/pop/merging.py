"""What groups did by POP at another broker of the group while that stood in for the master.

    9100 MERGE_GIVEN   messages that it gave: [group, topic, queue index, offset, start, pop time, invisible time,
                       attempt], the last one null where they were given without order
    9093 MERGE_POPS    what became of messages: [group, topic, queue index, offset, pop time, invisible time, pop time
                       now, invisible time now], the ownership of a message in the log, and another one, or, with pop
                       time 0, none, since the message is done

The bodies are JSON, lists of these. What the log has of a message by now wins. A message that was given is taken over
where it joins on to the group's offset (`chain`), and what became of one where the group has it under the ownership
that is named; otherwise it is left out, counted and logged. What was given comes first.

Invariant: however often and in how many parts it is told, the result is the same; a message that is done is not given
again after the answer, which comes when all of it is confirmed, and none is passed over. Loop thread only.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Annotated, NamedTuple

import msgspec

from broker.groups.groups import offset_change
from broker.pop.chain import follow
from broker.pop.check_points import INVISIBLE_MS_MAX, Owned
from broker.pop.handles import original_topic
from broker.pop.in_flight import MessagesInFlight
from broker.pop.ordered import ATTEMPT_BYTES_MAX
from broker.pop.queues import PopQueues
from broker.requests import merged_items
from remoting.access.rights import REGISTER
from remoting.protocol.errors import Refused, RemoteViolation
from remoting.protocol.frames.codes import RequestCode as Code
from remoting.protocol.frames.codes import ResponseCode
from remoting.protocol.frames.commands import Command
from remoting.transport.contracts import Handler, Peer

if TYPE_CHECKING:
    from broker.groups.groups import Groups
    from broker.requests import RequestTools
    from broker.topics.topics import Topics

Time = Annotated[int, msgspec.Meta(ge=0, le=2**62)]
Length = Annotated[int, msgspec.Meta(ge=0, le=INVISIBLE_MS_MAX)]
Item = tuple[str, str, int, int, Time, Length, Time, Length]
"""(group, topic, queue index, offset, pop time, invisible time, pop time now, invisible time now)."""
Since = Annotated[int, msgspec.Meta(ge=1, le=2**62)]
GivenItem = tuple[str, str, int, int, int, Since, Length, str | None]
"""(group, topic, queue index, offset, start, pop time, invisible time, attempt)."""


class GivenHere(NamedTuple):
    """One message as a replica gave it."""

    start: int
    """Where looking for it began."""
    owned: Owned
    attempt: str | None
    """None for one without order."""


def ownership(pop_ms: int, invisible_ms: int) -> Owned | None:
    """An ownership of an item; None for a message that is done."""
    return (pop_ms, invisible_ms) if pop_ms else None


class PopMerge:
    """Takes over what became of messages elsewhere."""

    def __init__(
        self, tools: RequestTools, *, topics: Topics, groups: Groups, queues: PopQueues, in_flight: MessagesInFlight
    ) -> None:
        self._tools = tools
        self._topics, self._groups = topics, groups
        self._queues, self._in_flight = queues, in_flight

    def handlers(self) -> dict[int, Handler]:
        """Request code -> handler."""
        return {Code.MERGE_POPS: self.requested, Code.MERGE_GIVEN: self.requested}

    def requested(self, peer: Peer, command: Command) -> None:
        """9093, 9100: merge; answered when it is confirmed."""
        self._tools.authorizer.authorize(peer, command, REGISTER, self._tools.config.broker_name)
        take = self.take if command.code == Code.MERGE_POPS else self.take_given
        self._tools.answers.reply_at(take(command.body), peer, command.reply())

    def take_given(self, body: bytes) -> int:
        """Merge what the body of 9100 has; returns and raises as `take`."""
        items: list[GivenItem] = merged_items(body, GivenItem)
        self._begin()
        queues: dict[tuple[str, str, int], dict[int, GivenHere]] = {}
        for group, topic, index, offset, start, pop_ms, invisible_ms, attempt in items:
            if attempt is not None and len(attempt.encode()) > ATTEMPT_BYTES_MAX:
                raise RemoteViolation(f"an attempt of {len(attempt.encode())} bytes, more than {ATTEMPT_BYTES_MAX}")
            given = GivenHere(start, (pop_ms, invisible_ms), attempt)
            queues.setdefault((group, topic, index), {})[offset] = given
        for group, topic in sorted({(group, original_topic(group, topic)) for group, topic, _index in queues}):
            self._enter(group, topic)
        try:
            left_out = sum(self._join_on(*queue, given) for queue, given in queues.items())
            self._in_flight.held.write()
        finally:
            self._in_flight.held.drop()
        return self._taken(left_out)

    def _enter(self, group: str, topic: str) -> None:
        """Let a group that popped the topic for the first time elsewhere pop it; not one that pulls it by now."""
        if self._topics.get(topic) is None or self._groups.modes.get(group, topic) is not None:
            return
        with contextlib.suppress(Refused):  # what it was given is left out then
            self._groups.ensure(group, "")
            self._queues.enter(group, topic, from_end=False)

    def _join_on(self, group: str, topic: str, index: int, given: Mapping[int, GivenHere]) -> int:
        """Hold what was given of one queue, as far as it joins on; returns how much is left out."""
        ids = self._topics.queue_ids(topic)
        if not 0 <= index < len(ids) or not self._groups.modes.pops(group, original_topic(group, topic)):
            return len(given)
        queue_id, in_flight = ids[index], self._in_flight
        low, high = self._tools.store.reading.bounds(queue_id)
        there = [offset for offset in sorted(given) if low <= offset < high]
        links = [(offset, given[offset].start) for offset in there]
        if in_flight.ordered.batch(group, queue_id) is not None:
            links = [link for link in links if given[link[0]].attempt is not None]
        front, taken = follow(self._queues.front(group, topic, index, queue_id), links)
        for offset in taken:
            _start, owned, attempt = given[offset]
            if attempt is None:
                in_flight.keep(in_flight.table.give(group, queue_id, (offset,), owned))
            else:
                in_flight.keep(in_flight.ordered.add(group, queue_id, attempt.encode(), offset, owned))
        if taken:
            in_flight.keep([offset_change(group, topic, index, front)])
        known = sum(in_flight.find(group, queue_id, offset) == given[offset].owned for offset in there)
        return len(given) - known

    def take(self, body: bytes) -> int:
        """Merge what the body of 9093 has; returns the position to wait for.

        Raises:
            Refused: this broker does not know all that is in flight yet, or there are too many items.
            RemoteViolation: the body cannot be read.
            StoreError: some of it has not changed; try again.
        """
        items: list[Item] = merged_items(body, Item)
        self._begin()
        # A block is written with check-points gone or with others in their places: those of one record never do both.
        left_out = self._merge([item for item in items if not item[6]])
        left_out += self._merge([item for item in items if item[6]])
        return self._taken(left_out)

    def _begin(self) -> None:
        """Let nothing be on its way that the log does not have."""
        if not self._tools.is_sure:
            raise Refused(ResponseCode.SYSTEM_BUSY, "what this broker had when it became the master is not confirmed")
        if self._in_flight.gathered:
            self._in_flight.write_gathered()  # what it wakes takes messages of its own: nothing is held yet

    def _taken(self, left_out: int) -> int:
        """Say what was left out; returns the position to wait for."""
        if left_out:
            self._tools.metrics.dropped.child("pop_not_merged").value += left_out
            self._tools.log.warning("pops_not_merged", messages=left_out, reason="the log has something else of them")
        return self._tools.store.end_position

    def _merge(self, items: Iterable[Item]) -> int:
        """Write what changes as one record; returns how many items are left out. Raises StoreError."""
        left_out, closed = 0, dict[tuple[str, str, int], bool]()
        try:
            for group, topic, index, offset, *times in items:
                queue_id = self._queue(group, topic, index, offset)
                if queue_id is None:
                    left_out += 1
                    continue
                was_closed = self._queues.is_closed(group, queue_id)
                if self._change(group, queue_id, offset, (times[0], times[1]), ownership(times[2], times[3])):
                    closed.setdefault((group, topic, queue_id), was_closed)
                else:
                    left_out += self._in_flight.find(group, queue_id, offset) != ownership(times[2], times[3])
            self._in_flight.held.write()
        finally:
            self._in_flight.held.drop()
        for (group, topic, queue_id), was_closed in closed.items():
            self._queues.opened(group, topic, queue_id, closed=was_closed)
        return left_out

    def _change(self, group: str, queue_id: int, offset: int, before: Owned, now: Owned | None) -> bool:
        """Hold the change of one message; whether the group had it so."""
        if self._in_flight.find(group, queue_id, offset) != before:
            return False
        if now is None:
            self._in_flight.keep(self._in_flight.release(group, queue_id, (offset,)))
        else:
            self._in_flight.keep(self._in_flight.move(group, queue_id, offset, now))
        return True

    def _queue(self, group: str, topic: str, index: int, offset: int) -> int | None:
        """The queue of a message that is there, of a group that is; else None."""
        ids = self._topics.queue_ids(topic)
        if self._groups.get(group) is None or not 0 <= index < len(ids):
            return None
        low, high = self._tools.store.reading.bounds(ids[index])
        return ids[index] if low <= offset < high else None
