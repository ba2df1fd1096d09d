"""Requests that wait until queues grow: woken by the confirm position, ended exactly at their deadline.

A waiter names its queues and a function that tries to answer and returns True when it has. The function is called when
one of the queues has grown and, with `last=True`, at the deadline. Invariant: a waiter answers exactly once, or never
when its connection has closed; at most `waiters_max` wait, the next one is ended at once. Loop thread only.

QUEUE_BOUNDS (9007): first and end offsets of the queues of topics, or of everything an MQTT filter covers.

The driver of a Spark query plans its batches from this answer. With `known` offsets and `wait_ms` the answer waits
until some queue has grown beyond them, so an idle query costs one request per wait. A filter is answered with the
parent queues of every topic it covers; an exact MQTT topic also with its own light queue. The
answer says which log it is about; within a log the id of a queue says which life of a topic it belongs to, because
ids are never used again. Invariant: an answer has confirmed ends only, and only topics whose creation is confirmed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import count
from typing import TYPE_CHECKING, Protocol

from remoting.access.rights import of_topic
from remoting.protocol.bodies.pull_body import (
    LightBounds,
    QueueBounds,
    QueueBoundsReply,
    QueueBoundsRequest,
    decode_bounds_request,
    encode_bounds_reply,
)
from remoting.protocol.errors import Refused
from remoting.protocol.frames.codes import RequestCode as Code
from remoting.protocol.frames.codes import ResponseCode
from remoting.protocol.frames.commands import Command
from remoting.protocol.records import names
from remoting.protocol.records import topics as mqtt_topics
from remoting.transport.contracts import Handler, Peer

if TYPE_CHECKING:
    from broker.requests import RequestTools
    from broker.topics.topics import Topics, TopicSettings


Attempt = Callable[[bool], bool]
"""Called with last=False when a queue has grown, last=True at the deadline; True means answered."""
ANY_QUEUE = -1
"""Stands for every queue; for a request whose queue does not exist yet."""
_instances = count()


@dataclass(slots=True, eq=False)
class _Waiter:
    attempt: Attempt
    queue_ids: tuple[Hashable, ...]
    peer_waiters: set[_Waiter]
    about: Hashable = None
    timer: asyncio.TimerHandle | None = field(default=None)


class LongPolls:
    """All waiting requests of this broker."""

    def __init__(self, *, waiters_max: int, wait_ms_max: int, may_answer: Callable[[], bool] = lambda: True) -> None:
        """`may_answer`: whether this broker's state is current; while it is not, no wait ends empty."""
        self._may_answer = may_answer
        # A connection outlives the role that its requests waited in, and may wait in two of these at a time.
        self._attribute = f"long polls {next(_instances)}"
        self._waiters_max = waiters_max
        self._wait_ms_max = wait_ms_max
        self._by_queue: dict[Hashable, dict[_Waiter, None]] = {}
        self.waiters: set[_Waiter] = set()
        """Always the same set; while it is empty `advanced` need not be called."""
        self.overflowed = 0

    def __len__(self) -> int:
        return len(self.waiters)

    @property
    def full(self) -> bool:
        """Whether no further request can wait."""
        return len(self.waiters) >= self._waiters_max

    def waited_for(self, queue_id: Hashable) -> bool:
        """Whether a request waits for this queue."""
        return queue_id in self._by_queue

    def count(self, about: object) -> int:
        """How many requests wait that were given this `about`."""
        return sum(waiter.about == about for waiter in self.waiters)

    def wait(
        self, peer: Peer, queue_ids: Iterable[Hashable], wait_ms: int, attempt: Attempt, about: Hashable = None
    ) -> None:
        """Try again when one of the queues grows, and for the last time after `wait_ms`.

        A queue is the id of one, or what the caller will name to `advanced` itself. Of waiters with the same `about`,
        the first that finds nothing stands for those behind it.
        """
        if wait_ms <= 0 or self.full:
            self.overflowed += wait_ms > 0
            attempt(True)
            return
        waiter = _Waiter(attempt, tuple(queue_ids), self._waiters_of(peer), about)
        waiter.peer_waiters.add(waiter)
        self.waiters.add(waiter)
        for queue_id in waiter.queue_ids:
            self._by_queue.setdefault(queue_id, {})[waiter] = None
        delay_s = min(wait_ms, self._wait_ms_max) / 1_000
        waiter.timer = asyncio.get_running_loop().call_later(delay_s, self._deadline, waiter)

    def advanced(self, queue_ids: Iterable[Hashable]) -> None:
        """Queues have grown: the waiters for them try again, those that came first before the others."""
        by_queue = self._by_queue
        woken: dict[_Waiter, None] = {}
        for queue_id in (*queue_ids, ANY_QUEUE):
            if queue_id in by_queue:
                woken.update(by_queue[queue_id])
        self._try(woken)

    def wake_all(self) -> None:
        """Something else changed (a topic was created): every waiter tries again."""
        self._try(dict.fromkeys(self.waiters))

    def _try(self, waiters: Iterable[_Waiter]) -> None:
        idle: set[Hashable] = set()
        for waiter in list(waiters):
            if waiter not in self.waiters or waiter.about in idle:
                continue
            if waiter.attempt(False):
                self._remove(waiter)
            elif waiter.about is not None:
                idle.add(waiter.about)

    def _deadline(self, waiter: _Waiter) -> None:
        self._remove(waiter)
        if self._may_answer():
            waiter.attempt(True)

    def _remove(self, waiter: _Waiter) -> None:
        if waiter.timer is not None:
            waiter.timer.cancel()
        self.waiters.discard(waiter)
        waiter.peer_waiters.discard(waiter)
        for queue_id in waiter.queue_ids:
            waiting = self._by_queue.get(queue_id)
            if waiting is not None:
                waiting.pop(waiter, None)
                if not waiting:
                    del self._by_queue[queue_id]

    def _remove_all(self, waiters: set[_Waiter]) -> None:
        for waiter in list(waiters):
            self._remove(waiter)

    def _waiters_of(self, peer: Peer) -> set[_Waiter]:
        found = peer.attributes.get(self._attribute)
        if isinstance(found, set):
            return found
        made: set[_Waiter] = set()
        peer.attributes[self._attribute] = made
        peer.on_close(lambda _reason: self._remove_all(made))
        return made


