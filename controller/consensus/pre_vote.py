"""Who would vote for this controller, asked before it stands in an election: the answers of one round, counted.

Newcomers, whose files were emptied or never filled, let nobody win whose log is not empty: a controller that is away
may have more. When every controller has answered, none is away, and the best of the logs that are left is the one to go
on with. Such a state is left by a first start that was interrupted, or by files that were emptied.
Invariant: an answer counts once per controller, in whatever order they come. Pure.
"""

from __future__ import annotations


class Canvass:
    """One controller's round of asking; there is none before `begin` and after `end`."""

    def __init__(self, own: str, members: int) -> None:
        self._own = own
        self._members = members
        self._grants: set[str] = set()
        self._newcomers: set[str] = set()

    @property
    def asks(self) -> bool:
        """Whether a round is open."""
        return bool(self._grants)

    @property
    def won(self) -> bool:
        """Whether a majority would vote for this controller, itself included."""
        return 2 * len(self._grants) > self._members

    @property
    def complete(self) -> bool:
        """Whether every controller has answered, as a newcomer or with its word: nobody is away who may have more."""
        return len(self._grants | self._newcomers) == self._members

    def begin(self) -> None:
        """Ask anew."""
        self._grants, self._newcomers = {self._own}, set()

    def end(self) -> None:
        """The round is over; late answers count for nothing."""
        self._grants, self._newcomers = set(), set()

    def granted(self, node_id: str) -> None:
        """It would vote for this controller."""
        if self.asks:
            self._grants.add(node_id)

    def newcomer(self, node_id: str) -> None:
        """It must not judge."""
        if self.asks:
            self._newcomers.add(node_id)
