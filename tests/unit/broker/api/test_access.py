"""The one hook: what a policy refuses is refused on every path, with action and resource named."""

from __future__ import annotations

import pytest

from broker.api.access import IDENTITY_ATTRIBUTE, Authorizer, make_access
from remoting.protocol.codes import RequestCode, ResponseCode
from remoting.protocol.commands import Command
from remoting.protocol.errors import LocalMisuse, Refused
from remoting.protocol.session_body import SessionOpen, encode


class FakePeer:
    def __init__(self) -> None:
        self.attributes: dict[str, object] = {}


def test_identity_comes_from_the_peer_then_the_access_key() -> None:
    peer = FakePeer()
    assert Authorizer.identity(peer, Command(1)) == "anonymous"
    assert Authorizer.identity(peer, Command(1, fields={"AccessKey": "k"})) == "k"
    peer.attributes = {IDENTITY_ATTRIBUTE: "proxy"}
    assert Authorizer.identity(peer, Command(1, fields={"AccessKey": "k"})) == "proxy"


def test_a_policy_decides_and_refusals_are_counted() -> None:
    authorizer = Authorizer(lambda identity, action, resource: (action, resource) == ("consume", "a"))
    authorizer.authorize(FakePeer(), Command(1), "consume", "a")
    with pytest.raises(Refused, match="may not publish 'a'"):
        authorizer.authorize(FakePeer(), Command(1), "publish", "a")
    assert authorizer.refused == 1


async def test_every_kind_of_request_asks(running) -> None:
    running.broker.authorizer = Authorizer(lambda *_: False)
    connection = running.connect()
    queue_id = running.broker.topics.queue_ids(running.broker.topics.ensure("t", 1).name)[0]
    requests = [
        Command(RequestCode.APPEND_MANY, body=running.publish(b"a")),
        Command(RequestCode.SESSION_OPEN, body=encode(SessionOpen("c", True, None, 0))),
        Command(RequestCode.FOLLOW, body=b"\x01\0\0\0\0\0\0\0" + queue_id.to_bytes(4, "little")),
        Command(RequestCode.MULTI_PULL, body=b"\x01\0\0\0" + queue_id.to_bytes(4, "little") + bytes(16)),
        Command(RequestCode.QUEUE_BOUNDS, body=b'{"topics":["t"]}'),
        Command(RequestCode.SEND_MESSAGE_V2, fields={"b": "t"}),
        Command(RequestCode.GET_MAX_OFFSET, fields={"topic": "t", "queueId": "0"}),
        Command(RequestCode.UPDATE_AND_CREATE_TOPIC, fields={"topic": "t"}),
        Command(RequestCode.CLUSTER_STATUS),
    ]
    for request in requests:
        reply = await connection.request(request)
        assert reply.code == ResponseCode.NO_PERMISSION, request


def test_access_keys_are_pairs() -> None:
    make_access(["key:secret"], open_to_all=False)
    with pytest.raises(LocalMisuse, match="key:secret"):
        make_access(["key"], open_to_all=False)
