"""A migration while it runs: it finds what is at the source, makes it here, copies every queue, keeps offsets alike.

    refresh     topics and groups of the source, every `REFRESH_S`: new ones are made here and copied too
    copiers     one task for each queue
    returners   one task for each queue that is mirrored back too: retry and dead-letter topics from the first message
                on, topics from `let_producers_in` on
    offsets     every `OFFSETS_S`: what a group has committed at one side is committed at the other

A topic is made here without the permission to write, so no producer can overtake messages that are not copied yet;
`let_producers_in` takes that permission from the source, waits for the rest and gives it here. `send_producers_back`
does the same the other way round.

Invariant: all progress is in the target's log or follows from both clusters; a new process continues where an earlier
one was killed. Loop thread only.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from broker.migration.followers import FollowerReport, StandingQueue
from lightmq.migrate.cluster import Cluster
from lightmq.migrate.copier import QueueCopier
from lightmq.migrate.offsets import OffsetMirror
from lightmq.migrate.plan import Chosen, Place, Plan, QueueCopy, SourceQueue, make_plan
from lightmq.migrate.returner import QueueReturner
from lightmq.migrate.users import mirror_users
from remoting import background
from remoting.protocol.bodies.controller_body import PERM_WRITE, TopicConfig
from remoting.protocol.errors import LightMQError, Refused
from remoting.protocol.frames.codes import ResponseCode
from remoting.protocol.records.names import DLQ_PREFIX, RETRY_PREFIX
from runtime.clock import Clock
from runtime.logs import get_logger

REFRESH_S = 10.0
OFFSETS_S = 1.0
TELL_S = 2.0
"""How often the brokers here are told how a migration that follows gets on."""
SETTLE_S = 35.0
"""RocketMQ's brokers do not check a topic's permission; its producers learn of it with their routes, every 30 s."""
LOOK_S = 0.2
"""Pause before the ends of the queues are looked at again."""
NANOSECONDS = 1_000_000_000


@dataclass(frozen=True, kw_only=True)
class Options:
    """What the user chose."""

    name: str
    """Names the source in the target's records."""
    topic: Chosen = field(default=lambda _: True)
    group: Chosen = field(default=lambda _: True)
    messages_per_second: int = 0
    """Most messages copied in a second; 0: without a limit."""
    users: bool = False
    """Mirror users and rules too, once."""
    settle_s: float = SETTLE_S
    """How long no message must have come before producers are let in here."""
    one_way: bool = False
    """Do not mirror back what producers send here."""


class SteadyPace:
    """Lets so many messages pass in a second, all copiers together; 0: without a limit."""

    def __init__(self, per_second: int, clock: Clock) -> None:
        self._per_second = per_second
        self._clock = clock
        self._free_ns = 0

    async def take(self, messages: int) -> None:
        """Wait until the messages before these have had their time."""
        if not self._per_second:
            return
        now_ns = self._clock.monotonic_ns()
        begin_ns = max(now_ns, self._free_ns)
        self._free_ns = begin_ns + messages * NANOSECONDS // self._per_second
        await asyncio.sleep((self._free_ns - now_ns) / NANOSECONDS)


