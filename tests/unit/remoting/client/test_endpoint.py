"""One broker by its address, or the master of a group; nothing is waited for, and all is closed at the end."""

from __future__ import annotations

import pytest

from remoting.client.endpoint import Endpoint, connect
from remoting.client.uplink import MasterConnection
from remoting.protocol.bodies.controller_body import PushedGroup, PushedRoutes
from remoting.protocol.bodies.route_body import encode_body
from remoting.protocol.errors import LocalMisuse
from remoting.protocol.frames.codes import RequestCode
from remoting.protocol.frames.commands import Command
from remoting.server.server import RemotingServer
from remoting.transport.failures import ConnectionLost

NOBODY = "127.0.0.1:1"


def test_either_an_address_or_controllers() -> None:
    for address, controllers in (("", ()), (NOBODY, (NOBODY,))):
        with pytest.raises(LocalMisuse, match="either"):
            Endpoint(address, controllers)
    with pytest.raises(ValueError, match="nowhere"):
        Endpoint(controllers=[NOBODY, "nowhere"])


async def test_a_connection_to_one_broker() -> None:
    server = RemotingServer(lambda peer, command: command.reply(body=command.body))
    address = f"127.0.0.1:{await server.start('127.0.0.1', 0)}"
    async with connect(address) as connection:
        assert (await connection.request(Command(1, body=b"x"))).body == b"x"
    assert connection.closed
    await server.stop()


async def test_a_connection_to_the_master_of_a_group() -> None:
    """The controllers say who it is."""

    def handler(peer, command):
        if command.code == RequestCode.SUBSCRIBE_ROUTES:
            return command.reply(body=encode_body(PushedRoutes({"g": PushedGroup("C", {0: address}, 1)})))
        return command.reply(body=b"from the master")

    server = RemotingServer(handler)
    address = f"127.0.0.1:{await server.start('127.0.0.1', 0)}"
    async with connect(controllers=[address], broker_name="g") as connection:
        assert isinstance(connection, MasterConnection)
        assert (await connection.request(Command(1))).body == b"from the master"
    await server.stop()


async def test_nobody_there_is_waited_for_by_who_asks() -> None:
    async with connect(NOBODY) as connection:
        with pytest.raises(ConnectionLost, match="is down"):
            await connection.request(Command(1), 20)
