"""What a request for messages says, and in which order the queues of a topic get their turn."""

from __future__ import annotations

import pytest

from broker.pop.popping import ALL_QUEUES, PopAsk, asked, beginning, by_turns, invisible_time, require_poppable
from broker.topics.topics import TopicSettings
from remoting.protocol.errors import Refused
from remoting.protocol.frames.codes import ResponseCode

QUEUES = [("t", index, 10 + index) for index in range(3)]
RETRIES = [("%RETRY%g+t", index, 20 + index) for index in range(3)]


def refuse(reason: str, code: int, _remark: str) -> Refused:
    return Refused(code, reason)


def ask(**fields: str) -> PopAsk:
    return asked("g", "t", fields, refuse)


def test_each_pop_begins_with_the_next_queue_and_each_fifth_with_the_retry_topic() -> None:
    for turn in range(1, 11):
        order = by_turns("t", QUEUES, RETRIES[:1], turn, ranked=False)
        retry = order.pop(0 if turn % 5 == 0 else -1)
        assert retry == RETRIES[0]
        assert order == [*QUEUES[turn % 3 :], *QUEUES[: turn % 3]]


def test_a_priority_comes_with_its_queue_of_the_retry_topic() -> None:
    assert [place[1] for place in by_turns("t", QUEUES, RETRIES, 1, ranked=True)] == [2, 2, 1, 1, 0, 0]
    assert by_turns("t", QUEUES, RETRIES, 1, ranked=True)[0] == QUEUES[2]
    assert by_turns("t", QUEUES, RETRIES, 5, ranked=True)[0] == RETRIES[2]


def test_what_is_not_said_has_its_default() -> None:
    found = ask()
    assert (found.index, found.count, found.wait_ms, found.from_end, found.ordered) == (ALL_QUEUES, 32, 0, False, False)
    assert found.wanted is None
    assert ask(attemptId="a").attempt == b"", "only in order"
    assert ask(attemptId="a", order="true").attempt == b"a"
    assert ask(initMode="1").from_end


@pytest.mark.parametrize(
    ("fields", "reason"),
    [({"maxMsgNums": "33"}, "count"), ({"maxMsgNums": "0"}, "count"), ({"attemptId": "x" * 1_000}, "attempt")],
)
def test_what_is_malformed_is_refused(fields: dict[str, str], reason: str) -> None:
    with pytest.raises(Refused, match=reason):
        ask(**fields)


def test_an_ownership_has_a_time() -> None:
    assert invisible_time({"invisibleTime": str(2**32 - 1)}, refuse) == 2**32 - 1
    for value in ("0", "-1", str(2**32)):
        with pytest.raises(Refused, match="time"):
            invisible_time({"invisibleTime": value}, refuse)


def test_what_no_group_may_pop_is_refused() -> None:
    settings = TopicSettings(name="t", read_queue_count=2, write_queue_count=2)
    require_poppable(ask(queueId="1"), settings, reads_lite=False, refuse=refuse)
    for index in ("2", "-2"):
        with pytest.raises(Refused, match="queue"):
            require_poppable(ask(queueId=index), settings, reads_lite=False, refuse=refuse)
    with pytest.raises(Refused) as refused:
        require_poppable(ask(), settings, reads_lite=True, refuse=refuse)
    assert refused.value.code == ResponseCode.ILLEGAL_OPERATION


def test_a_group_begins_at_the_end_only_where_messages_are_gone_already():
    assert [beginning(0, 9, from_end=from_end) for from_end in (False, True)] == [0, 0]
    assert [beginning(3, 9, from_end=from_end) for from_end in (False, True)] == [3, 9]
