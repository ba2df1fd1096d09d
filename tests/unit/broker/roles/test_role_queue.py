"""What is decided is done one after the other, and what fails ends the broker."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from broker.roles.group_node import (
    Action,
    CloseLog,
    ClosePorts,
    EndRole,
    Event,
    Finish,
    GroupNode,
    Lead,
    Learn,
    LogOpened,
    OpenLog,
    Refuse,
    RoleEnded,
    RoleOrders,
    Serve,
    Start,
)
from broker.roles.role_queue import RoleQueue
from broker.roles.steps import KnownGroup, ReplicaSteps
from runtime.logs import get_logger


class Executor:
    """Opens the log as slowly as a test wants; fails in epoch 9."""

    def __init__(self) -> None:
        self.done: list[Action] = []
        self.opening, self.may_open = asyncio.Event(), asyncio.Event()
        self.may_open.set()

    def log_state(self) -> None:
        raise NotImplementedError

    async def carry_out(self, action: Action) -> Event | None:
        self.done.append(action)
        match action:
            case EndRole():
                return RoleEnded()
            case OpenLog(epoch):
                self.opening.set()
                await self.may_open.wait()
                if epoch == 9:
                    raise OSError("no space")
                return LogOpened()
        return None

    def led(self) -> list[int]:
        return [each.view.epoch for each in self.done if isinstance(each, Lead)]


class Controllers:
    """Say who is the master; `saved` gets the epochs that are written down."""

    def __init__(self, queue: RoleQueue | RoleOrders) -> None:
        self._queue = queue
        self._steps = ReplicaSteps(1, is_applied=True, epoch=0, is_learner=False, poll_interval_ms=1_000)
        self._steps.found_leader(0)
        self._steps.registered(0)
        self.saved: Callable[[int], None] = lambda _epoch: None

    def appoint(self, epoch: int, members: frozenset[int] = frozenset(), set_epoch: int = 0) -> None:
        view = KnownGroup(epoch, 1, members=members, set_epoch=set_epoch)
        self._queue.report(self._steps, view, self.saved)


async def test_the_newest_role_comes_next_and_a_failure_ends_all() -> None:
    executor = Executor()
    beats: list[int] = []
    failures: list[Exception] = []
    queue = RoleQueue(executor, lambda: beats.append(1), failures.append, get_logger("test"))  # type: ignore[arg-type]
    controllers = Controllers(queue)
    await queue.start()
    assert (executor.done, beats) == ([OpenLog(None)], [])
    running = asyncio.create_task(queue.run())
    executor.may_open.clear()
    executor.opening.clear()
    controllers.appoint(1)
    await executor.opening.wait()
    for epoch in (2, 3):
        controllers.appoint(epoch)
    executor.opening.clear()
    executor.may_open.set()
    await executor.opening.wait()
    while not executor.led():
        await asyncio.sleep(0)
    assert executor.led() == [3]
    assert executor.done[-2:] != [Serve(3), Finish()], "it is announced"
    controllers.appoint(9)
    await running
    assert (executor.led(), queue.node.changes, len(beats)) == ([3], 3, 4)
    assert [str(each) for each in failures] == ["no space"]
    executor.done.clear()
    controllers.appoint(10)
    await queue.stop("", 10)
    assert executor.done == [Refuse("", 10), EndRole(good_bye=True), ClosePorts(), CloseLog()]


async def test_a_role_that_is_dropped_is_not_taken() -> None:
    executor = Executor()
    queue = RoleQueue(executor, lambda: None, lambda _error: None, get_logger("test"))  # type: ignore[arg-type]
    controllers = Controllers(queue)
    controllers.appoint(1)
    queue.drop()
    await queue.start()
    running = asyncio.create_task(queue.run())
    controllers.appoint(2)
    while not executor.led():
        await asyncio.sleep(0)
    assert executor.led() == [2]
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


async def test_while_it_is_paused_only_the_newest_role_is_kept() -> None:
    executor = Executor()
    queue = RoleQueue(executor, lambda: None, lambda _error: None, get_logger("test"))  # type: ignore[arg-type]
    controllers = Controllers(queue)
    await queue.start()
    running = asyncio.create_task(queue.run())
    queue.pause()
    for epoch in (1, 2):
        controllers.appoint(epoch)
        await asyncio.sleep(0)
    assert executor.done == [OpenLog(None)]
    queue.resume()
    while not executor.led():
        await asyncio.sleep(0)
    assert executor.led() == [2]
    queue.pause()
    controllers.appoint(3)
    queue.drop()
    queue.resume()
    await asyncio.sleep(0)
    assert executor.led() == [2]
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


def test_a_new_epoch_is_written_down_before_its_role_is_wanted() -> None:
    done: list[str] = []
    orders = RoleOrders(GroupNode(), lambda: done.append("due"))
    controllers = Controllers(orders)
    orders.feed(Start())
    orders.feed(LogOpened())
    orders.todo.clear()
    done.clear()
    controllers.saved = lambda epoch: done.append(f"epoch {epoch} saved")
    controllers.appoint(4)
    assert done == ["epoch 4 saved", "due"]
    orders.feed(RoleEnded())
    orders.feed(LogOpened())
    orders.todo.clear()
    done.clear()
    controllers.appoint(3)
    assert (done, list(orders.todo)) == ([], [])
    controllers.appoint(4, frozenset({1, 2}), 7)
    assert (done, list(orders.todo)) == (["due"], [Learn(KnownGroup(4, 1, members=frozenset({1, 2}), set_epoch=7))])
