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
from broker.roles.election import ElectionCall, ElectionTimers, Elector, GroupElection, OwnVote, VoterAdmission
from broker.roles.election_lines import ElectionLines
from broker.roles.election_members import MODE, GroupMembers
from broker.roles.election_seat import ElectionSeat
from broker.roles.group_node import StoodStill
from broker.roles.replicas_manager import OwnIdentity, SavedIdentity
from broker.roles.role_queue import RoleExecutor, RoleQueue
from broker.roles.steps import ControllerAnswer, KnownGroup, PauseWatch, ReplicaSteps, pause_limit_ms
from remoting import background, clock
from remoting.client.controllers import Controllers
from remoting.protocol.bodies.controller_body import decode_body, encode_body
from remoting.protocol.bodies.election_body import Question, QuestionKind, Reply
from remoting.protocol.errors import LocalMisuse, Refused
from remoting.protocol.frames.codes import ResponseCode
from remoting.protocol.frames.commands import Command
from remoting.transport.contracts import Dial, Peer

if TYPE_CHECKING:
    from broker.config import BrokerConfig

TICK_S = 0.02
"""How often the clock is looked at."""


class _ElectionHost:
    """A member's disk, lines and roles, for its election; what is saved raises OSError."""

    def __init__(
        self,
        own: OwnIdentity,
        lines: ElectionLines,
        seat: ElectionSeat,
        queue: RoleQueue,
        pauses: PauseWatch,
        steps: ReplicaSteps,
        addresses: Callable[[], tuple[str, str]],
        taken: asyncio.Event,
        log: Any,
    ) -> None:
        self._own, self._lines, self._seat, self._queue, self._pauses = own, lines, seat, queue, pauses
        self._steps, self._log = steps, log
        self.addresses, self.taken, self.drop = addresses, taken.set, queue.drop

    @property
    def saved_vote(self) -> OwnVote:
        return saved_vote(self._own.identity)

    def save_vote(self, vote: OwnVote) -> None:
        self._own.save(term=vote.term, voted_for=vote.voted_for)

    def save_admitted(self, *, admitted: bool, reason: str) -> None:
        if admitted:
            self._log.info("votes_now", reason=reason)
        if admitted or self._own.identity.admitted is not None:
            self._own.save(admitted=admitted)

    def ask(self, kind: QuestionKind, call: ElectionCall, *, only: str = "") -> None:
        self._lines.ask(kind, call, self._seat.place(), self.addresses(), only=only)

    def proved(self, term: int, proven_ms: int) -> None:
        own_id = self._steps.broker_id
        if self._pauses.confirmed(term, own_id, proven_ms):
            self._log.info("still_the_master", by="a majority of the members", epoch=term)

    def report(self, view: KnownGroup) -> None:
        self._queue.report(self._steps, view, self._own.save_epoch)


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
        self._member, self._log = member, log
        self._seat = seat
        identity, names, own = self.own.identity, frozenset(self.members.names), self.members.own
        vote = saved_vote(identity) if identity.term >= identity.epoch else OwnVote(identity.epoch)
        self.elector = Elector(own, names, _timers(config), vote, lambda: secrets.randbelow(1_000) / 1_000)
        self.admission = VoterAdmission(own, names, admitted=bool(identity.admitted))
        self.steps = ReplicaSteps(
            self.members.own_id, is_applied=True, epoch=identity.epoch, is_learner=False,
            poll_interval_ms=settings.poll_interval_ms,
        )  # fmt: skip
        self.controllers = Controllers(config.controllers, connect, timeout_ms=settings.request_timeout_ms)
        self.queue = RoleQueue(member, self._tick, failed, log)
        limit_ms = pause_limit_ms(settings.election_heartbeat_ms, settings.election_silence_ms)
        self.pauses = PauseWatch(limit_ms, _now_ms, self._in_doubt)
        self.lines = ElectionLines(config, self.members, connect, log, answered=self._answered, lost=self._lost)
        self._failed = failed
        self._taken = asyncio.Event()
        """Another member leads."""
        host = _ElectionHost(
            self.own, self.lines, seat, self.queue, self.pauses, self.steps, addresses, self._taken, log
        )
        ids = {name: self.members.id_of(name) for name in self.members.names}
        self.election = GroupElection(self.elector, self.admission, self.steps, seat, host, ids)
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
        self._tasks = [
            background.task(self.queue.run(), "carries out changes of role"),
            background.task(self._run(), "takes part in elections"),
        ]
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
            self.election.save()
        self._tasks.clear()
        await self.lines.close()
        await self.controllers.stop()

    def stopped_clean(self) -> None:
        """Everything is on the disk."""
        self.own.save(clean=True)

    def lost_something(self) -> None:
        """The log was found damaged: this broker votes, and is counted, once it has copied what it lost."""
        self.own.lost_something()
        self.election.lost_something(_now_ms())
        if self._tasks:
            self.election.settle()

    # -- what members ask for ------------------------------------------------------------------------------------------

    def majority(self, epoch: int) -> Majority:
        """Who confirms what the master of an epoch writes."""
        elector = self.elector
        return Majority(self.members.ids, lambda: elector.leads and elector.vote.term == epoch)

    @property
    def is_counted(self) -> bool:
        """Whether copies here count for the majority: not before this broker votes."""
        return self._seat.counted

    async def alter(self, epoch: int, members: frozenset[int], set_epoch: int) -> ControllerAnswer:
        """No set of replicas in sync is kept by such a group."""
        raise LocalMisuse(f"the members {sorted(members)} of set {set_epoch} in epoch {epoch}: the members are fixed")

    async def hand_over(self, successor: int | None) -> None:
        """Summon this member to lead, if there is one that has everything, and wait until another member leads.

        `steps.view` names it when this returns; the caller sets the limit.
        """
        if self.elector.leads:
            self._taken.clear()
            self.election.summon(self.members.names[successor - 1] if successor is not None else "")
        await self._taken.wait()

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
        return command.reply(body=encode_body(self.election.asked(_now_ms(), question)))

    def _answered(self, name: str, kind: QuestionKind, call: ElectionCall, reply: Reply) -> None:
        if not self._tasks:
            return
        self.election.answered(_now_ms(), name, kind, call, reply)

    def _lost(self, name: str) -> None:
        self.elector.lost(_now_ms(), name)

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
        self.pauses.may_answer()
        self.election.tick(_now_ms())

    def _in_doubt(self, paused_ms: int) -> None:
        self._log.warning("stood_still", paused_ms=paused_ms, epoch=self.steps.epoch)
        self.queue.feed(StoodStill())


def saved_vote(identity: SavedIdentity) -> OwnVote:
    """What the disk has."""
    return OwnVote(identity.term, identity.voted_for)


def _timers(config: BrokerConfig) -> ElectionTimers:
    settings = config.replication
    return ElectionTimers(settings.election_heartbeat_ms, settings.election_silence_ms, settings.election_interval_ms)


def _now_ms() -> int:
    return clock.monotonic_ns() // 1_000_000
