"""Routes are heard from every controller; one that is away, silent or wrong is left and tried again."""

from __future__ import annotations

import asyncio

from remoting import inprocess
from remoting.client import route_watch
from remoting.client.route_watch import RouteWatch
from remoting.protocol.bodies.controller_body import PushedGroup, PushedRoutes
from remoting.protocol.bodies.route_body import encode_body
from remoting.protocol.errors import Refused
from remoting.protocol.frames.codes import RequestCode, ResponseCode
from remoting.protocol.frames.commands import FLAG_ONEWAY, Command
from remoting.transport.failures import Unreachable

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


async def test_answer_and_pushes_are_heard_and_rubbish_is_not(monkeypatch):
    """A push that cannot be read and one of another code change nothing; a lost connection is made again."""
    monkeypatch.setattr(route_watch, "PAUSE_MS", 1)
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


async def test_who_is_away_is_tried_again_and_who_does_not_know_the_code_rarely(monkeypatch):
    """The others are heard meanwhile."""
    monkeypatch.setattr(route_watch, "PAUSE_MS", 1)
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


async def test_a_controller_is_asked_again_after_a_while_and_at_once_when_told(monkeypatch):
    """A push that was lost with a connection costs seconds; one that does not answer any more is dialled again."""
    monkeypatch.setattr(route_watch, "PAUSE_MS", 1)
    monkeypatch.setattr(route_watch, "ASK_EVERY_S", 60.0)
    monkeypatch.setattr(route_watch, "SUBSCRIBE_TIMEOUT_MS", 20)
    controllers, heard = Controllers(), asyncio.Queue()
    watch = RouteWatch(["c:1"], heard.put_nowait, dial=controllers.dial)
    watch.start()
    await heard.get()
    watch.ask()
    await heard.get()
    assert controllers.dialled.qsize() == 1
    monkeypatch.setattr(route_watch, "ASK_EVERY_S", 0.001)
    watch.ask()
    for _ in range(3):
        await heard.get()
    controllers.silent = True
    while controllers.dialled.qsize() < 2:
        await asyncio.sleep(0)
    controllers.silent = False
    await heard.get()
    await watch.stop()
