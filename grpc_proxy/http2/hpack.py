"""Header blocks (HPACK, RFC 7541): decoded with the peer's table, and plain ones made for answers.

    1xxxxxxx  a field of the tables             01xxxxxx  a literal that enters the dynamic table
    0000xxxx, 0001xxxx  a literal that does not  001xxxxx  a new size of the dynamic table, at the start only

Blocks of ours refer to the static table alone, so they are made once and suit every connection. A field that entered
the table is the same object in each block that refers to it.
Invariant: the dynamic table never holds more than TABLE_BYTES_MAX; beyond the size a caller allows, fields are decoded
for the table's sake but not kept, so the smallest block cannot make a large list. Names and values of every literal are
checked as RFC 9113, section 8.2.1, demands. Pure; a typed module.
"""

from __future__ import annotations

from collections.abc import Iterable

from grpc_proxy.http2.errors import ErrorCode, Http2Violation
from grpc_proxy.http2.huffman import decoded

TABLE_BYTES_MAX = 4_096
"""Size of the dynamic table that peers may use: HTTP/2's default, which needs no setting."""
FIELD_OVERHEAD_BYTES = 32
STATIC: tuple[tuple[bytes, bytes], ...] = tuple(
    (name.encode(), text.encode())
    for name, text in (
        (":authority", ""), (":method", "GET"), (":method", "POST"), (":path", "/"), (":path", "/index.html"),
        (":scheme", "http"), (":scheme", "https"), (":status", "200"), (":status", "204"), (":status", "206"),
        (":status", "304"), (":status", "400"), (":status", "404"), (":status", "500"), ("accept-charset", ""),
        ("accept-encoding", "gzip, deflate"), ("accept-language", ""), ("accept-ranges", ""), ("accept", ""),
        ("access-control-allow-origin", ""), ("age", ""), ("allow", ""), ("authorization", ""), ("cache-control", ""),
        ("content-disposition", ""), ("content-encoding", ""), ("content-language", ""), ("content-length", ""),
        ("content-location", ""), ("content-range", ""), ("content-type", ""), ("cookie", ""), ("date", ""),
        ("etag", ""), ("expect", ""), ("expires", ""), ("from", ""), ("host", ""), ("if-match", ""),
        ("if-modified-since", ""), ("if-none-match", ""), ("if-range", ""), ("if-unmodified-since", ""),
        ("last-modified", ""), ("link", ""), ("location", ""), ("max-forwards", ""), ("proxy-authenticate", ""),
        ("proxy-authorization", ""), ("range", ""), ("referer", ""), ("refresh", ""), ("retry-after", ""),
        ("server", ""), ("set-cookie", ""), ("strict-transport-security", ""), ("transfer-encoding", ""),
        ("user-agent", ""), ("vary", ""), ("via", ""), ("www-authenticate", ""),
    )
)  # fmt: skip
"""The static table; its first entry has the index 1."""
STATIC_COUNT = 61
assert len(STATIC) == STATIC_COUNT
_NAME_OCTETS = frozenset(b"!#$%&'*+-.^_`|~0123456789abcdefghijklmnopqrstuvwxyz")
_NAME_REST = bytes(each for each in range(256) if each not in _NAME_OCTETS)
_BLANKS = b" \t"
_INTEGER_OCTETS_MAX = 5
"""Octets of a number behind its prefix: enough for 32 bits."""