class BoundsRequests:
    """Answers QUEUE_BOUNDS."""

    def __init__(
        self,
        tools: RequestTools,
        *,
        topics: Topics,
        long_polls: LongPolls,
        log_identity: Callable[[], tuple[str, int]],
    ) -> None:
        """`log_identity`: which log this is, and the position that an answer showing it waits for."""
        self._tools = tools
        self._log_identity = log_identity
        self._topics = topics
        self._long_polls = long_polls

    def handlers(self) -> dict[int, Handler]:
        """Request code -> handler."""
        return {
            Code.QUEUE_BOUNDS: self.queue_bounds,
        }

    def queue_bounds(self, peer: Peer, command: Command) -> None:
        """Answer at once, when a queue has grown, or at the deadline."""
        request = decode_bounds_request(command.body)
        if request.filter is not None:
            wrong = mqtt_topics.validate_filter(request.filter)
            if wrong is not None:
                raise Refused(ResponseCode.INVALID_PARAMETER, f"filter {request.filter!r}: {wrong}")
        # A peer that may read only some topics gets all bounds; records are judged when they are pulled.
        wanted = [*map(of_topic, request.topics), *([request.filter] if request.filter is not None else ())]
        self._tools.authorizer.readable(peer, command, wanted)

        def attempt(last: bool) -> bool:
            reply = self._answer(request)
            if not last and not _has_grown(reply, request):
                return False
            shown = {item.topic for item in reply.queues}
            position = max([self._log_identity()[1], *map(self._topics.position, shown)])
            self._tools.answers.reply_at(position, peer, command.reply(body=encode_bounds_reply(reply)))
            return True

        if request.wait_ms <= 0 or request.known is None:
            attempt(True)
        elif not attempt(False):
            self._long_polls.wait(peer, self._wakers(request), request.wait_ms, attempt)

    def _wakers(self, request: QueueBoundsRequest) -> list[int]:
        """Queues whose growth may answer the request; any queue while it may cover topics that do not exist yet."""
        if request.filter is not None or any(self._topics.get(topic) is None for topic in request.topics):
            return [ANY_QUEUE]
        return [queue_id for topic in request.topics for queue_id in self._topics.queue_ids(topic)]

    def _answer(self, request: QueueBoundsRequest) -> QueueBoundsReply:
        covered = list(request.topics)
        if request.filter is not None:
            covered += covered_topics(self._topics, request.filter)
        light = self._light_queue(request)
        return QueueBoundsReply(
            broker=self._tools.config.broker_name,
            epoch=self._tools.store.epoch,
            confirm=self._tools.store.confirm_position,
            queues=[item for topic in dict.fromkeys(covered) for item in self._of_topic(topic, request.at_ms)],
            light=None if light is None else self._light_bounds(light, request.at_ms),
            log=self._log_identity()[0],
            readers=self._tools.identity.readers_address() if self._tools.authorizer.open else None,
        )

    def _of_topic(self, topic: str, at_ms: int | None) -> list[QueueBounds]:
        found = []
        for index, queue_id in enumerate(self._topics.queue_ids(topic)):
            low, high = self._tools.store.reading.bounds(queue_id)
            at = None if at_ms is None else self._tools.store.reading.search_time(queue_id, at_ms)
            found.append(QueueBounds(topic, index, queue_id, low, high, at))
        return found

    def _light_queue(self, request: QueueBoundsRequest) -> int | None:
        if request.filter is None or mqtt_topics.is_wildcard(request.filter):
            return None
        return self._tools.store.queues.find(names.light_queue_name(request.filter.encode()))

    def _light_bounds(self, queue_id: int, at_ms: int | None) -> LightBounds:
        low, high = self._tools.store.reading.bounds(queue_id)
        return LightBounds(
            queue_id, low, high, None if at_ms is None else self._tools.store.reading.search_time(queue_id, at_ms)
        )


class KnownTopics(Protocol):
    """Where topics are looked up: the table of a master, or what a replica knows of it."""

    def get(self, name: str) -> TopicSettings | None:
        """The settings of a topic; None where it is not known."""
        ...

    def __iter__(self) -> Iterator[TopicSettings]:
        """The settings of all topics."""
        ...


def covered_topics(topics: KnownTopics, topic_filter: str) -> list[str]:
    """Parent topics whose messages a filter can match, sorted."""
    first = topic_filter.encode().partition(b"/")[0]
    if first not in (b"+", b"#"):
        parent = names.parent_topic(first).decode()
        return [parent] if topics.get(parent) is not None else []
    return sorted(config.name for config in topics if _device_topic(config.name))


def _device_topic(name: str) -> bool:
    """True for a topic that a wildcard in the first level covers: no system, retry or $-topic."""
    if name.startswith((names.RETRY_PREFIX, names.DLQ_PREFIX, "%24")):
        return False
    return not names.is_system_topic(name.encode())


def _has_grown(reply: QueueBoundsReply, request: QueueBoundsRequest) -> bool:
    known = request.known or {}
    return any(item.max > known.get(item.topic, {}).get(str(item.queue), 0) for item in reply.queues)
