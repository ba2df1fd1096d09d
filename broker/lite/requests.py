"""Requests of clients that read lite topics: subscriptions, pops and what becomes of the messages.

    200070 pop, 200071 change subscriptions, 200072 acknowledge (200051 and 200053 with the field `liteTopic` are the
    same for lite topics: acknowledge, change the time), 200073 (to the client) a newer client has the lite topic now

A pop takes the lite topics of the client's feed in turn, from each the next messages in order, and answers when the
record with the offsets and check-points of all of them is confirmed. A lite topic that was given leaves the feed until
its messages are acknowledged or their time is over. A pop with the attempt id of the client's last one, whose answer
was lost, gets the same messages again. Subscriptions are in memory: clients send all of theirs every 30 s.

`LiteEvents` fills the feeds: when queues grow, when a lite topic is free again, when a client subscribes. Invariants:
an answer shows only what is confirmed and recorded as given; each step of the work is bounded. Loop thread only.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING

import msgspec

from broker.lite.registry import (
    LiteClient,
    LiteFeed,
    LiteRules,
    group_rules,
    lite_topic_of,
    problem_of,
    queue_name,
    shown_name,
)
from broker.lite.state import INDEX, MESSAGES_MAX, LiteDelivery
from broker.pop.check_points import INVISIBLE_MS_MAX
from broker.pop.gathering import AckGather, Given, PopGather, PopRequest
from broker.pop.handles import parse_handle
from broker.pop.ordered import ATTEMPT_BYTES_MAX
from broker.requests import json_body, number, text
from broker.rocketmq.stored_message import ipv4_host, origin_of
from broker.store.errors import StoreError
from remoting.access.rights import CONSUME, of_group, of_topic
from remoting.access.visibility import LITE_TOPIC
from remoting.protocol.errors import Refused
from remoting.protocol.frames.codes import RequestCode as Code
from remoting.protocol.frames.codes import ResponseCode
from remoting.protocol.frames.commands import FLAG_ONEWAY, Command
from remoting.protocol.records.rocketmq_form import INNER_MULTI_DISPATCH, INNER_MULTI_QUEUE_OFFSET, stored_message
from remoting.transport.contracts import Handler, Peer

if TYPE_CHECKING:
    from broker.groups.feature import ConsumerGroups
    from broker.groups.groups import Groups
    from broker.lite.registry import LiteRegistry
    from broker.lite.state import LiteTopics, Ownership
    from broker.reading.bounds import LongPolls
    from broker.requests import RequestTools
    from runtime.metrics import Counter

ORDERED = "999"
"""`reviveQid` of messages that are given in order."""
EXAMINED_MAX = 4_096
"""Most events that one pop takes from a feed."""
LOOK_STEP = 1_000
"""Lite topics examined at once for a client that has subscribed."""
PARTIAL_ADD, PARTIAL_REMOVE, COMPLETE_ADD, COMPLETE_REMOVE = (
    "PARTIAL_ADD", "PARTIAL_REMOVE", "COMPLETE_ADD", "COMPLETE_REMOVE",
)  # fmt: skip
POLICY, OFFSET, TAIL_N, TIMESTAMP = "POLICY", "OFFSET", "TAIL_N", "TIMESTAMP"
FROM_LAST, FROM_MIN, FROM_MAX = range(3)
"""Values of an offset option of type POLICY: where the group is, the beginning, the end."""

Refuse = Callable[[str, int, str], Refused]
"""(reason for the counter, code, remark) -> the refusal, counted."""


class LiteEvents:
    """Tells the feeds, and the pops that wait for them, which lite topics may have messages."""

    def __init__(
        self,
        tools: RequestTools,
        *,
        registry: LiteRegistry,
        topics: LiteTopics,
        ownership: Ownership,
        groups: Groups,
        long_polls: LongPolls,
    ) -> None:
        self._clock = tools.clock
        self._registry = registry
        self._topics = topics
        self._ownership = ownership
        self._groups = groups
        self._long_polls = long_polls
        self._searches: deque[tuple[LiteClient, Iterator[bytes]]] = deque()

    def rules(self, group: str) -> LiteRules | None:
        """How a group reads lite topics; None for one that does not, or does not exist."""
        config = self._groups.get(group)
        return None if config is None else group_rules(config.attributes)

    def grew(self, queue_ids: Sequence[int]) -> None:
        """Queues have new messages."""
        feeds: list[LiteFeed] = []
        for name, parent in self._topics.grew(queue_ids, self._clock.now_ms()):
            feeds += self._registry.notify(name, parent)
        self.wake(feeds)

    def freed(self, group: str, name: bytes) -> None:
        """Nothing of a lite topic is with a client of the group any more."""
        rules = self.rules(group)
        if rules is not None and self._ownership.ready(group, name, self._clock.now_ms()):
            self.wake(self._registry.notify_group(group, rules, name))

    def search(self, client: LiteClient, wanted: Iterable[bytes]) -> None:
        """Put those of these lite topics that have messages into a client's feed: the first of them now."""
        self._searches.append((client, iter(wanted)))
        if len(self._searches) == 1:
            self._search()

    def wake(self, feeds: Iterable[LiteFeed]) -> None:
        """Let the pops that wait for these feeds try again."""
        woken = list(dict.fromkeys(feeds))
        if woken:
            self._long_polls.advanced(woken)

    def _search(self) -> None:
        client, left = self._searches[0]
        now_ms = self._clock.now_ms()
        examined = list(islice(left, LOOK_STEP))
        found = [name for name in examined if self._ownership.ready(client.group, name, now_ms)]
        client.feed.events.update(dict.fromkeys(found))
        if len(examined) < LOOK_STEP:
            self._searches.popleft()
        if found:
            self.wake([client.feed])
        if self._searches:
            asyncio.get_running_loop().call_soon(self._search)


