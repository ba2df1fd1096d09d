"""What becomes of messages that were not acknowledged in time: they go to the group's retry topic, or are dead letters.

A message whose time is over is stored again in `%RETRY%group+topic` with its count of reconsumptions raised by one, or
in `%DLQ%group` when it was tried as often as the group allows (`retryMaxTimes`), in one group with the removal of its
check-point: after kill -9, or on another master, both are there or neither is. A message that retention has removed,
or whose group or topic was deleted, is only counted. Messages in order are not moved: the group pops them again from
where they are, and pops that wait for them are woken here.

    record    -> the retry topic, or dead letters
    gone      -> the check-point ends, counted
    not yet   -> looked at again after `RETRY_MS`: a master that has just opened its log cannot read its tail
    damaged   -> stays in flight, told once; looked at again after `DAMAGED_MS`, until a copy of the log has it whole,
                 or retention takes it

Invariant: a check-point ends by an acknowledgement or here, once, and here for nothing but a copy that is stored with
it or proof that there is nothing to copy. Nothing is decided before all that this broker found at its start is
confirmed. Bounded work in one pass; a message that waits holds up no other. Loop thread only.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from broker.groups.groups import ORIGIN_ID, RETRY_TOPIC, dead_letter_origin, dead_letter_topic
from broker.pop.handles import original_topic, retry_topic
from broker.pop.popping import DAMAGED, DEAD, GONE, RETRY
from broker.store.errors import StoreError
from broker.store.index.absence import Absence
from broker.store.placed import Placed
from remoting.protocol.errors import LocalMisuse, Refused
from remoting.protocol.records.image import encode_image
from remoting.protocol.records.properties import UNIQUE_KEY
from remoting.protocol.records.record import FLAG_SYS_SHIFT, RecordView
from remoting.protocol.records.rocketmq_form import FIRST_POP_TIME, INNER_MULTI_DISPATCH, RECONSUME_KEY

if TYPE_CHECKING:
    from broker.groups.groups import Groups
    from broker.pop.check_points import Due
    from broker.pop.in_flight import MessagesInFlight
    from broker.pop.queues import PopQueues
    from broker.requests import RequestTools
    from broker.topics.topics import Topics
    from runtime.metrics import Counter

MESSAGES_PER_PASS = 1_000
RETRY_MS = 1_000
"""When a message is looked at again that could not be stored."""
DAMAGED_MS = 5_000
"""When one is looked at again whose record is damaged."""
RECHECK_MS = 60_000
"""When a queue in order is looked at again whose messages are visible and were not popped; and messages of a group or a
topic of which damage may have taken the record."""
DAMAGED_TOLD_MAX = 100_000
"""Damaged messages in flight that are remembered as told; beyond that all are told again."""


class Revival:
    """Moves the messages whose time is over."""

    def __init__(
        self,
        tools: RequestTools,
        *,
        topics: Topics,
        groups: Groups,
        queues: PopQueues,
        in_flight: MessagesInFlight,
        outcomes: Counter,
    ) -> None:
        """`outcomes` counts messages, by outcome."""
        self._tools = tools
        self._topics = topics
        self._groups = groups
        self._queues = queues
        self._in_flight = in_flight
        self._outcomes = outcomes
        self._damaged: set[tuple[str, int, int]] = set()
        """(group, queue id, offset) of messages in flight whose damage was told; some of them may be done by now."""

    def run(self, now_ms: int) -> bool:
        """Move some of what is due; True when there may be more."""
        if not self._tools.is_sure:
            return False
        self._open(now_ms)
        found = self._in_flight.table.take_due(now_ms, MESSAGES_PER_PASS)
        for at, due in enumerate(found):
            try:
                wait_ms = self._move_all(due)
            except StoreError as error:  # the next ones would fare alike
                self._tools.log.error("pop_not_revived", group=due.group, error=str(error))
                for left in found[at:]:
                    self._in_flight.table.postpone(left, now_ms + RETRY_MS)
                return False
            except (Refused, LocalMisuse) as error:
                self._tools.log.error("pop_not_revived", group=due.group, offset=due.offsets[0], error=str(error))
                wait_ms = RETRY_MS
            if wait_ms:
                self._in_flight.table.postpone(due, now_ms + wait_ms)
        return sum(len(due.offsets) for due in found) >= MESSAGES_PER_PASS

    def _open(self, now_ms: int) -> None:
        """Let waiting pops have again what a group had in order, where the last of its times is over."""
        ordered = self._in_flight.ordered
        for group, queue_id in ordered.take_due(now_ms):
            owner, batch = self._topics.owner(queue_id), ordered.batch(group, queue_id)
            ordered.postpone(group, queue_id, now_ms + RECHECK_MS)
            if owner is not None and self._groups.get(group) is not None:
                self._queues.opened(group, owner[0], queue_id, closed=True)
            elif batch is not None and self._proves_deletion:
                self._give_up(group, queue_id, list(batch.times))

    @property
    def _proves_deletion(self) -> bool:
        """Whether a topic or group that this broker does not know was deleted: damage may have taken its record."""
        return not self._tools.store.quarantined

    def _give_up(self, group: str, queue_id: int, offsets: list[int]) -> None:
        try:
            self._in_flight.write(self._in_flight.ordered.release(group, queue_id, offsets))
        except StoreError as error:
            self._tools.log.error("pop_not_given_up", group=group, error=str(error))
        else:
            self._outcomes.child(GONE).value += len(offsets)

    def _move_all(self, due: Due) -> int:
        """Move them together; where one cannot be stored, each for itself.

        Returns after what time, in ms, to look again at those that stay; 0 when none does. Refused, LocalMisuse: one of
        them cannot be stored; the others are moved.
        """
        try:
            return self._move(due, due.offsets)
        except (Refused, LocalMisuse):
            if len(due.offsets) == 1:
                raise
        wait_ms, refused = 0, None
        for offset in due.offsets:
            try:
                wait_ms = max(wait_ms, self._move(due, (offset,)))
            except (Refused, LocalMisuse) as error:
                refused = error
        if refused is not None:
            raise refused
        return wait_ms

    def _move(self, due: Due, offsets: tuple[int, ...]) -> int:
        """Store those of these messages that are there again, and end the check-points of all that do not stay.

        Returns as `_move_all`.
        """
        images: list[bytes] = []
        queues: list[tuple[int, ...]] = []
        ended: list[int] = []
        counts = dict.fromkeys((RETRY, DEAD, GONE), 0)
        wait_ms = 0
        if not self._is_decided(due):
            return RECHECK_MS
        for offset in offsets:
            found = self._found(due, offset)
            if isinstance(found, RecordView):
                outcome, queue_id, image = self._image(due, found)
                images.append(image)
                queues.append((queue_id,))
            elif found is Absence.GONE:
                outcome = GONE
            else:
                wait_ms = max(wait_ms, self._stays(due, offset, found))
                continue
            counts[outcome] += 1
            ended.append(offset)
        if ended:
            self._end(due, ended, Placed(b"".join(images), queues) if queues else None)
        for outcome, count in counts.items():
            self._outcomes.child(outcome).value += count
        return wait_ms

    def _end(self, due: Due, ended: list[int], placed: Placed | None) -> None:
        """End these check-points with the copies of their messages."""
        closed = self._queues.is_closed(due.group, due.queue_id)
        self._in_flight.write(self._in_flight.table.release(due.group, due.queue_id, ended), placed)
        if self._damaged:
            self._damaged.difference_update((due.group, due.queue_id, offset) for offset in ended)
        owner = self._topics.owner(due.queue_id)
        if owner is not None:
            self._queues.opened(due.group, owner[0], due.queue_id, closed=closed)

    def _stays(self, due: Due, offset: int, why: Absence) -> int:
        """A message stays in flight; returns when to look at it again."""
        if why is not Absence.DAMAGED:
            return RETRY_MS
        place = due.group, due.queue_id, offset
        if place not in self._damaged:
            if len(self._damaged) >= DAMAGED_TOLD_MAX:
                self._damaged.clear()
            self._damaged.add(place)
            self._outcomes.child(DAMAGED).value += 1
            self._tools.log.error("pop_unreadable", group=due.group, queue=due.queue_id, offset=offset)
        return DAMAGED_MS

    def _is_decided(self, due: Due) -> bool:
        """Whether it is known if the group and the topic are there: damage may have taken their records."""
        return self._proves_deletion or (
            self._topics.owner(due.queue_id) is not None and self._groups.get(due.group) is not None
        )

    def _found(self, due: Due, offset: int) -> RecordView | Absence:
        """The record of a message; gone with its group and its topic."""
        if self._topics.owner(due.queue_id) is None or self._groups.get(due.group) is None:
            return Absence.GONE
        found = self._tools.store.reading.record(due.queue_id, offset)
        return found if isinstance(found, Absence) else RecordView(found)

    def _image(self, due: Due, record: RecordView) -> tuple[str, int, bytes]:
        """(what becomes of the message, its new queue, its new image)."""
        owner, config = self._topics.owner(due.queue_id), self._groups.get(due.group)
        assert owner is not None, due
        assert config is not None, due
        properties = {bytes(key): bytes(value) for key, value in record.properties()}
        count = properties.get(RECONSUME_KEY, b"0")
        times = (int(count) if count.isdigit() else 0) + 1
        topic = original_topic(due.group, owner[0])
        dead = times > config.retry_max_times
        target = dead_letter_topic(due.group) if dead else retry_topic(due.group, topic)
        self._topics.ensure(target, 1 if dead else self._queues.retry_queues(topic), maker="")
        ids = self._topics.queue_ids(target)
        index = 0 if dead else min(owner[1], len(ids) - 1)
        properties.pop(INNER_MULTI_DISPATCH, None)  # its light queues have it already
        properties[RECONSUME_KEY] = b"%d" % times
        properties.setdefault(FIRST_POP_TIME, b"%d" % due.pop_ms)
        properties.setdefault(RETRY_TOPIC, topic.encode())
        properties.setdefault(ORIGIN_ID, properties.get(UNIQUE_KEY, b"%d" % record.position))
        if dead:
            properties.update(dead_letter_origin(properties, topic.encode()))
        image = encode_image(
            flags=record.flags >> FLAG_SYS_SHIFT << FLAG_SYS_SHIFT, born_ms=record.born_ms, topic=target.encode(),
            queue_index=index, keys=bytes(record.keys), tags=bytes(record.tags), properties=list(properties.items()),
            body=bytes(record.body),
        )  # fmt: skip
        return DEAD if dead else RETRY, ids[index], image
