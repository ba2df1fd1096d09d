"""Which keys a record has, in every awkward case."""

from __future__ import annotations

from typing import Any

from hypothesis import given

from remoting.native.checksum import crc32c
from remoting.protocol.records.record import FLAG_MQTT, FLAG_STAGED, RecordView
from remoting.protocol.records.record_keys import KEYS_PER_RECORD_MAX, has_key, key_hash, key_hashes, unique_key
from tests.sim.keyed import fields
from tests.support.records import make_record


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
