"""Groups without controllers: exact orders of events that end well, and do not with the bug that each is about."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.sim.cluster.__main__ import told
from tests.sim.cluster.broker import Build
from tests.sim.cluster.plants import ELECTIONS
from tests.sim.cluster.schedule import run
from tests.sim.cluster.story import Story
from tests.sim.cluster.world import Violation

LONG_MS = 20_000


def elect(story: Story, candidate: Any, *voters: Any) -> None:
    """These lose their lines to the master, and only the candidate stands."""
    master = story.cluster.master()
    for each in story.brokers:
        each.may_stand = each is candidate  # type: ignore[attr-defined]
    for each in (candidate, *voters):
        each.elector.lost(int(story.world.now), each.elector.leader)
    story.until(lambda: candidate.leads)
    assert master is not candidate


def end(story: Story) -> None:
    """Everything works again, then the verdict."""
    for each in story.brokers:
        each.may_stand, each.slow_ms, each.flush_ms = True, None, 0.5  # type: ignore[attr-defined]
        each.broken_lines.clear()  # type: ignore[attr-defined]
    story.end()


def acknowledges_after_voting(story: Story) -> None:
    """A replica votes for another while the stream of its master continues, and the master writes on."""
    story.settle(1, 2, 3)
    old: Any = story.master
    voter, new = story.others(old)
    old.broken_lines = {voter.name, new.name}
    voter.slow_ms = LONG_MS  # type: ignore[attr-defined]
    story.cut([new], [old])
    elect(story, new, voter)
    assert old.leading is not None
    story.append(old, 3)
    story.run(200)
    end(story)


def confirms_after_resigning(story: Story) -> None:
    """A master resigns and votes for another; before its role ends, it writes what a replica still acknowledges."""
    story.settle(1, 2, 3)
    old: Any = story.master
    replica, new = story.others(old)
    old.slow_ms = LONG_MS
    story.cut([replica], [new])
    old.elector.resign(int(story.world.now))
    elect(story, new)
    assert old.vote.voted_for == new.name
    assert old.leading is not None
    story.append(old, 3)
    story.run(200)
    end(story)


def counts_older_epochs(story: Story) -> None:
    """Raft, figure 8: what the first master wrote reaches a majority under its second term, and is cut off after it."""
    story.settle(1, 2, 3)
    first: Any = story.master
    slow, second = story.others(first)
    story.cut([first], story.others(first))
    story.append(first, 20)  # more than may be on its way to a replica at once
    written, common = first.log.end, slow.log.end
    story.until(lambda: first.log.flushed == written)
    first.crash(power=False)
    story.cut([slow], [first])
    elect(story, second, slow)
    story.cut([second], [slow])  # which gets nothing of this term
    story.until(lambda: second.leading is not None)
    second.crash(power=False)
    story.heal()
    first.start()
    elect(story, first, slow)
    story.network.slow_ms = 300.0
    story.until(lambda: slow.log.flushed > common)
    story.network.cut.add((first.name, slow.name))
    story.run(400)
    assert common < slow.log.end < written
    first.crash(power=False)
    story.network.slow_ms = 0.0
    second.start()
    elect(story, second, slow)
    end(story)


def leads_without_a_majority(story: Story) -> None:
    """A master that is cut off from all others resigns, though nobody tells it of another."""
    story.settle(1, 2, 3)
    old: Any = story.master
    story.cut([old], story.others(old))
    story.run(LONG_MS)
    if old.leading is not None:
        raise Violation("a master without a majority resigns", f"{old.name} leads in epoch {old.leading.core.epoch}")
    end(story)


def leaves_behind_who_lost_its_vote(story: Story) -> None:
    """A member stands in vain, then finds its log damaged: it is in a later term than the master, and may not stand."""
    story.settle(1, 2, 3)
    master: Any = story.master
    lost: Any = story.others(master)[0]
    story.append(master, 3)
    story.settle(1, 2, 3)
    story.cut([lost], [each for each in story.brokers if each is not lost])
    lost.elector.summoned(int(story.world.now), master.name, master.vote.term)
    lost.damaged(lost.log.starts[1])
    story.until(lambda: lost.vote.term > master.vote.term and not lost.admitted)
    story.heal()
    story.run(LONG_MS)
    now: Any = story.cluster.master()
    if now is None or not lost.follows(now):
        raise Violation("every node recovers", f"{lost.name} follows nobody in term {lost.vote.term}")
    end(story)


STORIES: dict[Callable[[Story], None], str] = {
    acknowledges_after_voting: "acknowledges-after-voting",
    confirms_after_resigning: "confirms-after-resigning",
    counts_older_epochs: "counts-older-epochs",
    leads_without_a_majority: "no-check-quorum",
    leaves_behind_who_lost_its_vote: "terms-of-voters-only",
}


@pytest.mark.parametrize("tell", STORIES, ids=lambda tell: tell.__name__)
def test_it_ends_well(tell: Callable[[Story], None]) -> None:
    tell(Story(Build(elects=True)))


@pytest.mark.parametrize("tell", STORIES, ids=lambda tell: tell.__name__)
def test_with_the_bug_it_does_not(tell: Callable[[Story], None]) -> None:
    with pytest.raises(Violation):
        tell(Story(ELECTIONS[STORIES[tell]]))


@pytest.mark.parametrize("elects", [False, True])
def test_what_a_power_cut_took_is_not_damaged_any_more(elects: bool) -> None:
    """The record was not flushed; others are written to its place."""
    story = Story(Build(elects=elects), count=1)
    story.settle(1)
    broker = story.master
    broker.flush_ms = LONG_MS
    story.append(broker, 1)
    place = broker.log.starts[-1]
    broker.damaged(place)
    broker.crash(power=True, mood="lose")
    broker.start()
    assert broker.log.end <= place
    broker.flush_ms = 0.5
    story.settle(1)
    story.append(broker, 3)
    assert broker.log.end > place
    assert broker.damage is None
    story.end()


def test_every_bug_of_elections_has_its_story() -> None:
    assert set(STORIES.values()) == set(ELECTIONS)


def test_no_schedule_breaks_a_rule() -> None:
    """Groups of three and five, whatever fails."""
    results = [run(seed, Build(elects=True)) for seed in range(100)]
    assert [told(each, None) for each in results if each.rule] == []
    assert sum(each.acknowledged for each in results) > 2_000
    assert sum(each.epochs for each in results) > 200
