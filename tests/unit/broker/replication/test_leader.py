"""The master's side of replication: replicas, confirm position, SyncStateSet, when a message is acknowledged."""

from __future__ import annotations

import re

import pytest

from broker.replication import frames
from broker.replication.epochs import Epochs, Extent
from broker.replication.frames import Ack, Hello, Ready, Refusal, Welcome
from broker.replication.leader import (
    Acknowledge,
    Leader,
    LeaderSettings,
    SyncStateSet,
    catches_up,
    expired,
)
from broker.replication.majority import Majority
from remoting.protocol.errors import LocalMisuse, RemoteViolation
from tests.support.plants import Plant, catches

COUNTED = "broker.replication.leader:Leader._counted"
SETTINGS = LeaderSettings(window_bytes=100, part_bytes=40, small_bytes=0, replicas_max=3)
LOG = Extent(50, 300, Epochs([(4, 0), (5, 200)]))


def a_leader(members=(1,), *, in_sync_min=1, confirm=180, mode="all", count=1) -> Leader:
    """Broker 1, master of epoch 5, which began at 200."""
    return Leader(
        1, 5, 200, SyncStateSet(members, 7), Acknowledge(mode=mode, count=count, in_sync_min=in_sync_min), SETTINGS,
        cluster="c", group="g", confirm=confirm, now_ms=0,
    )  # fmt: skip


def hello(broker: int, **changes) -> Hello:
    fields = {"epoch": 5, "begin": 0, "end": 200, "nonce": b"n" * 16, "cluster": "c", "group": "g"}
    return Hello(broker, **(fields | changes))


def stream(leader: Leader, broker: int, *, at: int = 200, now_ms: int = 0, learner: bool = False) -> int:
    """Take a replica through the handshake; its connection is ten times its id."""
    connection = broker * 10
    assert isinstance(leader.hello(connection, hello(broker, is_learner=learner), LOG, now_ms), Welcome)
    assert leader.ready(connection, Ready(5, at), LOG, now_ms) is None
    return connection


def give(leader: Leader, connection: int, end: int, now_ms: int = 0) -> None:
    """Send all up to `end` and have it acknowledged."""
    while (part := leader.demand(connection, end)) is not None:
        size = min(part[1], end - part[0])
        leader.sent(connection, size, end, now_ms)
        leader.acknowledged(connection, Ack(5, part[0] + size), now_ms)


def test_a_welcome_says_what_the_master_has():
    """Epoch, begin, end and epoch list."""
    assert a_leader().hello(20, hello(2), LOG, 0) == Welcome(5, 50, 300, [(4, 0), (5, 200)])


@pytest.mark.parametrize(
    ("asks", "reason", "remedy"),
    [
        (hello(2, version=9), frames.UNKNOWN_VERSION, "run one release"),
        (hello(2, cluster="other"), frames.OTHER_GROUP, "not other/.*check cluster_name and broker_name"),
        (hello(1), frames.OTHER_GROUP, "id 1 .*with an empty one"),
        (hello(2, epoch=6), frames.OLD_EPOCH, "there is an epoch 6, mine is 5"),
    ],
)
def test_refused_replicas(asks, reason, remedy):
    """Another version, another group, itself, and one that knows of a newer master; with what an operator does."""
    leader = a_leader()
    refusal = leader.hello(20, asks, LOG, 0)
    assert isinstance(refusal, Refusal)
    assert refusal.reason == reason
    assert re.search(remedy, refusal.remark)
    assert leader.superseded == (6 if reason == frames.OLD_EPOCH else 0)
    assert not leader.knows(20)


def test_connections_are_limited_and_a_newer_one_takes_over():
    """One connection per broker; a replica too many is refused."""
    leader = a_leader()
    for broker in (2, 3, 4):
        stream(leader, broker)
    refusal = leader.hello(50, hello(5), LOG, 0)
    assert isinstance(refusal, Refusal)
    assert refusal.reason == frames.TOO_MANY
    assert isinstance(leader.hello(21, hello(2), LOG, 0), Welcome)
    assert not leader.knows(20)
    assert leader.knows(21)
    leader.disconnected(20, 0)
    assert leader.knows(21)
    with pytest.raises(RemoteViolation):
        leader.acknowledged(20, Ack(5, 200), 0)


