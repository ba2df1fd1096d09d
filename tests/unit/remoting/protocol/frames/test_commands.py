"""Replies carry what they must of their request."""

from __future__ import annotations

from remoting.protocol.frames.commands import FLAG_ONEWAY, SERIALIZE_ROCKETMQ, Command


def test_reply_keeps_opaque_and_serialisation():
    request = Command(11, opaque=42, fields={"topic": "t"}, body=b"x", serialize_type=SERIALIZE_ROCKETMQ)
    reply = request.reply(19, "nothing", {"minOffset": "0"}, b"y")
    assert (reply.code, reply.opaque, reply.remark, reply.fields, reply.body) == (
        19,
        42,
        "nothing",
        {"minOffset": "0"},
        b"y",
    )
    assert reply.serialize_type == SERIALIZE_ROCKETMQ
    assert reply.is_response
    assert not request.is_response


def test_replies_do_not_share_their_fields():
    request = Command(11)
    request.reply().fields["a"] = "b"
    assert request.reply().fields == {}


def test_oneway():
    assert Command(15, flag=FLAG_ONEWAY).is_oneway
    assert not Command(15).is_oneway
