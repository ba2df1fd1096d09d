"""A group's messages noted by a session belong to it: while it lives, after a restart, and when it ends."""

from __future__ import annotations

import pytest

from broker.sessions.client_session import ClientSession, Subscription
from broker.sessions.sessions import Sessions
from broker.shared.groups import SharedGroups
from broker.store.errors import StoreFull
from broker.subscriptions.filters import Filters, Subscribers
from broker.wills.feature import Wills
from remoting.protocol.bodies.session_body import (
    PHASE_PUBLISH,
    PHASE_PUBREL,
    SHARED_BIT,
    FilterRequest,
    FlowBatch,
    SessionFlow,
    SessionOpen,
    SubscribeRequest,
)
from tests.support.images import placed

NAME = "$share/g/x"
PLACE = 7 | SHARED_BIT


def session(*places: tuple[int, int, int], subscribed: tuple[str, ...] = ()) -> ClientSession:
    made = ClientSession("c", None, durable=True, expiry_s=5, epoch=1)
    made.exact = dict(enumerate(places, 1)) or None
    made.subscriptions = {name: Subscription(2, 7) for name in subscribed}
    return made


def claim(noted: ClientSession, groups: SharedGroups) -> None:
    """Claim as a start does for a session read from the log."""
    groups.pass_noted(noted.shared_places(), noted.subscriptions)


def test_only_new_notes_of_a_group_are_taken_back() -> None:
    one = session((PLACE, 3, PHASE_PUBLISH), (7, 3, PHASE_PUBLISH))
    said = SessionFlow("c", 1, reserved=[(1, PLACE, 3), (2, 7, 3), (3, PLACE, 4), (4, 7, 4)])
    assert one.begun(said) == [3]
    assert session().begun(said) == [1, 3]
    one.take_back([1, 9])
    assert one.exact == {2: (7, 3, PHASE_PUBLISH)}
    one.take_back([2])
    assert one.exact is None
    one.take_back([2])


def test_a_message_received_by_its_client_is_not_lost_with_the_session() -> None:
    assert session().unfinished() == 0
    log_place = 0xFFFF_FFFF
    places = [(PLACE, 3, PHASE_PUBLISH), (PLACE, 4, PHASE_PUBREL), (7, 3, PHASE_PUBLISH), (log_place, 3, PHASE_PUBLISH)]
    assert session(*places).unfinished() == 1


def test_a_claim_goes_to_the_group_that_must_have_given_it(bench) -> None:
    """The only one, or of several the one the session is subscribed to; with two of those it is left alone."""
    groups = SharedGroups(bench.store)
    queue = bench.store.queues.open(b"%LMQ%q")
    place = queue | SHARED_BIT
    one = groups.join(NAME, "c", queue)
    bench.store.append(*([placed((queue,))] * 5))
    noted = session((place, 2, PHASE_PUBREL), (queue, 0, PHASE_PUBLISH), (place, 5, PHASE_PUBLISH))
    claim(noted, groups)
    assert (one.offsets.low, one.offsets.next, one.offsets.ranges()) == (0, 3, [(2, 3)])
    two = groups.join("$share/h/x", "d", queue)
    two.offsets.low = two.offsets.next = 0
    noted = session((place, 3, PHASE_PUBLISH), subscribed=("$share/h/x", "y"))
    claim(noted, groups)
    assert (one.offsets.ranges(), two.offsets.ranges()) == ([(2, 3)], [(3, 4)])
    both = session((place, 4, PHASE_PUBLISH), subscribed=(NAME, "$share/h/x"))
    claim(both, groups)
    assert (one.offsets.ranges(), two.offsets.ranges()) == ([(2, 3)], [(3, 4)])
    groups.release("$share/h/x", "d")
    bench.store.queues.delete([queue])
    claim(both, groups)
    assert one.offsets.next == 3, "a deleted queue has no end to claim below"
    claim(session(), groups)


def test_a_full_disk_leaves_the_message_with_the_group_and_an_ended_session_takes_its_own(bench) -> None:
    sessions = Sessions(
        bench.store,
        Filters(bench.store, expiry_ms=1_000, filters_max=9, per_user_max=9, now_ms=0),
        shared=SharedGroups(bench.store),
        wills=Wills(bench.store, grace_ms=0, now_ms=0),
        subscribers=Subscribers(),
        expiry_s_max=9,
        sessions_max=9,
        subscriptions_max=9,
        filters_max=9,
        now_ms=0,
    )
    epoch = sessions.open(SessionOpen("c", False, None, 9), "p", 0).reply.epoch
    sessions.subscribe(SubscribeRequest("c", epoch, True, [FilterRequest(NAME, 2)]))
    noted = FlowBatch([SessionFlow("c", epoch, reserved=[(1, PLACE, 0)])])
    bench.store.disk.full = True
    with pytest.raises(StoreFull):
        sessions.flow(noted, "p")
    assert sessions.get("c").exact is None
    bench.store.disk.full = False
    sessions.flow(noted, "p")
    assert sessions.get("c").exact == {1: (PLACE, 0, PHASE_PUBLISH)}
    assert sessions.shared_lost == 0
    sessions.open(SessionOpen("c", True, None, 0), "p", 0)
    assert sessions.shared_lost == 1
