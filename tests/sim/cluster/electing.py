"""A group that elects its own master: the real election and majority rule in place of the controllers.

What is modelled here is what `broker/roles/election_manager` does around them: the vote on the disk before it is shown,
questions and answers over the network.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from broker.replication.leader import Acknowledge
from broker.replication.majority import Majority, majority_of
from broker.roles.election import ElectionCall, ElectionTimers, OwnVote, Place, VoterAdmission, VoteReply
from broker.roles.group_node import Start
from broker.roles.steps import KnownGroup
from controller.replicas.group import GroupView
from remoting.protocol.voting import VoteAnswer
from tests.sim.cluster.broker import Broker, Build, Cluster
from tests.sim.cluster.checkers import Judge
from tests.sim.cluster.controllers import CLUSTER, GROUP
from tests.sim.cluster.network import Network
from tests.sim.cluster.pace import Pace
from tests.sim.cluster.platter import Disks
from tests.sim.cluster.world import Node, Violation, World

JOIN_TICKS = 2


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
        pace = self.cluster.pace
        timers = ElectionTimers(int(pace.tick_ms), pace.live_ms, int(pace.tick_ms))
        self.elector = self.cluster.build.elector(self.name, self.names, timers, self.vote, self.world.chance.random)
        self.admission = VoterAdmission(self.name, self.names, admitted=self.admitted)
        self.steps = self.cluster.build.steps(
            self.ident, is_applied=True, epoch=self.saved_epoch, is_learner=False, poll_interval_ms=0
        )
        self.steps.found_leader(0)
        self.steps.registered(0)  # there is nobody to register at
        self.is_learner = not self.admitted

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
        now_ms = int(self.world.now)
        if not self.admission.admitted:
            if self.admission.founds(self.elector.vote, self.place()):
                self._admit()
            elif self._ticks % JOIN_TICKS == 0:
                self._ask_all("join", ElectionCall(self.elector.vote.term))
        self.elector.tick(now_ms, may_stand=self.admission.admitted and self._may_stand())
        self._settle()
        self.streams.tick()
        self.keep_up()
        self.after(self.cluster.pace.tick_ms / 2, self._tick)

    def _may_stand(self) -> bool:
        return self.may_stand and not self.knows_damage()

    def lost_something(self) -> None:
        """The log is damaged: it votes, and is counted, once it has copied what it lost."""
        self.world.tell(self.name, f"has lost what is behind {self.damage}")
        self.admission.forget()
        self.admitted = self.safe = False
        self.is_learner = True
        if self.following is not None:
            self.following.introduce()
        self.elector.resign(int(self.world.now))
        self.roles.drop()
        self.steps.lost_something(0)
        self.steps.found_leader(0)
        self.steps.registered(0)
        self._settle()

    def place(self) -> Place:
        """Where the log ends."""
        entry = self.log.epochs.at(self.log.end - 1) if self.log.end > self.log.begin else None
        return (entry[0] if entry else 0, self.log.end)

    # -- questions ----------------------------------------------------------------------------------------------------

    def _ask_all(self, kind: str, ask: ElectionCall) -> None:
        now_ms, boot = int(self.world.now), self.boot
        for other in self.cluster.controllers.brokers:
            if other is not self and other.name not in self.broken_lines:
                answer = partial(self._answered_by, boot, other.name, kind, ask, now_ms)
                self.cluster.network.send(self.name, other, other.question, self, kind, ask, self.place(), answer)

    def question(self, sender: ElectingBroker, kind: str, ask: ElectionCall, place: Place, answer: Any) -> None:
        """One of another member."""
        now_ms, elector, own_place = int(self.world.now), self.elector, self.place()
        if "vote-ignores-place" in self.flags or (ask.forced and "forced-votes-ignore-place" in self.flags):
            own_place = (0, 0)
        if not ask.trial:
            self.admission.reported(sender.name, ask.term, place, votes=kind != "join")
        granted = VoteReply(elector.vote.term, VoteAnswer.ACCEPT)
        if kind == "vote" and self.admission.admitted:
            granted = elector.asked(now_ms, sender.name, ask, place, own_place)
            if "two-votes" in self.flags:
                elector.vote = OwnVote(elector.vote.term)
        elif kind == "summon" and self.admission.admitted and self._may_stand():
            elector.summoned(now_ms, sender.name, ask.term)
        elif kind == "beat":
            if elector.beaten(now_ms, sender.name, ask.term):
                self._catch_up(sender, ask.term, place[1])
            granted = VoteReply(elector.vote.term, VoteAnswer.ACCEPT)
        self._settle()
        self.cluster.network.send(self.name, sender, answer, granted, own_place, self.admission.admitted)

    def _answered_by(
        self,
        boot: int,
        name: str,
        kind: str,
        ask: ElectionCall,
        sent_ms: int,
        granted: VoteReply,
        place: Place,
        votes: bool,
    ) -> None:
        if boot != self.boot:
            return
        now_ms, elector = int(self.world.now), self.elector
        if not ask.trial:
            self.admission.reported(name, granted.term, place, votes=votes)
        if kind == "beat":
            elector.beat_answered(now_ms, name, granted.term, sent_ms, votes=votes)
            if elector.leads:
                self.pauses.confirmed(elector.vote.term, self.ident, elector.proven_ms)
        elif kind == "vote" and votes:
            elector.answered(now_ms, name, ask, granted)
        self._settle()

    def _catch_up(self, leader: ElectingBroker, term: int, end: int) -> None:
        if self.admission.admitted or self.following is None or not self.following.continues(term):
            return
        if not self.follows(leader):
            return
        if self.admission.catches_up(term, end, self.log.kept):
            self._admit()

    def _admit(self) -> None:
        self.world.tell(self.name, "votes from now on")
        self.admission.admitted = self.admitted = self.safe = True
        self.is_learner = False
        if self.following is not None:
            self.following.introduce()

    def superseded(self, _epoch: int) -> None:
        """Members tell each other their terms."""

    # -- roles ---------------------------------------------------------------------------------------------------------

    def _settle(self) -> None:
        elector = self.elector
        if elector.vote != self.vote:
            if (
                elector.vote.term > self.vote.term
                and self.following is not None
                and "acknowledges-after-voting" not in self.flags
            ):
                self.following.following.fence(elector.vote.term)
            self.vote = elector.vote
        self._publish()
        asks, elector.outbox = elector.outbox, []
        for ask in asks:
            if ask.term >= elector.vote.term:
                self._ask_all("beat" if ask.beat else "vote", ask)

    def move(self, to: int) -> None:
        """An operator has another member be the master in place of this one, if it is and that one is in sync."""
        leading = self.serving
        if leading is None or not self.leads or self.is_leaving or leading.is_handing_over:
            return
        if to in [each.broker for each in leading.core.replicas() if each.acknowledged >= 0 and not each.is_learner]:
            leading.hand_over(to)

    def seek(self, successor: int | None) -> None:
        """Summon a member that has everything."""
        if successor is not None and self.leads:
            call, answer = ElectionCall(self.elector.vote.term), lambda *_answer: None
            other = self.cluster.controllers.brokers[successor - 1]
            self.cluster.network.send(self.name, other, other.question, self, "summon", call, self.place(), answer)

    def _publish(self) -> None:
        elector = self.elector
        leader = elector.outcome(self.steps.epoch)
        if leader is None:
            return
        if leader and not elector.leads and self.leading is not None:
            self.leading.taken()
        members = frozenset(each.ident for each in self.cluster.controllers.brokers)
        master = int(leader[1:]) if leader else None
        view = KnownGroup(elector.vote.term, master, leader, leader, members)
        self.roles.report(self.steps, view, self.save_epoch)

    def fenced_below(self, epoch: int) -> int:
        """The epoch that a replica tells the master of `epoch`: a later one if it has voted since."""
        return max(epoch, self.elector.vote.term)

    def end(self, boot: int) -> None:
        """Give the role up, then the process ends; it leads no more."""
        if self.is_up and boot == self.boot:
            self.elector.resign(int(self.world.now))
            self._settle()
        super().end(boot)

    def majority(self, epoch: int) -> Majority:
        """Who confirms what the master of an epoch writes."""
        elector, members = self.elector, frozenset(each.ident for each in self.cluster.controllers.brokers)
        return self.cluster.build.majority(members, lambda: elector.leads and elector.vote.term == epoch)
