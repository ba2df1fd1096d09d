"""Publishes of a turn go in one frame; answers come back in order; bytes in flight are bounded; a refusal hits only its
cause."""

from __future__ import annotations

import asyncio

import pytest

from remoting.protocol.errors import Refused
from remoting.protocol.frames.codes import RequestCode, ResponseCode
from remoting.protocol.records.image import packet_id_of
from tests.unit.mqtt_proxy.publishers import Origin, lose, some
from tests.unit.mqtt_proxy.rig import publish, running, settle


async def test_a_turn_is_one_frame() -> None:
    """Three connections, one request; each gets its own ids in order."""
    async with running() as rig:
        clients = rig.services.metrics.clients
        kinds = [clients("tcp", "5"), clients("tcp", "5"), clients("ws", "3.1.1")]
        origins = [Origin(each) for each in kinds]
        for number, origin in enumerate(origins):
            rig.services.publisher.publish(origin, b"c", some("t", 10 + number, 3, 7))
        await rig.services.publisher.drain()
        assert rig.broker.codes.count(RequestCode.APPEND_MANY) == 1
        assert [origin.confirmed_ids for origin in origins] == [[10, 3, 7], [11, 3, 7], [12, 3, 7]]
        assert (kinds[0].confirmed.value, kinds[2].confirmed.value) == (6, 3)
        assert (kinds[0].acknowledge_s.read(), kinds[2].acknowledge_s.read()) == (1, 0)
        assert rig.services.publisher.pending_bytes == 0


async def test_large_turns_are_cut_at_the_frame_limit() -> None:
    """Two runs that do not fit together go in two frames, in order."""
    async with running(append_bytes_max=65_536) as rig:
        origin = Origin()
        rig.services.publisher.publish(origin, b"c", some("t", 1, size=40_000))
        rig.services.publisher.publish(origin, b"c", some("t", 2, size=40_000))
        await rig.services.publisher.drain()
        assert rig.broker.codes.count(RequestCode.APPEND_MANY) == 2
        assert origin.confirmed_ids == [1, 2]


async def test_too_many_bytes_pause_publishers_until_half_is_answered() -> None:
    """Above the mark reading stops; below half of it all are read again."""
    async with running(publish_bytes_max=65_536) as rig:
        rig.broker.holding = True
        first, second = Origin(), Origin()
        rig.services.publisher.publish(first, b"c", some("t", 1, size=50_000))
        await settle()
        rig.services.publisher.publish(second, b"c", some("t", 1, size=30_000))
        assert (first.held, second.held) == (False, True)
        rig.broker.release()
        await settle()
        assert (first.held, second.held) == (False, False)
        assert second.confirmed_ids == [1]
        assert rig.count("publish_pauses_total") == 1


async def test_a_full_disk_rejects_all_and_acknowledges_nothing() -> None:
    """[MQTT-4.8.0-2] A failure of the broker concerns all connections of the frame."""
    async with running() as rig:
        rig.broker.refuse[RequestCode.APPEND_MANY] = [Refused(14, "disk full")]
        origins = [Origin(), Origin()]
        for origin in origins:
            rig.services.publisher.publish(origin, b"c", some("t", 1))
        await rig.services.publisher.drain()
        for origin in origins:
            assert origin.confirmed_ids == []
            assert origin.reason == "broker_refused: SERVICE_NOT_AVAILABLE: disk full"
        assert rig.count("publishes_refused_total{broker_refused}") == 2
        assert rig.broker.end_position == 64


async def test_only_the_faulty_connection_is_rejected() -> None:
    """A faulty message splits the frame by connection."""
    async with running() as rig:
        rig.broker.refused_topic = b"forbidden"
        innocent, guilty = Origin(), Origin()
        rig.services.publisher.publish(innocent, b"a", some("t", 1))
        rig.services.publisher.publish(guilty, b"b", some("forbidden", 1))
        rig.services.publisher.publish(innocent, b"a", some("t", 2))
        await settle()
        await rig.services.publisher.drain()
        assert innocent.confirmed_ids == [1, 2]
        assert innocent.reason is None
        assert guilty.refusals == [(1, 16)]
        assert guilty.confirmed_ids == []


