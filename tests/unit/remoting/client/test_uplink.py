"""One connection to the broker: at its address, in this process, or to the present master."""

from __future__ import annotations

import asyncio
import threading

import pytest

from remoting import inprocess
from remoting.client.masters import Masters
from remoting.client.uplink import BackgroundConnection, Endpoint, MasterConnection, Uplink, connect
from remoting.protocol.bodies.controller_body import BrokerData, ClusterInfo, PushedGroup, PushedRoutes, encode_body
from remoting.protocol.errors import LocalMisuse
from remoting.protocol.frames.codes import RequestCode, ResponseCode
from remoting.protocol.frames.commands import Command
from remoting.server.server import RemotingServer
from remoting.transport.failures import ConnectionLost, NotMaster, RequestTimeout
from tests.unit.remoting.client.served import served

REFUSAL = NotMaster(Command(9101, remark="a replica"))


def echo(peer, command):
    return command.reply(body=command.body)


async def dial(address):
    connection = inprocess.connect(echo)
    connection.address = address
    return connection


async def test_one_broker_by_its_address():
    """It stays with it: when it is not the master it is left and dialled again after a pause."""
    uplink = Uplink.configured(dial, "b:1", (), "", pause_first_ms=1)
    assert uplink.broker_name == ""
    uplink.leave("b:1", REFUSAL)  # nothing listens yet
    uplink.start()
    assert (await uplink.connection.request(Command(1, body=b"x"))).body == b"x"
    assert uplink.connection is uplink.line
    downs, ups = asyncio.Queue(), asyncio.Queue()
    uplink.line.on_down(downs.put_nowait)
    uplink.line.on_up(ups.put_nowait, at_once=False)
    uplink.leave("elsewhere:1", REFUSAL)
    assert uplink.line.connected_to == "b:1"
    uplink.leave("b:1", REFUSAL)
    assert await downs.get() == "a replica"
    assert (await ups.get()).address == "b:1"
    await uplink.close()
    assert uplink.connection.closed


async def test_a_broker_of_this_process_is_not_dialled():
    """When it has stopped there is no other."""
    present = inprocess.connect(echo)
    uplink = Uplink.configured(dial, "b:1", ("c:1",), "g", present=present, pause_first_ms=1)
    uplink.start()
    assert await uplink.line.wait_up(5_000) is present
    await present.close()
    with pytest.raises(ConnectionLost, match="of this process has stopped"):
        await uplink.line.wait_up(50)
    await uplink.close()


async def test_the_master_of_a_group_is_followed():
    """The named broker is dialled; its own denial counts against it."""
    masters = Masters(["c:1"], "g", dial=dial)
    uplink = Uplink(lambda: dial("nobody"), masters=masters, pause_first_ms=1)
    assert isinstance(uplink.connection, MasterConnection)
    assert uplink.broker_name == "g"
    assert not uplink.connection.writable
    masters.named("a:1", 1)
    uplink.line.start()
    assert (await uplink.line.wait_up(5_000)).address == "a:1"
    assert uplink.connection.writable
    pushes = []
    uplink.connection.on_push(pushes.append)
    moved = asyncio.Queue()
    uplink.line.on_up(moved.put_nowait, at_once=False)
    masters.named("b:1", 2)
    assert (await moved.get()).address == "b:1"
    uplink.leave("b:1", REFUSAL)
    masters.named("a:1", 3)
    assert (await moved.get()).address == "a:1"
    uplink.connection.oneway(Command(1))
    closed = asyncio.Queue()
    uplink.connection.on_close(closed.put_nowait)
    uplink.connection.abort("for the test")
    assert (await moved.get()).address == "a:1"
    await uplink.connection.close()
    assert await closed.get() == "closed by this side"
    await uplink.close()