def test_ready_must_fit_the_log():
    """Above the end or of another epoch: a violation; before the begin: it must start over."""
    leader = a_leader()
    leader.hello(20, hello(2), LOG, 0)
    for ready in (Ready(4, 200), Ready(5, 301)):
        with pytest.raises(RemoteViolation):
            leader.ready(20, ready, LOG, 0)
    refusal = leader.ready(20, Ready(5, 49), LOG, 0)
    assert isinstance(refusal, Refusal)
    assert refusal.reason == frames.EXPIRED
    assert leader.demand(20, 300) is None
    assert leader.ready(20, Ready(5, 50), LOG, 0) is None
    with pytest.raises(RemoteViolation):
        leader.ready(20, Ready(5, 50), LOG, 0)


def test_the_window_bounds_what_is_in_flight():
    """Parts of 40 bytes, at most 100 unacknowledged, then it must acknowledge; nothing beyond the end."""
    leader = a_leader()
    stream(leader, 2)
    assert leader.demand(99, 300) is None
    sizes = []
    while (part := leader.demand(20, 1000)) is not None:
        sizes.append(part)
        leader.sent(20, part[1], 1000, 0)
    assert sizes == [(200, 40), (240, 40), (280, 20)]
    leader.acknowledged(20, Ack(5, 240), 0)
    assert leader.demand(20, 1000) == (300, 40)
    assert leader.demand(20, 300) is None


def test_little_waits_while_enough_is_in_flight():
    """Two transfers are out: a third is sent when it is large enough or one of them is acknowledged."""
    leader = a_leader()
    leader.settings = LeaderSettings(small_bytes=50)
    stream(leader, 2)
    for end in (210, 220):
        assert leader.demand(20, end) is not None
        leader.sent(20, 10, end, 0)
    assert leader.demand(20, 269) is None
    assert leader.demand(20, 270) == (220, 1024 * 1024)
    leader.sent(20, 0, 269, 0)
    leader.acknowledged(20, Ack(5, 209), 0)
    assert leader.demand(20, 269) is None
    leader.acknowledged(20, Ack(5, 210), 0)
    assert leader.demand(20, 269) is not None


def test_little_waits_for_the_end_of_a_pause_under_load():
    """A large transfer begins one; large ones go on, a replica that has everything ends it."""
    leader = a_leader()
    leader.settings = LeaderSettings(small_bytes=50, pause_bytes=30)
    stream(leader, 2)
    assert not leader.sent(20, 10, 210, 0)
    assert leader.sent(20, 30, 240, 0)
    assert leader.demand(20, 289) is None
    assert leader.demand(20, 290) == (240, 1024 * 1024)
    leader.acknowledged(20, Ack(5, 240), 0)
    assert leader.demand(20, 289) is None
    assert leader.demand(20, 289, has_paused=True) == (240, 1024 * 1024)
    assert leader.sent(20, 40, 280, 0)
    assert leader.demand(20, 280) is None
    leader.acknowledged(20, Ack(5, 280), 0)
    assert leader.demand(20, 280) is None
    assert leader.demand(20, 281) == (280, 1024 * 1024)


def test_the_rest_of_a_group_waits_for_nothing():
    """Parts of a group are acknowledged with its end only, so they do not count as in flight."""
    leader = a_leader()
    leader.settings = LeaderSettings(small_bytes=50, part_bytes=10)
    stream(leader, 2)
    for position in range(200, 230, 10):
        assert leader.demand(20, 235) == (position, 10)
        leader.sent(20, 10, 235, 0)
    assert leader.demand(20, 235) == (230, 10)


@pytest.mark.parametrize("ack", [Ack(4, 240), Ack(5, 241), Ack(5, 219)])
def test_acknowledging_what_was_not_sent_is_a_violation(ack):
    """Nor may the flushed end fall, nor belong to another epoch."""
    leader = a_leader()
    stream(leader, 2)
    leader.sent(20, 40, 240, 0)
    leader.acknowledged(20, Ack(5, 220), 0)
    with pytest.raises(RemoteViolation):
        leader.acknowledged(20, ack, 0)


def test_the_confirm_position_is_what_all_members_have():
    """The slowest member decides, the master's own disk included; it never falls."""
    leader = a_leader({1, 2, 3})
    assert leader.advance(300) == 180
    for broker in (2, 3):
        stream(leader, broker)
    assert leader.advance(300) == 180
    give(leader, 20, 300)
    give(leader, 30, 250)
    assert leader.advance(300) == 250
    assert leader.limit(240) == 250
    give(leader, 30, 300)
    assert leader.limit(290) == 290


