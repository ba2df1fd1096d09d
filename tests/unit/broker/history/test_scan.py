"""Steps over the parent queues against a plain list of what was published."""

from __future__ import annotations

import random

import pytest

from broker.history import feature as history_scan
from broker.history.feature import HistoryScan, LastScan, offset_at
from broker.store.errors import CorruptLog, UnreadableOffsets
from remoting.protocol.records.record import RecordView
from remoting.protocol.records.topics import matches

NONE = -1
"""No queue of its own."""
TOPICS = (b"plant/1/t", b"plant/2/t", b"plant/2/p", b"other/1/t", b"plant")


async def publish(running, count: int, seed: int = 1) -> list[tuple[int, bytes]]:
    """Messages on random topics; (position, topic) in log order."""
    from remoting.protocol.frames.codes import RequestCode
    from remoting.protocol.frames.commands import Command

    chosen = random.Random(seed).choices(TOPICS, k=count)
    connection = running.connect()
    for start in range(0, count, 7):
        await connection.request(Command(RequestCode.APPEND_MANY, body=running.publish(*chosen[start : start + 7])))
        running.clock.advance_ms(10)
    topics = running.broker.topics.table
    found = []
    for parent in ("plant", "other"):
        for queue_id in topics.queue_ids(parent):
            for record in running.store.reading.read(queue_id, 0, 10_000, 1 << 30).records:
                view = RecordView(record)
                found.append((view.position, view.mqtt_topic))
    return sorted(found)


def queues(running) -> list[int]:
    return [queue_id for parent in ("plant", "other") for queue_id in running.broker.topics.table.queue_ids(parent)]


def everything(scan: HistoryScan, until: int, count_max: int = 5) -> tuple[list[int], int]:
    """Positions of all that a scan finds, and the number of steps."""
    positions, steps = [], 0
    while True:
        records, done = scan.step(until, count_max, 1 << 20)
        positions += [record.position for record in records]
        steps += 1
        if done:
            return positions, steps


@pytest.mark.parametrize("topic_filter", ["plant/+/t", "#", "plant/#", "+/1/t", "none/#"])
async def test_forward_finds_what_matches_in_log_order(running, monkeypatch, topic_filter: str) -> None:
    """Whatever the size of the steps, from every position, also when the scan is recreated in the middle."""
    monkeypatch.setattr(history_scan, "LOOK_MAX", 11)
    monkeypatch.setattr(history_scan, "OPEN_MAX", 3)
    published = await publish(running, 200)
    end = running.store.confirm_position
    wanted = [position for position, topic in published if matches(topic_filter, topic)]
    found, steps = everything(HistoryScan(running.store, topic_filter, NONE, queues(running), 0, 0), end)
    assert found == wanted
    assert steps > 200 // 11
    middle = published[77][0]
    assert everything(HistoryScan(running.store, topic_filter, NONE, queues(running), middle, 0), end)[0] == [
        position for position in wanted if position >= middle
    ]
    position, pieces = 0, []
    while True:
        scan = HistoryScan(running.store, topic_filter, NONE, queues(running), position, 0)
        records, done = scan.step(end, 3, 1 << 20)
        while not records and not done:
            records, done = scan.step(end, 3, 1 << 20)
        pieces += [record.position for record in records]
        position = scan.position
        if done:
            break
    assert pieces == wanted


async def test_what_is_in_the_filters_own_queue_is_left_out(running) -> None:
    """It is read from there."""
    before = await publish(running, 50)
    own = running.broker.subscriptions.filters.acquire(b"plant/+/t")
    await publish(running, 50, seed=2)
    found, _ = everything(
        HistoryScan(running.store, "plant/+/t", own, queues(running), 0, 0), running.store.confirm_position
    )
    assert found == [position for position, topic in before if matches("plant/+/t", topic)]


async def test_from_a_time(running) -> None:
    """The first message stored then or later, in every queue."""
    published = await publish(running, 210)
    from_ms = running.clock.now_ms() - 100  # the last ten batches of seven
    found, _ = everything(
        HistoryScan(running.store, "#", NONE, queues(running), 0, from_ms), running.store.confirm_position
    )
    assert found == [position for position, _ in published[-70:]]


@pytest.mark.parametrize("wanted", [0, 1, 7, 60, 10_000])
async def test_backward_finds_where_the_last_ones_begin(running, monkeypatch, wanted: int) -> None:
    """Going forward from there gives exactly the last so many."""
    monkeypatch.setattr(history_scan, "LOOK_MAX", 9)
    monkeypatch.setattr(history_scan, "OPEN_MAX", 3)
    monkeypatch.setattr(history_scan, "CHUNK_MAX", 4)
    published = await publish(running, 150)
    end = running.store.confirm_position
    matching = [position for position, topic in published if matches("plant/+/t", topic)]
    scan = LastScan(running.store, "plant/+/t", NONE, queues(running), end)
    left, done = scan.step(wanted)
    while not done:
        left, done = scan.step(left)
    assert left == max(0, wanted - len(matching))
    found, _ = everything(HistoryScan(running.store, "plant/+/t", NONE, queues(running), scan.position, 0), end)
    assert found == matching[len(matching) - min(wanted, len(matching)) :]


async def test_an_unreadable_record_is_skipped(running, monkeypatch) -> None:
    """Damage in one queue does not stop the others."""
    published = await publish(running, 60)
    store = running.store
    damaged = queues(running)[0]
    read = store.reading.read

    def unreadable(queue_id, offset, *rest):
        if queue_id == damaged and offset < 2:
            raise UnreadableOffsets(CorruptLog(store.directory, 0, "damaged"), queue_id, offset, 2)
        return read(queue_id, offset, *rest)

    lost = store.reading.positions(damaged, 0, 2)
    monkeypatch.setattr(store.reading, "read", unreadable)
    found, _ = everything(HistoryScan(store, "#", NONE, queues(running), 0, 0), store.confirm_position)
    assert found == [position for position, _ in published if position not in lost]
    scan = LastScan(store, "#", NONE, queues(running), store.confirm_position)
    assert scan.step(1_000)[0] == 1_000 - len(found)


async def test_an_offset_by_position(running) -> None:
    """At a record, between two, before all, after all."""
    await publish(running, 60)
    queue_id = queues(running)[0]
    positions = running.store.reading.positions(queue_id, 0, 100)
    assert [offset_at(running.store, queue_id, position) for position in positions] == list(range(len(positions)))
    assert offset_at(running.store, queue_id, positions[3] + 1) == 4
    assert offset_at(running.store, queue_id, 0) == 0
    assert offset_at(running.store, queue_id, 1 << 50) == len(positions)
