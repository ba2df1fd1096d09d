"""PULL_MESSAGE (11) and LITE_PULL_MESSAGE (361): messages for RocketMQ clients, with a long poll that ends on time.

Outcome: FOUND 0 | everything filtered out 20 | at the end 19, after the client's wait | offset outside the queue, or at
damaged messages, 21 with the corrected one. Nobody is sent back before it is proven that no other master has shown more
(`read_barrier`); without proof that is a 19. A tag filter compares the tag itself, not its hash; an SQL92 filter is
evaluated over the properties. Light queues are pulled by their name as topic, queue 0. The native core makes RocketMQ's
layout of all records of an answer at once; a batch becomes its messages, of which an answer may have only the first or
the last few.

`suggestWhichBrokerId` names the broker to pull from next: the master, or the replica that the group's `brokerId` names
while the master has it in its group and it may be read.

Look-up of messages: 12 by key, 33 by position; 321 entries of a queue's index.

A look-up by key uses the store's key index: topic and one of the message's keys or, with the extra field
`_UNIQUE_KEY_QUERY`, the unique key; between two store times, the newest first, at most the requested number,
`QUERIED_MAX` (RocketMQ's limit too) and `limits.pull_bytes_max`. Invariant: every message in an answer is confirmed,
not staged, and still in a queue that exists.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from broker.groups.feature import TAG, Selection, TagSelection, selection
from broker.groups.groups import subscription_version
from broker.reading.bounds import ANY_QUEUE
from broker.reading.pull_outcome import FOUND, PullOutcome, pull_outcome
from broker.requests import flag, number, text
from broker.rocketmq.stored_message import ipv4_host, message_at, origin_of
from broker.store.errors import UnreadableOffsets
from broker.store.keys.key_store import KeyQuestion
from broker.topics.topics import is_light
from remoting.access.rights import CONSUME, of_group, of_record, of_topic
from remoting.batches.unpack import ArrowMissing, is_batch
from remoting.native import core as native
from remoting.protocol.errors import CorruptRecord, NotOffered, Refused
from remoting.protocol.frames.codes import RequestCode as Code
from remoting.protocol.frames.codes import ResponseCode
from remoting.protocol.frames.commands import Command
from remoting.protocol.records.record import MESSAGE, RecordView, header_of
from remoting.protocol.records.rocketmq_form import stored_message
from remoting.transport.contracts import Handler, Peer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from broker.groups.groups import Clients, GroupConfig
    from broker.groups.traffic import GroupTraffic
    from broker.reading.bounds import LongPolls
    from broker.reading.pull import ShownQueues
    from broker.reading.read_barrier import Proved
    from broker.requests import RequestTools
    from broker.store.index.reader import ReadResult
    from broker.topics.topics import ClientQueues, Topics
    from remoting.batches.unpack import Unpacker


UNIQUE_FIELD = "_UNIQUE_KEY_QUERY"
MESSAGES_DEFAULT = 32
QUERIED_MAX = 64
"""Most messages in one answer to 12."""
ENTRIES_MAX = 1_024
"""Entries of one answer to 321."""
FOREVER_MS = 2**62
_SIGN = 1 << 31


class QueueOwners(Protocol):
    """Whose queues are whose, by their ids in the store."""

    def owner(self, queue_id: int, /) -> tuple[str, int] | None:
        """(topic, index) a queue id belongs to; None for light queues."""
        ...


@dataclass(frozen=True, slots=True)
class MessageViews:
    """Shows messages by their position in the log."""

    tools: RequestTools
    topics: QueueOwners
    unpacker: Unpacker
    visible: ShownQueues

    def handlers(self) -> dict[int, Handler]:
        """Request code -> handler."""
        return {Code.VIEW_MESSAGE_BY_ID: self.view_message}

    def view_message(self, peer: Peer, command: Command) -> Command:
        """33: one message by its position in the log, as its id names it."""
        position = number(command.fields, "offset")
        shown = self.shown_at(peer, command, position)
        if shown is None:
            absent = Refused(ResponseCode.SYSTEM_ERROR, f"can not find message by the offset, {position}")
            topic = command.fields.get("topic")
            raise self.tools.authorizer.unseen(peer, command, of_topic(topic) if topic else "", absent)
        self.tools.metrics.viewed.value += 1
        return command.reply(body=shown[1])

    def shown_at(self, peer: Peer, command: Command, position: int) -> tuple[RecordView, bytes] | None:
        """The message at a position, and in RocketMQ's layout; None where the peer may see none.

        Whether there is none, or one that is hidden or not the peer's to read, is the same answer: others would show
        which positions hold messages. Raises Refused when its batch cannot be unpacked.
        """
        view = message_at(self.tools.store, self.unpacker, position)
        body = self.shown(view) if view is not None else None
        if view is None or body is None or not self.tools.authorizer.allows(peer, command, CONSUME, of_record(view)):
            return None
        return view, body

    def shown(self, view: RecordView) -> bytes | None:
        """The message in RocketMQ's layout, from its first queue; None for one that is hidden or has expired."""
        dispatch = view.dispatch()
        if not dispatch:
            return None
        queue_id, offset = dispatch[0]
        if self.visible.hidden(queue_id) or offset < self.tools.store.reading.bounds(queue_id)[0]:
            return None
        owner = self.topics.owner(queue_id)
        return stored_message(
            view,
            owner[1] if owner is not None else 0,
            offset,
            ipv4_host(self.tools.identity.host, self.tools.identity.port),
            origin_of(self.tools.config.cluster_name),
        )


