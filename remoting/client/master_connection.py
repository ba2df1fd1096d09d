"""A `Connection` to the master of a broker group, whoever that is: it moves to the new one by itself.

A request that a broker refused because it is not the master was not carried out: it is made again at the master, within
its own time limit. One that was begun while the broker ceased to be it ends in `NotMaster`, a `ConnectionLost`: nobody
knows, as when a connection breaks.
Invariant: no answer NOT_MASTER reaches a caller. Loop rule: all on the loop's thread.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from remoting.client.master_link import full
from remoting.client.masters import Masters
from remoting.client.reconnecting import ReconnectingConnection
from remoting.protocol.frames.commands import Command
from remoting.transport.contracts import REQUEST_TIMEOUT_MS, Answered, Connection
from remoting.transport.failures import NotMaster, RequestTimeout, not_master

BACKOFF_FIRST_MS = 10
"""First pause: who has just been elected is told of it at the same moment as we are, and takes its role at once."""

BACKOFF_MS_MAX = 500
"""Longest pause between two attempts: a group without a master has one within seconds."""


class MasterConnection(ReconnectingConnection):
    """Keeps a connection to the master up; `start` begins dialling, `close` ends it for good."""

    def __init__(
        self,
        masters: Masters,
        *,
        backoff_first_ms: int = BACKOFF_FIRST_MS,
        backoff_ms_max: int = BACKOFF_MS_MAX,
        spread: Callable[[], float] = full,
    ) -> None:
        super().__init__(
            masters.dial,
            f"the master of {masters.broker_name or 'the group'}",
            backoff_first_ms=backoff_first_ms,
            backoff_ms_max=backoff_ms_max,
            spread=spread,
        )
        self._masters = masters
        masters.on_moved(self.move)

    def move(self, address: str) -> None:
        """The master is at this address now: leave any other. Without an address: there may be one now."""
        if self._current is None:
            self.hurry()
        elif address and self._current.address != address:
            self.drop(f"the master is {address} now")

    async def request(self, command: Command, timeout_ms: int = REQUEST_TIMEOUT_MS) -> Command:
        """Send a request to the master and wait for its answer, within the time limit however often it moves."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_ms / 1000
        while True:
            left_ms = int((deadline - loop.time()) * 1000)
            if left_ms <= 0:
                raise RequestTimeout(command.code, self.address, timeout_ms)
            connection = await self.wait_up(left_ms)
            if connection.closed:
                await asyncio.sleep(0)  # it was given up in this turn
                continue
            response = await self._asked(connection, _copy(command), left_ms)
            refusal = not_master(response)
            if refusal is None:
                return response
            self.leave(connection.address, refusal)
            if refusal.is_begun:
                raise refusal

    async def _asked(self, connection: Connection, command: Command, timeout_ms: int) -> Command:
        try:
            return await connection.request(command, timeout_ms)
        except RequestTimeout:
            self._masters.check()  # a broker that stands still says nothing of the one that took its place
            raise

    def call(self, command: Command, answered: Answered, timeout_ms: int = REQUEST_TIMEOUT_MS) -> None:
        """As that of any connection; a refusal because it is not the master comes as `NotMaster`."""

        by = "" if self._current is None else self._current.address

        def judged(response: Command | None, error: Exception | None) -> None:
            refusal = None if response is None else not_master(response)
            if refusal is not None:
                self.leave(by, refusal)
                answered(None, refusal)
            else:
                answered(response, error)

        super().call(command, judged, timeout_ms)

    def leave(self, by: str, refusal: NotMaster) -> None:
        """This broker is not the master: dial who is, after a pause while nobody knows."""
        current = self._current
        self._masters.refused(refusal, by)
        if current is None or current.address != by:
            return
        if self._masters.address not in ("", by):
            self.drop(str(refusal))
        else:
            current.abort(str(refusal))


def _copy(command: Command) -> Command:
    """A command is given away with each attempt."""
    return Command(command.code, flag=command.flag, fields=dict(command.fields), body=command.body)
