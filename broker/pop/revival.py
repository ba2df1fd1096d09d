"""What becomes of messages that were not acknowledged in time: they go to the group's retry topic, or are dead letters.

A message whose time is over is stored again in `%RETRY%group+topic` with its count of reconsumptions raised by one, or
in `%DLQ%group` when it was tried as often as the group allows (`retryMaxTimes`), in one group with the removal of its
check-point: after kill -9, or on another master, both are there or neither is. A message that retention has removed,
or whose group was deleted, is only counted. Messages in order are not moved: the group pops them again from where they
are, and pops that wait for them are woken here.

Invariant: a check-point ends by an acknowledgement or here, once; bounded work in one pass. Loop thread only.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from broker.groups.groups import dead_letter_topic
from broker.pop.handles import original_topic, retry_topic
from broker.store.errors import StoreError, UnreadableOffsets
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
RECHECK_MS = 60_000
"""When a queue in order is looked at again whose messages are visible and were not popped."""
RETRY, DEAD, GONE = "retry", "dead", "gone"
"""Outcomes: to the retry topic; to the dead-letter topic; message or group is not there any more."""
RETRY_TOPIC, ORIGIN_ID = b"RETRY_TOPIC", b"ORIGIN_MESSAGE_ID"


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

    def run(self, now_ms: int) -> bool:
        """Move some of what is due; True when there may be more."""
        self._open(now_ms)
        found = self._in_flight.table.take_due(now_ms, MESSAGES_PER_PASS)
        for at, due in enumerate(found):
            try:
                self._move_all(due)
            except StoreError as error:  # the next ones would fare alike
                self._tools.log.error("pop_not_revived", group=due.group, error=str(error))
                for left in found[at:]:
                    self._in_flight.table.postpone(left, now_ms + RETRY_MS)
                return False
            except (Refused, LocalMisuse) as error:
                self._tools.log.error("pop_not_revived", group=due.group, offset=due.offsets[0], error=str(error))
                self._in_flight.table.postpone(due, now_ms + RETRY_MS)
        return sum(len(due.offsets) for due in found) >= MESSAGES_PER_PASS

    def _open(self, now_ms: int) -> None:
        """Let waiting pops have again what a group had in order, where the last of its times is over."""
        ordered = self._in_flight.ordered
        for group, queue_id in ordered.take_due(now_ms):
            owner, batch = self._topics.owner(queue_id), ordered.batch(group, queue_id)
            ordered.postpone(group, queue_id, now_ms + RECHECK_MS)
            if owner is not None and self._groups.get(group) is not None:
                self._queues.opened(group, owner[0], queue_id, closed=True)
            elif batch is not None:
                self._give_up(group, queue_id, list(batch.times))

    def _give_up(self, group: str, queue_id: int, offsets: list[int]) -> None:
        try:
            self._in_flight.write(self._in_flight.ordered.release(group, queue_id, offsets))
        except StoreError as error:
            self._tools.log.error("pop_not_given_up", group=group, error=str(error))
        else:
            self._outcomes.child(GONE).value += len(offsets)

    def _move_all(self, due: Due) -> None:
        """Move them together; where one cannot be stored, each for itself, up to the one that cannot."""
        try:
            self._move(due, due.offsets)
        except (Refused, LocalMisuse):
            if len(due.offsets) == 1:
                raise
            for offset in due.offsets:
                self._move(due, (offset,))

    def _move(self, due: Due, offsets: tuple[int, ...]) -> None:
        """Store these messages again and end their check-points."""
        images: list[bytes] = []
        queues: list[tuple[int, ...]] = []
        counts = dict.fromkeys((RETRY, DEAD, GONE), 0)
        for offset in offsets:
            outcome, queue_id, image = self._image(due, offset)
            counts[outcome] += 1
            if image:
                images.append(image)
                queues.append((queue_id,))
        placed = Placed(b"".join(images), queues) if queues else None
        closed = self._queues.is_closed(due.group, due.queue_id)
        self._in_flight.write(self._in_flight.table.release(due.group, due.queue_id, offsets), placed)
        owner = self._topics.owner(due.queue_id)
        if owner is not None:
            self._queues.opened(due.group, owner[0], due.queue_id, closed=closed)
        for outcome, count in counts.items():
            self._outcomes.child(outcome).value += count

    def _image(self, due: Due, offset: int) -> tuple[str, int, bytes]:
        """(what becomes of the message, its new queue, its new image); no image where it is not stored again."""
        owner, config = self._topics.owner(due.queue_id), self._groups.get(due.group)
        record = self._record(due.queue_id, offset) if owner is not None and config is not None else None
        if owner is None or config is None or record is None:
            return GONE, 0, b""
        properties = {bytes(key): bytes(value) for key, value in record.properties()}
        count = properties.get(RECONSUME_KEY, b"0")
        times = (int(count) if count.isdigit() else 0) + 1
        topic = original_topic(due.group, owner[0])
        dead = times > config.retry_max_times
        target = dead_letter_topic(due.group) if dead else retry_topic(due.group, topic)
        self._topics.ensure(target, 1 if dead else self._queues.retry_queues(topic))
        ids = self._topics.queue_ids(target)
        index = 0 if dead else min(owner[1], len(ids) - 1)
        properties.pop(INNER_MULTI_DISPATCH, None)  # its light queues have it already
        properties[RECONSUME_KEY] = b"%d" % times
        properties.setdefault(FIRST_POP_TIME, b"%d" % due.pop_ms)
        properties.setdefault(RETRY_TOPIC, topic.encode())
        properties.setdefault(ORIGIN_ID, properties.get(UNIQUE_KEY, b"%d" % record.position))
        image = encode_image(
            flags=record.flags >> FLAG_SYS_SHIFT << FLAG_SYS_SHIFT, born_ms=record.born_ms, topic=target.encode(),
            queue_index=index, keys=bytes(record.keys), tags=bytes(record.tags), properties=list(properties.items()),
            body=bytes(record.body),
        )  # fmt: skip
        return DEAD if dead else RETRY, ids[index], image

    def _record(self, queue_id: int, offset: int) -> RecordView | None:
        try:
            found = self._tools.store.reading.read(queue_id, offset, 1, 1)
        except UnreadableOffsets as error:
            self._tools.log.error("pop_unreadable", queue=queue_id, offset=offset, error=str(error))
            return None
        if not found.records or found.first_offset != offset:
            return None
        return RecordView(found.records[0])
