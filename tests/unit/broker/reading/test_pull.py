"""Raw records by queue, by range, by position and by filter; nothing hidden or unconfirmed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import numpy as np
import pytest

from broker.reading import pull as module
from broker.reading.pull import filtered
from remoting.access.rules import ALLOWED, Verdict
from remoting.filtering import judge
from remoting.protocol.bodies.append_body import decode_append_reply
from remoting.protocol.bodies.pull_body import (
    STATUS_DAMAGED,
    STATUS_NO_SUCH_QUEUE,
    STATUS_OFFSET_TOO_LARGE,
    STATUS_OK,
    VIEW,
    PulledRange,
    RowFilter,
    decode_filtered_reply,
    decode_multi_pull_reply,
    decode_range_pull_reply,
    encode_filtered_pull,
    encode_multi_pull,
    encode_range_pull,
    encode_records_at,
    encode_row_filter,
)
from remoting.protocol.frames.codes import RequestCode, ResponseCode
from remoting.protocol.frames.commands import Command
from remoting.protocol.records import names
from remoting.protocol.records.record import RecordView, iter_records


async def pull(connection, *wants):
    reply = await connection.request(Command(RequestCode.MULTI_PULL, body=encode_multi_pull(wants)))
    assert reply.code == 0, reply.remark
    return decode_multi_pull_reply(reply.body)


async def test_many_queues_in_one_request(running) -> None:
    connection = running.connect()
    await connection.request(Command(RequestCode.APPEND_MANY, body=running.publish(b"a/1", b"a/2", b"a/1")))
    one, two = (running.store.queues.find(names.light_queue_name(topic)) for topic in (b"a/1", b"a/2"))
    results = await pull(
        connection, (one, 0, 10, 9_999), (two, 1, 10, 9_999), (one, 5, 10, 9_999), (9_999, 0, 10, 9_999), (one, 0, 1, 1)
    )
    assert [r.status for r in results] == [
        STATUS_OK,
        STATUS_OK,
        STATUS_OFFSET_TOO_LARGE,
        STATUS_NO_SUCH_QUEUE,
        STATUS_OK,
    ]
    assert [r.count for r in results] == [2, 0, 0, 0, 1]
    assert [bytes(v.mqtt_topic) for v in iter_records(results[0].blob)] == [b"a/1", b"a/1"]
    assert results[0].next_offset == results[0].max_offset == 2


async def test_a_new_master_calls_no_offset_too_large_before_it_is_sure(running) -> None:
    """Proxies wait as at the end of a queue, and Spark's tasks ask again: nobody is told of a loss."""
    connection = running.connect()
    await connection.request(Command(RequestCode.APPEND_MANY, body=running.publish(b"a/1")))
    queue = running.store.queues.find(names.light_queue_name(b"a/1"))
    identity, ranged = running.broker.tools.identity, encode_range_pull(queue, 5, 9, 9_999)
    identity.started_position = running.store.end_position + 1
    (waits,) = await pull(connection, (queue, 5, 10, 9_999))
    assert (waits.status, waits.count, waits.next_offset, waits.max_offset) == (STATUS_OK, 0, 5, 1)
    refused = await connection.request(Command(RequestCode.RANGE_PULL, body=ranged))
    assert refused.code == ResponseCode.SERVICE_NOT_AVAILABLE
    identity.started_position -= 1
    (beyond,) = await pull(connection, (queue, 5, 10, 9_999))
    assert beyond.status == STATUS_OFFSET_TOO_LARGE
    shorter = await connection.request(Command(RequestCode.RANGE_PULL, body=ranged))
    assert decode_range_pull_reply(shorter.body).status == STATUS_OFFSET_TOO_LARGE


async def test_one_answer_is_bounded_and_every_queue_still_moves(running) -> None:
    connection = running.connect()
    object.__setattr__(running.broker.tools.config.limits, "pull_bytes_max", 1_000)
    await connection.request(Command(RequestCode.APPEND_MANY, body=running.publish(*[b"a/1"] * 20)))
    queue_id = running.store.queues.find(names.light_queue_name(b"a/1"))
    results = await pull(connection, (queue_id, 0, 100, 99_999), (queue_id, 0, 100, 99_999))
    assert 0 < results[0].count < 20
    assert results[1].status == STATUS_OK
    assert results[1].next_offset == results[1].count
    object.__setattr__(running.broker.tools.config.limits, "pull_bytes_max", 8_388_608)


