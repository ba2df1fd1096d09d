"""PUBLISH as a value."""

from __future__ import annotations

import pytest

from mqtt_proxy.mqtt.codec.publish import Publish
from remoting.protocol.records.properties import MessageProperties


def test_properties_of_mqtt_5_are_empty_by_default() -> None:
    """A packet of 3.1.1 is one of MQTT 5 without properties."""
    one = Publish(b"a", b"x", 0, False, False, 0)
    assert (one.properties, one.topic_alias, one.subscription_ids) == (None, 0, ())
    assert one == Publish(b"a", b"x", 0, False, False, 0, None, 0, ())


@pytest.mark.parametrize(
    "other",
    [
        Publish(b"b", b"x", 1, False, False, 3),
        Publish(b"a", b"y", 1, False, False, 3),
        Publish(b"a", b"x", 2, False, False, 3),
        Publish(b"a", b"x", 1, True, False, 3),
        Publish(b"a", b"x", 1, False, True, 3),
        Publish(b"a", b"x", 1, False, False, 4),
        Publish(b"a", b"x", 1, False, False, 3, MessageProperties(content_type=b"t")),
        Publish(b"a", b"x", 1, False, False, 3, topic_alias=1),
        Publish(b"a", b"x", 1, False, False, 3, subscription_ids=(1,)),
    ],
)
def test_two_are_equal_only_when_every_field_is(other: Publish) -> None:
    """Each field alone makes a difference, and shows in its text."""
    one = Publish(b"a", b"x", 1, False, False, 3)
    assert one != other
    assert repr(one) != repr(other)
    assert one != "something else"


def test_it_has_no_hash() -> None:
    """It can be changed."""
    with pytest.raises(TypeError):
        hash(Publish(b"a", b"x", 1, False, False, 3))
