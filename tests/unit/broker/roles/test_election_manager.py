"""What a member answers, and what it has done before the answer leaves."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from broker.config import BrokerConfig, ReplicationConfig
from broker.roles.election import ElectionCall
from broker.roles.election_manager import ElectionManager
from broker.roles.group_node import Action, Event
from broker.roles.replicas_manager import IdentityFile
from remoting.client.connection import dial
from remoting.protocol.bodies.controller_body import decode_body, encode_body
from remoting.protocol.bodies.election_body import Question, QuestionKind, Reply
from remoting.protocol.errors import LocalMisuse, Refused, RemoteViolation
from remoting.protocol.frames.codes import RequestCode
from remoting.protocol.frames.commands import Command
from remoting.protocol.voting import VoteAnswer
from runtime.logs import get_logger

MEMBERS = ("n1@127.0.0.1:10911", "n2@127.0.0.1:10921", "n3@127.0.0.1:10931")


class Member:
    """A broker without a log that notes what it is told, and what the disk had then."""

    def __init__(self, directory: Path, *, end: int = 0) -> None:
        self.directory, self.end = directory, end
        self.written = 3
        self.fences: list[int] = []
        self.counted: list[bool] = []
        self.epoch, self.confirm = 3, 0
        self.config = BrokerConfig(
            data_directory=directory, controllers=(), port=10_921,
            replication=ReplicationConfig(enabled=True, mode="dledger", members=MEMBERS),
        )  # fmt: skip
        self.manager = ElectionManager(
            self.config, self, self, connect=dial,  # type: ignore[arg-type]
            addresses=lambda: ("h:1", "h:2"), failed=lambda _error: None,
            log=get_logger("test"),
        )  # fmt: skip

    def log_state(self) -> Member:
        return self

    def place(self) -> tuple[int, int]:
        return self.written, self.end

    def copied(self, epoch: int) -> int:
        return self.end if epoch else -1

    def is_sound(self) -> bool:
        return True

    def fence(self, epoch: int) -> None:
        self.fences.append(epoch)

    def count_copies(self, *, counted: bool) -> None:
        self.counted.append(counted)

    async def carry_out(self, action: Action) -> Event | None:
        raise NotImplementedError(action)

    def vote(self) -> tuple[int, str]:
        """What the disk has."""
        identity = IdentityFile(self.directory).load("DefaultCluster", "broker-a")
        return identity.term, identity.voted_for

    def ask(self, kind: QuestionKind, term: int, **changes: object) -> Reply:
        """A question of n1."""
        question = Question(
            cluster="DefaultCluster", group="broker-a", members=",".join(MEMBERS), sender="n1", kind=kind, term=term,
            place=(3, 500), asked_ms=77, address="a:1", ha_address="a:2",
        )  # fmt: skip
        question = msgspec.structs.replace(question, **changes)
        answer = self.manager.asked(None, Command(RequestCode.ELECTION, body=encode_body(question)))  # type: ignore[arg-type]
        return decode_body(answer.body, Reply)


async def admitted(directory: Path) -> Member:
    """A member that votes, with a log."""
    made = Member(directory)
    made.manager.own.save(broker_id=2, is_applied=True, admitted=True, members="n1,n2,n3", term=4)
    return Member(directory, end=400)


async def test_a_vote_is_on_the_disk_and_the_former_master_left_before_the_answer(tmp_path: Path) -> None:
    member = await admitted(tmp_path)
    assert member.ask(QuestionKind.VOTE, 5, trial=True).answer is VoteAnswer.ACCEPT
    assert (member.vote(), member.fences) == ((4, ""), [])
    reply = member.ask(QuestionKind.VOTE, 5)
    assert (reply.answer, reply.term, reply.asked_ms, reply.place) == (VoteAnswer.ACCEPT, 5, 77, (3, 400))
    assert (member.vote(), member.fences) == ((5, "n1"), [5])
    assert member.manager.fenced_below(4) == 5
    again = Member(tmp_path, end=400)
    assert again.ask(QuestionKind.VOTE, 5, sender="n3").answer is VoteAnswer.REJECT_ALREADY_VOTED


async def test_a_heartbeat_makes_its_sender_the_master(tmp_path: Path) -> None:
    member = await admitted(tmp_path)
    reply = member.ask(QuestionKind.BEAT, 6)
    role = member.manager.steps.role
    assert (reply.term, reply.votes, member.fences) == (6, True, [6])
    assert role is not None
    assert (role.is_master, role.view.epoch, role.view.master, role.view.ha_address) == (False, 6, 1, "a:2")
    assert member.ask(QuestionKind.BEAT, 5, sender="n3").term == 6
    assert not member.manager.majority(6).still_leads()


async def test_a_member_that_is_summoned_writes_its_vote_before_it_asks(tmp_path: Path) -> None:
    member = await admitted(tmp_path)
    member.ask(QuestionKind.BEAT, 6)
    assert member.ask(QuestionKind.SUMMON, 6).term == 7
    assert member.vote() == (7, "n2")
    empty = Member(tmp_path / "empty")
    assert empty.ask(QuestionKind.SUMMON, 6).term == 0


async def test_an_empty_member_votes_only_once_it_has_copied_what_there_was(tmp_path: Path) -> None:
    member = Member(tmp_path)
    assert not member.ask(QuestionKind.VOTE, 5).votes
    assert member.vote() == (0, "")
    assert not member.ask(QuestionKind.BEAT, 5).votes
    member.end = 500
    assert not member.ask(QuestionKind.BEAT, 5).votes, "n3 may know a later term"
    assert member.ask(QuestionKind.BEAT, 4, sender="n3").term == 5
    assert member.ask(QuestionKind.BEAT, 5).votes
    assert member.counted == [True]


async def test_a_damaged_log_takes_the_vote_away(tmp_path: Path) -> None:
    member = await admitted(tmp_path)
    member.manager.lost_something()
    assert not member.ask(QuestionKind.VOTE, 9).votes
    assert member.counted == [False]


async def test_a_later_term_counts_whoever_tells_it(tmp_path: Path) -> None:
    """Even one that does not vote: it may follow no leader of an earlier term."""
    member = await admitted(tmp_path)
    manager = member.manager
    manager.start()
    try:
        told = Reply(term=9, place=(3, 400), asked_ms=1, votes=False)
        manager._answered("n1", QuestionKind.BEAT, ElectionCall(4, beat=True), told)
        assert member.vote() == (9, "")
    finally:
        await manager.stop()


async def test_strangers_are_told_what_is_wrong(tmp_path: Path) -> None:
    member = await admitted(tmp_path)
    with pytest.raises(Refused, match="not a member of plant/broker-a"):
        member.ask(QuestionKind.VOTE, 5, cluster="plant")
    with pytest.raises(Refused, match="must be the same text on all of them"):
        member.ask(QuestionKind.VOTE, 5, members="n1@127.0.0.1:10911,n2@127.0.0.1:10921")
    with pytest.raises(Refused, match="must be the same text"):
        member.ask(QuestionKind.VOTE, 5, sender="n2")
    with pytest.raises(Refused, match="elects its master itself"):
        member.manager.pushed(Command(RequestCode.NOTIFY_BROKER_ROLE_CHANGED))
    for body in (b"", b"{}", b'{"term": -1}', b"\xff"):
        with pytest.raises(RemoteViolation):
            member.manager.asked(None, Command(RequestCode.ELECTION, body=body))  # type: ignore[arg-type]
    assert member.vote() == (4, "")


async def test_a_log_of_another_kind_of_broker_is_refused(tmp_path: Path) -> None:
    with pytest.raises(LocalMisuse, match="empty directories"):
        Member(tmp_path, end=8).manager.start()
