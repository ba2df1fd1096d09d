"""What becomes of messages whose time with a POP consumer is over while a replica stands in: with the option `escape`
they go to the group's retry topic at another group's master, or are dead letters there.

    check-points of the log, ownerships of the journal -> ends -> those over now -> another group -> journal

Confirmed check-points only, and what the replica gave itself; messages in order wait for this group's master, as does
what no other group takes. The other master counts the attempts with this group's limit. What it has acknowledged is
done in the journal, and the next master passes it over.

Invariant: while a message is on its way, nobody can acknowledge it here: it is either done or given again. A crash
between acknowledgement and journal, or an answer that is lost, gives it twice. Loop thread only.
"""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from broker.acting.abroad import OtherGroups
from broker.acting.given import GivenMessages, PopKey
from broker.acting.journal import ActingJournal
from broker.acting.kinds import GIVEN, POPS
from broker.acting.pops import DONE, ActingPops, is_confirmed, queue_of
from broker.groups.groups import ORIGIN_ID, RETRY_TOPIC, configuration_in
from broker.pop.check_points import CheckPoints, Owned
from broker.pop.handles import original_topic, retry_topic
from broker.store.index.absence import Absence
from broker.store.state import state_kinds
from remoting.protocol.errors import Refused
from remoting.protocol.records.delay import TIMED
from remoting.protocol.records.properties import UNIQUE_KEY
from remoting.protocol.records.record import MQTT_TOPIC_KEY, RecordView
from remoting.protocol.records.rocketmq_form import (
    FIRST_POP_TIME,
    INNER_MULTI_DISPATCH,
    INNER_MULTI_QUEUE_OFFSET,
    NO_HOST,
    REPLY_TO_CLIENT,
    stored_message,
)
from remoting.protocol.records.stored_message import iter_stored

if TYPE_CHECKING:
    from broker.store.log_store import LogStore

GROUP_MAX = 64
"""Messages on their way at the same time."""
SCAN_MAX = 16_384
"""Check-points that are planned at the same time; the others are looked for when these are done."""
RETRY_MS = 1_000
"""When a message is looked at again that was not sent."""
TRANSACTION_BITS = 0xC
NOT_SENT = frozenset(
    (b"TRAN_MSG", b"__LITE_TOPIC", MQTT_TOPIC_KEY, REPLY_TO_CLIENT, INNER_MULTI_DISPATCH, INNER_MULTI_QUEUE_OFFSET)
) | frozenset(TIMED)
"""Properties by which a broker would do more with a message than store it: that was done."""


@dataclass(frozen=True, slots=True)
class _Due:
    """One message whose time is over."""

    key: PopKey
    base: Owned
    """Its ownership in the log."""
    pop_ms: int
    record: bytes
    retry_max: int


