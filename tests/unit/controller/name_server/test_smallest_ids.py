"""Who is told that the smallest id of a group has changed, and how often."""

from __future__ import annotations

from controller.name_server.smallest_ids import SmallestIds
from remoting import inprocess
from remoting.protocol.frames.codes import RequestCode
from remoting.protocol.frames.commands import Command

GROUP = {"clusterName": "C", "brokerName": "g"}


class Broker:
    """One broker with a connection of its own, and what it was told."""

    def __init__(self, world, number, **fields):
        self.told = []
        self.connection = inprocess.connect(world.router)
        self.connection.on_push(self.told.append)
        self.address = {"brokerAddr": f"h:{number}"}
        self.identity = {**GROUP, **self.address, "brokerId": str(number), "enableActingMaster": "true", **fields}

    async def register(self, number=None):
        fields = self.identity | ({} if number is None else {"brokerId": str(number)})
        command = Command(RequestCode.REGISTER_BROKER, fields={**fields, "heartbeatTimeoutMillis": "10000"})
        assert (await self.connection.request(command)).code == 0

    async def beat(self):
        command = Command(RequestCode.BROKER_HEARTBEAT, fields={**GROUP, **self.address})
        assert (await self.connection.request(command)).code == 0

    def smallest(self):
        """The ids it was told, oldest first."""
        assert {command.code for command in self.told} <= {RequestCode.NOTIFY_MIN_BROKER_ID_CHANGE}
        return [command.fields["minBrokerId"] for command in self.told]


async def test_every_member_is_told_once_a_change(world):
    one, two = Broker(world, 1), Broker(world, 2)
    await two.register()
    await one.register()
    assert two.smallest() == ["1"], "the one that changes it asks by itself"
    await one.register(0)
    assert (one.smallest(), two.smallest()) == (["0"], ["1", "0"])
    assert two.told[-1].fields["minBrokerAddr"] == "h:1"
    await one.register(0)
    await two.register()
    assert (one.smallest(), two.smallest()) == (["0"], ["1", "0"])


async def test_a_silent_master_is_news(world):
    master, replica = Broker(world, 0), Broker(world, 2)
    await master.register()
    await replica.register()
    world.pass_ms(9_999)
    await replica.beat()
    world.pass_ms(1)
    await replica.beat()  # its answer comes behind the push
    assert replica.smallest() == ["2"]
    assert replica.told[0].fields["offlineBrokerAddr"] == "h:0"


async def test_groups_that_do_not_ask_for_it_are_told_nothing(world):
    one, two = Broker(world, 1, enableActingMaster="false"), Broker(world, 2, enableActingMaster="false")
    await two.register()
    await one.register()
    assert one.told + two.told == []


async def test_a_connection_that_ended_is_not_kept(world):
    ids = SmallestIds(world.name_server)
    peer, other = object(), object()
    ids.reachable(("C", "h:1"), peer)
    ids.reachable(("C", "h:1"), other)
    ids.lost(("C", "h:1"), peer)
    assert ids._peers == {("C", "h:1"): other}
    ids.lost(("C", "h:1"), other)
    assert ids._peers == {}
