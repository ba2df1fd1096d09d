"""The end of a loop's turn: rounds in order, failures apart, the loop not starved."""

from __future__ import annotations

import asyncio

from remoting.transport.turn import ROUNDS_MAX, soon


async def test_rounds_run_in_order_and_never_inside_the_caller() -> None:
    """What a callback asks for runs after everything of its own round, in the same turn of the loop."""
    told: list[str] = []

    def first() -> None:
        soon(told.append, "later")
        told.append("first")

    soon(first)
    soon(told.append, "second")
    assert not told
    await asyncio.sleep(0)
    assert told == ["first", "second", "later"]


async def test_a_callback_that_raises_stops_no_other() -> None:
    """It is reported to the loop."""
    told, reported = [], []
    asyncio.get_running_loop().set_exception_handler(lambda _loop, context: reported.append(context["exception"]))

    def broken() -> None:
        raise ValueError("broken")

    soon(broken)
    soon(told.append, 1)
    await asyncio.sleep(0)
    assert told == [1]
    assert isinstance(reported[0], ValueError)


async def test_an_endless_chain_leaves_the_loop_its_turns() -> None:
    """After so many rounds the loop goes on with others."""
    rounds = 0

    def again() -> None:
        nonlocal rounds
        rounds += 1
        if rounds < 3 * ROUNDS_MAX:
            soon(again)

    soon(again)
    await asyncio.sleep(0)
    assert rounds == ROUNDS_MAX
    await asyncio.sleep(0)
    assert rounds == 2 * ROUNDS_MAX


def test_each_loop_has_its_own() -> None:
    """A new loop is not handed what belongs to the last one."""
    told: list[int] = []

    async def run(number: int) -> None:
        soon(told.append, number)
        await asyncio.sleep(0)

    for number in range(3):
        asyncio.run(run(number))
    assert told == [0, 1, 2]
