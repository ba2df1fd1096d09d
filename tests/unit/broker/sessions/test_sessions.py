"""Which connection owns a client id, what it resumes, and what survives: the session rules one by one."""

from __future__ import annotations

import pytest

from broker.sessions.sessions import Sessions
from broker.sessions.subscriptions import NOT_VALID, QUOTA
from broker.shared.groups import SharedGroups
from broker.store.errors import StoreFull
from broker.store.placed import Placed
from broker.store.state import state_kinds
from broker.subscriptions.filters import Filters, Subscribers
from broker.wills.feature import Wills
from remoting.protocol.bodies.session_body import (
    EXPIRY_NEVER,
    FilterRequest,
    FlowBatch,
    InflightEntry,
    SessionClose,
    SessionFlow,
    SessionOpen,
    SubscribeRequest,
    UnsubscribeRequest,
    WillSpec,
)
from remoting.protocol.errors import Refused
from remoting.protocol.frames.codes import ResponseCode
from remoting.protocol.records import names
from tests.support.plants import Plant, catches


def make(store, now_ms: int = 0, will_grace_ms: int = 0, **limits) -> tuple[Filters, Sessions]:
    filters = Filters(store, expiry_ms=1_000, filters_max=100, per_user_max=100, now_ms=now_ms)
    parts = {
        "shared": SharedGroups(store),
        "wills": Wills(store, grace_ms=will_grace_ms, now_ms=now_ms),
        "subscribers": Subscribers(),
    }
    defaults = {"expiry_s_max": 100, "sessions_max": 100, "subscriptions_max": 100, "filters_max": 100}
    return filters, Sessions(store, filters, now_ms=now_ms, **parts, **(defaults | limits))


def opening(client_id="c", *, clean=False, user=None, expiry_s=100, continues=0) -> SessionOpen:
    return SessionOpen(client_id, clean, user, 0 if clean else expiry_s, continues=continues)


def wanted(*filters: tuple[str, int]) -> list[FilterRequest]:
    return [FilterRequest(*one) for one in filters]


def test_present_is_true_exactly_for_an_existing_durable_session(bench) -> None:
    _filters, sessions = make(bench.store)
    assert not sessions.open(opening(), "p", 0).reply.present
    assert sessions.open(opening(), "p", 0).reply.present
    assert not sessions.open(opening(clean=True), "p", 0).reply.present
    assert not sessions.open(opening(), "p", 0).reply.present


def test_a_proxy_that_asks_again_for_the_same_connection_does_not_fence_itself(bench) -> None:
    """It reopens a session after a loss, gets no answer within its time limit and sends the request once more."""
    _filters, sessions = make(bench.store)
    first = sessions.open(opening(), "lost", 0).reply.epoch
    sessions.owner_closed("lost", 0)
    again = [sessions.open(opening(continues=first), "back", 0) for _ in range(3)]
    assert [one.fenced for one in again] == [None, None, None]
    assert sessions.taken_over == 0
    assert sessions.require("c", again[-1].reply.epoch)


def test_a_replaced_connection_does_not_take_the_session_back(bench) -> None:
    """The same proxy has both; a late request of the first one is refused."""
    _filters, sessions = make(bench.store)
    first = sessions.open(opening(), "p", 0).reply.epoch
    second = sessions.open(opening(), "p", 0).reply.epoch
    with pytest.raises(Refused, match="taken over"):
        sessions.open(opening(continues=first), "p", 0)
    assert sessions.require("c", second)


def test_a_take_over_raises_the_epoch_and_fences_the_previous_owner(bench) -> None:
    _filters, sessions = make(bench.store)
    first = sessions.open(opening(), "proxy-1", 0)
    second = sessions.open(opening(), "proxy-2", 0)
    assert first.fenced is None
    assert second.fenced == ("proxy-1", first.reply.epoch)
    assert second.reply.epoch > first.reply.epoch
    with pytest.raises(Refused, match="fenced") as refused:
        sessions.subscribe(SubscribeRequest("c", first.reply.epoch, True, wanted(("a", 1))))
    assert refused.value.code == ResponseCode.ILLEGAL_OPERATION
    with pytest.raises(Refused):
        sessions.close(SessionClose("c", first.reply.epoch, True, [], []), 0)
    assert sessions.commit("c", 1, 5, "proxy-1") is None
    assert sessions.offsets_fenced == 1


