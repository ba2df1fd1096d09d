"""The master of a group: named by brokers, pushed by controllers, else requested; older epochs change nothing."""

from __future__ import annotations

import asyncio
from functools import partial

import pytest

from remoting import inprocess
from remoting.client import masters
from remoting.client.masters import MQTT_NOT_HELD, Masters, RouteWatch
from remoting.protocol.bodies.controller_body import BrokerData, ClusterInfo, PushedGroup, PushedRoutes, encode_body
from remoting.protocol.errors import LocalMisuse, Refused
from remoting.protocol.frames.codes import RequestCode, ResponseCode
from remoting.protocol.frames.commands import FLAG_ONEWAY, Command
from remoting.transport.failures import ConnectionLost, NotMaster, Unreachable


class Cluster:
    """Controllers and brokers by name; every connection leads to `answer`."""

    def __init__(self, **masters):
        self.masters = masters
        self.asked = 0
        self.dead = set()
        self.peers = []
        self.connections = []
        self.epochs = dict.fromkeys(masters, 1)
        self.mqtt = {}
        """What a controller answers who asks for the group of MQTT, by its address: the name, or a code; none leads."""

    async def dial(self, name):
        if name in self.dead:
            raise Unreachable(name, 1, ConnectionRefusedError(111, "refused"))
        connection = inprocess.connect(partial(self.answer, name))
        connection.address = name
        self.connections.append(connection)
        return connection

    def answer(self, name, peer, command):
        if command.code == RequestCode.GET_BROKER_CLUSTER_INFO:
            self.asked += 1
            table = {name: BrokerData("C", name, {0: at} if at else {1: "x:1"}) for name, at in self.masters.items()}
            return command.reply(body=encode_body(ClusterInfo(table, {"C": sorted(table)})))
        if command.code == RequestCode.MQTT_GROUP:
            return self.mqtt_answer(name, command)
        assert command.code == RequestCode.SUBSCRIBE_ROUTES
        self.peers.append(peer)
        return command.reply(body=encode_body(self.routes()))

    def mqtt_answer(self, address, command):
        held, wanted = self.mqtt.get(address), command.fields.get("brokerName", "")
        if held is None:
            fields = {"leaderAddress": next(iter(self.mqtt), "")}
            return command.reply(ResponseCode.CONTROLLER_NOT_LEADER, "does not lead", fields)
        if isinstance(held, int):
            return command.reply(held, "not held here")
        if wanted not in ("", held):
            return command.reply(ResponseCode.CONTROLLER_INVALID_REQUEST, f"MQTT is at {held}")
        return command.reply(fields={"brokerName": held})

    def routes(self):
        return PushedRoutes(
            {name: PushedGroup("C", {0: at} if at else {}, self.epochs[name]) for name, at in self.masters.items()}
        )

    def push(self):
        for peer in self.peers:
            peer.send(Command(RequestCode.ROUTES_CHANGED, flag=FLAG_ONEWAY, body=encode_body(self.routes())))


def refusal(address="", epoch=""):
    return NotMaster(Command(ResponseCode.NOT_MASTER, fields={"masterAddress": address, "masterEpoch": epoch}))


async def test_the_group_of_mqtt_is_the_one_that_controllers_hold():
    """Not the first with a master; another configured one is refused; it stays while no controller answers."""
    cluster = Cluster(a="a1:1", b="")
    cluster.mqtt["c:2"] = "b"
    masters = Masters(["c:1", "c:2"], dial=cluster.dial, has_mqtt=True)
    with pytest.raises(Refused, match="'b' has no master"):
        await masters.dial()
    cluster.masters["b"] = "b1:1"
    assert (await masters.dial()).address == "b1:1"
    cluster.mqtt.clear()
    assert (await masters.dial()).address == "b1:1"
    cluster.mqtt["c:2"] = "a"
    with pytest.raises(Refused, match="MQTT was moved from the broker group 'b' to 'a': restart this process"):
        await masters.dial()
    configured = Masters(["c:2"], "b", dial=cluster.dial, has_mqtt=True)
    with pytest.raises(Refused, match="MQTT is at a"):
        await configured.dial()
    await masters.stop()
    await configured.stop()


async def test_without_a_controller_that_tells_the_group_of_mqtt_nothing_is_taken():
    cluster = Cluster(a="a1:1")
    masters = Masters(["c:1"], dial=cluster.dial, has_mqtt=True)
    with pytest.raises(ConnectionLost, match="no controller tells which broker group has MQTT: c:1: does not lead"):
        await masters.dial()
    cluster.mqtt |= {"c:1": "a", "c:2": "b"}
    divided = Masters(["c:1", "c:2"], dial=cluster.dial, has_mqtt=True)
    with pytest.raises(Refused, match="different broker groups for MQTT: c:1: a, c:2: b"):
        await divided.dial()
    await masters.stop()
    await divided.stop()


