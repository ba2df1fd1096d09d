"""Carries out what a member's `GroupNode` decides, one action after the other.

An action that fails ends the broker: its log may be neither open nor closed, and a restart finds out. Invariant: one
action at a time, in the order in which they were decided. Loop thread only.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Protocol

from broker.roles.group_node import (
    Action,
    Begin,
    Broken,
    Event,
    Finish,
    GroupNode,
    MasterUnreachable,
    RoleOrders,
    Start,
)
from remoting import clock


class LogState(Protocol):
    """How the log stands, for heartbeats and elections."""

    @property
    def epoch(self) -> int:
        """The newest epoch of its records."""

    @property
    def end(self) -> int:
        """Position behind the last record, in bytes."""

    @property
    def confirm(self) -> int:
        """Confirm position, in bytes."""


class RoleExecutor(Protocol):
    """Who carries actions out."""

    def log_state(self) -> LogState:
        """How the log stands now."""
        ...

    async def carry_out(self, action: Action) -> Event | None:
        """Do it; what came of it, where the node waits for that."""
        ...


class RoleQueue:
    """What is to be done for the roles of one member, as a task of the loop."""

    def __init__(
        self, member: RoleExecutor, beat: Callable[[], None], failed: Callable[[Exception], None], log: Any
    ) -> None:
        """`beat` is called before and after each change of role; `failed` gets the error of an action."""
        self._changed = asyncio.Event()
        self._orders = orders = RoleOrders(GroupNode(), self._changed.set)
        self.node, self.feed, self.drop, self.report = orders.node, orders.feed, orders.drop, orders.report
        self.pause, self.resume = orders.pause, orders.resume
        self._member, self._beat, self._failed, self._log = member, beat, failed, log
        self._began_ms = 0

    async def start(self) -> None:
        """Open the log. Raises StoreError, OSError."""
        self.feed(Start())
        await self._carry_out()

    async def run(self) -> None:
        """Carry out what is decided until cancelled."""
        while True:
            await self._changed.wait()
            self._changed.clear()
            try:
                await self._carry_out()
            except Exception as error:  # noqa: BLE001 - after any error this broker's role is unknown
                self.feed(Broken())
                self._log.error("role_not_taken", exc_info=error)
                self._failed(error)
                return

    async def stop(self, address: str, epoch: int) -> None:
        """End the role and close everything, `run` having been cancelled; the arguments are those of `Stop`."""
        self._orders.give_up(address, epoch)
        await self._carry_out()

    async def _carry_out(self) -> None:
        while self._orders.todo:
            event = await self._done(self._orders.todo.popleft())
            if event is not None:
                self._orders.todo.extend(self.node.step(event))

    async def _done(self, action: Action) -> Event | None:
        """Do one; what a change is like for others, and for the log, is said here."""
        match action:
            case Begin(role):
                self._began_ms = _now_ms()
                self._log.info(
                    "role_taken", role="master" if role.is_master else "fenced" if role.is_fenced else "replica",
                    epoch=role.view.epoch, master=role.view.master, address=role.view.address,
                )  # fmt: skip
                self._beat()  # the log is closed and opened in this loop: no heartbeat is sent meanwhile
            case Finish():
                await self._member.carry_out(action)
                self._log.info("role_ready", took_ms=_now_ms() - self._began_ms)
                self._beat()
            case MasterUnreachable(address):
                self._log.warning("master_tells_no_replication_address", address=address)
            case _:
                return await self._member.carry_out(action)
        return None


def _now_ms() -> int:
    return clock.monotonic_ns() // 1_000_000
