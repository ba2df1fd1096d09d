"""Session requests over the wire: fencing, retained capture, offsets, restart."""

from __future__ import annotations

import asyncio

import pytest

from broker.retained import search
from broker.sessions import requests
from remoting.protocol.bodies.pull_body import encode_records_at
from remoting.protocol.bodies.session_body import (
    PHASE_PUBLISH,
    PHASE_PUBREL,
    FilterRequest,
    FlowBatch,
    FlowNoted,
    InflightEntry,
    SessionClose,
    SessionFenced,
    SessionFlow,
    SessionOpen,
    SessionOpened,
    Subscribed,
    SubscribeRequest,
    Unsubscribed,
    UnsubscribeRequest,
    decode,
    encode,
    encode_offsets,
)
from remoting.protocol.frames.codes import RequestCode, ResponseCode
from remoting.protocol.frames.commands import Command
from remoting.protocol.records.names import light_queue_name
from remoting.protocol.records.record import FLAG_RETAIN, iter_records


async def call(connection, code, body, kind=None):
    reply = await connection.request(Command(code, body=encode(body)))
    assert reply.code == 0, reply.remark
    return decode(kind, reply.body) if kind is not None else reply


async def test_many_filters_of_one_packet_are_handled_in_turns(running, monkeypatch) -> None:
    """What else comes for the session keeps its order behind them; each filter has its result."""
    monkeypatch.setattr(requests, "FILTERS_PER_TURN", 20)
    connection = running.connect()
    epoch = (await call(connection, RequestCode.SESSION_OPEN, SessionOpen("c", False, None, 60), SessionOpened)).epoch
    filters = [f"many/{number}" for number in range(90)] + ["bad/#/filter"]
    wanted = SubscribeRequest("c", epoch, True, [FilterRequest(name, 1) for name in filters])
    gone = UnsubscribeRequest("c", epoch, True, [*filters[:85], "unknown"])
    again = SubscribeRequest("c", epoch, True, [FilterRequest("many/3", 0)])
    asked = [
        asyncio.ensure_future(call(connection, RequestCode.SUBSCRIBE, wanted, Subscribed)),
        asyncio.ensure_future(call(connection, RequestCode.UNSUBSCRIBE, gone, Unsubscribed)),
        asyncio.ensure_future(call(connection, RequestCode.SUBSCRIBE, again, Subscribed)),
    ]
    session = running.broker.sessions.table.get("c")
    between = set()
    while not all(one.done() for one in asked):
        between.add(len(session.subscriptions))
        await asyncio.sleep(0)
    subscribed, unsubscribed, more = [one.result() for one in asked]
    assert {20, 40, 60, 80} <= between
    assert [result.code for result in subscribed.results] == [1] * 90 + [0x8F]
    assert unsubscribed.found == [True] * 85 + [False]
    assert [(result.code, result.existed) for result in more.results] == [(0, False)]
    assert set(session.subscriptions) == {*filters[85:90], "many/3"}
    lost = SubscribeRequest("c", epoch, True, [FilterRequest(f"late/{number}", 1) for number in range(60)])
    asked = [
        asyncio.ensure_future(connection.request(Command(RequestCode.SUBSCRIBE, body=encode(lost)))),
        asyncio.ensure_future(call(running.connect(), RequestCode.SESSION_OPEN, SessionOpen("c", False, None, 60))),
    ]
    reply, _opened = await asyncio.gather(*asked)
    assert reply.code in (0, ResponseCode.ILLEGAL_OPERATION), "answered, whoever was first"


async def test_a_long_search_for_retained_messages_delays_its_session_alone(running, monkeypatch) -> None:
    """Further requests of the session keep their order behind it; those of others are answered meanwhile."""
    monkeypatch.setattr(search, "NODES_PER_TURN", 2)
    connection, other = running.connect(), running.connect()
    images = running.publish(*[b"many/%d" % number for number in range(300)], flags=1 | FLAG_RETAIN)
    await connection.request(Command(RequestCode.APPEND_MANY, body=images))
    epochs = [
        (await call(one, RequestCode.SESSION_OPEN, SessionOpen(name, True, None, 0), SessionOpened)).epoch
        for one, name in ((connection, "wide"), (other, "narrow"))
    ]
    order = []

    async def ask(one, code, body, kind, label) -> object:
        answer = await call(one, code, body, kind)
        order.append(label)
        return answer

    def wide(name: str) -> SubscribeRequest:
        return SubscribeRequest("wide", epochs[0], False, [FilterRequest(name, 1)])

    leave = UnsubscribeRequest("wide", epochs[0], False, ["#", "gone"])
    stranger = UnsubscribeRequest("narrow", epochs[1], False, ["a"])
    first, left, again, _ = await asyncio.gather(
        ask(connection, RequestCode.SUBSCRIBE, wide("#"), Subscribed, "first"),
        ask(connection, RequestCode.UNSUBSCRIBE, leave, Unsubscribed, "left"),
        ask(connection, RequestCode.SUBSCRIBE, wide("many/+"), Subscribed, "again"),
        ask(other, RequestCode.UNSUBSCRIBE, stranger, Unsubscribed, "other"),
    )
    assert len(first.retained[0][1]) == len(again.retained[0][1]) == 300
    assert left.found == [True, False]
    assert order == ["other", "first", "left", "again"]