class Group:
    """A controller `c` and brokers of one group, of which one is the master."""

    def __init__(self):
        self.master = "b1"
        self.known = "b1"
        self.begun = set()
        self.silent = set()
        self.asked = []
        self.hints = True
        self.acting = ""

    async def dial(self, name):
        connection = inprocess.connect(lambda peer, command: self.answer(name, command))
        connection.address = name
        return connection

    def answer(self, name, command):
        if command.code == RequestCode.GET_BROKER_CLUSTER_INFO:
            table = {"g": BrokerData("C", "g", {0: self.known})}
            return command.reply(body=encode_body(ClusterInfo(table, {"C": ["g"]})))
        self.asked.append((name, command.body))
        if name in self.silent:
            return None
        if name == self.master:
            return command.reply(body=name.encode())
        fields = {"masterAddress": self.master if self.hints else "", "masterEpoch": "2"}
        if name in self.begun:
            fields["outcome"] = "unknown"
        if name == self.acting:
            if command.code == RequestCode.POP_MESSAGE:
                return command.reply(body=b"given")
            fields["actingMaster"] = "true"
        return command.reply(ResponseCode.NOT_MASTER, "not me", fields)

    def uplink(self, *, stays=False):
        """A connection that redials at once, and the present one."""
        return Uplink(self.dial, masters=Masters(["c"], "g", dial=self.dial), pause_first_ms=1, stays=stays)


def begun(group, *, stays=False):
    """The connection to the group's master, and what requests go through."""
    uplink = group.uplink(stays=stays)
    uplink.line.start()
    assert isinstance(uplink.connection, MasterConnection)
    return uplink, uplink.connection


async def test_a_refused_request_is_repeated_at_the_master():
    """The broker's own hint leads there; the caller sees only the answer, and its command can be sent twice."""
    group = Group()
    uplink, connection = begun(group)
    assert (await connection.request(Command(1, body=b"x"))).body == b"b1"
    group.master = "b2"
    assert (await connection.request(Command(1, body=b"y"))).body == b"b2"
    assert group.asked == [("b1", b"x"), ("b1", b"y"), ("b2", b"y")]
    await uplink.close()


async def test_without_a_hint_it_asks_until_a_controller_knows():
    """The controller still names the old one for a while."""
    group = Group()
    group.hints = False
    group.master = ""
    uplink, connection = begun(group)
    waiting = asyncio.ensure_future(connection.request(Command(1)))
    while len(group.asked) < 3:
        await asyncio.sleep(0.001)
    group.master = group.known = "b2"
    assert (await waiting).body == b"b2"
    await uplink.close()


async def test_what_was_begun_is_left_to_the_caller():
    """It may have been carried out, as when a connection breaks; the next request goes to the new master."""
    group = Group()
    group.begun.add("b1")
    group.master = "b2"
    uplink, connection = begun(group)
    with pytest.raises(NotMaster) as caught:
        await connection.request(Command(1))
    assert isinstance(caught.value, ConnectionLost)
    assert caught.value.is_begun
    assert (await connection.request(Command(1))).body == b"b2"
    await uplink.close()


async def test_the_time_limit_holds_over_all_attempts():
    """There is no master: the request ends in time."""
    group = Group()
    group.master = ""
    uplink, connection = begun(group)
    with pytest.raises((RequestTimeout, ConnectionLost)):
        await connection.request(Command(1), timeout_ms=50)
    await uplink.close()


async def test_a_paused_master_is_searched_for_elsewhere():
    """After a time limit it asks the controllers, which know of another one."""
    group = Group()
    group.silent.add("b1")
    uplink, connection = begun(group)
    await uplink.line.wait_up(5_000)
    group.master = group.known = "b2"
    with pytest.raises(RequestTimeout):
        await connection.request(Command(1), timeout_ms=20)
    while uplink.line.connected_to != "b2":
        await asyncio.sleep(0)
    assert (await connection.request(Command(1))).body == b"b2"
    await uplink.close()


async def test_a_callback_gets_the_refusal_and_the_next_request_goes_to_the_master():
    """Callbacks are not called twice, so nothing is repeated for them."""
    group = Group()
    group.master = "b2"
    uplink, connection = begun(group)
    await uplink.line.wait_up(5_000)
    answers = asyncio.Queue()
    connection.call(Command(1), lambda response, error: answers.put_nowait((response, error)))
    response, error = await answers.get()
    assert response is None
    assert isinstance(error, NotMaster)
    assert (await connection.request(Command(1))).body == b"b2"
    connection.call(Command(1), lambda response, error: answers.put_nowait((response, error)))
    response, error = await answers.get()
    assert error is None
    assert response.body == b"b2"
    await uplink.close()
    with pytest.raises(ConnectionLost):
        connection.call(Command(1), lambda response, error: None)