async def test_a_range_ends_where_asked_and_says_where_records_start(running) -> None:
    connection = running.connect()
    await connection.request(Command(RequestCode.APPEND_MANY, body=running.publish(*[b"a/1"] * 5)))
    queue_id = running.store.queues.find(names.light_queue_name(b"a/1"))
    body = encode_range_pull(queue_id, 1, 4, 99_999)
    found = decode_range_pull_reply((await connection.request(Command(RequestCode.RANGE_PULL, body=body))).body)
    assert (found.first_offset, found.next_offset, found.count, found.max_offset) == (1, 4, 3, 5)
    assert len(list(iter_records(found.blob))) == 3


async def test_records_by_position_leave_out_what_is_not_there(running) -> None:
    connection = running.connect()
    reply = await connection.request(Command(RequestCode.APPEND_MANY, body=running.publish(b"a/1")))
    end = decode_append_reply(reply.body)[0]
    queue_id = running.store.queues.find(names.light_queue_name(b"a/1"))
    position = next(iter_records(running.store.reading.read(queue_id, 0, 1, 1).records[0])).position
    body = encode_records_at([position, end, 2**40, position])
    blob = (await connection.request(Command(RequestCode.RECORDS_AT, body=body))).body
    assert [view.position for view in iter_records(blob)] == [position, position]


async def test_records_that_are_not_confirmed_yet_are_waited_for(running) -> None:
    """Who asks takes what is not in the answer for gone."""
    reply = await running.connect().request(Command(RequestCode.APPEND_MANY, body=running.publish(b"a/1")))
    queue_id = running.store.queues.find(names.light_queue_name(b"a/1"))
    (position,) = running.store.reading.positions(queue_id, 0, 1)
    await running.take_over()
    body = encode_records_at([position])
    asking = asyncio.create_task(running.connect().request(Command(RequestCode.RECORDS_AT, body=body)))
    await asyncio.sleep(0)
    assert not asking.done()
    running.confirm()
    reply = await asking
    assert [view.position for view in iter_records(reply.body)] == [position]


async def test_an_answer_by_position_ends_where_it_is_full(running, monkeypatch) -> None:
    """The first record always fits."""
    monkeypatch.setattr(module, "RECORDS_AT_BYTES_MAX", 300)
    connection = running.connect()
    await connection.request(Command(RequestCode.APPEND_MANY, body=running.publish(*[b"a/1"] * 3)))
    queue_id = running.store.queues.find(names.light_queue_name(b"a/1"))
    records = running.store.reading.read(queue_id, 0, 9, 1 << 20).records
    positions = [RecordView(record).position for record in records]
    assert 300 < 2 * len(records[0]) < 600
    for asked in (positions, positions[1:]):
        blob = (await connection.request(Command(RequestCode.RECORDS_AT, body=encode_records_at(asked)))).body
        assert [view.position for view in iter_records(blob)] == asked[:1]


def rot(running, queue_id: int, offset: int) -> int:
    """Change a byte of a confirmed record on the disk; return its position."""
    position = next(iter_records(running.store.reading.read(queue_id, offset, 1, 1).records[0])).position
    path = next(path for path in (running.store.directory / "log").iterdir() if path.name.isdigit())
    with path.open("r+b") as file:
        file.seek(position + 90)
        file.write(b"\xff")
    return position


async def test_damage_delays_neither_its_queue_nor_the_others(running) -> None:
    """It is answered once, with the offset to continue at; the other queue of the pull is served."""
    connection = running.connect()
    await connection.request(Command(RequestCode.APPEND_MANY, body=running.publish(*[b"a/1"] * 4, b"a/2")))
    one, two = (running.store.queues.find(names.light_queue_name(topic)) for topic in (b"a/1", b"a/2"))
    position = rot(running, one, 1)
    before, at, behind, other = await pull(
        connection, (one, 0, 10, 9_999), (one, 1, 10, 9_999), (one, 2, 10, 9_999), (two, 0, 10, 9_999)
    )
    assert (before.status, before.count, before.next_offset) == (STATUS_OK, 1, 1)
    assert (at.status, at.count, at.first_offset, at.max_offset) == (STATUS_DAMAGED, 0, 2, 4)
    assert (behind.status, behind.count) == (STATUS_OK, 2)
    assert (other.status, other.count) == (STATUS_OK, 1)
    body = encode_range_pull(one, 1, 4, 99_999)
    found = decode_range_pull_reply((await connection.request(Command(RequestCode.RANGE_PULL, body=body))).body)
    assert (found.status, found.count, found.first_offset) == (STATUS_DAMAGED, 0, 2)
    reply = await connection.request(Command(RequestCode.RECORDS_AT, body=encode_records_at([position])))
    assert (reply.code, bytes(reply.body)) == (0, b"")


