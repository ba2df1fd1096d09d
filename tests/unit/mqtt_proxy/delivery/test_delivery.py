"""Order, windows, fairness, QoS and flags of a session's deliveries."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqtt_proxy.delivery import delivery
from mqtt_proxy.delivery.delivery import PORTION_BYTES_MAX, PORTIONS_PER_TURN, Pump
from mqtt_proxy.delivery.outbound import PASSED, WAIT, decide, gather
from mqtt_proxy.delivery.record_cache import Feed
from mqtt_proxy.delivery.source import Source
from mqtt_proxy.grants import grant_of
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
    """Acknowledge everything until no more arrives; the payloads in order of arrival."""
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


async def test_the_window_leaves_messages_in_the_log() -> None:
    """At most `in_flight_max` are unacknowledged; an acknowledgement lets the next one go, in order."""
    async with running(in_flight_max=4) as rig:
        client = await rig.subscriber("s", ("t", 1))
        await send(rig, *numbered("t", 50))
        assert len(client.session.deliveries.inflight()) == 4
        assert await drain(client) == [b"%d" % index for index in range(50)]


async def test_a_fast_client_may_have_more_in_flight(monkeypatch: pytest.MonkeyPatch) -> None:
    """Twice as many each time, up to the limit; a full socket starts over, and a slow client gets no more."""
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
    """QoS 0 too: nothing is buffered for the client and nothing is lost."""
    async with running() as rig:
        client = await rig.subscriber("s", ("t", 0))
        client.handler.on_writable(False)
        await send(rig, *numbered("t", 30, 0))
        assert client.received() == []
        client.handler.on_writable(True)
        await settle()
        assert [payload for _, payload, *_ in client.messages()] == [b"%d" % index for index in range(30)]


async def test_a_backlog_goes_out_in_small_portions() -> None:
    """After the socket was full it is handed at most one turn's portion, which is what it may hold above its mark."""
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


async def test_a_reader_that_keeps_up_has_several_portions_a_turn() -> None:
    """One reader of many publishers receives all that was read in a turn; so does a slow one that caught up."""
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
    """However many there are."""
    async with running() as rig:
        clients = [await rig.subscriber(f"s{number}", ("t/#", 0)) for number in range(5)]
        rig.broker.pulled.clear()
        await send(rig, *numbered("t/1", 20, 0))
        assert len(rig.broker.pulled) == 1
        assert all(len(client.messages()) == 20 for client in clients)


async def test_overlapping_filters_give_one_copy_with_the_highest_qos() -> None:
    """Three filters, one message each time; the order within a topic is kept."""
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
    """A newer overlapping subscription continues where the older one stopped."""
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


async def test_records_removed_by_retention_are_skipped_and_counted() -> None:
    """The cursor jumps to the first remaining record."""
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
    """The client must learn that its subscription has ended."""
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


async def test_what_only_one_reader_reads_is_not_cached() -> None:
    """A message to one subscriber leaves nothing in the cache unless the window delays it."""
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
    """The last session to leave a queue unfollows it and drops its cache."""
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
    """Sources that take turns are counted like a single one."""
    async with running() as rig:
        client = await rig.subscriber("s", ("t", 1), ("u", 1))
        await send(rig, *numbered("t", 30), *numbered("u", 10))
        assert len(client.messages()) == 40
        assert rig.count("messages_out_total") == 40


def sources(*described: tuple[int, int, int]) -> dict[int, Source]:
    """(queue id, QoS, cursor) in order of age."""
    return {
        queue_id: Source(str(queue_id), Feed(queue_id), grant_of(qos), cursor, serial)
        for serial, (queue_id, qos, cursor) in enumerate(described)
    }


def test_the_oldest_delivers_with_the_highest_qos() -> None:
    """Of those subscribed when the message was stored."""
    by_queue = sources((1, 0, 0), (2, 1, 0), (3, 1, 7))
    assert decide([(1, 0), (2, 0)], by_queue[1], by_queue, 0) == 1
    assert decide([(1, 0), (3, 6)], by_queue[1], by_queue, 0) == 0
    assert decide([(1, 0), (99, 3)], by_queue[1], by_queue, 0) == 0


def test_a_younger_source_waits_and_then_passes() -> None:
    """It never overtakes the one that delivers."""
    by_queue = sources((1, 1, 4), (2, 1, 0))
    assert decide([(1, 4), (2, 0)], by_queue[2], by_queue, 0) == WAIT
    by_queue[1].cursor = 5
    assert decide([(1, 4), (2, 0)], by_queue[2], by_queue, 0) == PASSED


