"""What is done once per publish and per acknowledgement: both twins."""

from __future__ import annotations

from mqtt_proxy.bridge.cache import Feed
from mqtt_proxy.bridge.source import Place, Source
from mqtt_proxy.hot.contracts import Core
from mqtt_proxy.mqtt import scan
from mqtt_proxy.mqtt.packets import Publish
from remoting.protocol.mqtt_properties import MessageProperties


def test_survey(core: Core) -> None:
    one, two = Publish(b"t", b"abc", 1, False, False, 7), Publish(b"topic", b"", 0, True, False, 0)
    assert core.survey([]) == (True, 0, [])
    assert core.survey([one, two, one]) == (True, 13, [7, 7])
    assert core.survey([one, Publish(b"t", b"x", 2, False, False, 9)]) == (False, 6, [7, 9])
    assert core.survey([Publish(b"t", b"x", 0, False, False, 0, MessageProperties())]) == (False, 2, [])


def source(queue_id: int, *unacked: int) -> Source:
    made = Source("t", Feed(queue_id), 1, 0, queue_id)
    made.unacked = dict.fromkeys(unacked)
    return made


def test_settle(core: Core) -> None:
    one, two = source(1, 4, 5, 6), source(2, 4, 5)
    assert core.settle([]) == 0
    assert core.settle([(one, 5), (two, 4), (one, 4), (Place(9), 1), (one, 99)]) == 5
    assert (list(one.unacked), list(two.unacked)) == ([6], [5])


def test_settle_takes_copies_in_younger_sources_along(core: Core) -> None:
    one, two = source(1, 4), source(2)
    two.leave_to(one, 8, 4)
    assert list(two.unacked) == [8]
    assert core.settle([(one, 4)]) == 1
    assert not one.unacked
    assert not two.unacked


def test_sessions_call_the_twin_in_use() -> None:
    from mqtt_proxy import hot

    assert scan.IN_USE.publishes is hot.core.scan_publishes
    assert scan.IN_USE.publishes_5 is hot.core.scan_publishes_5
    assert scan.IN_USE.acknowledgements is hot.core.scan_acknowledgements
