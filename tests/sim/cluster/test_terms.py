"""A master's term: exact orders of events that end well, and do not with the bug that each is about."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from controller.replicas.group import AlterSyncStateSet
from remoting.protocol.bodies.election_body import Question, QuestionKind
from remoting.protocol.frames.codes import ResponseCode
from tests.sim.cluster.broker import Build
from tests.sim.cluster.pace import USUAL
from tests.sim.cluster.story import Story
from tests.sim.cluster.term_plants import PLANTS, TOLD
from tests.sim.cluster.world import Node, Violation

SELDOM_CHECKED = replace(USUAL, check_ms=1_000_000)
"""Regular checks never come: whatever is done in time has been due."""


def answers_are_lost(story: Story) -> None:
    """The controllers commit a joiner, and the master hears neither of it nor of what they answer to polls."""
    for ident in (1, 2):
        story.broker(ident).start()
    story.settle(1, 2)
    master, joiner, controllers = story.master, story.broker(3), story.controllers
    story.append(master, 3)
    story.settle(1, 2)
    request, proposals = controllers.request, []

    def lossy(node: Node, asks: Node, what: Any, answer: Callable[..., None], number: Any) -> None:
        """Of the master's requests the second proposal alone is answered."""
        is_proposal = asks is master and isinstance(what, AlterSyncStateSet)
        if is_proposal:
            proposals.append(what)
        is_heard = asks is not master or (is_proposal and len(proposals) == 2)
        request(node, asks, what, answer if is_heard else lambda *_said: None, number)

    controllers.request, controllers.members = lossy, [joiner]
    joiner.start()
    story.until(lambda: set(controllers.view().in_sync) == {1, 2, 3})
    story.cut([master], [joiner])
    taken = story.append(master, 3)
    story.run(3_000)
    assert not any(story.answers.get(ident) for ident in taken), "accepted without a broker that can be elected"
    controllers.request, controllers.members = request, list(story.brokers)
    story.end()


def comes_and_goes(story: Story) -> None:
    """A replica joins once it has everything, and leaves as soon as it counts as absent."""
    for ident in (1, 2):
        story.broker(ident).start()
    story.settle(1, 2)
    story.run(USUAL.settings.absence_ms + 100)  # the first checks are over
    master, joiner, began = story.master, story.broker(3), story.world.now
    joiner.start()
    story.settle(1, 2, 3)
    assert story.world.now - began < 2_000
    joiner.crash(power=False)
    gone = story.world.now
    story.until(lambda: set(story.controllers.view().in_sync) == {1, 2})
    assert story.world.now - gone < USUAL.settings.absence_ms + 500
    taken = story.append(master, 1)
    story.until(lambda: all(story.answers.get(ident) for ident in taken))


def two_come_at_once(story: Story) -> None:
    """One has everything while the proposal with the other one is under way, which is refused then."""
    story.broker(1).start()
    story.until(lambda: story.cluster.master() is not None)
    story.run(USUAL.settings.absence_ms + 100)
    master, controllers, held = story.master, story.controllers, []
    request = controllers.request

    def slow(node: Node, asks: Node, what: Any, answer: Callable[..., None], number: Any) -> None:
        """Proposals wait."""
        if isinstance(what, AlterSyncStateSet):
            held.append(answer)
        else:
            request(node, asks, what, answer, number)

    controllers.request = slow
    story.broker(2).start()
    story.until(lambda: held)
    story.broker(3).start()
    assert master.leading is not None
    replicas = master.leading.core.replicas
    story.until(lambda: {each.broker for each in replicas() if each.has_caught_up} == {2, 3})
    controllers.request = request
    (answer,) = held
    master.deliver(answer, ResponseCode.CONTROLLER_BROKER_NOT_ALIVE, controllers.view())
    began = story.world.now
    story.settle(1, 2, 3)
    assert story.world.now - began < 500


def the_former_is_not_waited_for(story: Story) -> None:
    """The next master has it leave the set at its first check."""
    story.settle(1, 2, 3)
    old = story.master
    old.crash(power=False)
    story.until(lambda: story.cluster.master() not in (None, old))
    began = story.world.now
    story.until(lambda: old.ident not in story.controllers.view().in_sync)
    assert story.world.now - began < USUAL.settings.absence_ms / 2
    taken = story.append(story.master, 1)
    story.until(lambda: all(story.answers.get(ident) for ident in taken))


def two_die_at_once(story: Story) -> None:
    """Whoever is elected then waits for the other one no longer than an absence lasts."""
    story.settle(1, 2, 3)
    survivor, *others = story.others(story.master)
    for each in (story.master, *others):
        each.crash(power=False)
    story.until(lambda: story.cluster.master() is survivor)
    began = story.world.now
    story.until(lambda: story.controllers.view().in_sync == (survivor.ident,))
    assert story.world.now - began < USUAL.settings.absence_ms + 500
    taken = story.append(survivor, 1)
    story.until(lambda: all(story.answers.get(ident) for ident in taken))


