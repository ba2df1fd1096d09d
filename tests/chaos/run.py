"""One run: start the cluster and the load, inject faults for a while, let everything recover, judge.

Invariant: a run ends with every process gone and every mount and namespace removed, whatever its outcome.
Thread rule: called from one thread, which is the one that breaks things.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from remoting.protocol.errors import LightMQError
from tests.chaos import judges
from tests.chaos.cluster import DISK_BYTES, GROUP, Cluster
from tests.chaos.consumers import Consumers
from tests.chaos.group import in_sync, logs
from tests.chaos.injector import WIPE_OTHERS_MIN, Injector
from tests.chaos.ledger import Ledger
from tests.chaos.load import MqttSource, ProducerSource, Source, master
from tests.chaos.network import NamespaceNetwork, Network, ProxiedNetwork
from tests.chaos.plan import Plan
from tests.chaos.readers import Final, Follower, Sight, Subscriber, final_reading
from tests.chaos.record import Record
from tests.chaos.registers import RegisterClient, clients, histories
from tests.chaos.report import Report
from tests.chaos.status_watch import StatusWatch
from tests.chaos.visibility import visibility

MQTT_TOPIC, QUEUE_TOPIC = "chaos", "chaosq"
UP_S = 180.0
"""Longest time until an undisturbed cluster accepts messages, on a slow and loaded machine."""
POLL_S = 0.05
DISK_BYTES_PER_MESSAGE = 400
FULL_SCALE = 0.5
"""A run with shorter faults omits those that last for a minute."""
LONG_S = 7_200.0
"""A longer run with small disks must clean its log."""


@dataclass
class Options:
    """The options of a run."""

    seed: int
    folder: Path
    seconds: float = 150.0
    faults_max: int = 1_000_000
    controllers: int = 1
    brokers: int = 1
    mode: str = "controller"
    """Who chooses the master; with "dledger" the brokers do, and controllers are name servers alone."""
    proxies: int = 1
    learners: int = 0
    kept_mb: int = 0
    """Size of the log that is kept; 0: all of it. Then the log is also cleaned past a stopped replica."""
    further: frozenset[str] = frozenset()
    """Kinds of faults that must be asked for."""
    rate: float = 1_200.0
    network: str = "auto"
    scale: float = 1.0
    silence_ms: int = 0
    """After how long without a sign a broker counts as dead; 0: as shipped. Slow machines need more."""
    command: str = ""


@dataclass
class Load:
    """Everything that sends and reads."""

    sources: list[Source] = field(default_factory=list)
    subscriber: Subscriber | None = None
    consumers: Consumers | None = None
    sight: Sight = field(default_factory=Sight)
    followers: list[Follower] = field(default_factory=list)
    registers: list[RegisterClient] = field(default_factory=list)
    watch: StatusWatch | None = None

    @property
    def ledgers(self) -> list[Ledger]:
        """What was sent."""
        return [source.ledger for source in self.sources]

    def counts(self) -> list[int]:
        """Acknowledged messages by source."""
        return [source.ledger.count for source in self.sources]

    def stop(self) -> None:
        """End all threads."""
        for source in self.sources:
            source.stop()
        for reader in (self.subscriber, self.consumers, *self.followers, *self.registers, self.watch):
            if reader is not None:
                reader.stop()


class Run:
    """A run from its options."""

    def __init__(self, options: Options) -> None:
        self.options = options
        options.folder.mkdir(parents=True, exist_ok=True)
        self.record = Record(options.folder / "events.jsonl")
        names = {f"c{number}": "controller" for number in range(1, options.controllers + 1)}
        names |= {f"b{number}": "broker" for number in range(1, options.brokers + 1)}
        names |= {f"p{number}": "proxy" for number in range(1, options.proxies + 1)}
        names |= {f"l{number}": "learner" for number in range(1, options.learners + 1)}
        spaces = options.network == "namespaces" or (options.network == "auto" and NamespaceNetwork.possible())
        network = NamespaceNetwork(list(names)) if spaces else ProxiedNetwork(list(names))
        disk_bytes = DISK_BYTES + int(min(options.seconds, LONG_S) * options.rate * DISK_BYTES_PER_MESSAGE)
        self.cluster = Cluster(
            options.folder / "nodes", network, names, disk_bytes=disk_bytes if spaces else 0,
            silence_ms=options.silence_ms, kept_bytes=options.kept_mb << 20, elects=options.mode == "dledger",
        )  # fmt: skip
        self.load = Load(sight=Sight(keeps_bodies=options.kept_mb > 0))
        self.plan = Plan(options.seed, names, self._kinds(network), scale=options.scale)
        self.injector = Injector(self.cluster, self.record)
        self._end = 0
        self.report = Report(options.seed, network.name, names, 0.0, options.command)

    def _kinds(self, network: Network) -> frozenset[str]:
        """The faults possible for this cluster beyond signals."""
        options = self.options
        kinds = set(network.kinds) | {"lost_tail", "lost_tails", "lost_epochs"} | options.further
        kinds |= {"full_disk"} if self.cluster.mounted else set()
        kinds |= {"clock_jump", "slow_disk"} if self.cluster.is_preloaded else set()
        kinds |= {"wipe"} if options.brokers > WIPE_OTHERS_MIN else set()
        kinds |= {"remove_broker"} if options.brokers > WIPE_OTHERS_MIN and not self.cluster.elects else set()
        kinds |= {"torn_journal"} | ({"wipe_controller", "remove_controller"} if options.controllers > 2 else set())
        kinds |= {"pause_long", "rolling"} if options.scale >= FULL_SCALE else set()
        kinds |= {"learner_anew"} if options.learners else set()
        kinds |= {"left_behind"} if options.kept_mb and options.brokers > WIPE_OTHERS_MIN else set()
        return frozenset(kinds)

    def execute(self) -> Report:
        """All of it; the report is also written to the folder."""
        try:
            self.cluster.start()
            self._begin_load()
            self._break()
            self._settle()
        finally:
            self.load.stop()
            self.report.seconds = self.record.now()
            self._close()
        self.report.faults = self.record.of("fault")
        self.report.measure(self.load.ledgers)
        self.report.write(self.options.folder)
        return self.report

    def _begin_load(self) -> None:
        options, now = self.options, self.record.now
        self.until("a master", lambda: self._master() is not None, UP_S)

        def proxies() -> list[str]:
            return [self.cluster.address(node) for node in self.cluster.of("proxy")]

        subscriber = self.load.subscriber = Subscriber("chaos-reader", f"{MQTT_TOPIC}/#", proxies, options.seed)
        subscriber.start()
        self.until("a subscription", subscriber.is_subscribed.is_set, UP_S)
        for number in range(2):
            ledger = Ledger(f"m{number}", f"{MQTT_TOPIC}/m{number}")
            self.load.sources.append(MqttSource(ledger, options.rate / 3, now, proxies, options.seed + number))
        ledger = Ledger("q0", QUEUE_TOPIC)
        self.load.sources.append(ProducerSource(ledger, options.rate / 3, now, lambda: self.cluster.controllers, 0))
        for source in self.load.sources:
            source.start()
        self.load.consumers = Consumers(lambda: self.cluster.controllers, GROUP, options.seed)
        self.load.consumers.start()
        self.flowing("at the start")
        self._begin_looking()
        self.record.note("load", rate=options.rate)

    def _begin_looking(self) -> None:
        """Followers at all brokers, clients of the registers, and the brokers' own status."""
        cluster, load, topics = self.cluster, self.load, [MQTT_TOPIC, QUEUE_TOPIC]
        electable = [node for node in cluster.of("broker") if not node.is_learner]
        load.followers = [Follower(topics, node.name, cluster.address(node), load.sight) for node in electable]
        controllers = {node.name: cluster.address(node) for node in cluster.of("controller")}
        load.registers = clients(controllers, self.record.now, self.options.seed)
        for follower in load.followers:
            follower.start()
        for client in load.registers:
            client.start()
        if self.options.brokers > 1:
            load.watch = StatusWatch(cluster, self.record.now)
            load.watch.start()

    def _break(self) -> None:
        end = self.record.now() + self.options.seconds
        for fault in self.plan.faults():
            if self.record.now() >= end or self.injector.number >= self.options.faults_max:
                return
            self.injector.inject(fault)
            if not self.flowing(f"after {fault.kind} of {', '.join(fault.targets)}"):
                return
            time.sleep(fault.calm_s)

    def _settle(self) -> None:
        """Everything works again: what is in flight is answered, then the judges run."""
        self.injector.undo()
        for source in self.load.sources:
            source.drain()
        self.until("all answers", lambda: all(source.is_drained for source in self.load.sources), UP_S)
        self.record.note("drained", acknowledged=self.load.counts())
        consumers = self.load.consumers
        assert consumers is not None
        consumers.drain()
        if not self.until("all that consumers are owed", lambda: consumers.is_settled, UP_S):
            self.record.note("owed", what=consumers.owed())
        self.record.note("settled")
        subscriber = self.load.subscriber
        assert subscriber is not None
        final = self._final()
        wanted = {ledger.topic: ledger.count for ledger in self.load.ledgers if ledger.topic != QUEUE_TOPIC}
        self.until("the subscriber", lambda: _caught_up(subscriber, wanted), UP_S)
        if self.options.brokers > 1:
            self.until("all brokers in sync", lambda: len(in_sync(self.cluster)) == self.options.brokers, UP_S)
        self.load.stop()
        if self.options.brokers > 1:
            self.until("replicas and learners", self._is_level, UP_S)
        self.report.verdicts = verdicts(self.load, final, self._end)
        self.report.verdicts.append(consumers.verdict(is_cleaned=self.options.kept_mb > 0))
        wipes = [(each["node"], each["at"]) for each in self.record.of("wiped")]
        self.report.verdicts.append(judges.registers(histories(self.load.registers, wipes)))
        self.report.problems += self.load.sight.problems[:20]
        for role in ("proxy", "broker", "controller"):  # so that nothing waits for nodes that have ended
            for node in self.cluster.of(role):
                status = node.stop()
                if status != 0:
                    self.report.problems.append(f"{node.name} ended with status {status}")
        if self.options.brokers > 1:
            self.report.verdicts.append(judges.equal_logs(logs(self.cluster)))

    def _is_level(self) -> bool:
        """Whether the logs of all brokers, learners included, end where everything is confirmed."""
        try:
            pages = [self.cluster.status(node)["member"] for node in self.cluster.of("broker")]
        except (OSError, ValueError):
            return False
        ends = {page[name] for page in pages for name in ("end", "confirmed")}
        self._end = min(ends)
        return len(ends) == 1

    def _final(self) -> Final:
        deadline = self.record.now() + UP_S
        while True:
            try:
                return final_reading([MQTT_TOPIC, QUEUE_TOPIC], master(self.cluster.controllers))
            except (OSError, LightMQError):
                if self.record.now() > deadline:
                    raise
                time.sleep(POLL_S)

    def flowing(self, when: str) -> bool:
        """Wait until every source gets answers to what it sends from now on."""
        begun = self.record.now()

        def back() -> bool:
            return all(source.ledger.back_after(begun) is not None for source in self.load.sources)

        return self.until(f"answers {when}", back, UP_S)

    def until(self, what: str, condition: Callable[[], bool], deadline_s: float) -> bool:
        """Wait; a condition that stays false is a problem of the run."""
        end = self.record.now() + deadline_s
        while not condition():
            if self.record.now() > end:
                self.report.problems.append(f"waited {deadline_s:.0f} s for {what} in vain: {self._complaints()}")
                self.record.note("in_vain", what=what)
                return False
            time.sleep(POLL_S)
        return True

    def _complaints(self) -> str:
        told = {source.ledger.source: source.failure for source in self.load.sources}
        if self.load.subscriber is not None:
            told["subscriber"] = self.load.subscriber.failure
        return "; ".join(f"{name}: {failure}" for name, failure in told.items() if failure)

    def _master(self) -> str | None:
        try:
            return master(self.cluster.controllers)
        except OSError:
            return None

    def _close(self) -> None:
        for node in self.cluster.nodes.values():
            if node.log.exists() and "Traceback" in node.log.read_text(errors="replace"):
                self.report.problems.append(f"{node.name} logged a traceback, see {node.log}")
        self.cluster.close()
        self.record.close()


