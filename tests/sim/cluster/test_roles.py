"""Changes of role: exact orders of events that end well, and do not with the bug that each is about."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from broker.roles.group_node import NodePhase
from tests.sim.cluster.broker import Build
from tests.sim.cluster.electing import ElectingBroker
from tests.sim.cluster.role_plants import TOLD
from tests.sim.cluster.story import Story
from tests.sim.cluster.world import Violation

SLOW_MS = 1_500


def set_changes_while_the_log_opens(story: Story) -> None:
    """A member registers with an empty disk while the next master opens its log: the set that it was given is old."""
    story.settle(1, 2, 3)
    old = story.master
    late, other = story.others(old)
    story.cut([other], [], controllers=True)
    late.slow_ms = SLOW_MS
    old.crash(power=False)
    story.until(lambda: story.controllers.view().master == late.ident and late.roles.node.phase is NodePhase.ENDING)
    before = story.controllers.view()
    other.crash(power=True)
    other.log.wipe()
    other.safe, other.saved_epoch = False, 0
    story.heal()
    other.start()
    story.until(lambda: other.ident not in story.controllers.view().in_sync)
    assert (late.leading, story.controllers.view().master_epoch) == (None, before.master_epoch)
    story.until(lambda: late.leading is not None)
    late.slow_ms = None
    old.start()
    story.settle(1, 2, 3)
    story.end()


def replaced_while_its_log_opens(story: Story) -> None:
    """The group has another master before the one that was elected first is ready: that one never serves."""
    story.settle(1, 2, 3)
    old = story.master
    late, other = story.others(old)
    story.cut([other], [], controllers=True)
    late.slow_ms = SLOW_MS
    old.crash(power=False)
    story.until(lambda: story.controllers.view().master == late.ident and late.roles.node.phase is NodePhase.ENDING)
    epoch = story.controllers.view().master_epoch
    story.heal()
    story.cut([late], [], controllers=True)
    story.until(lambda: story.controllers.view().master == other.ident)
    story.heal()
    story.until(lambda: late.asking.steps.epoch > epoch)
    while late.roles.node.phase is not NodePhase.IN_ROLE or late.following is None:
        assert late.serving is None
        story.run(1)
    late.slow_ms = None
    old.start()
    story.end()


def stands_still_while_its_log_opens(story: Story) -> None:
    """Who waits for the log of a master since before its pause was sent there by an election that may be over."""
    story.settle(1, 2)
    old = story.master
    (late,) = story.others(old)
    story.append(old, 3)
    story.settle(1, 2)
    late.slow_ms = SLOW_MS
    old.crash(power=False)
    story.until(lambda: story.controllers.view().master == late.ident)
    old.start()
    story.until(lambda: late.roles.node.phase is NodePhase.OPENING)
    story.run(SLOW_MS / 2)
    late.pause()
    story.cut([late], [old], controllers=True)
    story.until(lambda: story.cluster.master() is old and story.controllers.view().in_sync == (old.ident,))
    kept = story.append(old, 3)
    story.until(lambda: all(story.answers.get(ident) for ident in kept))
    late.go_on()
    story.until(lambda: late.leading is not None)
    for _ in range(10):
        assert story.ask(late) == [None]
        story.run(100)
    late.slow_ms = None
    story.end()


def finds_damage_at_its_start(story: Story) -> None:
    """A replica gives up what it has confirmed, and is not elected before it has all of it again."""
    story.settle(1, 2, 3)
    idents = story.append(story.master, 5)
    story.until(lambda: all(story.answers.get(ident) for ident in idents))
    story.settle(1, 2, 3)
    master = story.master
    damaged, other = story.others(master)
    damaged.crash(power=False)
    damaged.damaged(damaged.log.starts[1])
    damaged.flush_ms = 1_000_000
    damaged.start()
    story.until(lambda: damaged.log.end == master.log.end and damaged.damage is None)
    for each in (master, other):
        each.crash(power=False)
    damaged.crash(power=True, mood="lose")
    damaged.flush_ms = 0.5
    damaged.start()
    story.run(5_000)
    assert damaged.leading is None
    story.end()


def a_read_meets_damage_before_it_follows(story: Story) -> None:
    """A replica whose log opened sound is damaged when it hears of the master; it is not elected before it has all."""
    story.settle(1, 2, 3)
    idents = story.append(story.master, 5)
    story.until(lambda: all(story.answers.get(ident) for ident in idents))
    story.settle(1, 2, 3)
    master = story.master
    damaged, other = story.others(master)
    damaged.crash(power=False)
    story.cut([damaged], [], controllers=True)
    damaged.start()
    story.until(lambda: damaged.roles.node.phase is NodePhase.IN_ROLE)
    damaged._damaged_at = damaged.log.starts[1]  # before its upkeep looks
    damaged.flush_ms = 1_000_000
    story.heal()
    story.until(lambda: damaged.log.end == master.log.end and damaged.damage is None)
    for each in (master, other):
        each.crash(power=False)
    damaged.crash(power=True, mood="lose")
    damaged.flush_ms = 0.5
    damaged.start()
    story.run(5_000)
    assert damaged.leading is None
    story.end()


def asks_while_the_log_opens(story: Story) -> None:
    """A client that finds the next master before that one is ready waits for it, and is not sent away."""
    story.settle(1, 2, 3)
    old = story.master
    late, other = story.others(old)
    story.cut([other], [], controllers=True)
    late.slow_ms = SLOW_MS
    old.crash(power=False)
    story.until(lambda: late.roles.node.phase is NodePhase.OPENING)
    answers: list[bool] = []

    def ask() -> None:
        if late.holds(ask):
            return
        if late.serving is None:
            answers.append(False)
        else:
            late.serving.append(0, 1_000, answers.append)

    late.deliver(ask)
    story.until(lambda: answers)
    assert answers == [True]
    late.slow_ms = None
    story.end()


def moves_by_command(story: Story) -> None:
    """A member that has everything leads in place of the master, which goes on as its replica."""
    story.settle(1, 2, 3)
    master = story.master
    other = story.others(master)[0]
    waiting = story.append(master, 2)
    assert isinstance(master, ElectingBroker)
    master.move(other.ident)
    story.until(lambda: story.cluster.master() is other)
    assert [story.answers.get(ident) for ident in waiting] == [True] * 2
    story.until(lambda: master.following is not None)
    assert master.is_up
    story.end()


def nobody_to_move_to(story: Story) -> None:
    """A master whose successor does not come to lead goes on, and what came meanwhile is carried out."""
    story.settle(1, 2, 3)
    master = story.master
    other = story.others(master)[0]
    assert isinstance(master, ElectingBroker)
    assert isinstance(other, ElectingBroker)
    other.may_stand = False
    master.move(other.ident)
    answers: list[bool] = []
    assert master.holds(lambda: master.leading.append(0, 1_000, answers.append) if master.leading else None)
    story.until(lambda: answers)
    assert (answers, story.master) == ([True], master)
    other.may_stand = True
    story.end()


def stops_as_master(story: Story) -> None:
    """A master that is told to stop answers who waits, and the group goes on without a loss."""
    story.settle(1, 2, 3)
    master, epoch = story.master, story.controllers.view().master_epoch
    idents = story.append(master, 5)
    story.until(lambda: all(story.answers.get(ident) for ident in idents))
    waiting = story.append(master, 1)
    master.stop_in_order()
    story.until(lambda: not master.is_up)
    assert all(ident in story.answers for ident in waiting), "a client waits for a master that is gone"
    story.until(lambda: story.cluster.master() is not None and story.controllers.view().master_epoch > epoch)
    story.end()


def replaced_while_clients_wait(story: Story) -> None:
    """Clients of a master that nobody follows any more are told as soon as it knows, and nothing more."""
    story.settle(1, 2, 3)
    old = story.master
    story.cut([old], story.others(old), controllers=True)
    waiting = story.append(old, 2)
    story.until(lambda: story.cluster.master() not in (None, old))
    assert not any(ident in story.answers for ident in waiting)
    story.heal()
    story.until(lambda: old.leading is None)
    assert [story.answers.get(ident) for ident in waiting] == [False] * 2
    story.end()


def test_damage_that_a_read_has_met_is_reported_before_it_is_given_up() -> None:
    a_read_meets_damage_before_it_follows(Story())
    with pytest.raises((Violation, AssertionError)):
        a_read_meets_damage_before_it_follows(Story(TOLD["gives-up-in-silence"]))


def test_who_waits_for_a_master_that_is_replaced_is_told() -> None:
    replaced_while_clients_wait(Story())
    with pytest.raises(AssertionError):
        replaced_while_clients_wait(Story(TOLD["gives-nothing-up"]))


@pytest.mark.parametrize("elects", [False, True])
def test_a_master_stops_in_order(elects: bool) -> None:
    stops_as_master(Story(Build(elects=elects)))


def test_a_master_that_is_replaced_before_it_is_ready_never_serves() -> None:
    replaced_while_its_log_opens(Story())


def test_a_set_that_is_committed_while_the_log_opens_counts() -> None:
    set_changes_while_the_log_opens(Story())
    with pytest.raises((Violation, AssertionError)):
        set_changes_while_the_log_opens(Story(TOLD["leads-with-the-ordered-set"]))


def test_who_came_before_a_pause_proves_nothing() -> None:
    stands_still_while_its_log_opens(Story(count=2))
    with pytest.raises(Violation, match="no stale read"):
        stands_still_while_its_log_opens(Story(TOLD["trusts-who-came-before-its-pause"], count=2))


def test_a_damaged_replica_is_not_elected() -> None:
    finds_damage_at_its_start(Story())
    with pytest.raises((Violation, AssertionError)):
        finds_damage_at_its_start(Story(TOLD["hides-its-damage"]))


@pytest.mark.parametrize("name", ["keeps-nobody-waiting", "refuses-who-waits"])
def test_who_finds_the_next_master_early_waits(name: str) -> None:
    asks_while_the_log_opens(Story())
    with pytest.raises((Violation, AssertionError)):
        asks_while_the_log_opens(Story(TOLD[name]))


@pytest.mark.parametrize("tell", [moves_by_command, nobody_to_move_to])
def test_another_member_is_made_the_master(tell: Callable[[Story], None]) -> None:
    tell(Story(Build(elects=True)))


def test_every_bug_has_its_story() -> None:
    assert set(TOLD) == {
        "gives-nothing-up",
        "gives-up-in-silence",
        "leads-with-the-ordered-set",
        "trusts-who-came-before-its-pause",
        "hides-its-damage",
        "keeps-nobody-waiting",
        "refuses-who-waits",
    }
