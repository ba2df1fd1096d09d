"""Every woken session has its turn, once per turn of the loop, and one that fails harms nobody."""

from __future__ import annotations

from mqtt_proxy.delivery.pump import PORTIONS_PER_TURN, Pump
from tests.unit.mqtt_proxy.rig import settle


class Session:
    """Has `portions` turns of work."""

    def __init__(self, portions: int = 1) -> None:
        self.portions = portions
        self.turns = 0
        self.given = 0
        self.gave_up = False

    def pump(self, portions: int) -> bool:
        self.turns += 1
        self.given = portions
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
        session.pump = lambda portions, session=session, deliver=deliver: (order.append(session), deliver(portions))[1]  # type: ignore[method-assign]
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


async def test_few_sessions_have_several_portions_each() -> None:
    """What one turn can give is shared by those who have something to do in it; one portion is the least."""
    for count, portions in ((1, PORTIONS_PER_TURN), (3, PORTIONS_PER_TURN // 3), (40, 1)):
        pump, sessions = Pump(), [Session() for _ in range(count)]
        for session in sessions:
            pump.wake(session)
        await settle()
        assert {session.given for session in sessions} == {portions}
