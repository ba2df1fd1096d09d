"""Shared subscriptions over the wire: which member gets which message, also when one of the parties ends."""

from __future__ import annotations

import asyncio
import json

import pytest

from broker.shared import feature as shared
from broker.store.errors import CorruptLog, UnreadableOffsets
from remoting import inprocess
from remoting.protocol.bodies.session_body import (
    SHARED_BIT,
    FilterRequest,
    FlowBatch,
    SessionClose,
    SessionFlow,
    SessionOpen,
    SessionOpened,
    SharedMember,
    SharedSettle,
    SharedSettled,
    SharedTake,
    SharedTaken,
    Subscribed,
    SubscribeRequest,
    UnsubscribeRequest,
    decode,
    decode_given,
    encode,
)
from remoting.protocol.frames.codes import RequestCode
from remoting.protocol.frames.commands import FLAG_ONEWAY, Command
from remoting.protocol.records.record import FLAG_RETAIN, RecordView
from remoting.transport.contracts import Connection, Peer

NAME = "$share/g/plant/1"
TOPIC = b"plant/1"


class Proxy:
    """A proxy's connection: its messages by handle."""

    def __init__(self, running, connection: Connection | None = None) -> None:
        self.running = running
        self.connection = connection or running.connect()
        self.given: list[tuple[int, int, bytes]] = []
        self.connection.on_push(self._pushed)

    def _pushed(self, command: Command) -> None:
        if command.code != RequestCode.SHARED_GIVEN:
            return
        self.given += [
            (handle, offset, bytes(RecordView(record).body)) for handle, offset, record in decode_given(command.body)
        ]

    async def open(self, client_id: str, name: str = NAME, *, durable: bool = True) -> int:
        """Open a session with its subscription; returns its epoch."""
        body = encode(SessionOpen(client_id, not durable, None, 60 if durable else 0))
        reply = await self.connection.request(Command(RequestCode.SESSION_OPEN, body=body))
        epoch = decode(SessionOpened, reply.body).epoch
        body = encode(SubscribeRequest(client_id, epoch, durable, [FilterRequest(name, 1)]))
        reply = await self.connection.request(Command(RequestCode.SUBSCRIBE, body=body))
        answer = decode(Subscribed, reply.body)
        assert [result.code for result in answer.results] == [1]
        assert answer.retained == []
        return epoch

    async def take(self, handle: int, client_id: str, epoch: int, credit: int, held=(), name: str = NAME) -> bool:
        """Join and grant."""
        body = encode(SharedTake([SharedMember(handle, client_id, epoch, name, credit, list(held))]))
        reply = await self.connection.request(Command(RequestCode.SHARED_TAKE, body=body))
        (joined,) = decode(SharedTaken, reply.body).joined
        return joined

    def settle(self, handle: int, credit: int = 0, done=(), back=()) -> None:
        """Report what a member has acknowledged."""
        body = encode(SharedSettle([SharedSettled(handle, credit, list(done), list(back))]))
        self.connection.oneway(Command(RequestCode.SHARED_SETTLE, flag=FLAG_ONEWAY, body=body))

    async def until(self, count: int) -> list[tuple[int, int, bytes]]:
        """The messages given, once there are this many."""
        async with asyncio.timeout(5):
            while len(self.given) < count:
                await asyncio.sleep(0)
        given, self.given = self.given, []
        assert len(given) == count
        return given


async def publish(running, count: int, body: bytes = b"x") -> None:
    connection = running.connect()
    await connection.request(Command(RequestCode.APPEND_MANY, body=running.publish(*[TOPIC] * count, body=body)))
    await connection.close()


async def turn() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


async def test_members_of_several_proxies_take_turns(running) -> None:
    """Fair over all members with a free window, wherever they are; a message goes to one of them."""
    one, two = Proxy(running), Proxy(running)
    a, b = await one.open("a"), await two.open("b")
    assert await one.take(1, "a", a, 10)
    assert await two.take(1, "b", b, 10)
    await publish(running, 6)
    given = [await one.until(3), await two.until(3)]
    assert sorted(offset for part in given for _, offset, _ in part) == [0, 1, 2, 3, 4, 5]
    assert [offset for _, offset, _ in given[0]] == [0, 2, 4]


