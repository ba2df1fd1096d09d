"""The connections to the other members of a group that elects its own master: questions out, answers and losses back.

A member answers questions only of those that have the same members in the same order, in the same cluster and group.
Why another one refuses is logged once, until it answers or refuses in other words. A question to a member that cannot
be reached is dropped: the clock asks again. Loop thread only.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from broker.roles.election import ElectionCall, Place
from broker.roles.election_members import GroupMembers
from remoting import clock
from remoting.client.connection import ReconnectingConnection
from remoting.protocol.bodies.controller_body import decode_body, encode_body
from remoting.protocol.bodies.election_body import Question, QuestionKind, Reply
from remoting.protocol.errors import LightMQError, Refused
from remoting.protocol.frames.codes import RequestCode, ResponseCode
from remoting.protocol.frames.commands import Command
from remoting.transport.contracts import Connection, Dial
from remoting.transport.failures import checked

if TYPE_CHECKING:
    from broker.config import BrokerConfig

DIAL_MS_FIRST, DIAL_MS_MAX = 20, 200
"""Pauses before a member is dialled again."""

Answered = Callable[[str, QuestionKind, ElectionCall, Reply], None]


class ElectionLines:
    """One connection to each of the other members."""

    def __init__(
        self,
        config: BrokerConfig,
        members: GroupMembers,
        connect: Dial,
        log: Any,
        *,
        answered: Answered,
        lost: Callable[[str], None],
    ) -> None:
        """`answered`: with the member's name, what was asked, and its answer; `lost`: a connection was, to this one."""
        self._config, self._members, self._log = config, members, log
        self._answered, self._lost = answered, lost
        self._lines = {
            name: self._line(name, address, connect)
            for name, address in members.addresses.items()
            if name != members.own
        }
        self._refusals: dict[str, str] = {}
        """What was logged last about each member that refuses."""

    def start(self) -> None:
        """Begin to connect."""
        for line in self._lines.values():
            line.start()

    async def close(self) -> None:
        """Close all connections."""
        for line in self._lines.values():
            await line.close()

    def reaches(self, name: str) -> bool:
        """Whether a member can be asked now; this broker always can."""
        return name == self._members.own or self._lines[name].up

    def check(self, question: Question) -> None:
        """Raises Refused when who asks is no member of this group, or has other members than this broker."""
        config, members = self._config, self._members
        if (question.cluster, question.group) != (config.cluster_name, config.broker_name):
            raise Refused(
                ResponseCode.NO_PERMISSION,
                f"this is {members.own} of {config.cluster_name}/{config.broker_name}, not a member of "
                f"{question.cluster}/{question.group}: correct replication.members, or cluster_name and broker_name",
            )
        if question.members != members.text or question.sender not in self._lines:
            raise Refused(
                ResponseCode.NO_PERMISSION,
                f"member {question.sender} has the members {question.members}, {members.own} has "
                f"{members.text}: replication.members must be the same text on all of them; restart the wrong one",
            )

    def ask(
        self, kind: QuestionKind, call: ElectionCall, place: Place, addresses: tuple[str, str], *, only: str = ""
    ) -> None:
        """Ask all others, or `only` one; `addresses` of this broker, for clients and for replicas, go with a leader's
        heartbeat."""
        config = self._config
        address, ha_address = addresses if kind is QuestionKind.BEAT else ("", "")
        question = Question(
            cluster=config.cluster_name, group=config.broker_name, members=self._members.text,
            sender=self._members.own, kind=kind, term=call.term, place=place,
            asked_ms=clock.monotonic_ns() // 1_000_000, trial=call.trial, forced=call.forced,
            address=address, ha_address=ha_address,
        )  # fmt: skip
        body = encode_body(question)
        for name, line in self._lines.items():
            if line.up and only in ("", name):
                command = Command(RequestCode.ELECTION, body=body)
                answered = partial(self._received, name, kind, call)
                try:
                    line.call(command, answered, config.replication.request_timeout_ms)
                except LightMQError as error:
                    self._log.debug("election_question_not_sent", member=name, error=str(error))

    def _received(
        self, name: str, kind: QuestionKind, call: ElectionCall, answer: Command | None, error: Exception | None
    ) -> None:
        try:
            if answer is None:
                raise error if isinstance(error, LightMQError) else Refused(ResponseCode.SYSTEM_ERROR, str(error))
            reply = decode_body(checked(answer).body, Reply)
        except LightMQError as problem:
            if isinstance(problem, Refused) and self._refusals.get(name) != problem.remark:
                self._refusals[name] = problem.remark
                self._log.error("election_refused", member=name, remark=problem.remark)
            return
        self._refusals.pop(name, None)
        self._answered(name, kind, call, reply)

    def _line(self, name: str, address: str, connect: Dial) -> ReconnectingConnection:
        async def attempt() -> Connection:
            return await connect(address)

        line = ReconnectingConnection(
            attempt, address, pause_first_ms=DIAL_MS_FIRST, pause_ms_max=DIAL_MS_MAX, spread=_spread
        )
        line.on_down(lambda _reason: self._lost(name))
        return line


def _spread() -> float:
    return 0.5 + secrets.randbelow(500) / 1_000
