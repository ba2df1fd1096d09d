"""Carries out the roles that a member of a group is given, one after the other.

A role change that was overtaken by a newer one is not begun. One that fails ends the broker: its log may be neither
open nor closed, and a restart finds out. Invariant: one role change at a time, with the newest role known when it
begins. Loop thread only.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Protocol

from broker.roles.steps import KnownGroup, RoleChange


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
    """Who carries roles out."""

    def log_state(self) -> LogState:
        """How the log stands now."""
        ...

    async def take_role(self, role: RoleChange) -> None:
        """Carry out a role; returns when it is done."""
        ...

    def set_changed(self, view: KnownGroup) -> None:
        """The controllers have committed another set for the present master."""
        ...


class RoleQueue:
    """The role that is wanted next."""

    def __init__(
        self, member: RoleExecutor, beat: Callable[[], None], failed: Callable[[Exception], None], log: Any
    ) -> None:
        """`beat` is called before and after each change; `failed` gets the error of one."""
        self.changes = 0
        """Roles taken since the start."""
        self._member, self._beat, self._failed, self._log = member, beat, failed, log
        self._wanted: RoleChange | None = None
        self._changed = asyncio.Event()

    def want(self, role: RoleChange) -> None:
        """Take this role as soon as the present change is done."""
        self._wanted = role
        self._changed.set()

    def drop(self) -> None:
        """Do not take the role that is wanted."""
        self._wanted = None

    async def run(self) -> None:
        """Carry out roles until cancelled."""
        while True:
            await self._changed.wait()
            self._changed.clear()
            role, self._wanted = self._wanted, None
            if role is None:
                continue
            self.changes += 1
            self._beat()  # the log is closed and opened in this loop: no heartbeat is sent meanwhile
            try:
                await self._member.take_role(role)
            except Exception as error:  # noqa: BLE001 - after any error this broker's role is unknown
                self._log.error("role_not_taken", epoch=role.view.epoch, exc_info=error)
                self._failed(error)
                return
            self._beat()
