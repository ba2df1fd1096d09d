"""A line to every controller: heartbeats to all of them, questions to the one that leads, roles pushed by it.

Each line is made again when it is lost. Heartbeats go to all, because each controller keeps its own account of who
lives and any of them may lead next. Whoever answers NOT_LEADER names the leader, if it knows one.
Invariant: losing all lines changes nothing here but who can be asked. Loop rule: all on the loop's thread.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from broker.roles.steps import KnownGroup
from remoting.client.reconnecting import ReconnectingConnection
from remoting.protocol.bodies.controller_body import (
    LEADER_ADDRESS_FIELD,
    ControllerMetadata,
    MasterHeader,
    SyncStateData,
    SyncStateSetBody,
    from_fields,
)
from remoting.protocol.bodies.route_body import decode_body
from remoting.protocol.errors import LightMQError
from remoting.protocol.frames.codes import RequestCode, ResponseCode
from remoting.protocol.frames.commands import Command
from remoting.transport.contracts import Dial
from remoting.transport.failures import ConnectionLost, checked

PAUSE_MS_MAX = 500
"""Longest pause between two attempts to reach a controller."""


class Controllers:
    """The controllers as one broker sees them."""

    def __init__(
        self,
        addresses: Sequence[str],
        connect: Dial,
        pushed: Callable[[Command], None],
        *,
        timeout_ms: int,
        log: Any,
        group: str = "",
    ) -> None:
        """`pushed` hears what a controller says on its own; `group` is the broker's own."""
        self._group = group
        self.leader = ""
        """Address of the controller that leads; empty while none is known."""
        self._timeout_ms = timeout_ms
        self._connect = connect
        self._pushed = pushed
        self._log = log
        self._lines: dict[str, ReconnectingConnection] = {}
        self._beats: Callable[[], Command | None] = lambda: None
        self._beaten: Callable[[str, Command | None], None] = lambda _address, _answer: None
        self._beating: asyncio.Task[None] | None = None
        for address in addresses:
            self._line(address)

    @property
    def reachable(self) -> int:
        """How many controllers there is a line to."""
        return sum(line.up for line in self._lines.values())

    def start(
        self,
        interval_ms: int,
        beats: Callable[[], Command | None],
        beaten: Callable[[str, Command | None], None],
    ) -> None:
        """Begin to connect and to send what `beats` makes; `beaten` hears the answers, None for none."""
        self._beats, self._beaten = beats, beaten
        for line in self._lines.values():
            line.start()
        self._beating = asyncio.get_running_loop().create_task(self._beat(interval_ms / 1_000))

    async def stop(self) -> None:
        """Leave all of them."""
        if self._beating is not None:
            self._beating.cancel()
            await asyncio.gather(self._beating, return_exceptions=True)
        await asyncio.gather(*(line.close() for line in self._lines.values()))

    async def find_leader(self) -> bool:
        """Ask who leads; True when there is one and a line to it."""
        for address in list(self._lines):
            line = self._lines[address]
            if not line.up:
                continue
            try:
                answer = await line.request(Command(RequestCode.CONTROLLER_GET_METADATA_INFO), self._timeout_ms)
                metadata = from_fields(answer.fields, ControllerMetadata) if answer.code == 0 else None
            except LightMQError:
                continue
            leader = address if metadata is None or metadata.is_leader else metadata.controller_leader_address
            if metadata is not None and leader:
                return await self._lead(leader)
        self.leader = ""
        return False

    async def ask(self, command: Command) -> Command:
        """The leader's answer. Raises ConnectionLost, also when it does not lead any more, or RequestTimeout."""
        line = self._lines.get(self.leader)
        if line is None or not line.up:
            self.leader = ""
            raise ConnectionLost("no leading controller is known")
        answer = await line.request(command, self._timeout_ms)
        if answer.code == ResponseCode.CONTROLLER_NOT_LEADER:
            self.leader = ""
            hint = answer.fields.get(LEADER_ADDRESS_FIELD, "")
            if hint:
                self._line(hint)
            raise ConnectionLost(answer.remark or "this controller does not lead")
        return answer

    async def group_size(self) -> int:
        """How many brokers the controllers know in this group. Raises LightMQError."""
        body = msgspec.json.encode([self._group])
        answer = checked(await self.ask(Command(RequestCode.CONTROLLER_GET_SYNC_STATE_DATA, body=body)))
        state = decode_body(answer.body, SyncStateData).replicas_info_table.get(self._group)
        return 0 if state is None else len(state.in_sync_replicas) + len(state.not_in_sync_replicas)

    def beat_now(self) -> None:
        """A heartbeat out of turn."""
        for address, line in self._lines.items():
            command = self._beats()
            if command is None or not line.up:
                continue

            def answered(answer: Command | None, _error: Exception | None, address: str = address) -> None:
                self._beaten(address, answer)

            line.call(command, answered, self._timeout_ms)

    async def _beat(self, interval_s: float) -> None:
        while True:
            try:
                self.beat_now()
            except LightMQError as error:
                self._log.info("heartbeat_not_sent", error=str(error))
            await asyncio.sleep(interval_s)

    async def _lead(self, leader: str) -> bool:
        line = self._line(leader)
        try:
            await line.wait_up(self._timeout_ms)
        except LightMQError:
            return False
        if leader != self.leader:
            self._log.info("controller_leads", address=leader)
        self.leader = leader
        return True

    def _line(self, address: str) -> ReconnectingConnection:
        """The line to a controller; one that others name and the configuration does not is kept as well."""
        line = self._lines.get(address)
        if line is None:
            line = self._lines[address] = ReconnectingConnection(
                lambda: self._connect(address),
                address,
                pause_ms_max=PAUSE_MS_MAX,
            )
            line.on_push(self._pushed)
            if self._beating is not None:
                line.start()
        return line


def with_set(view: KnownGroup, said: SyncStateSetBody) -> KnownGroup:
    """The same master with another set."""
    members = frozenset(said.sync_state_set)
    return KnownGroup(view.epoch, view.master, view.address, view.ha_address, members, said.sync_state_set_epoch)


def view_of(command: Command) -> KnownGroup:
    """What an answer to 1003 or 1004, or a push, says of the group. Raises RemoteViolation."""
    header = from_fields(command.fields, MasterHeader)
    said = decode_body(command.body, SyncStateSetBody) if command.body else SyncStateSetBody()
    master = header.master_broker_id if header.master_broker_id is not None and header.master_broker_id > 0 else None
    return KnownGroup(
        header.master_epoch,
        master,
        header.master_address or "",
        header.master_ha_address or "",
        frozenset(said.sync_state_set),
        max(said.sync_state_set_epoch, header.sync_state_set_epoch),
    )