@pytest.mark.parametrize("qos", [1, 2])
async def test_only_the_faulty_message_is_refused(qos: int) -> None:
    """The others of the connection's run are stored, in order; with properties as without."""
    async with running() as rig:
        rig.broker.refused_topic = b"forbidden"
        origin = Origin()
        sent = [publish(topic, b"x", qos, number) for number, topic in enumerate(("a", "forbidden", "b", "c"), 1)]
        rig.services.publisher.publish(origin, b"c", [*sent, publish("forbidden", b"x", 0)])
        await settle()
        await rig.services.publisher.drain()
        assert origin.refusals == [(2, 16), (0, 16)]
        assert origin.confirmed_ids == [1, 3, 4]
        assert origin.reason is None
        assert [entry.mqtt_topic for entry in rig.broker.appended] == [b"a", b"b", b"c"]
        assert rig.services.publisher.pending_bytes == 0


async def test_messages_that_could_overtake_are_not_repeated() -> None:
    """While later messages of the connection are in flight, its refused frame ends it."""
    async with running() as rig:
        rig.broker.refused_topic = b"forbidden"
        rig.broker.holding = True
        origin = Origin()
        rig.services.publisher.publish(origin, b"c", [*some("forbidden", 1), *some("t", 2)])
        await settle()
        rig.services.publisher.publish(origin, b"c", some("t", 3))
        await settle()
        rig.broker.release()
        await settle()
        assert origin.reason is not None
        assert origin.refusals == []


async def test_what_waits_does_not_overtake_what_was_refused() -> None:
    """When a full disk refuses what a connection sent, nothing it sent afterwards is stored before the repetition."""
    async with running() as rig:
        rig.broker.holding = True
        origin, other = Origin(), Origin()
        for packet_id in (1, 2, 3):  # two are in flight, the third waits for the disk
            rig.services.publisher.publish(origin, b"c", some("t", packet_id))
            await settle()
        rig.services.publisher.publish(other, b"o", some("u", 9))
        rig.broker.refuse[RequestCode.APPEND_MANY] = [Refused(14, "disk full"), Refused(14, "disk full")]
        rig.broker.release()
        await asyncio.wait_for(rig.services.publisher.drain(), 5)
        assert (origin.reason or "").startswith("broker_refused")
        assert origin.confirmed_ids == []
        assert (other.confirmed_ids, other.reason) == ([9], None)
        assert [entry.mqtt_topic for entry in rig.broker.appended] == [b"u"]
        assert rig.count("publishes_refused_total{broker_refused}") == 3
        assert rig.services.publisher.pending_bytes == 0


async def test_without_a_broker_publishes_wait_for_it() -> None:
    """What was gathered while the broker was away goes out when it is back."""
    async with running() as rig:
        origin, lost = Origin(), asyncio.Event()

        def publish_without_broker(_reason: str) -> None:
            assert not rig.link.up
            rig.services.publisher.publish(origin, b"c", some("t", 4))
            lost.set()

        rig.link.on_down(publish_without_broker)
        await rig.broker.connections[0].close()
        await asyncio.wait_for(lost.wait(), 5)
        assert origin.confirmed_ids == []
        await asyncio.wait_for(rig.services.publisher.drain(), 5)
        assert origin.confirmed_ids == [4]


async def test_unanswered_publishes_are_sent_again_before_later_ones() -> None:
    """Three frames in order of receipt, at least once; the publisher notices nothing."""
    async with running() as rig:
        rig.broker.holding = True
        origin, publisher = Origin(), rig.services.publisher
        for number in (1, 2):
            publisher.publish(origin, b"c", some("t", number))
            await settle(5)
        publisher.publish(origin, b"c", some("t", 3))
        await lose(rig)
        publisher.publish(origin, b"c", some("t", 4))
        await asyncio.wait_for(publisher.drain(), 5)
        assert (origin.confirmed_ids, origin.reason) == ([1, 2, 3, 4], None)
        assert [packet_id_of(entry) or entry.body for entry in rig.broker.appended][-4:] == [b"x"] * 4
        assert rig.count("publishes_repeated_total") == 2
        assert publisher.pending_bytes == 0


async def test_nothing_overtakes_what_is_sent_again() -> None:
    """Not even what a client publishes in the very turn in which the next broker is connected."""
    async with running() as rig:
        rig.broker.holding = True
        origin, publisher = Origin(), rig.services.publisher
        publisher.publish(origin, b"c", [publish("t", b"first", 1, 1)])
        await settle(5)
        rig.link.on_up(lambda: publisher.publish(origin, b"c", [publish("t", b"second", 1, 2)]))
        await lose(rig)
        await asyncio.wait_for(publisher.drain(), 5)
        assert [entry.body for entry in rig.broker.appended][-2:] == [b"first", b"second"]
        assert origin.confirmed_ids == [1, 2]


