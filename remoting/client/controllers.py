"""Connections to a set of controllers, and the search for their leader.

    begin ──▶ ask each address in turn ──leads──▶ found
                      │ names another one ──▶ that one is asked next
                      └ no answer, or no leader ──▶ the next address; asked last in the next search

`LeaderSearch` decides which controller to ask and does no I/O: `Controllers` carries it out on an event loop, the
command line with blocking sockets. TLS and access keys belong to the `Dial` that is passed in; connections are retried
with growing pauses of random length, so that many brokers do not dial a restarted controller in step.
Invariant: a controller counts as the leader only if it claims this itself, and each address is asked at most once per
search. Loop rule: `Controllers` on the loop's thread; `LeaderSearch` has one owner.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Sequence

from remoting.client.connection import PAUSE_FIRST_MS, ReconnectingConnection
from remoting.protocol.bodies.controller_body import LEADER_ADDRESS_FIELD, ControllerMetadata, from_fields
from remoting.protocol.errors import LightMQError
from remoting.protocol.frames.codes import RequestCode, ResponseCode
from remoting.protocol.frames.commands import Command
from remoting.transport.contracts import Connection, Dial, PushCallback
from remoting.transport.failures import ConnectionLost, RequestTimeout, checked

PAUSE_MS_MAX = 500
"""Longest pause between two attempts to reach a controller."""

Up = Callable[[str, Connection], None]
"""Called with a controller's address and the new connection to it."""
Down = Callable[[str, str], None]
"""Called with a controller's address and the reason: the connection was lost, or an attempt to make one failed."""


class LeaderSearch:
    """Which controller to ask next for the leader, and the result of the answers."""

    def __init__(self, addresses: Sequence[str]) -> None:
        self.leader = ""
        """The leader this search has found; empty until then."""
        self.named = ""
        """The address last named as the leader by another controller."""
        self.failures: dict[str, str] = {}
        """Per address asked in this search, why it did not help."""
        self._addresses = list(dict.fromkeys(addresses))
        self._waiting: list[str] = []

    def begin(self) -> None:
        """Start a search; a controller named as the leader since the last one is asked first."""
        self.leader, self.failures = "", {}
        self._waiting = list(dict.fromkeys(filter(None, (self.named, *self._addresses))))

    def next(self) -> str | None:
        """Return the address to ask for its metadata (1005); None when the leader is found or no address is left."""
        return None if self.leader or not self._waiting else self._waiting.pop(0)

    def answered(self, address: str, metadata: ControllerMetadata) -> None:
        """Process the answer of the controller at `address`."""
        if metadata.is_leader:
            self.leader, self.named = address, ""
            return
        named = metadata.controller_leader_address
        if not named:
            self.failures[address] = "it answers, but no controller leads: is more than half of them running?"
            return
        self.failures[address] = f"it names {named} as the leader"
        if named not in self.failures:
            self.named = named
            self._waiting = [named, *(each for each in self._waiting if each != named)]

    def failed(self, address: str, error: LightMQError) -> None:
        """Note that the controller at `address` cannot be reached or gave no usable answer."""
        self.failures[address] = str(error)
        if address == self.named:
            self.named = ""
        if address in self._addresses:
            self._addresses.remove(address)
            self._addresses.append(address)


def _spread() -> float:
    """Return a random factor that shortens a pause by up to half."""
    return 1 - os.urandom(1)[0] / 512


