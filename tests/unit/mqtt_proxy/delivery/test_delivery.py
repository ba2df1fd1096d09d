"""Order, windows, fairness, QoS and flags of what a session is given."""

from __future__ import annotations

import pytest

from mqtt_proxy.delivery import delivery
from mqtt_proxy.delivery.delivery import PORTION_BYTES_MAX
from mqtt_proxy.mqtt.codec import packets
from remoting.protocol.frames.codes import RequestCode
from tests.unit.mqtt_proxy.rig import Rig, Wire, publish, running, settle


async def send(rig: Rig, *messages: packets.Publish) -> None:
    """Publish and let everything settle."""
    sender = await rig.client("sender")
    sender.send(*messages)
    await settle()


def numbered(topic: str, count: int, qos: int = 1) -> list[packets.Publish]:
    """Messages 0.. of one topic."""
    return [publish(topic, b"%d" % index, qos, index + 1) for index in range(count)]


async def drain(client: Wire) -> list[bytes]:
    """Acknowledge everything until nothing comes any more; the payloads in order of arrival."""
    payloads = []
    while got := [one for one in client.received() if isinstance(one, packets.Publish)]:
        payloads += [one.payload for one in got]
        acknowledgements = [packets.Puback(one.packet_id) for one in got if one.qos]
        if acknowledgements:
            client.send(*acknowledgements)
        await settle()
    return payloads


async def test_qos_is_the_lower_of_both_and_live_messages_have_no_retain_flag() -> None:
    """min(publish, subscription); retain 0."""
    async with running() as rig:
        low = await rig.subscriber("low", ("t/#", 0))
        high = await rig.subscriber("high", ("t/#", 1))
        await send(rig, publish("t/a", b"0", 0), publish("t/a", b"1", 1, retain=True))
        assert low.messages() == [("t/a", b"0", 0, False, False), ("t/a", b"1", 0, False, False)]
        assert high.messages() == [("t/a", b"0", 0, False, False), ("t/a", b"1", 1, False, False)]


async def test_the_window_holds_deliveries_back_in_the_log() -> None:
    """At most `in_flight_max` unacknowledged; acknowledging lets the next ones go, in order."""
    async with running(in_flight_max=4) as rig:
        client = await rig.subscriber("s", ("t", 1))
        await send(rig, *numbered("t", 50))
        assert len(client.session.deliveries.inflight()) == 4
        assert await drain(client) == [b"%d" % index for index in range(50)]


async def test_who_acknowledges_quickly_may_have_more_under_way(monkeypatch: pytest.MonkeyPatch) -> None:
    """Twice as many each time, up to the limit; a full socket begins anew, a slow client gets no more."""
    monkeypatch.setattr(delivery, "WINDOW_BEGIN", 4)
    async with running(in_flight_max=10) as rig:
        client = await rig.subscriber("s", ("t", 1))
        await send(rig, *numbered("t", 100))
        sizes = []
        for portion in (4, 8, 10, 1, 10):
            inflight = client.session.deliveries.inflight()
            sizes.append(len(inflight))
            client.send(*[packets.Puback(packet_id) for packet_id, *_ in inflight[:portion]])
            await settle()
        assert sizes == [4, 8, 10, 10, 10]
        client.handler.on_writable(False)
        client.handler.on_writable(True)
        client.send(*[packets.Puback(packet_id) for packet_id, *_ in client.session.deliveries.inflight()])
        await settle()
        assert len(client.session.deliveries.inflight()) == 4
        client.send(packets.Puback(client.session.deliveries.inflight()[0][0]))
        await settle()
        assert len(client.session.deliveries.inflight()) == 4


async def test_a_slow_socket_stops_deliveries_until_it_is_writable() -> None:
    """QoS 0 too: nothing is buffered for it, nothing is lost."""
    async with running() as rig:
        client = await rig.subscriber("s", ("t", 0))
        client.handler.on_writable(False)
        await send(rig, *numbered("t", 30, 0))
        assert client.received() == []
        client.handler.on_writable(True)
        await settle()
        assert [payload for _, payload, *_ in client.messages()] == [b"%d" % index for index in range(30)]


async def test_a_backlog_goes_out_in_small_portions() -> None:
    """A socket that was full is not handed more at once than a turn: that is what it may keep above its mark."""
    payload = bytes(8_000)
    async with running() as rig:
        client = await rig.subscriber("s", ("t", 0))
        client.handler.on_writable(False)
        await send(rig, *[publish("t", payload, 0, 1) for _ in range(40)])
        client.written.clear()
        client.handler.on_writable(True)
        await settle()
        assert len(client.messages()) == 40
        assert PORTION_BYTES_MAX // 2 < max(client.written) < PORTION_BYTES_MAX + 2 * len(payload)
        assert PORTION_BYTES_MAX <= 64 * 1024


async def test_who_reads_everything_has_several_portions_a_turn() -> None:
    """One reader of many publishers keeps up with all that was read in a turn; so does a slow one that caught up."""
    payload = bytes(8_000)
    async with running() as rig:
        client = await rig.subscriber("s", ("t", 0))
        for writable in (True, False):
            if not writable:
                client.handler.on_writable(False)
                client.handler.on_writable(True)
                await send(rig, publish("t", b"", 0, 1))
            client.messages()
            client.written.clear()
            await send(rig, *[publish("t", payload, 0, 1) for _ in range(40)])
            assert len(client.messages()) == 40
            assert max(client.written) > 4 * PORTION_BYTES_MAX


