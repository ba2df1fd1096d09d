"""APPEND_MANY: one append per turn, every frame answered after the confirm, refusals alone."""

from __future__ import annotations

import asyncio
import errno

from broker.config import LimitsConfig
from broker.publishing.append import NOT_STORED
from broker.subscriptions.filters import NO_LOCAL
from remoting.protocol.bodies.append_body import PLACES_FIELD, SUBSCRIBERS_FIELD, decode_append_reply, decode_unwanted
from remoting.protocol.bodies.session_body import (
    FilterRequest,
    SessionOpen,
    SessionOpened,
    SubscribeRequest,
    decode,
    encode,
)
from remoting.protocol.frames.codes import RequestCode, ResponseCode
from remoting.protocol.frames.commands import Command
from remoting.protocol.records.image import encode_mqtt_image
from tests.support.clock import ManualClock
from tests.unit.broker.conftest import BrokerBench


async def test_frames_of_one_turn_share_one_append_and_each_gets_its_own_offsets(running) -> None:
    connection = running.connect()
    appends = []
    append = running.store.append
    running.store.append = lambda *placed, **options: (
        appends.append(sum(map(len, placed))) or append(*placed, **options)
    )
    bodies = [running.publish(b"a/1", b"a/2"), running.publish(b"a/1")]
    replies = await asyncio.gather(*[connection.request(Command(RequestCode.APPEND_MANY, body=b)) for b in bodies])
    assert appends == [3]
    places = [decode_append_reply(reply.body) for reply in replies]
    assert places[0][0] == places[1][0] <= running.store.confirm_position
    assert places[1][1] == [
        (places[0][1][0][0], places[0][1][0][1] + (2 if len({p for p, _ in places[0][1]}) == 1 else 1))
    ]
    assert running.registry.values()["rocketmq_messages_in_total"] == 3


async def test_a_refused_frame_leaves_nothing_and_affects_no_other(running) -> None:
    connection = running.connect()
    bodies = [
        running.publish(b"a/1"),
        running.publish(b"a/1", b"a/+"),
        b"".join([encode_mqtt_image(b"a", b"x" * 4_194_305, 0, 1, b"d")]),
        b"\x01\x00",
    ]
    replies = await asyncio.gather(*[connection.request(Command(RequestCode.APPEND_MANY, body=b)) for b in bodies])
    assert [reply.code for reply in replies] == [
        ResponseCode.SUCCESS,
        ResponseCode.MESSAGE_ILLEGAL,
        ResponseCode.MESSAGE_ILLEGAL,
        ResponseCode.INVALID_PARAMETER,
    ]
    assert running.store.metrics()["messages_total"] == 1


async def test_what_only_the_store_finds_too_large_affects_no_other_frame(running) -> None:
    connection = running.connect()
    running.broker.publishing.placement.choice._message_size_bytes_max = 10**9
    bodies = [running.publish(b"a/1"), running.publish(b"a/1", body=b"x" * 6_000_000), running.publish(b"a/2")]
    replies = await asyncio.gather(*[connection.request(Command(RequestCode.APPEND_MANY, body=b)) for b in bodies])
    assert [reply.code for reply in replies] == [0, ResponseCode.MESSAGE_ILLEGAL, 0]
    assert running.store.metrics()["messages_total"] == 2


async def test_nothing_is_acknowledged_when_the_disk_fails(running) -> None:
    connection = running.connect()
    await connection.request(Command(RequestCode.APPEND_MANY, body=running.publish(b"a/1")))
    running.faults.arm("log.fsync", OSError(errno.EIO, "gone"), times=None)
    reply = await connection.request(Command(RequestCode.APPEND_MANY, body=running.publish(b"a/1")))
    assert reply.code == ResponseCode.SERVICE_NOT_AVAILABLE
    assert "gone" in reply.remark
    again = await connection.request(Command(RequestCode.APPEND_MANY, body=running.publish(b"a/1")))
    assert again.code == ResponseCode.SERVICE_NOT_AVAILABLE


