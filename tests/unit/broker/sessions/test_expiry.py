"""Which sessions have expired, and that the queue of due times is no larger than the number of sessions."""

from __future__ import annotations

from broker.sessions.client_session import ClientSession
from broker.sessions.sessions import NEVER_S, ExpiryQueue, due_ms


def closed(name: str, at_ms: int, expiry_s: int = 5) -> ClientSession:
    return ClientSession(name, None, durable=True, expiry_s=expiry_s, epoch=1, closed_ms=at_ms)


def test_a_session_expires_when_its_time_has_come_and_not_before() -> None:
    sessions = {"a": closed("a", 0), "b": closed("b", 1_000)}
    queue = ExpiryQueue(sessions)
    for session in sessions.values():
        queue.schedule(session)
    assert due_ms(sessions["b"]) == 6_000
    assert queue.over(4_999) == []
    assert queue.over(5_000) == [sessions["a"]]
    assert queue.over(9_999) == [sessions["b"]]
    assert queue.over(99_999) == []


def test_one_that_closed_again_is_checked_once_more_and_a_connected_one_is_left_alone() -> None:
    session = closed("a", 0)
    queue = ExpiryQueue({"a": session})
    queue.schedule(session)
    session.closed_ms = 3_000
    queue.schedule(session)
    assert len(queue) == 1
    assert queue.over(5_000) == []
    assert queue.over(8_000) == [session]
    session.closed_ms, session.owner = 9_000, object()
    queue.schedule(session)
    assert queue.over(20_000) == []
    session.owner = None
    queue.schedule(session)
    assert queue.over(20_000) == [session]


def test_a_shorter_expiry_counts_at_once() -> None:
    session = closed("a", 0, expiry_s=1_000)
    queue = ExpiryQueue({"a": session})
    queue.schedule(session)
    session.expiry_s = 1
    queue.schedule(session)
    assert queue.over(1_000) == [session]


def test_reconnections_and_deleted_sessions_do_not_grow_the_queue() -> None:
    sessions: dict[str, ClientSession] = {}
    queue = ExpiryQueue(sessions)
    for number in range(20_000):
        sessions["c"] = closed("c", number)
        queue.schedule(sessions["c"])
    assert len(queue) <= 1_025
    assert queue.over(10**9) == [sessions["c"]]


def test_a_session_that_is_kept_for_ever_never_expires_and_costs_no_entry() -> None:
    """One second less than for ever is an ordinary time."""
    kept, long = closed("a", 0, expiry_s=NEVER_S), closed("b", 0, expiry_s=NEVER_S - 1)
    queue = ExpiryQueue({"a": kept, "b": long})
    queue.schedule(kept)
    queue.schedule(long)
    assert len(queue) == 1
    assert queue.over(1 << 60) == [long]
    assert due_ms(kept) > 1 << 60
