"""Planted bugs of changes of role, as in `plants`: what the shipped `GroupNode` decides, and `RoleActions` does,
with one thing left out."""

from __future__ import annotations

from broker.roles.group_node import (
    Action,
    Actions,
    Announce,
    CloseLog,
    DamageFound,
    EndRole,
    Event,
    FollowMaster,
    GroupNode,
    Lead,
    LogOpened,
    NodePhase,
    OpenLog,
    Ordered,
    Refuse,
    RoleEnded,
    Serve,
    SetChanged,
    StoodStill,
    Suspend,
    Unfollow,
)
from broker.roles.role_queue import RoleActions
from broker.roles.steps import KnownGroup
from tests.sim.cluster.broker import Build
from tests.sim.cluster.following import Following
from tests.sim.cluster.leading import Leading

TAKING = (NodePhase.ENDING, NodePhase.OPENING)


def _without(actions: Actions, *kinds: type[Action]) -> Actions:
    return tuple(each for each in actions if not isinstance(each, kinds))


class AnswersUntilItsEnd(GroupNode):
    """A master goes on to answer while it becomes another's replica, and afterwards."""

    def step(self, event: Event) -> Actions:
        actions = super().step(event)
        return _without(actions, Refuse) if self.epoch is not None else actions


class LeavesNothing(GroupNode):
    """The log is closed under the streams of the former role."""

    def step(self, event: Event) -> Actions:
        actions = super().step(event)
        if actions and actions[-1] == EndRole():
            return *actions[:-1], *self.step(RoleEnded())
        return actions


class StaysAWriter(GroupNode):
    """A former master's log is used as it is, open for its epoch."""

    def step(self, event: Event) -> Actions:
        actions = super().step(event)
        if isinstance(event, RoleEnded) and actions[-1] == OpenLog(None):
            return *_without(actions, CloseLog, OpenLog), *self.step(LogOpened())
        return actions


class ForgetsWhatCame(GroupNode):
    """An order that comes while a role is taken is lost."""

    def step(self, event: Event) -> Actions:
        return () if isinstance(event, Ordered) and self.phase in TAKING else super().step(event)


class OpensAtOnce(GroupNode):
    """An order is carried out at once, though the log is being opened for another one."""

    def step(self, event: Event) -> Actions:
        actions = super().step(event)
        if isinstance(event, Ordered) and self.phase is NodePhase.OPENING:
            return *self._adopt(), *self._open()
        return actions


class LeadsWithTheOrderedSet(GroupNode):
    """A set that is committed while the log opens is not known to the new master."""

    def step(self, event: Event) -> Actions:
        return () if isinstance(event, SetChanged) and self.phase in TAKING else super().step(event)


class TrustsWhoCameBefore(GroupNode):
    """Replicas that have waited for the log since before a pause count as come after it."""

    def step(self, event: Event) -> Actions:
        return () if isinstance(event, StoodStill) else super().step(event)


class AnnouncesFirst(GroupNode):
    """Everybody is told of a master that does not answer yet."""

    def step(self, event: Event) -> Actions:
        actions = super().step(event)
        return (
            (Announce(), *_without(actions, Announce)) if any(isinstance(each, Serve) for each in actions) else actions
        )


class StaysWithTheFormer(GroupNode):
    """A replica goes on to copy the log of the master that it found first."""

    def step(self, event: Event) -> Actions:
        had, actions = self._followed, super().step(event)
        return _without(actions, FollowMaster) if had and self._followed else actions


class HidesItsDamage(GroupNode):
    """A replica gives the damaged part of its log up, and does not say so."""

    def step(self, event: Event) -> Actions:
        return super().step(LogOpened() if isinstance(event, LogOpened) else event)


class CopiesOn(GroupNode):
    """A replica that has found damage goes on to copy what follows."""

    def step(self, event: Event) -> Actions:
        actions = super().step(event)
        return _without(actions, Unfollow) if isinstance(event, DamageFound) else actions


class ServesBeforeItLeads(GroupNode):
    """Clients are answered before replicas are."""

    def step(self, event: Event) -> Actions:
        actions = super().step(event)
        lead = tuple(each for each in actions if isinstance(each, Lead))
        return *_without(actions, Lead), *lead