def test_another_user_may_neither_resume_nor_clean_nor_take_over(bench) -> None:
    _filters, sessions = make(bench.store)
    sessions.open(opening(user="anna"), "p", 0)
    for clean in (False, True):
        with pytest.raises(Refused) as refused:
            sessions.open(opening(user="otto", clean=clean), "q", 0)
        assert refused.value.code == ResponseCode.NO_PERMISSION
    sessions.open(opening("live", clean=True, user="anna"), "p", 0)
    with pytest.raises(Refused):
        sessions.open(opening("live", clean=True, user=None), "q", 0)


def test_subscription_offset_and_inflight_survive_a_restart(bench) -> None:
    _filters, sessions = make(bench.store)
    epoch = sessions.open(opening(user="anna"), "p", 0).reply.epoch
    results, _ = sessions.subscribe(SubscribeRequest("c", epoch, True, wanted(("plant/+/t", 1), ("a/b", 0))))
    wildcard, exact = results
    bench.store.append_state([sessions.commit("c", wildcard.queue_id, 3, "p")])
    sessions.close(SessionClose("c", epoch, True, [(exact.queue_id, 7)], [InflightEntry(9, wildcard.queue_id, 3)]), 5)
    filters, again = make(bench.reopen(), now_ms=50)
    reply = again.open(opening(user="anna"), "q", 60).reply
    assert reply.present
    assert reply.epoch > epoch
    assert {(s.filter, s.qos, s.queue_id, s.offset) for s in reply.subscriptions} == {
        ("plant/+/t", 1, wildcard.queue_id, 3),
        ("a/b", 0, exact.queue_id, 7),
    }
    assert reply.inflight == [InflightEntry(9, wildcard.queue_id, 3)]
    assert filters.holders(b"plant/+/t") == 1


def test_what_was_acknowledged_after_the_inflight_list_is_left_out(bench) -> None:
    _filters, sessions = make(bench.store)
    epoch = sessions.open(opening(), "p", 0).reply.epoch
    queue_id = sessions.subscribe(SubscribeRequest("c", epoch, True, wanted(("+", 1))))[0][0].queue_id
    entries = [InflightEntry(1, queue_id, 0), InflightEntry(2, queue_id, 1), InflightEntry(3, 0xFFFFFFFF, 640)]
    sessions.close(SessionClose("c", epoch, True, [], entries), 0)
    sessions.open(opening(), "p", 0)
    bench.store.append_state([sessions.commit("c", queue_id, 1, "p")])
    _filters, again = make(bench.reopen())
    assert again.open(opening(), "q", 0).reply.inflight == entries[1:]


@catches(
    Plant(
        "from-two-lists",
        "broker.sessions.sessions:Sessions.close",
        "for one in request.inflight if one.qos < 2]",
        "for one in request.inflight]",
    ),
)
def test_a_delivery_of_qos_2_is_resumed_once(bench) -> None:
    """The broker has it from its steps; a proxy that lists it at the close too does not have it sent twice."""
    _filters, sessions = make(bench.store)
    epoch = sessions.open(opening(), "p", 0).reply.epoch
    queue_id = sessions.subscribe(SubscribeRequest("c", epoch, True, wanted(("a", 2))))[0][0].queue_id
    sessions.flow(FlowBatch([SessionFlow("c", epoch, reserved=[(9, queue_id, 3)])]), "p")
    listed = [InflightEntry(4, queue_id, 2), InflightEntry(9, queue_id, 3, qos=2)]
    sessions.close(SessionClose("c", epoch, True, [], listed), 0)
    for again in (sessions, make(bench.reopen())[1]):
        assert [one.packet_id for one in again.open(opening(), "q", 0).reply.inflight] == [4, 9]