def test_a_member_without_a_connection_freezes_it():
    """What it has is unknown, and it can still be elected."""
    leader = a_leader({1, 2})
    stream(leader, 2)
    give(leader, 20, 220)
    assert leader.advance(300) == 220
    leader.disconnected(20, 0)
    assert leader.advance(300) == 220
    leader.hello(21, hello(2), LOG, 0)
    assert leader.advance(300) == 220


def test_too_few_members_confirm_nothing():
    """With a minimum of two the master's copy alone is not enough; nor is a set without the master."""
    assert a_leader({1}, in_sync_min=2).advance(300) == 180
    assert a_leader({2}).advance(300) == 180
    assert a_leader({1}).advance(300) == 300


def test_a_new_set_ends_the_connections_outside_of_it():
    """A broker outside may have booted with less since it acknowledged, and reports again; members need not."""
    leader = a_leader({1, 2})
    stream(leader, 2)
    stream(leader, 3)
    give(leader, 20, 300)
    give(leader, 30, 300)
    assert leader.learn({1, 2}, 8, 100)
    assert leader.knows(20)
    assert not leader.knows(30)
    assert leader.check(300, 200) is None
    assert leader.learn({1}, 9, 300)
    assert not leader.knows(20)
    assert not leader.learn({1, 2}, 9, 400)


def test_a_joiner_counts_before_it_is_committed():
    """From its proposal on nothing is confirmed without it."""
    leader = a_leader({1})
    stream(leader, 2)
    give(leader, 20, 300)
    assert leader.check(300, 500).members == {1, 2}
    assert leader.advance(400) == 300
    assert leader.check(400, 500) is None
    leader.members.learn({1, 2}, 8)
    give(leader, 20, 400)
    assert leader.advance(400) == 400


@pytest.mark.parametrize(("end", "joins"), [(199, False), (200, True), (300, True)])
def test_a_joiner_has_what_is_confirmed_and_the_start_of_this_epoch(end, joins):
    """An end from before this epoch may be that of a log that diverges there."""
    leader = a_leader({1}, in_sync_min=2)
    stream(leader, 2, at=190)
    give(leader, 20, end)
    assert (leader.check(300, 100) is not None) is joins


def test_a_learner_never_joins():
    """It replicates, and is never in sync."""
    leader = a_leader({1})
    stream(leader, 2, learner=True)
    give(leader, 20, 300)
    assert leader.check(300, 100) is None


def test_a_member_whose_broker_stops_leaves_at_once_and_may_return():
    """It has said so; a connection of it counts again."""
    leader = a_leader({1, 2})
    stream(leader, 2, now_ms=10)
    assert leader.check(300, 20) is None
    leader.disconnected(20, 20, is_stopping=True)
    assert not leader.knows(20)
    assert leader.check(300, 20).members == {1}
    leader = a_leader({1, 2})
    stream(leader, 2, now_ms=10)
    leader.disconnected(20, 20, is_stopping=True)
    stream(leader, 2, now_ms=21)
    assert leader.check(300, 21) is None


def test_an_absent_member_leaves_after_a_while():
    """A short absence costs nothing; a longer one costs the membership."""
    leader = a_leader({1, 2})
    assert leader.check(300, 1_000) is None
    assert leader.check(300, 1_001).members == {1}
    assert leader.members.effective == {1, 2}


@catches(
    Plant(
        "every-answer-is-caught-up", "broker.replication.leader:Leader.acknowledged",
        "if 0 <= replica.mark_end <= ack.end:", "if 0 <= replica.mark_end:",
    )
)  # fmt: skip
def test_a_member_that_does_not_catch_up_leaves():
    """Caught up means to have acknowledged all there was at an earlier send."""
    leader = a_leader({1, 2})
    stream(leader, 2)
    leader.sent(20, 40, 300, 2_000)
    leader.acknowledged(20, Ack(5, 240), 4_900)
    assert leader.check(300, 5_000) is None
    assert leader.replicas()[0].lag_ms(300, 4_000) == 4_000
    assert leader.check(300, 5_001).members == {1}
    leader.members.learn({1}, 8)
    give(leader, 20, 300, 5_100)
    assert leader.replicas()[0].lag_ms(300, 5_200) == 0