@dataclass(frozen=True, slots=True)
class QueryRequests:
    """Answers look-ups of messages by key, and of a queue's entries."""

    tools: RequestTools
    topics: Topics
    queues: ClientQueues
    views: MessageViews

    def handlers(self) -> dict[int, Handler]:
        """Request code -> handler."""
        return {Code.QUERY_MESSAGE: self.query_message, Code.QUERY_CONSUME_QUEUE: self.query_consume_queue}

    def query_message(self, peer: Peer, command: Command) -> Command:
        """12: the newest messages of a topic with a key."""
        fields = command.fields
        topic, key = text(fields, "topic"), text(fields, "key")
        self.tools.authorizer.authorize(peer, command, CONSUME, of_topic(topic))
        self.queues.require_readable(topic)
        keys = self.tools.store.keys
        if keys is None:
            raise Refused(ResponseCode.SYSTEM_ERROR, "this broker keeps no index of keys: store.key_index is off")
        found = keys.find(
            KeyQuestion(
                topic.encode(),
                key.encode(),
                begin_ms=number(fields, "beginTimestamp", 0),
                end_ms=min(number(fields, "endTimestamp", FOREVER_MS), FOREVER_MS),
                count_max=max(1, min(number(fields, "maxNum", MESSAGES_DEFAULT), QUERIED_MAX)),
                bytes_max=self.tools.config.limits.pull_bytes_max,
                unique_only=flag(fields, UNIQUE_FIELD),
                begins_in=lambda queue_id: self.topics.owner(queue_id) is not None,
            )
        )
        views = [view for view in map(RecordView, found.records) if view.type == MESSAGE & 0xFF]
        shown = [body for view in views if (body := self.views.shown(view)) is not None]
        self.tools.metrics.viewed.value += len(shown)
        remarks = []
        if found.unreadable:
            remarks.append(f"{found.unreadable} records that may have the key fail their checks")
        if not found.complete:
            remarks.append(f"ended after {found.examined} records that may have had the key")
        if not shown:
            remarks.insert(0, "can not find message, maybe time range not correct")
        return command.reply(
            ResponseCode.SUCCESS if shown else ResponseCode.QUERY_NOT_FOUND,
            "; ".join(remarks) or None,
            {
                # Keys are indexed with the append itself: every confirmed message can be found.
                "indexLastUpdateTimestamp": str(self.tools.clock.now_ms()),
                "indexLastUpdatePhyoffset": str(self.tools.store.confirm_position),
            },
            b"".join(shown),
        )

    def query_consume_queue(self, peer: Peer, command: Command) -> Command:
        """321: position, size and tag hash of a queue's entries."""
        fields = command.fields
        topic, first = text(fields, "topic"), number(fields, "index", 0)
        self.tools.authorizer.authorize(peer, command, CONSUME, of_topic(topic))
        if not is_light(topic):
            self.topics.require(topic)
        queue_id = self.queues.find(topic, number(fields, "queueId"))
        low, high = self.tools.store.reading.bounds(queue_id) if queue_id is not None else (0, 0)
        count = max(0, min(number(fields, "count", 10), ENTRIES_MAX))
        records: list[memoryview] = []
        if queue_id is not None and first < high:
            records = self.tools.store.reading.read(
                queue_id, max(first, low), count, self.tools.config.limits.pull_bytes_max
            ).records
        body: dict[str, Any] = {
            "queueData": [_entry(RecordView(record)) for record in records],
            "minQueueIndex": low,
            "maxQueueIndex": high,
        }
        return command.reply(body=msgspec.json.encode(body))