@given(st.data())
def test_every_message_goes_out_exactly_once(data: st.DataObject) -> None:
    """For any sources, matches and order of turns: one copy of each, with the highest QoS, and none waits for ever."""
    count = data.draw(st.integers(1, 4))
    matches = data.draw(
        st.lists(st.sets(st.integers(0, count - 1), min_size=1), max_size=12).map(lambda one: [sorted(m) for m in one])
    )
    qos = data.draw(st.lists(st.integers(0, 1), min_size=count, max_size=count))
    by_queue = sources(*[(queue_id, qos[queue_id], 0) for queue_id in range(count)])
    queues: dict[int, list[int]] = {queue_id: [] for queue_id in range(count)}
    dispatch = []
    for message, matched in enumerate(matches):
        dispatch.append([(queue_id, len(queues[queue_id])) for queue_id in matched])
        for queue_id in matched:
            queues[queue_id].append(message)
    sent: list[tuple[int, int]] = []
    while any(by_queue[queue_id].cursor < len(queues[queue_id]) for queue_id in queues):
        moved = False
        for queue_id in data.draw(st.permutations(range(count))):
            one = by_queue[queue_id]
            if one.cursor < len(queues[queue_id]):
                message = queues[queue_id][one.cursor]
                verdict = decide(dispatch[message], one, by_queue, one.cursor)
                if verdict != WAIT:
                    moved = True
                    if verdict != PASSED:
                        sent.append((message, verdict))
                        one.unacked[one.cursor] = None
                    one.cursor += 1
        assert moved
    assert sorted(sent) == [(message, max(qos[q] for q in matched)) for message, matched in enumerate(matches)]


def test_own_messages_skip_subscriptions_with_no_local() -> None:
    """These neither deliver nor delay them, nor add their QoS and identifier."""
    by_queue = sources((1, 2, 0), (2, 1, 0), (3, 2, 0))
    for queue_id, options in ((1, 1), (2, 2), (3, 1)):
        by_queue[queue_id].grant = grant_of(by_queue[queue_id].grant.qos, options, queue_id)
    everywhere = [(1, 0), (2, 0), (3, 0)]
    assert decide(everywhere, by_queue[1], by_queue, 0, own=True) == PASSED
    assert decide(everywhere, by_queue[2], by_queue, 0, own=True) == 1
    assert decide(everywhere, by_queue[2], by_queue, 0) == WAIT
    assert gather(everywhere, by_queue[2], by_queue, own=True) == ([2], True)
    assert gather(everywhere, by_queue[1], by_queue) == ([1, 2, 3], True)


def test_a_later_subscription_adds_nothing() -> None:
    """Its identifier is not on a message from before it."""
    by_queue = sources((1, 1, 0), (2, 1, 5))
    by_queue[2].grant = grant_of(1, 0, 9)
    assert gather([(1, 0), (2, 4)], by_queue[1], by_queue) == ([], False)
    assert gather([(1, 0), (2, 5)], by_queue[1], by_queue) == ([9], False)


class Session:
    """Has `portions` turns of work."""

    def __init__(self, portions: int = 1) -> None:
        self.portions = portions
        self.turns = 0
        self.given = 0
        self.gave_up = False

    def pump(self, portions: int) -> bool:
        self.turns += 1
        self.given = portions
        if self.portions < 0:
            raise ValueError("broken")
        return self.turns < self.portions

    def failed(self) -> None:
        self.gave_up = True


async def test_turns() -> None:
    """A session runs once however often it is woken, again while it has more, and never after it is forgotten."""
    pump, short, long, gone = Pump(), Session(), Session(3), Session()
    for session in (short, long, short, gone):
        pump.wake(session)
    pump.forget(gone)
    await settle()
    assert (short.turns, long.turns, gone.turns) == (1, 3, 0)


async def test_a_session_that_is_behind_waits_for_the_next_turn() -> None:
    """It gets one portion per turn, even if it is woken meanwhile; sessions that are not behind go first."""
    pump, behind, live = Pump(), Session(3), Session()
    order: list[Session] = []
    for session in (behind, live):
        deliver = session.pump
        session.pump = lambda portions, session=session, deliver=deliver: (order.append(session), deliver(portions))[1]  # type: ignore[method-assign]
    pump.later(behind)
    pump.wake(behind)
    pump.wake(live)
    await settle()
    assert order == [live, behind, behind, behind]
    pump.later(behind)
    pump.forget(behind)
    await settle()
    assert len(order) == 4


async def test_a_failing_session_is_given_up_and_the_others_go_on() -> None:
    """Its failure does not affect them."""
    pump, broken, fine = Pump(), Session(-1), Session()
    pump.wake(broken)
    pump.wake(fine)
    await settle()
    assert broken.gave_up
    assert fine.turns == 1


async def test_few_sessions_have_several_portions_each() -> None:
    """They share what one turn can deliver; the least is one portion."""
    for count, portions in ((1, PORTIONS_PER_TURN), (3, PORTIONS_PER_TURN // 3), (40, 1)):
        pump, sessions = Pump(), [Session() for _ in range(count)]
        for session in sessions:
            pump.wake(session)
        await settle()
        assert {session.given for session in sessions} == {portions}


async def test_all_sessions_share_the_same_tools() -> None:
    """They are parts of one proxy: what one adds to the cache the others find."""
    async with running() as rig:
        assert rig.tools.cache is rig.cache
        with pytest.raises(AttributeError):
            rig.tools.spare = 1  # type: ignore[attr-defined]
