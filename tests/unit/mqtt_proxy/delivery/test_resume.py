"""Where a stored session continues after an orderly close and after a crash."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from mqtt_proxy.delivery.record_cache import Feed
from mqtt_proxy.delivery.resume import PENDING_RETAINED_MAX, Again, Redelivery, fetch, in_order_of_sending, note, plan
from mqtt_proxy.delivery.source import Source
from mqtt_proxy.grants import grant_of
from mqtt_proxy.mqtt.session.in_flight import RETAINED_QUEUE
from remoting.protocol.bodies.pull_body import QueueRecords
from remoting.protocol.bodies.session_body import (
    HISTORY_BIT,
    PHASE_PUBREL,
    InflightEntry,
    SessionOpened,
    SessionSubscription,
    decode,
    encode,
)
from remoting.protocol.errors import Refused
from tests.unit.mqtt_proxy.rig import publish, running, settle


def opened(offsets: dict[int, int], inflight: list[InflightEntry]) -> SessionOpened:
    """What the broker answers."""
    stored = [SessionSubscription(f"f{queue_id}", 1, queue_id, offset) for queue_id, offset in offsets.items()]
    return decode(SessionOpened, encode(SessionOpened(True, 1, stored, inflight)))


def places(planned: list[Again]) -> list[tuple[int, int, int]]:
    """Packet id, queue, offset."""
    return [(one.packet_id, one.queue_id, one.offset) for one in planned]


def test_after_a_close_only_what_was_in_flight_is_repeated() -> None:
    """Acknowledged messages between two in flight are not sent again."""
    left = note([(5, 100), (6, 3)], [Again(4, 5, 97), Again(9, 5, 99), Again(11, RETAINED_QUEUE, 640)], [1, 2])
    planned = plan(opened({5: 97, 6: 3}, left))
    assert planned.cursors == {5: 100, 6: 3}
    assert places(planned.again) == [(4, 5, 97), (9, 5, 99), (11, RETAINED_QUEUE, 640)]
    assert planned.retained == [1, 2]


def test_offsets_committed_after_the_note_take_precedence() -> None:
    """After a crash the note is that of the close before."""
    left = note([(5, 100)], [Again(4, 5, 97), Again(9, 5, 99)], [])
    assert places(plan(opened({5: 99}, left)).again) == [(9, 5, 99)]
    planned = plan(opened({5: 121}, left))
    assert (planned.cursors, planned.again) == ({5: 121}, [])


def test_without_a_noted_cursor_everything_from_the_offset_is_sent_again() -> None:
    """Nothing is skipped and nothing sent twice in one resume."""
    planned = plan(opened({5: 97}, [InflightEntry(4, 5, 99)]))
    assert (planned.cursors, planned.again) == ({5: 97}, [])


def test_in_flight_messages_of_a_dropped_subscription_are_repeated() -> None:
    """Its queue still has them."""
    planned = plan(opened({}, note([], [Again(4, 5, 99)], [])))
    assert places(planned.again) == [(4, 5, 99)]


def test_qos_2_deliveries_need_no_note_and_keep_their_phase() -> None:
    """Also below the committed offset while PUBREL is due; anything else acknowledged there is complete."""
    entries = [InflightEntry(4, 5, 99, qos=2), InflightEntry(5, 5, 90, PHASE_PUBREL, 2), InflightEntry(6, 5, 91, qos=2)]
    planned = plan(opened({5: 97}, entries))
    assert planned.cursors == {5: 97}
    assert [(one.packet_id, one.phase, one.sent_qos) for one in planned.again] == [(4, 0, 2), (5, 1, 2)]
    assert planned.over == [6]


@pytest.mark.parametrize(
    ("ids", "order"),
    [([], []), ([7], [7]), ([9, 7, 8], [7, 8, 9]), ([1, 65_535, 2, 65_534], [65_534, 65_535, 1, 2])],
)
def test_the_order_of_sending_follows_the_packet_ids_around_their_end(ids: list[int], order: list[int]) -> None:
    assert [one.packet_id for one in in_order_of_sending([Again(one, 5, 0) for one in ids])] == order


def test_the_note_is_bounded() -> None:
    """Positions of retained messages beyond the limit are left out."""
    assert len(note([], [], range(PENDING_RETAINED_MAX + 5))) == PENDING_RETAINED_MAX


async def test_fetch_leaves_out_what_no_longer_exists() -> None:
    """By queue offset and by log position."""
    async with running() as rig:
        subscriber = await rig.subscriber("s", ("t", 1))
        sender = await rig.client("p")
        sender.send(publish("t", b"0"), publish("t", b"1", packet_id=2))
        await settle()
        queue_id = subscriber.handler._delivery.sources[0].queue_id
        asked = [
            Again(1, queue_id, 0),
            Again(2, queue_id, 1),
            Again(3, RETAINED_QUEUE, 64),
            Again(4, RETAINED_QUEUE, 8),
        ]
        rig.broker.trim(queue_id, 1)
        found = await fetch(rig.link, asked)
        assert [(one.packet_id, one.topic, bytes(one.payload)) for one in found] == [(2, b"t", b"1"), (3, b"t", b"0")]


async def test_fetch_goes_on_where_an_answer_was_full(monkeypatch: pytest.MonkeyPatch) -> None:
    """What an answer has no room for still exists: more in flight than fit one are all sent again."""
    async with running() as rig:
        subscriber = await rig.subscriber("s", ("t", 1))
        sender = await rig.client("p")
        sender.send(*[publish("t", b"%d" % number, packet_id=number + 1) for number in range(9)])
        await settle()
        queue_id = subscriber.handler._delivery.sources[0].queue_id
        positions = sorted(rig.broker.by_position)
        whole, at = rig.broker._pull_one, rig.broker.by_position
        calls: list[int] = []

        def narrow(queue: int, offset: int, max_count: int, max_bytes: int) -> QueueRecords:
            calls.append(offset)
            return whole(queue, offset, max_count if len(calls) % 4 else 0, max_bytes)

        monkeypatch.setattr(rig.broker, "_pull_one", narrow)
        monkeypatch.setattr(rig.broker, "room", 2)
        asked = [Again(number + 1, queue_id, number) for number in range(9)]
        asked += [Again(number + 20, RETAINED_QUEUE, position) for number, position in enumerate(positions)]
        found = await fetch(rig.link, asked)
        assert [bytes(one.payload) for one in found[:9]] == [b"%d" % number for number in range(9)]
        assert [one.offset for one in found[9:]] == positions
        assert len(at) == 9


async def test_what_cannot_be_read_yet_is_not_taken_for_gone() -> None:
    """A master that is not sure yet of the end of its log: the client is to come again."""
    async with running() as rig:
        subscriber = await rig.subscriber("s", ("t", 1))
        sender = await rig.client("p")
        sender.send(publish("t", b"0"))
        await settle()
        queue_id = subscriber.handler._delivery.sources[0].queue_id
        with pytest.raises(Refused, match="cannot be read yet"):
            await fetch(rig.link, [Again(1, queue_id, 1)])


def test_a_position_in_history_continues_where_it_was_noted() -> None:
    """Its deliveries in flight are log positions; a request that has no position yet is no place to continue at."""
    stored = SessionOpened(
        True,
        1,
        [
            SessionSubscription("a/+", 1, 7, 0, before=640),
            SessionSubscription("b/+", 1, 8, 0, before=-5),
            SessionSubscription("$share/g/c", 1, 9, 3),
        ],
        [InflightEntry(4, 7 | HISTORY_BIT, 700), InflightEntry(0, 7 | HISTORY_BIT, 900)],
    )
    planned = plan(stored)
    assert planned.cursors == {7: 0, 7 | HISTORY_BIT: 900, 8: 0}
    assert [(one.packet_id, one.queue_id, one.offset) for one in planned.again] == [(4, 7 | HISTORY_BIT, 700)]


class Sent:
    """In place of what sends to the client; refuses messages that are too large."""

    def __init__(self) -> None:
        self.sent: list[tuple[Any, ...]] = []

    def send_again(self, packet_id: int, *rest: Any) -> bool:
        self.sent.append((packet_id, *rest[3:]))
        return packet_id != 3


def over(*sources: Source) -> tuple[Redelivery, Sent]:
    """The redelivery of a session with these subscriptions."""
    by_queue, sent = {one.queue_id: one for one in sources}, Sent()
    delivery: Any = SimpleNamespace(
        reader_of=by_queue.get, memberships=None, sources=list(sources), outbound=sent, committed_key=None
    )
    return Redelivery(delivery), sent


def test_a_delivery_belongs_to_the_subscription_of_its_queue() -> None:
    """It is unacknowledged there again; without a subscription only its place is kept."""
    source = Source("f", Feed(7), grant_of(1), 20, 1)
    redelivery, _sent = over(source)
    assert redelivery.place(Again(1, 7, 12)) == (source, 12)
    assert list(source.unacked) == [12]
    origin, offset = redelivery.place(Again(2, 8, 5))
    assert (origin.queue_id, offset) == (8, 5)


def test_a_repeated_delivery_follows_its_subscription() -> None:
    """What the client received is only released; what is too large is not sent."""
    source = Source("f", Feed(7), grant_of(1, 0, 40), 20, 1)
    redelivery, sent = over(source)
    taken = Again(2, 7, 13)
    taken.phase = PHASE_PUBREL
    assert redelivery.send_again([Again(1, 7, 12), taken, Again(3, 7, 14)]) == {1, 2}
    assert [(packet_id, token, identifiers) for packet_id, *_, token, identifiers in sent.sent] == [
        (1, (source, 12), (40,)),
        (3, (source, 14), (40,)),
    ]