async def test_a_full_disk_is_reported_clearly(running) -> None:
    connection = running.connect()
    await connection.request(Command(RequestCode.APPEND_MANY, body=running.publish(b"a/1")))
    running.faults.arm("log.write", OSError(errno.ENOSPC, "full"), times=1)
    reply = await connection.request(Command(RequestCode.APPEND_MANY, body=running.publish(b"a/1")))
    assert reply.code == ResponseCode.SERVICE_NOT_AVAILABLE
    assert "full" in reply.remark


def exact(*publishes: tuple[bytes, int], client_id: bytes = b"c") -> Command:
    entries = [encode_mqtt_image(b"t", body, 2, 1, client_id, packet_id) for body, packet_id in publishes]
    return Command(RequestCode.APPEND_MANY, body=b"".join(entries))


async def opened(connection) -> SessionOpened:
    body = encode(SessionOpen("c", False, None, 60))
    return decode(SessionOpened, (await connection.request(Command(RequestCode.SESSION_OPEN, body=body))).body)


async def test_a_packet_id_is_stored_with_its_message_and_a_repetition_is_not(running) -> None:
    connection = running.connect()
    await opened(connection)
    reply = await connection.request(exact((b"one", 1), (b"two", 2)))
    assert all(place != NOT_STORED for place in decode_append_reply(reply.body)[1])
    again = await connection.request(exact((b"one", 1), (b"three", 3), (b"three", 3)))
    assert [place == NOT_STORED for place in decode_append_reply(again.body)[1]] == [True, False, True]
    only_known = await connection.request(exact((b"two", 2)))
    assert decode_append_reply(only_known.body)[1] == [NOT_STORED]
    assert running.store.metrics()["messages_total"] == 3
    assert running.registry.values()["rocketmq_broker_drops_total{publish_repeated}"] == 3
    await running.restart()
    assert (await opened(running.connect())).received == [1, 2, 3]


async def test_a_proxy_that_lost_the_session_stores_nothing_for_it(running) -> None:
    old, new = running.connect(), running.connect()
    await opened(old)
    await opened(new)
    reply = await old.request(exact((b"one", 1)))
    assert (reply.code, "'c'" in reply.remark) == (ResponseCode.ILLEGAL_OPERATION, True)
    assert running.store.metrics()["messages_total"] == 0
    assert running.registry.values()["rocketmq_broker_drops_total{publish_fenced}"] == 1


async def test_a_take_over_sees_the_ids_of_the_same_turn(running) -> None:
    old, new = running.connect(), running.connect()
    await opened(old)
    reply, taken = await asyncio.gather(old.request(exact((b"one", 7))), opened(new))
    assert reply.code == 0
    assert taken.received == [7]


async def test_an_id_whose_message_was_not_stored_is_not_recorded(running) -> None:
    connection = running.connect()
    await opened(connection)
    running.broker.publishing.placement.choice._message_size_bytes_max = 10**9
    replies = await asyncio.gather(*[connection.request(exact(one)) for one in [(b"x" * 6_000_000, 1), (b"small", 2)]])
    assert [reply.code for reply in replies] == [ResponseCode.MESSAGE_ILLEGAL, 0]
    assert (await opened(connection)).received == [2]
    running.store.disk.full = True
    assert (await connection.request(exact((b"y", 3)))).code == ResponseCode.SERVICE_NOT_AVAILABLE
    assert (await opened(connection)).received == [2]


def asking(body: bytes) -> Command:
    return Command(RequestCode.APPEND_MANY, fields={SUBSCRIBERS_FIELD: "1"}, body=body)