@dataclass(slots=True)
class LiteAsk:
    """One request for messages."""

    client: LiteClient
    count: int
    invisible_ms: int
    wait_ms: int
    attempt: bytes


class LitePops:
    """Gives messages of lite topics."""

    def __init__(
        self,
        tools: RequestTools,
        *,
        registry: LiteRegistry,
        topics: LiteTopics,
        ownership: Ownership,
        events: LiteEvents,
        groups: ConsumerGroups,
        long_polls: LongPolls,
        again: Counter,
        refuse: Refuse,
    ) -> None:
        """`again` counts messages that were given before."""
        self._tools = tools
        self._registry = registry
        self._topics = topics
        self._ownership = ownership
        self._events = events
        self._groups = groups
        self._gather = PopGather(tools, ownership, ownership.held, long_polls=long_polls)
        self._again = again
        self._refuse = refuse
        self._origin = origin_of(tools.config.cluster_name)

    def handlers(self) -> dict[int, Handler]:
        """Request code -> handler."""
        return {Code.POP_LITE_MESSAGE: self.pop}

    def pop(self, peer: Peer, command: Command) -> None:
        """200070: messages that the group owns for `invisibleTime`; waits up to `pollTime` for the first one."""
        ask = self._parse(peer, command)
        feed = ask.client.feed
        self._gather.ask(
            PopRequest(
                peer, command, lambda: self._pop(command, ask), ask.wait_ms, lambda: (feed,), feed,
                "NO_MESSAGE_IN_QUEUE",
            )
        )  # fmt: skip

    def _parse(self, peer: Peer, command: Command) -> LiteAsk:
        fields = command.fields
        group, topic, client_id = text(fields, "consumerGroup"), text(fields, "topic"), text(fields, "clientId")
        self._tools.authorizer.authorize(peer, command, CONSUME, of_group(group))
        self._tools.authorizer.authorize(peer, command, CONSUME, of_topic(topic))
        count, invisible_ms = number(fields, "maxMsgNum"), number(fields, "invisibleTime")
        if not 0 < count <= MESSAGES_MAX:
            raise self._refuse("count", ResponseCode.INVALID_PARAMETER, f"maxMsgNum {count} is not in 1..32")
        if not 0 < invisible_ms <= INVISIBLE_MS_MAX:
            remark = f"invisibleTime {invisible_ms} is not in 1..{INVISIBLE_MS_MAX}"
            raise self._refuse("time", ResponseCode.INVALID_PARAMETER, remark)
        self._topics.require(topic)
        config = self._groups.groups.get(group)
        if config is None:
            remark = f"subscription group [{group}] not exist"
            raise self._refuse("group", ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, remark)
        if not config.consume_enable:
            raise Refused(ResponseCode.NO_PERMISSION, f"subscription group no permission, {group}")
        rules = group_rules(config.attributes)
        if rules is None or rules.topic != topic:
            remark = f"the group [{group}] is not bound to the topic [{topic}] by its attribute lite.bind.topic"
            raise self._refuse("group", ResponseCode.INVALID_PARAMETER, remark)
        client = self._registry.client(group, client_id, rules, self._tools.clock.now_ms())
        wait_ms = number(fields, "pollTime", 0)
        attempt = (fields.get("attemptId") or "").encode()[:ATTEMPT_BYTES_MAX]
        return LiteAsk(client, count, invisible_ms, wait_ms, attempt)

    def _pop(self, command: Command, ask: LiteAsk) -> Given | None:
        """Hold what changes when the request gets what there is; None for nothing."""
        client, now_ms = ask.client, self._tools.clock.now_ms()
        client.seen_ms = client.popped_ms = now_ms
        found = self._repeated(ask, now_ms) or self._taken(ask, now_ms)
        if not found:
            return None
        given = [each for each in found if each.offsets]
        reply = self._reply(command, given, (now_ms, ask.invisible_ms))
        self._ownership.keep(client.group, found, (now_ms, ask.invisible_ms), ask.attempt)
        if not given:  # what was in flight, or came next, is no longer there
            client.feed.events.update(dict.fromkeys(each.name for each in found))
            return self._pop(command, ask)
        client.attempt = ask.attempt, [each.name for each in given]

        def written(error: StoreError | None) -> None:
            if error is not None:
                client.feed.events.update(dict.fromkeys(each.name for each in found))
                return
            client.consumed_ms = now_ms
            count = sum(len(each.offsets) for each in given)
            self._tools.metrics.messages_out.value += count
            self._again.value += sum(times > 0 for each in given for times in each.times)
            self._groups.traffic.gave(client.group, client.rules.topic, now_ms, count, len(reply.body))

        return reply, written

    def _repeated(self, ask: LiteAsk, now_ms: int) -> list[LiteDelivery]:
        """What the client was given in the attempt that it repeats, as far as that is in flight."""
        attempt, names = ask.client.attempt
        if not attempt or ask.attempt != attempt:
            return []
        group, left = ask.client.group, self._ownership.batch
        found = []
        for name in names:
            queue_id = self._tools.store.queues.find(name)
            batch = None if queue_id is None else left(group, queue_id)
            if batch is not None and batch.is_repeat(attempt):
                found.append(self._ownership.next(group, name, MESSAGES_MAX, 0, now_ms, attempt))
        return [each for each in found if each is not None]

    def _taken(self, ask: LiteAsk, now_ms: int) -> list[LiteDelivery]:
        """The next messages of the lite topics in the client's feed."""
        client, room, bytes_max = ask.client, ask.count, self._tools.config.limits.pull_bytes_max
        found: list[LiteDelivery] = []
        for _ in range(EXAMINED_MAX):
            name = client.feed.take() if room > 0 and bytes_max > 0 else None
            if name is None:
                return found
            if not client.rules.wildcard and name not in client.names:
                continue
            delivery = self._ownership.next(client.group, name, room, bytes_max, now_ms, ask.attempt)
            if delivery is not None:
                found.append(delivery)
                room -= len(delivery.offsets)
                bytes_max -= sum(view.total for view in delivery.views)
        if not found:
            asyncio.get_running_loop().call_soon(self._events.wake, [client.feed])
        return found

    def _reply(self, command: Command, given: Sequence[LiteDelivery], owned: tuple[int, int]) -> Command:
        identity = self._tools.identity
        host = ipv4_host(identity.host, identity.port)
        messages = []
        for each in given:
            origin = (
                *self._origin,
                (LITE_TOPIC, lite_topic_of(each.name).encode()),
                (INNER_MULTI_DISPATCH, shown_name(each.name).encode()),
            )
            for offset, view in zip(each.offsets, each.views, strict=True):
                shown = (*origin, (INNER_MULTI_QUEUE_OFFSET, b"%d" % offset))
                messages.append(stored_message(view, INDEX, offset, host, shown))
        fields = {
            "popTime": str(owned[0]),
            "invisibleTime": str(owned[1]),
            "reviveQid": ORDERED,
            "orderCountInfo": ";".join(str(times) for each in given for times in each.times),
        }
        return command.reply(0, "FOUND", fields, b"".join(messages))