class HeaderDecoder:
    """The decoding side of one connection."""

    __slots__ = ("_at", "_block", "_end", "_table", "_table_bytes", "_table_bytes_max")

    def __init__(self) -> None:
        self._table: list[tuple[bytes, bytes]] = []
        """The dynamic table, its newest entry last."""
        self._table_bytes = 0
        self._table_bytes_max = TABLE_BYTES_MAX
        self._block = b""
        self._at = 0
        self._end = 0

    def decode(self, block: bytes, list_bytes_max: int) -> list[tuple[bytes, bytes]] | None:
        """Return the fields of a block in their order; None when the list is larger than allowed, as RFC 9113 counts.

        Raises Http2Violation(COMPRESSION_ERROR, PROTOCOL_ERROR), after which the connection cannot go on.
        """
        fields, list_bytes, is_start = [], 0, True
        self._block, self._at, self._end = block, 0, len(block)
        while self._at < self._end:
            byte = self._block[self._at]
            if byte >= 0x80:
                field = self._indexed(self._number(0x7F))
            elif byte & 0xE0 == 0x20:
                if not is_start:
                    raise Http2Violation(ErrorCode.COMPRESSION_ERROR, "a table size stands behind a field")
                self._resize(self._number(0x1F))
                continue
            elif byte >= 0x40:
                field = self._literal(self._number(0x3F))
                self._enter(field)
            else:
                field = self._literal(self._number(0x0F))
            is_start = False
            list_bytes += len(field[0]) + len(field[1]) + FIELD_OVERHEAD_BYTES
            if list_bytes <= list_bytes_max:
                fields.append(field)
        self._block = b""
        return fields if list_bytes <= list_bytes_max else None

    def _number(self, mask: int) -> int:
        """The number at the cursor, whose first octet has it under this mask."""
        number = self._block[self._at] & mask
        self._at += 1
        if number < mask:
            return number
        shift = 0
        while self._at < self._end and shift < 7 * _INTEGER_OCTETS_MAX:
            byte = self._block[self._at]
            self._at += 1
            number += (byte & 0x7F) << shift
            if byte < 0x80:
                return number
            shift += 7
        raise Http2Violation(ErrorCode.COMPRESSION_ERROR, "a number is cut short or too large")

    def _string(self) -> bytes:
        """The string at the cursor."""
        if self._at >= self._end:
            raise Http2Violation(ErrorCode.COMPRESSION_ERROR, "a string is missing")
        is_coded = self._block[self._at] >= 0x80
        size = self._number(0x7F)
        start = self._at
        if size > self._end - start:
            raise Http2Violation(ErrorCode.COMPRESSION_ERROR, "a string is cut short")
        self._at = start + size
        return decoded(self._block, start, start + size) if is_coded else self._block[start : start + size]

    def _indexed(self, index: int) -> tuple[bytes, bytes]:
        if 0 < index <= STATIC_COUNT:
            return STATIC[index - 1]
        place = len(self._table) - (index - STATIC_COUNT)
        if index == 0 or place < 0:
            raise Http2Violation(ErrorCode.COMPRESSION_ERROR, f"the index {index} is in no table")
        return self._table[place]

    def _literal(self, index: int) -> tuple[bytes, bytes]:
        if index:
            name = self._indexed(index)[0]
        else:
            name = self._string()
            if not name or name.removeprefix(b":").translate(None, _NAME_REST) != name.removeprefix(b":"):
                raise Http2Violation(ErrorCode.PROTOCOL_ERROR, f"the name of a field is malformed: {name[:64]!r}")
        text = self._string()
        if b"\0" in text or b"\r" in text or b"\n" in text or (text and text != text.strip(_BLANKS)):
            raise Http2Violation(ErrorCode.PROTOCOL_ERROR, f"the field {name[:64]!r} has a malformed value")
        return name, text

    def _enter(self, field: tuple[bytes, bytes]) -> None:
        """Put a field into the dynamic table; the oldest make room. One larger than the table empties it."""
        size = len(field[0]) + len(field[1]) + FIELD_OVERHEAD_BYTES
        self._shrink(self._table_bytes_max - size)
        if size <= self._table_bytes_max:
            self._table.append(field)
            self._table_bytes += size

    def _resize(self, table_bytes_max: int) -> None:
        if table_bytes_max > TABLE_BYTES_MAX:
            raise Http2Violation(ErrorCode.COMPRESSION_ERROR, f"a table of {table_bytes_max} bytes was not offered")
        self._table_bytes_max = table_bytes_max
        self._shrink(table_bytes_max)

    def _shrink(self, bytes_max: int) -> None:
        """Drop the oldest fields until no more than this is left."""
        count = 0
        while self._table_bytes > bytes_max and count < len(self._table):
            name, text = self._table[count]
            self._table_bytes -= len(name) + len(text) + FIELD_OVERHEAD_BYTES
            count += 1
        if count:
            del self._table[:count]


_STATIC_FIELDS = {field: index for index, field in reversed([*enumerate(STATIC, 1)])}
_STATIC_NAMES = {name: index for index, (name, _text) in reversed([*enumerate(STATIC, 1)])}


def block(fields: Iterable[tuple[bytes, bytes]]) -> bytes:
    """Return a header block that depends on no dynamic table."""
    made = bytearray()
    for name, text in fields:
        index = _STATIC_FIELDS.get((name, text), 0)
        if index:
            made += _coded(index, 0x7F, 0x80)
            continue
        index = _STATIC_NAMES.get(name, 0)
        made += _coded(index, 0x0F, 0)
        if not index:
            made += _coded(len(name), 0x7F, 0) + name
        made += _coded(len(text), 0x7F, 0) + text
    return bytes(made)


def _coded(number: int, mask: int, mark: int) -> bytes:
    """A number whose first octet has it under this mask, and a mark above."""
    if number < mask:
        return bytes((mark | number,))
    made, number = bytearray((mark | mask,)), number - mask
    while number >= 0x80:
        made.append(number & 0x7F | 0x80)
        number >>= 7
    made.append(number)
    return bytes(made)