@pytest.mark.parametrize("stays", [True, False])
async def test_who_asks_for_it_stays_with_a_replica_that_stands_in(stays):
    """What that refuses fails at once; others leave it, and find it again as long as the controllers name it."""
    group = Group()
    group.master, group.acting, group.known, group.hints = "", "b2", "b2", False
    uplink, connection = begun(group, stays=stays)
    await uplink.line.wait_up(5_000)
    downs = []
    uplink.line.on_down(downs.append)

    async def answered(command):
        while True:
            try:
                return await connection.request(command)
            except ConnectionLost:
                assert not stays, "only who leaves loses a request with its connection"

    with pytest.raises(NotMaster if stays else (RequestTimeout, ConnectionLost)) as refused:
        await connection.request(Command(1), 50)
    assert isinstance(refused.value, NotMaster) == stays
    if stays:
        answers = asyncio.Queue()
        connection.call(Command(1), lambda response, error: answers.put_nowait(error))
        assert (await answers.get()).is_acting
    assert bool(downs) != stays
    assert (await answered(Command(RequestCode.POP_MESSAGE))).body == b"given"
    group.acting, group.master, group.known, group.hints = "", "b1", "b1", True
    assert (await answered(Command(1))).body == b"b1"
    await uplink.close()


NOBODY = "127.0.0.1:1"


def test_either_an_address_or_controllers() -> None:
    for address, controllers in (("", ()), (NOBODY, (NOBODY,))):
        with pytest.raises(LocalMisuse, match="either"):
            Endpoint(address, controllers)
    with pytest.raises(ValueError, match="nowhere"):
        Endpoint(controllers=[NOBODY, "nowhere"])


async def test_a_connection_to_one_broker() -> None:
    server = RemotingServer(lambda peer, command: command.reply(body=command.body))
    address = f"127.0.0.1:{await server.start('127.0.0.1', 0)}"
    async with connect(address) as connection:
        assert (await connection.request(Command(1, body=b"x"))).body == b"x"
    assert connection.closed
    await server.stop()


async def test_a_connection_to_the_master_of_a_group() -> None:
    """The controllers name it."""

    def handler(peer, command):
        if command.code == RequestCode.SUBSCRIBE_ROUTES:
            return command.reply(body=encode_body(PushedRoutes({"g": PushedGroup("C", {0: address}, 1)})))
        return command.reply(body=b"from the master")

    server = RemotingServer(handler)
    address = f"127.0.0.1:{await server.start('127.0.0.1', 0)}"
    async with connect(controllers=[address], broker_name="g") as connection:
        assert isinstance(connection, MasterConnection)
        assert (await connection.request(Command(1))).body == b"from the master"
    await server.stop()


async def test_the_caller_waits_for_an_absent_broker() -> None:
    async with connect(NOBODY) as connection:
        with pytest.raises(ConnectionLost, match="is down"):
            await connection.request(Command(1), 20)


def test_coroutines_run_there_and_their_results_are_returned() -> None:
    with served(lambda peer, command: command.reply(body=command.body)) as server:
        background = BackgroundConnection(Endpoint(server.address), name="a-client")
        assert background.run(background.uplink.connection.request(Command(1, body=b"x"))).body == b"x"
        names: list[str] = []
        called = threading.Event()
        background.call_soon(lambda: names.append(threading.current_thread().name))
        background.call_soon(called.set)
        assert called.wait(10)
        assert names == ["a-client"]
        background.close()
        assert background.is_closed
        assert background.uplink.connection.closed
        background.close()


def test_errors_are_raised_unchanged() -> None:
    background = BackgroundConnection(Endpoint("127.0.0.1:1"), name="a-client")

    async def fail() -> None:
        raise LookupError("as it is")

    with pytest.raises(LookupError, match="as it is"):
        background.run(fail())
    background.close()


def test_a_caller_that_stops_waiting_cancels_the_request(monkeypatch: pytest.MonkeyPatch) -> None:
    """As Ctrl-C does in the main thread."""
    background = BackgroundConnection(Endpoint("127.0.0.1:1"), name="a-client")
    cancelled = threading.Event()
    begun = threading.Event()

    async def wait() -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.set()
            raise

    submit = asyncio.run_coroutine_threadsafe

    def interrupted(coroutine, loop):
        future = submit(coroutine, loop)

        def result() -> None:
            assert begun.wait(10)
            raise KeyboardInterrupt

        future.result = result
        return future

    monkeypatch.setattr(asyncio, "run_coroutine_threadsafe", interrupted)
    with pytest.raises(KeyboardInterrupt):
        background.run(wait())
    assert cancelled.wait(10)
    monkeypatch.undo()
    background.close()