class Migration:
    """One source, one target."""

    def __init__(self, source: Cluster, target: Cluster, options: Options, clock: Clock) -> None:
        self.source, self.target = source, target
        self.plan = Plan()
        self.refused: dict[str, str] = {}
        """What could not be made here -> why."""
        self._options = options
        self._clock = clock
        self._pace = SteadyPace(options.messages_per_second, clock)
        self._copiers: dict[QueueCopy, QueueCopier] = {}
        self._has_users = False
        self._recorded: dict[SourceQueue, Place] = {}
        self._returned: set[QueueCopy] = set()
        """Queues that are mirrored back too, as far as this process knows."""
        self._returners: dict[QueueCopy, QueueReturner] = {}
        self._tasks: dict[tuple[type, QueueCopy], asyncio.Task[None]] = {}
        self._failure = ""
        """Why plan and offsets cannot be read at present."""
        self._offsets = OffsetMirror(source, target)
        self._log = get_logger("migrate")

    @property
    def copiers(self) -> Iterable[QueueCopier]:
        """The copiers, one for each queue."""
        return self._copiers.values()

    async def read(self) -> Plan:
        """Learn what is at the source; changes nothing. Raises LightMQError."""
        await self.source.refresh()
        await self.target.refresh()
        options, source = self._options, self.source
        self.plan = make_plan(
            {broker: await source.topics(broker) for broker in source.brokers},
            {broker: await source.groups(broker) for broker in source.brokers},
            self.target.brokers, wanted_topic=options.topic, wanted_group=options.group, clusters=source.clusters,
            copied=await self._places(),
        )  # fmt: skip
        self._name_what_is_missing()
        for queue in self.plan.queues:
            if queue not in self._copiers:
                self._copiers[queue] = QueueCopier(queue, source, self.target, options.name, self._pace, self._clock)
        return self.plan

    def _name_what_is_missing(self) -> None:
        """Name topics and queues that were copied and are not at the source any more."""
        present = {(one.topic, one.source_broker, one.source_queue) for one in self.plan.queues}
        topics = {topic for topic, _broker, _number in present}
        for topic, broker, number in sorted(self._recorded.keys() - present):
            if topic in self.plan.left_out or not self._options.topic(topic) or broker not in self.source.brokers:
                continue
            if topic in topics:
                what, was = f"{topic} at {broker}/{number}", "this queue"
            else:
                what, was = topic, "the topic"
            self.plan.left_out[what] = f"{was} is not at the source any more; what was copied is here"

    async def _places(self) -> dict[SourceQueue, Place]:
        """Where queues are copied to: as the target's records have it, and as this process began."""
        for broker in self.target.brokers:
            for known in await self.target.copied(broker, f"{self._options.name}/"):
                there, _, number = known["source"].partition("/")[2].rpartition("/")
                self._recorded[known["topic"], there, int(number)] = broker, known["queue"]
                if known["returned"]:
                    self._returned.add(QueueCopy(known["topic"], there, int(number), broker, known["queue"]))
        begun = {
            (one.topic, one.source_broker, one.source_queue): (one.target_broker, one.target_queue)
            for one in self._copiers
        }
        return {**self._recorded, **begun}

    async def make(self) -> None:
        """Make the groups and topics that are not here yet; those that are here keep their permissions."""
        if self._options.users and not self._has_users:
            self.refused |= await mirror_users(self.source, self.target)
            self._has_users = True
        for broker in self.target.brokers:
            present, groups = await self.target.topics(broker), await self.target.groups(broker)
            for name, group in self.plan.groups.items():
                if name not in groups:
                    await self._try(f"group {name}", self.target.put_group(broker, group))
            for name, wanted in self.plan.topics.get(broker, {}).items():
                known = present.get(name)
                if known is not None and _has_room(known, wanted):
                    continue
                own = name.startswith((RETRY_PREFIX, DLQ_PREFIX))
                perm = known.perm if known is not None else wanted.perm if own else wanted.perm & ~PERM_WRITE
                await self._try(f"topic {name}", self.target.put_topic(broker, wanted, perm))
        await self._mirror_back(one for one in self._copiers if one.topic.startswith((RETRY_PREFIX, DLQ_PREFIX)))

    async def _mirror_back(self, queues: Iterable[QueueCopy]) -> None:
        """Mirror back what is sent to these queues from now on."""
        for queue in queues:
            if queue in self._returned or self._options.one_way:
                continue
            name = queue.named(self._options.name)
            begun = self.target.begin_return(queue.target_broker, name, queue.topic, queue.target_queue)
            await self._try(f"way back of {queue.topic}/{queue.target_queue}", begun)
            self._returned.add(queue)

    async def _try(self, what: str, making: Any) -> None:
        try:
            await making
        except Refused as refused:
            if self.refused.get(what) != refused.remark:
                self._log.warning("not_made", what=what, reason=refused.remark)
            self.refused[what] = refused.remark
        else:
            self.refused.pop(what, None)

    async def copy_to_the_end(self) -> None:
        """Copy what is there now, and the offsets. Raises the error of a queue that cannot be copied."""
        await self.read()
        await self.make()
        await self._copied_to_the_end(self._copiers)
        await self.keep_offsets_alike()

    async def _copied_to_the_end(self, queues: Iterable[QueueCopy]) -> None:
        async with asyncio.TaskGroup() as group:
            for queue in queues:
                group.create_task(self._copiers[queue].run(follow=False))

    async def follow(self, ready: Callable[[], None] = lambda: None) -> None:
        """Mirror for ever; ends by being cancelled. `ready` is called once everything is being copied.

        Raises LightMQError, OSError when it cannot begin; later it tries again.
        """
        refreshed_s, is_ready = float("-inf"), False
        telling = background.task(self._keep_telling(), "reports progress")
        try:
            while True:
                try:
                    if self._now_s() - refreshed_s >= REFRESH_S:
                        await self.read()
                        await self.make()
                        refreshed_s = self._now_s()
                        self._start_copiers()
                        if not is_ready:
                            is_ready = True
                            ready()
                    await self.keep_offsets_alike()
                except (LightMQError, OSError) as error:
                    if not is_ready:
                        raise
                    self._failure = str(error)
                    self._log.warning("refresh_failed", error=str(error))
                else:
                    self._failure = ""
                await asyncio.sleep(OFFSETS_S)
        finally:
            telling.cancel()
            await self._stop()

    async def _keep_telling(self) -> None:
        """Tell each broker here, for ever, that this migration runs and which queues stand still."""
        while True:
            await asyncio.sleep(TELL_S)
            standing: dict[str, list[StandingQueue]] = {broker: [] for broker in self.target.brokers}
            at_work: list[tuple[QueueCopy, QueueCopier | QueueReturner]]
            at_work = [*self._copiers.items(), *self._returners.items()]
            for queue, worker in at_work:
                if worker.failure and queue.target_broker in standing:
                    name = queue.named(self._options.name)
                    row = StandingQueue(queue.topic, name, worker.failure, worker.failed_ms)
                    standing[queue.target_broker].append(row)
            for broker, rows in standing.items():
                try:
                    await self.target.tell(broker, self._options.name, FollowerReport(self._failure, rows))
                except (LightMQError, OSError) as error:  # one that does not serve; it shows nothing either
                    self._log.debug("not_told", broker=broker, error=str(error))

    async def _stop(self) -> None:
        tasks = list(self._tasks.values())
        self._tasks.clear()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _start_copiers(self) -> None:
        loop = asyncio.get_running_loop()
        for queue, copier in self._copiers.items():
            if (QueueCopier, queue) not in self._tasks:
                self._tasks[QueueCopier, queue] = loop.create_task(copier.run(follow=True))
            if queue in self._returned and (QueueReturner, queue) not in self._tasks:
                returner = self._returners[queue] = QueueReturner(copier, self.source, self.target, self._clock)
                self._tasks[QueueReturner, queue] = loop.create_task(returner.run())

    def _now_s(self) -> float:
        return self._clock.monotonic_ns() / NANOSECONDS

    async def keep_offsets_alike(self) -> int:
        """Commit at each side what has moved at the other; returns how many offsets. Raises LightMQError."""
        return await self._offsets.align(self.plan.groups, self._copiers.values())

    # -- producers -----------------------------------------------------------------------------------------------------

    async def let_producers_in(self) -> list[str]:
        """Stop producers at the source, copy the rest, let them write here; returns the topics. Raises LightMQError."""
        await self.copy_to_the_end()
        topics = self._own_topics()
        if not self._options.one_way:
            await self._check_the_way_back(topics)
        await self._permit(self.source, topics, write=False)
        queues = [queue for queue in self._copiers if queue.topic in topics]
        copied, quiet_since_s = -1, self._now_s()
        while self._now_s() - quiet_since_s < self._options.settle_s:
            await asyncio.sleep(LOOK_S)
            await self._copied_to_the_end(queues)
            before, copied = copied, sum(self._copiers[queue].counts.copied for queue in queues)
            if copied != before:
                quiet_since_s = self._now_s()
        await self._mirror_back(queues)
        await self._permit(self.target, topics, write=True)
        return topics

    async def _check_the_way_back(self, topics: Iterable[str]) -> None:
        """Raises Refused when a topic has queues here that the source has not."""
        for broker in self.target.brokers:
            known = await self.target.topics(broker)
            for topic in topics:
                there = sum((one.topic, one.target_broker) == (topic, broker) for one in self._copiers)
                if topic in known and known[topic].write_queue_nums > there:
                    here = f"{topic} has {known[topic].write_queue_nums} queues at {broker}, {there} of the source"
                    remark = f"{here}: what is sent to the rest cannot be mirrored back; make them there, or --one-way"
                    raise Refused(ResponseCode.INVALID_PARAMETER, remark)

    async def send_producers_back(self) -> list[str]:
        """Stop producers here, mirror the rest back, let them write at the source again; returns the topics.

        Raises LightMQError.
        """
        await self.read()
        topics = self._own_topics()
        await self._permit(self.target, topics, write=False)
        self._start_copiers()
        try:
            for copier in self._copiers.values():
                while await self._is_behind(copier):  # noqa: ASYNC110 - the other cluster has no event
                    await asyncio.sleep(LOOK_S)
            await self.keep_offsets_alike()
        finally:
            await self._stop()
        await self._permit(self.source, topics, write=True)
        return topics

    async def follower_reports(self) -> dict[str, FollowerReport | None]:
        """What the migration that follows has told each broker here. Raises LightMQError."""
        return {broker: await self.target.follower_report(broker, self._options.name) for broker in self.target.brokers}

    async def _is_behind(self, copier: QueueCopier) -> bool:
        """Whether a queue has messages that are to be mirrored back, or are there and not recorded yet."""
        if copier.queue not in self._returned:
            return False
        if not copier.is_loaded:
            return True
        here_end, there_end = [await copier.reader(at_source=one).max_offset() for one in (False, True)]
        return bool(copier.offsets.waiting(here_end)) or (copier.offsets.copied or 0) < there_end

    def _own_topics(self) -> list[str]:
        names = {queue.topic for queue in self._copiers}
        return sorted(name for name in names if not name.startswith((RETRY_PREFIX, DLQ_PREFIX)))

    @staticmethod
    async def _permit(cluster: Cluster, topics: Iterable[str], *, write: bool) -> None:
        for broker in cluster.brokers:
            known = await cluster.topics(broker)
            for config in (known[name] for name in topics if name in known):
                perm = config.perm | PERM_WRITE if write else config.perm & ~PERM_WRITE
                config.attributes = None  # they stay as they are
                await cluster.put_topic(broker, config, perm)


def _has_room(known: TopicConfig, wanted: TopicConfig) -> bool:
    return known.read_queue_nums >= wanted.read_queue_nums and known.write_queue_nums >= wanted.write_queue_nums