class LiteAcks:
    """Ends ownership of messages of lite topics, or changes its time."""

    def __init__(
        self,
        tools: RequestTools,
        *,
        topics: LiteTopics,
        ownership: Ownership,
        events: LiteEvents,
        acknowledged: Counter,
        refuse: Refuse,
    ) -> None:
        self._tools = tools
        self._topics = topics
        self._ownership = ownership
        self._events = events
        self._gather: AckGather[bytes] = AckGather(tools, ownership, write=self._end, acknowledged=acknowledged)
        self._refuse = refuse

    def handlers(self) -> dict[int, Handler]:
        """Request code -> handler; ACK_MESSAGE and CHANGE_MESSAGE_INVISIBLETIME reach it through POP's."""
        return {Code.ACK_LITE_MESSAGE: self.acknowledge}

    def acknowledge(self, peer: Peer, command: Command) -> None:
        """200072, and 200051 with `liteTopic`: the message is done; answered when that is confirmed."""
        group, name, queue_id, offset = self._owned(peer, command)
        self._gather.take(group, name, queue_id, (offset,))
        self._gather.answer(peer, command, command.reply())

    def change_time(self, peer: Peer, command: Command) -> None:
        """200053 with `liteTopic`: the group owns the message from now on for another time, under a new handle."""
        invisible_ms = number(command.fields, "invisibleTime")
        if not 0 <= invisible_ms <= INVISIBLE_MS_MAX:
            remark = f"invisibleTime {invisible_ms} is not in 0..{INVISIBLE_MS_MAX}"
            raise self._refuse("time", ResponseCode.INVALID_PARAMETER, remark)
        group, _name, queue_id, offset = self._owned(peer, command)
        now_ms = self._tools.clock.now_ms()
        position = self._ownership.prolong(group, queue_id, offset, (now_ms, invisible_ms))
        fields = {"popTime": str(now_ms), "invisibleTime": str(invisible_ms), "reviveQid": ORDERED}
        self._send(position, peer, command, command.reply(fields=fields))

    def _end(self, taken: Mapping[tuple[str, bytes, int], list[int]]) -> int:
        """The messages are done, as one record; returns the position to be confirmed."""
        position = self._ownership.end(taken)
        for group, name, queue_id in taken:
            if self._ownership.batch(group, queue_id) is None:
                self._events.freed(group, name)
        return position

    def _owned(self, peer: Peer, command: Command) -> tuple[str, bytes, int, int]:
        """(group, queue name, queue id, offset) of the message that the request names by its handle.

        Raises:
            Refused: INVALID_PARAMETER for another topic than the group's, or a malformed handle; NO_MESSAGE where the
                group does not own the message under this handle.
        """
        fields = command.fields
        group, topic, lite_topic = text(fields, "consumerGroup"), text(fields, "topic"), text(fields, "liteTopic")
        self._tools.authorizer.authorize(peer, command, CONSUME, of_group(group))
        self._tools.authorizer.authorize(peer, command, CONSUME, of_topic(topic))
        self._topics.require(topic)
        rules = self._events.rules(group)
        if rules is None or rules.topic != topic:
            raise self._refuse("group", ResponseCode.INVALID_PARAMETER, "group type or bind topic not match.")
        try:
            handle, offset = parse_handle(text(fields, "extraInfo")), number(fields, "offset")
        except Refused as refused:
            raise self._refuse("malformed", refused.code, refused.remark) from refused
        name = queue_name(topic, lite_topic)
        queue_id = self._tools.store.queues.find(name)
        owned = None if queue_id is None else self._ownership.find(group, queue_id, offset)
        named = handle.pop_ms, handle.invisible_ms
        if queue_id is None or owned != named or handle.broker != self._tools.config.broker_name:
            remark = (
                f"message {offset} of {topic}/{lite_topic} is not in flight under this handle for the group [{group}]"
            )
            raise self._refuse("not_in_flight", ResponseCode.NO_MESSAGE, remark)
        return group, name, queue_id, offset

    def _send(self, position: int, peer: Peer, command: Command, reply: Command) -> None:
        if not command.is_oneway:
            self._tools.answers.reply_at(position, peer, reply)