def damaged_alone(story: Story) -> None:
    """Nobody else has all that is confirmed: the master goes on, and resigns once another one has."""
    story.settle(1, 2, 3)
    master = story.master
    others = story.others(master)
    for each in others:
        each.crash(power=False)
    story.until(lambda: story.controllers.view().in_sync == (master.ident,))
    taken = story.append(master, 3)
    story.until(lambda: all(story.answers.get(ident) for ident in taken))
    master.damaged(master.log.end - 1)
    story.run(5_000)
    taken = story.append(story.master, 1)
    story.until(lambda: all(story.answers.get(ident) for ident in taken))
    assert (story.master, master.damage is None) == (master, False)


def damaged_among_others(story: Story) -> None:
    """The next master has all of it, and the former one takes it over again."""
    story.settle(1, 2, 3)
    master = story.master
    taken = story.append(master, 3)
    story.until(lambda: all(story.answers.get(ident) for ident in taken))
    story.settle(1, 2, 3)
    master.damaged(master.log.starts[1])
    story.until(lambda: story.cluster.master() not in (None, master))
    story.end()


def stops_while_messages_wait(story: Story) -> None:
    """A master that is told to stop has all that it took confirmed before another one is asked for."""
    story.settle(1, 2, 3)
    master = story.master
    for each in story.others(master):
        each.flush_ms = 100
    waiting = story.append(master, 3)
    master.stop_in_order()
    story.until(lambda: not master.is_up)
    assert [story.answers.get(ident) for ident in waiting] == [True] * 3
    story.end()


def stops_without_controllers(story: Story) -> None:
    """A master that reaches nobody stops as well."""
    story.settle(1, 2, 3)
    master = story.master
    for node in story.controllers.nodes:
        node.stop()
    master.stop_in_order()
    story.run(USUAL.answer_ms + 1_000)
    assert not master.is_up
    for node in story.controllers.nodes:
        node.start()
    story.end()


def a_summons_is_lost(story: Story) -> None:
    """Whoever is summoned next leads long before the members would miss a master."""
    story.settle(1, 2, 3)
    master = story.master
    story.append(master, 1)
    story.settle(1, 2, 3)
    send, summons = story.network.send, []

    def lossy(sender: str, node: Node, *what: Any) -> None:
        """The first summons goes astray."""
        is_summons = any(isinstance(each, Question) and each.kind is QuestionKind.SUMMON for each in what)
        if is_summons:
            summons.append(node)
        if not is_summons or len(summons) > 1:
            send(sender, node, *what)

    story.network.send = lossy
    master.stop_in_order()
    story.until(lambda: not master.is_up)
    assert len(summons) == 2
    assert summons[1].leads
    story.end()


STORIES: dict[str, tuple[Callable[[Story], None], bool]] = {
    "proposes-again": (answers_are_lost, False),
    "misses-nobody": (comes_and_goes, False),
    "expects-nobody": (comes_and_goes, False),
    "checks-nothing-at-first": (two_die_at_once, True),
    "forgets-what-was-due": (two_come_at_once, False),
    "acknowledges-what-it-hands-over": (stops_while_messages_wait, True),
    "hands-over-at-once": (stops_while_messages_wait, True),
    "waits-for-ever": (stops_without_controllers, True),
    "summons-once": (a_summons_is_lost, True),
    "resigns-anyway": (damaged_alone, True),
    "keeps-its-office": (damaged_among_others, True),
    "waits-for-the-former-master": (the_former_is_not_waited_for, True),
}
"""By bug; whether all brokers run from the beginning."""


ON_TIME = (comes_and_goes, two_come_at_once, two_die_at_once, the_former_is_not_waited_for)


def tell(name: str, build: Build) -> None:
    told, start = STORIES[name]
    told(Story(build, start=start, pace=SELDOM_CHECKED if told in ON_TIME else USUAL))


BUGS = TOLD | PLANTS


@pytest.mark.parametrize("name", sorted(STORIES))
def test_a_story_of_a_term_ends_well(name: str) -> None:
    tell(name, Build(elects=BUGS[name].elects))


@pytest.mark.parametrize("name", sorted(STORIES))
def test_a_story_of_a_term_exposes_its_bug(name: str) -> None:
    with pytest.raises((Violation, AssertionError)):
        tell(name, BUGS[name])


def test_every_bug_of_a_term_has_its_story() -> None:
    assert set(TOLD) <= set(STORIES)