async def shown(running, code: int, **fields: str):
    reply = await running.connect().request(Command(code, fields=fields))
    assert reply.code == 0, reply.remark
    return json.loads(reply.body)


async def test_what_waits_is_shown_wherever_groups_and_sessions_are(running) -> None:
    """In the list of groups by name and by lag, in both answers about lag, in the metrics and at the session."""
    proxy = Proxy(running)
    epoch = await proxy.open("a")
    assert await proxy.take(1, "a", epoch, 3)
    await publish(running, 5)
    await proxy.until(3)
    proxy.settle(1, 0, [1])  # out of order: 0 and 2 are in hand, 3 and 4 wait
    await turn()
    running.clock.advance_ms(2_000)
    row = {"name": NAME, "topics": ["plant/1"], "topics_total": 1, "queues": 1, "lag": 4, "lag_s": 2.0, "members": 1}
    for fields in ({}, {"order": "lag"}, {"contains": "g/plant"}):
        listed = await shown(running, RequestCode.GROUP_LIST, **fields)
        assert (listed["groups"], listed["next"], listed["total"]) == ([row], "", 1)
    assert (await shown(running, RequestCode.GROUP_LIST, after=NAME))["groups"] == []
    one = await shown(running, RequestCode.GET_CONSUME_STATS, consumerGroup=NAME)
    (everything,) = (await shown(running, RequestCode.GET_BROKER_CONSUME_STATS, isOrder="false"))["consumeStatsList"]
    assert everything == {NAME: [one]}
    ((queue, numbers),) = one["offsetTable"].items()
    assert json.loads(queue)["topic"] == "plant/1"
    assert (numbers["brokerOffset"] - numbers["consumerOffset"], numbers["waitingMs"]) == (4, 2_000)
    assert running.registry.values()["rocketmq_mqtt_shared_lag_messages{" + NAME + "}"] == 4
    session = (await shown(running, RequestCode.SESSION_LIST, client="a"))["session"]
    assert (session["backlog"], session["shared_backlog"], session["filters"][0]["shared_backlog"]) == (0, 4, 4)
    proxy.settle(1, 0, [0, 2])
    await turn()
    assert (await shown(running, RequestCode.GROUP_LIST))["groups"][0]["lag"] == 2


async def test_a_message_without_a_free_member_waits_for_one(running) -> None:
    """No polling: the next credit brings the next messages."""
    proxy = Proxy(running)
    epoch = await proxy.open("a")
    await publish(running, 3)
    assert await proxy.take(1, "a", epoch, 1)
    assert [offset for _, offset, _ in await proxy.until(1)] == [0]
    proxy.settle(1, 2, [0])
    assert [offset for _, offset, _ in await proxy.until(2)] == [1, 2]
    group = running.broker.shared.groups.get(NAME)
    assert group.offsets.low == 1


async def test_only_the_owner_of_the_open_session_may_join(running) -> None:
    """A fenced proxy, a filter without a subscription, a session that does not exist: not joined, nothing given."""
    one, two = Proxy(running), Proxy(running)
    old = await one.open("a")
    new = await two.open("a")
    assert not await one.take(1, "a", old, 5)
    assert not await one.take(1, "a", new, 5)
    assert not await two.take(1, "a", new, 5, name="$share/other/plant/1")
    assert not await two.take(1, "nobody", new, 5)
    queue_id = running.broker.shared.groups.get(NAME).queue_id
    running.broker.shared.groups.join("$share/h/plant/1", "z", queue_id)
    assert not await two.take(1, "a", new, 5, name="$share/h/plant/1")
    assert await two.take(1, "a", new, 5)


