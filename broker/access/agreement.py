"""The users of the cluster: held by the controllers, with a copy in the log of each broker group.

    request of an administrator ──▶ fetch the table ──▶ plan the change ──▶ propose it for that version
                                        ▲                                        │ the table was changed meanwhile
                                        └────────────────────────────────────────┘
    every second                 ──▶ fetch the table, if it is another one

A change is durable at a majority of the controllers and confirmed in this group's log before it is acknowledged; other
groups have it when they fetch the table next. A broker whose log has users while the controllers have none hands them
over: it ran as `lightmq up` before, or the controllers lost their disks.

Invariant: the copy never goes back to a lower revision of the same origin, so an answer of a controller that is behind
changes nothing. While no controller leads, the copy stays in force and nothing can be changed. Loop thread only.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, Protocol

from remoting import background
from remoting.access.agreement import EXACT_FIELD, AgreedUsers, UserChange, UserState, Version, differences
from remoting.access.users import UserTable
from remoting.client.controllers import Controllers
from remoting.protocol.bodies.controller_body import decode_body, encode_body
from remoting.protocol.errors import LightMQError, Refused
from remoting.protocol.frames.codes import RequestCode, ResponseCode
from remoting.protocol.frames.commands import Command
from remoting.transport.failures import ConnectionLost, checked

FETCH_INTERVAL_S = 1.0
"""How often the table of the controllers is looked at."""
TRIES_MAX = 5
"""How often a change is planned again because another broker's came before, or another controller leads."""
ORIGIN_BYTES = 8

Plan = Callable[[UserTable], UserState | None]
"""The state of a user after a change of this table; None: nothing is to change. Raises Refused."""


class Users(Protocol):
    """The copy of the users: in the log of a master, in the memory of a replica."""

    version: Version
    table: UserTable
    position: int
    """Log position to wait for until the table is durable here."""

    def write(self, states: Iterable[UserState], version: Version | None = None) -> int:
        """Put these users in place of those of the same names; returns the position to wait for. Raises StoreError."""
        ...


class Agreement:
    """Keeps one broker's users those of the cluster."""

    def __init__(
        self,
        created: Users,
        controllers: Controllers,
        broker_name: str,
        log: Any,
        find_leader: Callable[[], Awaitable[bool]],
        *,
        may_begin: bool = True,
    ) -> None:
        """`find_leader` searches for the leading controller; False when there is none. `may_begin`: whether this broker
        may make the first table of the controllers; not a replica, because its master's log may have users."""
        self._created = created
        self._find_leader = find_leader
        self._may_begin = may_begin
        self._controllers = controllers
        self._broker_name = broker_name
        self._log = log
        self._lock = asyncio.Lock()
        self._task: asyncio.Task[None] | None = None
        self._problem = ""

    def start(self) -> None:
        """Begin to follow the controllers' table, unless it is followed already."""
        if self._task is None:
            self._task = background.task(self._follow(), "follows the users agreed with the controllers")

    def stop(self) -> None:
        """Follow it no longer."""
        if self._task is not None:
            self._task.cancel()
            self._task = None

    async def refresh(self) -> None:
        """Fetch the table with every change that was acknowledged anywhere. Raises LightMQError."""
        async with self._lock:
            await self._fetch(exact=True)

    async def change(self, plan: Plan) -> int:
        """Carry out a change; returns the position of the log to wait for.

        Raises:
            Refused: the plan's reason, the controllers' reason, or SYSTEM_BUSY without a leading controller.
            StoreError: the log takes nothing; the controllers have the change.
        """
        created = self._created
        async with self._lock:
            for _ in range(TRIES_MAX):
                await self._fetch(exact=True)
                state = plan(created.table)
                if state is None:
                    return created.position
                if not (created.version.origin or self._may_begin):
                    raise Refused(ResponseCode.SYSTEM_BUSY, "there are no users yet: ask the master of the group first")
                version = await self._propose((state,), created.version.origin)
                if version is not None:
                    return created.write([state], version)
        raise Refused(ResponseCode.SYSTEM_BUSY, "users and rules are being changed by others: ask again")

    async def _follow(self) -> None:
        while True:
            try:
                async with self._lock:
                    await self._fetch(exact=False)
                self._note("")
            except (LightMQError, OSError) as error:
                self._note(str(error))
            await asyncio.sleep(FETCH_INTERVAL_S)

    def _note(self, problem: str) -> None:
        if problem and not self._problem:
            self._log.warning("access_not_followed", problem=problem, consequence="the users known so far stay")
        elif self._problem and not problem:
            self._log.info("access_followed", users=len(self._created.table.users))
        self._problem = problem

    async def _fetch(self, *, exact: bool) -> None:
        created = self._created
        fields = {EXACT_FIELD: "true"} if exact else {}
        answer = await self._ask(RequestCode.AGREED_USERS, encode_body(created.version), fields)
        agreed = decode_body(answer.body, AgreedUsers)
        held = agreed.version
        if not held.origin:
            await self._hand_over()
        elif agreed.table is not None and self._is_newer(held):
            states = differences(created.table, agreed.table)
            created.write(states, held)
            self._log.info("access_table_taken", revision=held.revision, users_changed=len(states))

    def _is_newer(self, held: Version) -> bool:
        known = self._created.version
        return held.origin != known.origin or held.revision > known.revision

    async def _hand_over(self) -> None:
        """Give the controllers, which have no table, the one of this log."""
        created = self._created
        states = tuple(differences(UserTable(), created.table))
        if states:
            version = await self._propose(states, "")
            if version is not None:
                created.write((), version)
                self._log.info("access_table_handed_over", users=len(states))

    async def _propose(self, states: tuple[UserState, ...], origin: str) -> Version | None:
        """The version after the change; None if the table was changed meanwhile."""
        origin = origin or secrets.token_hex(ORIGIN_BYTES)
        change = UserChange(made_for=self._created.version, origin=origin, states=states)
        try:
            answer = await self._ask(RequestCode.CHANGE_USERS, encode_body(change), {})
        except Refused as refusal:
            if refusal.code == ResponseCode.ACCESS_TABLE_CHANGED:
                return None
            raise
        return decode_body(answer.body, AgreedUsers).version

    async def _ask(self, code: int, body: bytes, fields: dict[str, str]) -> Command:
        """The leading controller's answer. Raises Refused, other LightMQErrors when the outcome is unknown."""
        controllers = self._controllers
        for _ in range(TRIES_MAX):
            if not controllers.leader and not await self._find_leader():
                break
            command = Command(code, fields={"brokerName": self._broker_name, **fields}, body=body)
            try:
                return checked(await controllers.ask(command))
            except ConnectionLost:
                continue  # a change that was made nevertheless is found by its version
        raise Refused(ResponseCode.SYSTEM_BUSY, "no controller leads: users and rules cannot be changed now")
