"""Requests of POP consumers for messages.

    200050 pop, 200052 peek, 200054 wait for a message, 200055 how many requests wait

The offsets of the groups and the check-points of the pops of a turn are one record (`gathering`), and the answers
follow when it is confirmed.

Invariant: an answer shows only what is confirmed and recorded as given. Loop thread only.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import TYPE_CHECKING

from broker.groups.groups import offset_change
from broker.pop.check_points import Owned
from broker.pop.gathering import Given, PopGather, PopRequest
from broker.pop.in_flight import Change, MessagesInFlight
from broker.pop.popping import (
    ALL_QUEUES,
    DAMAGED,
    GONE,
    PopAsk,
    Refuse,
    Taken,
    asked,
    invisible_time,
    mark_ordered,
    popped,
)
from broker.pop.queues import PopQueues
from broker.requests import number, text
from broker.store.errors import StoreError
from remoting.access.rights import CONSUME, of_group, of_topic
from remoting.protocol.frames.codes import RequestCode as Code
from remoting.protocol.frames.codes import ResponseCode
from remoting.protocol.frames.commands import Command
from remoting.transport.contracts import Handler, Peer

if TYPE_CHECKING:
    from broker.groups.feature import ConsumerGroups
    from broker.reading.bounds import LongPolls
    from broker.requests import RequestTools
    from runtime.metrics import Counter


class PopRequests:
    """Gives messages to POP consumers."""

    def __init__(
        self,
        tools: RequestTools,
        *,
        queues: PopQueues,
        groups: ConsumerGroups,
        long_polls: LongPolls,
        in_flight: MessagesInFlight,
        outcomes: Counter,
        by_priority: Counter,
        refuse: Refuse,
        expect_mqtt_requests: Callable[[], None],
    ) -> None:
        """`outcomes` counts messages in order that are passed over, by outcome; `by_priority` those that were given."""
        self._tools = tools
        self._queues = queues
        self._traffic = groups.traffic
        self._long_polls = long_polls
        self._in_flight = in_flight
        self._gather = PopGather(tools, in_flight, in_flight.held, long_polls=long_polls)
        self._outcomes = outcomes
        self._by_priority = by_priority
        self._refuse = refuse
        self._expect_mqtt_requests = expect_mqtt_requests

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
        ask.invisible_ms = invisible_time(command.fields, self._refuse)
        self._queues.admit(ask)
        self._queues.enter(ask.group, ask.topic, from_end=ask.from_end)
        self._gather.ask(
            PopRequest(
                peer, command, lambda: self._pop(command, ask), ask.wait_ms, lambda: self._watched(ask),
                (ask.group, ask.topic, ask.index, ask.ordered), "no message",
            )
        )  # fmt: skip

    def peek_message(self, peer: Peer, command: Command) -> Command:
        """200052: the next messages without ownership, for a look."""
        ask = self._parse(peer, command)
        self._queues.admit(ask)
        return self._peek(command, ask)

    def notification(self, peer: Peer, command: Command) -> None:
        """200054: whether there is a message, as soon as there is one or after `pollTime`."""
        ask = self._parse(peer, command)
        self._queues.admit(ask)

        def attempt(last: bool) -> bool:
            found = any(self._queues.has_next(ask, place) for place in self._queues.of(ask))
            if found or last:
                peer.send(command.reply(fields={"hasMsg": str(found).lower(), "pollingFull": full}))
            return found or last

        full = str(self._long_polls.full).lower()
        if ask.wait_ms <= 0 or not attempt(False):
            self._long_polls.wait(peer, self._watched(ask), ask.wait_ms, attempt)

    def polling_info(self, peer: Peer, command: Command) -> Command:
        """200055: how many pops of the group wait for messages of this queue, -1 for all queues."""
        group, topic = self._named(peer, command)
        index = number(command.fields, "queueId", ALL_QUEUES)
        waiting = sum(self._long_polls.count((group, topic, index, ordered)) for ordered in (False, True))
        return command.reply(fields={"pollingNum": str(waiting)})

    def _parse(self, peer: Peer, command: Command) -> PopAsk:
        group, topic = self._named(peer, command)
        return asked(group, topic, command.fields, self._refuse)

    def _named(self, peer: Peer, command: Command) -> tuple[str, str]:
        group, topic = text(command.fields, "consumerGroup"), text(command.fields, "topic")
        self._tools.authorizer.authorize(peer, command, CONSUME, of_group(group))
        self._tools.authorizer.authorize(peer, command, CONSUME, of_topic(topic))
        return group, topic

    def _watched(self, ask: PopAsk) -> list[Hashable]:
        queue_ids = [queue_id for _topic, _index, queue_id in self._queues.of(ask)]
        return [*queue_ids, (ask.group, ask.topic, ask.ordered)]

    def _taken(self, ask: PopAsk) -> list[Taken]:
        """What there is for the request, queue by queue."""
        found, room, bytes_max = [], ask.count, self._tools.config.limits.pull_bytes_max
        for place in self._queues.in_turn(ask):
            if self._queues.has_next(ask, place):
                taken = self._queues.take(ask, place, room, bytes_max)
                room -= len(taken.offsets)
                bytes_max -= sum(map(len, taken.records))
                found.append(taken)
                if room <= 0 or bytes_max <= 0:
                    break
        return found

    def _pop(self, command: Command, ask: PopAsk) -> Given | None:
        """Hold what changes when the request gets what there is; None for nothing."""
        now_ms = self._tools.clock.now_ms()
        owned = now_ms, ask.invisible_ms
        taken = self._taken(ask)
        moved = [offset_change(ask.group, each.topic, each.index, each.front) for each in taken if each.moved]
        given_now = [change for each in taken for change in self._given(ask, each, owned)]
        if not moved and not given_now:
            return None
        given = [each for each in taken if each.offsets]
        rest = sum(each.rest for each in taken)
        reply: Command | None = None
        if given:
            reply = self._reply(command, given, owned, rest)
        elif rest:
            reply = command.reply(ResponseCode.POLLING_TIMEOUT, "no message matches so far: pop again")
        self._in_flight.keep([*moved, *given_now])
        if given and reply is not None and ask.ordered:
            mark_ordered(reply, [(each, self._times(ask.group, each)) for each in given])

        def written(error: StoreError | None) -> None:
            if error is None:
                self._count(ask, taken, now_ms, 0 if reply is None else len(reply.body))

        return reply, written

    def _count(self, ask: PopAsk, taken: Sequence[Taken], now_ms: int, size_bytes: int) -> None:
        """Count what was given."""
        self._outcomes.child(GONE).value += sum(each.gone for each in taken)
        self._outcomes.child(DAMAGED).value += sum(each.damaged for each in taken)
        count = sum(len(each.offsets) for each in taken)
        if not count:
            return
        self._tools.metrics.messages_out.value += count
        if self._queues.has_priorities(ask.topic):
            for each in taken:
                self._by_priority.child(str(each.index)).value += len(each.offsets)
        self._traffic.gave(ask.group, ask.topic, now_ms, count, size_bytes)

    def _given(self, ask: PopAsk, taken: Taken, owned: Owned) -> Sequence[Change]:
        if taken.ordered:
            ordered = self._in_flight.ordered
            return ordered.give(ask.group, taken.queue_id, ask.attempt, taken.offsets, taken.reached, owned)
        return self._in_flight.table.give(ask.group, taken.queue_id, taken.offsets, owned)

    def _times(self, group: str, taken: Taken) -> Mapping[int, int]:
        batch = self._in_flight.ordered.batch(group, taken.queue_id)
        assert batch is not None, (group, taken.queue_id)
        return batch.times

    def _peek(self, command: Command, ask: PopAsk) -> Command:
        taken = self._taken(ask)
        given = [each for each in taken if each.offsets]
        if not given:
            nothing = ResponseCode.POLLING_FULL if self._long_polls.full else ResponseCode.POLLING_TIMEOUT
            return command.reply(nothing, "no message")
        return self._reply(command, given, (self._tools.clock.now_ms(), 0), sum(each.rest for each in taken))

    def _reply(self, command: Command, given: list[Taken], owned: Owned, rest: int) -> Command:
        identity = self._tools.identity
        reply, asks = popped(
            command, given, owned, rest=rest, address=(identity.host, identity.port),
            cluster_name=self._tools.config.cluster_name,
        )  # fmt: skip
        if asks:
            self._expect_mqtt_requests()
        return reply
