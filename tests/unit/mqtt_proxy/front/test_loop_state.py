"""The shared state of a loop: one write per connection and turn."""

from __future__ import annotations

import asyncio

from mqtt_proxy.front.loop_state import READ_BUFFER_BYTES, LoopState
from runtime.clock import ManualClock


class Written:
    """Counts its writes and asks for one more when told to."""

    def __init__(self, shared: LoopState) -> None:
        self.shared = shared
        self.writes = 0
        self.again = False

    def write_now(self) -> None:
        self.writes += 1
        if self.again:
            self.again = False
            self.shared.write_later(self)  # type: ignore[arg-type]


async def test_writes_happen_at_the_end_of_the_turn() -> None:
    """What is asked for during a turn is written once; a request made while writing is for the next turn."""
    shared = LoopState(asyncio.get_running_loop(), ManualClock(monotonic_ns=7_000_000))
    assert shared.now_ms() == 7
    assert len(shared.buffer) == READ_BUFFER_BYTES
    one, two = Written(shared), Written(shared)
    one.again = True
    shared.write_later(one)  # type: ignore[arg-type]
    shared.write_later(two)  # type: ignore[arg-type]
    assert (one.writes, two.writes) == (0, 0)
    await asyncio.sleep(0)
    assert (one.writes, two.writes) == (1, 1)
    await asyncio.sleep(0)
    assert (one.writes, two.writes) == (2, 1)
