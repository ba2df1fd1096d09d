"""Planted bugs of a master's term, as in `plants`: what the shipped `MasterTerm` does around the rules of `leader`."""

from __future__ import annotations

from broker.roles.election import ElectionCall, Elector, Place, VoteReply
from broker.roles.term import SUMMONS, MasterTerm, TermHandOver
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


class HandsOverAtOnce(TermHandOver):
    """Another master is asked for before what was taken is confirmed."""

    def begin(self) -> None:
        super().begin()
        self._settled()


class WaitsForEver(TermHandOver):
    """A master that stops waits until another one is there."""

    def over(self, why_not: str = "") -> None:
        if not why_not:
            super().over()


class SummonsOnce(TermHandOver):
    """A summons that is lost is not repeated."""

    def _seek(self) -> None:
        if not self._is_over:
            able = self._term.complete()
            self._broker.seek(able[0] if able else None)


class SummonsTheLast(TermHandOver):
    """Whoever is furthest behind is to be the next master."""

    def _seek(self) -> None:
        replicas = sorted(self._term.leader.replicas(), key=lambda each: each.acknowledged)
        if not self._is_over:
            self._broker.seek(replicas[0].broker if replicas else None)
            self._term.later(self._limit_s / SUMMONS, self._seek)


class ForcedForAnyLog(Elector):
    """Where the logs end makes no difference to a vote that the leader wants."""

    def asked(self, now_ms: int, sender: str, ask: ElectionCall, place: Place, own_place: Place) -> VoteReply:
        return super().asked(now_ms, sender, ask, place, (0, 0) if ask.forced else own_place)


PLANTS: dict[str, Build] = {
    "keeps-its-office": Build(term=KeepsItsOffice),
    "acknowledges-what-it-hands-over": Build(frozenset({"acknowledges-what-it-hands-over"}), hand_over=HandsOverAtOnce),
    "waits-for-ever": Build(hand_over=WaitsForEver),
    "forced-votes-ignore-place": Build(elector=ForcedForAnyLog, elects=True, hand_over=SummonsTheLast),
}

RARE: dict[str, int] = {"forced-votes-ignore-place": 100}
"""As in `plants`."""

TOLD: dict[str, Build] = {
    "proposes-again": Build(term=ProposesAgain),
    "misses-nobody": Build(term=MissesNobody),
    "expects-nobody": Build(term=ExpectsNobody),
    "checks-nothing-at-first": Build(term=ChecksNothingAtFirst),
    "forgets-what-was-due": Build(term=ForgetsWhatWasDue),
    "waits-for-the-former-master": Build(term=WaitsForTheFormer),
    "hands-over-at-once": Build(hand_over=HandsOverAtOnce),
    "summons-once": Build(hand_over=SummonsOnce, elects=True),
    "resigns-anyway": Build(term=ResignsAnyway),
}
"""A story each shows them: most cost time and no message, the first needs several answers to be lost."""
