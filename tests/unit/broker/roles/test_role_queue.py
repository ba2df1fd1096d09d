"""Roles are carried out one after the other, and one that was overtaken is not begun."""

from __future__ import annotations

import asyncio

from broker.roles.role_queue import RoleQueue
from broker.roles.steps import KnownGroup, RoleChange
from runtime.logs import get_logger


class Executor:
    """Takes roles as slowly as a test wants; fails in epoch 9."""

    def __init__(self) -> None:
        self.taken: list[int] = []
        self.begun, self.may_end = asyncio.Event(), asyncio.Event()

    def log_state(self) -> None:
        raise NotImplementedError

    async def take_role(self, role: RoleChange) -> None:
        self.taken.append(role.view.epoch)
        self.begun.set()
        await self.may_end.wait()
        if role.view.epoch == 9:
            raise OSError("no space")

    def set_changed(self, view: KnownGroup) -> None:
        raise NotImplementedError(view)


def role(epoch: int) -> RoleChange:
    return RoleChange(KnownGroup(epoch, None), is_master=False)


async def test_the_newest_role_comes_next_and_a_failure_ends_all() -> None:
    executor = Executor()
    beats: list[int] = []
    failures: list[Exception] = []
    queue = RoleQueue(executor, lambda: beats.append(1), failures.append, get_logger("test"))  # type: ignore[arg-type]
    running = asyncio.create_task(queue.run())
    queue.want(role(1))
    await executor.begun.wait()
    for epoch in (2, 3):
        queue.want(role(epoch))
    executor.begun.clear()
    executor.may_end.set()
    await executor.begun.wait()
    assert executor.taken == [1, 3]
    queue.want(role(9))
    await running
    assert (executor.taken, queue.changes) == ([1, 3, 9], 3)
    assert [str(each) for each in failures] == ["no space"]
    assert len(beats) == 5


async def test_a_role_that_is_dropped_is_not_taken() -> None:
    executor = Executor()
    queue = RoleQueue(executor, lambda: None, lambda _error: None, get_logger("test"))  # type: ignore[arg-type]
    executor.may_end.set()
    queue.want(role(1))
    queue.drop()
    running = asyncio.create_task(queue.run())
    await asyncio.sleep(0)
    queue.want(role(2))
    await executor.begun.wait()
    assert executor.taken == [2]
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