async def test_the_previous_owner_is_told_its_epoch(running) -> None:
    one, two = running.connect(), running.connect()
    pushes = []
    one.on_push(pushes.append)
    first = await call(one, RequestCode.SESSION_OPEN, SessionOpen("c", True, None, 0), SessionOpened)
    second = await call(two, RequestCode.SESSION_OPEN, SessionOpen("c", True, None, 0), SessionOpened)
    assert second.epoch > first.epoch
    async with asyncio.timeout(5):
        while not pushes:
            await asyncio.sleep(0)
    assert pushes[0].code == RequestCode.SESSION_FENCED
    assert decode(SessionFenced, pushes[0].body) == SessionFenced("c", first.epoch)
    late = await one.request(
        Command(RequestCode.SUBSCRIBE, body=encode(SubscribeRequest("c", first.epoch, False, [("a", 1)])))
    )
    assert late.code == ResponseCode.ILLEGAL_OPERATION


async def test_retained_messages_come_with_the_subscription_they_match(running) -> None:
    connection = running.connect()
    await connection.request(Command(RequestCode.APPEND_MANY, body=running.publish(b"a/1", b"b/1", flags=FLAG_RETAIN)))
    opened = await call(connection, RequestCode.SESSION_OPEN, SessionOpen("c", False, None, 60), SessionOpened)
    subscribe = SubscribeRequest("c", opened.epoch, True, [("none/#", 1), ("a/#/x", 1), ("+/1", 1)])
    answer = await call(connection, RequestCode.SUBSCRIBE, subscribe, Subscribed)
    assert [result.code for result in answer.results] == [1, 0x8F, 1]
    ((index, positions),) = answer.retained
    assert index == 2
    blob = (await connection.request(Command(RequestCode.RECORDS_AT, body=encode_records_at(positions)))).body
    assert [bytes(view.mqtt_topic) for view in iter_records(blob)] == [b"a/1", b"b/1"]
    assert answer.results[2].offset == 0


async def test_offsets_and_subscriptions_after_a_restart(running) -> None:
    connection = running.connect()
    opened = await call(connection, RequestCode.SESSION_OPEN, SessionOpen("c", False, "anna", 60), SessionOpened)
    subscribe = SubscribeRequest("c", opened.epoch, True, [("a/+", 1)])
    answer = await call(connection, RequestCode.SUBSCRIBE, subscribe, Subscribed)
    queue_id = answer.results[0].queue_id
    await connection.request(Command(RequestCode.APPEND_MANY, body=running.publish(*[b"a/1"] * 5)))
    body = encode_offsets([(b"c", queue_id, 3), (b"stranger", queue_id, 4)])
    assert (await connection.request(Command(RequestCode.APPEND_OFFSETS, body=body))).code == 0
    assert running.registry.values()["rocketmq_broker_drops_total{offset_fenced}"] == 1
    await running.restart()
    again = running.connect()
    resumed = await call(again, RequestCode.SESSION_OPEN, SessionOpen("c", False, "anna", 60), SessionOpened)
    assert resumed.present
    assert [(s.filter, s.queue_id, s.offset) for s in resumed.subscriptions] == [("a/+", queue_id, 3)]
    await call(again, RequestCode.SESSION_CLOSE, SessionClose("c", resumed.epoch, True, [(queue_id, 5)], []))
    third = await call(again, RequestCode.SESSION_OPEN, SessionOpen("c", False, "anna", 60), SessionOpened)
    assert third.subscriptions[0].offset == 5
    gone = UnsubscribeRequest("c", third.epoch, True, ["a/+", "b"])
    assert (await call(again, RequestCode.UNSUBSCRIBE, gone, Unsubscribed)).found == [True, False]


