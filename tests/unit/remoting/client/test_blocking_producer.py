"""The producer for threads: offsets as futures, order per thread, memory bounded across all of them."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine, Iterator
from functools import partial
from typing import Any

import pytest

from remoting.client.batching import Message, ProducerSettings, Sent
from remoting.client.threads import Producer
from remoting.protocol.bodies.controller_body import BrokerData, ClusterInfo, PushedGroup, PushedRoutes, encode_body
from remoting.protocol.errors import LocalMisuse, Refused
from remoting.protocol.frames.codes import RequestCode
from remoting.protocol.frames.commands import FLAG_ONEWAY, Command
from remoting.server.server import RemotingServer
from remoting.transport.failures import ConnectionLost
from tests.unit.remoting.client.served import Served
from tests.unit.remoting.client.toy_log import ToyLog


class Server(Served):
    """The toy log behind a socket."""

    def __init__(self) -> None:
        self.log = ToyLog(m=(3, True), plain=(2, False))
        super().__init__(self.log)


@pytest.fixture
def server() -> Iterator[Server]:
    made = Server()
    yield made
    made.stop()


def test_threads_send_and_every_future_has_its_offset(server: Server) -> None:
    places: dict[int, list] = {}

    def work(number: int) -> None:
        places[number] = [
            source.send(Message(topic="m", body=b"%d %d" % (number, n), key=f"thread-{number}")) for n in range(200)
        ]

    with Producer(server.address, ProducerSettings(linger_ms=1, batch_count_max=64)) as source:
        threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        plain = source.send(Message(topic="plain", body=b"x", queue=1))
        source.flush()
        assert plain.result() == Sent("plain", 1, 0)
        for number, sent in places.items():
            offsets = [future.result(10).offset for future in sent]
            assert offsets == sorted(offsets), "the order of a thread is kept"
            queue = server.log.queues["m", sent[0].result().queue]
            assert [queue[offset][1] for offset in offsets] == [b"%d %d" % (number, n) for n in range(200)]
    assert len(server.log.requests) < 200, "they were sent together"


def test_errors_belong_to_their_message(server: Server) -> None:
    with Producer(server.address) as source:
        wrong = source.send(Message(topic="unknown", body=b""))
        odd = source.send(Message(topic="m", body=b"", key="k" * 70_000))
        nonsense = source.send(Message(topic="m", body=b"", born_ms="now"))  # type: ignore[arg-type]
        sound = source.send(Message(topic="m", body=b"x"))
        source.flush()
        assert isinstance(wrong.exception(), Refused)
        assert isinstance(odd.exception(), LocalMisuse)
        assert isinstance(nonsense.exception(), TypeError)
        assert sound.result().offset == 0
    source.close()
    with pytest.raises(ConnectionLost, match="closed"):
        source.send(Message(topic="m", body=b""))


def test_a_full_producer_makes_threads_wait_or_refuses(server: Server) -> None:
    small = ProducerSettings(memory_bytes_max=1_000, linger_ms=60_000)
    with Producer(server.address, small) as source:
        sent = [source.send(Message(topic="m", body=bytes(400))) for _ in range(20)]
        source.flush()
        assert all(future.done() for future in sent)
    server.log.hold = True
    refusing = Producer(server.address, ProducerSettings(memory_bytes_max=1_000, when_full="refuse"))
    refusing.send(Message(topic="m", body=bytes(800)))
    with pytest.raises(Refused, match="already waiting"):
        refusing.send(Message(topic="m", body=bytes(800)))
    assert server.log.was_held.wait(10)
    server.log.hold = False
    server.loop.call_soon_threadsafe(server.log.release)
    refusing.close()
    assert len(server.log.queues["m", 0]) >= 1


def test_a_cancelled_future_frees_its_memory(server: Server) -> None:
    with Producer(server.address, ProducerSettings(linger_ms=60_000)) as source:
        future = source.send(Message(topic="m", body=b"x"))
        future.cancel()
        source.flush()
        assert source._waiting_bytes == 0


def test_an_invalid_address_is_refused_at_once() -> None:
    with pytest.raises((ValueError, LocalMisuse)):
        Producer("nowhere")


class Group:
    """A controller and two brokers with one log, of which one leads; all in one thread."""

    def __init__(self) -> None:
        self.log = ToyLog(m=(1, False))
        self.epoch, self.leader = 1, ""
        self.subscribers: list[object] = []
        self.loop = asyncio.new_event_loop()
        self.servers: list[RemotingServer] = []
        self.thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self.thread.start()
        self.run(self._start())

    def run(self, work: Coroutine[Any, Any, None]) -> None:
        asyncio.run_coroutine_threadsafe(work, self.loop).result(10)

    async def _start(self) -> None:
        ports = []
        for handler in (self.controller, partial(self.broker, 0), partial(self.broker, 1)):
            self.servers.append(RemotingServer(handler))
            ports.append(await self.servers[-1].start("127.0.0.1", 0))
        self.address, *self.brokers = [f"127.0.0.1:{port}" for port in ports]
        self.leader = self.brokers[0]

    def controller(self, peer, command):
        if command.code == RequestCode.SUBSCRIBE_ROUTES:
            self.subscribers.append(peer)
            return command.reply(body=encode_body(self.routes()))
        table = {"g": BrokerData("C", "g", {0: self.leader})}
        return command.reply(body=encode_body(ClusterInfo(table, {"C": ["g"]})))

    def routes(self):
        return PushedRoutes({"g": PushedGroup("C", {0: self.leader}, self.epoch)})

    def broker(self, number, peer, command):
        if self.brokers[number] == self.leader:
            return self.log(peer, command)
        return None  # it is paused: its connection stays and nothing is answered

    async def elect(self) -> None:
        self.epoch, self.leader = self.epoch + 1, self.brokers[1]
        self.log.hold = False
        for peer in self.subscribers:
            peer.send(Command(RequestCode.ROUTES_CHANGED, flag=FLAG_ONEWAY, body=encode_body(self.routes())))

    async def end(self) -> None:
        for server in self.servers:
            await server.stop()

    def stop(self) -> None:
        self.run(self.end())
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join(10)
        self.loop.close()


def test_it_follows_the_master_of_a_group_away_from_a_paused_one() -> None:
    """What has no answer there is sent to the new one as soon as the controllers name it, whatever the limit."""
    group = Group()
    settings = ProducerSettings(linger_ms=0, timeout_ms=60_000)
    try:
        with Producer(controllers=[group.address], broker_name="g", settings=settings) as source:
            assert source.send(Message(topic="m", body=b"1")).result(10).offset == 0
            group.log.hold = True
            waiting = source.send(Message(topic="m", body=b"2"))
            assert group.log.was_held.wait(10)
            group.run(group.elect())
            assert waiting.result(10).offset == 1
            assert source.connections == 2
    finally:
        group.stop()


def test_either_an_address_or_controllers() -> None:
    """Both, or neither, make no sense."""
    with pytest.raises(LocalMisuse):
        Producer()
    with pytest.raises(LocalMisuse):
        Producer("127.0.0.1:1", controllers=["127.0.0.1:2"])
