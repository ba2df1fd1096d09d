"""The requests of a member to the controllers, its roles, and whether a master may answer after a pause."""

from __future__ import annotations

import itertools

import pytest

from broker.replication.epochs import Extent
from broker.replication.frames import Hello, Ready
from broker.replication.leader import Acknowledge, Leader, LeaderSettings, SyncStateSet
from broker.roles.steps import (
    LEAVE_RETRY_MS,
    RETRY_MS,
    RETRY_MS_MAX,
    Ask,
    ControllerAnswer,
    KnownGroup,
    PauseWatch,
    ReplicaSteps,
    RoleChange,
    RolePhase,
    SyncStateSetChange,
    pause_limit_ms,
)
from remoting.protocol.frames.codes import ResponseCode

VACANT = KnownGroup(0, None)


class Recorder:
    """A broker that asks, and notes what it is told, in order."""

    def __init__(self, steps: ReplicaSteps) -> None:
        self.steps = steps
        self.notes: list[object] = []

    def save_id(self, broker_id: int) -> None:
        assert self.steps.broker_id is None, "on the disk first"
        self.notes.append(broker_id)

    def save_applied(self) -> None:
        assert not self.steps.is_applied, "on the disk first"
        self.notes.append("applied")

    def save_registered(self) -> None:
        assert not self.steps.may_beat, "on the disk first"
        self.notes.append("registered")

    def report(self, view: KnownGroup) -> None:
        self.notes.append(view)
        self.steps.update(view)

    def proved(self, view: KnownGroup, asked_ms: int) -> None:
        self.notes.append((view, asked_ms))

    def left(self, answer: ControllerAnswer) -> None:
        self.notes.append(answer)

    def hear(self, code: int | None = 0, view: KnownGroup | None = None, *, now_ms: int = 0, offer: int = 0) -> bool:
        """The answer to what was asked last."""
        return self.steps.concluded(ControllerAnswer(code, view, offer), now_ms, self)


def steps(
    broker_id: int | None = 1, *, epoch: int = 0, is_learner: bool = False, is_applied: bool = True
) -> ReplicaSteps:
    return ReplicaSteps(broker_id, is_applied=is_applied, epoch=epoch, is_learner=is_learner, poll_interval_ms=1_000)


def registered(**options) -> ReplicaSteps:
    """Known to the controllers, without a role."""
    made = steps(**options)
    broker = Recorder(made)
    for ask in (Ask.LEADER, Ask.REGISTER, Ask.HEARTBEAT):
        assert made.next_ask(0) is ask
        assert broker.hear(view=VACANT)
    return made


def test_a_new_broker_registers_in_order_and_is_fenced_until_it_has_a_role() -> None:
    """Leader, id, register, heartbeat, election; each request waits for the answer to the one before."""
    made = steps(None, is_applied=False)
    broker = Recorder(made)
    assert (made.stage, made.next_ask(0), made.next_ask(0)) == (RolePhase.INITIAL, Ask.LEADER, None)
    assert broker.hear()
    assert (made.stage, made.next_ask(0)) == (RolePhase.FIRST_TIME_SYNC_DONE, Ask.NEXT_ID)
    assert broker.hear(offer=3)
    assert (made.next_ask(0), made.may_beat, made.broker_id) == (Ask.APPLY_ID, False, 3)
    assert broker.hear()
    assert made.next_ask(0) is Ask.REGISTER
    assert broker.hear(view=VACANT)
    assert (made.stage, made.next_ask(0), made.may_beat) == (RolePhase.REGISTER_DONE, Ask.HEARTBEAT, True)
    assert broker.hear()
    assert (made.next_ask(3), made.role) == (Ask.ELECT, None)
    assert broker.hear(now_ms=4)
    assert made.next_ask(4) is Ask.POLL
    view = KnownGroup(1, 3, "h:1", members=frozenset({3}))
    assert broker.hear(view=view, now_ms=5)
    assert broker.notes == [3, "applied", "registered", VACANT, view, (view, 4)]
    assert made.role is not None
    assert (made.role.is_master, made.role.is_fenced, made.stage) == (True, False, RolePhase.RUNNING)
    assert (made.next_ask(1_004), made.next_ask(1_005)) == (None, Ask.POLL)


