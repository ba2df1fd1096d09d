"""gRPC on top of HTTP/2: how requests, messages and outcomes are written (the protocol "gRPC over HTTP/2").

    message   compressed (0 or 1), length (32 bits), bytes
    request   POST, path /service/name, content-type application/grpc[+…], te trailers, grpc-timeout, grpc-encoding
    answer    200, messages, trailers grpc-status and grpc-message; without messages all in one block

Requests may be compressed with gzip; answers are not: the bodies of messages are compressed by their producers.
Invariant: a message that is taken in is never larger than it may be, compressed or not. Pure.
"""

from __future__ import annotations

import zlib
from enum import IntEnum
from typing import Any

from grpc_proxy.http2.hpack import block

PREFIX_BYTES = 5
ENCODINGS = b"identity,gzip"
_UNITS_NS = {"H": 3_600 * 10**9, "M": 60 * 10**9, "S": 10**9, "m": 10**6, "u": 10**3, "n": 1}
_TIMEOUT_DIGITS_MAX = 8
_TEXT_CHARS_MAX = 1_024
_FIELDS_OF_ANSWERS = (
    (b":status", b"200"), (b"content-type", b"application/grpc"), (b"grpc-accept-encoding", ENCODINGS),
)  # fmt: skip
ANSWER_BLOCK = block(_FIELDS_OF_ANSWERS)
"""Begins every answer that has messages."""
NO_GRPC_BLOCK = block(((b":status", b"415"), (b"content-length", b"0")))
"""Answers a request that is none of gRPC."""


class StatusCode(IntEnum):
    """Outcomes of calls that gRPC itself has."""

    OK = 0
    CANCELLED = 1
    UNKNOWN = 2
    INVALID_ARGUMENT = 3
    DEADLINE_EXCEEDED = 4
    RESOURCE_EXHAUSTED = 8
    UNIMPLEMENTED = 12
    INTERNAL = 13
    UNAVAILABLE = 14


class CallFault(Exception):
    """A call that ends with an outcome of gRPC's; `reason` is what is counted."""

    def __init__(self, code: StatusCode, reason: str, text: str) -> None:
        super().__init__(text)
        self.code = code
        self.reason = reason
        self.text = text


def trailers(code: StatusCode = StatusCode.OK, text: str = "", *, alone: bool = False) -> bytes:
    """Return the block that ends an answer; `alone`: it is all of the answer."""
    fields = [(b"grpc-status", b"%d" % code)]
    if text:
        fields.append((b"grpc-message", percent(text[:_TEXT_CHARS_MAX])))
    return block((*_FIELDS_OF_ANSWERS, *fields) if alone else fields)


DONE_BLOCK = trailers()
"""Ends every answer that went well."""


def percent(text: str) -> bytes:
    """Return a text as `grpc-message` holds it: printable ASCII, everything else as %XX."""
    return b"".join(
        bytes((octet,)) if 0x20 <= octet <= 0x7E and octet != 0x25 else b"%%%02X" % octet
        for octet in text.encode("utf-8", "replace")
    )


def framed(message: bytes) -> bytes:
    """Return a message as it is sent."""
    return b"\0" + len(message).to_bytes(4, "big") + message


def timeout_ns(text: bytes) -> int | None:
    """Return the time of `grpc-timeout`; None when it is malformed."""
    digits, unit = text[:-1], text[-1:].decode("latin-1")
    if not digits.isdigit() or len(digits) > _TIMEOUT_DIGITS_MAX or unit not in _UNITS_NS:
        return None
    return int(digits) * _UNITS_NS[unit]


def is_grpc(content_type: bytes) -> bool:
    """Whether a request is one of gRPC with messages of protobuf."""
    return content_type.lower().partition(b";")[0].strip() in (b"application/grpc", b"application/grpc+proto")


def inflated(message: bytes, size_max: int) -> bytes:
    """Return a message that was compressed with gzip. CallFault when it is not, or is larger than it may be."""
    inflate = zlib.decompressobj(16 + zlib.MAX_WBITS)
    try:
        plain = inflate.decompress(message, size_max + 1)
    except zlib.error as error:
        text = f"the message cannot be decompressed: {error}"
        raise CallFault(StatusCode.INTERNAL, "compression", text) from error
    if len(plain) > size_max:
        raise too_large(size_max)
    if not inflate.eof or inflate.unused_data:
        raise CallFault(StatusCode.INTERNAL, "compression", "the compressed message is not whole")
    return plain


def too_large(size_max: int) -> CallFault:
    """Return the fault of a message larger than it may be."""
    text = f"the message is larger than {size_max} bytes"
    return CallFault(StatusCode.RESOURCE_EXHAUSTED, "request_bytes_max", text)


class Assembler:
    """The messages of one call, put together from its data."""

    __slots__ = ("_parts", "_size_max", "_takes_gzip", "held_bytes")

    def __init__(self, encoding: bytes, size_max: int) -> None:
        """`encoding`: what `grpc-encoding` says. CallFault(UNIMPLEMENTED) for one that is not supported."""
        if encoding not in (b"", b"identity", b"gzip"):
            text = f"the compression {encoding[:32].decode('latin-1')} is not supported"
            raise CallFault(StatusCode.UNIMPLEMENTED, "compression", text)
        self._takes_gzip = encoding == b"gzip"
        self._size_max = size_max
        self._parts: list[bytes] = []
        self.held_bytes = 0
        """Bytes of a message that is not whole."""

    def feed(self, data: bytes) -> list[bytes]:
        """Take data; returns the messages that are whole now. CallFault."""
        if self._parts or len(data) < PREFIX_BYTES:
            self._parts.append(data)
            self.held_bytes += len(data)
            if self.held_bytes < PREFIX_BYTES or self.held_bytes < self._wanted():
                return []
            data, self._parts, self.held_bytes = b"".join(self._parts), [], 0
        found, at, end = [], 0, len(data)
        while end - at >= PREFIX_BYTES:
            size = self._size(data, at)
            if end - at - PREFIX_BYTES < size:
                break
            at += PREFIX_BYTES
            message = data[at : at + size]
            found.append(inflated(message, self._size_max) if data[at - PREFIX_BYTES] else message)
            at += size
        if at < end:
            self._parts, self.held_bytes = [data[at:]], end - at
        return found

    def _wanted(self) -> int:
        """The bytes of the first message that is not whole, with its prefix."""
        if len(self._parts[0]) < PREFIX_BYTES:
            self._parts = [b"".join(self._parts)]
        return PREFIX_BYTES + self._size(self._parts[0], 0)

    def _size(self, data: Any, at: int) -> int:
        mark, size = data[at], int.from_bytes(data[at + 1 : at + PREFIX_BYTES], "big")
        if mark > 1 or (mark and not self._takes_gzip):
            raise CallFault(StatusCode.INTERNAL, "compression", "the message is compressed by no known way")
        if size > self._size_max:
            raise too_large(self._size_max)
        return size
