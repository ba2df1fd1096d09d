"""Running name servers with a clock the test moves, and the requests brokers send."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from controller.api import handlers
from controller.config import ControllerConfig
from controller.control_plane.control_plane import ControlPlane
from controller.name_server.name_server import MetadataFile, NameServer
from remoting import inprocess
from remoting.protocol.bodies.controller_body import (
    DataVersion,
    RegisterBrokerBody,
    TopicConfig,
    TopicConfigTable,
    encode_body,
)
from remoting.protocol.frames.commands import Command
from remoting.server.router import Router
from tests.support.clock import ManualClock
from tests.support.descriptors import closing_left_files


@pytest.fixture(autouse=True)
def left_files_closed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Nothing that a test opens stays open after it."""
    with closing_left_files(tmp_path_factory.getbasetemp()):
        yield


class World:
    """One name server, its clock, and connections to it."""

    def __init__(self, directory: Path, **config):
        self.clock = ManualClock()
        self.file = MetadataFile(directory)
        self.config = ControllerConfig(data_directory=directory, persist_pause_ms=0, **config)
        self.name_server = NameServer(self.config, self.clock, self.file)
        self.dialed = []
        self.plane = ControlPlane(self.config, self.clock, self.name_server, self.dial)
        self.masters = self.plane.masters
        self.router = Router(handlers(self.name_server, self.plane))
        self.connection = inprocess.connect(self.router)

    async def dial(self, address):
        """A broker without a connection of its own: its pushes are kept."""
        return inprocess.connect(lambda _peer, command: self.dialed.append((address, command)))

    async def replica(self, broker_id, connection=None, **fields):
        """Take an id and register; returns the answer. `fields` go into the registration."""
        identity = {"clusterName": "C", "brokerName": "g"}
        apply = {"appliedBrokerId": str(broker_id), "registerCheckCode": f"code-{broker_id}"}
        assert (await self.ask(1013, **identity, **apply)).code == 0
        address = {"brokerId": str(broker_id), "brokerAddress": f"h:{broker_id}", "haServerAddr": f"ha:{broker_id}"}
        address["bootId"] = f"boot-{broker_id}"
        command = Command(1003, fields={**identity, **address, **fields})
        return await (connection or self.connection).request(command, 2_000)

    async def beat(self, broker_id, connection=None, **fields):
        """A heartbeat of a replica."""
        identity = {"clusterName": "C", "brokerName": "g", "brokerId": str(broker_id), "brokerAddr": f"h:{broker_id}"}
        return await (connection or self.connection).request(Command(904, fields={**identity, **fields}), 2_000)

    async def ask(self, code, body=b"", **fields):
        return await self.connection.request(Command(code, fields=fields, body=body), 2_000)

    async def register(self, name="b", broker_id=0, address="h:1", topics=("t",), version=1, connection=None, **fields):
        table = TopicConfigTable({topic: TopicConfig(topic) for topic in topics}, DataVersion(0, 0, version))
        command = Command(
            103,
            fields={
                "clusterName": "C",
                "brokerName": name,
                "brokerId": str(broker_id),
                "brokerAddr": address,
                "haServerAddr": f"ha-{address}",
                **fields,
            },
            body=encode_body(RegisterBrokerBody(table)),
        )
        return await (connection or self.connection).request(command, 2_000)

    def pass_ms(self, milliseconds):
        """Time in which the name server ran: it ticks at its interval."""
        self._run(milliseconds, self.config.liveness_scan_ms, self.name_server.tick)

    def pass_elections_ms(self, milliseconds):
        """Time in which the control plane ran: the masters tick at their interval."""
        self._run(milliseconds, self.config.election_scan_ms, self.masters.tick)

    def _run(self, milliseconds, interval_ms, tick):
        tick()
        while milliseconds:
            step_ms = min(milliseconds, interval_ms)
            self.clock.advance_ms(step_ms)
            tick()
            milliseconds -= step_ms


@pytest.fixture
async def world(tmp_path):
    """A name server that writes its file."""
    world = World(tmp_path)
    await world.name_server.persister.start()
    await world.plane.engine.start()
    yield world
    await world.connection.close()
    await world.plane.stop()
    await world.name_server.persister.stop()


@pytest.fixture
def another(tmp_path):
    """Create another name server over the same directory, without its consensus."""
    return lambda **config: World(tmp_path, **config)
