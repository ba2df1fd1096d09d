"""What a broker makes of its controllers' answers: orders of events that end well, and do not with the bug of each."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from msgspec.structs import replace

from controller.replicas.group import RegisterReplica
from tests.sim.cluster.broker import Broker, Build
from tests.sim.cluster.controllers import GROUP, NOT_LEADER, Controllers, Leave
from tests.sim.cluster.step_plants import TOLD
from tests.sim.cluster.story import Story
from tests.sim.cluster.test_roles import finds_damage_at_its_start
from tests.sim.cluster.world import Node, Violation


def forget(controllers: Controllers, broker: Broker) -> None:
    """The controllers go on from a state in which the broker had its id, and was not registered."""
    group = controllers.machine.groups[GROUP]
    replicas = {**group.replicas, broker.ident: replace(group.replicas[broker.ident], address="", ha_address="")}
    controllers.machine.groups = {**controllers.machine.groups, GROUP: replace(group, replicas=replicas)}


def knows(controllers: Controllers, broker: Broker) -> bool:
    """Whether the broker is registered."""
    return bool(controllers.machine.groups[GROUP].replicas[broker.ident].address)


def forgotten_while_it_follows(story: Story) -> None:
    """A replica that the controllers do not know any more hears it with its next heartbeat, and registers again."""
    story.settle(1, 2, 3)
    master = story.master
    forgotten, other = story.others(master)
    forget(story.controllers, forgotten)
    story.until(lambda: knows(story.controllers, forgotten))
    for each in (master, other):
        each.crash(power=False)
    story.until(lambda: story.cluster.master() is forgotten)
    story.end()


def forgotten_before_it_is_heard(story: Story) -> None:
    """A broker is forgotten as soon as it has registered, and only its questions reach the controllers."""
    controllers, broker = story.controllers, story.broker(1)
    controllers.heartbeat = lambda *_arguments: None
    broker.start()
    story.until(lambda: knows(controllers, broker))
    forget(controllers, broker)
    story.until(lambda: story.cluster.master() is broker)
    assert knows(controllers, broker)


def finds_damage_while_it_registers(story: Story) -> None:
    """The controllers' answer to a registration comes when the broker has found out that it has lost something."""
    request = story.controllers.request

    def slow(node: Node, asks: Broker, what: Any, answer: Callable[..., None], number: Any) -> None:
        """Registrations of a damaged broker are answered once it has reported its loss."""

        def late(*said: Any) -> None:
            if asks.damage is not None and not asks.losses:
                story.world.after(1, late, *said)
            else:
                answer(*said)

        request(node, asks, what, late if isinstance(what, RegisterReplica) else answer, number)

    story.controllers.request = slow
    finds_damage_at_its_start(story)


def elected_unheard(story: Story) -> None:
    """A broker that asks to be the master learns in this way alone that another one has become it."""
    one, two, three = story.brokers
    for each in (one, two):
        each.start()
    story.settle(1, 2)
    story.cut([three], [one, two])
    three.start()
    story.until(lambda: three.asking.steps.role is not None)
    for each in (one, two):
        each.crash(power=False)
    story.until(lambda: three.asking.steps.role is not None and three.asking.steps.role.is_fenced)
    story.controllers.members = [two]
    two.start()
    story.until(lambda: story.cluster.master() is two)
    story.heal()
    story.settle(2, 3)


def leaves_while_the_controllers_change(story: Story) -> None:
    """A master that stops is answered by a controller that leads no more: it asks the next one in time."""
    story.settle(1, 2, 3)
    master, request, denied = story.master, story.controllers.request, []

    def changed(node: Node, asks: Broker, what: Any, answer: Callable[..., None], number: Any) -> None:
        if isinstance(what, Leave) and not denied:
            denied.append(node)
            story.network.send(node.name, asks, answer, NOT_LEADER, None, "")
        else:
            request(node, asks, what, answer, number)

    story.controllers.request = changed
    master.stop_in_order()
    story.until(lambda: not master.is_up)
    assert denied
    assert story.controllers.view().master not in (None, master.ident), "clients wait until it is missed"
    story.end()


STORIES: dict[str, Callable[[Story], None]] = {
    "insists-on-its-registration": forgotten_before_it_is_heard,
    "beats-on-unheard": forgotten_while_it_follows,
    "registers-what-it-had": finds_damage_while_it_registers,
    "hears-no-from-who-is-led": elected_unheard,
    "leaves-once": leaves_while_the_controllers_change,
}
COUNTS = {forgotten_before_it_is_heard: 1, elected_unheard: 3}
"""How many brokers, where the story starts them."""


def tell(name: str, build: Build | None = None) -> None:
    told = STORIES[name]
    told(Story(build, count=COUNTS.get(told, 3), start=told not in COUNTS))


@pytest.mark.parametrize("name", sorted(STORIES))
def test_a_story_of_answers_ends_well(name: str) -> None:
    tell(name)


@pytest.mark.parametrize("name", sorted(STORIES))
def test_a_story_of_answers_exposes_its_bug(name: str) -> None:
    with pytest.raises((Violation, AssertionError)):
        tell(name, TOLD[name])


def test_every_bug_of_the_steps_has_its_story() -> None:
    assert set(TOLD) == set(STORIES)
