"""The end of a loop's turn: rounds in order, separate failures, a loop that does not starve."""

from __future__ import annotations

import asyncio
import threading
from functools import partial

from remoting.transport.turn import ROUNDS_MAX, soon, turn_of


async def test_rounds_run_in_order_and_never_inside_the_caller() -> None:
    """What a callback schedules runs after everything of its own round, in the same turn of the loop."""
    told: list[str] = []

    def first() -> None:
        soon(partial(told.append, "later"))
        told.append("first")

    soon(first)
    soon(partial(told.append, "second"))
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
    soon(partial(told.append, 1))
    await asyncio.sleep(0)
    assert told == [1]
    assert isinstance(reported[0], ValueError)


async def test_an_endless_chain_leaves_the_loop_its_turns() -> None:
    """After a number of rounds the loop continues with others."""
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


async def test_the_end_comes_after_every_round() -> None:
    """Also after rounds that are only scheduled meanwhile; and what it schedules still runs in the same turn."""
    told: list[str] = []
    turn = turn_of(asyncio.get_running_loop())

    def end() -> None:
        told.append("end")
        soon(partial(told.append, "behind"))

    turn.at_end(end)
    soon(lambda: soon(partial(told.append, "second")))
    soon(partial(told.append, "first"))
    await asyncio.sleep(0)
    assert told == ["first", "second", "end", "behind"]


async def test_the_end_comes_also_for_an_endless_chain() -> None:
    """What is to be written must not wait for it."""
    told: list[str] = []

    def again() -> None:
        if len(told) < 2:
            soon(again)

    turn = turn_of(asyncio.get_running_loop())
    turn.at_end(lambda: told.append("end"))
    soon(again)
    await asyncio.sleep(0)
    assert told == ["end"]
    told.append("stop")
    await asyncio.sleep(0)


async def test_the_owner_of_the_turn_runs_it() -> None:
    """Nothing is scheduled on the loop, and all has happened when it returns; afterwards it is scheduled again."""
    told: list[str] = []
    loop = asyncio.get_running_loop()
    turn = turn_of(loop)
    turn.begin()
    soon(partial(soon, partial(told.append, "second")))
    soon(partial(told.append, "first"))
    turn.at_end(lambda: told.append("end"))
    assert not told
    turn.run()
    assert told == ["first", "second", "end"]
    soon(partial(told.append, "later"))
    turn.run()  # whatever was scheduled on the loop finds nothing to do
    await asyncio.sleep(0)
    assert told[3:] == ["later"]


def test_a_loop_of_another_thread_is_not_taken_for_the_one_that_runs() -> None:
    """Each thread's callbacks run in its own."""
    ran: list[int] = []

    async def other() -> None:
        soon(lambda: ran.append(threading.get_ident()))
        await asyncio.sleep(0)

    async def main() -> None:
        turn = turn_of(asyncio.get_running_loop())
        turn.begin()
        thread = threading.Thread(target=asyncio.run, args=(other(),))
        thread.start()
        thread.join()
        assert ran == [thread.ident]
        turn.run()

    asyncio.run(main())


def test_each_loop_has_its_own() -> None:
    """A new loop does not get what belongs to the last one."""
    told: list[int] = []

    async def run(number: int) -> None:
        soon(partial(told.append, number))
        await asyncio.sleep(0)

    for number in range(3):
        asyncio.run(run(number))
    assert told == [0, 1, 2]
