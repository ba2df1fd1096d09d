"""What a message says about itself survives its way through a record, whatever it is."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from remoting.protocol.records.mqtt_properties import (
    BRIDGE_KEY,
    OWN_KEYS,
    USER_PREFIX,
    MessageProperties,
    expiry_of,
    from_pairs,
    to_pairs,
)
from remoting.protocol.records.properties import decode_properties, encode_properties
from remoting.protocol.records.record import CLIENT_ID_KEY, MQTT_TOPIC_KEY

KEYS = st.sampled_from([b"", b"%", b"%user%", b"KEYS", b"mqttExpiry", b"clientId", b"a\x01b", b"plain"]) | st.binary(
    max_size=6
)
VALUES = st.sampled_from([b"", b"%01", b"\x01", b"100%", b"\x02%"]) | st.binary(max_size=6)
ALL = st.builds(
    MessageProperties,
    st.sampled_from([None, 0, 1]),
    st.none() | st.integers(0, 0xFFFF_FFFF),
    st.none() | VALUES,
    st.none() | VALUES,
    st.none() | st.binary(max_size=9),
    st.lists(st.tuples(KEYS, VALUES), max_size=4),
)


@given(ALL)
def test_round_trip_through_record_and_text_form(properties: MessageProperties) -> None:
    """Also through RocketMQ's text form, with the record's own two properties before them."""
    pairs = [(MQTT_TOPIC_KEY, b"a/b"), (CLIENT_ID_KEY, b"c"), *to_pairs(properties)]
    found = from_pairs(decode_properties(encode_properties(pairs)))
    assert found == (None if properties == MessageProperties() else properties)
    assert expiry_of(pairs) == properties.expiry_s


def test_ordinary_user_properties_stay_as_they_are() -> None:
    """What a RocketMQ client sets and reads, in order, as often as it comes."""
    user = [(b"b", b"1"), (b"a", b"100%"), (b"b", b"2")]
    assert to_pairs(MessageProperties(user=user)) == user


def test_keys_with_a_meaning_are_escaped() -> None:
    """No publisher can set what RocketMQ or we understand."""
    for key in (b"KEYS", b"TAGS", b"UNIQ_KEY", b"", b"%x", MQTT_TOPIC_KEY, CLIENT_ID_KEY, *OWN_KEYS):
        ((written, _),) = to_pairs(MessageProperties(user=[(key, b"v")]))
        assert written.startswith(USER_PREFIX)


def test_what_other_writers_put_there() -> None:
    """System properties are not the user's; a value of ours that cannot be read is left out."""
    pairs = [(b"KEYS", b"k"), (b"mqttExpiry", b"soon"), (b"mqttCorrelationData", b"?"), (b"own", b"1")]
    assert from_pairs(pairs) == MessageProperties(user=[(b"own", b"1")])
    assert from_pairs(pairs[:3]) is None
    assert expiry_of(pairs) is None
    assert expiry_of([(b"mqttExpiry", b"99999999999")]) is None
    assert expiry_of([(b"mqttExpiry", b"9999999999")]) == 0xFFFF_FFFF


def test_the_mark_of_a_bridge_is_neither_set_nor_seen_by_clients() -> None:
    """A user property of that name is escaped; the mark itself is no user property."""
    said = MessageProperties(user=[(BRIDGE_KEY, b"cloud")])
    [(key, _value)] = to_pairs(said)
    assert key == USER_PREFIX + BRIDGE_KEY
    assert from_pairs(to_pairs(said)) == said
    assert from_pairs([(BRIDGE_KEY, b"cloud")]) is None