def test_a_clean_session_leaves_nothing_in_the_log_and_releases_its_filters(bench) -> None:
    filters, sessions = make(bench.store)
    epoch = sessions.open(opening(clean=True), "p", 0).reply.epoch
    sessions.subscribe(SubscribeRequest("c", epoch, False, wanted(("a/#", 1))))
    assert filters.holders(b"a/#") == 1
    assert sessions.owner_closed("p", 10) == 1
    assert filters.holders(b"a/#") == 0
    assert sessions.get("c") is None
    assert len(make(bench.reopen())[1]) == 0


def test_a_lost_proxy_closes_durable_sessions_and_they_expire_on_time(bench) -> None:
    filters, sessions = make(bench.store)
    epoch = sessions.open(opening(expiry_s=5), "p", 0).reply.epoch
    sessions.subscribe(SubscribeRequest("c", epoch, True, wanted(("a/#", 1))))
    sessions.owner_closed("p", 1_000)
    assert sessions.expire(5_999) == 0
    assert sessions.expire(6_000) == 1
    assert filters.holders(b"a/#") == 0
    assert len(make(bench.reopen())[1]) == 0


def test_a_resumed_session_does_not_expire_by_its_old_deadline(bench) -> None:
    _filters, sessions = make(bench.store)
    for start in (0, 4_000):
        epoch = sessions.open(opening(expiry_s=5), "p", start).reply.epoch
        sessions.close(SessionClose("c", epoch, True, [], []), start)
    assert sessions.expire(5_000) == 0
    assert sessions.expire(9_000) == 1


def test_unsubscribe_returns_what_there_was_and_forgets_the_offset(bench) -> None:
    filters, sessions = make(bench.store)
    epoch = sessions.open(opening(), "p", 0).reply.epoch
    sessions.subscribe(SubscribeRequest("c", epoch, True, wanted(("a/#", 1))))
    found, _ = sessions.unsubscribe(UnsubscribeRequest("c", epoch, True, ["a/#", "nope"]), 0)
    assert found == [True, False]
    assert filters.holders(b"a/#") == 0
    assert sessions.open(opening(), "p", 0).reply.subscriptions == []


def test_a_subscription_starts_where_the_queue_ends_and_keeps_its_offset_when_repeated(bench, make_entries) -> None:
    _filters, sessions = make(bench.store)
    light = bench.store.queues.open(names.light_queue_name(b"a/b"))
    message = Placed(bytes(make_entries(b"a/b")[0].raw), [(light,)])
    bench.store.append(message, message)
    epoch = sessions.open(opening(), "p", 0).reply.epoch
    first = sessions.subscribe(SubscribeRequest("c", epoch, True, wanted(("a/b", 0))))[0][0]
    bench.store.append(message)
    second = sessions.subscribe(SubscribeRequest("c", epoch, True, wanted(("a/b", 1))))[0][0]
    assert (first.code, first.offset) == (0, 2)
    assert (second.code, second.offset) == (1, 2)


def test_limits_and_invalid_filters_get_their_reason_codes(bench) -> None:
    _filters, sessions = make(bench.store, subscriptions_max=1, sessions_max=1)
    epoch = sessions.open(opening(), "p", 0).reply.epoch
    results, _ = sessions.subscribe(SubscribeRequest("c", epoch, True, wanted(("a/#/b", 1), ("ok", 1), ("more", 1))))
    assert [result.code for result in results] == [NOT_VALID, 1, QUOTA]
    with pytest.raises(Refused, match="sessions_max"):
        sessions.open(opening("d"), "p", 0)


def test_wildcard_filters_of_a_session_have_a_limit_of_their_own(bench) -> None:
    """Shared ones count, others do not; what is given up makes room; a stored session knows its number."""
    _filters, sessions = make(bench.store, filters_max=2)
    epoch = sessions.open(opening(), "p", 0).reply.epoch

    def subscribe(*names: str) -> list[int]:
        results, _ = sessions.subscribe(SubscribeRequest("c", epoch, True, wanted(*[(name, 1) for name in names])))
        return [result.code for result in results]

    assert subscribe("a/#", "$share/g/b/#", "c/#", "d", "a/#") == [1, 1, QUOTA, 1, 1]
    sessions.unsubscribe(UnsubscribeRequest("c", epoch, True, ["$share/g/b/#"]), 0)
    assert subscribe("c/#", "e/#") == [1, QUOTA]
    _filters, sessions = make(bench.reopen(), filters_max=2)
    epoch = sessions.open(opening(), "p", 0).reply.epoch
    assert subscribe("e/#", "f") == [QUOTA, 1]