def _entry(view: RecordView) -> dict[str, Any]:
    tag = (header_of(view).tag_hash ^ _SIGN) - _SIGN  # the hash is a signed number there
    return {"physicOffset": view.position, "physicSize": view.total, "tagsCode": tag}


COMMIT_OFFSET = 1
SUSPEND = 2
SUBSCRIPTION = 4
CLASS_FILTER = 8
MESSAGES_MAX = 1_024
"""Most messages in one answer."""
BYTES_DEFAULT = 262_144
"""Bytes of one answer when the client sets no limit (RocketMQ's own default)."""


@dataclass(slots=True)
class _Pull:
    """One pull request."""

    group: str
    topic: str
    index: int
    offset: int
    count_max: int
    bytes_max: int
    wanted: Selection | None
    """None for all."""
    wait_ms: int
    broker_id: int = 0
    """The broker that the client is told to pull from next."""
    is_proven: bool | None = None
    """Whether it is proven that no other master has shown more; None: nobody has asked."""
    needs_proof: bool = False
    """Whether the answer, with proof, would send the client back."""


class PullingGroups(Protocol):
    """What a pull needs of the consumer groups."""

    clients: Clients
    traffic: GroupTraffic

    def configuration(self, group: str, /) -> GroupConfig:
        """The configuration of a group. Refused: its name is not valid, or there is no room for it."""
        ...

    def require_pull(self, group: str, topic: str, /) -> None:
        """Refused(ILLEGAL_OPERATION) when the group pops this topic or light queue."""
        ...

    def commit(self, peer: Peer, group: str, topic: str, index: int, offset: int, /) -> None:
        """Commit the offset in a pull, which is not answered."""
        ...


class ReadableQueues(Protocol):
    """Queues as RocketMQ's clients name them."""

    def find(self, topic: str, index: int, /) -> int | None:
        """Store queue id; None for one without a message so far. Refused, for some who know that there is none."""
        ...

    def require_readable(self, topic: str, /) -> None:
        """Refused(NO_PERMISSION) when a parent topic may not be read."""
        ...


class ReplyTopics(Protocol):
    """The topics that consumers answer requests of MQTT clients through."""

    def expect_mqtt_requests(self) -> None:
        """Create them: a consumer is about to be given such a request."""

    def when_found(self, then: Callable[[], None], /) -> None:
        """Call `then` once the controllers within reach have their routes."""


@dataclass(slots=True)
class _Answering:
    """One pull until its answer: now, with proof, when the queue grows, or at its deadline."""

    requests: RocketmqPullRequests
    peer: Peer
    command: Command
    request: _Pull
    waits_for: int

    def begin(self) -> None:
        """Answer now, or wait."""
        if not self.attempt(self.request.wait_ms <= 0):
            self._wait()

    def attempt(self, last: bool) -> bool:
        """Answer if there is something to say, in any case at the `last` attempt; whether that was done."""
        request, requests = self.request, self.requests
        reply = requests.answer_now(self.command, request)
        if request.needs_proof and request.is_proven is None:
            requests.prove(partial(self._proved, reply))
            return True
        if reply.code == ResponseCode.PULL_NOT_FOUND and not last:
            return False
        requests.replies.when_found(partial(self.peer.send, reply))
        return True

    def _proved(self, without: Command, is_proven: bool) -> None:
        """Go on with proof; without it the log may be closed by now, and the client stays where it is."""
        self.request.is_proven = is_proven
        if is_proven:
            self.begin()
        elif self.request.wait_ms > 0:
            self._wait()
        else:
            self.peer.send(without)

    def _wait(self) -> None:
        self.requests.long_polls.wait(self.peer, [self.waits_for], self.request.wait_ms, self.attempt)


