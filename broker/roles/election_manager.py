"""Gives a broker its roles in a group that elects its own master (`broker.replication.mode = "dledger"`).

    questions of the other members (code 9095) --> Elector --> vote on the disk --> answer
    the clock, answers to own questions        --> Elector --> vote on the disk --> questions, role

The outcome goes the way of the controllers' decisions: `ReplicaSteps.update`, then `RoleQueue`. Replication is the
same too; what differs is who is counted for the confirm position (`Majority`) and that the members are fixed.

Invariants: the vote is on the disk before anything that shows it is sent, and before that a replica stops to
acknowledge to the master of an earlier term, and a master to confirm (`Majority.still_leads`). Members whose lists
differ never vote for each other. Loop rule: all on the loop's thread; writing the vote blocks it for one fsync.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from broker.replication.majority import Majority
from broker.roles.election import ElectionCall, ElectionTimers, Elector, OwnVote, VoterAdmission, VoteReply
from broker.roles.election_lines import ElectionLines
from broker.roles.election_members import MODE, GroupMembers
from broker.roles.election_seat import ElectionSeat
from broker.roles.group_node import StoodStill
from broker.roles.replicas_manager import OwnIdentity
from broker.roles.role_queue import RoleExecutor, RoleQueue
from broker.roles.steps import KnownGroup, PauseWatch, ReplicaSteps, pause_limit_ms
from remoting import clock
from remoting.client.controllers import Controllers
from remoting.protocol.bodies.controller_body import decode_body, encode_body
from remoting.protocol.bodies.election_body import Question, QuestionKind, Reply
from remoting.protocol.errors import LocalMisuse, Refused
from remoting.protocol.frames.codes import ResponseCode
from remoting.protocol.frames.commands import Command
from remoting.protocol.voting import VoteAnswer
from remoting.transport.contracts import Dial, Peer

if TYPE_CHECKING:
    from broker.config import BrokerConfig

TICK_S = 0.02
"""How often the clock is looked at."""


class ElectionManager:
    """One broker among the others of its group."""

    def __init__(
        self,
        config: BrokerConfig,
        member: RoleExecutor,
        seat: ElectionSeat,
        *,
        connect: Dial,
        addresses: Callable[[], tuple[str, str]],
        failed: Callable[[Exception], None],
        log: Any,
    ) -> None:
        """`addresses`: the broker's own, for clients and for replicas. Raises LocalMisuse for a wrong configuration."""
        settings = config.replication
        self.members = GroupMembers.of(config)
        self.own = OwnIdentity(config)
        self.members.check_identity(self.own.identity)
        self._member, self._addresses, self._log = member, addresses, log
        self._seat = seat
        identity, names, own = self.own.identity, frozenset(self.members.names), self.members.own
        vote = self._saved if identity.term >= identity.epoch else OwnVote(identity.epoch)
        self.elector = Elector(own, names, _timers(config), vote, lambda: secrets.randbelow(1_000) / 1_000)
        self.admission = VoterAdmission(own, names, admitted=bool(identity.admitted))
        self.steps = ReplicaSteps(
            self.members.own_id, is_applied=True, epoch=identity.epoch, is_learner=False,
            poll_interval_ms=settings.poll_interval_ms,
        )  # fmt: skip
        self._register()
        self.controllers = Controllers(config.controllers, connect, timeout_ms=settings.request_timeout_ms)
        self.queue = RoleQueue(member, self._tick, failed, log)
        limit_ms = pause_limit_ms(settings.election_heartbeat_ms, settings.election_silence_ms)
        self.pauses = PauseWatch(limit_ms, _now_ms, self._in_doubt)
        self.lines = ElectionLines(config, self.members, connect, log, answered=self._answered, lost=self._lost)
        self._failed = failed
        self._leader_addresses = ("", "")
        self._tasks: list[asyncio.Task[None]] = []

    # -- start and stop ------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Begin to vote and to stand. Raises LocalMisuse for a log that was not written by such a group."""
        state, identity = self._member.log_state(), self.own.identity
        self.members.check_log(identity, state.end)
        self.own.save(
            broker_id=self.members.own_id, is_applied=True, admitted=bool(identity.admitted), clean=False,
            members=",".join(self.members.names),
        )  # fmt: skip
        self._seat.count_copies(counted=self.admission.admitted)
        self.lines.start()
        self.controllers.start()
        loop = asyncio.get_running_loop()
        self._tasks = [loop.create_task(self.queue.run()), loop.create_task(self._run())]
        for warning in self.members.warnings():
            self._log.warning("election_members", warning=warning)
        self._log.info("elects_its_master", member=self.members.own, members=self.members.text)

    async def stop(self) -> None:
        """Lead no more, ask and answer nothing."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._tasks:
            self.elector.resign(_now_ms())
            self._save()
        self._tasks.clear()
        await self.lines.close()
        await self.controllers.stop()

    def stopped_clean(self) -> None:
        """Everything is on the disk."""
        self.own.save(clean=True)

    def lost_something(self) -> None:
        """The log was found damaged: this broker votes, and is counted, once it has copied what it lost."""
        self.own.lost_something()
        self.admission.forget()
        if self.own.identity.admitted is not None:
            self.own.save(admitted=False)
        self._seat.count_copies(counted=False)
        self.elector.resign(_now_ms())
        self.queue.drop()
        self.steps.lost_something(_now_ms())
        self._register()
        if self._tasks:
            self._settle()

    # -- what members ask for ------------------------------------------------------------------------------------------

    def majority(self, epoch: int) -> Majority:
        """Who confirms what the master of an epoch writes."""
        elector = self.elector
        return Majority(self.members.ids, lambda: elector.leads and elector.vote.term == epoch)

    @property
    def is_counted(self) -> bool:
        """Whether copies here count for the majority: not before this broker votes."""
        return self._seat.counted

    async def alter(self, epoch: int, members: frozenset[int], set_epoch: int) -> KnownGroup:
        """No set of replicas in sync is kept by such a group."""
        raise LocalMisuse(f"the members {sorted(members)} of set {set_epoch} in epoch {epoch}: the members are fixed")

    async def hand_over(self, successor: int | None) -> None:
        """Summon this member to lead, if there is one that has everything, and wait until another member leads.

        `steps.view` names it when this returns; the caller sets the limit.
        """
        if self.elector.leads:
            self._seat.taken.clear()
            if successor is not None:
                name = self.members.names[successor - 1]
                self._ask(QuestionKind.SUMMON, ElectionCall(self.elector.vote.term), only=name)
        await self._seat.taken.wait()

    async def knows_leader(self) -> bool:
        """Whether the leading controller is known, which holds the users; where there are controllers."""
        return bool(self.controllers.leader) or await self.controllers.find_leader()

    async def group_size(self) -> int:
        """How many members the group has."""
        return len(self.members.names)

    def ask_again(self) -> None:
        """There may be another master: what it knows comes with its heartbeats."""

    def pushed(self, command: Command) -> None:
        """Nobody appoints masters here. Raises Refused."""
        raise Refused(ResponseCode.NO_PERMISSION, f"request {command.code}: this group elects its master itself")

    def fenced_below(self, epoch: int) -> int:
        """The epoch that a replica tells the master of `epoch`: a later one if it has voted since."""
        return max(epoch, self.elector.vote.term)

    def status(self) -> dict[str, Any]:
        """For the status page."""
        elector, names = self.elector, self.members.names
        return {
            "mode": MODE,
            "term": elector.vote.term,
            "leader": elector.leader,
            "votes": self.admission.admitted,
            "members": [
                {
                    "id": number,
                    "name": name,
                    "address": self.members.addresses[name],
                    "reachable": self.lines.reaches(name),
                }
                for number, name in enumerate(names, 1)
            ],
        }

    # -- questions -----------------------------------------------------------------------------------------------------

    def asked(self, _peer: Peer, command: Command) -> Command:
        """Answer another member. Raises RemoteViolation, Refused."""
        question = decode_body(command.body, Question)
        self.lines.check(question)
        now_ms, elector, place = _now_ms(), self.elector, self._seat.place()
        if not question.trial:
            votes = question.kind is not QuestionKind.JOIN
            self.admission.reported(question.sender, question.term, question.place, votes=votes)
        granted = VoteReply(elector.vote.term, VoteAnswer.ACCEPT)
        if question.kind is QuestionKind.VOTE and self.admission.admitted:
            ask = ElectionCall(question.term, trial=question.trial, forced=question.forced)
            granted = elector.asked(now_ms, question.sender, ask, question.place, place)
        elif question.kind is QuestionKind.SUMMON and self.admission.admitted and self._seat.is_sound():
            elector.summoned(now_ms, question.sender, question.term)
            granted = VoteReply(elector.vote.term, VoteAnswer.ACCEPT)
        elif question.kind is QuestionKind.BEAT:
            if elector.beaten(now_ms, question.sender, question.term):
                self._leader_addresses = question.address, question.ha_address
                self._catch_up(question)
            granted = VoteReply(elector.vote.term, VoteAnswer.ACCEPT)
        self._settle()
        reply = Reply(
            term=granted.term, place=place, asked_ms=question.asked_ms, answer=granted.answer,
            votes=self.admission.admitted,
        )  # fmt: skip
        return command.reply(body=encode_body(reply))

    def _answered(self, name: str, kind: QuestionKind, call: ElectionCall, reply: Reply) -> None:
        if not self._tasks:
            return
        now_ms, elector = _now_ms(), self.elector
        if not call.trial:
            self.admission.reported(name, reply.term, reply.place, votes=reply.votes)
        if kind is QuestionKind.BEAT:
            elector.beat_answered(now_ms, name, reply.term, reply.asked_ms, votes=reply.votes)
            self._prove()
        elif kind is QuestionKind.VOTE and reply.votes:
            elector.answered(now_ms, name, call, VoteReply(reply.term, reply.answer))
        self._settle()

    def _ask(self, kind: QuestionKind, call: ElectionCall, *, only: str = "") -> None:
        self.lines.ask(kind, call, self._seat.place(), self._addresses(), only=only)

    def _lost(self, name: str) -> None:
        self.elector.lost(_now_ms(), name)

    def _prove(self) -> None:
        """A majority has answered: a master that stood still may be the master still."""
        elector = self.elector
        if elector.leads and self.pauses.confirmed(elector.vote.term, self.members.own_id, elector.proven_ms):
            self._log.info("still_the_master", by="a majority of the members", epoch=elector.vote.term)

    # -- the clock -----------------------------------------------------------------------------------------------------

    async def _run(self) -> None:
        while True:
            try:
                self._tick()
            except OSError as error:  # the vote cannot be written: nothing may be answered any more
                self._failed(error)
                raise
            await asyncio.sleep(TICK_S)

    def _tick(self) -> None:
        now_ms = _now_ms()
        self.pauses.may_answer()
        admitted = self.admission.admitted
        if not admitted:
            self._join(now_ms)
        self.elector.tick(now_ms, may_stand=admitted and self._seat.is_sound())
        self._settle()

    def _join(self, now_ms: int) -> None:
        if self.admission.founds(self.elector.vote, self._seat.place()):
            self._admit("the group is new")
        elif self.admission.asks(now_ms):
            self._ask(QuestionKind.JOIN, ElectionCall(self.elector.vote.term))

    def _catch_up(self, beat: Question) -> None:
        if not self.admission.admitted:
            end = self._seat.copied(beat.term)
            if end >= 0 and self.admission.catches_up(beat.term, beat.place[1], end):
                self._admit("the master's log is copied")

    def _admit(self, reason: str) -> None:
        self.admission.admitted = True
        self.own.save(admitted=True)
        self._log.info("votes_now", reason=reason)
        self._seat.count_copies(counted=True)

    def _in_doubt(self, paused_ms: int) -> None:
        self._log.warning("stood_still", paused_ms=paused_ms, epoch=self.steps.epoch)
        self.queue.feed(StoodStill())

    # -- roles ---------------------------------------------------------------------------------------------------------

    def _settle(self) -> None:
        """After anything that happened: the disk first, then this broker's role, then the others."""
        elector = self.elector
        self._save()
        self._publish()
        asks, elector.outbox = elector.outbox, []
        for ask in asks:
            if ask.term >= elector.vote.term:
                self._ask(QuestionKind.BEAT if ask.beat else QuestionKind.VOTE, ask)

    @property
    def _saved(self) -> OwnVote:
        """What the disk has."""
        return OwnVote(self.own.identity.term, self.own.identity.voted_for)

    def _save(self) -> None:
        vote = self.elector.vote
        if vote != self._saved:
            if vote.term > self._saved.term:
                self._seat.fence(vote.term)
            self.own.save(term=vote.term, voted_for=vote.voted_for)

    def _publish(self) -> None:
        elector, members = self.elector, self.members
        leader = elector.outcome(self.steps.epoch)
        if leader is None:
            return
        if leader and not elector.leads:
            self._seat.taken.set()
        addresses = self._addresses() if elector.leads else self._leader_addresses if leader else ("", "")
        master = members.id_of(leader) if leader else None
        view = KnownGroup(elector.vote.term, master, *addresses, members.ids)
        self.queue.report(self.steps, view, self.own.save_epoch)

    def _register(self) -> None:
        """Roles may be taken: there is nobody to register at."""
        self.steps.found_leader(_now_ms())
        self.steps.registered(_now_ms())


def _timers(config: BrokerConfig) -> ElectionTimers:
    settings = config.replication
    return ElectionTimers(settings.election_heartbeat_ms, settings.election_silence_ms, settings.election_interval_ms)


def _now_ms() -> int:
    return clock.monotonic_ns() // 1_000_000