@pytest.mark.parametrize("code", sorted(MQTT_NOT_HELD))
async def test_name_servers_that_do_not_hold_the_group_of_mqtt_leave_it_to_the_configuration(code):
    """Which must name it where there are several, those that are away included."""
    cluster = Cluster(a="a1:1")
    cluster.mqtt["c:1"] = code
    masters = Masters(["c:1"], dial=cluster.dial, has_mqtt=True)
    assert (await masters.dial()).address == "a1:1"
    cluster.masters["b"] = ""
    several = Masters(["c:1"], dial=cluster.dial, has_mqtt=True)
    with pytest.raises(
        Refused, match="broker groups a, b, and no controller holds which of them has MQTT: set broker_name"
    ):
        await several.dial()
    named = Masters(["c:1"], "a", dial=cluster.dial, has_mqtt=True)
    assert (await named.dial()).address == "a1:1"
    for each in (masters, several, named):
        await each.stop()


async def test_a_busy_controller_does_not_leave_it_to_the_configuration():
    """It holds the name, or may: only the answer of another one counts."""
    cluster = Cluster(a="a1:1", b="b1:1")
    cluster.mqtt["c:1"] = ResponseCode.SYSTEM_BUSY
    masters = Masters(["c:1"], "a", dial=cluster.dial, has_mqtt=True)
    with pytest.raises(ConnectionLost, match="no controller tells which broker group has MQTT: c:1"):
        await masters.dial()
    await masters.stop()


async def test_the_only_group_is_taken_and_kept():
    """Without a name, also when another precedes it later; of several none is, whichever has a master now."""
    with pytest.raises(Refused, match="there are the broker groups a, b"):
        await Masters(["c:1"], dial=Cluster(a="", b="b1:1").dial).dial()
    cluster = Cluster(b="b1:1")
    masters = Masters(["c:1"], dial=cluster.dial)
    assert (await masters.dial()).address == "b1:1"
    assert masters.broker_name == "b"
    cluster.masters["a"] = "a1:1"
    cluster.dead.add("b1:1")
    with pytest.raises(Unreachable):
        await masters.dial()
    cluster.masters["b"] = "b2:1"
    assert (await masters.dial()).address == "b2:1"
    await masters.stop()


async def test_no_master_anywhere_is_reported_with_the_controllers():
    """And a named group without a master is refused as well."""
    cluster = Cluster(a="")
    with pytest.raises(Refused, match="c:1"):
        await Masters(["c:1"], dial=cluster.dial).dial()
    with pytest.raises(Refused, match="no master"):
        await Masters(["c:1"], "a", dial=cluster.dial).dial()


async def test_the_next_controller_answers_and_is_asked_first_from_then_on():
    """One that is dead, or dies, is skipped; if all are dead they are named."""
    cluster = Cluster(a="a1:1")
    cluster.dead.add("c1:1")
    masters = Masters(["c1:1", "c2:1"], "a", dial=cluster.dial)
    assert (await masters.dial()).address == "a1:1"
    cluster.dead.clear()

    def dialled(name):
        return [each for each in cluster.connections if each.address == name]

    async def find():
        """Without a broker to dial, the controllers are asked."""
        masters.named("", 1)
        assert (await masters.dial()).address == "a1:1"

    await find()
    assert len(dialled("c2:1")) == 1
    assert not dialled("c1:1")
    cluster.dead.add("c2:1")
    await dialled("c2:1")[0].close()
    masters.check()
    await find()
    assert len(dialled("c1:1")) == 1, "one request is in flight at a time"
    cluster.dead.add("c1:1")
    await dialled("c1:1")[0].close()
    masters.named("", 1)
    with pytest.raises(ConnectionLost, match=r"no controller answers: cannot reach c1:1.*c2:1"):
        await masters.dial()
    await masters.stop()


async def test_each_controller_has_one_connection_while_routes_are_received():
    """A request uses it; before it is up, one that is closed after the answer."""
    cluster = Cluster(a="a1:1")
    masters = Masters(["c:1"], "a", dial=cluster.dial)
    masters.start()
    assert (await masters.dial()).address == "a1:1"
    async with asyncio.timeout(10):
        while not cluster.peers:
            await asyncio.sleep(0)
    for _ in range(3):
        masters.named("", 1)
        assert (await masters.dial()).address == "a1:1"
    to_controllers = [each for each in cluster.connections if each.address == "c:1"]
    assert len([each for each in to_controllers if not each.closed]) == 1
    assert len(to_controllers) <= 2
    assert cluster.asked == 4
    await masters.stop()
    assert all(each.closed for each in to_controllers)


