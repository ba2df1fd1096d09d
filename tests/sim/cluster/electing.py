"""A group that elects its own master: the shipped election and majority rule in place of the controllers.

What is modelled is a disk with the vote, and what carries questions and answers over the network.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

from broker.replication.leader import Acknowledge
from broker.replication.majority import Majority, majority_of
from broker.roles.election import ElectionCall, ElectionTimers, OwnVote, VoterAdmission
from broker.roles.election_seat import ElectionSeat
from broker.roles.group_node import Start
from broker.roles.steps import KnownGroup
from controller.replicas.group import GroupView
from remoting.protocol.bodies.election_body import Question, QuestionKind, Reply
from tests.sim.cluster.broker import Broker, Build, Cluster
from tests.sim.cluster.checkers import Judge
from tests.sim.cluster.controllers import CLUSTER, GROUP
from tests.sim.cluster.network import Network
from tests.sim.cluster.pace import Pace
from tests.sim.cluster.platter import Disks
from tests.sim.cluster.world import Node, Violation, World


@dataclass(frozen=True, slots=True)
class LogEnd:
    """How far a log goes, and in whose epoch."""

    end: int
    written: int


class SeatedBroker:
    """A broker's log and stream, for the shipped `ElectionSeat`."""

    def __init__(self, broker: ElectingBroker) -> None:
        self._broker = broker

    @property
    def store(self) -> Any:
        """The open log."""
        return self._broker.opened

    @property
    def client(self) -> Any:
        """What copies the master's log."""
        return self._broker.following

    def log_state(self) -> LogEnd:
        """Also while it is closed."""
        log = self._broker.log
        entry = log.epochs.at(log.end - 1) if log.end > log.begin else None
        return LogEnd(log.end, entry[0] if entry else 0)


class ScriptedSeat(ElectionSeat):
    """The shipped one; a story may keep its member from standing for election."""

    def __init__(self, broker: ElectingBroker) -> None:
        super().__init__(SeatedBroker(broker))
        self._broker = broker

    def is_sound(self) -> bool:
        return self._broker.may_stand and super().is_sound()

    def fence(self, epoch: int) -> None:
        if "acknowledges-after-voting" not in self._broker.flags:
            super().fence(epoch)


class Electorate:
    """Stands where the controllers stand elsewhere; there are none."""

    def __init__(self) -> None:
        self.nodes: list[Node] = []
        self.leader: Node | None = None
        self.brokers: list[ElectingBroker] = []

    def view(self) -> GroupView:
        """The master of the newest term, as one who sees everything sees it."""
        masters = [each for each in self.brokers if each.is_up and each.leading is not None and each.leads]
        master = max(masters, key=lambda each: each.leading.core.epoch, default=None)
        epoch = max((each.vote.term for each in self.brokers), default=0)
        idents = tuple(each.ident for each in self.brokers)
        return GroupView(CLUSTER, GROUP, master.ident if master else None, "", "", epoch, 0, idents, {})


class ElectingJudge(Judge):
    """What is shown is on the disks of a majority."""

    def _all_electable_have(self, start: int, end: int) -> None:
        assert self.cluster is not None
        brokers = self.cluster.brokers
        have = 0
        for each in brokers:
            first = max(start, each.log.begin)
            have += not each.safe or first >= end or each.log.held(first, end) == bytes(self._proof[first:end])
        if have < majority_of(len(brokers)):
            raise Violation("what is shown is on a majority", f"{start}..{end} is at {have} of {len(brokers)}")


def elected_cluster(
    world: World, network: Network, build: Build, pace: Pace, count: int, disks: Disks | None = None
) -> Cluster:
    """A group of so many brokers that elect their master."""
    electorate, judge = Electorate(), ElectingJudge(is_weak=False)
    cluster = judge.cluster = Cluster(world, network, electorate, judge, Acknowledge(), build, pace, disks=disks)
    cluster.brokers = electorate.brokers = [ElectingBroker(cluster, at, count) for at in range(1, count + 1)]
    return cluster