def asking(queue_id: int, offset: int, end: int, wanted: RowFilter, size: int = 99_999) -> Command:
    body = encode_filtered_pull(queue_id, offset, end, size, encode_row_filter(wanted))
    return Command(RequestCode.FILTERED_PULL, body=body)


def offsets(pulled: PulledRange) -> list[int]:
    assert pulled.offsets is not None
    return [pulled.first_offset + above for above in np.frombuffer(pulled.offsets, "<u4").tolist()]


async def stored(running, *topics: bytes) -> int:
    """Publish into a parent topic of one queue; returns its id."""
    running.broker.topics.table.ensure("a", 1)
    reply = await running.connect().request(Command(RequestCode.APPEND_MANY, body=running.publish(*topics)))
    assert reply.code == 0, reply.remark
    (queue_id,) = running.broker.topics.table.queue_ids("a")
    return queue_id


async def test_what_is_shown_to_people_does_not_count_as_sent_to_consumers(running) -> None:
    queue_id = await stored(running, b"a/1", b"a/2", b"a/1")
    connection, metrics = running.connect(), running.broker.tools.metrics
    ranged = Command(RequestCode.RANGE_PULL, body=encode_range_pull(queue_id, 0, 3, 99_999))
    for number, command in enumerate((asking(queue_id, 0, 3, RowFilter(mqtt=("a/1",))), ranged)):
        before = metrics.messages_out.value, metrics.bytes_out.value
        viewing = Command(command.code, fields=dict(VIEW), body=command.body)
        assert (await connection.request(viewing)).code == 0
        assert (metrics.messages_out.value, metrics.bytes_out.value) == before
        assert metrics.viewed.value == (2, 5)[number]
        assert (await connection.request(command)).code == 0
        assert (metrics.messages_out.value, metrics.viewed.value) == ((2, 5)[number], (2, 5)[number])


async def test_only_what_passes_comes(running) -> None:
    queue_id = await stored(running, b"a/1", b"a/2", b"a/1", b"a/3", b"a/1")
    connection = running.connect()
    reply = await connection.request(asking(queue_id, 1, 4, RowFilter(mqtt=("a/1", "a/3"))))
    found = decode_filtered_reply(reply.body)
    assert (found.first_offset, found.next_offset, found.max_offset, offsets(found)) == (1, 4, 5, [2, 3])
    assert [view.mqtt_topic for view in iter_records(found.blob)] == [b"a/1", b"a/3"]
    none = decode_filtered_reply((await connection.request(asking(queue_id, 0, 9, RowFilter(tags=("t",))))).body)
    assert (none.count, none.next_offset) == (0, 5)
    every = decode_filtered_reply((await connection.request(asking(queue_id, 0, 9, RowFilter(mqtt=("a/#",))))).body)
    assert offsets(every) == [0, 1, 2, 3, 4]


async def test_one_request_examines_a_bounded_number_of_records(running, monkeypatch) -> None:
    for name in ("LOOK_MAX", "LOOK_PURE_MAX"):
        monkeypatch.setattr(judge, name, 2)
    judge.judge_of.cache_clear()
    queue_id = await stored(running, b"a/1", b"a/2", b"a/9")
    found = decode_filtered_reply(
        (await running.connect().request(asking(queue_id, 0, 9, RowFilter(mqtt=("a/9",))))).body
    )
    assert (found.count, found.next_offset) == (0, 2)
    judge.judge_of.cache_clear()


