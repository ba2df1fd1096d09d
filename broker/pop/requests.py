"""Requests of POP consumers: messages for a time, and what becomes of them.

    200050 pop, 200052 peek, 200054 wait for a message, 200055 how many requests wait
    200051 acknowledge, 200151 acknowledge many, 200053 change the time

A pop takes messages from the queues of a topic in turn, each time beginning with the next one, and from the group's
retry topic: first in every fifth pop, else last, so that neither starves the other. The offsets of the group and the
check-points are one record, and the answer follows when it is confirmed. A request finds a message in flight by its
receipt handle; one that names another ownership than the present one is refused with NO_MESSAGE and counted.

Invariant: a message below the group's offset is in flight or done; an answer shows only what is confirmed and recorded
as given. A queue with too many messages of the group in flight gives it no more; others are not affected. Loop thread
only.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import msgspec

from broker.groups.feature import TAG, Selection, selection
from broker.groups.groups import offset_change
from broker.groups.request_modes import POP, PULL, RequestMode
from broker.pop.check_points import INVISIBLE_MS_MAX, KeptCheckPoints, Owned
from broker.pop.handles import BatchAck, offset_info, original_topic, parse_batch, parse_handle, retry_topic
from broker.requests import flag, json_body, number, refusal_of, text
from broker.rocketmq.stored_message import ipv4_host, origin_of, stored_message
from broker.store.errors import StoreError, UnreadableOffsets
from broker.store.index.reader import OFFSET_TOO_SMALL
from broker.topics.topics import is_light
from remoting.access.rights import ADMIN, CONSUME, of_group, of_topic
from remoting.protocol.errors import NotOffered, Refused
from remoting.protocol.frames.codes import RequestCode as Code
from remoting.protocol.frames.codes import ResponseCode
from remoting.protocol.frames.commands import Command
from remoting.protocol.records import names
from remoting.protocol.records.record import RecordView
from remoting.transport.contracts import Handler, Peer

if TYPE_CHECKING:
    from broker.groups.feature import ConsumerGroups
    from broker.reading.bounds import LongPolls
    from broker.requests import RequestTools
    from broker.topics.topics import ClientQueues, Topics
    from runtime.metrics import Counter as MetricCounter

ALL_QUEUES = -1
MESSAGES_MAX = 32
"""Most messages of one pop, RocketMQ's limit too."""
EXAMINED_MAX = 1_024
"""Most messages of one queue that one pop holds against its filter."""
FROM_END = 1
"""Value of `initMode` for a group that begins at the end."""
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