class RefusesWhenItHasEnded(GroupNode):
    """A master's clients are told when its role has ended."""

    def step(self, event: Event) -> Actions:
        actions = super().step(event)
        if not any(isinstance(each, EndRole) for each in actions):
            return actions
        refuse = tuple(each for each in actions if isinstance(each, Refuse))
        return *_without(actions, Refuse), *refuse


class KeepsNobodyWaiting(GroupNode):
    """Clients that come while the log of a new master opens are sent away."""

    def step(self, event: Event) -> Actions:
        return _without(super().step(event), Suspend)


class RefusesWhoWaits(GroupNode):
    """A broker that is to be the master refuses once more after it has let requests wait."""

    def step(self, event: Event) -> Actions:
        actions = super().step(event)
        suspend = tuple(each for each in actions if isinstance(each, Suspend))
        refuse = tuple(each for each in actions if isinstance(each, Refuse))
        if not suspend:
            return actions
        at = actions.index(suspend[0])
        return *_without(actions[:at], Refuse), *suspend, *refuse, *actions[at + 1 :]


class CopiesIntoAClosedLog(RoleActions[Following, Leading]):
    """Who copied a master's log as a replica goes on when the role ends."""

    def _unfollow(self, *, good_bye: bool) -> None:
        self.client = None


class CopiesTwoMasters(RoleActions[Following, Leading]):
    """The log of another master is copied beside that of the former one."""

    def _follow(self, view: KnownGroup) -> None:
        self.client = None
        super()._follow(view)


class GivesUpInSilence(RoleActions[Following, Leading]):
    """What was found damaged since the log was opened is copied again, and nobody is told."""

    def _follow(self, view: KnownGroup) -> None:
        self._reported_at = 0
        super()._follow(view)


class LeadsOn(RoleActions[Following, Leading]):
    """The term of a master does not end with its role."""

    def _end(self, *, good_bye: bool) -> None:
        self.master = None
        super()._end(good_bye=good_bye)


class LeadsNobody(RoleActions[Following, Leading]):
    """A new master takes messages, and does not serve replicas."""

    def carry_out(self, action: Action) -> None:
        if isinstance(action, Lead):
            self.master = self._host.lead(action.view)
        else:
            super().carry_out(action)


class GivesNothingUp(RoleActions[Following, Leading]):
    """Clients that wait for a confirmation when the role ends are never answered."""

    def carry_out(self, action: Action) -> None:
        master = self.master
        if isinstance(action, Refuse):
            self.master = None
        super().carry_out(action)
        if isinstance(action, Refuse):
            self.master = master


PLANTS: dict[str, Build] = {
    "copies-into-a-closed-log": Build(actions=CopiesIntoAClosedLog),
    "copies-two-masters": Build(actions=CopiesTwoMasters),
    "leads-on": Build(actions=LeadsOn),
    "leads-nobody": Build(actions=LeadsNobody),
    "answers-until-its-end": Build(node=AnswersUntilItsEnd),
    "leaves-nothing": Build(node=LeavesNothing),
    "stays-a-writer": Build(node=StaysAWriter),
    "forgets-what-came-meanwhile": Build(node=ForgetsWhatCame),
    "opens-at-once": Build(node=OpensAtOnce),
    "announces-first": Build(node=AnnouncesFirst),
    "stays-with-the-former-master": Build(node=StaysWithTheFormer),
    "copies-on": Build(node=CopiesOn),
    "serves-before-it-leads": Build(node=ServesBeforeItLeads),
    "refuses-when-it-has-ended": Build(node=RefusesWhenItHasEnded),
}

TOLD: dict[str, Build] = {
    "gives-up-in-silence": Build(actions=GivesUpInSilence),
    "gives-nothing-up": Build(actions=GivesNothingUp),
    "trusts-who-came-before-its-pause": Build(node=TrustsWhoCameBefore),
    "leads-with-the-ordered-set": Build(node=LeadsWithTheOrderedSet),
    "hides-its-damage": Build(node=HidesItsDamage, actions=GivesUpInSilence),
    "keeps-nobody-waiting": Build(node=KeepsNobodyWaiting),
    "refuses-who-waits": Build(node=RefusesWhoWaits),
}
"""Bugs that need an exact order of events: a story each shows them."""
