"""Bulk appends: gathered per turn, bounded, repeated, each future ended."""

from __future__ import annotations

import asyncio

import pytest

from remoting import inprocess
from remoting.client.producer import FRAME_ENTRIES_MAX, Producer
from remoting.protocol.append_body import decode_entries, encode_append_reply, encode_mqtt_entry
from remoting.protocol.codes import RequestCode
from remoting.protocol.errors import Refused, RemoteViolation
from remoting.transport.failures import ConnectionLost


def entry(number):
    return encode_mqtt_entry(b"a/%d" % number, b"payload %d" % number, 1, 1_000, b"client")


class Broker:
    """Stores what is appended; `refusals` are answered first, in order."""

    def __init__(self):
        self.frames = []
        self.stored = []
        self.refusals = []
        self.hold = False
        self.held = []

    def __call__(self, peer, command):
        assert command.code == RequestCode.APPEND_MANY
        entries = decode_entries(command.body)
        self.frames.append(len(entries))
        if self.refusals:
            refusal = self.refusals.pop(0)
            if refusal == "close":
                peer.close("gone")
                return None
            raise Refused(refusal, "no")
        if self.hold:
            self.held.append((peer, command))
            return None
        return self.store(command)

    def store(self, command):
        entries = decode_entries(command.body)
        start = len(self.stored)
        self.stored += [bytes(each.body) for each in entries]
        return command.reply(body=encode_append_reply(99, [(3, start + n) for n in range(len(entries))]))


def producer(broker, **options):
    return Producer(inprocess.connect(broker), retry_pause_ms=1, **options)


async def test_appends_of_one_turn_travel_in_one_frame():
    broker = Broker()
    source = producer(broker)
    futures = [source.append([entry(n), entry(n + 100)]) for n in range(10)]
    empty = source.append([])
    places = await asyncio.gather(*futures)
    assert broker.frames == [20]
    assert places[0] == [(3, 0), (3, 1)]
    assert places[9] == [(3, 18), (3, 19)]
    assert await empty == []
    assert (source.entries_stored, source.frames_sent, source.waiting_bytes) == (20, 1, 0)
    await source.close()


async def test_frames_have_a_limit_and_so_has_their_number():
    broker = Broker()
    broker.hold = True
    source = producer(broker, frames_in_flight_max=2)
    futures = [source.append([entry(0)] * (FRAME_ENTRIES_MAX // 2)) for _ in range(6)]
    while len(broker.held) < 2:
        await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert broker.frames == [FRAME_ENTRIES_MAX] * 2
    broker.hold = False
    for peer, command in broker.held:
        peer.send(broker.store(command))
    await asyncio.gather(*futures)
    assert broker.frames == [FRAME_ENTRIES_MAX] * 3
    await source.close()


async def test_above_the_limit_appends_are_refused_until_ready():
    broker = Broker()
    broker.hold = True
    source = producer(broker, waiting_bytes_max=300)
    first = source.append([entry(n) for n in range(4)])
    with pytest.raises(Refused, match=r"wait for ready"):
        await source.append([entry(5)])
    assert source.appends_refused == 1
    ready = asyncio.ensure_future(source.ready())
    while not broker.held:
        await asyncio.sleep(0)
    assert not ready.done()
    peer, command = broker.held[0]
    broker.hold = False
    peer.send(broker.store(command))
    await first
    await ready
    await source.append([entry(6)])
    await source.close()


async def test_a_busy_broker_is_asked_again_another_no_is_final():
    broker = Broker()
    broker.refusals = [2, 2]
    source = producer(broker)
    assert await source.append([entry(1)]) == [(3, 0)]
    assert source.frames_repeated == 2
    broker.refusals = [16]
    with pytest.raises(Refused, match="code 16"):
        await source.append([entry(1)])
    broker.refusals = [2] * 10
    with pytest.raises(Refused, match="code 2"):
        await source.append([entry(1)])
    assert broker.refusals == [2] * 5
    await source.close()


async def test_a_lost_connection_ends_the_append_with_the_reason():
    broker = Broker()
    broker.refusals = ["close"]
    source = producer(broker, attempts_max=2)
    with pytest.raises(ConnectionLost):
        await source.append([entry(1)])
    assert source.waiting_bytes == 0
    await source.close()
    with pytest.raises(ConnectionLost, match="the producer is closed"):
        await source.append([entry(1)])


async def test_an_answer_of_another_length_is_a_violation():
    def handler(peer, command):
        return command.reply(body=encode_append_reply(1, [(1, 1), (1, 2)]))

    source = Producer(inprocess.connect(handler))
    with pytest.raises(RemoteViolation, match="2 places for 1 entries"):
        await source.append([entry(1)])
    await source.close()
