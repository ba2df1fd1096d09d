"""A `Connection` to the master of a broker group, whoever that is: its line moves to the new one by itself.

A request that a broker refused because it is not the master was not carried out: it is made again at the master, within
its own time limit. One that was begun while the broker ceased to be it ends in `NotMaster`, a `ConnectionLost`: nobody
knows, as when a connection breaks.
Invariant: no answer NOT_MASTER reaches a caller. Loop rule: all on the loop's thread.
"""

from __future__ import annotations

import asyncio

from remoting.client.masters import Masters
from remoting.client.reconnecting import ReconnectingConnection
from remoting.protocol.frames.commands import Command
from remoting.transport.contracts import REQUEST_TIMEOUT_MS, Answered, CloseCallback, Connection, PushCallback
from remoting.transport.failures import NotMaster, RequestTimeout, not_master


class MasterConnection:
    """Requests to the master, over a line that `masters` dials."""

    def __init__(self, line: ReconnectingConnection, masters: Masters) -> None:
        self.address = line.address
        self._line = line
        self._masters = masters
        masters.on_moved(self._moved)

    @property
    def closed(self) -> bool:
        """True after `close`; a connection that is merely down is not closed."""
        return self._line.closed

    @property
    def writable(self) -> bool:
        """False while it is down or its output is above the limit."""
        return self._line.writable

    async def request(self, command: Command, timeout_ms: int = REQUEST_TIMEOUT_MS) -> Command:
        """Send a request to the master and wait for its answer, within the time limit however often it moves."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_ms / 1000
        while True:
            left_ms = int((deadline - loop.time()) * 1000)
            if left_ms <= 0:
                raise RequestTimeout(command.code, self.address, timeout_ms)
            connection = await self._line.wait_up(left_ms)
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
        by = self._line.connected_to

        def judged(response: Command | None, error: Exception | None) -> None:
            refusal = None if response is None else not_master(response)
            if refusal is not None:
                self.leave(by, refusal)
                answered(None, refusal)
            else:
                answered(response, error)

        self._line.call(command, judged, timeout_ms)

    def oneway(self, command: Command) -> None:
        """Send a request that gets no answer; `ConnectionLost` while it is down."""
        self._line.oneway(command)

    def on_push(self, callback: PushCallback) -> None:
        """Call `callback(command)` for each push of this master and of all later ones."""
        self._line.on_push(callback)

    def on_close(self, callback: CloseCallback) -> None:
        """Call `callback(reason)` when it is closed for good."""
        self._line.on_close(callback)

    def abort(self, reason: str) -> None:
        """Give the present connection up; another one is made after a pause."""
        self._line.abort(reason)

    async def close(self) -> None:
        """Close the line for good."""
        await self._line.close()

    def leave(self, by: str, refusal: NotMaster) -> None:
        """The broker at `by` is not the master: dial who is, after a pause while nobody knows."""
        is_there = self._line.connected_to == by
        self._masters.refused(refusal, by)
        if not is_there:
            return
        if self._masters.address not in ("", by):
            self._line.drop(str(refusal))
        else:
            self._line.abort(str(refusal))

    def _moved(self, address: str) -> None:
        """The master is at this address now: leave any other. Without an address: there may be one now."""
        if not self._line.up or (address and self._line.connected_to != address):
            self._line.drop(f"the master is {address} now")


def _copy(command: Command) -> Command:
    """A command is given away with each attempt."""
    return Command(command.code, flag=command.flag, fields=dict(command.fields), body=command.body)
