"""Properties: the text form round-trips, no value can inject a pair, real clients' forms are read."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from remoting.protocol.errors import LocalMisuse
from remoting.protocol.records import properties

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