@catches(
    Plant(
        "caught-up-when-it-answers", "broker.replication.leader:Leader.acknowledged",
        "replica.caught_up_ms = replica.mark_ms", "replica.caught_up_ms = now_ms",
    ),
)  # fmt: skip
def test_a_member_that_is_always_behind_leaves():
    """It acknowledges without a pause what was sent six seconds before, and each time the log has grown by then.

    Every write waits for it: it had all there was six seconds ago, whenever that is looked at.
    """
    leader = a_leader({1, 2})
    stream(leader, 2)
    end, asked = 200, []
    for now_ms in range(0, 30_000, 2_000):
        end += 20
        leader.sent(20, 20, end, now_ms)
        if now_ms >= 6_000:
            leader.acknowledged(20, Ack(5, end - 60), now_ms)
        proposal = leader.check(end, now_ms)
        if proposal is not None:
            asked.append((now_ms, proposal.members))
            break
    assert asked == [(6_000, {1})]


@catches(
    Plant("a-learner-confirms", COUNTED, "and not each.is_learner", ""),
    Plant("a-stranger-confirms", COUNTED, "each.broker in majority.members and", ""),
)
def test_a_majority_is_one_of_members():
    """In a group that elects itself: a learner, or a broker that the configuration does not name, has a copy only."""
    for broker, learner in ((2, True), (9, False)):
        leader = a_leader({1, 2, 3}, confirm=180)
        leader.majority = Majority(frozenset({1, 2, 3}), lambda: True)
        give(leader, stream(leader, broker, learner=learner), 300)
        assert leader.advance(300) == 180
        give(leader, stream(leader, 3), 250)
        assert leader.advance(300) == 250


def test_reconnecting_is_not_catching_up():
    """A member that reconnects again and again without acknowledging leaves as well."""
    leader = a_leader({1, 2})
    for now_ms in range(0, 6_000, 500):
        leader.disconnected(20, now_ms)
        stream(leader, 2, now_ms=now_ms)
    assert leader.check(300, 6_000).members == {1}


def test_a_member_that_lost_what_was_confirmed_leaves_at_once():
    """Its disk was replaced: it must not be elected."""
    leader = a_leader({1, 2}, confirm=250)
    stream(leader, 2)
    leader.acknowledged(20, Ack(5, 200), 0)
    assert leader.check(300, 10).members == {1}


def test_no_member_leaves_when_too_few_would_stay():
    """Fewer than the minimum could confirm nothing; a joiner in place of the leaver is another matter."""
    leader = a_leader({1, 2}, in_sync_min=2)
    assert leader.check(300, 5_000) is None
    stream(leader, 3, now_ms=5_000)
    give(leader, 30, 300, 5_000)
    assert leader.check(300, 5_000).members == {1, 3}


def test_a_doubt_is_ended_by_a_proposal():
    """After a proposal without an answer even the same set is proposed: a newer set epoch voids the lost one."""
    leader = a_leader({1})
    stream(leader, 2)
    give(leader, 20, 300)
    leader.members.unanswered(leader.check(300, 100))
    leader.disconnected(20, 100)
    assert leader.check(300, 200).members == {1}


def test_a_superseded_master_proposes_nothing():
    """A replica knows a newer epoch."""
    leader = a_leader({1, 2})
    leader.hello(20, hello(2, epoch=6), LOG, 0)
    assert leader.check(300, 60_000) is None


def test_heartbeats_and_silence():
    """A quiet stream gets a heartbeat; a replica that never answers is closed."""
    leader = a_leader()
    leader.hello(30, hello(3), LOG, 0)
    stream(leader, 2)
    assert leader.heartbeats_due(499) == []
    assert leader.heartbeats_due(500) == [20]
    leader.sent(20, 0, 300, 500)
    assert leader.heartbeats_due(900) == []
    assert leader.silent(2_999) == []
    leader.acknowledged(20, Ack(5, 200), 2_999)
    assert leader.silent(3_000) == [30]


def test_a_replica_out_of_sync_is_told_of_once_when_it_has_caught_up():
    """On each of its connections; learners and those that lack something are not."""
    leader = a_leader({1})
    for broker in (3, 4):
        stream(leader, broker, learner=broker == 4)
    give(leader, 40, 250)
    assert [catches_up(leader, connection) for connection in (30, 40, 50)] == [False] * 3
    give(leader, 30, 250)
    assert [catches_up(leader, 30) for _ in range(2)] == [True, False]


def test_whether_an_append_has_a_chance():
    """Too few members are connected, and for longer than a moment: it is refused instead of waiting.

    One that has not connected yet may be on its way for longer than one whose connection ended.
    """
    leader = a_leader({1, 2}, in_sync_min=2)
    assert leader.accepts(3_000)
    assert not leader.accepts(3_001)
    stream(leader, 2)
    assert leader.accepts(9_000)
    leader.disconnected(20, 9_000)
    assert leader.accepts(10_000)
    assert not leader.accepts(10_001)
    late = a_leader({1, 2}, in_sync_min=2)
    late.presume_absent(2)
    assert not late.accepts(0)