def test_an_id_taken_by_another_broker_is_requested_again() -> None:
    """Two brokers were offered the same one."""
    made = steps(2, is_applied=False)
    broker = Recorder(made)
    made.next_ask(0)
    broker.hear()
    assert made.next_ask(0) is Ask.APPLY_ID
    assert not broker.hear(ResponseCode.CONTROLLER_BROKER_ID_INVALID)
    assert (made.next_ask(0), made.next_ask(RETRY_MS)) == (None, Ask.NEXT_ID), "a full group is not asked all the time"
    assert broker.hear(offer=3, now_ms=RETRY_MS)
    assert (made.next_ask(RETRY_MS), made.broker_id) == (Ask.APPLY_ID, 3)


def test_an_id_of_its_own_stays_whatever_is_answered() -> None:
    made = registered()
    assert made.next_ask(0) is Ask.ELECT
    assert not Recorder(made).hear(ResponseCode.CONTROLLER_BROKER_ID_INVALID)
    assert (made.broker_id, made.next_ask(RETRY_MS)) == (1, Ask.ELECT)


def test_a_heartbeat_from_before_a_registration_is_sent_again() -> None:
    """The controllers have refused a later one meanwhile, and forgotten the first with the broker."""
    made = steps()
    broker = Recorder(made)
    for ask in (Ask.LEADER, Ask.REGISTER):
        assert made.next_ask(0) is ask
        broker.hear(view=VACANT)
    assert made.next_ask(0) is Ask.HEARTBEAT
    made.beaten(ResponseCode.CONTROLLER_BROKER_NEED_TO_BE_REGISTERED, 0)
    broker.hear()
    assert made.next_ask(0) is Ask.REGISTER
    broker.hear(view=VACANT)
    assert made.next_ask(0) is Ask.HEARTBEAT


def test_failed_requests_are_repeated_ever_more_slowly() -> None:
    """Without a leader it is searched for; a refusal keeps the leader; an unknown broker registers again."""
    made = registered()
    broker, pauses, now = Recorder(made), [], 0
    assert made.next_ask(now) is Ask.ELECT
    for _ in range(6):
        assert broker.hear(None, now_ms=now)
        pauses.append(made.due_ms - now)
        now = made.due_ms
        assert made.next_ask(now) is Ask.LEADER
    assert pauses == [RETRY_MS, 400, 800, 1_600, RETRY_MS_MAX, RETRY_MS_MAX]
    broker.hear(now_ms=now)
    assert made.next_ask(now) is Ask.ELECT
    assert not broker.hear(ResponseCode.SYSTEM_BUSY, now_ms=now)
    assert made.next_ask(now) is None
    made.ask_now(now)
    assert made.next_ask(now) is Ask.ELECT
    assert not broker.hear(ResponseCode.CONTROLLER_BROKER_NEED_TO_BE_REGISTERED, now_ms=now)
    assert made.next_ask(now) is None
    made.ask_now(now)
    assert (made.next_ask(now), made.may_beat) == (Ask.REGISTER, False)


def test_who_asks_to_be_elected_asks_for_the_outcome() -> None:
    """Also where there is a master already; elsewhere that answer is a refusal."""
    made = registered()
    broker = Recorder(made)
    assert made.next_ask(0) is Ask.ELECT
    assert broker.hear(ResponseCode.CONTROLLER_MASTER_STILL_EXIST)
    assert made.next_ask(0) is Ask.POLL
    assert not broker.hear(ResponseCode.CONTROLLER_MASTER_STILL_EXIST)
    assert (made.next_ask(0), made.due_ms, made.next_ask(RETRY_MS)) == (None, RETRY_MS, Ask.ELECT)
    broker.hear(now_ms=RETRY_MS)
    assert made.next_ask(RETRY_MS) is Ask.POLL
    broker.hear(view=VACANT, now_ms=RETRY_MS)
    assert (made.due_ms, made.next_ask(made.due_ms)) == (3 * RETRY_MS, Ask.ELECT)


