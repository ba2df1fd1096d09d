"""Time limits that do not count this side's delay."""

from __future__ import annotations

import asyncio
import time

from remoting.transport.patience import STEPS, PatientTimer, late_s


async def test_time_in_which_the_loop_stood_still_is_not_counted() -> None:
    """All the steps but the one in which it stood follow."""
    loop, called = asyncio.get_running_loop(), asyncio.Event()
    begun_s = loop.time()
    PatientTimer(0.4, called.set)
    await asyncio.sleep(0)
    time.sleep(1)
    await asyncio.sleep(0)
    assert not called.is_set()
    await asyncio.wait_for(called.wait(), 20)
    assert loop.time() - begun_s >= 1 + 0.4 * (STEPS - 1) / STEPS


async def test_a_cancelled_timer_does_not_call() -> None:
    called: list[int] = []
    timer = PatientTimer(0.004, lambda: called.append(1))
    await asyncio.sleep(0.002)
    timer.cancel()
    await asyncio.sleep(0.02)
    assert called == []


def test_a_sweep_is_late_from_a_threshold_on() -> None:
    assert [late_s(10, at) for at in (9.0, 10.1, 13.0)] == [0, 0, 3]
