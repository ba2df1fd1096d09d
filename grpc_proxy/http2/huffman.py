"""HPACK's Huffman code (RFC 7541, appendix B), decoded four bits at a time.

The code is canonical: the number of bits of each symbol gives all of it. Its tree has 256 inner nodes, so a step is a
look-up by (node, four bits) in tables of 4,096 bytes. A code has at least five bits: a step ends one symbol at most.
Invariant: what is decoded is at most 8/5 as long as its code; a string that ends in anything but up to seven set bits,
or that holds the end mark, is refused. Pure.
"""

from __future__ import annotations

from grpc_proxy.http2.errors import ErrorCode, Http2Violation

CODE_BITS = bytes(
    [
        13, 23, 28, 28, 28, 28, 28, 28, 28, 24, 30, 28, 28, 30, 28, 28, 28, 28, 28, 28, 28, 28, 30, 28, 28, 28, 28, 28,
        28, 28, 28, 28, 6, 10, 10, 12, 13, 6, 8, 11, 10, 10, 8, 11, 8, 6, 6, 6, 5, 5, 5, 6, 6, 6, 6, 6, 6, 6, 7, 8, 15,
        6, 12, 10, 13, 6, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 8, 7, 8, 13, 19, 13, 14, 6,
        15, 5, 6, 5, 6, 5, 6, 6, 6, 5, 7, 7, 6, 6, 6, 5, 6, 7, 6, 5, 5, 6, 7, 7, 7, 7, 7, 15, 11, 14, 13, 28, 20, 22,
        20, 20, 22, 22, 22, 23, 22, 23, 23, 23, 23, 23, 24, 23, 24, 24, 22, 23, 24, 23, 23, 23, 23, 21, 22, 23, 22, 23,
        23, 24, 22, 21, 20, 22, 22, 23, 23, 21, 23, 22, 22, 24, 21, 22, 23, 23, 21, 21, 22, 21, 23, 22, 23, 23, 20, 22,
        22, 22, 23, 22, 22, 23, 26, 26, 20, 19, 22, 23, 22, 25, 26, 26, 26, 27, 27, 26, 24, 25, 19, 21, 26, 27, 27, 26,
        27, 24, 21, 21, 26, 26, 28, 27, 27, 27, 20, 24, 20, 21, 22, 21, 21, 23, 22, 22, 25, 25, 24, 24, 26, 23, 26, 27,
        26, 26, 27, 27, 27, 27, 27, 28, 27, 27, 27, 27, 27, 26, 30,
    ]
)  # fmt: skip
"""Bits of the code of each byte, and of the end mark (256)."""
CODE_BITS_MIN = 5
END = 256
ENDS_ONE, REFUSED = 1, 2
PADDING_BITS_MAX = 7


def _tree() -> list[list[int]]:
    """The nodes: [child for 0, child for 1], where -1 - symbol is a leaf."""
    nodes, code, before = [[0, 0]], 0, 0
    for symbol in sorted(range(END + 1), key=lambda each: (CODE_BITS[each], each)):
        code <<= CODE_BITS[symbol] - before
        before, node = CODE_BITS[symbol], 0
        for at in range(before - 1, 0, -1):
            bit = code >> at & 1
            if nodes[node][bit] == 0:
                nodes.append([0, 0])
                nodes[node][bit] = len(nodes) - 1
            node = nodes[node][bit]
        nodes[node][code & 1] = -1 - symbol
        code += 1
    return nodes


def _tables() -> tuple[bytes, bytes, bytes, bytes]:
    """(next node, symbol that ended, kind of step) by node * 16 + four bits; whether a string may end in a node."""
    nodes = _tree()
    after, ended, kinds = bytearray(16 * len(nodes)), bytearray(16 * len(nodes)), bytearray(16 * len(nodes))
    for start in range(len(nodes)):
        for bits in range(16):
            node, place = start, start * 16 + bits
            for at in (3, 2, 1, 0):
                node = nodes[node][bits >> at & 1]
                if node < 0:
                    symbol, node = -1 - node, 0
                    kinds[place] = REFUSED if symbol == END else ENDS_ONE
                    ended[place] = symbol & 0xFF
            after[place] = node
    padded, node = bytearray(len(nodes)), 0
    for _ in range(PADDING_BITS_MAX + 1):
        padded[node] = 1
        node = nodes[node][1]
    return bytes(after), bytes(ended), bytes(kinds), bytes(padded)


_tables_made = _tables()
AFTER, ENDED, KINDS, MAY_END = _tables_made


def decoded(data: bytes, start: int, end: int) -> bytes:
    """Return the string whose code is data[start:end]. Http2Violation(COMPRESSION_ERROR) when it is none."""
    after, ended, kinds = AFTER, ENDED, KINDS
    made = bytearray((end - start) * 8 // CODE_BITS_MIN)
    found, count, node = made, 0, 0
    for at in range(start, end):
        byte = data[at]
        place = node * 16 + (byte >> 4)
        if kinds[place]:
            if kinds[place] == REFUSED:
                raise Http2Violation(ErrorCode.COMPRESSION_ERROR, "a string holds Huffman's end mark")
            found[count] = ended[place]
            count += 1
        place = after[place] * 16 + (byte & 15)
        if kinds[place]:
            if kinds[place] == REFUSED:
                raise Http2Violation(ErrorCode.COMPRESSION_ERROR, "a string holds Huffman's end mark")
            found[count] = ended[place]
            count += 1
        node = after[place]
    if not MAY_END[node]:
        raise Http2Violation(ErrorCode.COMPRESSION_ERROR, "a string ends within a Huffman code")
    return bytes(made[:count])
