"""Routes: cached, asked once for all who wait, from whichever controller answers, stale rather than none."""

from __future__ import annotations

import asyncio

import pytest

from remoting import inprocess
from remoting.client.route import Routes
from remoting.protocol.bodies.route_body import BrokerData, ClusterInfo, QueueData, TopicRoute, encode_body
from remoting.protocol.errors import LocalMisuse, Refused
from remoting.transport.failures import ConnectionLost, Unreachable


class NameServers:
    """Some controllers of which any may be dead, with a count of what each was asked."""

    def __init__(self, *names):
        self.asked = []
        self.dead = set()
        self.topics = {"t": TopicRoute(None, [QueueData("b", 4, 4, 6)], [BrokerData("C", "b", {0: "h:1"})])}
        self.brokers = {"b": BrokerData("C", "b", {0: "h:1"})}
        self.connections = {}

    async def dial(self, name):
        if name in self.dead:
            raise Unreachable(name, 1, ConnectionRefusedError(111, "refused"))
        connection = inprocess.connect(lambda peer, command: self.answer(name, command))
        self.connections[name] = connection
        return connection

    async def kill(self, name):
        self.dead.add(name)
        if name in self.connections:
            await self.connections[name].close()

    def answer(self, name, command):
        self.asked.append((name, command.code))
        if command.code == 106:
            return command.reply(body=encode_body(ClusterInfo(self.brokers, {"C": sorted(self.brokers)})))
        topic = command.fields["topic"]
        if topic not in self.topics:
            raise Refused(17, f"no {topic}")
        return command.reply(body=encode_body(self.topics[topic]))


async def test_one_question_for_all_who_wait_and_none_while_it_is_fresh():
    servers = NameServers()
    routes = Routes(["n1:1"], dial=servers.dial)
    found = await asyncio.gather(*(routes.topic("t") for _ in range(5)))
    assert all(route.queue_datas[0].broker_name == "b" for route in found)
    await routes.topic("t")
    assert servers.asked == [("n1:1", 105)]
    await routes.topic("t", refresh=True)
    assert len(servers.asked) == 2
    await routes.close()


async def test_old_routes_are_asked_again():
    servers = NameServers()
    routes = Routes(["n1:1"], dial=servers.dial, refresh_ms=0)
    await routes.topic("t")
    await routes.topic("t")
    assert len(servers.asked) == 2
    await routes.close()


async def test_the_next_controller_answers_and_is_asked_first_from_then_on():
    servers = NameServers()
    servers.dead.add("n1:1")
    routes = Routes(["n1:1", "n2:1"], dial=servers.dial, refresh_ms=0)
    await routes.topic("t")
    servers.dead.clear()
    await routes.topic("t")
    assert servers.asked == [("n2:1", 105), ("n2:1", 105)]
    await servers.kill("n2:1")
    await routes.topic("t")
    assert servers.asked[-1] == ("n1:1", 105)
    await routes.close()


async def test_with_every_controller_dead_what_is_known_stays():
    servers = NameServers()
    routes = Routes(["n1:1", "n2:1"], dial=servers.dial, refresh_ms=0)
    await routes.topic("t")
    await servers.kill("n1:1")
    await servers.kill("n2:1")
    assert (await routes.topic("t")).queue_datas[0].broker_name == "b"
    with pytest.raises(ConnectionLost, match=r"no controller answers: cannot reach n1:1.*n2:1"):
        await routes.topic("other")
    await routes.close()


async def test_a_topic_that_is_gone_is_not_served_from_memory():
    servers = NameServers()
    routes = Routes(["n1:1"], dial=servers.dial, refresh_ms=0)
    await routes.topic("t")
    del servers.topics["t"]
    with pytest.raises(Refused, match="no t"):
        await routes.topic("t")
    await servers.kill("n1:1")
    with pytest.raises(ConnectionLost):
        await routes.topic("t")
    await routes.close()


async def test_an_impatient_caller_does_not_cancel_the_others():
    servers = NameServers()
    routes = Routes(["n1:1"], dial=servers.dial)
    impatient, patient = (asyncio.ensure_future(routes.topic("t")) for _ in range(2))
    await asyncio.sleep(0)
    impatient.cancel()
    assert (await patient).queue_datas
    await routes.close()


def test_no_controllers_is_our_callers_mistake():
    with pytest.raises(LocalMisuse):
        Routes([], dial=NameServers().dial)