async def test_refusals(running) -> None:
    queue_id = await stored(running, b"a/1")
    connection = running.connect()
    reply = await connection.request(asking(queue_id, 0, 9, RowFilter(sql="a >")))
    assert reply.code == ResponseCode.INVALID_PARAMETER
    assert "SQL expression" in (reply.remark or "")
    missing = decode_filtered_reply((await connection.request(asking(9_999, 0, 9, RowFilter(sql="a = 1")))).body)
    assert missing.status == STATUS_NO_SUCH_QUEUE


@pytest.mark.parametrize(
    ("wanted", "code"),
    [
        (RowFilter(mqtt=("a/1",)), 0),
        (RowFilter(mqtt=("a/1", "a/2")), ResponseCode.NO_PERMISSION),
        (RowFilter(tags=("t",)), ResponseCode.NO_PERMISSION),
    ],
)
async def test_the_right_to_a_filter_is_the_right_to_what_passes_it(running, wanted: RowFilter, code: int) -> None:
    queue_id = await stored(running, b"a/1", b"a/2")
    running.judge_by(lambda _identity, _action, resource: resource == "a/1")
    reply = await running.connect().request(asking(queue_id, 0, 9, wanted))
    assert reply.code == code


def withheld_by(running) -> dict[str, int]:
    return {reason: child.value for (reason,), child in running.broker.tools.metrics.withheld.children.items()}


class Thinning:
    """A policy for which `a/2` may not be read, and `b/#` not at all."""

    def __call__(self, _identity: str, _action: str, resource: str) -> bool:
        return resource in ("a/1", "a/3")

    def readable(self, _identity: str, topic_filter: str, _host: str) -> Callable[[bytes], Verdict] | None:
        return None if topic_filter.startswith("b") else judge_topic


def judge_topic(topic: bytes) -> Verdict:
    return ALLOWED if topic != b"a/2" else Verdict(allowed=False, reason="deny_rule")


@pytest.mark.parametrize(
    ("filters", "found"),
    [
        (("a/#",), [0, 2, 3]),
        (("a/+", "a/2"), [0, 2, 3]),
        (("a/1", "a/#"), [0, 2, 3]),
        (("#", "a/1"), [0, 2, 3]),
        (("a/1",), [0, 3]),
        (("a/1", "b/#"), None),
        (("b/#", "a/#"), None),
        ((), None),
    ],
)
async def test_a_filter_wider_than_the_rights_delivers_what_may_be_read(running, filters, found) -> None:
    """In any order of the filters; one of which nothing may be read, and none at all, are refused."""
    queue_id = await stored(running, b"a/1", b"a/2", b"a/3", b"a/1")
    running.judge_by(Thinning())
    reply = await running.connect().request(asking(queue_id, 0, 9, RowFilter(mqtt=filters)))
    if found is None:
        assert reply.code == ResponseCode.NO_PERMISSION
    else:
        pulled = decode_filtered_reply(reply.body)
        assert offsets(pulled) == found
        assert b"a/2" not in bytes(pulled.blob)
        assert pulled.next_offset == 4
    assert withheld_by(running) == ({"deny_rule": 1} if found == [0, 2, 3] else {})


async def test_what_is_withheld_is_counted_by_reason(running) -> None:
    """Only what passed the filter, once for every pull; a damaged record, whose topic is unknown, is withheld."""
    queue_id = await stored(running, b"a/1", b"a/2", b"a/3", b"a/2")
    running.judge_by(Thinning())
    connection = running.connect()
    for wanted in (RowFilter(mqtt=("a/#",)), RowFilter(mqtt=("a/#",), tags=("t",)), RowFilter(mqtt=("a/+",))):
        assert (await connection.request(asking(queue_id, 0, 9, wanted))).code == 0
    assert withheld_by(running) == {"deny_rule": 4}
    found = running.store.reading.read_range(queue_id, 0, 9, 99_999, 9)
    queues_at = int(found.starts[1]) + 56
    found.blob[queues_at : queues_at + 2] = b"\xff\xff"  # more queues than there is room for
    withheld: dict[str, int] = {}
    pulled = filtered(found, judge.judge_of(encode_row_filter(RowFilter(mqtt=("a/#",)))), judge_topic, withheld)
    assert (offsets(pulled), withheld) == ([0, 2], {"unreadable": 1, "deny_rule": 1})