async def test_a_lost_proxy_ends_its_clean_sessions(running) -> None:
    connection = running.connect()
    await call(connection, RequestCode.SESSION_OPEN, SessionOpen("c", True, None, 0))
    await call(connection, RequestCode.SESSION_OPEN, SessionOpen("d", False, None, 60))
    await connection.close()
    assert running.broker.sessions.table.get("c") is None
    assert running.broker.sessions.table.get("d").owner is None


@pytest.mark.parametrize(("handling", "first", "second"), [(0, 1, 1), (1, 1, 0), (2, 0, 0)])
async def test_retain_handling_says_when_retained_messages_come(running, handling, first, second) -> None:
    connection = running.connect()
    await connection.request(Command(RequestCode.APPEND_MANY, body=running.publish(b"a", flags=FLAG_RETAIN)))
    opened = await call(connection, RequestCode.SESSION_OPEN, SessionOpen("c", False, None, 60), SessionOpened)
    subscribe = SubscribeRequest("c", opened.epoch, True, [FilterRequest("a", 1, handling << 2)])
    for expected in (first, second):
        answer = await call(connection, RequestCode.SUBSCRIBE, subscribe, Subscribed)
        assert len(answer.retained) == expected


async def test_steps_of_qos_2_survive_a_restart_and_a_fenced_proxy_is_refused(running) -> None:
    connection = running.connect()
    opened = await call(connection, RequestCode.SESSION_OPEN, SessionOpen("c", False, None, 60), SessionOpened)
    subscribe = SubscribeRequest("c", opened.epoch, True, [FilterRequest("a", 2, 2, 5)])
    queue_id = (await call(connection, RequestCode.SUBSCRIBE, subscribe, Subscribed)).results[0].queue_id
    steps = SessionFlow("c", opened.epoch, reserved=[(1, queue_id, 0), (2, queue_id, 1)])
    stale = SessionFlow("c", opened.epoch - 1, reserved=[(3, queue_id, 2)])
    noted = await call(connection, RequestCode.SESSION_FLOW, FlowBatch([steps, stale]), FlowNoted)
    assert noted.fenced == [1], "it must not take them for noted"
    received = Command(RequestCode.SESSION_FLOW, body=encode(FlowBatch([SessionFlow("c", opened.epoch, received=[1])])))
    assert (await connection.request(received)).body == b""
    assert running.registry.values()["rocketmq_broker_drops_total{flow_fenced}"] == 1
    await running.restart()
    again = await call(running.connect(), RequestCode.SESSION_OPEN, SessionOpen("c", False, None, 60), SessionOpened)
    assert again.inflight == [
        InflightEntry(1, queue_id, 0, PHASE_PUBREL, 2),
        InflightEntry(2, queue_id, 1, PHASE_PUBLISH, 2),
    ]
    (stored,) = again.subscriptions
    assert (stored.options, stored.subscription_id, stored.exact_from, stored.exact_below) == (2, 5, 0, 2)


async def test_an_owner_hands_over_the_session_before_another_proxy_has_it(running) -> None:
    one, two, three = running.connect(), running.connect(), running.connect()
    pushes: asyncio.Queue[SessionFenced] = asyncio.Queue()
    one.on_push(lambda command: pushes.put_nowait(decode(SessionFenced, command.body)))
    first = await call(one, RequestCode.SESSION_OPEN, SessionOpen("c", False, "anna", 60), SessionOpened)
    stranger = Command(RequestCode.SESSION_OPEN, body=encode(SessionOpen("c", False, "otto", 60)))
    assert (await two.request(stranger)).code == ResponseCode.NO_PERMISSION
    taking = [
        asyncio.ensure_future(
            call(connection, RequestCode.SESSION_OPEN, SessionOpen("c", False, "anna", 60), SessionOpened)
        )
        for connection in (two, three)
    ]
    assert await asyncio.wait_for(pushes.get(), 5) == SessionFenced("c", first.epoch, hand_over=True)
    note = [InflightEntry(4, 9, 3)]
    await call(one, RequestCode.SESSION_CLOSE, SessionClose("c", first.epoch, True, [], note))
    answers = await asyncio.wait_for(asyncio.gather(*taking), 5)
    assert [(answer.present, answer.inflight) for answer in answers] == [(True, note), (True, note)]
    assert answers[1].epoch > answers[0].epoch > first.epoch
    assert pushes.empty()


