"""The body of a broker's registration (code 103), in its two forms, as topics and their version.

    plain       JSON {topicConfigSerializeWrapper:{topicConfigTable, dataVersion}, filterServerList}
    compressed  zlib( i32 n, version JSON | i32 count, count x (i32 n, "name read write perm filterType [attributes]")
                      | i32 n, filter servers JSON | ... )                                             big-endian

Invariant: whatever is malformed raises RemoteViolation; an inflated body never exceeds its limit. Pure.
"""

from __future__ import annotations

import struct
import zlib

import msgspec

from remoting.protocol.bodies.route_body import (
    DataVersion,
    RegisterBrokerBody,
    TopicConfig,
    TopicConfigTable,
    decode_body,
)
from remoting.protocol.errors import RemoteViolation

INFLATED_BYTES_MAX = 64 * 1024 * 1024
"""Largest inflated body: about half a million topics."""

_I32 = struct.Struct(">i")
_CRC_MASK = 0x7FFF_FFFF
_WORDS_MIN = 5
_DEFLATED = b"\x78"
"""What a zlib stream begins with, and no JSON object does."""


def decode_registration(body: bytes, *, compressed: bool, crc32: int = 0) -> TopicConfigTable | None:
    """Topics and version of a registration, None when the body is empty; `crc32` 0 is not checked.

    RocketMQ 5's brokers say that a body is not compressed that is, so the body's own first byte counts as well.
    """
    if crc32 != 0 and zlib.crc32(body) & _CRC_MASK != crc32:
        raise RemoteViolation("the body's checksum is not the one in bodyCrc32")
    if not body:
        return None
    if compressed or body.startswith(_DEFLATED):
        return _decode_inflated(_inflate(body))
    return decode_body(body, RegisterBrokerBody).topic_config_serialize_wrapper


def _inflate(body: bytes) -> bytes:
    inflater = zlib.decompressobj()
    try:
        data = inflater.decompress(body, INFLATED_BYTES_MAX)
    except zlib.error as error:
        raise RemoteViolation(f"the compressed body cannot be inflated: {error}") from error
    if not inflater.eof:
        raise RemoteViolation(f"the compressed body is cut off or above {INFLATED_BYTES_MAX} bytes")
    return data


def _decode_inflated(data: bytes) -> TopicConfigTable:
    version_json, at = _block(data, 0)
    if at + _I32.size > len(data):
        raise RemoteViolation("the inflated body ends before its topics")
    count = int(_I32.unpack_from(data, at)[0])
    at += _I32.size
    topics: dict[str, TopicConfig] = {}
    for _ in range(count):
        line, at = _block(data, at)
        config = _topic(line)
        topics[config.topic_name] = config
    return TopicConfigTable(topics, decode_body(version_json, DataVersion))


def _block(data: bytes, at: int) -> tuple[bytes, int]:
    if at + _I32.size > len(data):
        raise RemoteViolation("the inflated body is cut off")
    size = int(_I32.unpack_from(data, at)[0])
    start = at + _I32.size
    if size < 0 or start + size > len(data):
        raise RemoteViolation(f"a part of {size} bytes does not fit the inflated body")
    return data[start : start + size], start + size


def _topic(line: bytes) -> TopicConfig:
    try:
        words = line.decode().split(" ", _WORDS_MIN)
        if len(words) < _WORDS_MIN:
            raise RemoteViolation(f"topic {line!r} has {len(words)} of its {_WORDS_MIN} words")
        name, read, write, perm, filter_type = words[:_WORDS_MIN]
        attributes = msgspec.json.decode(words[_WORDS_MIN], type=dict[str, str]) if len(words) > _WORDS_MIN else None
        return TopicConfig(name, int(read), int(write), int(perm), filter_type, attributes=attributes)
    except (ValueError, msgspec.MsgspecError) as error:
        raise RemoteViolation(f"topic {line!r} cannot be read: {error}") from error