class Controllers:
    """A reconnecting connection to each controller; requests go to the leader."""

    def __init__(
        self,
        addresses: Sequence[str],
        dial: Dial,
        *,
        timeout_ms: int,
        pause_first_ms: int = PAUSE_FIRST_MS,
        pause_ms_max: int = PAUSE_MS_MAX,
    ) -> None:
        """`timeout_ms` limits each request; the pauses are those between attempts to connect."""
        self.leader = ""
        """Address of the leader; empty while unknown."""
        self._dial = dial
        self._timeout_ms = timeout_ms
        self._pauses_ms = pause_first_ms, pause_ms_max
        self._search = LeaderSearch(addresses)
        self._started = False
        self._up: list[Up] = []
        self._down: list[Down] = []
        self._pushed: list[PushCallback] = []
        self._lines: dict[str, ReconnectingConnection] = {}
        for address in addresses:
            self._line(address)

    @property
    def reachable(self) -> int:
        """Number of controllers connected."""
        return sum(line.up for line in self._lines.values())

    def on_up(self, callback: Up) -> None:
        """Call `callback(address, connection)` each time a connection is made."""
        self._up.append(callback)

    def on_down(self, callback: Down) -> None:
        """Call `callback(address, reason)` each time a connection is lost or cannot be made."""
        self._down.append(callback)

    def on_push(self, callback: PushCallback) -> None:
        """Call `callback(command)` for each push of any controller."""
        self._pushed.append(callback)

    def start(self) -> None:
        """Begin to connect, without waiting."""
        self._started = True
        for line in self._lines.values():
            line.start()

    async def stop(self) -> None:
        """Close every connection."""
        await asyncio.gather(*(line.close() for line in self._lines.values()))

    async def find_leader(self) -> bool:
        """Search for the leader; return False when there is none or it cannot be reached."""
        search = self._search
        search.begin()
        while (address := search.next()) is not None:
            try:
                search.answered(address, await self._metadata(address))
            except LightMQError as error:
                search.failed(address, error)
        self.leader = search.leader
        return bool(self.leader)

    async def ask(self, command: Command) -> Command:
        """Return the leader's answer, of any code but NOT_LEADER.

        Raises RequestTimeout, or ConnectionLost, also when no leader is known or the known one has lost its role.
        """
        line = self._lines.get(self.leader)
        if line is None or not line.up:
            self.leader = ""
            raise ConnectionLost("no leading controller is known")
        answer = await self._request(line, command)
        if answer.code == ResponseCode.CONTROLLER_NOT_LEADER:
            self.leader, self._search.named = "", answer.fields.get(LEADER_ADDRESS_FIELD, "")
            raise ConnectionLost(answer.remark or "this controller does not lead")
        return answer

    def call_all(self, make: Callable[[], Command | None], answered: Callable[[str, Command | None], None]) -> None:
        """Send a command from `make` to every connected controller; each needs its own.

        `answered(address, answer)` is called for each, with None when there is no answer.
        """
        for address, line in self._lines.items():
            command = make()
            if command is None or not line.up:
                continue

            def called(answer: Command | None, _error: Exception | None, address: str = address) -> None:
                answered(address, answer)

            line.call(command, called, self._timeout_ms)

    async def _metadata(self, address: str) -> ControllerMetadata:
        line = self._line(address)
        if address == self._search.named:
            await line.wait_up(self._timeout_ms)
        elif not line.up:
            raise ConnectionLost(f"{address} is not connected")
        answer = await self._request(line, Command(RequestCode.CONTROLLER_GET_METADATA_INFO))
        return from_fields(checked(answer).fields, ControllerMetadata)

    async def _request(self, line: ReconnectingConnection, command: Command) -> Command:
        """Return the answer; the connection to a controller that does not answer is closed and dialled again."""
        try:
            return await line.request(command, self._timeout_ms)
        except RequestTimeout as error:
            line.abort(str(error))
            raise

    def _line(self, address: str) -> ReconnectingConnection:
        """Return the connection to a controller; made if others name one that is not in the configuration."""
        line = self._lines.get(address)
        if line is not None:
            return line

        async def attempt() -> Connection:
            try:
                return await self._dial(address)
            except (LightMQError, OSError) as error:
                self._went_down(address, str(error))
                raise

        first_ms, ms_max = self._pauses_ms
        line = ReconnectingConnection(attempt, address, pause_first_ms=first_ms, pause_ms_max=ms_max, spread=_spread)
        line.on_up(lambda connection: self._came_up(address, connection))
        line.on_down(lambda reason: self._went_down(address, reason))
        line.on_push(self._push)
        self._lines[address] = line
        if self._started:
            line.start()
        return line

    def _came_up(self, address: str, connection: Connection) -> None:
        for callback in self._up:
            callback(address, connection)

    def _went_down(self, address: str, reason: str) -> None:
        for callback in self._down:
            callback(address, reason)

    def _push(self, command: Command) -> None:
        for callback in self._pushed:
            callback(command)
