"""A client's connection to the master, over simulated time: what TCP is, without bytes.

A `Door` belongs to one client and dials the machine that leads whenever it has no connection. Commands arrive in order,
after a while; when the process of the other end is gone, what was asked has no answer. Invariant: handlers run as
callbacks of the broker's loop, answers and pushes as callbacks of the client's.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from itertools import count
from typing import TYPE_CHECKING, Any

from remoting.protocol.frames.commands import FLAG_ONEWAY, Command
from remoting.transport.calls import answer
from tests.sim.consumers.door import NoAnswer
from tests.sim.whole.loop import Host

if TYPE_CHECKING:
    from tests.sim.rooms.group import Group, Machine

DELAY_S = (0.0002, 0.003)
TIMEOUT_S = 3.0
SHOWN_BYTES = 160
"""Of a body, in the trace."""


class LinePeer:
    """The client as the router sees it."""

    loopback = True
    writable = True

    def __init__(self, line: Line) -> None:
        self.address = f"127.0.3.1:{line.number}"
        self.attributes: dict[str, object] = {}
        self._line = line
        self._closed: list[Callable[[str], object]] = []

    def send(self, command: Command) -> None:
        """An answer or a push."""
        self._line.to_client(command)

    def close(self, reason: str) -> None:
        """The broker ends the connection."""
        self._line.end(reason)

    def on_close(self, callback: Callable[[str], object]) -> None:
        """Called when the client has closed it."""
        self._closed.append(callback)

    def ended(self, reason: str) -> None:
        """The client has closed it."""
        callbacks, self._closed = self._closed, []
        for each in callbacks:
            each(reason)


class Line:
    """One connection."""

    numbers = count(1)

    def __init__(self, group: Group, machine: Machine, door: Door) -> None:
        self.number = next(self.numbers)
        self._group, self._machine, self._boot, self._door = group, machine, machine.boot, door
        self.is_open = True
        self.peer = LinePeer(self)
        self._latest = {True: 0.0, False: 0.0}
        group.lines.append(self)

    def _push(self, host: Host, call: Callable[..., object], *arguments: object) -> None:
        """Let something arrive at an end, behind what was sent there before."""
        loop = host.loop
        if loop is None:
            return
        world, to_client = self._group.world, host is self._door.host
        when = world.now + world.chance.uniform(*DELAY_S) + self._group_delay()
        when = self._latest[to_client] = max(when, self._latest[to_client] + 1e-6)
        world.push(when, host, asyncio.Handle(call, arguments, loop, None))

    def _group_delay(self) -> float:
        delay_s: float = getattr(self._group, "delay_s", 0.0)
        return delay_s * self._group.world.chance.random() if delay_s else 0.0

    def to_broker(self, command: Command) -> None:
        """Send a command."""
        if self.is_open and self._machine.boot == self._boot:
            self._push(self._machine, self._arrived, command)

    def _arrived(self, command: Command) -> None:
        router = self._machine.router
        if router is not None and self.is_open:
            self._tell("asks", command)
            answer(router, self.peer, command)  # type: ignore[arg-type]

    def _tell(self, what: str, command: Command) -> None:
        world = self._group.world
        if world.trace is not None:
            shown = command.fields or bytes(command.body[:SHOWN_BYTES])
            world.tell(f"#{self.number}", f"{what} {command.code} {command.opaque} {command.remark or ''} {shown!r}")

    def to_client(self, command: Command) -> None:
        """Send an answer or a push."""
        if self.is_open:
            self._tell("is told", command)
            self._push(self._door.host, self._door.received, self, command)

    def end(self, reason: str) -> None:
        """Close it, from whichever end."""
        if self.is_open:
            self.is_open = False
            if self in self._group.lines:
                self._group.lines.remove(self)
            self._push(self._door.host, self._door.lost, self, reason)
            if self._machine.boot == self._boot:
                self._push(self._machine, self.peer.ended, reason)

    def broke(self, machine: Machine) -> None:
        """The broker's process is gone."""
        if self._machine is machine and self.is_open:
            self.is_open = False
            self._push(self._door.host, self._door.lost, self, "the broker is gone")


class Door:
    """One client's way to the master."""

    def __init__(self, group: Group, host: Host) -> None:
        self.group, self.host = group, host
        self.generation = 1
        """Counts connections: one more whenever one is lost."""
        self.on_push: Callable[[Command], object] = lambda _command: None
        self.on_lost: Callable[[], object] = lambda: None
        self._line: Line | None = None
        self._opaque = 0
        self._asked: dict[int, asyncio.Future[Command]] = {}

    async def ask(self, code: int, fields: dict[str, Any] | None = None, body: bytes = b"") -> Command:
        """Send a request to the master and wait for its answer. Raises NoAnswer: the outcome is unknown."""
        line = self._dialled()
        self._opaque += 1
        command = Command(code, fields={name: str(value) for name, value in (fields or {}).items()}, body=body)
        command.opaque = self._opaque
        future: asyncio.Future[Command] = asyncio.get_running_loop().create_future()
        self._asked[command.opaque] = future
        line.to_broker(command)
        timer = asyncio.get_running_loop().call_later(TIMEOUT_S, self._late, command.opaque)
        try:
            return await future
        finally:
            timer.cancel()

    def tell(self, code: int, fields: dict[str, Any] | None = None, body: bytes = b"") -> None:
        """Send a request that has no answer, over the present connection. Raises NoAnswer: there is none."""
        if self._line is None:
            raise NoAnswer("not connected")
        command = Command(
            code, flag=FLAG_ONEWAY, fields={name: str(value) for name, value in (fields or {}).items()}, body=body
        )
        self._line.to_broker(command)

    def close(self) -> None:
        """End the connection from here."""
        if self._line is not None:
            self._line.end("closed by the client")

    def _dialled(self) -> Line:
        if self._line is None:
            machine = self.group.machine
            if not machine.is_serving or machine.is_paused:
                raise NoAnswer("nobody serves")
            self._line = Line(self.group, machine, self)
        return self._line

    def _late(self, opaque: int) -> None:
        future = self._asked.pop(opaque, None)
        if future is not None and not future.done():
            future.set_exception(NoAnswer("no answer in time"))

    def received(self, line: Line, command: Command) -> None:
        """The broker has sent something."""
        if line is not self._line:
            return
        if not command.is_response:
            self.on_push(command)
            return
        future = self._asked.pop(command.opaque, None)
        if future is not None and not future.done():
            future.set_result(command)

    def lost(self, line: Line, reason: str) -> None:
        """The connection has ended."""
        if line is not self._line:
            return
        self._line = None
        self.generation += 1
        asked, self._asked = self._asked, {}
        for future in asked.values():
            if not future.done():
                future.set_exception(NoAnswer(reason))
        self.on_lost()
