"""Questions and answers of an election survive the wire, and anything else is refused."""

from __future__ import annotations

import pytest

from remoting.protocol.bodies.controller_body import decode_body, encode_body
from remoting.protocol.bodies.election_body import Question, QuestionKind, Reply
from remoting.protocol.errors import RemoteViolation
from remoting.protocol.voting import VoteAnswer

QUESTION = Question(
    cluster="plant", group="a", members="n1@h:1,n2@h:2", sender="n1", kind=QuestionKind.BEAT, term=2**32 - 1,
    place=(7, 2**40), asked_ms=5, address="h:1", ha_address="h:3",
)  # fmt: skip


def test_they_survive_the_wire() -> None:
    assert decode_body(encode_body(QUESTION), Question) == QUESTION
    reply = Reply(term=3, place=(2, 9), asked_ms=5, answer=VoteAnswer.REJECT_ALREADY_VOTED, votes=False)
    assert decode_body(encode_body(reply), Reply) == reply


@pytest.mark.parametrize(
    ("was", "becomes"),
    [(b'"beat"', b'"crown"'), (b"4294967295", b"4294967296"), (b"[7,", b"[-7,"), (b'"plant"', b"1")],
)
def test_anything_else_is_refused(was: bytes, becomes: bytes) -> None:
    body = encode_body(QUESTION)
    assert was in body
    with pytest.raises(RemoteViolation):
        decode_body(body.replace(was, becomes), Question)