def test_a_registration_from_before_a_loss_counts_for_nothing() -> None:
    """What it said of the log is not true any more, so its answer gives no role."""
    made = steps()
    broker = Recorder(made)
    made.next_ask(0)
    broker.hear()
    assert made.next_ask(0) is Ask.REGISTER
    made.lost_something(0)
    assert broker.hear(view=KnownGroup(1, 2, "h:1"))
    assert (broker.notes, made.may_beat) == ([], False)
    assert made.next_ask(RETRY_MS) is Ask.REGISTER
    broker.hear(view=KnownGroup(1, 2, "h:1"), now_ms=RETRY_MS)
    assert (made.may_beat, made.role) == (True, RoleChange(KnownGroup(1, 2, "h:1"), is_master=False))


def test_a_broker_whose_heartbeats_are_refused_registers_again() -> None:
    """At once, keeping its role; a second refusal, of a heartbeat from before, changes nothing."""
    made = registered()
    broker, role = Recorder(made), made.update(KnownGroup(4, 1))
    assert made.next_ask(0) is Ask.POLL
    broker.hear(view=KnownGroup(4, 1))
    made.beaten(ResponseCode.SYSTEM_BUSY, 5)
    assert (made.next_ask(5), made.may_beat) == (None, True)
    made.beaten(ResponseCode.CONTROLLER_BROKER_NEED_TO_BE_REGISTERED, 5)
    assert (made.may_beat, made.next_ask(5), made.role) == (False, Ask.REGISTER, role)
    broker.hear(ResponseCode.SYSTEM_BUSY, now_ms=5)
    made.beaten(ResponseCode.CONTROLLER_BROKER_NEED_TO_BE_REGISTERED, 5)
    assert made.next_ask(5) is None
    assert made.next_ask(5 + RETRY_MS) is Ask.REGISTER
    broker.hear(view=KnownGroup(4, 1))
    assert made.next_ask(5 + RETRY_MS) is Ask.HEARTBEAT


def test_who_hears_that_there_is_no_master_asks_at_once() -> None:
    made = registered()
    broker = Recorder(made)
    assert isinstance(made.update(KnownGroup(4, 2)), RoleChange)
    assert made.next_ask(0) is Ask.POLL
    broker.hear(view=KnownGroup(4, 2))
    assert made.next_ask(10) is None
    made.update(KnownGroup(5, None))
    assert made.next_ask(10) is Ask.ELECT


def test_a_master_that_leaves_asks_until_it_is_answered() -> None:
    """After the question under way, and again soon where nobody has answered; then it goes on as before."""
    made = registered()
    broker = Recorder(made)
    made.update(KnownGroup(4, 1))
    assert made.next_ask(0) is Ask.POLL
    made.leave(0)
    assert made.next_ask(0) is None
    broker.hear(view=KnownGroup(4, 1))
    assert made.next_ask(0) is Ask.LEAVE
    broker.hear(None)
    assert (made.next_ask(LEAVE_RETRY_MS - 1), made.next_ask(LEAVE_RETRY_MS)) == (None, Ask.LEADER)
    broker.hear(None, now_ms=100)
    assert made.next_ask(100 + LEAVE_RETRY_MS) is Ask.LEADER
    broker.hear(now_ms=200)
    assert made.next_ask(200) is Ask.LEAVE
    assert broker.hear(0, KnownGroup(5, 2), now_ms=200)
    assert broker.notes[-2:] == [KnownGroup(5, 2), ControllerAnswer(0, KnownGroup(5, 2))]
    assert made.view == KnownGroup(5, 2)
    assert made.next_ask(1_200) is Ask.POLL


