"""Three controllers as processes, clients that ask the leader, and the account of the answers they got."""

from __future__ import annotations

import asyncio
import time
import urllib.error
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from remoting.client.connection import SocketConnection, connect
from remoting.protocol.bodies.controller_body import SyncStateData, decode_body
from remoting.protocol.frames.commands import Command
from remoting.transport.failures import ConnectionLost, RequestTimeout, Unreachable
from tests.processes.forked_controller import ForkedController
from tests.processes.rig import Server
from tests.support.ports import free_port

DEADLINE_S = 60.0
REQUEST_MS = 4_000
PAUSE_S = 0.005


class ControllerProcess(Server):
    """One of them, on the same ports at every start."""

    def __init__(self, directory: Path, node_id: str, port: int) -> None:
        super().__init__(directory / node_id)
        self.node_id = node_id
        self.port = port

    def start(self) -> None:
        """Start and wait until it listens."""
        port = ["--remoting-port", str(self.port), "--admin-port", "0"]
        self.ports = self.launch("controller", "--data", str(self.data), *port)

    @property
    def running(self) -> bool:
        """Whether its process is there."""
        return self.process is not None and self.process.poll() is None


class Controllers:
    """A set of controllers, their data side by side in a folder."""

    def __init__(self, folder: Path, count: int = 3, *, forked: bool = False, **settings: int | str) -> None:
        """`forked`: without a command line of their own, started in milliseconds."""
        kind = ForkedController if forked else ControllerProcess
        self.processes = [kind(folder, f"n{each}", free_port()) for each in range(1, count + 1)]
        self.raft_ports = [free_port() for _ in self.processes]
        peers = ",".join(
            f"{each.node_id}@127.0.0.1:{each.port}@{raft}"
            for each, raft in zip(self.processes, self.raft_ports, strict=True)
        )
        for each in self.processes:
            if isinstance(each, ForkedController):
                each.settings |= {"peers": tuple(peers.split(",")), **settings}
                continue
            each.variables = {
                "LIGHTMQ_CONTROLLER__PEERS": peers,
                "LIGHTMQ_CONTROLLER__NODE_ID": each.node_id,
                **{f"LIGHTMQ_CONTROLLER__{name.upper()}": str(value) for name, value in settings.items()},
            }

    def start(self) -> None:
        """Start those that are not running."""
        for each in self.processes:
            if not each.running:
                each.start()

    def wait_ready(self) -> None:
        """Wait until each knows the leader and may vote; before that, two of three depend on the third."""
        deadline = time.monotonic() + DEADLINE_S
        while not all(map(_is_ready, self.processes)):
            assert time.monotonic() < deadline, "not every controller became ready"
            time.sleep(PAUSE_S)

    def kill_if_running(self) -> None:
        """At the end of a test, whatever its outcome."""
        for each in self.processes:
            each.kill_if_running()

    async def leader(self) -> ControllerProcess | ForkedController:
        """The leader, once there is one that answers a read."""
        client = Asker(self)
        try:
            await client.ask(1006, b"[]")
            return next(each for each in self.processes if each.port == client.port)
        finally:
            await client.close()


def _is_ready(one: ControllerProcess | ForkedController) -> bool:
    assert isinstance(one, ControllerProcess)
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{one.ports['admin']}/readyz", timeout=30) as page:
            return bool(page.status == 200)
    except urllib.error.HTTPError:
        return False


class Listening(Protocol):
    """A process that answers at a port."""

    port: int


class Group(Protocol):
    """Controllers that a client may ask, as they are at the moment."""

    @property
    def processes(self) -> Sequence[Listening]:
        """Those that are members."""
        ...


class Asker:
    """A client of the controllers: finds the leader and repeats a request until it is answered."""

    def __init__(self, controllers: Group) -> None:
        self._controllers = controllers
        self._connection: SocketConnection | None = None
        self.port = controllers.processes[0].port

    async def ask(self, code: int, body: bytes = b"", **fields: str) -> Command:
        """The leader's answer."""
        async with asyncio.timeout(DEADLINE_S):
            while True:
                answer = await self._try(Command(code, fields=dict(fields), body=body))
                if answer is not None and answer.code not in (2007, 2, 1):
                    return answer
                await self._turn(answer)

    async def close(self) -> None:
        """Close."""
        if self._connection is not None:
            await self._connection.close()
            self._connection = None

    async def _try(self, command: Command) -> Command | None:
        try:
            if self._connection is None or self._connection.closed:
                self._connection = await connect("127.0.0.1", self.port, timeout_ms=1_000)
            return await self._connection.request(command, REQUEST_MS)
        except (ConnectionLost, RequestTimeout, Unreachable, OSError):
            return None

    async def _turn(self, answer: Command | None) -> None:
        """Connect to the controller that was named, or to the next one."""
        address = answer.fields.get("leaderAddress") if answer is not None else None
        if address is not None:
            port = int(address.rpartition(":")[2])
        else:
            ports = [each.port for each in self._controllers.processes]
            place = ports.index(self.port) if self.port in ports else -1
            port = ports[(place + 1) % len(ports)]
            await asyncio.sleep(PAUSE_S)
        if port != self.port:
            await self.close()
            self.port = port


class IdTaker:
    """Takes broker ids one after the other; every answered one stays in the account."""

    IDS_PER_GROUP = 60

    def __init__(self, controllers: Group, name: str) -> None:
        self._asker = Asker(controllers)
        self._name = name
        self._task: asyncio.Task[None] | None = None
        self.asked = 0
        self.answered: list[tuple[str, int]] = []
        self.times: list[tuple[float, float]] = []
        """(asked, answered) of each."""

    def begin(self) -> None:
        """Take ids until `end`."""
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def end(self) -> None:
        """Stop after the id that is being taken."""
        assert self._task is not None
        self.ending = True
        await self._task
        await self._asker.close()

    async def take(self) -> None:
        """One id."""
        group, number = divmod(self.asked, self.IDS_PER_GROUP)
        self.asked += 1
        name, begun = f"{self._name}-{group}", time.monotonic()
        identity = {"clusterName": "C", "brokerName": name, "appliedBrokerId": str(number + 1)}
        answer = await self._asker.ask(1013, **identity, registerCheckCode=f"{name}-{number}")
        assert answer.code == 0, (answer.code, answer.remark, name, number)
        self.answered.append((name, number + 1))
        self.times.append((begun, time.monotonic()))

    ending = False

    async def _run(self) -> None:
        while not self.ending:
            await self.take()


async def known_ids(controllers: Group) -> set[tuple[str, int]]:
    """Every id the leader knows."""
    asker = Asker(controllers)
    try:
        body = (await asker.ask(1006, b"[]")).body
    finally:
        await asker.close()
    table = decode_body(body, SyncStateData).replicas_info_table
    return {(name, each.broker_id) for name, state in table.items() for each in state.not_in_sync_replicas}
