"""Planted bugs: each is a rule of replication left out, to show that the checkers can fail and which rule carries what.

Most are bugs that systems of this kind shipped with. A name is what `--plant` takes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from broker.reading.read_barrier import Proved, ReadBarrier
from broker.replication.epochs import Epochs, Extent
from broker.replication.follower import Action, AdvanceConfirm, Cut, Follower, Reset
from broker.replication.frames import Frame, Hello, Ready, Refusal, Transfer, Welcome
from broker.replication.leader import FollowerProgress, Leader, Proposal, SyncStateSet
from broker.replication.majority import Majority
from broker.roles.election import ElectionCall, Elector, GroupElection, OwnVote, Place, VoteReply
from broker.roles.steps import KnownGroup, PauseWatch, ReplicaSteps, RoleChange, SyncStateSetChange
from broker.store.index.reader import Reader
from remoting.protocol.bodies.election_body import Question, Reply
from tests.sim.cluster.broker import Build


class RefusesEqualStart(Epochs):
    """A new epoch that starts where the last one does is not entered."""

    def add(self, epoch: int, start: int) -> None:
        if not len(self) or start > self.last_start:
            super().add(epoch, start)


class CommittedOnly(SyncStateSet):
    """A broker about to join is not waited for."""

    __slots__ = ()

    def _united(self) -> None:
        self.effective = self.committed


class OutAtOnce(SyncStateSet):
    """A broker about to leave is not waited for."""

    __slots__ = ()

    def propose(self, members) -> Proposal:
        proposal = super().propose(members)
        self.effective = proposal.members
        return proposal


class NoDoubt(SyncStateSet):
    """A proposal without an answer is taken for refused."""

    __slots__ = ()

    def unanswered(self, proposal: Proposal) -> None:
        self.refused(proposal)


class ConfirmIsEnough(Leader):
    """A replica with everything confirmed may join, whether or not it has reached this epoch."""

    def _caught_up(self, replica: FollowerProgress, confirm: int) -> bool:
        return replica.acknowledged >= confirm


class AnybodyJoins(Leader):
    """Any connected replica may join."""

    def _caught_up(self, replica: FollowerProgress, confirm: int) -> bool:
        return replica.sent >= 0


class SkipsTheAbsent(Leader):
    """Members without a connection do not limit the confirm position."""

    def advance(self, own_end: int) -> int:
        ends = [each.acknowledged for each in self.replicas() if each.broker in self.members.effective]
        self.confirm_position = max(self.confirm_position, min([own_end, *ends]))
        return self.confirm_position


class TrustsHello(Leader):
    """The end in a replica's hello counts as acknowledged, before anything was truncated."""

    def hello(self, connection: int, hello: Hello, log: Extent, now_ms: int) -> Welcome | Refusal:
        answer = super().hello(connection, hello, log, now_ms)
        if isinstance(answer, Welcome):
            self._replicas[connection].acknowledged = hello.end
        return answer

    def ready(self, connection: int, ready: Ready, log: Extent, now_ms: int) -> Refusal | None:
        return super().ready(connection, ready, log, now_ms)

    def acknowledged(self, connection: int, ack, now_ms: int) -> None:
        replica = self._replicas.get(connection)
        if replica is not None:
            before, replica.acknowledged = replica.acknowledged, min(replica.acknowledged, ack.end)
            super().acknowledged(connection, ack, now_ms)
            replica.acknowledged = max(before, replica.acknowledged)


class FollowsAnybody(Follower):
    """An older master is followed, although a newer one is known."""

    def __init__(self, identity, log: Extent, *, flushed: int, confirm: int, epoch: int, nonce: bytes) -> None:
        super().__init__(identity, log, flushed=flushed, confirm=confirm, epoch=0, nonce=nonce)
        self.epoch = 0


class AcknowledgesTheCut(Follower):
    """After a truncation its computed end is acknowledged, flushed or not."""

    def cut(self, end: int, flushed: int) -> Sequence[Action]:
        return super().cut(end, end)


class AcknowledgesTheReceived(Follower):
    """What arrived is acknowledged before it is written, let alone flushed."""

    def receive(self, frame: Frame) -> Sequence[Action]:
        actions = super().receive(frame)
        if isinstance(frame, Transfer) and len(frame.data) and len(actions) == 2:
            return [*actions, *self.flushed(self._end)]
        return actions


