"""Where the messages of a group are that pops a topic: its offsets in the queues of the topic and of the retry topic.

The queues take turns: each pop begins with the next one. The group's retry topic comes first in every fifth pop, else
last, so that neither starves the other.

Invariant: a message below the group's offset is in flight or done. A queue with too many messages of the group in
flight gives it no more; others are not affected. Loop thread only.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from broker.groups.feature import Selection
from broker.groups.groups import offset_change
from broker.groups.request_modes import POP, RequestMode
from broker.pop.check_points import KeptCheckPoints
from broker.pop.handles import retry_topic
from broker.store.errors import UnreadableOffsets
from broker.store.index.reader import OFFSET_TOO_SMALL
from broker.topics.topics import is_light
from remoting.protocol.errors import Refused
from remoting.protocol.frames.codes import ResponseCode
from remoting.protocol.records import names
from remoting.protocol.records.record import RecordView

if TYPE_CHECKING:
    from broker.groups.feature import ConsumerGroups
    from broker.requests import RequestTools
    from broker.topics.topics import ClientQueues, Topics

ALL_QUEUES = -1
EXAMINED_MAX = 1_024
"""Most messages of one queue that one pop holds against its filter."""
RETRY_FIRST_EVERY = 5
Refuse = Callable[[str, int, str], Refused]
"""(reason for the counter, code, remark) -> the refusal, counted."""


@dataclass(slots=True)
class PopAsk:
    """One request for messages."""

    group: str
    topic: str
    index: int
    count: int
    invisible_ms: int
    wait_ms: int
    from_end: bool
    wanted: Selection | None


@dataclass(slots=True)
class Taken:
    """Messages of one queue for one pop."""

    topic: str
    index: int
    queue_id: int
    front: int
    """The next offset to give."""
    rest: int
    """How many messages remain behind it."""
    moved: bool = False
    """Whether messages were given or passed over."""
    offsets: list[int] = field(default_factory=list)
    views: list[RecordView] = field(default_factory=list)


class PopQueues:
    """Where the messages of a group are: its offsets in the queues of a topic and of the retry topic."""

    def __init__(
        self,
        tools: RequestTools,
        *,
        topics: Topics,
        queues: ClientQueues,
        groups: ConsumerGroups,
        check_points: KeptCheckPoints,
        refuse: Refuse,
    ) -> None:
        self._tools = tools
        self._topics = topics
        self._queues = queues
        self._groups = groups
        self._check_points = check_points
        self._refuse = refuse
        self._turns: Counter[tuple[str, str]] = Counter()

    def admit(self, ask: PopAsk) -> None:
        """Refused for a topic or group that cannot be popped."""
        if is_light(ask.topic) or ask.topic.startswith(names.RETRY_PREFIX):
            raise self._refuse("topic", ResponseCode.INVALID_PARAMETER, f"the topic [{ask.topic}] cannot be popped")
        self._queues.require_readable(ask.topic)
        config = self._topics.require(ask.topic)
        if config.takes_batches:
            raise self._refuse("topic", ResponseCode.INVALID_PARAMETER, f"[{ask.topic}] is a batch topic: pull it")
        if ask.index >= config.read_queue_count or ask.index < ALL_QUEUES:
            remark = f"queueId[{ask.index}] is illegal, topic:[{ask.topic}] has {config.read_queue_count} queues"
            raise self._refuse("queue", ResponseCode.INVALID_PARAMETER, remark)
        if not self._groups.groups.ensure(ask.group).consume_enable:
            raise Refused(ResponseCode.NO_PERMISSION, f"subscription group no permission, {ask.group}")

    def in_turn(self, ask: PopAsk) -> list[tuple[str, int, int]]:
        """(topic, queue number, queue id) of the queues to take from, in the order of the next pop."""
        self._turns[ask.group, ask.topic] += 1
        return self.of(ask)

    def of(self, ask: PopAsk) -> list[tuple[str, int, int]]:
        """The same in the order of the last pop."""
        turn = self._turns[ask.group, ask.topic]
        ids = self._topics.queue_ids(ask.topic)
        indices = range(len(ids)) if ask.index == ALL_QUEUES else (ask.index,)
        found = [(ask.topic, index, ids[index]) for index in indices]
        first = turn % len(found)
        found = found[first:] + found[:first]
        retry = retry_topic(ask.group, ask.topic)
        retries = [(retry, index, queue_id) for index, queue_id in enumerate(self._topics.queue_ids(retry))]
        return retries + found if turn % RETRY_FIRST_EVERY == 0 else found + retries

    def front(self, group: str, topic: str, index: int, queue_id: int) -> int:
        """The next offset to give the group."""
        low = self._tools.store.reading.bounds(queue_id)[0]
        found = self._groups.offsets.get(group, topic, index)
        return low if found is None else max(low, found[0])

    def take(self, ask: PopAsk, place: tuple[str, int, int], room: int, bytes_max: int) -> Taken:
        """Up to `room` messages of one queue that match; nothing changes yet."""
        topic, index, queue_id = place
        reading = self._tools.store.reading
        high = reading.bounds(queue_id)[1]
        at = self.front(ask.group, topic, index, queue_id)
        taken = Taken(topic, index, queue_id, at, high - at)
        limit = self._tools.config.limits.pop_in_flight_max
        room = min(room, limit - self._check_points.table.in_flight(ask.group, queue_id))
        wanted = None if topic != ask.topic else ask.wanted
        end = min(high, at + EXAMINED_MAX)
        while at < end and len(taken.offsets) < room and bytes_max > 0:
            count = room - len(taken.offsets) if wanted is None else end - at
            try:
                found = reading.read(queue_id, at, min(count, end - at), bytes_max)
            except UnreadableOffsets as error:
                self._tools.log.error("messages_unreadable", topic=topic, queue=index, error=str(error))
                at = error.next_offset
                continue
            if found.status == OFFSET_TOO_SMALL:
                at = found.first_offset
                continue
            if not found.records:
                break
            at = found.first_offset
            for view in map(RecordView, found.records):
                if len(taken.offsets) == room:
                    break
                if wanted is None or wanted(view):
                    taken.offsets.append(at)
                    taken.views.append(view)
                    bytes_max -= view.total
                at += 1
        taken.moved, taken.front, taken.rest = at > taken.front, at, high - at
        return taken

    def enter(self, ask: PopAsk) -> None:
        """Record at a group's first pop that it pops the topic, and where it begins.

        Raises:
            Refused: the group pulls the topic: it committed an offset there, or was switched to PULL.
        """
        modes, offsets, retry = self._groups.groups.modes, self._groups.offsets, retry_topic(ask.group, ask.topic)
        known = modes.get(ask.group, ask.topic)
        if known is not None and known.mode == POP and self._topics.get(retry) is not None:
            return
        self._groups.commits.flush()
        ids = self._topics.queue_ids(ask.topic)
        missing = [index for index in range(len(ids)) if offsets.get(ask.group, ask.topic, index) is None]
        if known.mode != POP if known is not None else len(missing) < len(ids):
            remark = f"the group [{ask.group}] pulls the topic [{ask.topic}]; setConsumeMode (401) switches to POP"
            raise self._refuse("mode", ResponseCode.ILLEGAL_OPERATION, remark)
        store = self._tools.store
        changes = [] if known is not None else [modes.change(ask.group, ask.topic, RequestMode(POP))]
        if ask.from_end:
            ends = [(index, store.reading.bounds(ids[index])[1]) for index in missing]
            changes += [offset_change(ask.group, ask.topic, index, end) for index, end in ends]
        if changes:
            store.append_state(changes)
        self._topics.ensure(retry, 1)  # last: as long as it is missing, the next pop does all of this