def test_filters_of_a_session_have_a_limit_of_bytes(bench) -> None:
    """They are one record of the log, which has a largest size."""
    _filters, sessions = make(bench.store)
    epoch = sessions.open(opening(), "p", 0).reply.epoch
    names_ = [f"{number}/{'x' * 16_000}" for number in range(70)]
    results, _ = sessions.subscribe(SubscribeRequest("c", epoch, True, wanted(*[(name, 1) for name in names_])))
    assert [result.code for result in results] == [1] * 65 + [QUOTA] * 5
    sessions.unsubscribe(UnsubscribeRequest("c", epoch, True, names_[:1]), 0)
    results, _ = sessions.subscribe(SubscribeRequest("c", epoch, True, wanted((names_[68], 1), (names_[69], 1))))
    assert [result.code for result in results] == [1, QUOTA]


def test_a_repeated_subscribe_writes_nothing(bench) -> None:
    _filters, sessions = make(bench.store)
    epoch = sessions.open(opening(), "p", 0).reply.epoch
    request = SubscribeRequest("c", epoch, True, wanted(("a", 1), ("b/#", 2)))
    sessions.subscribe(request)
    before = bench.store.end_position
    assert [result.existed for result in sessions.subscribe(request)[0]] == [True, True]
    assert bench.store.end_position == before
    sessions.subscribe(SubscribeRequest("c", epoch, True, wanted(("a", 0))))
    assert bench.store.end_position > before


def test_filters_of_a_session_that_ends_go_with_it(bench) -> None:
    """Those of one whose proxy was lost stay for it, and for one that continues."""
    filters, sessions = make(bench.store)
    for client_id in ("left", "lost", "clean", "again"):
        epoch = sessions.open(opening(client_id, clean=True), client_id, 0).reply.epoch
        sessions.subscribe(SubscribeRequest(client_id, epoch, False, wanted((f"{client_id}/#", 1))))
        if client_id == "left":
            sessions.close(SessionClose(client_id, epoch, False, [], []), 0)
    sessions.owner_closed("lost", 0)
    sessions.open(opening("clean", clean=True), "p", 0)
    sessions.open(opening("again", clean=True, continues=epoch), "again", 0)
    assert filters.expire(0) == 2
    assert [len(filters.match(b"%b/x" % name)) for name in (b"left", b"lost", b"clean", b"again")] == [0, 1, 0, 1]


def test_an_offset_never_moves_back(bench) -> None:
    _filters, sessions = make(bench.store)
    epoch = sessions.open(opening(), "p", 0).reply.epoch
    queue_id = sessions.subscribe(SubscribeRequest("c", epoch, True, wanted(("a", 1))))[0][0].queue_id
    assert sessions.commit("c", queue_id, 5, "p") is not None
    assert sessions.commit("c", queue_id, 4, "p") is None
    assert sessions.open(opening(), "p", 0).reply.subscriptions[0].offset == 5


def test_a_full_disk_refuses_new_sessions_and_lets_stored_ones_read(bench) -> None:
    """Resuming and closing need no room; a durable session that cannot be written does not exist."""
    _filters, sessions = make(bench.store)
    epoch = sessions.open(opening(), "p", 0).reply.epoch
    results, _ = sessions.subscribe(SubscribeRequest("c", epoch, True, wanted(("a/b", 1))))
    bench.store.disk.full = True
    sessions.close(SessionClose("c", epoch, True, [(results[0].queue_id, 3)], []), 1)
    again = sessions.open(opening(), "p", 2)
    assert again.reply.present
    assert [(one.filter, one.offset) for one in again.reply.subscriptions] == [("a/b", 3)]
    assert again.position <= bench.store.end_position
    with pytest.raises(StoreFull):
        sessions.open(opening("new"), "p", 3)
    assert sessions.get("new") is None
    assert not sessions.open(opening("clean", clean=True), "p", 3).reply.present
    assert sessions.owner_closed("p", 4) == 2


