"""FOLLOW and NOTIFY: only interested proxies are notified, coalesced, and a slow one loses nothing."""

from __future__ import annotations

import asyncio

import pytest

from broker.subscriptions.follow import PUSHED_BYTES_MAX, WHOLE_BYTES_MAX
from remoting.protocol.bodies.follow_body import decode_follow_reply, decode_notify, encode_follow
from remoting.protocol.frames.codes import RequestCode
from remoting.protocol.frames.commands import Command
from remoting.protocol.records import names
from remoting.protocol.records.record import iter_records


async def notified(pushes: list, queue_id: int, end: int) -> None:
    async with asyncio.timeout(5):
        while not any((queue_id, end) in decode_notify(push.body)[0] for push in pushes):
            await asyncio.sleep(0)


async def test_a_follower_is_notified_of_its_own_queues_only(running) -> None:
    store = running.store
    mine = store.queues.open(names.light_queue_name(b"a/1"))
    running.broker.subscriptions.dispatcher.mqtt(b"a/2")
    connection, other = running.connect(), running.connect()
    pushes, strange = [], []
    connection.on_push(pushes.append)
    other.on_push(strange.append)
    reply = await connection.request(Command(RequestCode.FOLLOW, body=encode_follow([mine, 999])))
    assert decode_follow_reply(reply.body) == [0, 0]
    await other.request(Command(RequestCode.APPEND_MANY, body=running.publish(*[b"a/1"] * 50, b"a/2")))
    await notified(pushes, mine, 50)
    assert len(pushes) == 1
    assert pushes[0].code == RequestCode.NOTIFY
    assert pushes[0].is_oneway
    assert not strange


async def test_leaving_and_closing_end_the_notifications(running) -> None:
    mine = running.store.queues.open(names.light_queue_name(b"a/1"))
    connection, other = running.connect(), running.connect()
    pushes = []
    connection.on_push(pushes.append)
    await connection.request(Command(RequestCode.FOLLOW, body=encode_follow([mine])))
    await connection.request(Command(RequestCode.FOLLOW, body=encode_follow([], [mine])))
    await other.request(Command(RequestCode.APPEND_MANY, body=running.publish(b"a/1")))
    assert not pushes
    await connection.close()
    assert len(running.broker.subscriptions.followers) == 0


async def test_a_follower_whose_output_is_full_gets_the_newest_end_later(running) -> None:
    sent = []

    class SlowPeer:
        address = "slow"
        loopback = True
        writable = False

        def __init__(self) -> None:
            self.attributes: dict[str, object] = {}

        def send(self, command: Command) -> None:
            sent.append(command)

        def on_close(self, callback) -> None:
            pass

    peer = SlowPeer()
    mine = running.store.queues.open(names.light_queue_name(b"a/1"))
    running.broker.subscriptions.followers.handle(peer, Command(RequestCode.FOLLOW, body=encode_follow([mine])))
    for _ in range(3):
        await running.connect().request(Command(RequestCode.APPEND_MANY, body=running.publish(b"a/1")))
    assert not sent
    peer.writable = True
    await notified(sent, mine, 3)
    assert len(sent) == 1


async def test_a_follower_of_records_gets_what_was_just_confirmed(running) -> None:
    """Each record once, though it is in two queues of the follower; nothing of queues it does not follow."""
    exact, wide = running.store.queues.open_all([names.light_queue_name(b"a/1"), names.light_queue_name(b"a/2")])
    connection = running.connect()
    pushes = []
    connection.on_push(pushes.append)
    await connection.request(Command(RequestCode.FOLLOW, fields={"records": "1"}, body=encode_follow([exact])))
    await connection.request(Command(RequestCode.APPEND_MANY, body=running.publish(b"a/1", b"a/2", b"a/1")))
    await notified(pushes, exact, 2)
    _, records = decode_notify(pushes[0].body)
    views = list(iter_records(records))
    assert [view.mqtt_topic for view in views] == [b"a/1", b"a/1"]
    assert [offset for view in views for queue, offset in view.dispatch() if queue == exact] == [0, 1]
    assert wide not in {queue for view in views for queue, _ in view.dispatch()}


async def test_a_large_append_is_notified_but_not_pushed(running) -> None:
    """Pushing has a limit; the rest is pulled."""
    exact = running.store.queues.open(names.light_queue_name(b"a/1"))
    connection = running.connect()
    pushes = []
    connection.on_push(pushes.append)
    await connection.request(Command(RequestCode.FOLLOW, fields={"records": "1"}, body=encode_follow([exact])))
    await connection.request(Command(RequestCode.APPEND_MANY, body=running.publish(*[b"a/1"] * 2_000)))
    await notified(pushes, exact, 2_000)
    assert sum(len(decode_notify(push.body)[1]) for push in pushes) <= PUSHED_BYTES_MAX


@pytest.mark.parametrize("policy", [False, True])
async def test_a_follower_of_everything_gets_it_as_it_was_written(running, policy: bool) -> None:
    """Records of other queues among them; but only its own where something may be refused to it."""
    exact = running.store.queues.open(names.light_queue_name(b"a/1"))
    connection = running.connect()
    pushes = []
    connection.on_push(pushes.append)
    if policy:
        running.judge_by(lambda *_: True)
    await connection.request(Command(RequestCode.FOLLOW, fields={"records": "all"}, body=encode_follow([exact])))
    await connection.request(Command(RequestCode.APPEND_MANY, body=running.publish(b"a/1", b"a/2", b"a/1")))
    await notified(pushes, exact, 2)
    ends, records = decode_notify(pushes[0].body)
    assert ends == [(exact, 2)]
    topics = [view.mqtt_topic for view in iter_records(records)]
    assert topics == ([b"a/1", b"a/1"] if policy else [b"a/1", b"a/2", b"a/1"])


async def test_what_is_written_together_is_pushed_up_to_a_limit(running) -> None:
    exact = running.store.queues.open(names.light_queue_name(b"a/1"))
    connection = running.connect()
    pushes = []
    connection.on_push(pushes.append)
    await connection.request(Command(RequestCode.FOLLOW, fields={"records": "all"}, body=encode_follow([exact])))
    body = bytes(WHOLE_BYTES_MAX)
    await connection.request(Command(RequestCode.APPEND_MANY, body=running.publish(b"a/1", body=body)))
    await notified(pushes, exact, 1)
    assert not len(decode_notify(pushes[0].body)[1])