def _caught_up(subscriber: Subscriber, wanted: dict[str, int]) -> bool:
    return all(len(set(subscriber.messages.get(topic, ()))) >= count for topic, count in wanted.items())


def verdicts(load: Load, final: Final, end: int) -> list[judges.Verdict]:
    """All judges over what was sent and read; ``end``: of the log."""
    assert load.subscriber is not None
    over_mqtt = [ledger for ledger in load.ledgers if ledger.topic != QUEUE_TOPIC]
    over_remoting = [ledger for ledger in load.ledgers if ledger.topic == QUEUE_TOPIC]
    received = load.subscriber.messages
    everything = [data for messages in received.values() for data in messages]
    observed = {queue: seen.table() for queue, seen in load.sight.seen.items()}
    final.complete(load.sight.seen)
    found = [
        judges.total_queue("log, MQTT", over_mqtt, final.all(MQTT_TOPIC)),
        judges.total_queue("log, producer", over_remoting, final.all(QUEUE_TOPIC)),
        judges.total_queue("subscriber", over_mqtt, everything),
        judges.order("order in the queues", final.by_queue()),
        judges.order("order at the subscriber", received),
        judges.same_bytes(observed, final.checksums(), {}),
        judges.places(over_remoting, final.placed()),
    ]
    if load.watch is not None:
        found.append(visibility(load.watch.samples, end))
    return found