@dataclass(frozen=True, slots=True)
class RocketmqPullRequests:
    """Messages for RocketMQ's consumers."""

    tools: RequestTools
    queues: ReadableQueues
    groups: PullingGroups
    long_polls: LongPolls
    unpacker: Unpacker
    replies: ReplyTopics
    prove: Callable[[Proved], None]
    """Tells whether no other master has shown more until now: `ReadBarrier.wait`."""

    def handlers(self) -> dict[int, Handler]:
        """Request code -> handler."""
        return {Code.PULL_MESSAGE: self.pull_message, Code.LITE_PULL_MESSAGE: self.pull_message}

    def pull_message(self, peer: Peer, command: Command) -> None:
        """Answer a pull now, when the queue grows, or at its deadline."""
        self._authorize(peer, command)
        request = self._parse(command)
        self.queues.require_readable(request.topic)
        queue_id = self.queues.find(request.topic, request.index)
        if not is_light(request.topic):
            config = self.groups.configuration(request.group)
            self._check_group(config)
            request.broker_id = config.broker_id if self.tools.identity.is_replica_read(config.broker_id) else 0
        self.groups.require_pull(request.group, request.topic)
        self._commit(peer, command, request)
        _Answering(self, peer, command, request, ANY_QUEUE if queue_id is None else queue_id).begin()

    def answer_now(self, command: Command, request: _Pull) -> Command:
        """The answer as things are now, a refusal perhaps."""
        try:
            return self._attempt(command, request)
        except Refused as refused:
            return command.reply(refused.code, refused.remark, refused.fields)

    def _authorize(self, peer: Peer, command: Command) -> None:
        """Reading requires the right to the topic, committing an offset with it also that to the group."""
        topic, authorizer = text(command.fields, "topic"), self.tools.authorizer
        if authorizer.trusts(peer, command):
            return
        authorizer.authorize(peer, command, CONSUME, of_topic(topic))
        if _commits(command):
            authorizer.authorize(peer, command, CONSUME, of_group(text(command.fields, "consumerGroup")))

    def _check_group(self, config: GroupConfig) -> None:
        """Raise Refused for a group that may not consume, or whose members may not read as they are set to."""
        group = config.group_name
        if not config.consume_enable:
            raise Refused(ResponseCode.NO_PERMISSION, f"subscription group no permission, {group}")
        if not config.consume_broadcast_enable and self.groups.clients.broadcasts(group):
            raise Refused(ResponseCode.NO_PERMISSION, f"the consumer group[{group}] forbids broadcasting")

    def _parse(self, command: Command) -> _Pull:
        fields = command.fields
        system_flag = number(fields, "sysFlag", 0)
        if system_flag & CLASS_FILTER:
            remark = "class filters are not offered: use tags or SQL92"
            raise NotOffered(ResponseCode.SUBSCRIPTION_PARSE_FAILED, remark)
        topic, group = text(fields, "topic"), text(fields, "consumerGroup")
        limit = self.tools.config.limits.pull_bytes_max
        return _Pull(
            group=group,
            topic=topic,
            index=number(fields, "queueId"),
            offset=number(fields, "queueOffset"),
            count_max=max(1, min(number(fields, "maxMsgNums", 32), MESSAGES_MAX)),
            bytes_max=max(1, min(number(fields, "maxMsgBytes", BYTES_DEFAULT), limit)),
            wanted=self._wanted(command, system_flag, group, topic),
            wait_ms=number(fields, "suspendTimeoutMillis", 0) if system_flag & SUSPEND else 0,
        )

    def _wanted(self, command: Command, system_flag: int, group: str, topic: str) -> Selection | None:
        """The filter in the request or, without one, in the group's heartbeats."""
        if system_flag & SUBSCRIPTION or command.code == Code.LITE_PULL_MESSAGE:
            expression = command.fields.get("subscription", "*")
            kind = command.fields.get("expressionType") or TAG
        else:
            known = self.groups.clients.subscription(group, topic)
            if known is None:
                raise Refused(ResponseCode.SUBSCRIPTION_NOT_EXIST, f"the consumer's group info not exist: {group}")
            if subscription_version(known) < number(command.fields, "subVersion", 0):
                # Judged by the older one, messages that only the newer one asks for would be passed over.
                raise Refused(ResponseCode.SUBSCRIPTION_NOT_LATEST, "the consumer's subscription not latest")
            expression, kind = known.get("subString") or "*", known.get("expressionType") or TAG
        return selection(expression, kind)

    def _commit(self, peer: Peer, command: Command, request: _Pull) -> None:
        if _commits(command):
            offset = number(command.fields, "commitOffset", -1)
            self.groups.commit(peer, request.group, request.topic, request.index, offset)

    def _attempt(self, command: Command, request: _Pull) -> Command:
        queue_id = self.queues.find(request.topic, request.index)
        if queue_id is None:
            outcome = self._outcome(None, request)
            return _reply(command, request, outcome.code, outcome.remark, outcome.next_offset, 0, 0)
        try:
            found = self.tools.store.reading.read(queue_id, request.offset, request.count_max, request.bytes_max)
        except UnreadableOffsets as error:
            self.tools.log.error("messages_unreadable", topic=request.topic, queue=request.index, error=str(error))
            (low, high), outcome = self.tools.store.reading.bounds(queue_id), self._outcome(error, request)
            return _reply(command, request, outcome.code, outcome.remark, outcome.next_offset, low, high)
        low, high, outcome = found.min_offset, found.max_offset, self._outcome(found, request)
        if outcome.code != ResponseCode.SUCCESS:
            return _reply(command, request, outcome.code, outcome.remark, outcome.next_offset, low, high)
        body, count, next_offset = self._convert(request, queue_id, found)
        self.tools.metrics.messages_out.value += count
        if not count:
            remark = "NO_MATCHED_MESSAGE"
            return _reply(command, request, ResponseCode.PULL_RETRY_IMMEDIATELY, remark, next_offset, low, high)
        reply = _reply(command, request, ResponseCode.SUCCESS, FOUND, next_offset, low, high)
        reply.body = body
        if not is_light(request.topic):
            self.groups.traffic.gave(request.group, request.topic, self.tools.clock.now_ms(), count, len(body))
        return reply

    def _outcome(self, found: ReadResult | UnreadableOffsets | None, request: _Pull) -> PullOutcome:
        is_sure, is_proven = self.tools.is_sure, bool(request.is_proven)
        outcome = pull_outcome(found, request.offset, is_sure=is_sure, is_proven=is_proven)
        request.needs_proof = outcome.needs_proof
        return outcome

    def _convert(self, request: _Pull, queue_id: int, found: ReadResult) -> tuple[bytes, int, int]:
        """The messages that match, in RocketMQ's layout, their number, and the offset behind the last one examined."""
        records, wanted, tags = found.records, request.wanted, None
        offsets: Iterable[int] = range(found.first_offset, found.first_offset + len(records))
        if isinstance(wanted, TagSelection):
            tags = wanted.tags
        elif wanted is not None:
            views = list(map(RecordView, records))
            if any(map(is_batch, views)):
                return self._convert_batches(request, queue_id, found)
            chosen = [(offset, view) for offset, view in zip(offsets, views, strict=True) if wanted(view)]
            offsets, records = [offset for offset, _view in chosen], [view.raw for _offset, view in chosen]
        identity = self.tools.identity
        host, origin = ipv4_host(identity.host, identity.port), origin_of(self.tools.config.cluster_name)
        made = native.core.stored(records, offsets, request.index, host, origin, tags)
        if made is None:
            return self._convert_batches(request, queue_id, found)
        body, count, asks = made
        if asks:
            self.replies.expect_mqtt_requests()
        return body, count, found.next_offset

    def _convert_batches(self, request: _Pull, queue_id: int, found: ReadResult) -> tuple[bytes, int, int]:
        """The same with a batch among the records; the limits apply to its messages, at least one is examined."""
        store_host, room = ipv4_host(self.tools.identity.host, self.tools.identity.port), request.bytes_max
        views = list(map(RecordView, found.records))
        begin, end = found.first_offset, min(found.next_offset, found.first_offset + request.count_max)
        messages: list[bytes] = []
        at = begin
        try:
            for offset, view in self.unpacker.messages(views, queue_id, begin, end):
                if request.wanted is None or request.wanted(view):
                    message = stored_message(
                        view, request.index, offset, store_host, origin_of(self.tools.config.cluster_name)
                    )
                    room -= len(message)
                    if room < 0 and at > begin:
                        break
                    messages.append(message)
                at = offset + 1
        except (CorruptRecord, ArrowMissing) as error:
            if at == begin:
                # Messages before it were answered; now the consumer must decide: wait for a repair, or skip it.
                remark = (
                    f"the batch at offset {at} of queue {request.topic}/{request.index} cannot be unpacked: {error}"
                )
                raise Refused(ResponseCode.SYSTEM_ERROR, remark) from error
        return b"".join(messages), len(messages), at


def _commits(command: Command) -> bool:
    asked = number(command.fields, "sysFlag", 0) & COMMIT_OFFSET
    return bool(asked) and number(command.fields, "commitOffset", -1) >= 0


def _reply(command: Command, request: _Pull, code: int, remark: str, next_offset: int, low: int, high: int) -> Command:
    return command.reply(
        code,
        remark,
        {
            "suggestWhichBrokerId": str(request.broker_id),
            "nextBeginOffset": str(next_offset),
            "minOffset": str(low),
            "maxOffset": str(high),
            "topicSysFlag": "0",
            "groupSysFlag": "0",
        },
    )
