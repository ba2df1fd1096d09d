"""How far the queues of a selection reach, and how long the first message behind a batch has waited: the driver's view.

Invariants: bounds are confirmed ends, so nothing that a failover could take back is ever planned. A new master, or one
that is cut off, may know of less than was read before: that is no loss before it has proven that it is the only one. A
broker that does not answer costs the waiting times and nothing else. A group that is away and has, or may have, queues
of the selection is never taken for one without: `complete` fails by its name. The groups are looked for again every
`LOOK_EVERY_S`, so that one that joins is read. Thread rule: one thread (the source's own process on the driver).
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Mapping

from remoting import clock
from remoting.protocol.addresses import split_address
from remoting.protocol.bodies.pull_body import (
    STATUS_OK,
    QueueBoundsReply,
    QueueBoundsRequest,
    decode_bounds_reply,
    decode_multi_pull_reply,
    decode_range_pull_reply,
    encode_bounds_request,
    encode_multi_pull,
    encode_range_pull,
)
from remoting.protocol.errors import LightMQError
from remoting.protocol.frames.codes import RequestCode
from remoting.protocol.frames.commands import Command
from remoting.protocol.records.record import RecordView
from spark_connector.brokers import Address, GroupMaster, KnownGroups, MasterAddress, absence, find_groups, quick
from spark_connector.errors import BrokerRefused, BrokerUnreachable
from spark_connector.options.read_write import ReadOptions
from spark_connector.queues import QueueKey
from spark_connector.reading.offsets import Lives, Positions
from spark_connector.reading.replicas import ReplicaWatch, ShortCuts
from spark_connector.reading.selection import Bounds, Selection, light_key

LOOK_EVERY_S = 5.0
"""How often the name servers are asked for groups that joined, or came back."""
LOOK_PAUSE = 10
"""Least pause after that, as a multiple of the time that it took: name servers that are silent delay no query much."""

LOG = logging.getLogger("lightmq.spark")


class BoundsWatch:
    """The bounds of a selection over all brokers, with a memory of what was last seen for long polls."""

    def __init__(self, options: ReadOptions, selection: Selection) -> None:
        self._options = options
        self._selection = selection
        self._groups: dict[str, GroupMaster] = {}
        self._quick = quick(options)
        """How the name servers are asked while the query runs."""
        self._look_s = 0.0
        """When they are asked for groups next."""
        self._absent: tuple[str, ...] = ()
        """Groups that were away then and have, or may have, queues of the selection."""
        self._logged: tuple[str, ...] = ()
        self._replies: dict[str, dict[tuple[str | None, tuple[str, ...]], QueueBoundsReply]] = {}
        """The last reply of each group to each request, the latest last."""
        self._keys: dict[str, dict[int, QueueKey]] = {}
        self._last: dict[tuple[str, str | None], tuple[bytes, QueueBoundsReply, dict[QueueKey, Bounds]]] = {}
        """The last answer to each request: an equal one is not decoded again."""
        self.masters: dict[str, GroupMaster] = {}
        """Broker group → its master."""
        self.readers: dict[str, Address] = {}
        """Broker group → address of processes beside it that serve ranges too, where it has some."""
        self._replicas = ReplicaWatch(options)
        self.present: set[str] = set()
        """Broker groups that answered the last question."""
        self._logs: dict[str, str] = {}
        self._ids: dict[tuple[str, str | None, tuple[str, ...]], tuple[str, dict[str, int]]] = {}
        """Question to a group → broker, and the ids of its topics' first queues; the latest answer is last."""

    def read(self, *, at_ms: int | None = None) -> dict[QueueKey, Bounds]:
        """Ask everything now."""
        return self._read(self._options, at_ms)

    def _read(self, options: ReadOptions, at_ms: int | None = None) -> dict[QueueKey, Bounds]:
        self.present.clear()
        found: dict[QueueKey, Bounds] = {}
        for master in self._find(options):
            for request in self._selection.requests(at_ms=at_ms):
                answered = self._ask(master, request)
                found = {**found, **answered} if found else answered
        return found

    def find_groups(self) -> None:
        """Ask the name servers for the groups. Raises BrokerUnreachable, GroupAbsent when none has a master."""
        self._groups = {}
        self._find(self._options)

    def complete(self) -> dict[QueueKey, Bounds]:
        """Ask everything now, as `read`; raises GroupAbsent while a group is away that has queues of the selection.

        Where losses are allowed that is logged, and the rest is the answer, unless there is none.
        """
        self._groups = {}
        found = self.read()
        if self._absent and (self._options.fail_on_data_loss or not found):
            raise absence(self._absent, "what is to be read, or a part of it, is there")
        if self._absent and self._logged != self._absent:
            LOG.warning("read without the broker groups that have no master: %s", ", ".join(self._absent))
        self._logged = self._absent
        return found

    def wait(self, wait_ms: int) -> dict[QueueKey, Bounds]:
        """Ask everything, after the brokers held the question up to `wait_ms` if nothing moved since the last answer.

        With several brokers the time is divided among them, because they are asked one after the other. Raises
        BrokerUnreachable soon where nobody answers: the query repeats it as long as `brokerWaitMs`.
        """
        self.present.clear()
        groups = self._find(self._quick)
        for master in groups:
            if master.group not in self._replies or wait_ms == 0:
                continue
            request = self._selection.waiting_request(self._known(master.group), wait_ms // len(groups))
            answered = self._ask(master, request)
            if len(groups) == 1 and self._selection.is_answered_by(request):
                return answered
        return self._read(self._quick)

    def lives(self, positions: Positions) -> Lives:
        """Of which logs, and lives of topics, the bounds last seen are, for the topics of `positions`."""
        topics = {key.topic for key in positions}
        ids: dict[str, dict[str, int]] = {}
        for broker, known in self._ids.values():
            for topic, life in known.items():
                if topic in topics:
                    ids.setdefault(topic, {})[broker] = life
        brokers = {key.broker for key in positions}
        return Lives({broker: log for broker, log in self._logs.items() if broker in brokers}, ids)

    @property
    def addresses(self) -> dict[str, MasterAddress]:
        """Broker name → where its group's master is, for the tasks."""
        return {broker: (master.group, master.address) for broker, master in self.masters.items()}

    @property
    def short_cuts(self) -> ShortCuts:
        """Where tasks read instead of at the masters: reader processes beside them and, where asked for, replicas."""
        known = self._replicas.known()
        replicas = {broker: tuple(known.get(master.group, ())) for broker, master in self.masters.items()}
        return ShortCuts(self.readers, {broker: there for broker, there in replicas.items() if there})

    def _find(self, options: ReadOptions) -> list[GroupMaster]:
        """The groups that are known, looked for with `options` while there is none, and in passing now and then."""
        began_s = clock.monotonic_s()
        if not self._groups:
            self._take(find_groups(options), options)
        elif "" not in self._groups and began_s >= self._look_s:
            with contextlib.suppress(BrokerUnreachable, BrokerRefused):  # those that are known answer for themselves
                self._take(find_groups(self._quick), self._quick)
        else:
            return list(self._groups.values())
        now_s = clock.monotonic_s()
        self._look_s = now_s + max(LOOK_EVERY_S, LOOK_PAUSE * (now_s - began_s))
        return list(self._groups.values())

    def _take(self, found: KnownGroups, options: ReadOptions) -> None:
        """Add groups that are new; whether one that is known is still there, its own answers tell."""
        joined = {name: master for name, master in found.masters.items() if name not in self._groups}
        self._groups = dict(sorted({**joined, **self._groups}.items()))
        self._absent = tuple(name for name in found.absent if name not in self._groups)
        if not self._selection.open_filters:
            having = found.with_topics(self._selection.parents, options)
            self._absent = tuple(name for name in having if name in self._absent)

    def _ask(self, master: GroupMaster, request: QueueBoundsRequest) -> dict[QueueKey, Bounds]:
        """Ask one group for the queues to read; after a failure the next request looks the groups up again."""
        try:
            answer = master.ask(Command(RequestCode.QUEUE_BOUNDS, body=encode_bounds_request(request)))
        except BrokerUnreachable:
            self._groups = {}
            raise
        question = (master.group, request.filter)
        last = self._last.get(question)
        if last is not None and last[0] == answer.body:
            _, reply, found = last
        else:
            reply = decode_bounds_reply(answer.body)
            found = self._selection.collect(request, reply, self._keys.setdefault(master.group, {}))
            self._last[question] = (answer.body, reply, found)
            self._note_lives((*question, tuple(request.topics)), request, reply)
        replies, asked = self._replies.setdefault(master.group, {}), (request.filter, tuple(request.topics))
        replies.pop(asked, None)
        replies[asked] = reply
        self.masters[reply.broker] = master
        self.present.add(reply.broker)
        self._note_readers(reply)
        return found

    def _known(self, group: str) -> dict[str, dict[str, int]]:
        """The ends last seen of a group, as a waiting request carries them."""
        known: dict[str, dict[str, int]] = {}
        for reply in self._replies[group].values():
            for queue in reply.queues:
                known.setdefault(queue.topic, {})[str(queue.queue)] = queue.max
        return known

    def _note_lives(
        self, asked: tuple[str, str | None, tuple[str, ...]], request: QueueBoundsRequest, reply: QueueBoundsReply
    ) -> None:
        """Remember which log answered, and the first queue of each topic."""
        if reply.log:
            self._logs[reply.broker] = reply.log
        ids = {one.topic: one.id for one in reply.queues if one.queue == 0}
        if request.filter is not None and reply.light is not None:
            ids[light_key(request.filter, reply.broker).topic] = reply.light.id
        self._ids.pop(asked, None)
        self._ids[asked] = (reply.broker, ids)

    def _note_readers(self, reply: QueueBoundsReply) -> None:
        """Remember where else ranges are served; an invalid address counts as none."""
        self.readers.pop(reply.broker, None)
        if reply.readers is not None:
            with contextlib.suppress(ValueError):
                self.readers[reply.broker] = split_address(reply.readers)


def prove_ends(positions: Positions, bounds: Mapping[QueueKey, Bounds], masters: Mapping[str, GroupMaster]) -> None:
    """Raise BrokerUnreachable where a position lies behind a queue's end, and the master may not know of all there is.

    MULTI_PULL calls an offset too large only with proof. Raises BrokerRefused too.
    """
    doubtful: dict[str, list[tuple[int, int, int, int]]] = {}
    for key, position in positions.items():
        if key in bounds and position > bounds[key].max:
            doubtful.setdefault(key.broker, []).append((bounds[key].id, position, 1, 1))
    for broker, wants in doubtful.items():
        reply = masters[broker].ask(Command(RequestCode.MULTI_PULL, body=encode_multi_pull(wants)))
        if any(queue.status == STATUS_OK for queue in decode_multi_pull_reply(reply.body)):
            raise BrokerUnreachable(f"the master of {broker} does not know yet of all that was read before")


QUEUES_ASKED_MAX = 16
"""Queues whose waiting time is asked for per batch, those with the most messages waiting; each is one short request."""


def waiting_ms(
    ends: Positions, bounds: Mapping[QueueKey, Bounds], masters: Mapping[str, GroupMaster], now_ms: int
) -> dict[QueueKey, int]:
    """Return how long the first message at or behind `ends` has been stored, for the queues furthest behind."""
    behind = {
        key: queue.max - max(ends[key], queue.min)
        for key, queue in bounds.items()
        if key in ends and queue.max > ends[key]
    }
    furthest = sorted((key for key in behind if behind[key] > 0), key=lambda key: (-behind[key], key))
    found = {}
    for key in furthest[:QUEUES_ASKED_MAX]:
        queue, at = bounds[key], max(ends[key], bounds[key].min)
        body = encode_range_pull(queue.id, at, at + 1, 1)
        with contextlib.suppress(LightMQError, KeyError, IndexError):
            reply = masters[key.broker].ask(Command(RequestCode.RANGE_PULL, body=body))
            pulled = decode_range_pull_reply(reply.body)
            if pulled.count:
                stored_ms = RecordView(pulled.blob, int.from_bytes(pulled.starts[:4], "little")).store_ms
                found[key] = max(0, now_ms - stored_ms)
    return found
