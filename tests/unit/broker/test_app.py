"""The whole broker on a socket: starts, registers, answers, recovers an interrupted commit, stops."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from broker.app import BrokerApp
from broker.config import BrokerConfig
from broker.store.recovery.log_end import DamagedRange
from broker.store.settings import StoreSettings
from remoting.client.connection import connect
from remoting.protocol.bodies.controller_body import RegisterBrokerBody, decode_body
from remoting.protocol.bodies.sink_body import CommitBatch, StageHandle, encode
from remoting.protocol.errors import LocalMisuse
from remoting.protocol.frames.codes import RequestCode
from remoting.protocol.frames.commands import Command
from remoting.protocol.records import names
from remoting.protocol.records.image import encode_mqtt_image
from remoting.server.server import RemotingServer

STORE = StoreSettings(segment_size_bytes=8 * 1024 * 1024, free_space_bytes_min=0, ballast_size_bytes=0)


def configure(directory: Path, **options) -> BrokerConfig:
    defaults = {"port": 0, "controllers": (), "store": STORE, "heartbeat_interval_ms": 100}
    return BrokerConfig(data_directory=directory, **(defaults | options))


def published(*topics: bytes) -> bytes:
    return b"".join([encode_mqtt_image(topic, b"x", 1, 1, b"d") for topic in topics])


async def test_start_answer_stop_and_the_port_is_free_again(tmp_path) -> None:
    app = BrokerApp(configure(tmp_path / "data"))
    with pytest.raises(LocalMisuse):
        app.handlers  # noqa: B018 - the property itself is the call
    assert await app.start() == app.port > 0
    assert app.ready()
    connection = await connect("127.0.0.1", app.port)
    assert (await connection.request(Command(RequestCode.APPEND_MANY, body=published(b"a/1")))).code == 0
    unknown = await connection.request(Command(4711))
    assert unknown.code == 3
    assert app.status()["topics"] == 1
    await connection.close()
    port = app.port
    await app.stop()
    await app.stop()
    assert not app.ready()
    again = BrokerApp(configure(tmp_path / "data", port=port))
    assert await again.start() == port
    assert again.status()["topics"] == 1
    await again.stop()


async def test_topics_are_registered_when_confirmed_and_heartbeats_follow(tmp_path) -> None:
    requests: list[Command] = []

    def controller(_peer, command: Command) -> Command:
        requests.append(command)
        return command.reply()

    server = RemotingServer(controller)
    port = await server.start("127.0.0.1", 0)
    app = BrokerApp(configure(tmp_path / "data", controllers=(f"127.0.0.1:{port}",)))
    await app.start()
    connection = await connect("127.0.0.1", app.port)
    await connection.request(Command(RequestCode.APPEND_MANY, body=published(b"plant/1")))

    def registered() -> set[str]:
        bodies = [decode_body(c.body, RegisterBrokerBody) for c in requests if c.code == RequestCode.REGISTER_BROKER]
        return set().union(*(body.topic_config_serialize_wrapper.topic_config_table for body in bodies))

    async with asyncio.timeout(5):
        while not {"plant", "TBW102"} <= registered():
            await asyncio.sleep(0.01)
        while not any(command.code == RequestCode.BROKER_HEARTBEAT for command in requests):
            await asyncio.sleep(0.01)
    assert app.ready()
    assert requests[0].fields["brokerAddr"] == f"127.0.0.1:{app.port}"
    await connection.close()
    await app.stop()
    assert requests[-1].code == RequestCode.UNREGISTER_BROKER
    await server.stop()


async def test_known_damage_is_reported_and_nothing_else(tmp_path) -> None:
    """Before the start, sound, with damaged ranges, after the stop; a broker that still serves is ready."""
    app = BrokerApp(configure(tmp_path / "data"))
    assert app.degraded_reason() == ""
    await app.start()
    connection = await connect("127.0.0.1", app.port)
    await connection.request(Command(RequestCode.APPEND_MANY, body=published(*[b"a/1"] * 20)))
    await connection.close()
    assert app.degraded_reason() == ""
    begin = app.broker.tools.store.begin_position
    quarantine = app.broker.tools.store._parts.damage.quarantine
    quarantine.add(DamagedRange(begin, begin + 64, "checksum"))
    quarantine.add(DamagedRange(begin + 128, begin + 160, "checksum"))
    told = app.degraded_reason()
    assert told.startswith("96 bytes of the log are damaged in 2 places; everything else is served. Run ")
    assert f"lightmq store verify {tmp_path / 'data'}" in told
    assert (Path(__file__).parents[3] / told.rpartition("see ")[2]).exists()
    assert app.ready()
    await app.stop()
    assert app.degraded_reason() == ""


async def test_without_its_own_port_it_waits_to_be_announced(tmp_path) -> None:
    app = BrokerApp(configure(tmp_path / "data"), listen=False)
    assert await app.start() == 0
    app.announce("0.0.0.0", 4_711, ())
    assert app.broker.tools.identity.address == "127.0.0.1:4711"
    assert RequestCode.APPEND_MANY in app.handlers
    await app.stop()


async def test_a_commit_interrupted_by_a_stop_is_finished_at_the_start(tmp_path) -> None:
    app = BrokerApp(configure(tmp_path / "data"))
    await app.start()
    connection = await connect("127.0.0.1", app.port)
    app.broker.sink.ledger._group_bytes_max = 1_000
    fields = {"sink": "s", "batch": "0", "partition": "0", "attempt": "0"}
    await connection.request(Command(RequestCode.STAGE, fields=fields, body=published(*[b"out/x"] * 20)))
    run = app.broker.sink.ledger.begin("s", 0, [(0, 0, 20)])
    app.broker.sink.ledger.step(run)
    assert not run.finished
    await connection.close()
    await app.stop()
    again = BrokerApp(configure(tmp_path / "data"))
    await again.start()
    connection = await connect("127.0.0.1", again.port)
    commit = Command(RequestCode.COMMIT_BATCH, body=encode(CommitBatch("s", 0, [StageHandle(0, 9, 20)])))
    assert (await connection.request(commit)).code == 0
    store = again.broker.tools.store
    assert store.reading.bounds(store.queues.find(names.light_queue_name(b"out/x")))[1] == 20
    await connection.close()
    await again.stop()
