"""What becomes of messages whose time is over: on a log whose end is not confirmed, and around damage."""

from __future__ import annotations

import asyncio

import pytest

from broker.groups.groups import offset_change
from broker.pop.popping import PopAsk
from broker.pop.revival import DAMAGED_MS, RETRY_MS
from remoting.protocol.errors import Refused
from remoting.protocol.frames.codes import ResponseCode
from tests.support.plants import Plant, catches
from tests.unit.broker.conftest import BrokerBench
from tests.unit.broker.pop.client import GROUP, INVISIBLE_MS, TOPIC, Message, ack, expire, feature, pop, send

ORDERED_POP = PopAsk(
    group=GROUP, topic=TOPIC, index=-1, count=32, invisible_ms=INVISIBLE_MS, wait_ms=0, from_end=False, wanted=None,
    ordered=True,
)  # fmt: skip


def outcomes(running: BrokerBench) -> dict[str, float]:
    """How many messages ended or stayed, by outcome."""
    named = {name: value for name, value in running.registry.values().items() if "pop_expired_total{" in name}
    return {name.partition("{")[2].rstrip("}"): value for name, value in named.items() if value}


def bodies(messages: list[Message]) -> list[bytes]:
    return sorted(message.body for message in messages)


async def given(running: BrokerBench, count: int, **fields: object) -> None:
    """Have the group own this many messages, all of one queue."""
    connection = running.connect()
    await send(connection, *(b"%d" % number for number in range(count)), queue=0)
    assert len(await pop(connection, **fields)) == count


@pytest.mark.parametrize("is_sure", [False, True], ids=["not-sure", "sure"])
async def test_what_is_not_confirmed_yet_stays_in_flight(running, is_sure: bool) -> None:
    """Whether the whole job waits for what this broker found at its start, or a single message for its record."""
    await given(running, 3)
    await running.take_over()
    if is_sure:
        running.broker.tools.identity.started_position = 0
    running.clock.advance_ms(INVISIBLE_MS)
    for _ in range(3):
        feature(running).maintain(running.clock.now_ms())
        running.clock.advance_ms(RETRY_MS)
    assert (feature(running).status(), outcomes(running)) == ({"pop_in_flight": 3}, {})
    running.confirm()
    await expire(running, RETRY_MS)
    assert bodies(await pop(running.connect())) == [b"0", b"1", b"2"]
    assert outcomes(running) == {"retry": 3}


async def unconfirmed(running: BrokerBench, *, ordered: bool) -> tuple[int, asyncio.Task[None]]:
    """Have the group own four messages of which two are not confirmed; returns their queue and the second sending."""
    await running.take_over()
    running.confirm()
    connection = running.connect()
    await send(connection, b"0", b"1", queue=0)
    await pop(connection, order=ordered)  # the group and its mode are there
    await running.settle()
    running.confirm(running.store.end_position)
    queue_id, in_flight = running.broker.topics.table.queue_ids(TOPIC)[0], feature(running).in_flight
    sending = asyncio.create_task(send_all(running, b"2", b"3"))
    while running.store.reading.next_offset(queue_id) < 4:
        await asyncio.sleep(0)
    owned = running.clock.now_ms(), INVISIBLE_MS
    in_flight.write([offset_change(GROUP, TOPIC, 0, 4)])
    if ordered:
        for offset in (2, 3):
            in_flight.write(in_flight.ordered.add(GROUP, queue_id, b"", offset, owned))
    else:
        in_flight.write(in_flight.table.give(GROUP, queue_id, (2, 3), owned))
    running.clock.advance_ms(INVISIBLE_MS)
    return queue_id, sending


async def send_all(running: BrokerBench, *bodies: bytes) -> None:
    """Send over a connection each: an answer waits until its message is confirmed."""
    await asyncio.gather(*(send(running.connect(), body, queue=0) for body in bodies))