class ActingRevival:
    """Looks for what is due among the messages that groups have."""

    def __init__(
        self,
        pops: ActingPops,
        given: GivenMessages,
        journal: ActingJournal,
        others: OtherGroups,
        *,
        now_ms: Callable[[], int],
    ) -> None:
        """`given`: what this replica gave itself. `now_ms`: the wall clock."""
        self._pops, self._given, self._journal, self._others, self._now_ms = pops, given, journal, others, now_ms
        self._read: LogStore | None = None
        self._ends: list[tuple[int, PopKey]] = []

    def start(self) -> None:
        """Take note of ownerships as they change."""
        self._given.moved = self._plan

    async def deliver(self, store: LogStore, acts: Callable[[], bool]) -> bool:
        """Send what is due while this broker stands in; False when some of it is to be tried again."""
        self._follow(store)
        is_done = True
        while acts():
            due = self._take(store, self._now_ms())
            if not due:
                break
            is_done = all(await asyncio.gather(*(self._escape(each) for each in due))) and is_done
        return is_done

    def _follow(self, store: LogStore) -> None:
        """Plan what this log, or what it has had since, and the journal have."""
        if self._read is not store:
            self._read, self._ends = store, []
            for given, (_start, since, length, attempt) in self._journal.of(GIVEN).items():
                if attempt is None:
                    self._plan((given[0], given[1], given[2], given[3]), since + length)
            for (group, topic, index, offset), (_since, _length, pop_ms, invisible_ms) in self._journal.of(
                POPS
            ).items():
                if pop_ms:
                    self._plan((group, topic, index, offset), pop_ms + invisible_ms)
        if len(self._ends) >= SCAN_MAX:
            return
        for due in CheckPoints(store.state.check_points).take_due(self._now_ms(), SCAN_MAX):
            topic, separator, index = store.queues.name(due.queue_id).partition(b"\x00")
            if separator:
                for offset in due.offsets:
                    self._plan((due.group, topic.decode(), int(index), offset), 0)

    def _plan(self, key: PopKey, at_ms: int) -> None:
        heapq.heappush(self._ends, (at_ms, key))

    def _take(self, store: LogStore, now_ms: int) -> list[_Due]:
        found: dict[PopKey, _Due] = {}
        while self._ends and self._ends[0][0] <= now_ms and len(found) < GROUP_MAX:
            _at_ms, key = heapq.heappop(self._ends)
            if key not in found and (due := self._due(store, key, now_ms)) is not None:
                found[key] = due
        return list(found.values())

    def _due(self, store: LogStore, key: PopKey, now_ms: int) -> _Due | None:
        """The message if its time is over; else it is planned anew if it is in flight."""
        group, topic, index, offset = key
        config = store.state.get(state_kinds.GROUP, group.encode())
        try:
            queue_id = queue_of(store, topic, index)
        except Refused:
            return None
        in_flight = CheckPoints(store.state.check_points).find(group, queue_id, offset)
        if config is None or (in_flight is None and not self._is_given(key)):
            return None
        if in_flight is not None and not is_confirmed(store, group, queue_id, offset):
            self._plan(key, now_ms + RETRY_MS)
            return None
        base, now = self._pops.state(store, key, queue_id)
        if base is None or now is None:
            return None
        if sum(now) > now_ms:
            self._plan(key, sum(now))
            return None
        found = store.reading.record(queue_id, offset)
        if found is Absence.NOT_YET:
            self._plan(key, now_ms + RETRY_MS)
            return None
        if isinstance(found, Absence):  # the next master looks again
            self._others.say(f"message {offset} of {topic}/{index} is {found.value}")
            return None
        return _Due(key, base, now[0], bytes(found), configuration_in(config[0]).retry_max_times)

    def _is_given(self, key: PopKey) -> bool:
        """Whether a message was given here, without order."""
        return self._given.owned(key) is not None and not self._given.is_ordered(key[:3])

    async def _escape(self, due: _Due) -> bool:
        """Send one message and note it; whether nothing is left to do for it here."""
        self._pops.leaving.add(due.key)
        try:
            is_kept = not self._is_full(due.key) and await self._send(due) and await self._note(due)
        finally:
            self._pops.leaving.discard(due.key)
        if not is_kept:
            self._plan(due.key, self._now_ms() + RETRY_MS)
        return is_kept

    def _is_full(self, key: PopKey) -> bool:
        if not self._journal.room and self._journal.get(POPS, key) is None:
            self._others.say("the journal is full")
            return True
        return False

    async def _send(self, due: _Due) -> bool:
        group, topic, index, offset = due.key
        (message,) = iter_stored(stored_message(RecordView(due.record), index, offset, NO_HOST))
        position = RecordView(due.record).position
        parent = original_topic(group, topic)
        properties = {key: value for key, value in message.properties if key not in NOT_SENT}
        properties.setdefault(FIRST_POP_TIME, b"%d" % due.pop_ms)
        properties.setdefault(RETRY_TOPIC, parent.encode())
        properties.setdefault(ORIGIN_ID, properties.get(UNIQUE_KEY, b"%d" % position))
        message.topic = parent.encode()
        message.sys_flag &= ~TRANSACTION_BITS
        message.reconsume_times += 1
        return await self._others.send(
            message, properties.items(), position, to=retry_topic(group, parent), more={"l": str(due.retry_max)}
        )

    async def _note(self, due: _Due) -> bool:
        kept: asyncio.Future[bool] = asyncio.get_running_loop().create_future()

        def done(refused: Refused | None) -> None:
            if refused is not None:
                self._given.forget()
            if not kept.done():
                kept.set_result(refused is None)

        self._given.became(due.key, is_done=True)
        try:
            self._journal.add(POPS, due.key, (*due.base, *DONE), done)
        except Refused:
            self._given.forget()
            return False
        return await kept
