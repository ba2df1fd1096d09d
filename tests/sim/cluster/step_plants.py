"""Planted bugs of what a broker makes of its controllers' answers, as in `plants`: `ReplicaSteps` and `LeaderSearch`,
changed."""

from __future__ import annotations

from dataclasses import replace

from broker.roles.steps import UNKNOWN_CODES, Ask, AskingBroker, ControllerAnswer, ReplicaSteps
from remoting.client.controllers import LeaderSearch
from remoting.protocol.errors import LightMQError
from remoting.protocol.frames.codes import ResponseCode
from tests.sim.cluster.broker import Build


class StaysWithItsController(ReplicaSteps):
    """A controller that does not lead, or is gone, is asked again and again."""

    def concluded(self, answer: ControllerAnswer, now_ms: int, broker: AskingBroker) -> bool:
        had_leader = self._has_leader
        granted = super().concluded(answer, now_ms, broker)
        self._has_leader |= had_leader
        return granted


class InsistsOnItsRegistration(ReplicaSteps):
    """Controllers that do not know the broker any more are taken for busy."""

    def concluded(self, answer: ControllerAnswer, now_ms: int, broker: AskingBroker) -> bool:
        if answer.code in UNKNOWN_CODES:
            answer = replace(answer, code=ResponseCode.SYSTEM_BUSY)
        return super().concluded(answer, now_ms, broker)


class BeatsOnUnheard(ReplicaSteps):
    """That a heartbeat was refused is not noticed."""

    def beaten(self, code: int, now_ms: int) -> None:
        return


class RegistersWhatItHad(ReplicaSteps):
    """The answer to a registration from before a loss is taken for one to what is there now."""

    def lost_something(self, now_ms: int) -> None:
        super().lost_something(now_ms)
        if self._under_way is not None:
            self._under_way.is_outdated = False


class HearsNoFromWhoIsLed(ReplicaSteps):
    """That there is a master already is taken for a refusal, and the broker goes on to ask to be it."""

    def concluded(self, answer: ControllerAnswer, now_ms: int, broker: AskingBroker) -> bool:
        if answer.code == ResponseCode.CONTROLLER_MASTER_STILL_EXIST:
            answer = replace(answer, code=ResponseCode.SYSTEM_BUSY)
        return super().concluded(answer, now_ms, broker)


class LeavesOnce(ReplicaSteps):
    """A master that is about to stop asks to be replaced, and asks no more when nobody has answered."""

    def concluded(self, answer: ControllerAnswer, now_ms: int, broker: AskingBroker) -> bool:
        question = self._under_way
        granted = super().concluded(answer, now_ms, broker)
        if question is not None and question.ask is Ask.LEAVE:
            self._is_leaving = False
        return granted


class AsksWhoIsNamed(LeaderSearch):
    """The controller that another one has named is asked whether it leads, and no other one, even if it is gone."""

    def begin(self) -> None:
        super().begin()
        if self.named:
            self._waiting = [self.named]

    def failed(self, address: str, error: LightMQError) -> None:
        named = self.named
        super().failed(address, error)
        self.named = named


PLANTS: dict[str, Build] = {
    "asks-who-is-named": Build(search=AsksWhoIsNamed),
    "stays-with-its-controller": Build(steps=StaysWithItsController),
}

TOLD: dict[str, Build] = {
    "insists-on-its-registration": Build(steps=InsistsOnItsRegistration),
    "beats-on-unheard": Build(steps=BeatsOnUnheard),
    "registers-what-it-had": Build(steps=RegistersWhatItHad),
    "hears-no-from-who-is-led": Build(steps=HearsNoFromWhoIsLed),
    "leaves-once": Build(steps=LeavesOnce),
}
"""Bugs that need controllers that forget, lost answers or an exact order of events: a story each shows them."""
