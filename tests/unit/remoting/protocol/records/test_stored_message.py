"""RocketMQ's stored messages: every field round-trips with hosts of both families, damage only violates."""

from __future__ import annotations

import contextlib
import struct
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from remoting.protocol.errors import CorruptRecord, LocalMisuse, RemoteViolation
from remoting.protocol.records import record
from remoting.protocol.records import stored_message as sm
from tests.support.records import make_record

I32 = st.integers(-(2**31), 2**31 - 1)
I64 = st.integers(-(2**63), 2**63 - 1)
TEXT = st.binary(max_size=20).filter(lambda raw: b"\1" not in raw and b"\2" not in raw)
HOST = st.tuples(st.ip_addresses().map(str), st.integers(0, 65_535))


@st.composite
def messages(draw):
    """A message whose sys flag agrees with its hosts, as encode_stored writes it."""
    born_host, store_host = draw(HOST), draw(HOST)
    sys_flag = draw(st.integers(0, 0x7FFF)) & ~0x30
    sys_flag |= 0x10 * (":" in born_host[0]) | 0x20 * (":" in store_host[0])
    return sm.StoredMessage(
        draw(st.binary(max_size=300)), draw(st.binary(max_size=100)), draw(I32), *[draw(I64) for _ in range(4)],
        born_host, store_host, draw(I32), sys_flag, draw(I32), draw(I64),
        draw(st.lists(st.tuples(TEXT, TEXT), max_size=4)),
    )  # fmt: skip


@given(sent=st.lists(messages(), max_size=4))
def test_round_trip(sent):
    blob = b"".join(map(sm.encode_stored, sent))
    assert list(sm.iter_stored(blob)) == sent


def simple(topic: bytes = b"t") -> sm.StoredMessage:
    """A message with IPv4 hosts."""
    return sm.StoredMessage(
        topic, b"body", 3, 7, 4096, 10, 11, ("10.0.0.1", 1), ("10.0.0.2", 2), properties=[(b"k", b"v")]
    )


def test_the_documented_layout():
    raw = sm.encode_stored(simple())
    assert len(raw) == 91 + 4 + 1 + 4
    assert struct.unpack_from(">iiiiiqqiq", raw) == (
        len(raw),
        -626843481,
        zlib.crc32(b"body") & 0x7FFFFFFF,
        3,
        0,
        7,
        4096,
        0,
        10,
    )
    assert raw[48:56] == bytes((10, 0, 0, 1, 0, 0, 0, 1))
    assert raw[84:] == b"\0\0\0\4body\1t\0\4k\1v\2"


def test_tags_and_keys_are_found_among_the_properties():
    message = simple()
    assert (message.tags, message.keys) == (None, [])
    message.properties = [(b"TAGS", b"red"), (b"KEYS", b"k1 k2")]
    assert (message.tags, message.keys) == (b"red", [b"k1", b"k2"])


def test_long_topics_take_the_second_version():
    assert sm.encode_stored(simple(b"t" * 127))[4:8] == struct.pack(">i", -626843481)
    raw = sm.encode_stored(simple(b"t" * 128))
    assert raw[4:8] == struct.pack(">i", -626843477)
    assert sm.decode_stored(raw) == (simple(b"t" * 128), len(raw))


def test_from_our_record():
    raw = make_record(
        keys=b"k1", tags=b"TagA", properties=[(b"k", b"v")], position=4096, born_ms=10, store_ms=11, flags=8 << 16 | 1
    )
    message = sm.from_record(
        record.RecordView(raw), queue_id=3, queue_offset=7, born_host=("10.0.0.1", 1), store_host=("10.0.0.2", 2)
    )
    expected = simple()
    expected.sys_flag = 8
    expected.properties = [(b"k", b"v"), (b"TAGS", b"TagA"), (b"KEYS", b"k1")]
    assert message == expected


def test_every_cut_and_bad_part_violates():
    good = sm.encode_stored(simple())
    for cut in range(len(good)):
        with pytest.raises(RemoteViolation):
            sm.decode_stored(good[:cut])
    for size in range(len(good)):
        with pytest.raises(RemoteViolation):
            sm.decode_stored(struct.pack(">i", size) + good[4:])
    with pytest.raises(RemoteViolation, match="magic"):
        sm.decode_stored(good[:4] + bytes(4) + good[8:])
    with pytest.raises(CorruptRecord, match="checksum"):
        sm.decode_stored(good.replace(b"body", b"bodY"))


@given(raw=st.binary(max_size=200), damage=st.lists(st.tuples(st.integers(0, 98), st.integers(0, 255)), max_size=6))
def test_arbitrary_bytes_only_violate(raw, damage):
    bent = bytearray(sm.encode_stored(simple()))
    for at, value in damage:
        bent[at] = value
    for blob in (raw, bytes(bent)):
        with contextlib.suppress(RemoteViolation):
            list(sm.iter_stored(blob))


@pytest.mark.parametrize("change", [{"queue_id": 2**31}, {"topic": b"t" * 65_536}, {"born_host": ("here", 1)}])
def test_what_does_not_fit_is_our_callers_fault(change):
    message = simple()
    for name, value in change.items():
        setattr(message, name, value)
    with pytest.raises(LocalMisuse):
        sm.encode_stored(message)
