"""Every woken session has its turn, once per turn of the loop, and one that fails harms nobody."""

from __future__ import annotations

from mqtt_proxy.bridge.pump import Pump
from tests.unit.mqtt_proxy.bridge.rig import settle


class Session:
    """Has `portions` turns of work."""

    def __init__(self, portions: int = 1) -> None:
        self.portions = portions
        self.turns = 0
        self.gave_up = False

    def pump(self) -> bool:
        self.turns += 1
        if self.portions < 0:
            raise ValueError("broken")
        return self.turns < self.portions

    def failed(self) -> None:
        self.gave_up = True


async def test_turns() -> None:
    """Once however often woken; again while there is more; never when forgotten."""
    pump, short, long, gone = Pump(), Session(), Session(3), Session()
    for session in (short, long, short, gone):
        pump.wake(session)
    pump.forget(gone)
    await settle()
    assert (short.turns, long.turns, gone.turns) == (1, 3, 0)


async def test_who_is_behind_waits_for_the_next_turn_of_the_loop() -> None:
    """One portion per turn, also when there is news for it meanwhile; who is not behind goes first."""
    pump, behind, live = Pump(), Session(3), Session()
    order: list[Session] = []
    for session in (behind, live):
        deliver = session.pump
        session.pump = lambda session=session, deliver=deliver: (order.append(session), deliver())[1]  # type: ignore[method-assign]
    pump.later(behind)
    pump.wake(behind)
    pump.wake(live)
    await settle()
    assert order == [live, behind, behind, behind]
    pump.later(behind)
    pump.forget(behind)
    await settle()
    assert len(order) == 4


async def test_a_failing_session_is_given_up_and_the_others_go_on() -> None:
    """Its fault stays its own."""
    pump, broken, fine = Pump(), Session(-1), Session()
    pump.wake(broken)
    pump.wake(fine)
    await settle()
    assert broken.gave_up
    assert fine.turns == 1
