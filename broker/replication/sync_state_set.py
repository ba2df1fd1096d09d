"""The SyncStateSet as its master sees it: what the controllers have committed, and what they may be about to commit.

    committed {1, 2} at 7 --propose {1, 2, 3}--> effective {1, 2, 3} --learn {1, 2, 3} at 8--> committed {1, 2, 3}
                                                      |--refused--> effective {1, 2}
                                                      '--no answer--> effective {1, 2, 3} until a set above 7 is learnt

Whoever may become master must have every confirmed byte. So the master waits for everybody who is in the committed set
or in any set that may still become it: a member that leaves is required until the controllers say that it left, one
that joins from the moment it is proposed. Every proposal names the set epoch it builds on, and a newer set epoch makes
it void: that ends all doubt.

Invariant: `effective` covers every set the controllers can hold for this master epoch, as long as each proposal is
sent at most once. Pure; one owner.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from remoting.protocol.errors import LocalMisuse


@dataclass(frozen=True, slots=True)
class Proposal:
    """A set the controllers are asked to commit if theirs is still at `base_epoch`."""

    number: int
    members: frozenset[int]
    base_epoch: int


class SyncStateSet:
    """Committed and possible members of one broker group."""

    __slots__ = ("_doubt", "_number", "committed", "effective", "open", "set_epoch")

    def __init__(self, members: Iterable[int], set_epoch: int) -> None:
        self.committed = frozenset(members)
        self.set_epoch = set_epoch
        self.open: Proposal | None = None
        """The proposal that waits for its answer."""
        self._doubt: frozenset[int] = frozenset()
        """Members of proposals that were never answered."""
        self._number = 0
        self.effective = self.committed

    @property
    def doubtful(self) -> frozenset[int]:
        """Members that are required only because a proposal with them has no answer."""
        return self._doubt - self.committed

    def learn(self, members: Iterable[int], set_epoch: int) -> bool:
        """Take what the controllers committed; False when it is no news. What builds on an older set is void."""
        if set_epoch <= self.set_epoch:
            return False
        self.committed, self.set_epoch = frozenset(members), set_epoch
        self.open, self._doubt = None, frozenset()
        self._united()
        return True

    def propose(self, members: Iterable[int]) -> Proposal:
        """Make a proposal, to be sent at most once; its members are required from now on."""
        if self.open is not None:
            raise LocalMisuse("a proposal is under way")
        self._number += 1
        self.open = Proposal(self._number, frozenset(members), self.set_epoch)
        self._united()
        return self.open

    def refused(self, proposal: Proposal) -> None:
        """The controllers said no and will not change their mind: they saw this proposal, and it was sent once."""
        if self.open is proposal:
            self.open = None
            self._united()

    def unanswered(self, proposal: Proposal) -> None:
        """Nobody knows what became of the proposal: its members stay required, another one may be made."""
        if self.open is proposal:
            self._doubt |= proposal.members
            self.open = None
            self._united()

    def _united(self) -> None:
        members = self.committed | self._doubt
        self.effective = members | self.open.members if self.open is not None else members
