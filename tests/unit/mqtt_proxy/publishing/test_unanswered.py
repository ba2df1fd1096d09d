"""Of unanswered messages QoS 1 is kept in order, QoS 0 dropped, and connections that sent QoS 2 are named."""

from __future__ import annotations

from mqtt_proxy.mqtt.codec.publish import images
from mqtt_proxy.publishing.origin import Unanswered, again, each_qos
from mqtt_proxy.publishing.publisher import PublishRun
from tests.unit.mqtt_proxy.publishing.test_publisher import Origin
from tests.unit.mqtt_proxy.rig import publish


def run_of(origin: Origin, *each: int) -> PublishRun:
    """Messages of these QoS; their packet ids start at 10, their payloads are the ids."""
    ids = [10 + at if qos else 0 for at, qos in enumerate(each)]
    publishes = [publish("t", b"%d" % one, qos, one) for qos, one in zip(each, ids, strict=True)]
    made, packet_ids = images(publishes, b"c", 1, False)
    return PublishRun(origin, made, packet_ids, len(each), 0)


def test_what_may_be_sent_twice_is_kept_in_order() -> None:
    """A run of QoS 0 alone disappears, a run without it stays as it is."""
    origin = Origin()
    mixed = run_of(origin, 1, 0, 1)
    assert each_qos(mixed) == [1, 0, 1]
    kept = again(mixed, each_qos(mixed))
    assert kept is not None
    assert (kept.count, kept.packet_ids, each_qos(kept)) == (2, [10, 12], [1, 1])
    assert 0 < kept.size_bytes < mixed.size_bytes
    whole = run_of(origin, 1, 1)
    assert again(whole, each_qos(whole)) is whole
    nothing = run_of(origin, 0, 0)
    assert again(nothing, each_qos(nothing)) is None


def test_a_connection_that_sent_qos_2_is_named_and_given_up() -> None:
    """With everything that waits of it; what is dropped is counted once."""
    waiting, first, second = Unanswered(), Origin(), Origin()
    assert not waiting
    assert waiting.add([run_of(first, 1), run_of(second, 2, 1), run_of(first, 0)]) == [second]
    assert waiting
    assert waiting.take_dropped()[0] == 1
    gathered = run_of(second, 1)
    waiting.give_up([second], [gathered])
    assert (waiting.has(first), waiting.has(second)) == (True, False)
    assert waiting.take_dropped()[0] == 3
    assert waiting.take_dropped() == (0, 0)
    assert [run.origin for run in waiting.take()] == [first]
    assert not waiting
