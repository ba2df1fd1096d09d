"""Messages that a replica gives by POP, while it stands in for the master.

    200050 POP_MESSAGE

What the replica's log has and knows to be confirmed is given from the group's offset on, as at the master, and each
message is kept in the journal before the answer: from then on the group owns it, here (`pops`) and at the next master,
which takes it over (`broker.pop.merging`). `ordered` says when a queue is open to a pop in order. A queue waits for a
master where something is in flight at or above the group's offset. An offset that may be lost again is gone on from all
the same, since a consumer's last pop is often not known here to be confirmed: a next master that has an older one takes
over nothing that was given behind the newer one, and gives it again.

Invariant: an answer shows only what is on the disk as given. Loop thread only.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

from broker.acting.given import GivenMessages
from broker.acting.journal import ActingJournal, Entry
from broker.acting.kinds import OFFSETS, POPS
from broker.acting.ordered import ActingOrder, MessageInOrder, QueueInOrder
from broker.acting.pops import ActingPops
from broker.groups.groups import (
    GroupConfig,
    GroupOffsets,
    Groups,
    configuration_in,
    group_offset_key,
    offset_in,
    reads_lite,
)
from broker.groups.request_modes import POP, RequestModes
from broker.pop.chain import Link
from broker.pop.check_points import CheckPoints, Owned, queue_key
from broker.pop.handles import retry_topic
from broker.pop.ordered import OrderedBatch
from broker.pop.popping import (
    ALL_QUEUES,
    EXAMINED_MAX,
    Place,
    PopAsk,
    Taken,
    asked,
    beginning,
    by_turns,
    goes_by_priority,
    invisible_time,
    mark_ordered,
    popped,
    require_poppable,
    require_topic,
)
from broker.reading.bounds import LongPolls
from broker.requests import text
from broker.store.errors import StoreError, UnreadableOffsets
from broker.store.state import state_kinds
from broker.topics.replica import ReplicaTopics
from broker.topics.topics import TopicSettings, require_readable
from remoting.access.rights import CONSUME, of_group, of_topic
from remoting.protocol.errors import Refused
from remoting.protocol.frames.codes import RequestCode as Code
from remoting.protocol.frames.codes import ResponseCode
from remoting.protocol.frames.commands import Command
from remoting.protocol.records.record import RecordView
from remoting.server.authorizer import Authorizer
from remoting.transport.contracts import Handler, Peer

if TYPE_CHECKING:
    from broker.config import BrokerConfig
    from broker.store.log_store import LogStore

NOTHING = "no message"
TURNS_MAX = 10_000
"""Groups and topics of which the turn is known; with more of them all begin anew."""


class ActingDeliveries:
    """Gives messages to groups that pop."""

    def __init__(
        self,
        journal: ActingJournal,
        given: GivenMessages,
        pops: ActingPops,
        store: Callable[[], LogStore | None],
        authorizer: Authorizer,
        config: BrokerConfig,
        *,
        acts: Callable[[], bool],
        now_ms: Callable[[], int],
        log: Any,
    ) -> None:
        """`store`: the open log, None between two roles. `acts`: whether this broker stands in at this moment.

        `now_ms`: the wall clock.
        """
        self._journal, self._given, self._store, self._authorizer = journal, given, store, authorizer
        self._config, self._acts, self._now_ms, self._log = config, acts, now_ms, log
        self.address = ("", 0)
        """Where clients reach this broker; messages name it as the host that they are stored at."""
        limits = config.limits
        self.waits = LongPolls(waiters_max=limits.parked_requests_max, wait_ms_max=limits.long_poll_ms_max)
        """Pops that found nothing yet."""
        given.released = lambda group, topic: self.waits.advanced([(group, topic)])
        self._order = ActingOrder(given, pops)
        self._turns: Counter[tuple[str, str]] = Counter()

    def find(self, command: Command) -> Handler | None:
        """What answers a request while this broker stands in; None for what others answer, or nobody."""
        return self.pop if command.code == Code.POP_MESSAGE else None

    def pop(self, peer: Peer, command: Command) -> None:
        """200050: messages that the group owns for `invisibleTime`; waits up to `pollTime` for the first one.

        Raises:
            Refused: as at the master, and what waits for one.
        """
        group, topic = text(command.fields, "consumerGroup"), text(command.fields, "topic")
        self._authorizer.authorize(peer, command, CONSUME, of_group(group))
        self._authorizer.authorize(peer, command, CONSUME, of_topic(topic))
        ask = asked(group, topic, command.fields, _refuse)
        ask.invisible_ms = invisible_time(command.fields, _refuse)
        self._admit(ask)

        def attempt(last: bool) -> bool:
            try:
                found = self._pop(peer, command, ask)
            except Refused as refused:
                peer.send(command.reply(refused.code, refused.remark))
                return True
            except StoreError as error:
                self._log.error("messages_unreadable", topic=topic, error=str(error))
                peer.send(
                    command.reply(ResponseCode.SYSTEM_ERROR, f"[{topic}] cannot be read at this replica: {error}")
                )
                return True
            if last and not found:
                nothing = ResponseCode.POLLING_FULL if self.waits.full else ResponseCode.POLLING_TIMEOUT
                peer.send(command.reply(nothing, NOTHING))
            return last or found

        if not attempt(False):
            about = (group, topic, ask.index)
            self.waits.wait(peer, [(group, topic)], ask.wait_ms, attempt, about)

    def maintain(self) -> None:
        """Let nobody wait here for what another broker gives by now, or for what may be given again."""
        if not self.waits.waiters:
            return
        if not self._acts():
            self.waits.wake_all()
        elif due := self._order.due(self._now_ms()):
            self.waits.advanced(due)

    def _admit(self, ask: PopAsk) -> tuple[LogStore, TopicSettings, GroupConfig]:
        """Refused for a topic or group that cannot be popped, or not here."""
        store = self._store()
        if store is None or not self._acts():
            raise _later("this broker stands in for the master no more")
        require_topic(ask, _refuse)
        settings = ReplicaTopics(store).require(ask.topic)
        require_readable(settings)
        Groups.check((ask.group,))
        found = store.state.get(state_kinds.GROUP, ask.group.encode())
        config = GroupConfig(group_name=ask.group) if found is None else configuration_in(found[0])
        require_poppable(ask, settings, reads_lite=reads_lite(config, ask.topic), refuse=_refuse)
        self._require_popping(store, ask, settings)
        if not config.consume_enable:
            raise Refused(ResponseCode.NO_PERMISSION, f"subscription group no permission, {ask.group}")
        return store, settings, config

    def _require_popping(self, store: LogStore, ask: PopAsk, settings: TopicSettings) -> None:
        """Refused(ILLEGAL_OPERATION) for a group that pulls: it was switched to that, or committed an offset."""
        mode, offsets = RequestModes(store).get(ask.group, ask.topic), GroupOffsets(store)
        if mode is None:
            kept = self._journal.of(OFFSETS)
            keys = [(ask.group, ask.topic, index) for index in range(settings.queue_count)]
            pulls = any(key in kept or offsets.get(*key) is not None for key in keys)
        else:
            pulls = mode.mode != POP
        if pulls:
            raise Refused(ResponseCode.ILLEGAL_OPERATION, f"the group [{ask.group}] pulls the topic [{ask.topic}]")

    def _pop(self, peer: Peer, command: Command, ask: PopAsk) -> bool:
        """Give what there is, answered when it is on the disk; False for nothing."""
        store, settings, config = self._admit(ask)
        owned = max(self._now_ms(), 1), ask.invisible_ms
        given, entries, rest = self._give(store, ask, self._in_turn(store, ask, settings, config), owned)
        if not given:
            return False
        reply, _asks = popped(
            command, given, owned, rest=rest, address=self.address, cluster_name=self._config.cluster_name
        )
        if ask.ordered:
            mark_ordered(reply, [(each, {} if each.batch is None else each.batch.times) for each in given])

        def done(refused: Refused | None) -> None:
            peer.send(reply if refused is None else command.reply(refused.code, refused.remark))

        self._given.keep(entries, done)
        if not ask.ordered:
            for _kind, (group, topic, index, offset), _value in entries:
                self._given.moved((group, topic, index, offset), sum(owned))
        return True

    def _give(
        self, store: LogStore, ask: PopAsk, places: Iterable[Place], owned: Owned
    ) -> tuple[list[Taken], list[Entry], int]:
        """What there is in these queues, the entries that must be kept of it, and how many messages more there are."""
        room, bytes_max = min(ask.count, self._given.room), self._config.limits.pull_bytes_max
        if not room:
            raise self._journal.full()
        given, entries, rest = list[Taken](), list[Entry](), 0
        for place in places:
            found = self._take(store, ask, place, room, bytes_max, owned)
            if found is None:
                continue
            taken, kept = found
            rest += taken.rest
            if kept:
                given.append(taken)
                entries += kept
                room -= len(kept)
                bytes_max -= sum(map(len, taken.records))
            if room <= 0 or bytes_max <= 0:
                break
        return given, entries, rest

    def _in_turn(self, store: LogStore, ask: PopAsk, settings: TopicSettings, config: GroupConfig) -> list[Place]:
        topics, retry = ReplicaTopics(store), retry_topic(ask.group, ask.topic)
        found, retries = (
            [(name, index, queue_id) for index, queue_id in enumerate(topics.queue_ids(name))]
            for name in (ask.topic, retry)
        )
        if ask.index != ALL_QUEUES:
            found = found[ask.index : ask.index + 1]
        if not found:
            return retries
        if len(self._turns) >= TURNS_MAX:
            self._turns.clear()
        self._turns[ask.group, ask.topic] += 1
        turn = self._turns[ask.group, ask.topic]
        ranked = not ask.ordered and goes_by_priority(settings, config, turn)
        places = by_turns(ask.topic, found, retries, turn, ranked=ranked)
        if not ask.attempt:
            return places
        return sorted(places, key=lambda place: not self._order.is_repeat(store, ask, place))

    def _take(
        self, store: LogStore, ask: PopAsk, place: Place, room: int, bytes_max: int, owned: Owned
    ) -> tuple[Taken, list[Entry]] | None:
        """Give up to `room` messages of one queue, with the entries that must be kept of them; None where the queue is
        closed to the group."""
        topic, index, queue_id = place
        if ask.ordered:
            found = self._order.opened(store, ask, place, owned[0])
            if found is None or found.entries:
                return None if found is None else self._take_again(store, ask, place, found, room, bytes_max, owned)
        elif store.state.get(
            state_kinds.ORDERED_BATCH, queue_key(ask.group, queue_id)
        ) is not None or self._given.is_ordered((ask.group, topic, index)):
            return None
        return self._take_next(store, ask, place, room, bytes_max, owned)

    def _take_next(
        self, store: LogStore, ask: PopAsk, place: Place, room: int, bytes_max: int, owned: Owned
    ) -> tuple[Taken, list[Entry]] | None:
        """Messages that the group had not yet, and that match."""
        topic, index, queue_id = place
        queue = (ask.group, topic, index)
        in_flight = store.state.check_points.in_flight(queue_key(ask.group, queue_id)) + self._given.taken(queue)
        room = min(room, self._config.limits.pop_in_flight_max - (0 if ask.ordered else in_flight))
        if room <= 0:
            return None
        front, at = self._given.next_of(queue, _base(store, ask, place))
        known, wanted = self._given.links(queue), ask.wanted if topic == ask.topic else None
        check_points, high = CheckPoints(store.state.check_points), store.reading.bounds(queue_id)[1]
        taken, links = Taken(topic, index, queue_id, front, 0), list[Link]()
        at_once = room if wanted is None else EXAMINED_MAX
        for offset, record in self._records(store, place, range(at, min(high, at + EXAMINED_MAX)), at_once, bytes_max):
            if len(links) == room or bytes_max <= 0 or check_points.find(ask.group, queue_id, offset) is not None:
                break
            at = offset + 1
            if known.get(offset, at) <= front:  # given before: a line ahead of its own was lost and is given again
                front = at
            elif wanted is None or wanted(RecordView(record)):
                taken.offsets.append(offset)
                taken.records.append(record)
                links.append((offset, front))
                front = at
                bytes_max -= len(record)
        taken.front, taken.rest = front, max(0, high - at)
        attempt = ask.attempt.decode() if ask.ordered else None
        if attempt is not None and taken.offsets:
            taken.batch = OrderedBatch(ask.attempt, tuple((offset, *owned, 0) for offset in taken.offsets))
        return taken, self._given.give(queue, links, owned, front=front, passed=at, attempt=attempt)

    def _take_again(
        self,
        store: LogStore,
        ask: PopAsk,
        place: Place,
        found: QueueInOrder,
        room: int,
        bytes_max: int,
        owned: Owned,
    ) -> tuple[Taken, list[Entry]]:
        """Messages that the group has in order, from the first one on."""
        topic, index, queue_id = place
        attempt, taken, again = ask.attempt.decode(), Taken(topic, index, queue_id, 0, 0), list[MessageInOrder]()
        for entry in found.entries[:room]:
            offset = entry.key[3]
            record = next(self._records(store, place, range(offset, offset + 1), 1, bytes_max), None)
            if record is None or bytes_max <= 0:
                break
            taken.offsets.append(offset)
            taken.records.append(record[1])
            again.append(entry)
            bytes_max -= len(record[1])
        taken.rest = len(found.entries) - len(again)
        if again:
            taken.batch = OrderedBatch(
                ask.attempt, tuple((entry.key[3], *owned, found.times(entry, attempt)) for entry in again)
            )
            self._given.repeated((ask.group, topic, index), attempt)
        return taken, [(POPS, entry.key, (*entry.base, *owned)) for entry in again]

    def _records(
        self, store: LogStore, place: Place, offsets: range, at_once: int, bytes_max: int
    ) -> Iterator[tuple[int, memoryview]]:
        """Messages of a queue with their offsets, without a gap: what cannot be read here, the next master may have."""
        topic, index, queue_id = place
        at = offsets.start
        while at < offsets.stop:
            try:
                found = store.reading.read(queue_id, at, min(at_once, offsets.stop - at), bytes_max)
            except UnreadableOffsets as error:
                self._log.error("messages_unreadable", topic=topic, queue=index, error=str(error))
                return
            if not found.records or found.first_offset != at:
                return
            for record in found.records:
                yield at, record
                at += 1


def _base(store: LogStore, ask: PopAsk, place: Place) -> int:
    """The group's offset of a queue in the log, or where it begins."""
    topic, index, queue_id = place
    low, high = store.reading.bounds(queue_id)
    found = store.state.get(state_kinds.GROUP_OFFSET, group_offset_key(ask.group, topic, index))
    if found is None:
        is_new = RequestModes(store).get(ask.group, ask.topic) is None
        return beginning(low, high, from_end=is_new and ask.from_end)
    return max(low, offset_in(found[0]))


def _refuse(_reason: str, code: int, remark: str) -> Refused:
    return Refused(code, remark)


def _later(why: str) -> Refused:
    return Refused(ResponseCode.SERVICE_NOT_AVAILABLE, f"{why}: pop again when there is a master")