async def test_what_a_lost_proxy_had_goes_to_members_elsewhere(running) -> None:
    """Its connection ends: at once, and nothing is lost."""
    one, two = Proxy(running), Proxy(running)
    a, b = await one.open("a"), await two.open("b")
    await one.take(1, "a", a, 4)
    await publish(running, 4)
    await one.until(4)
    one.settle(1, 0, [1])
    await two.take(1, "b", b, 10)
    await one.connection.close()
    assert [offset for _, offset, _ in await two.until(3)] == [0, 2, 3]
    assert running.broker.tools.metrics.shared_returned.child("proxy_lost").value == 3


async def test_a_member_that_leaves_is_forgotten_and_may_join_again(running) -> None:
    """Messages it had are given again; a late acknowledgement under the old handle is counted and changes nothing."""
    proxy = Proxy(running)
    epoch = await proxy.open("a")
    await proxy.take(1, "a", epoch, 2)
    await publish(running, 2)
    await proxy.until(2)
    body = encode(SessionClose("a", epoch, True, [], []))
    await proxy.connection.request(Command(RequestCode.SESSION_CLOSE, body=body))
    proxy.settle(1, 5, [0, 1])
    await turn()
    assert running.broker.tools.metrics.dropped.child("shared_settle_late").value == 2
    epoch = await proxy.open("a")
    assert await proxy.take(2, "a", epoch, 2)
    assert [(handle, offset) for handle, offset, _ in await proxy.until(2)] == [(2, 0), (2, 1)]
    assert await proxy.take(3, "a", epoch, 2, held=[0])
    assert [(handle, offset) for handle, offset, _ in await proxy.until(1)] == [(3, 1)]
    assert running.broker.tools.metrics.shared_returned.child("joined_again").value == 2


async def test_unsubscribing_keeps_what_is_in_flight(running) -> None:
    """[MQTT-3.10.4-3] nothing new; what was sent may still be acknowledged by its member."""
    proxy = Proxy(running)
    a, b = await proxy.open("a"), await proxy.open("b")
    await proxy.take(1, "a", a, 1)
    await publish(running, 1)
    await proxy.until(1)
    body = encode(UnsubscribeRequest("a", a, True, [NAME]))
    await proxy.connection.request(Command(RequestCode.UNSUBSCRIBE, body=body))
    await proxy.take(2, "b", b, 5)
    await publish(running, 1)
    assert [(handle, offset) for handle, offset, _ in await proxy.until(1)] == [(2, 1)]
    proxy.settle(1, 0, [0])
    await turn()
    assert running.broker.shared.groups.get(NAME).offsets.low == 1
    assert [seat.owner.client_id for seat in running.broker.shared.groups.get(NAME).members] == ["b"]


async def test_a_restart_repeats_only_what_was_not_yet_written(running) -> None:
    """Acknowledgements are written after an interval; members claim the rest before anything goes to others."""
    proxy = Proxy(running)
    epoch = await proxy.open("a")
    await proxy.take(1, "a", epoch, 4)
    await publish(running, 5)
    await proxy.until(4)
    proxy.settle(1, 0, [0, 2])
    async with asyncio.timeout(5):
        while running.broker.shared.groups.get(NAME).offsets.dirty:
            await asyncio.sleep(0.01)
    await running.restart()
    again, other = Proxy(running), Proxy(running)
    fresh = await other.open("b")
    assert await other.take(1, "b", fresh, 10)
    await turn()
    assert other.given == []
    epoch = await again.open("a")
    assert await again.take(1, "a", epoch, 0, held=[1])
    await turn()
    assert other.given == [], "offset 3 may still be claimed"
    running.broker.maintain(running.clock.now_ms())
    running.clock.advance_ms(running.config.shared_wait_ms)
    running.broker.maintain(running.clock.now_ms())
    assert [offset for _, offset, _ in await other.until(2)] == [3, 4]


