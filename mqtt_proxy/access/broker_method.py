"""Users made by requests at the broker: their passwords, which the broker checks, and their rules, which it hands out.

    CREATED_USERS (9071)   version -> nothing, or another version with the table, in which secrets are missing
    CHECK_USER (9072)      user name and password -> whether they belong together

The table is requested when the connection comes up and every `LOOK_INTERVAL_S`; a change is in force here that much
later at most. While the broker cannot be reached this method admits no client, and the previous rules stay in force.

Invariants: the proxy keeps no secret of these users; a user that is disabled or removed is not let in, and its rules
disappear with the next table. Loop rule: on the loop's thread.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from mqtt_proxy.access.auth import Waits
from mqtt_proxy.link import Link, LinkDownError
from remoting import background
from remoting.access.rules import Identity, Shown, Unproven
from remoting.access.users import CreatedUsersReply, UserTable
from remoting.protocol.errors import LightMQError, Refused
from remoting.protocol.frames.codes import RequestCode
from runtime.files import WatchedFile
from runtime.logs import get_logger

LOOK_INTERVAL_S = 1.0
"""How often the broker's table is looked for."""

_encode = msgspec.json.encode
_reply = msgspec.json.Decoder(CreatedUsersReply).decode


class BrokerMethod:
    """Users of the broker."""

    name = "broker"

    def __init__(self, link: Link, *, last: bool) -> None:
        """`last`: no further method is tried, so a user that does not exist costs what one does that exists."""
        self._link = link
        self._last = last
        self._log = get_logger("mqtt_proxy.auth")
        self._version = ""
        self._problem = ""
        self._looking: asyncio.Task[None] | None = None
        self._changed: list[Callable[[UserTable], None]] = []
        self.table = UserTable()
        """As the broker last gave it."""

    def on_change(self, callback: Callable[[UserTable], None]) -> None:
        """Call with each other table."""
        self._changed.append(callback)

    def start(self) -> None:
        """Keep the table current from now on."""
        self._looking = background.task(self._keep_current(), "keeps the broker's users current")

    async def fetch(self) -> None:
        """Take the broker's table, if it is another; a failure is logged once, and the table stays."""
        try:
            body = await self._link.request(RequestCode.CREATED_USERS, self._version.encode())
            reply = _reply(body)
        except (LinkDownError, Refused, msgspec.MsgspecError) as error:
            if str(error) != self._problem:
                self._problem = str(error)
                self._log.error("mqtt_users_unknown", problem=self._problem, consequence="the rules from before hold")
            return
        self._problem = ""
        if reply.table is not None:
            self._version, self.table = reply.version, reply.table
            self._log.info("mqtt_users_read", users=len(reply.table.users))
            for callback in self._changed:
                callback(reply.table)

    def at_hand(self, shown: Shown) -> Identity | Unproven | Waits | None:
        """Nothing is: the broker is asked, unless the user is another method's."""
        if shown.username is None or not (self._last or shown.username in self.table.users):
            return None
        return Waits.LATER

    async def check(self, shown: Shown) -> Identity | Unproven | None:
        """The user, if the broker knows the password."""
        if self.at_hand(shown) is None:
            return None
        assert shown.username is not None
        try:
            body = _encode((shown.username, (shown.password or b"").decode()))
            answer = await self._link.request(RequestCode.CHECK_USER, body)
        except UnicodeError:
            return Unproven.DENIED
        except LightMQError:
            return Unproven.UNAVAILABLE
        if answer != b"true":
            return Unproven.DENIED
        address = shown.address if self.table.sourced(shown.username) else ""
        return Identity(shown.username, anonymous=False, client_id=shown.client_id, address=address)

    def refresh(self) -> None:
        """Nothing to do: `fetch` compares versions each time."""

    def files(self) -> Sequence[WatchedFile[Any]]:
        """No files: everything comes from the broker."""
        return ()

    async def close(self) -> None:
        """Stop the requests for changes."""
        if self._looking is not None:
            self._looking.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._looking

    async def _keep_current(self) -> None:
        while True:
            await self.fetch()
            await asyncio.sleep(LOOK_INTERVAL_S)
