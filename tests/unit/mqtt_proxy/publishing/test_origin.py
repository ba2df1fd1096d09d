"""Which clients learn that a message had no subscribers."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

from mqtt_proxy.publishing.origin import is_asked, tell_unwanted
from remoting.protocol.bodies.append_body import encode_append_reply
from remoting.protocol.frames.codes import RequestCode
from remoting.protocol.records.image import encode_mqtt_image
from tests.unit.mqtt_proxy.publishers import Origin, lose, some
from tests.unit.mqtt_proxy.rig import publish, running, settle


def run(*packet_ids: int, asks: bool = True) -> SimpleNamespace:
    """A run of messages with these packet ids, 0 with QoS 0."""
    origin = SimpleNamespace(asks=asks, told=[])
    origin.unwanted = origin.told.extend
    images = b"".join([encode_mqtt_image(b"t", b"", 1 if one else 0, 1, b"c") for one in packet_ids])
    given = [packet_id for packet_id in packet_ids if packet_id]
    return SimpleNamespace(origin=origin, images=images, packet_ids=given, count=len(packet_ids))


def test_asked_only_for_clients_that_wait_for_an_acknowledgement() -> None:
    assert is_asked([run(0), run(1)])
    assert not is_asked([run(0), run(1, asks=False)])


def test_bits_are_those_of_the_runs_in_order() -> None:
    runs = [run(7, 0, 8), run(5, 6, asks=False), run(1, 2, asks=False), run(9)]
    tell_unwanted(runs, encode_append_reply(0, [(0, 0)] * 8, [True] * 8))
    assert [one.origin.told for one in runs] == [[7, 8], [], [], [9]]
    runs = [run(7, 0, 8), run(9)]
    tell_unwanted(runs, encode_append_reply(0, [(0, 0)] * 4, [False, True, True, False]))
    assert [one.origin.told for one in runs] == [[8], []]


def test_an_answer_without_the_bits_tells_no_client() -> None:
    only = run(7)
    tell_unwanted([only], encode_append_reply(0, [(0, 0)]))
    assert only.origin.told == []


async def test_clients_that_ask_learn_which_messages_had_no_subscribers() -> None:
    """One frame for all; clients that do not ask, and QoS 0, learn nothing. No client asks unless that is
    configured."""
    async with running(report_no_subscribers=True) as rig:
        rig.broker.unwanted = {b"lonely"}
        origins = [Origin() for _ in range(3)]
        origins[1].asks = False
        for origin in origins:
            sent = [publish("lonely", b"", 0), *some("t", 1), *some("lonely", 2, 3), publish("lonely", b"", 2, 4)]
            rig.services.publisher.publish(origin, b"c", sent)
        await rig.services.publisher.drain()
        assert [origin.unwanted_ids for origin in origins] == [[2, 3, 4], [], [2, 3, 4]]
        assert [origin.confirmed_ids for origin in origins] == [[1, 2, 3, 4]] * 3
        assert rig.broker.codes.count(RequestCode.APPEND_MANY) == 1
    async with running() as rig:
        rig.broker.unwanted = {b"lonely"}
        origin = Origin()
        rig.services.publisher.publish(origin, b"c", some("lonely", 1))
        await rig.services.publisher.drain()
        assert (origin.unwanted_ids, origin.confirmed_ids) == ([], [1])


async def test_what_is_sent_again_is_asked_about_again() -> None:
    """Of the next broker, in the order of receipt."""
    async with running(report_no_subscribers=True) as rig:
        rig.broker.unwanted = {b"lonely"}
        rig.broker.holding = True
        origin, publisher = Origin(), rig.services.publisher
        publisher.publish(origin, b"c", [publish("lonely", b"", 0), *some("t", 1), *some("lonely", 2)])
        await settle(5)
        await lose(rig)
        await asyncio.wait_for(publisher.drain(), 5)
        assert (origin.confirmed_ids, origin.unwanted_ids, origin.reason) == ([1, 2], [2], None)
