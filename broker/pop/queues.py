"""Where the messages of a group are that pops a topic: its offsets in the queues of the topic and of the retry topic.

The queues take turns (`popping.by_turns`), but those of a topic with priorities. A group may have some of its pops go
by turns there too (its attribute `priority.factor`), so that the lowest priorities do not starve.

A queue gives a group nothing while it is closed to it: with too many messages in flight, or, in order, as long as those
in flight are invisible. In order a group gets first what it had of the queue and did not acknowledge.

Where a replica may have stood in, a new master gives nothing for `HOLD_MS`: it learns meanwhile what that gave.

Invariant: a message below the group's offset is in flight or done. A closed queue affects no other. Loop thread only.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from broker.groups.groups import group_offset_key, offset_change, offset_in
from broker.groups.locks import HOLD_MS
from broker.groups.request_modes import POP, RequestMode
from broker.pop.handles import original_topic, retry_topic
from broker.pop.in_flight import MessagesInFlight
from broker.pop.popping import (
    ALL_QUEUES,
    EXAMINED_MAX,
    Place,
    PopAsk,
    Refuse,
    Taken,
    beginning,
    by_turns,
    goes_by_priority,
    require_poppable,
    require_topic,
)
from broker.store.errors import UnreadableOffsets
from broker.store.index.reader import OFFSET_TOO_SMALL
from broker.store.state.state_kinds import GROUP_OFFSET
from remoting.protocol.errors import Refused
from remoting.protocol.frames.codes import ResponseCode
from remoting.protocol.records.record import RecordView

if TYPE_CHECKING:
    from broker.groups.feature import ConsumerGroups
    from broker.reading.bounds import LongPolls
    from broker.requests import RequestTools
    from broker.topics.topics import ClientQueues, Topics


class PopQueues:
    """Where the messages of a group are: its offsets in the queues of a topic and of the retry topic."""

    def __init__(
        self,
        tools: RequestTools,
        *,
        topics: Topics,
        queues: ClientQueues,
        groups: ConsumerGroups,
        in_flight: MessagesInFlight,
        long_polls: LongPolls,
        refuse: Refuse,
    ) -> None:
        self._tools = tools
        self._topics = topics
        self._queues = queues
        self._groups = groups
        self._in_flight = in_flight
        self._long_polls = long_polls
        self._limits = tools.config.limits
        self._refuse = refuse
        self._turns: Counter[tuple[str, str]] = Counter()
        replication = tools.config.replication
        is_held = replication.enabled and replication.acting_master
        self._held_until_ms = tools.identity.started_ms + HOLD_MS if is_held else 0

    @property
    def held_ms(self) -> int:
        """For how long nothing is given or revived yet: a replica may have stood in, and says meanwhile what it did."""
        return max(0, self._held_until_ms - self._tools.clock.now_ms()) if self._held_until_ms else 0

    def admit(self, ask: PopAsk) -> None:
        """Refused for a topic or group that cannot be popped."""
        require_topic(ask, self._refuse)
        self._queues.require_readable(ask.topic)
        reads_lite = self._groups.groups.reads_lite(ask.group, ask.topic)
        require_poppable(ask, self._topics.require(ask.topic), reads_lite=reads_lite, refuse=self._refuse)
        if not self._groups.groups.ensure(ask.group).consume_enable:
            raise Refused(ResponseCode.NO_PERMISSION, f"subscription group no permission, {ask.group}")

    def in_turn(self, ask: PopAsk) -> list[Place]:
        """The queues to take from, in the order of the next pop; those of a repeated attempt first."""
        self._turns[ask.group, ask.topic] += 1
        found = self.of(ask)
        return sorted(found, key=lambda place: not self._is_repeat(ask, place)) if ask.attempt else found

    def _is_repeat(self, ask: PopAsk, place: Place) -> bool:
        batch = self._in_flight.ordered.batch(ask.group, place[2])
        return batch is not None and batch.is_repeat(ask.attempt)

    def of(self, ask: PopAsk) -> list[Place]:
        """The same in the order of the last pop."""
        turn = self._turns[ask.group, ask.topic]
        ids = self._topics.queue_ids(ask.topic)
        if not ids:  # the topic was deleted while the request waited
            self._topics.require(ask.topic)
        indices = range(len(ids)) if ask.index == ALL_QUEUES else (ask.index,)
        found = [(ask.topic, index, ids[index]) for index in indices]
        retry = retry_topic(ask.group, ask.topic)
        settings, config = self._topics.get(ask.topic), self._groups.groups.get(ask.group)
        ranked = not ask.ordered and goes_by_priority(settings, config, turn)
        retries = [(retry, index, queue_id) for index, queue_id in enumerate(self._topics.queue_ids(retry))]
        return by_turns(ask.topic, found, retries, turn, ranked=ranked)

    def front(self, group: str, topic: str, index: int, queue_id: int) -> int:
        """The next offset to give the group."""
        low = self._tools.store.reading.bounds(queue_id)[0]
        found = self._in_flight.held.value(GROUP_OFFSET, group_offset_key(group, topic, index))
        return low if found is None else max(low, offset_in(found))

    def has_next(self, ask: PopAsk, place: Place) -> bool:
        """Whether the queue may have a message for this request, and is not closed to it."""
        topic, index, queue_id = place
        if self._held_until_ms and self.held_ms:
            return False
        batch = self._in_flight.ordered.batch(ask.group, queue_id)
        if batch is not None:
            return batch.is_free(ask.attempt, self._tools.clock.now_ms())
        if self.front(ask.group, topic, index, queue_id) >= self._tools.store.reading.bounds(queue_id)[1]:
            return False
        in_flight = self._in_flight.table.in_flight(ask.group, queue_id)
        return in_flight < (1 if ask.ordered else self._limits.pop_in_flight_max)

    def is_closed(self, group: str, queue_id: int) -> bool:
        """Whether the queue gives the group nothing because of what is in flight."""
        if self._in_flight.ordered.batch(group, queue_id) is not None:
            return True
        return self._in_flight.table.in_flight(group, queue_id) >= self._limits.pop_in_flight_max

    def opened(self, group: str, topic: str, queue_id: int, *, closed: bool) -> None:
        """Messages left flight or became visible in a queue that was `closed` before: waiting pops may get more."""
        batch = self._in_flight.ordered.batch(group, queue_id)
        if batch is not None and not batch.is_free(b"", self._tools.clock.now_ms()):
            return
        topic = original_topic(group, topic)
        if closed:
            self._long_polls.advanced([(group, topic, False), (group, topic, True)])
        elif not self._in_flight.table.in_flight(group, queue_id):
            self._long_polls.advanced([(group, topic, True)])

    def take(self, ask: PopAsk, place: Place, room: int, bytes_max: int) -> Taken:
        """Up to `room` messages of one queue that match; nothing changes yet."""
        topic, index, queue_id = place
        taken = self._begin(ask, place)
        batch, front, at = taken.batch, taken.front, taken.reached
        owed = {} if batch is None else batch.times
        room = min(room, len(owed) + self._limits.pop_in_flight_max - self._in_flight.count(ask.group, queue_id))
        wanted = None if topic != ask.topic else ask.wanted
        reading = self._tools.store.reading
        high = front + taken.rest
        end = min(high, at + EXAMINED_MAX)
        if batch is not None and batch.is_repeat(ask.attempt):
            end = min(end, max(front, batch.entries[-1][0] + 1))
        while at < end and len(taken.offsets) < room and bytes_max > 0:
            count = room - len(taken.offsets) if wanted is None else end - at
            try:
                found = reading.read(queue_id, at, min(count, end - at), bytes_max)
            except UnreadableOffsets as error:
                self._tools.log.error("messages_unreadable", topic=topic, queue=index, error=str(error))
                taken.damaged += sum(at <= offset < error.next_offset for offset in owed)
                at = error.next_offset
                continue
            if found.status == OFFSET_TOO_SMALL:
                at = found.first_offset
                continue
            if not found.records:  # not yet: what is behind the confirmed end is neither given nor given up
                break
            at = found.first_offset
            for record in found.records:
                if len(taken.offsets) == room:
                    break
                if at in owed if at < front else wanted is None or wanted(RecordView(record)):
                    taken.offsets.append(at)
                    taken.records.append(record)
                    bytes_max -= len(record)
                at += 1
        taken.moved, taken.front, taken.reached = at > front, max(front, at), at
        passed = sum(offset < at for offset in owed) - sum(offset in owed for offset in taken.offsets)
        taken.gone = passed - taken.damaged
        taken.rest = max(0, high - taken.front)
        return taken

    def _begin(self, ask: PopAsk, place: Place) -> Taken:
        """Where to begin in a queue."""
        topic, index, queue_id = place
        high = self._tools.store.reading.bounds(queue_id)[1]
        front = self.front(ask.group, topic, index, queue_id)
        batch = self._in_flight.ordered.batch(ask.group, queue_id)
        taken = Taken(topic, index, queue_id, front, high - front, batch, ask.ordered or batch is not None)
        # The group's offset is behind its batch, unless it was moved back: then it gets all from there.
        taken.reached = front if batch is None else min(front, batch.entries[0][0])
        return taken

    def enter(self, group: str, topic: str, *, from_end: bool) -> None:
        """Record at a group's first pop that it pops the topic, and where it begins.

        Raises:
            Refused: the group pulls the topic: it committed an offset there, or was switched to PULL.
        """
        modes, offsets, retry = self._groups.groups.modes, self._groups.offsets, retry_topic(group, topic)
        known = modes.get(group, topic)
        if known is not None and known.mode == POP and self._topics.get(retry) is not None:
            return
        self._groups.commits.flush()
        ids = self._topics.queue_ids(topic)
        missing = [index for index in range(len(ids)) if offsets.get(group, topic, index) is None]
        if known.mode != POP if known is not None else len(missing) < len(ids):
            remark = f"the group [{group}] pulls the topic [{topic}]; setConsumeMode (401) switches to POP"
            raise self._refuse("mode", ResponseCode.ILLEGAL_OPERATION, remark)
        store = self._tools.store
        changes = [] if known is not None else [modes.change(group, topic, RequestMode(POP))]
        if from_end:
            bounds = [(index, *store.reading.bounds(ids[index])) for index in missing]
            changes += [
                offset_change(group, topic, index, beginning(low, high, from_end=True)) for index, low, high in bounds
            ]
        if changes:
            store.append_state(changes)
        self._topics.ensure(retry, self.retry_queues(topic))  # last: as long as it is missing, this is done again

    def retry_queues(self, topic: str) -> int:
        """How many queues the retry topics of a topic have: one, or one for each priority."""
        return self._topics.require(topic).read_queue_count if self.has_priorities(topic) else 1

    def has_priorities(self, topic: str) -> bool:
        """Whether the queues of a topic are priorities."""
        config = self._topics.get(topic)
        return config is not None and config.has_priorities
