"""A master that was paused and replaced gives no outdated answer; one that was not replaced continues."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Awaitable
from pathlib import Path

import pytest

from remoting.client.connection import connect
from remoting.client.consumer import AsyncConsumer
from remoting.protocol.bodies.pull_body import QueueBoundsRequest, decode_bounds_reply, encode_bounds_request
from remoting.protocol.errors import Refused
from remoting.protocol.frames.codes import RequestCode, ResponseCode
from remoting.protocol.frames.commands import Command
from remoting.transport.failures import ConnectionLost, checked
from tests.processes.broker_group import Broker, BrokerGroup, until
from tests.processes.rig import Client

pytestmark = [pytest.mark.processes, pytest.mark.timeout(300)]
TOPIC = "made"
PARKED_MS = 1_500
"""Less than it takes until another master is elected."""
ANSWER_S = 30


def signalled(broker: Broker, number: signal.Signals) -> None:
    assert broker.process is not None
    broker.process.send_signal(number)


async def reader(broker: Broker, queue: int) -> AsyncConsumer:
    """A consumer with a connection of its own to this broker."""
    return AsyncConsumer(await connect("127.0.0.1", broker.ports["remoting"]), "readers", TOPIC, queue)


async def queue_written(broker: Broker) -> int:
    """The queue of the one MQTT topic."""
    queues = decode_bounds_reply((await bounds(broker)).body).queues
    return max(queues, key=lambda each: each.max).queue


async def bounds(broker: Broker) -> Command:
    connection = await connect("127.0.0.1", broker.ports["remoting"])
    body = encode_bounds_request(QueueBoundsRequest(topics=[TOPIC]))
    return checked(await connection.request(Command(RequestCode.QUEUE_BOUNDS, body=body), ANSWER_S * 1_000))


async def outcome(read: Awaitable[object]) -> object:
    """How a read ended."""
    try:
        return await asyncio.wait_for(read, ANSWER_S)
    except (Refused, ConnectionLost) as error:
        return error


async def publish(group: BrokerGroup) -> None:
    """Publish a message until the present master acknowledges it."""

    def sent() -> bool:
        try:
            client = Client(group.proxy, "writer")
            try:
                client.publish(f"{TOPIC}/x", b"a message")
            finally:
                client.close()
        except (AssertionError, OSError, RuntimeError):  # no master yet
            return False
        return True

    await asyncio.to_thread(until, sent, "no broker accepts a message")


async def read_after_a_pause(group: BrokerGroup) -> None:
    await publish(group)
    old = await asyncio.to_thread(group.settle)
    queue = await queue_written(old)
    asking = [await reader(old, queue) for _ in range(3)]
    end = await asking[0].max_offset()
    assert end > 0
    parked = [asyncio.create_task(outcome(each.pull(end, wait_ms=PARKED_MS))) for each in asking[1:]]
    asked = asyncio.create_task(outcome(asking[0].max_offset()))
    assert await asked == end  # the pulls on the other connections arrived before it
    signalled(old, signal.SIGSTOP)
    await publish(group)  # returns when another master has acknowledged it
    reads = [asking[0].max_offset(), asking[0].pull(end, wait_ms=0), asking[0].pull(0, wait_ms=0)]
    waiting = [asyncio.create_task(outcome(each)) for each in reads]
    late = [asyncio.create_task(outcome(bounds(old))) for _ in range(2)]
    await asyncio.sleep(0.2)  # in the sockets of the paused process
    signalled(old, signal.SIGCONT)
    found = await asyncio.gather(*waiting, *late, *parked)
    assert all(isinstance(each, Refused | ConnectionLost) for each in found), found
    codes = {each.code for each in found if isinstance(each, Refused)}
    assert codes <= {ResponseCode.NOT_MASTER, ResponseCode.SERVICE_NOT_AVAILABLE}, found
    new = await asyncio.to_thread(group.settle)
    assert new is not old
    assert await (await reader(new, queue)).max_offset() > end


def test_a_replaced_master_shows_no_old_end_of_a_queue(tmp_path: Path) -> None:
    """Neither to requests that waited in its sockets, nor to parked ones past their deadline, nor to new ones."""
    group = BrokerGroup(tmp_path, brokers=3)
    try:
        group.start()
        asyncio.run(read_after_a_pause(group))
    finally:
        group.end()


async def go_on_without_controllers(group: BrokerGroup) -> None:
    await publish(group)
    master = await asyncio.to_thread(group.settle)
    queue = await queue_written(master)
    end = await after_connecting(master, queue)
    for controller in group.controllers:
        await asyncio.to_thread(controller.kill)
    signalled(master, signal.SIGSTOP)
    await asyncio.sleep(2)
    signalled(master, signal.SIGCONT)
    deadline = time.monotonic() + ANSWER_S
    while (found := await outcome(after_connecting(master, queue))) != end:
        assert isinstance(found, Refused | ConnectionLost), found
        assert time.monotonic() < deadline, "it is in doubt for ever"
        await asyncio.sleep(0.05)
    log = master.log.read_text()
    assert "stood_still" in log
    assert "still_the_master" in log
    await publish(group)


async def after_connecting(broker: Broker, queue: int) -> int:
    return await (await reader(broker, queue)).max_offset()


def test_without_controllers_the_members_in_sync_end_the_doubt(tmp_path: Path) -> None:
    """No member has to return for a group to continue after a pause."""
    group = BrokerGroup(tmp_path, brokers=3)
    try:
        group.start()
        asyncio.run(go_on_without_controllers(group))
    finally:
        group.end()
