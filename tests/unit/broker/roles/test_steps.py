"""A member's way to its role: questions in order, fenced until it knows, roles of newer epochs only."""

from __future__ import annotations

import itertools

import pytest

from broker.roles.steps import RETRY_MS, RETRY_MS_MAX, Ask, ReplicaSteps, Role, SetNews, Stage, View


def steps(
    broker_id: int | None = 1, *, epoch: int = 0, is_learner: bool = False, is_applied: bool = True
) -> ReplicaSteps:
    return ReplicaSteps(broker_id, is_applied=is_applied, epoch=epoch, is_learner=is_learner, poll_interval_ms=1_000)


def registered(**options) -> ReplicaSteps:
    """Known to the controllers, without a role."""
    made = steps(**options)
    assert made.wish(0) is Ask.LEADER
    made.found_leader(0)
    assert made.wish(0) is Ask.REGISTER
    made.registered(0)
    assert made.wish(0) is Ask.HEARTBEAT
    made.beaten(0)
    return made


def test_a_new_broker_asks_in_order_and_is_fenced_until_it_knows() -> None:
    """Leader, id, register, heartbeat, election; each question waits for the answer to the one before."""
    made = steps(None, is_applied=False)
    assert (made.stage, made.wish(0), made.wish(0)) == (Stage.INITIAL, Ask.LEADER, None)
    made.found_leader(0)
    assert (made.stage, made.wish(0)) == (Stage.FIRST_TIME_SYNC_DONE, Ask.NEXT_ID)
    made.offered(3, 0)
    assert (made.wish(0), made.may_beat) == (Ask.APPLY_ID, False)
    made.applied(0)
    assert made.wish(0) is Ask.REGISTER
    made.registered(0)
    assert (made.stage, made.wish(0), made.may_beat) == (Stage.REGISTER_DONE, Ask.HEARTBEAT, True)
    made.beaten(0)
    assert (made.wish(0), made.role) == (Ask.ELECT, None)
    role = made.told(View(1, 3, "h:1", members=frozenset({3})))
    made.answered(5)
    assert isinstance(role, Role)
    assert (role.is_master, role.is_fenced, made.stage) == (True, False, Stage.RUNNING)
    assert (made.wish(1_004), made.wish(1_005)) == (None, Ask.POLL)


def test_an_id_that_somebody_else_took_is_asked_for_again() -> None:
    """Two brokers were offered the same one."""
    made = steps(2, is_applied=False)
    made.wish(0)
    made.found_leader(0)
    assert made.wish(0) is Ask.APPLY_ID
    made.id_taken(0)
    assert made.wish(0) is Ask.NEXT_ID


def test_questions_that_fail_are_asked_again_ever_more_slowly() -> None:
    """Without a leader it is looked for; a refusal keeps the leader; being unknown leads to a new registration."""
    made = registered()
    pauses = []
    now = 0
    for _ in range(6):
        made.lost(now)
        pauses.append(made.due_ms - now)
        now = made.due_ms
        assert made.wish(now) is Ask.LEADER
    assert pauses == [RETRY_MS, 400, 800, 1_600, RETRY_MS_MAX, RETRY_MS_MAX]
    made.found_leader(now)
    assert made.wish(now) is Ask.ELECT
    made.refused(now)
    assert made.wish(now) is None
    made.hurry(now)
    assert made.wish(now) is Ask.ELECT
    made.unknown(now)
    made.hurry(now)
    assert (made.wish(now), made.may_beat) == (Ask.REGISTER, False)


def test_losing_the_controllers_changes_no_role() -> None:
    """The master goes on, whatever cannot be asked."""
    made = registered()
    assert isinstance(made.told(View(4, 1)), Role)
    made.lost(0)
    made.unknown(0)
    assert made.role is not None
    assert (made.role.is_master, made.stage) == (True, Stage.RUNNING)


def test_a_role_changes_for_a_newer_epoch_only() -> None:
    """Replica, master, replica again; what is old changes nothing, news of the same epoch are news."""
    made = registered()
    assert made.told(View(3, 2, "a:1", members=frozenset({2}), set_epoch=3)) == Role(
        View(3, 2, "a:1", members=frozenset({2}), set_epoch=3), is_master=False
    )
    assert made.told(View(2, 1, "b:1")) is None
    assert made.told(View(3, 1, "b:1")) is None
    news = View(3, 2, "a:1", members=frozenset({1, 2}), set_epoch=4)
    assert made.told(news) == SetNews(news)
    assert made.told(news) is None
    assert made.told(View(3, 2, "a:1", members=frozenset({2}), set_epoch=3)) is None
    master = made.told(View(5, 1, "b:1"))
    assert isinstance(master, Role)
    assert master.is_master
    again = made.told(View(6, 1, "b:1"))
    assert isinstance(again, Role)
    assert again.is_master
    fenced = made.told(View(7, None))
    assert isinstance(fenced, Role)
    assert (fenced.is_fenced, fenced.is_master) == (True, False)
    assert made.told(View(8, None)) is None
    assert made.wish(0) is Ask.ELECT


def test_a_restarted_master_does_not_go_on_in_its_epoch() -> None:
    """It asks for an election, and is the master in the new epoch; a replica goes on behind the same master."""
    made = registered(epoch=4)
    assert made.told(View(4, 1, "b:1")) is None
    assert (made.role, made.wish(0)) == (None, Ask.ELECT)
    elected = made.told(View(5, 1, "b:1"))
    assert isinstance(elected, Role)
    assert elected.is_master
    replica = registered(epoch=4)
    behind = replica.told(View(4, 2, "a:1"))
    assert isinstance(behind, Role)
    assert not behind.is_master
    assert replica.told(View(3, 2, "a:1")) is None


def test_a_master_that_was_hidden_while_it_seemed_dead_shows_again() -> None:
    """The same epoch without and with the master: a role at last."""
    made = registered(epoch=4)
    assert made.told(View(4, None)) is None
    role = made.told(View(4, 2, "a:1"))
    assert isinstance(role, Role)
    assert role.view.address == "a:1"


def test_a_learner_waits_for_others_to_be_elected() -> None:
    """It polls, and never asks for an election."""
    made = registered(is_learner=True)
    assert made.wish(0) is Ask.POLL
    made.answered(0)
    assert made.due_ms == RETRY_MS


@pytest.mark.parametrize("order", list(itertools.permutations(range(4))))
def test_whatever_the_order_of_the_news_the_newest_role_wins(order: tuple[int, ...]) -> None:
    """Pushes and answers overtake each other; epochs handed out never fall."""
    views = [View(1, 1), View(2, 2), View(3, None), View(4, 1)]
    made = registered()
    epochs = [each.view.epoch for each in (made.told(views[at]) for at in order) if isinstance(each, Role)]
    assert epochs == sorted(epochs)
    assert made.role is not None
    assert (made.role.view.epoch, made.role.is_master) == (4, True)


def test_nothing_is_believed_before_the_broker_has_its_id() -> None:
    """It would not know who of them it is."""
    made = steps(None, is_applied=False)
    assert made.told(View(9, 1)) is None
    assert made.epoch == 0