class FullPeer:
    """A peer whose output is full while the test sets it."""

    def __init__(self, peer: Peer) -> None:
        self._peer = peer
        self.writable = True

    def __getattr__(self, name: str) -> object:
        return getattr(self._peer, name)


async def test_a_proxy_whose_output_is_full_gets_nothing(running) -> None:
    """Its members are skipped until there is room; then it continues by itself."""
    made: list[FullPeer] = []

    def through(peer: Peer, command: Command) -> Command | None:
        if not made:
            made.append(FullPeer(peer))
        return running.router(made[0], command)

    proxy = Proxy(running, inprocess.connect(through))
    epoch = await proxy.open("a")
    await proxy.take(1, "a", epoch, 10)
    made[0].writable = False
    await publish(running, 1)
    assert len(await proxy.until(1)) == 1
    await publish(running, 2)
    await turn()
    assert proxy.given == []
    await proxy.take(2, "a", epoch, 10)
    await turn()
    assert proxy.given == []
    made[0].writable = True
    assert [offset for _, offset, _ in await proxy.until(3)] == [0, 1, 2]


async def test_large_backlogs_go_out_in_bounded_pushes(running, monkeypatch: pytest.MonkeyPatch) -> None:
    """A turn of one group, a read and a push are bounded; everything arrives all the same."""
    monkeypatch.setattr(shared, "TURN_MESSAGES_MAX", 4)
    monkeypatch.setattr(shared, "READ_BYTES_MAX", 500)
    monkeypatch.setattr(shared, "PUSH_BYTES_MAX", 600)
    proxy = Proxy(running)
    epoch = await proxy.open("a")
    await publish(running, 30, b"y" * 100)
    await proxy.take(1, "a", epoch, 100)
    assert [offset for _, offset, _ in await proxy.until(30)] == list(range(30))


async def test_unreadable_and_expired_messages_are_skipped_and_counted(running, monkeypatch) -> None:
    """A damaged range blocks no member."""
    proxy = Proxy(running)
    epoch = await proxy.open("a")
    await publish(running, 4)
    store, queue_id = running.broker.tools.store, running.broker.shared.groups.get(NAME).queue_id
    read = store.reading.read

    def damaged(queue, offset, *rest):
        if offset < 2:
            raise UnreadableOffsets(CorruptLog(store.directory, 0, "damaged"), queue, offset, 2)
        return read(queue, offset, *rest)

    monkeypatch.setattr(store.reading, "read", damaged)
    await proxy.take(1, "a", epoch, 10)
    assert [offset for _, offset, _ in await proxy.until(2)] == [2, 3]
    assert running.broker.tools.metrics.dropped.child("shared_unreadable").value == 2
    monkeypatch.setattr(store.reading, "read", read)
    await publish(running, 3)
    await proxy.until(3)
    monkeypatch.setattr(store.reading, "bounds", lambda queue: (9, 12) if queue == queue_id else (0, 0))
    proxy.settle(1, 0, [2, 3])
    await turn()
    assert running.broker.tools.metrics.dropped.child("shared_retention").value == 2


async def test_a_take_over_moves_what_the_old_connection_had(running) -> None:
    """The session continues elsewhere; the fenced proxy's acknowledgements come too late."""
    one, two = Proxy(running), Proxy(running)
    old = await one.open("a")
    await one.take(1, "a", old, 5)
    await publish(running, 2)
    await one.until(2)
    new = await two.open("a")
    one.settle(1, 0, [0, 1])
    assert await two.take(1, "a", new, 5)
    assert [offset for _, offset, _ in await two.until(2)] == [0, 1]


async def test_a_group_of_durable_sessions_waits_and_one_of_clean_sessions_ends(running) -> None:
    """While all members are away messages are kept for the first; with the last clean session nothing is left."""
    durable, clean = Proxy(running), Proxy(running)
    await durable.open("a")
    await clean.open("b", "$share/clean/plant/1", durable=False)
    await durable.connection.close()
    await clean.connection.close()
    await turn()
    await publish(running, 3)
    again = Proxy(running)
    epoch = await again.open("a")
    await again.take(1, "a", epoch, 5)
    assert len(await again.until(3)) == 3
    assert running.broker.shared.groups.get("$share/clean/plant/1") is None