async def test_subscribers_of_one_filter_cost_one_pull() -> None:
    """Whatever their number."""
    async with running() as rig:
        clients = [await rig.subscriber(f"s{number}", ("t/#", 0)) for number in range(5)]
        rig.broker.pulled.clear()
        await send(rig, *numbered("t/1", 20, 0))
        assert len(rig.broker.pulled) == 1
        assert all(len(client.messages()) == 20 for client in clients)


async def test_overlapping_filters_give_one_copy_with_the_highest_qos() -> None:
    """Three filters, one message each time; the order of a topic is kept."""
    async with running() as rig:
        client = await rig.subscriber("s", ("t/#", 0), ("t/+", 1), ("t/a", 0))
        await send(rig, *numbered("t/a", 10), *numbered("t/b/c", 3))
        got = client.messages()
        assert [(topic, payload) for topic, payload, *_ in got if topic == "t/a"] == [
            ("t/a", b"%d" % index) for index in range(10)
        ]
        assert {(topic, qos) for topic, _, qos, *_ in got} == {("t/a", 1), ("t/b/c", 0)}
        assert len(got) == 13
        assert rig.count("overlaps_merged_total") == 20


async def test_dropping_the_filter_that_delivers_loses_nothing() -> None:
    """A younger overlapping subscription takes over where the older one stopped."""
    async with running(in_flight_max=2) as rig:
        client = await rig.subscriber("s", ("t/#", 1), ("t/a", 1))
        await send(rig, *numbered("t/a", 6))
        client.send(packets.Unsubscribe(3, ["t/#"]))
        await settle()
        assert await drain(client) == [b"%d" % index for index in range(6)]


async def test_sources_take_turns() -> None:
    """A long backlog behind one filter does not keep another one waiting."""
    async with running(in_flight_max=16_000) as rig:
        client = await rig.subscriber("s", ("long", 0), ("short", 0))
        client.handler.on_writable(False)
        await send(rig, *numbered("long", 200, 0), *numbered("short", 2, 0))
        client.handler.on_writable(True)
        await settle()
        topics = [topic for topic, *_ in client.messages()]
        assert topics.index("short") < 100
        assert len(topics) == 202


async def test_records_gone_by_retention_are_skipped_and_counted() -> None:
    """The cursor jumps to what is left."""
    async with running() as rig:
        client = await rig.subscriber("s", ("t", 0))
        client.handler.on_writable(False)
        await send(rig, *numbered("t", 10, 0))
        queue_id = client.handler._delivery.sources[0].queue_id
        rig.broker.trim(queue_id, 6)
        client.handler.on_writable(True)
        await settle()
        assert [payload for _, payload, *_ in client.messages()] == [b"6", b"7", b"8", b"9"]
        assert rig.count("messages_skipped_total{retention}") == 6


async def test_a_deleted_queue_ends_the_connection() -> None:
    """The client must learn that its subscription is gone."""
    async with running() as rig:
        client = await rig.subscriber("s", ("t", 0))
        client.handler.on_writable(False)
        await send(rig, *numbered("t", 1, 0))
        queue_id = client.handler._delivery.sources[0].queue_id
        del rig.broker.records[queue_id]
        client.handler.on_writable(True)
        await settle()
        assert client.closed is not None
        assert client.closed.startswith("queue_gone")


async def test_what_its_only_reader_has_is_not_kept() -> None:
    """A message to one subscriber leaves nothing in the cache, unless the window held it back."""
    async with running(in_flight_max=1) as rig:
        client = await rig.subscriber("s", ("t/#", 1))
        await send(rig, publish("t/1", b"0"))
        assert (len(client.messages()), rig.cache.size_bytes) == (1, 0)
        await send(rig, publish("t/1", b"1"))
        assert (client.messages(), rig.cache.size_bytes > 0) == ([], True)
        client.send(packets.Puback(1))
        await settle()
        assert (len(client.messages()), rig.cache.size_bytes) == (1, 0)


async def test_an_ended_session_follows_nothing() -> None:
    """The last one to leave a queue unfollows it and drops its cache."""
    async with running() as rig:
        clients = [await rig.subscriber(name, ("t/#", 0)) for name in "rs"]
        await send(rig, *numbered("t/1", 5, 0))
        assert rig.cache.size_bytes > 0
        for client in clients:
            client.lose()
        await settle()
        assert rig.tools.notifier.feeds == {}
        assert rig.cache.size_bytes == 0
        assert all(not queues for queues in rig.broker.followed.values())
        assert RequestCode.SESSION_CLOSE in rig.broker.codes


async def test_what_goes_out_in_slices_is_flushed_and_counted() -> None:
    """Sources that take turns are accounted for like one that is alone."""
    async with running() as rig:
        client = await rig.subscriber("s", ("t", 1), ("u", 1))
        await send(rig, *numbered("t", 30), *numbered("u", 10))
        assert len(client.messages()) == 40
        assert rig.count("messages_out_total") == 40
