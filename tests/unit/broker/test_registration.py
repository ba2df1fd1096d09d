"""A controller that is away, comes, goes and comes back always ends up knowing this broker."""

from __future__ import annotations

import asyncio

from broker.registration import Registration
from remoting import inprocess
from remoting.protocol.codes import RequestCode
from remoting.protocol.commands import Command
from remoting.protocol.route_body import RegisterBrokerBody, decode_body
from remoting.transport.failures import ConnectionLost


class Controller:
    def __init__(self) -> None:
        self.away = True
        self.requests: list[Command] = []
        self.connections: list[inprocess.InProcessConnection] = []

    async def connect(self, _address: str) -> inprocess.InProcessConnection:
        if self.away:
            raise ConnectionLost("away")
        self.connections.append(
            inprocess.connect(lambda _peer, command: self.requests.append(command) or command.reply())
        )
        return self.connections[-1]

    async def heard(self, code: int, count: int = 1) -> None:
        async with asyncio.timeout(5):
            while sum(command.code == code for command in self.requests) < count:
                await asyncio.sleep(0.005)


async def test_retry_register_change_loss_and_goodbye(running, monkeypatch) -> None:
    monkeypatch.setattr("broker.registration.RETRY_SECONDS", 0.01)
    controller = Controller()
    registration = Registration(running.broker, make_connection=controller.connect)
    assert registration.registered
    registration.start(("controller:1",))
    await asyncio.sleep(0.03)
    assert not registration.registered
    controller.away = False
    await controller.heard(RequestCode.REGISTER_BROKER)
    running.broker.topics.ensure("t", 3)
    await controller.heard(RequestCode.REGISTER_BROKER, 2)
    body = decode_body(controller.requests[-1].body, RegisterBrokerBody) if controller.requests[-1].body else None
    bodies = (
        [decode_body(c.body, RegisterBrokerBody) for c in controller.requests if c.body] if body is None else [body]
    )
    table = bodies[-1].topic_config_serialize_wrapper.topic_config_table
    assert table["t"].write_queue_nums == 3
    assert table["TBW102"].perm == 7
    controller.connections[-1].end("cut")
    await controller.heard(RequestCode.REGISTER_BROKER, 3)
    await registration.stop()
    assert controller.requests[-1].code == RequestCode.UNREGISTER_BROKER
