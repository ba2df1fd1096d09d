"""State, liveness, clock and file together."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import threading

import pytest

from controller.name_server.name_server import MetadataFile, Persister, encode_metadata
from controller.name_server.state import (
    BrokerInstance,
    Group,
    Metadata,
    MetadataState,
    PutKeyValue,
    PutTopic,
    RegisterBroker,
)
from remoting.protocol.bodies.controller_body import QueueData, TopicConfig
from remoting.protocol.errors import LocalMisuse, Refused


def registration(address="h:1", broker_id=0):
    return RegisterBroker("C", "b", broker_id, address, topics={"t": TopicConfig("t")})


async def test_silent_brokers_leave_the_routes(world):
    server = world.name_server
    server.register(registration(), None)
    server.register(registration("h:2", 1), 1_000)
    world.pass_ms(1_000)
    assert list(server.metadata.groups["b"].members) == [0]
    assert server.beat(("C", "h:1"))
    assert not server.beat(("C", "h:2"))
    world.pass_ms(119_999)
    assert server.topic_route("t") is not None
    world.pass_ms(1)
    route = server.topic_route("t")
    assert route is not None
    assert ([one.broker_name for one in route.queue_datas], route.broker_datas) == (["b"], [])
    assert len(server.liveness) == 0


async def test_a_group_stays_while_replicas_serve_readers(world):
    """And when they are gone; nobody is shown for it then."""
    server, replicas = world.name_server, {2: "h:3"}
    server.show_replicas(lambda name: replicas if name == "b" else {})
    server.register(registration(), None)
    world.pass_ms(120_000)
    route = server.topic_route("t")
    assert route is not None
    assert (route.broker_datas[0].broker_addrs, route.queue_datas[0].perm) == ({2: "h:3"}, 4)
    replicas.clear()
    world.pass_ms(1_000_000)
    route = server.topic_route("t")
    assert route is not None
    assert route.broker_datas == []
    assert list(server.metadata.groups) == ["b"]


async def test_a_broken_connection_leaves_a_grace(world):
    server = world.name_server
    server.register(registration(), None)
    server.connection_lost(("C", "h:1"))
    world.pass_ms(server.config.broker_lost_grace_ms - 1)
    assert server.topic_route("t") is not None
    assert len(server.liveness) == 1
    world.pass_ms(1)
    assert len(server.liveness) == 0


async def test_a_grace_is_as_long_as_members_believe_in_a_list(world, capsys):
    """Where a replica may stand in: two could do so at once with a shorter one. Other groups have it as configured."""
    server = world.name_server
    server.config = dataclasses.replace(server.config, broker_lost_grace_ms=300)
    server.register(registration(), None)
    server.register(RegisterBroker("C", "acting", 1, "h:3", enable_acting_master=True), None)
    server.connection_lost(("C", "h:1"))
    server.connection_lost(("C", "h:3"))
    world.pass_ms(1_999)
    assert [name for name, group in server.metadata.groups.items() if group.members] == ["acting"]
    world.pass_ms(1)
    assert not server.metadata.groups["acting"].members
    assert capsys.readouterr().err.count("broker_lost_grace_short") == 1


async def test_a_replaced_broker_is_no_longer_expected(world):
    server = world.name_server
    server.register(registration(), None)
    server.register(registration("h:9"), None)
    assert ("C", "h:1") not in server.liveness
    assert ("C", "h:9") in server.liveness


async def test_rejections_are_refusals(world):
    with pytest.raises(Refused, match="not registered"):
        world.name_server.apply(PutTopic("t", [QueueData("nobody", 1, 1, 6)]))


async def test_a_restart_serves_what_was_known_for_one_time_limit(world, another):
    world.name_server.register(registration(), None)
    await world.name_server.persister.durable()
    restarted = another()
    assert restarted.name_server.topic_route("t").broker_datas[0].broker_addrs == {0: "h:1"}
    restarted.pass_ms(120_000)
    assert restarted.name_server.topic_route("t").broker_datas == []


def test_round_trip(tmp_path):
    file = MetadataFile(tmp_path)
    assert file.load() == Metadata()
    metadata = Metadata(
        {"b": Group("C", {0: BrokerInstance("h:1"), 1: BrokerInstance("h:2")}, writable=False)},
        {"t": {"b": QueueData("b", 1, 1, 6)}},
        {"n": {"k": "v"}},
    )
    file.save(encode_metadata(metadata))
    assert file.load() == metadata
    assert [path.name for path in tmp_path.iterdir()] == ["metadata.json"]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"{", "is damaged"),
        (b"\xff", "is damaged"),
        (b'{"format":1,"metadata":[]}', "is damaged"),
        (b'{"format":9,"metadata":{}}', "has format 9"),
    ],
)
def test_an_unreadable_file_is_named_with_the_remedy(tmp_path, content, message):
    file = MetadataFile(tmp_path)
    file.path.write_bytes(content)
    with pytest.raises(LocalMisuse, match=message) as caught:
        file.load()
    assert str(file.path) in str(caught.value)


def stored(file):
    return json.loads(file.path.read_bytes())["metadata"]["key_values"]


async def test_durable_means_on_disk_and_changes_share_a_write(tmp_path):
    state, file = MetadataState(), MetadataFile(tmp_path)
    persister = Persister(state, file, 0)
    await persister.start()
    await persister.durable()
    assert not file.path.exists()
    for number in range(20):
        state.apply(PutKeyValue("n", f"k{number}", "v"))
        persister.changed()
    await asyncio.gather(*(persister.durable() for _ in range(3)))
    assert len(stored(file)["n"]) == 20
    assert persister.writes == 1
    await persister.stop()
    await persister.stop()


async def test_the_stop_writes_what_is_left(tmp_path):
    state, file = MetadataState(), MetadataFile(tmp_path)
    persister = Persister(state, file, 60_000)
    await persister.start()
    state.apply(PutKeyValue("n", "a", "1"))
    await persister.durable()
    state.apply(PutKeyValue("n", "b", "2"))
    persister.changed()
    await persister.stop()
    assert stored(file) == {"n": {"a": "1", "b": "2"}}


async def test_the_stop_writes_behind_the_write_that_is_under_way(tmp_path, monkeypatch):
    """Both go through one temporary file."""
    state, file = MetadataState(), MetadataFile(tmp_path)
    persister, begun, release, order = Persister(state, file, 0), threading.Event(), threading.Event(), []
    save = MetadataFile.save

    def slow(self, data):
        order.append("begins")
        begun.set()
        release.wait(10)
        save(self, data)
        order.append("ends")

    monkeypatch.setattr(MetadataFile, "save", slow)
    await persister.start()
    state.apply(PutKeyValue("n", "a", "1"))
    persister.changed()
    await asyncio.to_thread(begun.wait, 10)
    stopping = asyncio.create_task(persister.stop())
    for _ in range(10):
        await asyncio.sleep(0)
    release.set()
    await stopping
    assert order == ["begins", "ends"] * 2
    assert stored(file) == {"n": {"a": "1"}}


async def test_a_full_disk_is_reported_and_tried_again(tmp_path, monkeypatch):
    monkeypatch.setattr("controller.name_server.name_server.RETRY_SECONDS", 0.01)
    state = MetadataState()
    folder = tmp_path / "later"
    persister = Persister(state, MetadataFile(folder), 0)
    await persister.start()
    state.apply(PutKeyValue("n", "a", "1"))
    with pytest.raises(Refused, match="not on disk yet"):
        await persister.durable()
    assert persister.failures >= 1
    folder.mkdir()
    while not persister.writes:
        await asyncio.sleep(0.005)
    await persister.durable()
    assert stored(MetadataFile(folder)) == {"n": {"a": "1"}}
    await persister.stop()
