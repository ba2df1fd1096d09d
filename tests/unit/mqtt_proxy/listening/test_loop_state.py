"""The shared state of a loop: one write per connection and turn."""

from __future__ import annotations

import asyncio
from typing import Any

from mqtt_proxy.listening.counters import FrontCounters
from mqtt_proxy.listening.loop_state import READ_BUFFER_BYTES, LoopState, Written
from remoting.transport.turn import soon
from runtime.clock import ManualClock
from runtime.metrics import Registry


class Noted(Written):
    """Counts its writes and asks for one more when told to."""

    def __init__(self, shared: LoopState) -> None:
        self.shared = shared
        self.writes = 0
        self.again = self.fails = self.aborted = False

    def abort(self) -> None:
        self.aborted = True

    def write_now(self) -> None:
        self.writes += 1
        if self.fails:
            raise ValueError("broken")
        if self.again:
            self.again = False
            self.shared.write_later(self)


async def test_writes_happen_at_the_end_of_the_turn() -> None:
    """What is asked for during a turn is written once, behind all that is due; what a write asks for, once more."""
    shared = LoopState(asyncio.get_running_loop(), ManualClock(monotonic_ns=7_000_000), FrontCounters(Registry()))
    assert shared.now_ms() == 7
    assert len(shared.buffer) == READ_BUFFER_BYTES
    one, two = Noted(shared), Noted(shared)
    one.again = True
    shared.write_later(one)
    shared.write_later(two)
    seen: list[int] = []
    soon(lambda: (seen.append(one.writes), soon(lambda: seen.append(one.writes))))
    assert (one.writes, two.writes) == (0, 0)
    await asyncio.sleep(0)
    assert seen == [0, 0]
    assert (one.writes, two.writes) == (2, 1)
    shared.close()


async def test_a_failing_connection_is_cut_and_the_others_are_written() -> None:
    """The loop's handler hears of it."""
    loop = asyncio.get_running_loop()
    heard: list[Any] = []
    loop.set_exception_handler(lambda _, context: heard.append(context["exception"]))
    shared = LoopState(loop, ManualClock(), FrontCounters(Registry()))
    bad, good = Noted(shared), Noted(shared)
    bad.fails = True
    shared.write_later(bad)
    shared.write_later(good)
    await asyncio.sleep(0)
    assert (bad.aborted, good.aborted, good.writes) == (True, False, 1)
    assert [type(error) for error in heard] == [ValueError]
    shared.close()