async def test_a_retained_message_is_not_sent_for_a_shared_subscription(running) -> None:
    """[MQTT 5 4.8.2] a client that needs them subscribes without a group."""
    connection = running.connect()
    await connection.request(Command(RequestCode.APPEND_MANY, body=running.publish(TOPIC, flags=FLAG_RETAIN)))
    proxy = Proxy(running)
    epoch = await proxy.open("a")  # asserts that none came
    await proxy.take(1, "a", epoch, 5)
    await turn()
    assert proxy.given == []


async def note(proxy: Proxy, client_id: str, epoch: int, *reserved: tuple[int, int, int]) -> None:
    """Steps of QoS 2."""
    body = encode(FlowBatch([SessionFlow(client_id, epoch, reserved=list(reserved))]))
    await proxy.connection.request(Command(RequestCode.SESSION_FLOW, body=body))


async def test_what_a_session_has_noted_belongs_to_it(running) -> None:
    """[MQTT-4.8.2-4] no other member gets it when this one leaves, nor after a restart before the group is written."""
    proxy = Proxy(running)
    a, b = await proxy.open("a"), await proxy.open("b")
    await proxy.take(1, "a", a, 3)
    await publish(running, 3)
    await proxy.until(3)
    place = running.broker.shared.groups.get(NAME).queue_id | SHARED_BIT
    await note(proxy, "a", a, (1, place, 1))
    await note(proxy, "a", a - 1, (2, place, 2))
    await note(proxy, "b", b, (3, place, 2), (4, place & ~SHARED_BIT, 0))
    assert running.broker.tools.metrics.dropped.child("flow_fenced").value == 1
    await proxy.connection.request(Command(RequestCode.SESSION_CLOSE, body=encode(SessionClose("a", a, True, [], []))))
    await proxy.take(2, "b", b, 9)
    assert [offset for _, offset, _ in await proxy.until(2)] == [0, 2]
    running.broker.shared._save_timer.cancel()  # the group's state was not written
    await running.restart()
    again = Proxy(running)
    b = await again.open("b")
    await again.take(1, "b", b, 9)
    running.broker.shared.groups.get(NAME).offsets.call_off()
    await publish(running, 1)
    given = [offset for _, offset, _ in await again.until(2)]
    assert given == [0, 3], "1 is noted by a, 2 by b"
    running.broker.maintain(running.clock.now_ms())
    assert not running.broker.shared.groups.get(NAME).offsets.dirty


async def test_what_was_in_flight_ends_with_its_session_and_is_counted(running) -> None:
    """[MQTT-4.8.2-5] without expiry when its connection ends, with one when it is cleaned."""
    proxy = Proxy(running)
    a, b = await proxy.open("a", durable=False), await proxy.open("b")
    await proxy.take(1, "a", a, 2)
    await publish(running, 2)
    await proxy.until(2)
    body = encode(SharedSettle([SharedSettled(1, 0, [], [], [0])]))
    proxy.connection.oneway(Command(RequestCode.SHARED_SETTLE, flag=FLAG_ONEWAY, body=body))
    await proxy.take(2, "b", b, 9)
    await proxy.connection.request(Command(RequestCode.SESSION_CLOSE, body=encode(SessionClose("a", a, False, [], []))))
    assert [offset for _, offset, _ in await proxy.until(1)] == [1]
    lost = running.broker.tools.metrics.dropped.child(shared.SESSION_ENDED)
    assert lost.value == 1
    assert running.broker.tools.metrics.shared_returned.child("member_left").value == 1
    await note(proxy, "b", b, (1, running.broker.shared.groups.get(NAME).queue_id | SHARED_BIT, 1))
    await proxy.open("b", durable=False)
    running.broker.maintain(running.clock.now_ms())
    assert lost.value == 2