@pytest.mark.parametrize(
    ("code", "then"),
    [
        (ResponseCode.CONTROLLER_MASTER_NOT_AVAILABLE, Ask.POLL),
        (ResponseCode.CONTROLLER_BROKER_NEED_TO_BE_REGISTERED, Ask.REGISTER),
    ],
)
def test_a_master_that_may_not_leave_is_told_once(code: int, then: Ask) -> None:
    made = registered()
    broker = Recorder(made)
    made.update(KnownGroup(4, 1))
    made.leave(0)
    assert made.next_ask(0) is Ask.LEAVE
    assert not broker.hear(code)
    assert broker.notes[-1] == ControllerAnswer(code)
    assert made.next_ask(made.due_ms) is then


def test_a_set_that_is_decided_after_a_loss_is_no_answer() -> None:
    made = registered()
    made.update(KnownGroup(4, 1, "a:1", members=frozenset({1}), set_epoch=3))
    decided = KnownGroup(4, 1, "a:1", members=frozenset({1, 2}), set_epoch=4)
    assert made.altered(decided.members, 4) == ControllerAnswer(0, decided)
    made.lost_something(0)
    answer = made.altered(decided.members, 4)
    assert (answer.code, answer.view) == (None, None)


def test_losing_the_controllers_changes_no_role() -> None:
    """The master continues, whatever cannot be asked."""
    made = registered()
    broker = Recorder(made)
    assert isinstance(made.update(KnownGroup(4, 1)), RoleChange)
    for code in (None, ResponseCode.CONTROLLER_BROKER_METADATA_NOT_EXIST):
        assert made.next_ask(made.due_ms) in (Ask.POLL, Ask.LEADER)
        broker.hear(code)
    assert made.role is not None
    assert (made.role.is_master, made.stage) == (True, RolePhase.RUNNING)


def test_a_role_changes_for_a_newer_epoch_only() -> None:
    """Replica, master, replica again; an old epoch changes nothing, an update of the same epoch does."""
    made = registered()
    assert made.update(KnownGroup(3, 2, "a:1", members=frozenset({2}), set_epoch=3)) == RoleChange(
        KnownGroup(3, 2, "a:1", members=frozenset({2}), set_epoch=3), is_master=False
    )
    assert made.update(KnownGroup(2, 1, "b:1")) is None
    assert made.update(KnownGroup(3, 1, "b:1")) is None
    news = KnownGroup(3, 2, "a:1", members=frozenset({1, 2}), set_epoch=4)
    assert made.update(news) == SyncStateSetChange(news)
    assert made.update(news) is None
    assert made.update(KnownGroup(3, 2, "a:1", members=frozenset({2}), set_epoch=3)) is None
    master = made.update(KnownGroup(5, 1, "b:1"))
    assert isinstance(master, RoleChange)
    assert master.is_master
    again = made.update(KnownGroup(6, 1, "b:1"))
    assert isinstance(again, RoleChange)
    assert again.is_master
    fenced = made.update(KnownGroup(7, None))
    assert isinstance(fenced, RoleChange)
    assert (fenced.is_fenced, fenced.is_master) == (True, False)
    assert made.update(KnownGroup(8, None)) is None
    assert made.next_ask(0) is Ask.ELECT


def test_a_restarted_master_does_not_continue_in_its_epoch() -> None:
    """It asks for an election, and is the master in the new epoch; a replica continues behind the same master."""
    made = registered(epoch=4)
    assert made.update(KnownGroup(4, 1, "b:1")) is None
    assert (made.role, made.next_ask(0)) == (None, Ask.ELECT)
    elected = made.update(KnownGroup(5, 1, "b:1"))
    assert isinstance(elected, RoleChange)
    assert elected.is_master
    replica = registered(epoch=4)
    behind = replica.update(KnownGroup(4, 2, "a:1"))
    assert isinstance(behind, RoleChange)
    assert not behind.is_master
    assert replica.update(KnownGroup(3, 2, "a:1")) is None


