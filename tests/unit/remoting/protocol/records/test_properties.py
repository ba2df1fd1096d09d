"""Properties: the text form round-trips, no value can inject a pair, real clients' forms are read."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from remoting.native.checksum import crc32c
from remoting.protocol.errors import LocalMisuse
from remoting.protocol.records import properties
from remoting.protocol.records.properties import KEYS_PER_RECORD_MAX, has_key, key_hash, key_hashes, unique_key
from remoting.protocol.records.record import FLAG_MQTT, FLAG_STAGED, RecordView
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


def test_records_nobody_may_see_and_properties_of_devices_have_no_keys() -> None:
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
