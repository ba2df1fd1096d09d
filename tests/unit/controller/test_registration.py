"""Both forms of a registration's body, and invalid ones."""

from __future__ import annotations

import contextlib
import struct
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller import api
from controller.api import decode_registration
from remoting.protocol.bodies.controller_body import (
    DataVersion,
    RegisterBrokerBody,
    TopicConfig,
    TopicConfigTable,
    encode_body,
)
from remoting.protocol.errors import RemoteViolation


def block(data):
    return struct.pack(">i", len(data)) + data


def compressed(*lines, count=None, version=b'{"stateVersion":2,"timestamp":3,"counter":{"value":4}}'):
    version = version.replace(b'{"value":4}', b"4")
    body = block(version) + struct.pack(">i", len(lines) if count is None else count) + b"".join(map(block, lines))
    return zlib.compress(body + block(b"[]") + struct.pack(">i", 0))


def test_plain():
    table = TopicConfigTable({"t": TopicConfig("t", 8, 8, 7)}, DataVersion(1, 2, 3))
    assert decode_registration(encode_body(RegisterBrokerBody(table)), compressed=False) == table
    assert decode_registration(b"", compressed=True) is None


def test_compressed_without_the_flag():
    # What RocketMQ 5 sends with compressedRegister=true: the field has "false".
    body = compressed(b"t 8 8 6 SINGLE_TAG {}")
    assert decode_registration(body, compressed=False) == decode_registration(body, compressed=True)


def test_compressed():
    body = compressed(b"t 8 8 6 SINGLE_TAG", b'u 1 2 4 MULTI_TAG {"message.type":"FIFO"}')
    table = decode_registration(body, compressed=True, crc32=zlib.crc32(body) & 0x7FFFFFFF)
    assert table.data_version == DataVersion(2, 3, 4)
    assert table.topic_config_table["t"] == TopicConfig("t", 8, 8, 6)
    assert table.topic_config_table["u"] == TopicConfig("u", 1, 2, 4, "MULTI_TAG", attributes={"message.type": "FIFO"})


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"no zlib", "inflated"),
        (compressed(b"t 8 8 6 SINGLE_TAG")[:-6], "cut off"),
        (compressed(b"t 8"), "has 2 of its 5 words"),
        (compressed(b"t x 8 6 SINGLE_TAG"), "cannot be read"),
        (compressed(b"t 8 8 6 SINGLE_TAG {"), "cannot be read"),
        (compressed(b"t 8 8 6 SINGLE_TAG", count=5), "words|fit|cut off"),
        (zlib.compress(block(b"{}")), "ends before its topics"),
        (zlib.compress(struct.pack(">i", -5)), "does not fit"),
    ],
)
def test_what_is_malformed(body, message):
    with pytest.raises(RemoteViolation, match=message):
        decode_registration(body, compressed=True)


def test_a_wrong_checksum():
    with pytest.raises(RemoteViolation, match="bodyCrc32"):
        decode_registration(b"{}", compressed=False, crc32=1)


def test_a_body_that_would_fill_the_memory_is_refused(monkeypatch):
    monkeypatch.setattr(api, "INFLATED_BYTES_MAX", 10_000)
    with pytest.raises(RemoteViolation, match="above 10000 bytes"):
        decode_registration(zlib.compress(bytes(1_000_000)), compressed=True)


@given(st.binary(max_size=80))
def test_any_bytes_raise_only_violations(data):
    for body, is_compressed in ((data, False), (zlib.compress(data), True)):
        with contextlib.suppress(RemoteViolation):
            decode_registration(body, compressed=is_compressed)