async def test_an_owner_that_does_not_answer_loses_the_session(running, monkeypatch) -> None:
    monkeypatch.setattr(requests, "HANDOVER_MS", 1)
    one, two = running.connect(), running.connect()
    first = await call(one, RequestCode.SESSION_OPEN, SessionOpen("c", False, None, 60), SessionOpened)
    second = await call(two, RequestCode.SESSION_OPEN, SessionOpen("c", False, None, 60), SessionOpened)
    assert second.epoch > first.epoch
    assert second.present
    late = Command(RequestCode.SESSION_CLOSE, body=encode(SessionClose("c", first.epoch, True, [], [])))
    assert (await one.request(late)).code == ResponseCode.ILLEGAL_OPERATION


def subscribing(client_id: str, epoch: int, *filters: str) -> Command:
    request = SubscribeRequest(client_id, epoch, False, [FilterRequest(one, 1) for one in filters])
    return Command(RequestCode.SUBSCRIBE, body=encode(request))


async def test_subscribes_of_a_turn_create_their_queues_by_one_record(running) -> None:
    """Whatever connections they come by; a bad filter is refused alone, and an existing one is not created again."""
    one, two = running.connect(), running.connect()
    first = await call(one, RequestCode.SESSION_OPEN, SessionOpen("a", True, None, 0), SessionOpened)
    second = await call(two, RequestCode.SESSION_OPEN, SessionOpen("b", True, None, 0), SessionOpened)
    asked, made = running.store.queues.open_all, []
    running.store.queues.open_all = lambda wanted: made.append(len(wanted)) or asked(wanted)
    replies = await asyncio.gather(
        one.request(subscribing("a", first.epoch, "x/1", "x/2")),
        two.request(subscribing("b", second.epoch, "x/2", "bad/#/x", "y/+")),
    )
    results = [decode(Subscribed, reply.body).results for reply in replies]
    assert made[0] == 2
    assert results[0][1].queue_id == results[1][0].queue_id == running.store.queues.find(light_queue_name(b"x/2"))
    assert [each.code for each in results[1]] == [1, 0x8F, 1]
    end = running.store.end_position
    await one.request(subscribing("a", first.epoch, "x/2"))
    assert running.store.end_position == end


async def test_subscribes_of_a_turn_keep_their_place_among_publishes(running) -> None:
    connection = running.connect()
    epoch = (await call(connection, RequestCode.SESSION_OPEN, SessionOpen("a", True, None, 0), SessionOpened)).epoch
    _, reply, _ = await asyncio.gather(
        connection.request(Command(RequestCode.APPEND_MANY, body=running.publish(b"t", b"t"))),
        connection.request(subscribing("a", epoch, "t")),
        connection.request(Command(RequestCode.APPEND_MANY, body=running.publish(b"t"))),
    )
    (result,) = decode(Subscribed, reply.body).results
    assert result.offset == 2
    assert running.store.reading.bounds(result.queue_id)[1] == 3


async def test_what_follows_a_subscribe_in_its_turn_finds_it_done(running) -> None:
    connection = running.connect()
    opening = Command(RequestCode.SESSION_OPEN, body=encode(SessionOpen("a", True, None, 60)))
    epoch = decode(SessionOpened, (await connection.request(opening)).body).epoch
    durable = SubscribeRequest("a", epoch, True, [FilterRequest("t", 1)])
    again = Command(RequestCode.SESSION_OPEN, body=encode(SessionOpen("a", False, None, 60)))
    _, opened = await asyncio.gather(
        connection.request(Command(RequestCode.SUBSCRIBE, body=encode(durable))), connection.request(again)
    )
    (stored,) = decode(SessionOpened, opened.body).subscriptions
    assert stored.filter == "t"


async def test_one_refused_subscribe_of_a_turn_affects_no_other(running) -> None:
    connection = running.connect()
    epoch = (await call(connection, RequestCode.SESSION_OPEN, SessionOpen("a", True, None, 0), SessionOpened)).epoch
    fenced, held = await asyncio.gather(
        connection.request(subscribing("a", epoch + 1, "t")), connection.request(subscribing("a", epoch, "t"))
    )
    assert (fenced.code, held.code) == (ResponseCode.ILLEGAL_OPERATION, 0)
    running.store.disk.full = True
    full = await asyncio.gather(*[connection.request(subscribing("a", epoch, topic)) for topic in ("u", "v")])
    assert [reply.code for reply in full] == [ResponseCode.SERVICE_NOT_AVAILABLE] * 2
