"""What is decided is done one after the other, and what fails ends the broker."""

from __future__ import annotations

import asyncio

from broker.roles.group_node import (
    Action,
    CloseLog,
    ClosePorts,
    EndRole,
    Event,
    Finish,
    Lead,
    LogOpened,
    OpenLog,
    Refuse,
    RoleEnded,
    Serve,
)
from broker.roles.role_queue import RoleQueue
from broker.roles.steps import KnownGroup, RoleChange
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


def role(epoch: int) -> RoleChange:
    return RoleChange(KnownGroup(epoch, 1), is_master=True)


async def test_the_newest_role_comes_next_and_a_failure_ends_all() -> None:
    executor = Executor()
    beats: list[int] = []
    failures: list[Exception] = []
    queue = RoleQueue(executor, lambda: beats.append(1), failures.append, get_logger("test"))  # type: ignore[arg-type]
    await queue.start()
    assert (executor.done, beats) == ([OpenLog(None)], [])
    running = asyncio.create_task(queue.run())
    executor.may_open.clear()
    executor.opening.clear()
    queue.want(role(1))
    await executor.opening.wait()
    for epoch in (2, 3):
        queue.want(role(epoch))
    executor.opening.clear()
    executor.may_open.set()
    await executor.opening.wait()
    while not executor.led():
        await asyncio.sleep(0)
    assert executor.led() == [3]
    assert executor.done[-2:] != [Serve(3), Finish()], "it is announced"
    queue.want(role(9))
    await running
    assert (executor.led(), queue.node.changes, len(beats)) == ([3], 3, 4)
    assert [str(each) for each in failures] == ["no space"]
    executor.done.clear()
    queue.want(role(10))
    await queue.stop("", 10)
    assert executor.done == [Refuse("", 10), EndRole(good_bye=True), ClosePorts(), CloseLog()]


async def test_a_role_that_is_dropped_is_not_taken() -> None:
    executor = Executor()
    queue = RoleQueue(executor, lambda: None, lambda _error: None, get_logger("test"))  # type: ignore[arg-type]
    queue.want(role(1))
    queue.drop()
    await queue.start()
    running = asyncio.create_task(queue.run())
    queue.want(role(2))
    while not executor.led():
        await asyncio.sleep(0)
    assert executor.led() == [2]
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


async def test_while_it_is_paused_only_the_newest_role_is_kept() -> None:
    executor = Executor()
    queue = RoleQueue(executor, lambda: None, lambda _error: None, get_logger("test"))  # type: ignore[arg-type]
    await queue.start()
    running = asyncio.create_task(queue.run())
    queue.pause()
    for epoch in (1, 2):
        queue.want(role(epoch))
        await asyncio.sleep(0)
    assert executor.done == [OpenLog(None)]
    queue.resume()
    while not executor.led():
        await asyncio.sleep(0)
    assert executor.led() == [2]
    queue.pause()
    queue.want(role(3))
    queue.drop()
    queue.resume()
    await asyncio.sleep(0)
    assert executor.led() == [2]
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