def test_a_master_that_was_hidden_while_it_seemed_dead_is_shown_again() -> None:
    """The same epoch without and with the master: a role at last."""
    made = registered(epoch=4)
    assert made.update(KnownGroup(4, None)) is None
    role = made.update(KnownGroup(4, 2, "a:1"))
    assert isinstance(role, RoleChange)
    assert role.view.address == "a:1"


def test_a_learner_waits_for_others_to_be_elected() -> None:
    """It polls, and never asks for an election."""
    made = registered(is_learner=True)
    assert made.next_ask(0) is Ask.POLL
    Recorder(made).hear(view=VACANT)
    assert made.due_ms == RETRY_MS


@pytest.mark.parametrize("order", list(itertools.permutations(range(4))))
def test_in_any_order_of_updates_the_newest_role_wins(order: tuple[int, ...]) -> None:
    """Pushes and answers overtake each other; epochs returned never fall."""
    views = [KnownGroup(1, 1), KnownGroup(2, 2), KnownGroup(3, None), KnownGroup(4, 1)]
    made = registered()
    epochs = [each.view.epoch for each in (made.update(views[at]) for at in order) if isinstance(each, RoleChange)]
    assert epochs == sorted(epochs)
    assert made.role is not None
    assert (made.role.view.epoch, made.role.is_master) == (4, True)


def test_nothing_is_applied_before_the_broker_has_its_id() -> None:
    """It would not know which of the brokers it is."""
    made = steps(None, is_applied=False)
    assert made.update(KnownGroup(9, 1)) is None
    assert made.epoch == 0


LIMIT_MS = 1_000
LOG = Extent(0, 0, ())


class Bench:
    """A master of three in epoch 5, and a clock."""

    def __init__(self, members: frozenset[int] = frozenset({1, 2, 3})) -> None:
        self.now_ms = 10_000
        self.paused: list[int] = []
        self.leader = Leader(
            1, 5, 0, SyncStateSet(members, 1), Acknowledge(mode="all", count=2, in_sync_min=2), LeaderSettings(),
            cluster="c", group="g", confirm=0, now_ms=self.now_ms,
        )  # fmt: skip
        self.ended = 0
        self.watch = PauseWatch(LIMIT_MS, lambda: self.now_ms, self.paused.append)

    def lead(self) -> None:
        self.watch.lead(self.leader, self.end)

    def end(self) -> None:
        """What a master does when a doubt begins."""
        self.ended += 1
        for broker in (2, 3):
            self.leader.disconnected(broker, self.now_ms)

    def connect(self, *brokers: int) -> None:
        for broker in brokers:
            hello = Hello(broker, 5, 0, 0, b"", "c", "g")
            self.leader.hello(broker, hello, LOG, self.now_ms)
            self.leader.ready(broker, Ready(epoch=5, position=0), LOG, self.now_ms)

    def pass_ms(self, duration_ms: int) -> None:
        self.now_ms += duration_ms


def leading(members: frozenset[int] = frozenset({1, 2, 3})) -> Bench:
    bench = Bench(members)
    bench.lead()
    return bench


def test_short_pauses_cause_no_doubt() -> None:
    bench = leading()
    for _ in range(100):
        bench.pass_ms(LIMIT_MS)
        assert bench.watch.may_answer()
        assert not bench.watch.tick()
    assert bench.paused == []


def test_after_a_long_one_no_request_is_answered() -> None:
    """A request before the timer, or the timer first; and it stays so."""
    for first in (PauseWatch.may_answer, PauseWatch.tick):
        bench = leading()
        bench.pass_ms(LIMIT_MS + 1)
        assert not first(bench.watch)
        assert (bench.paused, bench.ended) == ([LIMIT_MS + 1], 1)
        for _ in range(20):
            bench.pass_ms(100)
            assert not bench.watch.tick()
            assert not bench.watch.may_answer()
        assert bench.watch.pauses == 1


