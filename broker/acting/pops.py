"""Messages that groups have by POP, while a replica stands in for the master.

    200051 acknowledge, 200151 acknowledge many, 200053 change the time

What the master gave is known from the replica's log. What the replica gave itself (`deliveries`), and what became of
either since, is in the journal, and is answered when it is on the disk. The next master takes it over
(`broker.pop.merging`). A message that is not in flight here under its handle is refused as at the master, and given
again by the next one. Who has a handle was answered, which a master does for what is confirmed alone: so whether
the replica knows of that yet does not matter.

Invariant: a message that is done stays done; of two ownerships the later one counts. Loop thread only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

import msgspec

from broker.acting.given import GivenMessages, PopKey
from broker.acting.journal import ActingJournal
from broker.acting.kinds import POPS
from broker.pop.acknowledgements import LITE_TOPIC
from broker.pop.check_points import INVISIBLE_MS_MAX, CheckPoints, Owned, queue_key
from broker.pop.handles import original_topic, parse_batch, parse_handle
from broker.pop.merging import ownership
from broker.pop.ordered import decode_batch
from broker.requests import json_body, number, text
from broker.store.state import state_kinds
from broker.store.state.check_point_table import BLOCK, KEY_TAIL
from broker.topics.topics import queue_name
from remoting.access.rights import CONSUME, of_group, of_topic
from remoting.protocol.errors import Refused
from remoting.protocol.frames.codes import RequestCode as Code
from remoting.protocol.frames.codes import ResponseCode
from remoting.protocol.frames.commands import Command
from remoting.server.authorizer import Authorizer
from remoting.transport.contracts import Handler, Peer

if TYPE_CHECKING:
    from broker.store.log_store import LogStore

DONE = (0, 0)


def queue_of(store: LogStore, topic: str, index: int) -> int:
    """The id of a queue. Refused, as at the master, where the log has none."""
    if store.state.get(state_kinds.TOPIC, topic.encode()) is None:
        raise Refused(ResponseCode.TOPIC_NOT_EXIST, f"topic[{topic}] is not known to this replica")
    queue_id = store.queues.find(queue_name(topic, index)) if index >= 0 else None
    if queue_id is None:
        raise Refused(ResponseCode.MESSAGE_ILLEGAL, f"queueId[{index}] is illegal, topic:[{topic}]")
    return queue_id


def owner_in(store: LogStore, group: str, queue_id: int, offset: int) -> Owned | None:
    """The ownership of a message in the log, in order or not; None where it is not in flight."""
    if not 0 <= offset < 2**62:
        return None
    batch = store.state.get(state_kinds.ORDERED_BATCH, queue_key(group, queue_id))
    entries = () if batch is None else decode_batch(batch[0]).entries
    found = next((each[1:3] for each in entries if each[0] == offset), None)
    return found or CheckPoints(store.state.check_points).find(group, queue_id, offset)


def is_confirmed(store: LogStore, group: str, queue_id: int, offset: int) -> bool:
    """Whether the log's check point of a message is known to be confirmed."""
    block = store.state.check_points.get(queue_key(group, queue_id) + KEY_TAIL.pack(offset // BLOCK))
    return block is not None and block[1] < store.confirm_position


class ActingPops:
    """What becomes of messages that groups have."""

    def __init__(
        self,
        journal: ActingJournal,
        given: GivenMessages,
        store: Callable[[], LogStore | None],
        authorizer: Authorizer,
        *,
        broker_name: str,
        now_ms: Callable[[], int],
    ) -> None:
        """`given`: what this replica gave itself. `store`: the open log, None between two roles. `broker_name`: the
        group's. `now_ms`: the wall clock."""
        self._given = given
        self._journal, self._store, self._authorizer = journal, store, authorizer
        self._broker_name, self._now_ms = broker_name, now_ms
        self.leaving: set[PopKey] = set()
        """Messages that are on their way to another group: nobody has them any more."""

    def find(self, command: Command) -> Handler | None:
        """What answers a request while this broker stands in; None for what others answer, or nobody."""
        if command.fields.get(LITE_TOPIC):
            return None
        if command.code == Code.ACK_MESSAGE:
            return self.acknowledge
        if command.code == Code.CHANGE_MESSAGE_INVISIBLETIME:
            return self.change_time
        return self.acknowledge_batch if command.code == Code.BATCH_ACK_MESSAGE else None

    def acknowledge(self, peer: Peer, command: Command) -> None:
        """200051: the message is done; answered when that is on the disk."""
        key, base, _now = self._owned(peer, command)
        self._keep([(key, (*base, *DONE))], peer, command, command.reply())

    def change_time(self, peer: Peer, command: Command) -> None:
        """200053: the group owns the message from now on for another time, under a new handle."""
        invisible_ms = number(command.fields, "invisibleTime")
        if not 0 <= invisible_ms <= INVISIBLE_MS_MAX:
            remark = f"invisibleTime {invisible_ms} is not in 0..{INVISIBLE_MS_MAX}"
            raise Refused(ResponseCode.INVALID_PARAMETER, remark)
        key, base, now = self._owned(peer, command)
        pop_ms = max(self._now_ms(), now[0] + 1)
        fields = {"popTime": str(pop_ms), "invisibleTime": str(invisible_ms), "reviveQid": "0"}
        self._keep([(key, (*base, pop_ms, invisible_ms))], peer, command, command.reply(fields=fields))
        self._given.moved(key, pop_ms + invisible_ms)

    def acknowledge_batch(self, peer: Peer, command: Command) -> None:
        """200151: many messages are done. What is not in flight under its handle is refused alone, with NO_MESSAGE."""
        store, acks = self._opened(), parse_batch(json_body(command))
        for ack in acks:
            self._authorize(peer, command, ack.group, ack.topic)
        queue_ids = [queue_of(store, ack.topic, ack.queue_index) for ack in acks]
        done: dict[PopKey, tuple[int, int, int, int]] = {}
        missing: list[tuple[int, int]] = []
        for at, (ack, queue_id) in enumerate(zip(acks, queue_ids, strict=True)):
            for offset in ack.offsets:
                key = ack.group, ack.topic, ack.queue_index, offset
                base, now = self.state(store, key, queue_id)
                if base is None or now != ack.owned or key in done or key in self.leaving:
                    missing.append((at, offset))
                else:
                    done[key] = (*base, *DONE)
        reply = command.reply()
        if missing or not done:
            remark = f"{len(done)} of {len(done) + len(missing)} were in flight"
            reply = command.reply(ResponseCode.NO_MESSAGE, remark, body=msgspec.json.encode(missing))
        self._keep(done.items(), peer, command, reply)

    def state(self, store: LogStore, key: PopKey, queue_id: int) -> tuple[Owned | None, Owned | None]:
        """The ownership under which a message was given, and the one by now; None where it is not in flight."""
        group, _topic, _index, offset = key
        base = owner_in(store, group, queue_id, offset) or self._given.owned(key)
        kept = self._journal.get(POPS, key)
        if kept is None or kept[:2] != base:
            return base, base
        return base, ownership(*kept[2:])

    def _owned(self, peer: Peer, command: Command) -> tuple[PopKey, Owned, Owned]:
        """The message that the request names by its handle, its ownership in the log, and the one by now.

        Raises:
            Refused: as at the master.
        """
        fields, store = command.fields, self._opened()
        group, topic, index = text(fields, "consumerGroup"), text(fields, "topic"), number(fields, "queueId")
        self._authorize(peer, command, group, topic)
        queue_id = queue_of(store, topic, index)
        handle, offset = parse_handle(text(fields, "extraInfo")), number(fields, "offset")
        key = group, topic, index, offset
        base, now = self.state(store, key, queue_id)
        named = handle.pop_ms, handle.invisible_ms
        if (
            base is None
            or now != named
            or key in self.leaving
            or (handle.queue_index, handle.broker) != (index, self._broker_name)
        ):
            remark = f"message {offset} of {topic}/{index} is not in flight under this handle for the group [{group}]"
            raise Refused(ResponseCode.NO_MESSAGE, remark)
        return key, base, named

    def _keep(
        self, entries: Iterable[tuple[PopKey, tuple[int, int, int, int]]], peer: Peer, command: Command, reply: Command
    ) -> None:
        """Write these to the journal, and reply when all of them are on the disk, or why one is not."""
        entries = list(entries)
        for key, value in entries:
            self._given.became(key, is_done=value[2:] == DONE)

        def done(refused: Refused | None) -> None:
            if refused is not None:
                self._given.forget()
            for group, topic in {key[:2] for key, _value in entries}:
                self._given.released(group, original_topic(group, topic))
            if not command.is_oneway:
                peer.send(reply if refused is None else command.reply(refused.code, refused.remark))

        self._journal.add_all([(POPS, *entry) for entry in entries], done)

    def _authorize(self, peer: Peer, command: Command, group: str, topic: str) -> None:
        self._authorizer.authorize(peer, command, CONSUME, of_group(group))
        self._authorizer.authorize(peer, command, CONSUME, of_topic(original_topic(group, topic)))

    def _opened(self) -> LogStore:
        store = self._store()
        if store is None:
            raise Refused(ResponseCode.SERVICE_NOT_AVAILABLE, "the log is not open: try again")
        return store
