"""Planted bugs of a master's term, as in `plants`: what the shipped `MasterTerm` does around the rules of `leader`."""

from __future__ import annotations

from broker.roles.term import MasterTerm
from tests.sim.cluster.broker import Build


class ProposesAgain(MasterTerm):
    """What has no answer yet is asked for once more at the next check."""

    def _check(self) -> None:
        open_ = self.leader.members.open
        if open_ is not None and not self._is_over:
            self._owner.propose(open_)
        super()._check()


class MissesNobody(MasterTerm):
    """Who has gone is noticed at the next regular check."""

    def begin(self, former: int | None) -> None:
        super().begin(former)
        self._streams.on_gone = lambda _absence_ms: None


class ExpectsNobody(MasterTerm):
    """Who has caught up is noticed at the next regular check."""

    def begin(self, former: int | None) -> None:
        super().begin(former)
        self._streams.on_caught_up = lambda: None


class ChecksNothingAtFirst(MasterTerm):
    """The first check is the first regular one."""

    def _rest(self) -> None:
        del self._intervals_s[1:]
        super()._rest()


class ForgetsWhatWasDue(MasterTerm):
    """What becomes due while a proposal is open is forgotten."""

    def due(self) -> None:
        if self.leader.members.open is None:
            super().due()


class WaitsForTheFormer(MasterTerm):
    """The former master counts as on its way, as everybody else does."""

    def begin(self, former: int | None) -> None:
        super().begin(None)


class KeepsItsOffice(MasterTerm):
    """A master whose log is damaged stays one, whoever has all of it."""

    def _check_damage(self) -> None:
        return


class ResignsAnyway(MasterTerm):
    """A master whose log is damaged resigns, though nobody else has all that is confirmed."""

    def _check_damage(self) -> None:
        if self._store.quarantined and not self._has_resigned:
            self._has_resigned = True
            self._owner.resign()


PLANTS: dict[str, Build] = {
    "keeps-its-office": Build(term=KeepsItsOffice),
}

TOLD: dict[str, Build] = {
    "proposes-again": Build(term=ProposesAgain),
    "misses-nobody": Build(term=MissesNobody),
    "expects-nobody": Build(term=ExpectsNobody),
    "checks-nothing-at-first": Build(term=ChecksNothingAtFirst),
    "forgets-what-was-due": Build(term=ForgetsWhatWasDue),
    "waits-for-the-former-master": Build(term=WaitsForTheFormer),
    "resigns-anyway": Build(term=ResignsAnyway),
}
"""A story each shows them: most cost time and no message, the first needs several answers to be lost."""
