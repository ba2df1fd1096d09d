"""Which broker group has MQTT, as the controllers hold it: `controller.control_plane.mqtt_group`."""

from __future__ import annotations

from controller.control_plane.mqtt_group import MqttGroupRequests
from controller.replicas.group import CleanReplicas, PlaceMqtt, decode, encode
from controller.replicas.machine import ReplicaMachine
from remoting.protocol.bodies.controller_body import ClusterInfo, decode_body
from remoting.protocol.frames.commands import Command

BROKER = {"clusterName": "C", "brokerName": "b", "brokerAddr": "h:1", "brokerId": "0"}


async def test_it_is_decided_once_and_another_group_is_refused(world):
    """Without a name it is the first group by name, although that one is away."""
    assert (await world.ask(9063)).code != 0
    await world.register("b", address="h:1")
    await world.register("c", address="h:2")
    await world.ask(104, **BROKER)
    unknown = await world.ask(9063, brokerName="x")
    assert "no broker group 'x' is known; known: b, c" in unknown.remark
    for _ in range(2):
        assert (await world.ask(9063)).fields == {"brokerName": "b"}
    assert (await world.ask(9063, brokerName="b")).code == 0
    refused = await world.ask(9063, brokerName="c")
    assert "MQTT is at the broker group 'b', not at 'c'" in refused.remark
    info = decode_body((await world.ask(106)).body, ClusterInfo)
    assert (info.mqtt_group, info.absent()) == ("b", ["b"])
    assert world.plane.status()["mqtt_group"] == "b"
    assert "MQTT is at 'b': move it first" in (await world.ask(9062, brokerName="b")).remark


async def test_the_first_name_that_is_asked_for_stays(world):
    await world.register("b", address="h:1")
    await world.register("c", address="h:2")
    assert (await world.ask(9063, brokerName="c")).fields == {"brokerName": "c"}
    assert (await world.ask(9063)).fields == {"brokerName": "c"}
    await world.plane.place_mqtt("b")
    assert world.plane.machine.mqtt_group == "c"


async def test_an_operator_moves_it_from_the_name_that_he_saw(world):
    await world.register("b", address="h:1")
    await world.register("c", address="h:2")
    await world.plane.place_mqtt("b")
    assert "MQTT is at b, not at none" in (await world.ask(9064, brokerName="c")).remark
    assert "no broker group 'x'" in (await world.ask(9064, brokerName="x", heldName="b")).remark
    assert (await world.ask(9064, brokerName="c", heldName="b")).fields == {"brokerName": "c"}
    assert (await world.ask(9063)).fields == {"brokerName": "c"}


async def test_nothing_is_decided_while_a_controller_may_be_too_old(world, monkeypatch):
    """What was decided before is told all the same."""
    await world.register("b", address="h:1")
    outdated = frozenset({"n2"})
    monkeypatch.setattr(type(world.masters.proposer), "outdated", property(lambda _self: outdated))
    requests = MqttGroupRequests(world.masters, lambda: ["b"])
    assert (await requests.tell(None, Command(9063))).fields == {"brokerName": ""}
    assert (await requests.tell(None, Command(9063, fields={"brokerName": "b"}))).fields == {"brokerName": ""}
    assert world.masters.machine.mqtt_group == ""
    await world.plane.place_mqtt("b")
    assert (await requests.tell(None, Command(9063))).fields == {"brokerName": "b"}


def test_the_name_is_in_the_log_and_in_snapshots():
    """Whose form without it is the one of earlier releases."""
    machine, restored = ReplicaMachine(), ReplicaMachine()
    plain = machine.encode()
    command = PlaceMqtt("b")
    assert decode(encode(command)) == command
    assert machine.apply(command).code == 0
    assert machine.apply(PlaceMqtt("c")).code != 0
    restored.restore(machine.encode())
    assert (restored.mqtt_group, restored.encode()) == ("b", machine.encode())
    restored.restore(plain)
    assert (restored.mqtt_group, restored.encode()) == ("", plain)


async def test_the_last_broker_of_the_group_that_has_mqtt_is_not_removed(world):
    await world.replica(1)
    await world.plane.place_mqtt("g")
    refused = world.plane.machine.apply(CleanReplicas("C", "g", (), (), True))
    assert "MQTT is at g: move it before its last broker is removed" in refused.remark
    assert "g" in world.plane.machine.groups
