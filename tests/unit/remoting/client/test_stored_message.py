"""RocketMQ's message layout as it comes with a pull."""

from __future__ import annotations

import contextlib
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from remoting.client.stored_message import MAGIC_V1, MAGIC_V2, decode_messages, decode_properties
from remoting.protocol.errors import RemoteViolation


def stored(
    topic=b"T", body=b"hello", properties=b"TAGS\x01a\x02KEYS\x01k1 k2\x02", *, magic=MAGIC_V1, sys_flag=0, offset=7
):
    born = bytes(16 if sys_flag & 0x10 else 4) + struct.pack(">i", 1)
    store = bytes(16 if sys_flag & 0x20 else 4) + struct.pack(">i", 2)
    topic_length = struct.pack(">B" if magic == MAGIC_V1 else ">H", len(topic))
    rest = (
        struct.pack(">iiiiqqiq", magic, 0, 3, 5, offset, 1_000, sys_flag, 111)
        + born
        + struct.pack(">q", 222)
        + store
        + struct.pack(">iq", 1, 0)
        + struct.pack(">i", len(body))
        + body
        + topic_length
        + topic
        + struct.pack(">h", len(properties))
        + properties
    )
    return struct.pack(">i", len(rest) + 4) + rest


@pytest.mark.parametrize("magic", [MAGIC_V1, MAGIC_V2])
@pytest.mark.parametrize("sys_flag", [0, 0x10, 0x20, 0x30])
def test_every_form(magic, sys_flag):
    data = stored(magic=magic, sys_flag=sys_flag) + stored(body=b"", properties=b"", offset=8)
    first, second = decode_messages(data)
    assert (first.topic, first.body, first.queue_id, first.queue_offset, first.physical_offset) == (
        "T", b"hello", 3, 7, 1_000,
    )  # fmt: skip
    assert (first.flag, first.born_ms, first.store_ms, first.reconsume_times, first.sys_flag) == (
        5,
        111,
        222,
        1,
        sys_flag,
    )
    assert (first.tags, first.keys) == ("a", ["k1", "k2"])
    assert (second.queue_offset, second.tags, second.keys, second.properties) == (8, None, [], {})


def test_the_ipv4_form_has_the_documented_size():
    assert len(stored(b"T", b"", b"")) == 91 + 1


@given(st.integers(min_value=0, max_value=110), st.binary(max_size=4))
def test_cut_and_changed_bytes_raise_only_violations(at, junk):
    data = stored()
    for broken in (data[:at], data[:at] + junk + data[at + len(junk) :]):
        with contextlib.suppress(RemoteViolation):
            decode_messages(broken)


def test_a_foreign_magic_is_named():
    with pytest.raises(RemoteViolation, match="magic 5"):
        decode_messages(stored(magic=5))


def test_properties():
    assert decode_properties("a\x01b\x02c\x01\x02junk") == {"a": "b", "c": ""}