def test_the_controllers_answer_to_a_new_request_ends_it() -> None:
    """Not to an earlier one, and not about another master or epoch."""
    bench = leading()
    asked_ms = bench.now_ms
    bench.pass_ms(5_000)
    assert not bench.watch.may_answer()
    assert not bench.watch.confirmed(5, 1, asked_ms)
    assert not bench.watch.confirmed(6, 2, bench.now_ms)
    assert not bench.watch.confirmed(6, 1, bench.now_ms)
    assert not bench.watch.may_answer()
    assert bench.watch.confirmed(5, 1, bench.now_ms)
    assert bench.watch.may_answer()
    assert not bench.watch.confirmed(5, 1, bench.now_ms)


def test_without_controllers_every_member_in_sync_must_reconnect() -> None:
    """What members sent on connections from before the pause may be older than it, whenever it arrives."""
    bench = leading()
    bench.connect(2, 3)
    bench.pass_ms(5_000)
    assert not bench.watch.may_answer()
    assert bench.ended == 1
    bench.pass_ms(10)
    assert not bench.watch.tick()
    bench.connect(2)
    assert not bench.watch.tick()
    bench.connect(3)
    assert bench.watch.tick()
    assert bench.watch.may_answer()


def test_members_that_are_back_within_the_millisecond_count() -> None:
    """Their connections begin after the doubt: they stay, so there is no later proof."""
    bench = leading()
    bench.connect(2, 3)
    bench.pass_ms(5_000)
    assert not bench.watch.may_answer()
    bench.connect(2, 3)
    assert bench.watch.tick()


def test_a_connection_from_the_moment_of_the_doubt_proves_nothing() -> None:
    """It may have been greeted before."""
    bench = leading()
    bench.pass_ms(5_000)
    bench.connect(2, 3)
    bench.watch.lead(bench.leader)  # whose connections end a moment later
    assert not bench.watch.tick()
    bench.pass_ms(10)
    assert not bench.watch.tick()


def test_a_member_that_knows_a_newer_epoch_proves_nothing() -> None:
    bench = leading()
    bench.pass_ms(5_000)
    assert not bench.watch.may_answer()
    bench.pass_ms(10)
    bench.connect(2, 3)
    bench.leader.superseded = 6
    assert not bench.watch.tick()


def test_the_only_member_in_sync_cannot_have_been_replaced() -> None:
    bench = leading(frozenset({1}))
    bench.pass_ms(5_000)
    assert not bench.watch.may_answer()
    assert bench.watch.tick()


def test_a_master_by_an_old_update_is_in_doubt() -> None:
    """A replica was paused, and what makes it the master may have waited in its sockets meanwhile."""
    bench = Bench()
    bench.pass_ms(5_000)
    bench.lead()
    assert not bench.watch.may_answer()
    assert bench.paused == [5_000]
    bench.pass_ms(100)
    assert not bench.watch.tick()
    assert bench.watch.confirmed(5, 1, bench.now_ms)
    assert bench.watch.may_answer()


def test_any_answer_of_the_controllers_ends_a_replicas_doubt() -> None:
    """To a request sent since: whatever makes it the master later is newer."""
    bench = Bench()
    bench.pass_ms(5_000)
    assert not bench.watch.may_answer()
    assert not bench.watch.tick()
    assert not bench.watch.confirmed(7, 2, bench.now_ms - 1)
    assert not bench.watch.may_answer()
    assert not bench.watch.confirmed(7, 2, bench.now_ms), "nothing to report"
    bench.lead()
    assert bench.watch.may_answer()


def test_the_limit_leaves_room_for_the_last_heartbeat() -> None:
    assert pause_limit_ms(500, 2_000) == 1_000
    assert pause_limit_ms(500, 1_000) == 500