class ShowsWhatItHas(Follower):
    """Readers of a replica see all that it has, confirmed or not."""

    def receive(self, frame: Frame) -> Sequence[Action]:
        return [
            AdvanceConfirm(self._end) if isinstance(action, AdvanceConfirm) else action
            for action in super().receive(frame)
        ]


class KeepsWhatNobodyShares(Follower):
    """Of two logs with nothing in common the shorter end counts as common."""

    def receive(self, frame: Frame) -> Sequence[Action]:
        actions = super().receive(frame)
        if isinstance(frame, Welcome) and isinstance(actions[0], Reset):
            end = min(self._log.end, frame.end)
            if end >= max(frame.begin, self._log.begin):
                return [Cut(end, 0)]
        return actions


class ContinuesItsEpoch(ReplicaSteps):
    """A broker that is the master of the epoch that it knew before its start goes on as that."""

    def _same_epoch(self, view: KnownGroup) -> RoleChange | SyncStateSetChange | None:
        if self.view is None:
            self.view = view
            return self._take(view)
        return super()._same_epoch(view)


class TakesOlderReports(ReplicaSteps):
    """What was newer before is taken for news."""

    def update(self, view: KnownGroup) -> RoleChange | SyncStateSetChange | None:
        if view.epoch < self.epoch and view.master != self.broker_id:
            self.epoch, self.view = view.epoch, view
            return self._take(view)
        return super().update(view)


class AnswersAlways(PauseWatch):
    """The clock is ignored."""

    def may_answer(self) -> bool:
        super().may_answer()
        return True


class ForgetsAtTheBeginning(PauseWatch):
    """Only a broker that was paused as master is in doubt."""

    def lead(self, leader: Leader | None, doubtful: Callable[[], None] | None = None) -> None:
        super().lead(leader, doubtful)
        self._ran_ms, self._since_ms = self._now_ms(), None


class ReadsAll(Reader):
    """What is in the index may be read, confirmed or not."""

    def bounds(self, queue: int) -> tuple[int, int]:
        low, high = super().bounds(queue)
        return low, high + len(self._index.read(queue, high, 1_000))


class CountsTooFew(Majority):
    """Half of the members are taken for a majority."""

    @property
    def size(self) -> int:
        return len(self.members) // 2


class CountsOlderEpochs(Majority):
    """What an earlier epoch wrote is confirmed by counting."""

    def confirmed(self, own_end: int, acknowledged: Iterable[int], epoch_start: int, confirm: int) -> int:
        return super().confirmed(own_end, acknowledged, 0, confirm)


class ConfirmsAfterResigning(Majority):
    """A master that has resigned, and voted for another, counts on until its role ends."""

    def confirmed(self, own_end: int, acknowledged: Iterable[int], epoch_start: int, confirm: int) -> int:
        return Majority(self.members, lambda: True).confirmed(own_end, acknowledged, epoch_start, confirm)


class NeverResigns(Elector):
    """A leader that no majority answers leads on."""

    @property
    def proven_ms(self) -> int:
        return 2**62


class HearsVotersOnly(Elector):
    """Ignores who does not vote, also what it says of a later term."""

    def beat_answered(self, now_ms: int, sender: str, term: int, sent_ms: int, *, votes: bool) -> None:
        if votes:
            super().beat_answered(now_ms, sender, term, sent_ms, votes=votes)


class VotesForAnyLog(Elector):
    """Where the logs end makes no difference to a vote."""

    def asked(self, now_ms: int, sender: str, ask: ElectionCall, place: Place, own_place: Place) -> VoteReply:
        return super().asked(now_ms, sender, ask, place, (0, 0))


class VotesAgain(Elector):
    """Whom it has voted for in a term is forgotten."""

    def asked(self, now_ms: int, sender: str, ask: ElectionCall, place: Place, own_place: Place) -> VoteReply:
        granted = super().asked(now_ms, sender, ask, place, own_place)
        self.vote = OwnVote(self.vote.term)
        return granted


class VotesUnadmitted(GroupElection):
    """Who has forgotten what it promised votes all the same."""

    def asked(self, now_ms: int, question: Question) -> Reply:
        before, self.admission.admitted = self.admission.admitted, True
        try:
            return super().asked(now_ms, question)
        finally:
            self.admission.admitted = before


