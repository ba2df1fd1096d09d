"""Planted bugs of changing members: each a rule left out; `--members --plant NAME` finds it."""

from __future__ import annotations

from typing import Any

import pytest

from controller.consensus.dledger_node import DledgerNode, Fate
from controller.consensus.roster import Roster
from controller.raft.core import Raft
from controller.raft.leading import Leading
from controller.raft.messages import VoteRequest
from remoting.protocol.voting import Tally
from tests.sim.raft.core_plants import newcomers_vote
from tests.sim.raft.schedule import Plant


def two_changes_at_once(patch: pytest.MonkeyPatch) -> None:
    """The next change does not wait until the last one is committed."""

    def change(self: Any, now: float, members: Any) -> tuple[int, int]:
        self.members.current.check_next(members)
        entry = self.log.append(members.command(), self.hard.term)
        self.members.appended(entry)
        self.leading.use(members, now)
        return entry[1], entry[2]

    patch.setattr(Raft, "change", change)
    patch.setattr(Roster, "idle", property(lambda self: self._raft.leading is not None))


def answered_before_committed(patch: pytest.MonkeyPatch) -> None:
    """An operator is told that a change is done when it is in the leader's log."""

    def change(self: Any, now: float, members: Any, done: Any) -> None:
        self.raft.change(now, members)
        done(None, Fate.DONE)

    patch.setattr(DledgerNode, "change", change)


def learners_count(patch: pytest.MonkeyPatch) -> None:
    """A learner's acknowledgement makes up a majority of the voters."""
    real = Leading.commit

    def commit(self: Any) -> None:
        real(self)
        durable = sorted([self._log.stable, *(each.match for each in self.progress.values())], reverse=True)
        index = durable[self._members.majority - 1]
        if index > self._log.committed and self._log.term(index) == self.term:
            self._log.committed = index

    patch.setattr(Leading, "commit", commit)


def emptied_directories_are_admitted(patch: pytest.MonkeyPatch) -> None:
    """A controller whose disk was lost is known by its name, whatever directory it has."""
    patch.setattr(Roster, "_differs", lambda _self, _peer, _said: False)


def removed_members_elect(patch: pytest.MonkeyPatch) -> None:
    """A candidate asks everybody it has ever known, and counts every answer."""
    real = Raft._stand

    def stand(self: Any, now: float, **options: bool) -> None:
        real(self, now, **options)
        asked = [message for _, message in self._work.outbox if isinstance(message, VoteRequest)]
        known = {each for _, members in self.members._known for each in members.members}
        for each in sorted(known - set(self.members.current.voters) - {self.node_id}):
            if asked:
                self._say(each, asked[-1])

    def majority_of(self: Any, *answers: Any) -> bool:
        return 2 * sum(each in answers for each in self.answers.values()) > len(self.voters)

    patch.setattr(Raft, "_stand", stand)
    patch.setattr(Tally, "majority_of", majority_of)


def turned_away_too_early(patch: pytest.MonkeyPatch) -> None:
    """A change that is not committed, and may be cut again, turns members away."""
    patch.setattr(Roster, "agreed", property(lambda self: self._raft.members.current))


PLANTS: dict[str, Plant] = {
    "two-changes-at-once": two_changes_at_once,
    "answered-before-committed": answered_before_committed,
    "learners-count": learners_count,
    "emptied-member-votes": newcomers_vote,
    "emptied-directories-are-admitted": emptied_directories_are_admitted,
    "removed-members-elect": removed_members_elect,
    "turned-away-too-early": turned_away_too_early,
}
