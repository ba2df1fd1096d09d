"""Raw records by queue, by range and by position; nothing hidden or unconfirmed."""

from __future__ import annotations

from remoting.protocol.bodies.append_body import decode_append_reply
from remoting.protocol.bodies.pull_body import (
    STATUS_DAMAGED,
    STATUS_NO_SUCH_QUEUE,
    STATUS_OFFSET_TOO_LARGE,
    STATUS_OK,
    decode_multi_pull_reply,
    decode_range_pull_reply,
    encode_multi_pull,
    encode_range_pull,
    encode_records_at,
)
from remoting.protocol.frames.codes import RequestCode
from remoting.protocol.frames.commands import Command
from remoting.protocol.records import names
from remoting.protocol.records.record import iter_records


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


async def test_one_answer_is_bounded_and_every_queue_still_moves(running) -> None:
    connection = running.connect()
    object.__setattr__(running.config.limits, "pull_bytes_max", 1_000)
    await connection.request(Command(RequestCode.APPEND_MANY, body=running.publish(*[b"a/1"] * 20)))
    queue_id = running.store.queues.find(names.light_queue_name(b"a/1"))
    results = await pull(connection, (queue_id, 0, 100, 99_999), (queue_id, 0, 100, 99_999))
    assert 0 < results[0].count < 20
    assert results[1].status == STATUS_OK
    assert results[1].next_offset == results[1].count
    object.__setattr__(running.config.limits, "pull_bytes_max", 8_388_608)


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


def rot(running, queue_id: int, offset: int) -> int:
    """Change a byte of a confirmed record on the disk; return its position."""
    position = next(iter_records(running.store.reading.read(queue_id, offset, 1, 1).records[0])).position
    path = next(path for path in (running.store.directory / "log").iterdir() if path.name.isdigit())
    with path.open("r+b") as file:
        file.seek(position + 90)
        file.write(b"\xff")
    return position


async def test_damage_holds_up_neither_its_queue_nor_the_others(running) -> None:
    """It is told once, with where to go on; the other queue of the pull is served."""
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