async def test_what_is_not_confirmed_holds_up_nothing_that_is(running) -> None:
    _queue_id, sending = await unconfirmed(running, ordered=False)
    feature(running).maintain(running.clock.now_ms())
    assert (len(feature(running).in_flight), outcomes(running)) == (2, {"retry": 2})
    running.confirm()
    await sending
    await expire(running, RETRY_MS)
    assert bodies(await pop(running.connect())) == [b"0", b"1", b"2", b"3"]


async def test_in_order_what_is_not_confirmed_is_not_given_up(running) -> None:
    queue_id, sending = await unconfirmed(running, ordered=True)
    taken = feature(running)._queues.take(ORDERED_POP, (TOPIC, 0, queue_id), 32, 1 << 20)
    assert (taken.offsets, taken.gone, taken.damaged, taken.rest) == ([0, 1], 0, 0, 0)
    running.confirm()
    await sending
    assert bodies(await pop(running.connect(), order=True)) == [b"0", b"1", b"2", b"3"]
    assert (len(feature(running).in_flight), outcomes(running)) == (4, {})


async def test_a_damaged_message_stays_in_flight_and_holds_up_no_other(running) -> None:
    await given(running, 3)
    running.damage(running.broker.topics.table.queue_ids(TOPIC)[0], 1)
    await expire(running)
    for _ in range(2):
        await expire(running, DAMAGED_MS)
    assert outcomes(running) == {"retry": 2, "damaged": 1}
    assert feature(running).status() == {"pop_in_flight": 1}
    assert bodies(await pop(running.connect())) == [b"0", b"2"]


async def test_a_record_that_was_put_back_from_a_copy_is_given_again(running) -> None:
    await given(running, 1)
    queue_id = running.broker.topics.table.queue_ids(TOPIC)[0]
    running.damage(queue_id, 0)
    await expire(running)
    assert outcomes(running) == {"damaged": 1}
    running.damage(queue_id, 0)  # the same bit again
    await expire(running, DAMAGED_MS)
    assert bodies(await pop(running.connect())) == [b"0"]


async def test_damage_does_not_prove_that_a_group_was_deleted(running) -> None:
    """Its configuration may be what the damage took."""
    await given(running, 1)
    running.damage(running.broker.topics.table.queue_ids(TOPIC)[0], 0)
    await expire(running)
    running.broker.groups.groups.delete(GROUP)
    await expire(running, DAMAGED_MS)
    assert feature(running).status() == {"pop_in_flight": 1}


async def test_one_message_that_cannot_be_stored_holds_up_no_other(running, monkeypatch) -> None:
    await given(running, 3)
    revival = feature(running)._revival
    image = revival._image

    def refused(due, record):
        if record.body == b"0":
            raise Refused(ResponseCode.MESSAGE_ILLEGAL, "not this one")
        return image(due, record)

    monkeypatch.setattr(revival, "_image", refused)
    await expire(running)
    messages = await pop(running.connect())
    assert bodies(messages) == [b"1", b"2"]
    assert [await ack(running.connect(), message) for message in messages] == [ResponseCode.SUCCESS] * 2
    assert feature(running).status() == {"pop_in_flight": 1}


RUN = "broker.pop.revival:Revival.run"


@catches(
    Plant("not-looked-at-again", RUN, "self._in_flight.table.postpone(left, now_ms + RETRY_MS)", "pass"),
    Plant("one-is-looked-at-again", RUN, "for left in found[at:]:", "for left in found[at : at + 1]:"),
    Plant("the-first-is-forgotten", RUN, "for left in found[at:]:", "for left in found[at + 1 :]:"),
)
async def test_a_full_disk_loses_nobodys_turn(running) -> None:
    """While there is no room nothing is given again; once there is, everything is, without a restart."""
    connection = running.connect()
    for queue in range(3):
        await send(connection, b"%d" % queue, queue=queue)
    assert len(await pop(connection)) == 3
    running.store.disk.full = True
    await expire(running)
    await expire(running, RETRY_MS)
    assert (feature(running).status(), outcomes(running)) == ({"pop_in_flight": 3}, {})
    running.store.disk.full = False
    await expire(running, RETRY_MS)
    assert bodies(await pop(connection)) == [b"0", b"1", b"2"]
    assert outcomes(running) == {"retry": 3}
