"""Bounds bodies: the documented JSON, with what may be left out left out."""

from __future__ import annotations

import json

import pytest

from remoting.protocol.bodies import bounds_body as bb
from remoting.protocol.errors import RemoteViolation


def test_the_documented_request():
    raw = b'{"topics":["machines"],"filter":null,"at_ms":null,"known":{"machines":{"0":12}},"wait_ms":100}'
    request = bb.QueueBoundsRequest(["machines"], None, None, {"machines": {"0": 12}}, 100)
    assert bb.decode_bounds_request(raw) == request
    assert bb.encode_bounds_request(request) == raw
    assert bb.decode_bounds_request(b'{"filter":"a/+"}') == bb.QueueBoundsRequest(filter="a/+")


def test_the_documented_reply():
    reply = bb.QueueBoundsReply(
        "broker-a", 1, 123, [bb.QueueBounds("machines", 0, 17, 0, 99, 5)], bb.LightBounds(3, 0, 7)
    )
    raw = bb.encode_bounds_reply(reply)
    assert json.loads(raw) == {
        "broker": "broker-a",
        "epoch": 1,
        "confirm": 123,
        "queues": [{"topic": "machines", "queue": 0, "id": 17, "min": 0, "max": 99, "at": 5}],
        "light": {"id": 3, "min": 0, "max": 7, "at": None},
        "readers": None,
    }
    assert bb.decode_bounds_reply(raw) == reply


@pytest.mark.parametrize(
    "raw", [b"", b"[]", b'{"topics":"a"}', b'{"wait_ms":-1}', b'{"wait_ms":60001}', b'{"known":{"a":{"0":"x"}}}']
)
def test_malformed_requests(raw):
    with pytest.raises(RemoteViolation, match="malformed QueueBoundsRequest"):
        bb.decode_bounds_request(raw)
