"""Header blocks against the library `hpack`, against blocks that are no blocks, and within their bounds (RFC 7541)."""

from __future__ import annotations

import contextlib

import hpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from grpc_proxy.http2.errors import ErrorCode, Http2Violation
from grpc_proxy.http2.hpack import TABLE_BYTES_MAX, HeaderDecoder, block
from grpc_proxy.http2.huffman import decoded

NAMES = st.sampled_from(
    [b":path", b":method", b"te", b"x-mq-client-id", b"grpc-timeout", b"content-type", b"user-agent"]
)
NAMES |= st.text("abcdefghijklmnopqrstuvwxyz0123456789-_.", min_size=1, max_size=300).map(str.encode)
VALUES = st.binary(max_size=400).map(lambda raw: raw.translate(None, b"\0\r\n").strip(b" \t"))
FIELDS = st.lists(st.tuples(NAMES, VALUES), max_size=20)
LARGE = 1_000_000


@given(st.lists(st.tuples(FIELDS, st.booleans()), max_size=12))
def test_blocks_of_another_encoder_are_read_with_its_dynamic_table(lists):
    encoder, decoder = hpack.Encoder(), HeaderDecoder()
    for fields, is_coded in lists:
        assert decoder.decode(encoder.encode(fields, huffman=is_coded), LARGE) == fields


@given(st.lists(st.tuples(FIELDS, st.sampled_from([0, 64, 200, 4_096])), max_size=12))
def test_the_peer_may_make_its_table_smaller_and_larger_again(lists):
    encoder, decoder = hpack.Encoder(), HeaderDecoder()
    for fields, table_bytes in lists:
        encoder.header_table_size = table_bytes
        assert decoder.decode(encoder.encode(fields), LARGE) == fields


@given(FIELDS)
def test_blocks_of_ours_are_read_by_another_decoder_whatever_came_before(fields):
    decoder = hpack.Decoder(max_header_list_size=LARGE)
    for _ in range(2):
        assert [(bytes(name), bytes(text)) for name, text in decoder.decode(block(fields), raw=True)] == fields


@given(st.binary(max_size=200))
def test_any_bytes_are_a_block_or_a_violation(data):
    with contextlib.suppress(Http2Violation):
        assert HeaderDecoder().decode(data, LARGE) is not None


@given(st.binary(max_size=100))
def test_huffman_codes_are_read_as_another_encoder_makes_them(text):
    coded = hpack.huffman.HuffmanEncoder(
        hpack.huffman_constants.REQUEST_CODES, hpack.huffman_constants.REQUEST_CODES_LENGTH
    ).encode(text)
    assert decoded(coded, 0, len(coded)) == text


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"\x80", "index"),
        (b"\xff\xff\xff\xff\xff\xff\xff\x0f", "number"),
        (b"\xbe", "index"),
        (b"\x40\x01a", "missing"),
        (b"\x40\x05ab", "cut short"),
        (b"\x00\x81\xff\x00", "Huffman"),
        (b"\x00\x84\xff\xff\xff\xff\x00", "end mark"),
        (b"\x82\x3f\xe1\x1f", "behind a field"),
        (b"\x3f\xe2\x1f", "not offered"),
    ],
)
def test_each_fault_of_a_block_is_a_compression_error(data, why):
    with pytest.raises(Http2Violation, match=why) as caught:
        HeaderDecoder().decode(data, LARGE)
    assert caught.value.code == ErrorCode.COMPRESSION_ERROR


@pytest.mark.parametrize(
    ("name", "text"),
    [
        (b"X-Upper", b"a"),
        (b"a b", b"c"),
        (b"", b"c"),
        (b"a:b", b"c"),
        (b"a", b"b\0"),
        (b"a", b"b\r\nc: d"),
        (b"a", b" b"),
    ],
)
def test_names_and_values_that_no_field_has_are_refused(name, text):
    """RFC 9113, section 8.2.1."""
    data = b"\x00" + bytes((len(name),)) + name + bytes((len(text),)) + text
    with pytest.raises(Http2Violation) as caught:
        HeaderDecoder().decode(data, LARGE)
    assert caught.value.code == ErrorCode.PROTOCOL_ERROR


def test_a_small_block_cannot_make_a_large_list():
    """One field of the dynamic table, named ten thousand times."""
    decoder = HeaderDecoder()
    first = decoder.decode(b"\x40\x01a" + b"\x7f\x81\x1e" + b"v" * 3_968, LARGE)
    assert first is not None
    assert decoder.decode(b"\xbe" * 10_000, 16_384) is None
    assert decoder.decode(b"\xbe", 16_384) == first


def test_a_field_larger_than_the_table_empties_it():
    encoder, decoder = hpack.Encoder(), HeaderDecoder()
    decoder.decode(encoder.encode([(b"a", b"b")]), LARGE)
    large = [(b"c", b"d" * TABLE_BYTES_MAX)]
    assert decoder.decode(encoder.encode(large), LARGE) == large
    with pytest.raises(Http2Violation, match="index 62"):
        decoder.decode(b"\xbe", LARGE)