class OffsetOption(msgspec.Struct):
    """Where a group is to continue in a lite topic."""

    type: str = POLICY
    value: int = FROM_LAST


class Change(msgspec.Struct, rename="camel"):
    """One change of subscriptions in the body of 200071."""

    action: str
    client_id: str
    group: str
    topic: str
    lite_topic_set: list[str] | None = None
    offset_option: OffsetOption | None = None
    version: int = 0


class Changes(msgspec.Struct, rename="camel"):
    """Body of 200071; other fields are ignored."""

    subscription_set: list[Change]


class LiteSubscriptions:
    """Changes the subscriptions of clients."""

    def __init__(
        self,
        tools: RequestTools,
        *,
        registry: LiteRegistry,
        topics: LiteTopics,
        ownership: Ownership,
        events: LiteEvents,
        groups: ConsumerGroups,
        refuse: Refuse,
    ) -> None:
        self._tools = tools
        self._registry = registry
        self._topics = topics
        self._ownership = ownership
        self._events = events
        self._groups = groups
        self._refuse = refuse

    def handlers(self) -> dict[int, Handler]:
        """Request code -> handler."""
        return {Code.LITE_SUBSCRIPTION_CTL: self.change}

    def change(self, peer: Peer, command: Command) -> None:
        """200071: the changes in order; at a refused one those before it are done."""
        try:
            changes = msgspec.convert(json_body(command), Changes).subscription_set
        except msgspec.ValidationError as error:
            raise Refused(ResponseCode.INVALID_PARAMETER, f"the subscriptions are malformed: {error}") from error
        if not changes:
            raise Refused(ResponseCode.ILLEGAL_OPERATION, "there is no subscription in the body")
        position = 0
        for change in changes:
            self._tools.authorizer.authorize(peer, command, CONSUME, of_group(change.group))
            self._tools.authorizer.authorize(peer, command, CONSUME, of_topic(change.topic))
            position = max(position, self._apply(peer, change))
        self._tools.answers.reply_at(position, peer, command.reply())

    def _apply(self, peer: Peer, change: Change) -> int:
        """Do one change; returns the position to be confirmed."""
        if change.action == COMPLETE_REMOVE:
            found = self._registry.clients.get((change.group, change.client_id))
            if found is not None:
                self._registry.drop(found)
            return 0
        if change.action not in (PARTIAL_ADD, PARTIAL_REMOVE, COMPLETE_ADD):
            raise self._refuse("action", ResponseCode.INVALID_PARAMETER, f"there is no action {change.action!r}")
        client = self._client(peer, change)
        wanted = [self._queue_name(change.topic, each) for each in dict.fromkeys(change.lite_topic_set or ())]
        if change.action == COMPLETE_ADD:
            self._set(client, wanted, change.version)
            return 0
        if client.rules.wildcard:
            remark = f"the group [{change.group}] reads all lite topics: it names none"
            raise self._refuse("wildcard", ResponseCode.ILLEGAL_OPERATION, remark)
        if change.action == PARTIAL_ADD:
            return self._add(client, wanted, change.offset_option)
        removed = self._registry.remove(client, wanted)
        return self._begin_again(client, removed) if client.rules.reset_unsubscribe else 0

    def _client(self, peer: Peer, change: Change) -> LiteClient:
        self._topics.require(change.topic)
        config = self._groups.groups.get(change.group)
        if config is None or not config.consume_enable:
            remark = f"the group [{change.group}] does not exist or may not consume"
            raise self._refuse("group", ResponseCode.ILLEGAL_OPERATION, remark)
        rules = group_rules(config.attributes)
        if rules is None or rules.topic != change.topic:
            remark = f"the group [{change.group}] is not bound to [{change.topic}] by its attribute lite.bind.topic"
            raise self._refuse("group", ResponseCode.INVALID_PARAMETER, remark)
        if not change.client_id:
            raise self._refuse("client", ResponseCode.INVALID_PARAMETER, "the subscription has no clientId")
        client = self._registry.client(change.group, change.client_id, rules, self._tools.clock.now_ms())
        client.peer = peer
        return client

    def _queue_name(self, topic: str, lite_topic: str) -> bytes:
        problem = problem_of(topic, lite_topic)
        if problem is not None:
            raise self._refuse("name", ResponseCode.INVALID_PARAMETER, f"lite topic {lite_topic!r}: {problem}")
        return queue_name(topic, lite_topic)

    def _add(self, client: LiteClient, wanted: Sequence[bytes], option: OffsetOption | None) -> int:
        self._check_quota(client, len(client.names.union(wanted)))
        position = 0
        if client.rules.exclusive:
            taken = [name for name in wanted if self._take_over(client, name)]
            position = self._begin_again(client, taken) if client.rules.reset_exclusive else 0
        for name in wanted if option is not None else ():
            position = max(position, self._move(client.group, name, option or OffsetOption()))
        self._registry.add(client, wanted)
        self._events.search(client, wanted)
        return position

    def _set(self, client: LiteClient, wanted: Sequence[bytes], version: int) -> None:
        """The client's subscriptions are these; what another one has in an exclusive group stays there."""
        if version < client.version:
            return
        if client.rules.wildcard:
            if not client.feed.complete:
                client.feed.complete = True
                self._events.search(client, self._topics.names(client.rules.topic))
            return
        kept = list(wanted)
        if client.rules.exclusive:
            kept = [name for name in wanted if self._registry.owner(client.group, name) in (None, client)]
            for name in set(wanted).difference(kept):
                _notify(client, name)
        self._check_quota(client, len(kept))
        client.version = version
        self._registry.remove(client, client.names.difference(kept))
        self._events.search(client, self._registry.add(client, kept))

    def _take_over(self, client: LiteClient, name: bytes) -> bool:
        """Let no other client of the group have the lite topic; whether one had it."""
        other = self._registry.owner(client.group, name)
        if other is None or other is client:
            return False
        self._registry.remove(other, [name])
        _notify(other, name)
        return True

    def _begin_again(self, client: LiteClient, wanted: Iterable[bytes]) -> int:
        option = OffsetOption(POLICY, FROM_MIN)
        return max((self._move(client.group, name, option) for name in wanted), default=0)

    def _move(self, group: str, name: bytes, option: OffsetOption) -> int:
        """Move the group's offset in a lite topic; returns the position to be confirmed."""
        reading = self._tools.store.reading
        queue_id = self._tools.store.queues.find(name)
        if queue_id is None:
            return 0
        low, high = reading.bounds(queue_id)
        if option.type == POLICY and option.value in (FROM_MIN, FROM_MAX):
            target = low if option.value == FROM_MIN else high
        elif option.type == OFFSET:
            target = option.value
        elif option.type == TAIL_N:
            target = self._ownership.front(group, name, queue_id) - option.value
        elif option.type == TIMESTAMP:
            target = reading.search_time(queue_id, option.value)
        else:
            return 0
        return self._ownership.reset(group, name, queue_id, target)

    def _check_quota(self, client: LiteClient, count: int) -> None:
        quota, limit = client.rules.quota, self._tools.config.limits.lite_subscriptions_max
        remark = None
        if 0 <= quota < count:
            remark = f"{count} lite topics of one client, the group's quota is {quota}"
        elif self._registry.subscriptions - len(client.names) + count > limit:
            remark = f"lite_subscriptions_max {limit} subscriptions to lite topics exist already"
        if remark is not None:
            raise self._refuse("quota", ResponseCode.LITE_SUBSCRIPTION_QUOTA_EXCEEDED, remark)


def _notify(client: LiteClient, name: bytes) -> None:
    """200073: another client has this lite topic now."""
    if client.peer is not None:
        fields = {"clientId": client.client_id, "consumerGroup": client.group, "liteTopic": lite_topic_of(name)}
        client.peer.send(Command(Code.NOTIFY_UNSUBSCRIBE_LITE, flag=FLAG_ONEWAY, fields=fields))
