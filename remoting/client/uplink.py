"""The connection of a process to its broker: one broker by its address, or the master of a group, kept up.

    line        makes the connection again whenever it is lost, and tells when it is up and when it is down
    connection  what requests go through: the line itself, or one that makes them at whoever is the master
    masters     who that is; None where one broker is meant

Invariant: nothing is waited for: what is asked while the line is down waits for it within its own time limit. Loop
rule: all on the loop's thread.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

from remoting.client.master_connection import MasterConnection
from remoting.client.masters import Masters
from remoting.client.reconnecting import PAUSE_FIRST_MS, PAUSE_MS_MAX, ReconnectingConnection
from remoting.transport.contracts import Connection, Dial
from remoting.transport.failures import ConnectionLost, NotMaster

MASTER_PAUSE_FIRST_MS = 10
"""First pause: who has just been elected is told of it at the same moment as we are, and takes its role at once."""

MASTER_PAUSE_MS_MAX = 500
"""Longest pause between two attempts: a group without a master has one within seconds."""


class Uplink:
    """`start` begins to connect, `close` ends it for good."""

    def __init__(
        self,
        dial: Callable[[], Awaitable[Connection]],
        name: str = "the broker",
        *,
        masters: Masters | None = None,
        pause_first_ms: int = PAUSE_FIRST_MS,
        pause_ms_max: int = PAUSE_MS_MAX,
    ) -> None:
        """`dial` makes a connection to the broker `name`; with `masters` these say whom to dial, sooner than asked."""
        self._masters = masters
        self._master: MasterConnection | None = None
        if masters is None:
            self.line = ReconnectingConnection(dial, name, pause_first_ms=pause_first_ms, pause_ms_max=pause_ms_max)
            self.connection: Connection = self.line
            return
        self.line = ReconnectingConnection(
            masters.dial,
            f"the master of {masters.broker_name or 'the group'}",
            pause_first_ms=min(pause_first_ms, MASTER_PAUSE_FIRST_MS),
            pause_ms_max=min(pause_ms_max, MASTER_PAUSE_MS_MAX),
        )
        self.connection = self._master = MasterConnection(self.line, masters)

    @classmethod
    def configured(
        cls,
        dial: Dial,
        address: str,
        controllers: Sequence[str],
        broker_name: str,
        *,
        present: Connection | None = None,
        pause_first_ms: int = PAUSE_FIRST_MS,
        pause_ms_max: int = PAUSE_MS_MAX,
    ) -> Uplink:
        """To the broker at `address`; without one to the master of the group that `controllers` name.

        `present` is a connection to a broker of this process, which there is no other way to.
        """

        async def dial_broker() -> Connection:
            if present is None:
                return await dial(address)
            if present.closed:
                raise ConnectionLost("the broker of this process has stopped")
            return present

        name, masters = address or "the broker", None
        if present is None and not address:
            masters = Masters(controllers, broker_name, dial=dial)
        return cls(dial_broker, name, masters=masters, pause_first_ms=pause_first_ms, pause_ms_max=pause_ms_max)

    def start(self) -> None:
        """Begin to connect; waits for nothing."""
        if self._masters is not None:
            self._masters.start()
        self.line.start()

    def leave(self, by: str, refusal: NotMaster) -> None:
        """The broker at `by` is not the master of its group: dial again, after a pause."""
        if self._master is not None:
            self._master.leave(by, refusal)
        elif self.line.connected_to == by:
            self.line.abort(str(refusal))

    async def close(self) -> None:
        """Close the connection, and those to the controllers."""
        await self.line.close()
        if self._masters is not None:
            await self._masters.stop()
