"""What goes from one connection of a session to the next, where its subscription is still there and where it is not."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from mqtt_proxy.delivery.record_cache import Feed
from mqtt_proxy.delivery.redelivery import Redelivery
from mqtt_proxy.delivery.resume import Again
from mqtt_proxy.delivery.source import Source
from remoting.protocol.bodies.session_body import PHASE_PUBREL


class Sent:
    """Stands for what sends to the client; refuses what is too large."""

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
    """It is unacknowledged there again; without a subscription only its place is remembered."""
    source = Source("f", Feed(7), 1, 20, 1)
    redelivery, _sent = over(source)
    assert redelivery.place(Again(1, 7, 12)) == (source, 12)
    assert list(source.unacked) == [12]
    origin, offset = redelivery.place(Again(2, 8, 5))
    assert (origin.queue_id, offset) == (8, 5)


def test_what_is_sent_again_says_what_its_subscription_wants() -> None:
    """What the client took is only released, what is too large does not go on."""
    source = Source("f", Feed(7), 1, 20, 1)
    source.choose(0, 40)
    redelivery, sent = over(source)
    taken = Again(2, 7, 13)
    taken.phase = PHASE_PUBREL
    assert redelivery.send_again([Again(1, 7, 12), taken, Again(3, 7, 14)]) == {1, 2}
    assert [(packet_id, token, identifiers) for packet_id, *_, token, identifiers in sent.sent] == [
        (1, (source, 12), (40,)),
        (3, (source, 14), (40,)),
    ]
