"""However a controller comes and goes, it ends up knowing this broker, and is sent only changes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from remoting import inprocess
from remoting.protocol.bodies.controller_body import DataVersion, RegisterBrokerBody, TopicConfigTable, decode_body
from remoting.protocol.frames.codes import RequestCode, ResponseCode
from remoting.protocol.frames.commands import Command
from remoting.transport.failures import ConnectionLost

SEND = {
    "a": "group", "c": "TBW102", "d": "4", "e": "0", "f": "0", "g": "0", "h": "0", "i": "", "j": "0",
}  # fmt: skip


class Controller:
    def __init__(self) -> None:
        self.away = True
        self.silent = False
        self.requests: list[Command] = []
        self.connections: list[inprocess.InProcessConnection] = []
        self.version = DataVersion()

    async def connect(self, _address: str) -> inprocess.InProcessConnection:
        if self.away:
            raise ConnectionLost("away")
        self.connections.append(inprocess.connect(self.answer))
        return self.connections[-1]

    def answer(self, _peer: object, command: Command) -> Command | None:
        self.requests.append(command)
        if self.silent:
            return None
        if command.code == RequestCode.REGISTER_BROKER:
            self.version = self.told(command).data_version
        if command.code == RequestCode.QUERY_DATA_VERSION:
            same = decode_body(command.body, DataVersion) == self.version
            return command.reply(fields={"changed": str(not same).lower()})
        return command.reply()

    @staticmethod
    def told(command: Command) -> TopicConfigTable:
        return decode_body(command.body, RegisterBrokerBody).topic_config_serialize_wrapper

    @property
    def tables(self) -> list[set[str]]:
        """The names of each registration so far."""
        registered = [command for command in self.requests if command.code == RequestCode.REGISTER_BROKER]
        return [set(self.told(command).topic_config_table) for command in registered]

    async def heard(self, condition: Callable[[], object]) -> None:
        async with asyncio.timeout(5):
            while not condition():
                await asyncio.sleep(0.005)

    async def registered(self, count: int) -> None:
        await self.heard(lambda: len(self.tables) >= count)


async def answer_to_send(running, topic: str) -> Command:
    connection = running.connect()
    reply = await connection.request(Command(RequestCode.SEND_MESSAGE_V2, fields=SEND | {"b": topic}, body=b"x"))
    await connection.close()
    return reply


async def test_retry_register_change_loss_and_goodbye(running, monkeypatch) -> None:
    monkeypatch.setattr("broker.registration.RETRY_MS", 10)
    controller = Controller()
    running.connect_controller = controller.connect
    registration = running.broker.registration
    assert registration.registered
    registration.start(("controller:1",))
    await asyncio.sleep(0.03)
    assert not registration.registered
    controller.away = False
    await controller.registered(1)
    assert controller.told(controller.requests[0]).topic_config_table["TBW102"].perm == 7
    running.broker.topics.table.ensure("t", 3)
    await controller.registered(2)
    config = controller.told(controller.requests[-1]).topic_config_table["t"]
    assert config.write_queue_nums == 3
    controller.connections[-1].end("cut")
    await controller.registered(3)
    assert controller.tables[2] == {"t", "TBW102"}
    await registration.stop()
    assert controller.requests[-1].code == RequestCode.UNREGISTER_BROKER


async def test_a_change_sends_the_changed_topics_alone(running) -> None:
    for number in range(50):
        running.broker.topics.table.ensure(f"old-{number}", 1)
    controller = Controller()
    controller.away = False
    running.connect_controller = controller.connect
    registration = running.broker.registration
    registration.start(("controller:1",))
    await controller.registered(1)
    assert len(controller.tables[0]) == 51
    running.broker.topics.table.ensure("new-1", 1)
    running.broker.topics.table.ensure("new-2", 1)
    await controller.heard(lambda: {"new-1", "new-2"} <= set().union(*controller.tables))
    assert all(table <= {"new-1", "new-2"} for table in controller.tables[1:])
    running.broker.topics.table.delete("new-1")
    running.broker.topics.table.ensure("new-3", 1)
    await controller.heard(lambda: {"new-3"} in controller.tables)
    await registration.stop()


async def test_everything_is_sent_again_only_where_the_versions_differ(running) -> None:
    object.__setattr__(running.broker.tools.config, "register_interval_ms", 100)
    object.__setattr__(running.config, "heartbeat_interval_ms", 20)
    controller = Controller()
    controller.away = False
    running.connect_controller = controller.connect
    registration = running.broker.registration
    registration.start(("controller:1",))
    running.broker.topics.table.ensure("t", 1)
    queries = lambda: sum(command.code == RequestCode.QUERY_DATA_VERSION for command in controller.requests)  # noqa: E731
    await controller.heard(lambda: queries() >= 2)
    told = len(controller.tables)
    assert told <= 2
    controller.version = DataVersion()
    await controller.registered(told + 1)
    assert controller.tables[-1] == {"t", "TBW102"}
    await registration.stop()


async def test_a_first_send_is_answered_when_every_controller_has_the_route(running) -> None:
    first, second = Controller(), Controller()
    first.away = second.away = False
    by_address = {"controller:1": first, "controller:2": second}
    running.connect_controller = lambda address: by_address[address].connect(address)
    registration = running.broker.registration
    registration.start(tuple(by_address))
    await asyncio.gather(first.registered(1), second.registered(1))
    for number in range(20):
        reply = await answer_to_send(running, f"new-{number}")
        assert reply.code == ResponseCode.SUCCESS
        for controller in by_address.values():
            assert f"new-{number}" in set().union(*controller.tables)
    assert not running.broker.topics.publication.pending
    await registration.stop()


async def test_a_controller_that_does_not_answer_delays_one_new_topic_only(running) -> None:
    object.__setattr__(running.broker.topics.publication, "_wait_s", 0.2)
    controller = Controller()
    controller.away = False
    running.connect_controller = controller.connect
    registration = running.broker.registration
    registration.start(("controller:1",))
    await controller.registered(1)
    controller.silent = True
    loop = asyncio.get_running_loop()
    took = []
    for topic in ("new-1", "new-1", "new-2"):
        began = loop.time()
        assert (await answer_to_send(running, topic)).code == ResponseCode.SUCCESS
        took.append(loop.time() - began)
    assert took[0] >= 0.2
    assert max(took[1:]) < 0.2
    assert running.broker.tools.metrics.unpublished.child("timeout").value == 1
    assert running.broker.tools.metrics.unpublished.child("unreachable").value == 1
    await registration.stop()


async def test_with_every_controller_dead_new_topics_are_accepted_at_once_and_counted(running, monkeypatch) -> None:
    monkeypatch.setattr("broker.registration.RETRY_MS", 10)
    controller = Controller()
    running.connect_controller = controller.connect
    registration = running.broker.registration
    registration.start(("controller:1",))
    await asyncio.sleep(0)
    assert (await answer_to_send(running, "new-1")).code == ResponseCode.SUCCESS
    assert (await answer_to_send(running, "new-2")).code == ResponseCode.SUCCESS
    assert running.broker.tools.metrics.unpublished.child("unreachable").value >= 1
    controller.away = False
    await controller.heard(lambda: {"new-1", "new-2", "TBW102"} in controller.tables)
    await registration.stop()


async def test_messages_that_wait_for_replicas_do_not_delay_the_registration(running, monkeypatch) -> None:
    """After the last topic nothing has to be confirmed: a master without replicas can still be read from."""
    controller = Controller()
    controller.away = False
    assert (await answer_to_send(running, "t")).code == ResponseCode.SUCCESS
    assert (await answer_to_send(running, "t")).code == ResponseCode.SUCCESS
    store, topics = running.broker.tools.store, running.broker.topics.table
    newest = max(topics.position(config.name) for config in topics)
    assert newest < store.end_position
    real = store.when_confirmed

    def held(position: int, done: Callable[[Exception | None], None]) -> None:
        if position <= newest:
            real(position, done)

    monkeypatch.setattr(type(store), "when_confirmed", lambda _store, position, done: held(position, done))
    running.connect_controller = controller.connect
    registration = running.broker.registration
    registration.start(("c:1",))
    await controller.registered(1)
    assert "t" in controller.tables[0]
    await registration.stop()


@pytest.mark.parametrize("turns", range(4))
async def test_a_change_at_the_same_moment_does_not_keep_it_from_stopping(running, turns: int) -> None:
    controller = Controller()
    controller.away = False
    running.connect_controller = controller.connect
    registration = running.broker.registration
    registration.start(("controller:1",))
    await controller.registered(1)
    (line,) = registration._controllers.values()
    await controller.heard(lambda: line.is_registered)
    line.has_changes.set()
    for _ in range(turns):
        await asyncio.sleep(0)
    async with asyncio.timeout(5):
        await registration.stop()