def test_without_controllers_there_is_nobody_to_ask():
    with pytest.raises(LocalMisuse):
        Masters([], dial=Cluster().dial)


async def test_a_hint_is_dialled_first_and_the_controllers_asked_when_it_is_away():
    """A broker's hint saves the request; a dead hint costs one attempt."""
    cluster = Cluster(a="a1:1")
    masters = Masters(["c:1"], "a", dial=cluster.dial)
    moved = []
    masters.on_moved(moved.append)
    masters.named("a2:1", 5)
    assert (await masters.dial()).address == "a2:1"
    assert cluster.asked == 0
    masters.named("a3:1", 4)
    masters.named("a2:1", 6)
    assert moved == ["a2:1"]
    cluster.dead.add("a2:1")
    assert (await masters.dial()).address == "a1:1"


async def test_a_refusal_names_the_master_or_at_least_who_is_not():
    """A broker that names itself, or none, is not dialled again by that hint."""
    cluster = Cluster(a="a1:1")
    masters = Masters(["c:1"], "a", dial=cluster.dial)
    masters.named("a2:1", 1)
    masters.refused(refusal("a3:1", "2"), by="a2:1")
    assert (masters.address, masters.epoch) == ("a3:1", 2)
    masters.refused(refusal(), by="a2:1")
    assert masters.address == "a3:1"
    masters.refused(refusal("a3:1", "2"), by="a3:1")
    assert masters.address == "a3:1"


async def test_a_named_broker_may_still_become_master() -> None:
    """It is dialled again in turn with the controllers, also while those know of no master."""
    cluster = Cluster(a="")
    masters = Masters(["c:1"], "a", dial=cluster.dial)
    masters.named("a2:1", 3)
    for asked in (0, 1, 2, 3):
        assert (await masters.dial()).address == "a2:1"
        assert cluster.asked == asked
        masters.refused(refusal("", "3"), by="a2:1")
    cluster.masters["a"] = "a4:1"
    assert (await masters.dial()).address == "a4:1"


async def test_controllers_push_the_master():
    """The answer to the subscription counts as much as a push; another group's does not."""
    cluster = Cluster(a="a1:1", b="b1:1")
    masters = Masters(["c:1", "c:2"], "a", dial=cluster.dial)
    moved = asyncio.Queue()
    masters.on_moved(moved.put_nowait)
    masters.start()
    assert await moved.get() == "a1:1"
    while len(cluster.peers) < 2:
        await asyncio.sleep(0)
    cluster.masters |= {"a": "a2:1", "b": "b2:1"}
    cluster.epochs["a"] = 2
    cluster.push()
    assert await moved.get() == "a2:1"
    assert moved.empty()
    cluster.masters["a"], cluster.epochs["a"] = "", 3
    cluster.push()
    while masters.address:
        await asyncio.sleep(0)
    await masters.stop()


async def test_a_first_master_of_any_group_triggers_a_request():
    """A caller waiting for any group is woken when one has a master."""
    cluster = Cluster(a="a1:1")
    masters = Masters(["c:1"], dial=cluster.dial)
    moved = asyncio.Queue()
    masters.on_moved(moved.put_nowait)
    masters.start()
    assert await moved.get() == ""
    await masters.stop()


async def test_a_check_finds_the_new_master():
    """In the background, once for all callers; a controller that is away changes nothing."""
    cluster = Cluster(a="a2:1")
    masters = Masters(["c:1"], "a", dial=cluster.dial)
    masters.named("a1:1", 3)
    moved = asyncio.Queue()
    masters.on_moved(moved.put_nowait)
    masters.check()
    masters.check()
    assert await moved.get() == "a2:1"
    assert cluster.asked == 1
    cluster.dead |= {"c:1"}
    await cluster.connections[0].close()
    masters.check()
    await masters.stop()
    assert masters.address == "a2:1"


async def test_a_check_asks_those_that_push_because_they_have_epochs():
    """One that is cut off still names the old master, under its old epoch: nothing moves back."""
    cluster = Cluster(a="x:2")
    cluster.epochs["a"] = 5
    masters = Masters(["c"], "a", dial=cluster.dial)
    masters.start()
    while not masters.address:
        await asyncio.sleep(0)
    cluster.masters["a"], cluster.epochs["a"] = "old:1", 4
    moved = []
    masters.on_moved(moved.append)
    asked = len(cluster.peers)
    while len(cluster.peers) == asked:
        masters.check()
        await asyncio.sleep(0)
    cluster.masters["a"], cluster.epochs["a"] = "new:1", 6
    masters.check()
    while not moved:
        await asyncio.sleep(0)
    assert moved == ["new:1"]
    assert cluster.asked == 0, "no routes without epochs were requested"
    await masters.stop()