def test_a_session_without_expiry_ends_with_its_connection_however_it_began(bench) -> None:
    _filters, sessions = make(bench.store)
    epoch = sessions.open(SessionOpen("c", False, None, 0), "p", 0).reply.epoch
    sessions.close(SessionClose("c", epoch, True, [], []), 0)
    assert sessions.get("c") is None
    sessions.open(opening(), "p", 0)
    resumed = sessions.open(SessionOpen("c", False, None, 0), "p", 0).reply
    assert resumed.present
    assert sessions.open(opening(), "p", 0).reply.present is False, "taken over, it had ended"
    assert len(make(bench.reopen())[1]) == 1


def test_the_expiry_is_granted_up_to_the_brokers_own_and_may_change_at_close(bench) -> None:
    _filters, sessions = make(bench.store)
    opened = sessions.open(SessionOpen("c", True, None, EXPIRY_NEVER), "p", 0).reply
    assert opened.expiry_s == 100
    sessions.close(SessionClose("c", opened.epoch, True, [], [], expiry_s=3), 1_000)
    assert sessions.expire(3_999) == 0
    assert make(bench.reopen(), now_ms=4_000)[1].expire(4_000) == 1


def test_an_expired_session_is_not_present_even_before_the_sweep(bench) -> None:
    _filters, sessions = make(bench.store)
    epoch = sessions.open(opening(expiry_s=5), "p", 0).reply.epoch
    sessions.subscribe(SubscribeRequest("c", epoch, True, wanted(("a", 1))))
    sessions.close(SessionClose("c", epoch, True, [], []), 0)
    reply = sessions.open(opening(expiry_s=5), "p", 5_000).reply
    assert (reply.present, reply.subscriptions) == (False, [])


def test_a_proxy_that_returns_too_late_does_not_take_the_session_from_its_new_owner(bench) -> None:
    _filters, sessions = make(bench.store)
    first = sessions.open(opening(), "old", 0).reply.epoch
    sessions.owner_closed("old", 0)
    sessions.open(opening(), "new", 0)
    with pytest.raises(Refused, match="taken over") as refused:
        sessions.open(SessionOpen("c", False, None, 100, None, first), "old", 0)
    assert refused.value.code == ResponseCode.ILLEGAL_OPERATION


def test_what_a_session_did_not_get_is_added_up_and_kept(bench) -> None:
    _filters, sessions = make(bench.store)
    for count in (2, 3):
        epoch = sessions.open(opening(), "p", 0).reply.epoch
        sessions.close(SessionClose("c", epoch, True, [], [], removed=[("retention", count)]), 0)
    assert make(bench.reopen())[1].get("c").removed == {"retention": 5}


def test_ids_of_qos_2_publishes_are_restored_and_end_with_the_session(bench) -> None:
    _filters, sessions = make(bench.store)
    epoch = sessions.open(opening(), "p", 0).reply.epoch
    assert sessions.owned("c", "p") is sessions.get("c")
    assert sessions.owned("c", "q") is None
    bench.store.append_state(sessions.get("c").receive([3, 900]))
    sessions.flow(FlowBatch([SessionFlow("c", epoch, released=[900])]), "another")
    assert sessions.flows_fenced == 1
    sessions.flow(FlowBatch([SessionFlow("c", epoch, released=[3])]), "p")
    _filters, again = make(bench.reopen())
    assert again.open(opening(), "p", 0).reply.received == [900]
    assert again.open(opening(clean=True), "p", 0).reply.received == []
    assert bench.store.state.count(state_kinds.SESSION_RECEIVED) == 0


def test_a_will_is_stored_with_the_session_also_of_a_clean_one(bench) -> None:
    _filters, sessions = make(bench.store)
    spec = WillSpec(b"t", b"gone", 1, False)
    for name, clean in (("a", False), ("b", True)):
        sessions.open(SessionOpen(name, clean, "anna", 0 if clean else 60, spec), "p", 0)
    _filters, again = make(bench.reopen(), now_ms=5)
    assert {will.client_id for will in again.wills.due(5)} == {"a", "b"}
