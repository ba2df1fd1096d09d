"""One way to the broker: at its address, in this process, or to whoever is the master."""

from __future__ import annotations

import asyncio

import pytest

from remoting import inprocess
from remoting.client.master_connection import MasterConnection
from remoting.client.masters import Masters
from remoting.client.uplink import Uplink
from remoting.protocol.frames.commands import Command
from remoting.transport.failures import ConnectionLost, NotMaster

REFUSAL = NotMaster(Command(9101, remark="a replica"))


def echo(peer, command):
    return command.reply(body=command.body)


async def dial(address):
    connection = inprocess.connect(echo)
    connection.address = address
    return connection


async def test_one_broker_by_its_address():
    """It stays with it: who says that it is not the master is left, not without a pause, and dialled again."""
    uplink = Uplink.configured(dial, "b:1", (), "", pause_first_ms=1)
    uplink.leave("b:1", REFUSAL)  # nobody is there yet
    uplink.start()
    assert (await uplink.connection.request(Command(1, body=b"x"))).body == b"x"
    assert uplink.connection is uplink.line
    downs, ups = asyncio.Queue(), asyncio.Queue()
    uplink.line.on_down(downs.put_nowait)
    uplink.line.on_up(ups.put_nowait, at_once=False)
    uplink.leave("elsewhere:1", REFUSAL)
    assert uplink.line.connected_to == "b:1"
    uplink.leave("b:1", REFUSAL)
    assert await downs.get() == "a replica"
    assert (await ups.get()).address == "b:1"
    await uplink.close()
    assert uplink.connection.closed


async def test_a_broker_of_this_process_is_not_dialled():
    """When it has stopped there is no other."""
    present = inprocess.connect(echo)
    uplink = Uplink.configured(dial, "b:1", ("c:1",), "g", present=present, pause_first_ms=1)
    uplink.start()
    assert await uplink.line.wait_up(5_000) is present
    await present.close()
    with pytest.raises(ConnectionLost, match="of this process has stopped"):
        await uplink.line.wait_up(50)
    await uplink.close()


async def test_the_master_of_a_group_is_followed():
    """Whoever is named is dialled; what it says of itself counts against it."""
    masters = Masters(["c:1"], "g", dial=dial)
    uplink = Uplink(lambda: dial("nobody"), masters=masters, pause_first_ms=1)
    assert isinstance(uplink.connection, MasterConnection)
    assert not uplink.connection.writable
    masters.told("a:1", 1)
    uplink.line.start()
    assert (await uplink.line.wait_up(5_000)).address == "a:1"
    assert uplink.connection.writable
    pushes = []
    uplink.connection.on_push(pushes.append)
    moved = asyncio.Queue()
    uplink.line.on_up(moved.put_nowait, at_once=False)
    masters.told("b:1", 2)
    assert (await moved.get()).address == "b:1"
    uplink.leave("b:1", REFUSAL)
    masters.told("a:1", 3)
    assert (await moved.get()).address == "a:1"
    uplink.connection.oneway(Command(1))
    closed = asyncio.Queue()
    uplink.connection.on_close(closed.put_nowait)
    uplink.connection.abort("for the test")
    assert (await moved.get()).address == "a:1"
    await uplink.connection.close()
    assert await closed.get() == "closed by this side"
    await uplink.close()
