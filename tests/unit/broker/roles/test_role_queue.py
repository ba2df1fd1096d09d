"""What is decided is done one after the other, and what fails ends the broker."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from broker.roles.group_node import (
    Action,
    Announce,
    CloseLog,
    ClosePorts,
    EndRole,
    Event,
    Expect,
    FenceOff,
    Finish,
    FollowMaster,
    GroupNode,
    Lead,
    Learn,
    LogOpened,
    MasterUnreachable,
    OpenLog,
    Refuse,
    ReportLoss,
    RoleEnded,
    RoleOrders,
    Serve,
    Start,
    Suspend,
    Unfollow,
)
from broker.roles.role_queue import RoleActions, RoleQueue
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
    orders = RoleOrders(GroupNode(), lambda: done.append("due"), lambda: None)
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


class Notes:
    """Notes every call of it, with its name and arguments."""

    def __init__(self, name: str, notes: list[tuple[Any, ...]]) -> None:
        self._name, self._notes = name, notes
        self.following: Any = self

    def __getattr__(self, called: str) -> Callable[..., None]:
        return lambda *arguments, **named: self._notes.append((f"{self._name}.{called}", *arguments, *named.values()))


class NotedHost(Notes):
    """A broker that has voted in term 7, whose every call is noted."""

    damage: int | None = None

    def follow(self, view: KnownGroup, epoch: int) -> Notes:
        self._notes.append(("follow", view.ha_address, epoch))
        return Notes("client", self._notes)

    def fenced_below(self, epoch: int) -> int:
        return max(epoch, 7)

    def damaged_at(self) -> int | None:
        return self.damage

    def lead(self, view: KnownGroup) -> Notes:
        self._notes.append(("lead", view.epoch))
        return Notes("master", self._notes)


class Bench:
    """Actions, and what they did."""

    def __init__(self) -> None:
        self.notes: list[tuple[Any, ...]] = []
        self.host = NotedHost("host", self.notes)
        self.actions: RoleActions[Any, Any] = RoleActions(self.host, Notes("streams", self.notes))  # type: ignore[arg-type]

    def do(self, *actions: Action) -> list[tuple[Any, ...]]:
        """What these do."""
        self.notes.clear()
        for action in actions:
            self.actions.carry_out(action)
        return list(self.notes)


VIEW = KnownGroup(5, 2, "h:1", "h:2")


def test_a_replica_copies_one_log_and_moves_from_master_to_master() -> None:
    bench = Bench()
    assert bench.do(FenceOff(4), Unfollow()) == []
    assert bench.do(FollowMaster(VIEW)) == [("follow", "h:2", 7)]
    assert bench.do(FollowMaster(KnownGroup(9, 3, "i:1", "i:2"))) == [("client.move", "i:2", 9)]
    assert bench.do(FenceOff(10)) == [("client.fence", 10)]
    assert bench.do(Unfollow(), Unfollow()) == [("client.stop", False)]
    assert bench.actions.client is None
    assert bench.do(MasterUnreachable("h:1"), ReportLoss()) == [("host.unreachable", "h:1"), ("host.lost_something",)]


def test_a_master_serves_replicas_before_clients_and_gives_up_before_it_refuses() -> None:
    bench = Bench()
    assert bench.do(Refuse("", 4), Suspend(), Expect()) == [
        ("host.refuse", "", 4),
        ("host.suspend",),
        ("streams.expect",),
    ]
    assert bench.do(Lead(VIEW, 3), Serve(5), Announce(), Finish()) == [
        ("lead", 5), ("master.begin", 3), ("host.serve", 5), ("host.announce",), ("host.finish",),
    ]  # fmt: skip
    assert bench.do(Learn(VIEW)) == [("master.learn", VIEW)]
    assert bench.do(Refuse("h:1", 6)) == [("host.give_up", "h:1", 6), ("host.refuse", "h:1", 6)]


def test_what_works_on_a_log_ends_before_it_is_closed() -> None:
    """What copies is told whether the process stops; the log is open once."""
    bench = Bench()
    assert bench.do(OpenLog(5), Lead(VIEW, None), FollowMaster(VIEW))[-1] == ("follow", "h:2", 7)
    with pytest.raises(AssertionError, match="open once"):
        bench.do(OpenLog(None))
    assert bench.do(EndRole(good_bye=True), CloseLog()) == [
        ("client.stop", True), ("master.end",), ("streams.step_down", "this broker is not the master"),
        ("host.close_log",),
    ]  # fmt: skip
    assert bench.do(OpenLog(None), ClosePorts(), EndRole()) == [("streams.step_down", "this broker is not the master")]


def test_damage_is_given_up_only_once_the_controllers_know_of_it() -> None:
    """What copies the log is made when they have decided again; more damage that is met then is reported too."""
    bench = Bench()
    bench.host.damage = 300
    assert bench.do(FollowMaster(VIEW)) == [("host.lost_something",)]
    bench.host.damage = 200
    assert bench.do(FollowMaster(VIEW)) == [("host.lost_something",)]
    assert bench.do(FollowMaster(VIEW)) == [("follow", "h:2", 7)]
    bench.host.damage = 400
    assert bench.do(FollowMaster(VIEW)) == [("client.move", "h:2", 7)], "that is what the next one would give up"
    assert bench.do(ReportLoss(), Unfollow(), FollowMaster(VIEW)) == [
        ("host.lost_something",), ("client.stop", False), ("follow", "h:2", 7),
    ]  # fmt: skip


def test_controllers_hear_how_the_log_stands_before_and_after_a_change() -> None:
    done: list[object] = []
    orders = RoleOrders(GroupNode(), lambda: None, lambda: done.append("beat"))
    orders.feed(Start())
    orders.feed(LogOpened())
    Controllers(orders).appoint(1)
    orders.feed(RoleEnded())
    orders.feed(LogOpened())
    while orders.todo:
        done.append(type(orders.take()).__name__)
    assert [at for at, each in enumerate(done) if each == "beat"] == [done.index("Begin") - 1, done.index("Finish") - 1]
    assert done.index("Begin") < done.index("EndRole") < done.index("Serve") < done.index("Finish")