class AsksNobody(ReadBarrier):
    """A master takes for granted that it is the only one."""

    def wait(self, then: Proved) -> None:
        then(True)


def _electing(flag: str) -> Build:
    return Build(frozenset({flag}), elects=True)


RARE: dict[str, int] = {
    "expand-without-epoch-start": 1_350,
}
"""Where the search for a bug begins that few seeds show."""

PLANTS: dict[str, Build] = {
    "expand-without-epoch-start": Build(leader=ConfirmIsEnough),
    "epoch-refuses-equal-start": Build(epochs=RefusesEqualStart),
    "ack-before-fsync": Build(frozenset({"ack-before-fsync"})),
    "ack-before-write": Build(follower=AcknowledgesTheReceived),
    "ack-of-the-computed-cut": Build(follower=AcknowledgesTheCut),
    "replica-shows-what-it-has": Build(follower=ShowsWhatItHas),
    "reads-what-is-not-confirmed": Build(reader=ReadsAll),
    "replica-moves-readers": Build(frozenset({"replica-is-sure"})),
    "new-master-moves-readers": Build(frozenset({"new-master-is-sure"})),
    "confirm-without-the-joiner": Build(members=CommittedOnly),
    "confirm-without-the-leaver": Build(members=OutAtOnce),
    "confirm-without-the-absent": Build(leader=SkipsTheAbsent),
    "expand-anybody": Build(leader=AnybodyJoins),
    "hello-counts-as-ack": Build(leader=TrustsHello),
    "reused-epoch": Build(frozenset({"reused-epoch"}), steps=ContinuesItsEpoch),
    "unclean-election": Build(frozenset({"unclean-election"})),
    "set-forgotten-without-master": Build(frozenset({"forgotten-set"})),
    "header-epoch": Build(frozenset({"header-epoch"})),
    "epoch-after-its-bytes": Build(frozenset({"epoch-after-bytes"})),
    "promoted-shows-all": Build(frozenset({"promoted-shows-all"})),
    "counts-own-unflushed": Build(frozenset({"counts-own-unflushed"})),
    "acknowledges-at-write": Build(frozenset({"acknowledges-at-write"})),
    "stale-controller": Build(frozenset({"stale-reads"})),
    "answers-after-a-pause": Build(pauses=AnswersAlways),
    "hands-over-to-anybody": Build(frozenset({"hands-over-to-anybody"})),
    "vote-forgotten": _electing("vote-forgotten"),
    "vote-ignores-place": Build(elector=VotesForAnyLog, elects=True),
    "two-votes-a-term": Build(elector=VotesAgain, elects=True),
    "wiped-brokers-vote": _electing("wiped-votes"),
    "votes-unadmitted": Build(election=VotesUnadmitted, elects=True),
    "sends-back-without-proof": Build(barrier=AsksNobody, elects=True),
    "counts-less-than-a-majority": Build(majority=CountsTooFew, elects=True),
    "unclean-stays-in-sync": Build(frozenset({"unclean-stays"}), is_async=True),
}

ELECTIONS: dict[str, Build] = {
    "acknowledges-after-voting": _electing("acknowledges-after-voting"),
    "confirms-after-resigning": Build(majority=ConfirmsAfterResigning, elects=True),
    "counts-older-epochs": Build(majority=CountsOlderEpochs, elects=True),
    "no-check-quorum": Build(elector=NeverResigns, elects=True),
    "terms-of-voters-only": Build(elector=HearsVotersOnly, elects=True),
}
"""Bugs of elections that need an exact order of events: a story each shows them."""

SELDOM: dict[str, Build] = {
    "unanswered-means-refused": Build(members=NoDoubt),
    "believes-former-leaders": Build(frozenset({"believes-former-leaders"})),
    "follows-an-older-master": Build(
        frozenset({"follows-older", "stale-reads"}), follower=FollowsAnybody, steps=TakesOlderReports
    ),
    "soft-truncation": Build(frozenset({"soft-truncation"})),
    "entries-above-the-end-kept": Build(frozenset({"entries-above-end"})),
    "keeps-what-nobody-shares": Build(follower=KeepsWhatNobodyShares),
    "new-masters-never-doubt": Build(pauses=ForgetsAtTheBeginning),
}
"""Bugs that need several accidents at once: a test's hundreds of schedules seldom show them, long runs do."""