class PopRequests:
    """Gives messages to POP consumers."""

    def __init__(
        self,
        tools: RequestTools,
        *,
        queues: PopQueues,
        groups: ConsumerGroups,
        long_polls: LongPolls,
        check_points: KeptCheckPoints,
        refuse: Refuse,
    ) -> None:
        self._tools = tools
        self._queues = queues
        self._traffic = groups.traffic
        self._long_polls = long_polls
        self._check_points = check_points
        self._refuse = refuse
        self._origin = origin_of(tools.config.cluster_name)

    def handlers(self) -> dict[int, Handler]:
        """Request code -> handler."""
        return {
            Code.POP_MESSAGE: self.pop_message,
            Code.PEEK_MESSAGE: self.peek_message,
            Code.NOTIFICATION: self.notification,
            Code.POLLING_INFO: self.polling_info,
        }

    def pop_message(self, peer: Peer, command: Command) -> None:
        """200050: messages that the group owns for `invisibleTime`; waits up to `pollTime` for the first one."""
        ask = self._parse(peer, command)
        ask.invisible_ms = number(command.fields, "invisibleTime")
        if not 0 < ask.invisible_ms <= INVISIBLE_MS_MAX:
            remark = f"invisibleTime {ask.invisible_ms} is not in 1..{INVISIBLE_MS_MAX}"
            raise self._refuse("time", ResponseCode.INVALID_PARAMETER, remark)
        if flag(command.fields, "order"):
            remark = "POP in order is not offered by this broker: pull the topic with an orderly listener"
            counted = self._refuse("order", ResponseCode.REQUEST_CODE_NOT_SUPPORTED, remark)
            raise NotOffered(counted.code, counted.remark)
        self._queues.admit(ask)
        self._queues.enter(ask)
        self._wait(peer, command, ask, lambda: self._pop(command, ask))

    def peek_message(self, peer: Peer, command: Command) -> None:
        """200052: the next messages without ownership, for a look."""
        ask = self._parse(peer, command)
        ask.wait_ms = 0
        self._queues.admit(ask)
        self._wait(peer, command, ask, lambda: self._peek(command, ask))

    def notification(self, peer: Peer, command: Command) -> None:
        """200054: whether there is a message, as soon as there is one or after `pollTime`."""
        ask = self._parse(peer, command)
        self._queues.admit(ask)

        def attempt(last: bool) -> bool:
            found = any(self._has_next(ask, place) for place in self._queues.of(ask))
            if found or last:
                peer.send(command.reply(fields={"hasMsg": str(found).lower(), "pollingFull": full}))
            return found or last

        full = str(self._long_polls.full).lower()
        if ask.wait_ms <= 0 or not attempt(False):
            self._long_polls.wait(peer, self._watched(ask), ask.wait_ms, attempt)

    def polling_info(self, peer: Peer, command: Command) -> Command:
        """200055: how many pops of the group wait for messages of this queue, -1 for all queues."""
        group, topic = self._named(peer, command)
        about = group, topic, number(command.fields, "queueId", ALL_QUEUES)
        return command.reply(fields={"pollingNum": str(self._long_polls.count(about))})

    def _parse(self, peer: Peer, command: Command) -> PopAsk:
        group, topic = self._named(peer, command)
        fields = command.fields
        count = number(fields, "maxMsgNums", MESSAGES_MAX)
        if not 0 < count <= MESSAGES_MAX:
            raise self._refuse("count", ResponseCode.INVALID_PARAMETER, f"maxMsgNums {count} is not in 1..32")
        expression = fields.get("exp") or "*"
        return PopAsk(
            group=group,
            topic=topic,
            index=number(fields, "queueId", ALL_QUEUES),
            count=count,
            invisible_ms=0,
            wait_ms=number(fields, "pollTime", 0),
            from_end=number(fields, "initMode", 0) == FROM_END,
            wanted=selection(expression, fields.get("expType") or TAG),
        )

    def _named(self, peer: Peer, command: Command) -> tuple[str, str]:
        group, topic = text(command.fields, "consumerGroup"), text(command.fields, "topic")
        self._tools.authorizer.authorize(peer, command, CONSUME, of_group(group))
        self._tools.authorizer.authorize(peer, command, CONSUME, of_topic(topic))
        return group, topic

    def _wait(
        self, peer: Peer, command: Command, ask: PopAsk, answer: Callable[[], tuple[int, Command] | None]
    ) -> None:
        """Send what `answer` returns once its position is confirmed; POLLING_TIMEOUT or _FULL when it found nothing."""
        nothing = ResponseCode.POLLING_FULL if self._long_polls.full else ResponseCode.POLLING_TIMEOUT

        def attempt(last: bool) -> bool:
            try:
                found = answer()
            except StoreError as error:
                refused = refusal_of(self._tools.metrics, error)
                found = 0, command.reply(refused.code, refused.remark, refused.fields)
            except Refused as refused:
                found = 0, command.reply(refused.code, refused.remark, refused.fields)
            if found is not None:
                self._tools.answers.reply_at(found[0], peer, found[1])
            elif last:
                peer.send(command.reply(nothing, "no message"))
            return last or found is not None

        if not attempt(ask.wait_ms <= 0):
            about = ask.group, ask.topic, ask.index
            self._long_polls.wait(peer, self._watched(ask), ask.wait_ms, attempt, about)

    def _watched(self, ask: PopAsk) -> list[int]:
        return [queue_id for _topic, _index, queue_id in self._queues.of(ask)]

    def _has_next(self, ask: PopAsk, place: tuple[str, int, int]) -> bool:
        topic, index, queue_id = place
        return self._queues.front(ask.group, topic, index, queue_id) < self._tools.store.reading.bounds(queue_id)[1]

    def _taken(self, ask: PopAsk) -> list[Taken]:
        """What there is for the request, queue by queue."""
        found, room, bytes_max = [], ask.count, self._tools.config.limits.pull_bytes_max
        for place in self._queues.in_turn(ask):
            if self._has_next(ask, place):
                taken = self._queues.take(ask, place, room, bytes_max)
                room -= len(taken.offsets)
                bytes_max -= sum(view.total for view in taken.views)
                found.append(taken)
                if room <= 0 or bytes_max <= 0:
                    break
        return found

    def _pop(self, command: Command, ask: PopAsk) -> tuple[int, Command] | None:
        now_ms = self._tools.clock.now_ms()
        table, owned = self._check_points.table, (now_ms, ask.invisible_ms)
        taken = self._taken(ask)
        moved = [offset_change(ask.group, each.topic, each.index, each.front) for each in taken if each.moved]
        if not moved:
            return None
        blocks = [block for each in taken for block in table.give(ask.group, each.queue_id, each.offsets, owned)]
        position = self._check_points.write(blocks, moved)
        given = [each for each in taken if each.offsets]
        if not given:
            passed_over = command.reply(ResponseCode.POLLING_TIMEOUT, "no message matches so far: pop again")
            return (position, passed_over) if any(each.rest for each in taken) else None
        reply = self._reply(command, given, owned, sum(each.rest for each in taken))
        count = sum(len(each.offsets) for each in given)
        self._tools.metrics.messages_out.value += count
        self._traffic.gave(ask.group, ask.topic, now_ms, count, len(reply.body))
        return position, reply

    def _peek(self, command: Command, ask: PopAsk) -> tuple[int, Command] | None:
        taken = self._taken(ask)
        given = [each for each in taken if each.offsets]
        if not given:
            return None
        return 0, self._reply(command, given, (self._tools.clock.now_ms(), 0), sum(each.rest for each in taken))

    def _reply(self, command: Command, given: list[Taken], owned: Owned, rest: int) -> Command:
        identity = self._tools.identity
        host = ipv4_host(identity.host, identity.port)
        starts, offsets = offset_info((each.topic, each.index, each.offsets) for each in given)
        fields = {
            "popTime": str(owned[0]),
            "invisibleTime": str(owned[1]),
            "reviveQid": "0",
            "restNum": str(rest),
            "startOffsetInfo": starts,
            "msgOffsetInfo": offsets,
        }
        messages = [
            stored_message(view, each.index, offset, host, self._origin)
            for each in given
            for offset, view in zip(each.offsets, each.views, strict=True)
        ]
        return command.reply(0, "FOUND", fields, b"".join(messages))