async def test_on_request_the_answer_has_which_entries_have_no_subscriber(running) -> None:
    """Over all sessions; not known of a delayed or a repeated message. Without the request it is left out."""
    connection, other = running.connect(), running.connect()
    session = await opened(other)
    wanted = [FilterRequest("a/+", 0), FilterRequest("$share/g/b", 1), FilterRequest("mine", 1, NO_LOCAL)]
    await other.request(Command(RequestCode.SUBSCRIBE, body=encode(SubscribeRequest("c", session.epoch, True, wanted))))
    body = running.publish(b"a/1", b"a", b"b", b"a/1/2", b"mine")
    reply = await connection.request(asking(body))
    assert decode_unwanted(reply.body) == {1, 3}
    assert len(decode_append_reply(reply.body)[1]) == 5
    unasked = await connection.request(Command(RequestCode.APPEND_MANY, body=body))
    assert len(unasked.body) == len(reply.body) - 1
    delayed = encode_mqtt_image(b"x", b"", 1, 1, b"d", 0, [(b"delay-ms", b"60000")])
    own = encode_mqtt_image(b"mine", b"", 1, 1, b"c")
    ids = [encode_mqtt_image(b"x", b"", 2, 1, b"c", packet_id) for packet_id in (1, 2)]
    assert decode_unwanted((await other.request(asking(b"".join([own, delayed, ids[0]])))).body) == {0, 2}
    assert decode_unwanted((await other.request(asking(b"".join([*ids, own])))).body) == {1, 2}
    assert decode_unwanted((await other.request(asking(b"".join(ids)))).body) == frozenset()


async def test_a_session_that_is_away_is_a_subscriber_until_it_ends(running) -> None:
    connection, other = running.connect(), running.connect()
    session = await opened(other)
    wanted = SubscribeRequest("c", session.epoch, True, [FilterRequest("a", 1), FilterRequest("a/#", 1)])
    await other.request(Command(RequestCode.SUBSCRIBE, body=encode(wanted)))
    await other.close()
    body = running.publish(b"a", b"a/1", b"b")
    assert decode_unwanted((await connection.request(asking(body))).body) == {2}
    await running.restart()
    connection = running.connect()
    assert decode_unwanted((await connection.request(asking(body))).body) == {2}
    running.clock.advance_ms(61_000)
    running.broker.maintain(running.clock.now_ms())
    assert decode_unwanted((await connection.request(asking(body))).body) == {0, 1, 2}


async def test_retained_messages_beyond_the_quota_are_refused(tmp_path) -> None:
    """With a code of its own; others are accepted, and so is replacing."""
    bench = BrokerBench(tmp_path / "data", ManualClock(), limits=LimitsConfig(retained_messages_max=1))
    connection = bench.connect()
    for topic, flags, code in ((b"a", 5, 0), (b"b", 5, 215), (b"b", 1, 0), (b"a", 5, 0)):
        reply = await connection.request(Command(RequestCode.APPEND_MANY, body=bench.publish(topic, flags=flags)))
        assert reply.code == code, (topic, reply.remark)
    assert bench.registry.values()["rocketmq_requests_refused_total{retained_quota}"] == 1
    bench.store.close()


async def test_offsets_are_left_out_where_they_are_not_wanted(running) -> None:
    connection = running.connect()
    command = Command(RequestCode.APPEND_MANY, fields={PLACES_FIELD: "0"}, body=running.publish(b"a/1", b"a/2"))
    assert decode_append_reply((await connection.request(command)).body) == (running.store.end_position, [])


async def test_work_between_messages_is_done_between_them(running) -> None:
    """After what was gathered, before what comes; in this turn also when nothing comes."""
    appender, seen = running.broker.publishing.appender, []
    append = running.store.append
    running.store.append = lambda *placed, **options: seen.append(sum(map(len, placed))) or append(*placed, **options)
    placed = running.broker.publishing.placement.placed

    def add(*topics: bytes) -> None:
        appender.add(placed(running.publish(*topics)), lambda *_: None)

    add(b"a", b"b")
    appender.behind(lambda: seen.append("work"))
    add(b"c")
    appender.behind(lambda: seen.append("more"))
    await asyncio.sleep(0)
    assert seen == [2, "work", 1, "more"]
    appender.catch_up()
    assert len(seen) == 4