async def test_qos_0_is_not_sent_twice_and_qos_2_is_left_to_the_client() -> None:
    """A QoS 2 publisher is closed with all that waits of it; the QoS 1 messages of the others are sent again without
    their QoS 0."""
    async with running() as rig:
        rig.broker.holding = True
        mixed, once, publisher = Origin(), Origin(), rig.services.publisher
        publisher.publish(mixed, b"m", [publish("m", b"0", 0), publish("m", b"1", 1, 7)])
        publisher.publish(once, b"o", [publish("o", b"1", 1, 1), publish("o", b"2", 2, 2)])
        await settle(5)
        publisher.publish(once, b"o", some("o", 3))
        await lose(rig)
        await asyncio.wait_for(publisher.drain(), 5)
        assert mixed.confirmed_ids == [7]
        assert (once.confirmed_ids, (once.reason or "")[:11]) == ([], "broker_lost")
        assert [entry.mqtt_topic for entry in rig.broker.appended] == [b"m"]
        assert rig.count("publishes_refused_total{broker_lost}") == 4
        assert publisher.pending_bytes == 0


async def test_a_client_that_left_meanwhile_sends_again_itself() -> None:
    """What waits of a connection that has ended is dropped, or it would overtake."""
    async with running() as rig:
        rig.broker.holding = True
        origin, publisher = Origin(), rig.services.publisher
        publisher.publish(origin, b"c", some("t", 1))
        await settle(5)
        rig.broker.held.clear()
        rig.broker.reachable = False
        await rig.broker.connections[0].close()
        publisher.publish(origin, b"c", some("t", 2))
        await settle(5)
        publisher.forget(origin)
        rig.broker.holding = False
        rig.broker.reachable = True
        await asyncio.wait_for(publisher.drain(), 5)
        assert (origin.confirmed_ids, rig.broker.appended, publisher.pending_bytes) == ([], [], 0)


async def test_a_lost_session_costs_its_own_connection_alone() -> None:
    """Nothing of its request was stored: the others are sent again, and its client does that after it reconnects."""
    async with running() as rig:
        lost = Refused(ResponseCode.ILLEGAL_OPERATION, "the session is not held by this connection")
        rig.broker.refuse[RequestCode.APPEND_MANY] = [lost, lost]
        first, second, publisher = Origin(), Origin(), rig.services.publisher
        publisher.publish(first, b"a", some("t", 1))
        publisher.publish(second, b"b", some("t", 2))
        await asyncio.wait_for(publisher.drain(), 5)
        assert (first.confirmed_ids, (first.reason or "")[:14]) == ([], "broker_refused")
        assert (second.confirmed_ids, second.reason) == ([2], None)
        assert publisher.pending_bytes == 0


async def test_nothing_more_is_sent_to_a_broker_that_is_no_longer_master() -> None:
    """The connection is closed at its first such answer, so that the order holds at the new master."""
    async with running() as rig:
        rig.broker.refuse[RequestCode.APPEND_MANY] = [Refused(ResponseCode.NOT_MASTER, "a replica now")]
        origin, publisher = Origin(), rig.services.publisher
        publisher.publish(origin, b"c", some("t", 1))
        await settle(5)
        publisher.publish(origin, b"c", some("t", 2))
        await asyncio.wait_for(publisher.drain(), 5)
        assert (origin.confirmed_ids, origin.reason) == ([1, 2], None)
        assert len(rig.broker.connections) == 2


async def test_an_append_without_an_answer_in_time_ends_the_connection() -> None:
    """A broker that stands still: what was sent later must not be stored first."""
    async with running(append_timeout_ms=100) as rig:
        rig.broker.holding = True
        origin, publisher = Origin(), rig.services.publisher
        publisher.publish(origin, b"c", some("t", 1))
        while len(rig.broker.connections) < 2:
            await asyncio.sleep(0.01)
        rig.broker.holding = False
        await asyncio.wait_for(publisher.drain(), 5)
        assert origin.confirmed_ids == [1]


@pytest.mark.parametrize(("qos", "retain", "flags"), [(0, False, 8), (1, False, 9), (2, True, 14)])
async def test_record_flags_have_qos_and_retain(qos: int, retain: bool, flags: int) -> None:
    """As defined by the record layout."""
    async with running() as rig:
        rig.services.publisher.publish(Origin(), b"c", [publish("t", b"", qos, retain=retain)])
        await rig.services.publisher.drain()
        (stored,) = rig.broker.by_position.values()
        assert int.from_bytes(stored[48:52], "little") == flags
