"""What brokers that elect themselves say to each other (code 9095), as JSON: a question, and its answer.

A question names the cluster, the group, all members in their order, and who asks. Members whose lists differ, or who
belong to another group, never get as far as a vote. A place is (epoch of the last byte of the log, its end). Pure.
"""

from __future__ import annotations

from enum import Enum
from typing import Annotated

import msgspec

from remoting.protocol.voting import VoteAnswer

Term = Annotated[int, msgspec.Meta(ge=0, le=2**32 - 1)]
Position = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]


class QuestionKind(Enum):
    """A vote, proof that a master leads still, or how far the others are."""

    VOTE = "vote"
    BEAT = "beat"
    """The sender leads in this term; the answer proves that it still does."""
    JOIN = "join"
    """The sender may not vote yet and asks how far the others are."""
    SUMMON = "summon"
    """The sender leads in this term and wants the asked member in its place."""


class Question(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One member to another."""

    cluster: str
    group: str
    members: str
    """All members as configured, `name@host:port`, separated by commas."""
    sender: str
    kind: QuestionKind
    term: Term
    place: tuple[Term, Position]
    asked_ms: int = 0
    """The sender's clock; the answer repeats it."""
    trial: bool = False
    """Would you vote in this term, which has not begun?"""
    forced: bool = False
    """The leader of the term before has summoned the sender: that there is a leader is no reason against it."""
    address: str = ""
    """Of a leader: where clients reach it."""
    ha_address: str = ""
    """Of a leader: where replicas reach it."""


class Reply(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The answer; `term` is the one that was asked for where a trial is granted, else the answering member's."""

    term: Term
    place: tuple[Term, Position]
    asked_ms: int
    answer: VoteAnswer = VoteAnswer.ACCEPT
    """To a vote; None of these, but ACCEPT, comes with a heartbeat that was taken."""
    votes: bool = True
    """Whether the member votes."""