class AckRequests:
    """Ends ownership of messages, or changes its time."""

    def __init__(
        self,
        tools: RequestTools,
        *,
        topics: Topics,
        check_points: KeptCheckPoints,
        acknowledged: MetricCounter,
        refuse: Refuse,
    ) -> None:
        self._tools = tools
        self._topics = topics
        self._check_points = check_points
        self._acknowledged = acknowledged
        self._refuse = refuse

    def handlers(self) -> dict[int, Handler]:
        """Request code -> handler."""
        return {
            Code.ACK_MESSAGE: self.acknowledge,
            Code.BATCH_ACK_MESSAGE: self.acknowledge_batch,
            Code.CHANGE_MESSAGE_INVISIBLETIME: self.change_time,
        }

    def acknowledge(self, peer: Peer, command: Command) -> None:
        """200051: the message is done; answered when that is confirmed."""
        group, queue_id, offset = self._owned(peer, command)
        blocks = self._check_points.table.release(group, queue_id, (offset,))
        position = self._check_points.write(blocks)
        self._acknowledged.value += 1
        self._send(position, peer, command, command.reply())

    def change_time(self, peer: Peer, command: Command) -> None:
        """200053: the group owns the message from now on for another time, under a new handle."""
        invisible_ms = number(command.fields, "invisibleTime")
        if not 0 <= invisible_ms <= INVISIBLE_MS_MAX:
            remark = f"invisibleTime {invisible_ms} is not in 0..{INVISIBLE_MS_MAX}"
            raise self._refuse("time", ResponseCode.INVALID_PARAMETER, remark)
        group, queue_id, offset = self._owned(peer, command)
        now_ms = self._tools.clock.now_ms()
        blocks = self._check_points.table.give(group, queue_id, (offset,), (now_ms, invisible_ms))
        position = self._check_points.write(blocks)
        fields = {"popTime": str(now_ms), "invisibleTime": str(invisible_ms), "reviveQid": "0"}
        self._send(position, peer, command, command.reply(fields=fields))

    def acknowledge_batch(self, peer: Peer, command: Command) -> None:
        """200151: many messages are done. What is not in flight under its handle is refused alone, with NO_MESSAGE."""
        acks = parse_batch(json_body(command))
        for ack in acks:
            self._authorize(peer, command, ack.group, ack.topic)
        position, done, wanted = 0, 0, 0
        for ack in acks:
            queue_id = self._queue(ack.topic, ack.queue_index)
            offsets = self._in_flight(ack, queue_id)
            wanted += len(ack.offsets)
            if offsets:
                blocks = self._check_points.table.release(ack.group, queue_id, offsets)
                position = self._check_points.write(blocks)
                self._acknowledged.value += len(offsets)
                done += len(offsets)
        reply = command.reply()
        if done < wanted or not wanted:
            refused = self._refuse("not_in_flight", ResponseCode.NO_MESSAGE, f"{done} of {wanted} were in flight")
            reply = command.reply(refused.code, refused.remark)
        self._send(position, peer, command, reply)

    def _in_flight(self, ack: BatchAck, queue_id: int) -> list[int]:
        find = self._check_points.table.find
        return [offset for offset in ack.offsets if find(ack.group, queue_id, offset) == ack.owned]

    def _owned(self, peer: Peer, command: Command) -> tuple[str, int, int]:
        """(group, queue id, offset) of the message that the request names by its handle.

        Raises:
            Refused: TOPIC_NOT_EXIST, MESSAGE_ILLEGAL for a queue that is not there, INVALID_PARAMETER for a malformed
                handle, NO_MESSAGE where the group does not own the message under this handle.
        """
        fields = command.fields
        group, topic, index = text(fields, "consumerGroup"), text(fields, "topic"), number(fields, "queueId")
        self._authorize(peer, command, group, topic)
        queue_id = self._queue(topic, index)
        try:
            handle, offset = parse_handle(text(fields, "extraInfo")), number(fields, "offset")
        except Refused as refused:
            raise self._refuse("malformed", refused.code, refused.remark) from refused
        low, high = self._tools.store.reading.bounds(queue_id)
        if not low <= offset < high:
            remark = f"offset {offset} of {topic}/{index} is not in {low}..{high - 1}"
            raise self._refuse("out_of_range", ResponseCode.NO_MESSAGE, remark)
        owned = self._check_points.table.find(group, queue_id, offset)
        named = handle.pop_ms, handle.invisible_ms
        if owned != named or (handle.queue_index, handle.broker) != (index, self._tools.config.broker_name):
            remark = f"message {offset} of {topic}/{index} is not in flight under this handle for the group [{group}]"
            raise self._refuse("not_in_flight", ResponseCode.NO_MESSAGE, remark)
        return group, queue_id, offset

    def _authorize(self, peer: Peer, command: Command, group: str, topic: str) -> None:
        self._tools.authorizer.authorize(peer, command, CONSUME, of_group(group))
        self._tools.authorizer.authorize(peer, command, CONSUME, of_topic(original_topic(group, topic)))

    def _queue(self, topic: str, index: int) -> int:
        self._topics.require(topic)
        ids = self._topics.queue_ids(topic)
        if not 0 <= index < len(ids):
            remark = f"queueId[{index}] is illegal, topic:[{topic}] has {len(ids)} queues"
            raise self._refuse("queue", ResponseCode.MESSAGE_ILLEGAL, remark)
        return ids[index]

    def _send(self, position: int, peer: Peer, command: Command, reply: Command) -> None:
        if not command.is_oneway:
            self._tools.answers.reply_at(position, peer, reply)