class ElectingBroker(Broker):
    """One member."""

    def __init__(self, cluster: Cluster, ident: int, members: int) -> None:
        self.names = frozenset(f"b{number}" for number in range(1, members + 1))
        self.vote = OwnVote()
        """On the disk, as `admitted` is."""
        self.broken_lines: set[str] = set()
        """Members that cannot be asked, though streams to them continue."""
        self.may_stand = True
        super().__init__(cluster, ident)
        self.admitted = False
        self._clear()

    @property
    def leads(self) -> bool:
        """Whether it has been elected, as far as it knows."""
        return self.elector.leads

    def _clear(self) -> None:
        super()._clear()
        pace, build = self.cluster.pace, self.cluster.build
        timers = ElectionTimers(int(pace.tick_ms), pace.live_ms, int(pace.tick_ms))
        self.elector = build.elector(self.name, self.names, timers, self.vote, self.world.chance.random)
        admission = VoterAdmission(self.name, self.names, admitted=self.admitted, join_ms=int(pace.tick_ms))
        self.steps = build.steps(
            self.ident, is_applied=True, epoch=self.saved_epoch, is_learner=False, poll_interval_ms=0
        )
        self.is_learner = not self.admitted
        self.seat = ScriptedSeat(self)
        self.seat.counted = self.admitted
        ids = {name: int(name[1:]) for name in self.names}
        self.election = build.election(self.elector, admission, self.steps, self.seat, self, ids)

    def _start(self) -> None:
        """Recover the log and what was voted."""
        Node.start(self)
        if not self.safe and "wiped-votes" not in self.flags:
            self.vote, self.admitted = OwnVote(), False
        elif not self.safe or "vote-forgotten" in self.flags:
            self.vote = OwnVote()
        self._clear()
        self.pauses = self._pause_watch()
        self.recover()
        self.is_fenced = False
        self.world.tell(self.name, f"starts, log {self.log.begin}..{self.log.end} {list(self.log.epochs)} {self.vote}")
        self.roles.feed(Start())
        self._tick()

    def _tick(self) -> None:
        self._ticks += 1
        self.pauses.may_answer()
        self.election.tick(int(self.world.now))
        self.streams.tick()
        self.keep_up()
        self.after(self.cluster.pace.tick_ms / 2, self._tick)

    def lost_something(self) -> None:
        """The log is damaged: it votes, and is counted, once it has copied what it lost."""
        self.world.tell(self.name, f"has lost what is behind {self.damage}")
        self.election.lost_something(int(self.world.now))
        self.election.settle()

    # -- the disk, the others and roles, for the election --------------------------------------------------------------

    @property
    def saved_vote(self) -> OwnVote:
        """On the disk."""
        return self.vote

    def save_vote(self, vote: OwnVote) -> None:
        """On the disk at once."""
        self.vote = vote

    def save_admitted(self, *, admitted: bool, reason: str) -> None:
        """On the disk at once."""
        self.world.tell(self.name, f"{'votes' if admitted else 'does not vote'} from now on: {reason}")
        self.admitted = self.safe = admitted
        self.is_learner = not admitted

    def addresses(self) -> tuple[str, str]:
        """Its name is its address."""
        return self.name, self.name

    def proved(self, term: int, proven_ms: int) -> None:
        """It may be the master still after a pause."""
        self.pauses.confirmed(term, self.ident, proven_ms)

    def report(self, view: KnownGroup) -> None:
        """Known of the group."""
        self.roles.report(self.steps, view, self.save_epoch)

    def taken(self) -> None:
        """Another member leads."""
        if self.leading is not None:
            self.leading.taken()

    def drop(self) -> None:
        """No role is wanted any more."""
        self.roles.drop()

    # -- questions ----------------------------------------------------------------------------------------------------

    def ask(self, kind: QuestionKind, call: ElectionCall, *, only: str = "") -> None:
        """Ask all others, or one."""
        asked = Question(
            cluster=CLUSTER, group=GROUP, members="", sender=self.name, kind=kind, term=call.term,
            place=self.seat.place(), asked_ms=int(self.world.now), trial=call.trial, forced=call.forced,
            address=self.name, ha_address=self.name,
        )  # fmt: skip
        for other in self.cluster.controllers.brokers:
            if other is not self and other.name not in self.broken_lines and only in ("", other.name):
                answer = partial(self._answered, self.boot, other.name, kind, call)
                self.cluster.network.send(self.name, other, other.question, self, asked, answer)

    def question(self, sender: ElectingBroker, asked: Question, answer: Any) -> None:
        """One of another member."""
        reply = self.election.asked(int(self.world.now), asked)
        self.cluster.network.send(self.name, sender, answer, reply)

    def _answered(self, boot: int, name: str, kind: QuestionKind, call: ElectionCall, reply: Reply) -> None:
        if boot == self.boot:
            self.election.answered(int(self.world.now), name, kind, call, reply)

    def superseded(self, _epoch: int) -> None:
        """Members tell each other their terms."""

    # -- roles ---------------------------------------------------------------------------------------------------------

    def move(self, to: int) -> None:
        """An operator has another member be the master in place of this one, if it is and that one is in sync."""
        leading = self.serving
        if leading is None or not self.leads or self.is_leaving or leading.is_handing_over:
            return
        if to in [each.broker for each in leading.core.replicas() if each.acknowledged >= 0 and not each.is_learner]:
            leading.hand_over(to)

    def seek(self, successor: int | None) -> None:
        """Summon a member that has everything."""
        self.election.summon(f"b{successor}" if successor is not None else "")

    def fenced_below(self, epoch: int) -> int:
        """The epoch that a replica tells the master of `epoch`: a later one if it has voted since."""
        return max(epoch, self.elector.vote.term)

    def end(self, boot: int) -> None:
        """Give the role up, then the process ends; it leads no more."""
        if self.is_up and boot == self.boot:
            self.elector.resign(int(self.world.now))
            self.election.settle()
        super().end(boot)

    def majority(self, epoch: int) -> Majority:
        """Who confirms what the master of an epoch writes."""
        elector, members = self.elector, frozenset(each.ident for each in self.cluster.controllers.brokers)
        return self.cluster.build.majority(members, lambda: elector.leads and elector.vote.term == epoch)