def test_counting_copies():
    """Members of the set count, learners do not, nor replicas that are not in sync."""
    leader = a_leader({1, 2}, mode="count", count=2)
    stream(leader, 2)
    stream(leader, 3)
    give(leader, 30, 300)
    assert leader.limit(300) == 0
    give(leader, 20, 260)
    assert leader.limit(300) == 260
    assert a_leader(mode="async").limit(300) is None


def test_an_expired_position_is_refused_with_the_begin():
    """Retention passed the replica."""
    assert expired(a_leader().epoch, LOG) == Refusal(frames.EXPIRED, 5, "the log begins at 50")


def test_a_broker_given_up_by_the_others_leaves_at_once():
    """The former master: it is not waited for until it connects."""
    leader = a_leader((1, 2, 3), in_sync_min=2)
    give(leader, stream(leader, 3), 300)
    assert leader.check(300, 0) is None
    leader.presume_absent(2)
    leader.presume_absent(3)
    proposal = leader.check(300, 0)
    assert proposal is not None
    assert proposal.members == {1, 3}


def test_alone_the_local_rule_decides():
    """async: no limit, and never refused for lack of replicas."""
    rule = Acknowledge(mode="async")
    assert rule.limit(100, [], 0) is None
    assert rule.accepts(1)
    assert rule.members_min == 1


@pytest.mark.parametrize(("count", "expected"), [(1, 100), (2, 80), (3, 30), (4, 0)])
def test_a_number_of_copies(count, expected):
    """count: the end that this many copies have reached, the master's among them."""
    rule = Acknowledge(mode="count", count=count, in_sync_min=2)
    assert rule.limit(100, [30, 80], 30) == expected
    assert rule.accepts(count)
    assert not rule.accepts(count - 1)
    assert rule.members_min == 1


def test_all_that_are_in_sync():
    """all: the confirm position, and at least this many members."""
    rule = Acknowledge(mode="all", in_sync_min=2)
    assert rule.limit(100, [30, 80], 30) == 30
    assert rule.members_min == 2
    assert rule.accepts(2)
    assert not rule.accepts(1)


@pytest.mark.parametrize("wrong", [{"mode": "some"}, {"count": 0}, {"in_sync_min": 0}])
def test_invalid_rules(wrong):
    """A mistake in the configuration is reported when it is read."""
    with pytest.raises(LocalMisuse):
        Acknowledge(**wrong)


def test_a_joiner_is_required_from_its_proposal_on():
    """The controllers may have committed it before their answer arrives."""
    members = SyncStateSet({1}, 7)
    proposal = members.propose({1, 2})
    assert proposal.base_epoch == 7
    assert members.effective == {1, 2}
    assert members.committed == {1}
    assert members.learn({1, 2}, 8)
    assert members.committed == members.effective == {1, 2}
    assert members.open is None


def test_a_leaver_is_required_until_the_controllers_say_it_left():
    """Before that it can still be elected."""
    members = SyncStateSet({1, 2}, 7)
    members.propose({1})
    assert members.effective == {1, 2}
    members.learn({1}, 8)
    assert members.effective == {1}


def test_a_refusal_ends_a_proposal_and_an_old_answer_changes_nothing():
    """Sent once and refused: it can be committed no more."""
    members = SyncStateSet({1}, 7)
    first = members.propose({1, 2})
    members.refused(first)
    assert members.effective == {1}
    second = members.propose({1, 3})
    members.refused(first)
    members.unanswered(first)
    assert members.open is second
    assert members.effective == {1, 3}
    assert second.number > first.number


def test_an_unanswered_proposal_is_required_until_a_newer_set_voids_it():
    """It may lie in a queue somewhere and be committed later."""
    members = SyncStateSet({1}, 7)
    members.unanswered(members.propose({1, 2}))
    assert members.effective == {1, 2}
    assert members.doubtful == {2}
    members.refused(members.propose({1, 3}))
    assert members.effective == {1, 2}
    assert not members.learn({1}, 7)
    assert members.effective == {1, 2}
    assert members.learn({1}, 8)
    assert members.effective == {1}
    assert members.doubtful == frozenset()


def test_one_proposal_at_a_time():
    """A second one would have the same set epoch as the first."""
    members = SyncStateSet({1}, 7)
    members.propose({1, 2})
    with pytest.raises(LocalMisuse):
        members.propose({1, 3})