class ModeBody(msgspec.Struct, rename="camel"):
    """Body of 401; other fields are ignored."""

    topic: str
    consumer_group: str
    mode: str = PULL
    pop_share_queue_num: int = 0


class ModeRequests:
    """Switches groups between PULL and POP (401)."""

    def __init__(
        self, tools: RequestTools, *, topics: Topics, groups: ConsumerGroups, check_points: KeptCheckPoints
    ) -> None:
        self._tools = tools
        self._topics = topics
        self._groups = groups
        self._check_points = check_points

    def handlers(self) -> dict[int, Handler]:
        """Request code -> handler."""
        return {Code.SET_MESSAGE_REQUEST_MODE: self.set_mode}

    def set_mode(self, peer: Peer, command: Command) -> None:
        """401: how a group reads a topic from now on.

        Raises:
            Refused: the mode is none, the topic is unknown or a retry topic, or, for PULL, the group has messages in
                flight or in its retry topic, which would no longer be read.
        """
        try:
            body = msgspec.convert(json_body(command), ModeBody)
        except msgspec.ValidationError as error:
            raise Refused(ResponseCode.INVALID_PARAMETER, f"the mode is malformed: {error}") from error
        group, topic = body.consumer_group, body.topic
        self._tools.authorizer.authorize(peer, command, ADMIN, of_group(group))
        if topic.startswith(names.RETRY_PREFIX):
            raise Refused(ResponseCode.NO_PERMISSION, "retry topic is not allowed to set mode")
        if body.mode not in (PULL, POP):
            raise Refused(ResponseCode.INVALID_PARAMETER, f"the mode {body.mode!r} is neither PULL nor POP")
        self._topics.require(topic)
        self._groups.groups.ensure(group)
        if body.mode == PULL:
            self._check_left(group, topic)
        self._groups.commits.flush()
        mode = RequestMode(body.mode, body.pop_share_queue_num)
        self._tools.answers.reply_at(self._groups.groups.modes.put(group, topic, mode), peer, command.reply())

    def _check_left(self, group: str, topic: str) -> None:
        """Refused while the group has messages of the topic in flight or waiting in the retry topic."""
        retry = retry_topic(group, topic)
        in_flight = self._check_points.table.in_flight
        left = sum(in_flight(group, queue_id) for queue_id in self._topics.queue_ids(topic))
        for index, queue_id in enumerate(self._topics.queue_ids(retry)):
            low, high = self._tools.store.reading.bounds(queue_id)
            found = self._groups.offsets.get(group, retry, index)
            left += in_flight(group, queue_id) + high - max(low, 0 if found is None else found[0])
        if left:
            remark = (
                f"the group [{group}] has {left} messages of [{topic}] in flight or to be tried again: let it finish"
            )
            raise Refused(ResponseCode.SYSTEM_BUSY, remark)
