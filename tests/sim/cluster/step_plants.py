"""Planted bugs of what a broker makes of its controllers' answers, as in `plants`: `ReplicaSteps`, changed."""

from __future__ import annotations

from dataclasses import replace

from broker.roles.steps import UNKNOWN_CODES, AskingBroker, ControllerAnswer, ReplicaSteps
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


PLANTS: dict[str, Build] = {
    "stays-with-its-controller": Build(steps=StaysWithItsController),
}

TOLD: dict[str, Build] = {
    "insists-on-its-registration": Build(steps=InsistsOnItsRegistration),
    "beats-on-unheard": Build(steps=BeatsOnUnheard),
    "registers-what-it-had": Build(steps=RegistersWhatItHad),
    "hears-no-from-who-is-led": Build(steps=HearsNoFromWhoIsLed),
}
"""Bugs that need controllers that forget, lost answers or an exact order of events: a story each shows them."""
