"""Send requests in both namings, and batch bodies whole or broken."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.rocketmq.send_body import build_image, check_properties, parse_send, split_batch
from remoting.protocol.errors import Refused
from remoting.protocol.records.image import check_image, wanted_queue


def test_both_namings_say_the_same() -> None:
    long = {"topic": "t", "producerGroup": "p", "queueId": "2", "properties": "a\x01b\x02", "batch": "true"}
    short = {"b": "t", "a": "p", "e": "2", "i": "a\x01b\x02", "m": "1"}
    assert parse_send(long, short=False) == parse_send(short, short=True)
    with pytest.raises(Refused, match="topic"):
        parse_send({}, short=True)


def test_properties_without_a_value_are_left_out() -> None:
    request = parse_send({"topic": "t", "properties": "a\x01b\x02broken\x02c\x01\x02"}, short=False)
    assert request.properties == {b"a": b"b", b"c": b""}


@pytest.mark.parametrize("properties", [{b"__rmq.born": b""}, {b"k": b"v" * 32_765}])
def test_properties_that_cannot_be_shown_again_are_refused(properties) -> None:
    check_properties({b"k": b"v" * 32_764})
    with pytest.raises(Refused):
        check_properties(properties)


def test_a_record_has_room_for_so_many_properties() -> None:
    request = parse_send({"topic": "t"}, short=False)
    with pytest.raises(Refused, match="65535"):
        build_image(request, "t", 0, ("127.0.0.1", 0), {b"k": b"v" * 65_535}, b"")


@given(st.lists(st.binary(max_size=20), min_size=1, max_size=5), st.data())
def test_a_batch_is_read_whole_and_a_cut_one_is_refused(bodies, data) -> None:
    blob = b"".join(
        struct.pack(">iiiii", 22 + len(body), 0, 0, 3, len(body)) + body + struct.pack(">h", 0) for body in bodies
    )
    assert split_batch(blob) == [(3, {}, body) for body in bodies]
    cut = data.draw(st.integers(0, len(blob) - 1))
    whole = {0} | {sum(22 + len(body) for body in bodies[:count]) for count in range(1, len(bodies))}
    if cut not in whole - {0}:
        with pytest.raises(Refused):
            split_batch(blob[:cut])


def test_tags_and_keys_go_where_the_record_keeps_them() -> None:
    request = parse_send({"b": "t", "f": "3", "g": "9", "h": "4"}, short=True)
    image = build_image(request, "t", 3, ("0.0.0.0", 0), {b"TAGS": b"red", b"KEYS": b"k", b"own": b"v"}, b"body")
    message = check_image(image, 0, 0)
    assert (message.tags, message.keys, wanted_queue(message), message.body) == (b"red", b"k", 3, b"body")
    assert message.flags == 3 << 16
    assert bytes(message.meta).endswith(b"ownv__rmq.born" + b"0" * 16 + b"__rmq.flag4")
