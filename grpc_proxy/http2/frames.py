"""Frames of HTTP/2 (RFC 9113, sections 4 and 6): numbers, flags, and the bytes of those that a server sends.

    length (24 bits)  kind (8)  flags (8)  stream (31, one bit unused)  payload

Invariant: what is made here is a whole frame. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum
from struct import Struct

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
HEAD_BYTES = 9
FRAME_BYTES_MAX = 16_384
"""Largest payload that peers may send: HTTP/2's default, which needs no setting."""
WINDOW_MAX = 2**31 - 1
WINDOW_FIRST = 65_535
"""Every window before settings change it."""


class Kind(IntEnum):
    """What a frame is, by its fourth octet."""

    DATA = 0
    HEADERS = 1
    PRIORITY = 2
    RST_STREAM = 3
    SETTINGS = 4
    PUSH_PROMISE = 5
    PING = 6
    GOAWAY = 7
    WINDOW_UPDATE = 8
    CONTINUATION = 9


class SettingName(IntEnum):
    """Settings that mean something to a server."""

    HEADER_TABLE_SIZE = 1
    ENABLE_PUSH = 2
    MAX_CONCURRENT_STREAMS = 3
    INITIAL_WINDOW_SIZE = 4
    MAX_FRAME_SIZE = 5
    MAX_HEADER_LIST_SIZE = 6


END_STREAM, ACK, END_HEADERS, PADDED, PRIORITISED = 0x1, 0x1, 0x4, 0x8, 0x20
_head = Struct(">HBBBI").pack
_setting = Struct(">HI").pack
_word = Struct(">I").pack
_words = Struct(">II").pack


def head(kind: int, flags: int, stream_id: int, size: int) -> bytes:
    """Return the first nine bytes of a frame."""
    return _head(size >> 8, size & 0xFF, kind, flags, stream_id)


def settings_frame(values: Mapping[int, int]) -> bytes:
    """Return a SETTINGS frame."""
    payload = b"".join(_setting(name, value) for name, value in values.items())
    return head(Kind.SETTINGS, 0, 0, len(payload)) + payload


SETTINGS_ACK = head(Kind.SETTINGS, ACK, 0, 0)


def pong_frame(payload: bytes) -> bytes:
    """Return the answer to a PING."""
    return head(Kind.PING, ACK, 0, len(payload)) + payload


def window_frame(stream_id: int, size: int) -> bytes:
    """Return a WINDOW_UPDATE frame."""
    return head(Kind.WINDOW_UPDATE, 0, stream_id, 4) + _word(size)


def reset_frame(stream_id: int, code: int) -> bytes:
    """Return a RST_STREAM frame."""
    return head(Kind.RST_STREAM, 0, stream_id, 4) + _word(code)


def goaway_frame(last_stream_id: int, code: int, reason: bytes = b"") -> bytes:
    """Return a GOAWAY frame."""
    return head(Kind.GOAWAY, 0, 0, 8 + len(reason)) + _words(last_stream_id, code) + reason


def headers_frames(stream_id: int, block: bytes, *, end: bool, size_max: int) -> bytes:
    """Return a header block as HEADERS and as many CONTINUATION frames as it takes."""
    last = END_STREAM if end else 0
    if len(block) <= size_max:
        return head(Kind.HEADERS, last | END_HEADERS, stream_id, len(block)) + block
    parts = [block[at : at + size_max] for at in range(0, len(block), size_max)]
    made = [head(Kind.HEADERS, last, stream_id, size_max) + parts[0]]
    made += [head(Kind.CONTINUATION, 0, stream_id, size_max) + part for part in parts[1:-1]]
    made.append(head(Kind.CONTINUATION, END_HEADERS, stream_id, len(parts[-1])) + parts[-1])
    return b"".join(made)
