"""Header blocks of a connection: put together from their frames, decoded, and checked as requests.

Invariant: the bytes and the frames of a block that is not whole are bounded; a request has the pseudo-headers of RFC
9113, section 8.3.1, once and first, and none of HTTP/1's fields. Pure; a typed module.
"""

from __future__ import annotations

from grpc_proxy.http2.errors import ErrorCode, Http2Violation
from grpc_proxy.http2.frames import END_HEADERS
from grpc_proxy.http2.hpack import HeaderDecoder
from grpc_proxy.http2.limits import Http2Limits

Fields = list[tuple[bytes, bytes]]
_PSEUDO = {b":method": 1, b":scheme": 2, b":path": 4, b":authority": 8}
_PATH = 4
_REQUIRED = 1 | 2 | _PATH
_OF_HTTP_1 = frozenset((b"connection", b"keep-alive", b"proxy-connection", b"transfer-encoding", b"upgrade"))
_COUNT_DIGITS_MAX = 18
"""Digits that a signed 64-bit number always holds."""


class HeaderBlocks:
    """The header blocks that one peer sends."""

    __slots__ = ("_bytes_max", "_continuations", "_decoder", "_limits", "_parts", "flags", "stream_id")

    def __init__(self, limits: Http2Limits) -> None:
        self.stream_id = 0
        """Of the block that is not whole; 0: there is none."""
        self.flags = 0
        """Of its first frame."""
        self._limits = limits
        self._bytes_max = limits.header_list_bytes_max
        self._decoder = HeaderDecoder()
        self._parts = b""
        self._continuations = 0

    def begin(self, stream_id: int, flags: int, part: bytes) -> None:
        """Take the first part of a block that goes on."""
        self.stream_id, self.flags, self._parts, self._continuations = stream_id, flags, part, 0

    def go_on(self, part: bytes, flags: int) -> bytes | None:
        """Take a further part; returns the block when it is whole. Http2Violation beyond a bound."""
        self._continuations += 1
        self._parts += part
        if self._continuations > self._limits.continuations_max:
            raise Http2Violation(ErrorCode.ENHANCE_YOUR_CALM, "continuations_max is reached")
        if len(self._parts) > self._limits.block_bytes_max:
            raise Http2Violation(ErrorCode.ENHANCE_YOUR_CALM, "block_bytes_max is reached")
        if not flags & END_HEADERS:
            return None
        block, self._parts, self.stream_id = self._parts, b"", 0
        return block

    def decode(self, block: bytes) -> Fields | None:
        """Return the fields of a block, None when there are too many. Http2Violation ends the connection."""
        return self._decoder.decode(block, self._bytes_max)


def check_request(stream_id: int, fields: Fields) -> int:
    """Return what `content-length` announces, -1 without one. Http2Violation of the stream when it is malformed."""
    seen, is_pseudo, length = 0, True, -1
    for name, text in fields:
        bit = _PSEUDO.get(name, 0)
        if bit:
            if not is_pseudo or seen & bit:
                raise Http2Violation(ErrorCode.PROTOCOL_ERROR, "misplaced pseudo-header", stream_id)
            if bit == _PATH and not text:
                raise Http2Violation(ErrorCode.PROTOCOL_ERROR, ":path is empty", stream_id)
            seen |= bit
            continue
        is_pseudo = False
        if name[:1] == b":":
            raise Http2Violation(ErrorCode.PROTOCOL_ERROR, "unknown pseudo-header", stream_id)
        if name in _OF_HTTP_1 or (name == b"te" and text != b"trailers"):
            raise Http2Violation(ErrorCode.PROTOCOL_ERROR, f"the field {name!r} is HTTP/1's", stream_id)
        if name == b"content-length":
            if not text.isdigit() or len(text) > _COUNT_DIGITS_MAX:
                raise Http2Violation(ErrorCode.PROTOCOL_ERROR, "content-length is no number", stream_id)
            length = int(text)
    if seen & _REQUIRED != _REQUIRED:
        raise Http2Violation(ErrorCode.PROTOCOL_ERROR, "a pseudo-header is missing", stream_id)
    return length