async def test_a_master_to_be_is_not_left_for_one_named_without_an_epoch() -> None:
    """The new master has not taken its role yet; a route without an epoch still names the old one."""
    cluster = Cluster(a="x:2")
    cluster.epochs["a"] = 5
    masters = Masters(["c"], "a", dial=cluster.dial)
    masters.start()
    while not masters.address:
        await asyncio.sleep(0)
    asked = len(cluster.peers)
    for _ in range(3):
        masters.refused(refusal(), "x:2")
        assert (await masters.dial()).address == "x:2"
    while len(cluster.peers) == asked:
        await asyncio.sleep(0)
    assert cluster.asked == 0
    await masters.stop()


ROUTES = PushedRoutes({"g": PushedGroup("C", {0: "m:1"}, 7)})


class Controllers:
    """Answers subscriptions, each controller in its own way."""

    def __init__(self):
        self.peers = asyncio.Queue()
        self.dialled = asyncio.Queue()
        self.refuse = set()
        self.away = set()
        self.silent = False

    async def dial(self, name):
        self.dialled.put_nowait(name)
        if name in self.away:
            raise Unreachable(name, 1, ConnectionRefusedError(111, "refused"))
        return inprocess.connect(lambda peer, command: self.answer(name, peer, command))

    def answer(self, name, peer, command):
        assert command.code == RequestCode.SUBSCRIBE_ROUTES
        if name in self.refuse:
            raise Refused(ResponseCode.REQUEST_CODE_NOT_SUPPORTED, "what?")
        if self.silent:
            return None
        self.peers.put_nowait(peer)
        return command.reply(body=encode_body(ROUTES))


async def test_answers_and_pushes_are_used_and_invalid_ones_are_not(monkeypatch):
    """An unreadable push and one of another code change nothing; a lost connection is made again."""
    monkeypatch.setattr(masters, "PAUSE_MS", 1)
    controllers, heard = Controllers(), asyncio.Queue()
    watch = RouteWatch(["c:1"], heard.put_nowait, dial=controllers.dial)
    watch.start()
    watch.start()
    assert (await heard.get()).groups["g"].epoch == 7
    peer = await controllers.peers.get()
    peer.send(Command(RequestCode.ROUTES_CHANGED, flag=FLAG_ONEWAY, body=b"{"))
    peer.send(Command(RequestCode.NOTIFY, flag=FLAG_ONEWAY, body=b"{"))
    peer.send(Command(RequestCode.ROUTES_CHANGED, flag=FLAG_ONEWAY, body=encode_body(PushedRoutes())))
    assert (await heard.get()).groups == {}
    assert watch.subscribed == {"c:1"}
    peer.close("restart")
    assert (await heard.get()).groups["g"].brokers == {0: "m:1"}
    await watch.stop()
    assert watch.subscribed == set()


async def test_an_absent_controller_is_tried_again_and_one_without_the_code_rarely(monkeypatch):
    """The others are served meanwhile."""
    monkeypatch.setattr(masters, "PAUSE_MS", 1)
    controllers, heard = Controllers(), asyncio.Queue()
    controllers.away.add("away:1")
    controllers.refuse.add("old:1")
    watch = RouteWatch(["away:1", "old:1", "c:1"], heard.put_nowait, dial=controllers.dial)
    watch.start()
    await heard.get()
    dialled = [await controllers.dialled.get() for _ in range(8)]
    assert dialled.count("away:1") == 6
    assert dialled.count("old:1") == 1
    await watch.stop()


async def test_a_controller_is_asked_again_after_a_while_and_at_once_on_request(monkeypatch):
    """A push lost with a connection costs seconds; a controller that no longer answers is dialled again."""
    monkeypatch.setattr(masters, "PAUSE_MS", 1)
    monkeypatch.setattr(masters, "ASK_EVERY_S", 60.0)
    monkeypatch.setattr(masters, "SUBSCRIBE_TIMEOUT_MS", 20)
    controllers, heard = Controllers(), asyncio.Queue()
    watch = RouteWatch(["c:1"], heard.put_nowait, dial=controllers.dial)
    watch.start()
    await heard.get()
    watch.ask()
    await heard.get()
    assert controllers.dialled.qsize() == 1
    monkeypatch.setattr(masters, "ASK_EVERY_S", 0.001)
    watch.ask()
    for _ in range(3):
        await heard.get()
    controllers.silent = True
    while controllers.dialled.qsize() < 2:
        await asyncio.sleep(0)
    controllers.silent = False
    await heard.get()
    await watch.stop()
