"""What a proxy gets of a session: nothing of a new one, everything of an existing one."""

from __future__ import annotations

from broker.sessions.client_session import ClientSession, Subscription
from broker.sessions.sessions import describe
from remoting.protocol.bodies.session_body import HISTORY_BIT, InflightEntry, SessionOpened, SessionSubscription


def test_a_new_session_has_nothing() -> None:
    session = ClientSession("c", None, True, 60, 7)
    assert describe(session, 3, present=False) == SessionOpened(False, 7, [], [], 3, [], 60)


def test_an_existing_one_has_all_that_resuming_needs() -> None:
    session = ClientSession("c", None, True, 60, 7)
    session.subscriptions["a"] = Subscription(2, 11, 4, 5, 6)
    session.offsets = {11: 20, 11 | HISTORY_BIT: 2}
    session.exact_below = {11: 30}
    session.inflight = [(1, 11, 19)]
    session.exact = {2: (11, 21, 1)}
    session.received = {0: 0b1010}
    assert describe(session, 3, present=True) == SessionOpened(
        True,
        7,
        [SessionSubscription("a", 2, 11, 20, 4, 5, 6, 30, 2)],
        [InflightEntry(1, 11, 19), InflightEntry(2, 11, 21, 1, 2)],
        3,
        [1, 3],
        60,
    )
