"""Properties: the text form round-trips, no value can inject a pair, real clients' forms are read."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from remoting.native.checksum import crc32c
from remoting.protocol.errors import LocalMisuse
from remoting.protocol.records import properties
from remoting.protocol.records.properties import (
    BRIDGE_KEY,
    KEYS_PER_RECORD_MAX,
    OWN_KEYS,
    USER_PREFIX,
    MessageProperties,
    decode_properties,
    encode_properties,
    expiry_of,
    from_pairs,
    has_key,
    key_hash,
    key_hashes,
    to_pairs,
    unique_key,
)
from remoting.protocol.records.record import CLIENT_ID_KEY, FLAG_MQTT, FLAG_STAGED, MQTT_TOPIC_KEY, RecordView
from tests.sim.keyed import fields
from tests.support.records import make_record

TEXT = st.binary(max_size=20).filter(lambda raw: b"\1" not in raw and b"\2" not in raw)


@given(pairs=st.lists(st.tuples(TEXT, TEXT), max_size=8))
def test_round_trip(pairs):
    assert properties.decode_properties(properties.encode_properties(pairs)) == pairs


@pytest.mark.parametrize(
    ("text", "pairs"),
    [
        (b"", []),
        (b"KEYS\x01a b\x02TAGS\x01t\x02", [(b"KEYS", b"a b"), (b"TAGS", b"t")]),
        (b"KEYS\x01a", [(b"KEYS", b"a")]),
        (b"junk\x02k\x01v\x02", [(b"k", b"v")]),
        (b"k\x01v\x01w\x02", [(b"k", b"v\x01w")]),
    ],
)
def test_what_clients_send_is_read(text, pairs):
    assert properties.decode_properties(text) == pairs


@pytest.mark.parametrize("pair", [(b"k\1", b""), (b"k\2", b""), (b"k", b"v\1"), (b"k", b"v\2TAGS\1x")])
def test_separators_cannot_be_smuggled_in(pair):
    with pytest.raises(LocalMisuse, match="separator"):
        properties.encode_properties([pair])


def test_the_limit():
    properties.encode_properties([(b"k", b"v" * (32_767 - 3))])
    with pytest.raises(LocalMisuse, match="32768 bytes"):
        properties.encode_properties([(b"k", b"v" * (32_767 - 2))])


def test_reserved_names():
    assert properties.is_reserved(b"UNIQ_KEY")
    assert properties.is_reserved(b"__RMQ.TRANSIENT.x")
    assert not properties.is_reserved(b"originMqttTopic")


_TABLE = Path(__file__).parent / "message_const.txt"
CONSTANTS = dict(line.split(" ", 1) for line in _TABLE.read_text().splitlines()[1:])
NO_NAMES = {
    "KEY_SEPARATOR": "between the keys of one message",
    "INDEX_KEY_TYPE": "kind of an entry of an index",
    "INDEX_UNIQUE_TYPE": "kind of an entry of an index",
    "INDEX_TAG_TYPE": "kind of an entry of an index",
    "TIMER_ENGINE_ROCKSDB_TIMELINE": "value of E_T",
    "TIMER_ENGINE_FILE_TIME_WHEEL": "value of E_T",
}
"""Constants that are not the name of a property."""


def escaped(name: bytes) -> bytes:
    """The property of a record for a user property of a device."""
    ((key, _value),) = properties.to_pairs(properties.MessageProperties(user=[(name, b"v")]))
    return key


def test_no_device_sets_a_property_that_means_something_to_rocketmq() -> None:
    assert len(CONSTANTS) > 70
    assert set(NO_NAMES) <= set(CONSTANTS)
    for constant, quoted in CONSTANTS.items():
        name = quoted.strip('"').encode()
        if constant not in NO_NAMES:
            assert escaped(name) == b"%user%" + name, constant


def test_no_device_sets_a_property_that_means_something_to_this_server() -> None:
    """Every name in the sources that looks like one of ours; `delay-ms` is for devices."""
    root = Path(properties.__file__).parents[3]
    literal = re.compile(rb'b"((?:LIGHTMQ_|__rmq\.|__LITE|mqtt[A-Z]|_SYS_|originMqtt|qosLevel|clientId)[\w.]*)"')
    found = {
        name
        for room in ("broker", "remoting", "mqtt_proxy", "mqtt_bridge", "grpc_proxy")
        for source in (root / room).rglob("*.py")
        for name in literal.findall(source.read_bytes())
    }
    assert found >= {b"LIGHTMQ_RETURNED", b"__LITE_TOPIC", b"originMqttTopic", b"mqttBridge", b"__rmq.born"}
    for name in found:
        assert escaped(name).startswith(b"%user%"), name


def test_a_text_form_with_more_pairs() -> None:
    for text in (b"", b"a\x01b\x02", b"a\x01b"):
        assert dict(properties.decode_properties(properties.extended(text, [(b"a", b"c"), (b"d", b"")])))[b"a"] == b"c"
    full = b"k\x01" + b"v" * 32_760 + b"\x02"
    assert properties.extended(full, [(b"a", b"b" * 9)]) == full, "too long"


def view(**record: Any) -> RecordView:
    """A record seen as the index sees it."""
    return RecordView(make_record(**record))


def test_the_number_is_the_checksum_of_topic_and_key() -> None:
    """A zero byte between the two, so that moving the border gives another number."""
    assert key_hash(b"topic", b"key") == crc32c(b"topic\0key")
    assert key_hash(b"ab", b"c") != key_hash(b"a", b"bc")


def test_keys_field_and_unique_key() -> None:
    """Both are found; an empty one, one of another topic and a part of one are not."""
    record = view(keys=b"one  two", properties=[(b"p", b"one"), (b"UNIQ_KEY", b"id"), (b"UNIQ_KEY", b"second")])
    assert unique_key(record) == b"id"
    for key in (b"one", b"two", b"id"):
        assert has_key(record, b"t", key, unique_only=False)
        assert not has_key(record, b"u", key, unique_only=False)
    for key in (b"", b"on", b"one  two", b"second", b"p"):
        assert not has_key(record, b"t", key, unique_only=False)
    assert has_key(record, b"t", b"id", unique_only=True)
    assert not has_key(record, b"t", b"one", unique_only=True)


def test_hidden_records_and_properties_of_devices_have_no_keys() -> None:
    """Staged rows, records in no queue, and UNIQ_KEY as a property from MQTT."""
    assert key_hashes(view(keys=b"k", flags=FLAG_STAGED)) == []
    assert key_hashes(view(keys=b"k", dispatch=())) == []
    assert key_hashes(view(properties=[(b"UNIQ_KEY", b"k")], flags=FLAG_MQTT)) == []
    assert not has_key(view(keys=b"k", flags=FLAG_STAGED), b"t", b"k", unique_only=False)


@given(fields())
def test_what_is_found_by_a_number_has_a_key_of_that_number(record: dict[str, Any]) -> None:
    """Each number once, at most the limit; and each of them is that of a key the record has."""
    seen = view(**record)
    numbers = key_hashes(seen)
    assert len(numbers) == len(set(numbers)) <= KEYS_PER_RECORD_MAX
    keys = {
        key for key in (unique_key(seen), *seen.keys.split(b" ")) if has_key(seen, seen.topic, key, unique_only=False)
    }
    assert set(numbers) <= {key_hash(seen.topic, key) for key in keys}
    assert len(numbers) == min(len(keys), KEYS_PER_RECORD_MAX)


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
    """A publisher cannot set what RocketMQ or LightMQ interprets."""
    for key in (b"KEYS", b"TAGS", b"UNIQ_KEY", b"", b"%x", MQTT_TOPIC_KEY, CLIENT_ID_KEY, *OWN_KEYS):
        ((written, _),) = to_pairs(MessageProperties(user=[(key, b"v")]))
        assert written.startswith(USER_PREFIX)


def test_invalid_values_of_other_writers() -> None:
    """System properties are not the user's; an unreadable value of LightMQ's is left out."""
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
