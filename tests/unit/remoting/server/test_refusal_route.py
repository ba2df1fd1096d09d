"""Lookups with a wrong key: one answer for all, which leads back to where it came from."""

from __future__ import annotations

import pytest

from remoting.protocol.bodies.route_body import TopicRoute, decode_body
from remoting.protocol.frames.codes import RequestCode
from remoting.protocol.frames.commands import Command
from remoting.server.refusal_route import refusal_route

LOOKUP = RequestCode.GET_ROUTEINFO_BY_TOPIC
SIGNED = {"topic": "plant", "AccessKey": "key", "Signature": "abc="}


class Came:
    """A peer that reached us somewhere."""

    def __init__(self, place: tuple[str, int] | None) -> None:
        self.reached_at = place


@pytest.mark.parametrize(
    ("place", "advertised_host", "address"),
    [
        (("10.0.0.1", 9876), "", "10.0.0.1:9876"),
        (("172.17.0.2", 9876), "mq.example", "mq.example:9876"),
        (("::1", 9874), "", "[::1]:9874"),
    ],
)
def test_it_leads_to_the_port_that_was_asked(place: tuple[str, int], advertised_host: str, address: str) -> None:
    reply = refusal_route(Came(place), Command(LOOKUP, fields=dict(SIGNED)), advertised_host)
    assert reply.code == 0
    route = decode_body(reply.body, TopicRoute)
    assert [broker.broker_addrs for broker in route.broker_datas] == [{0: address}]
    assert [(queues.broker_name, queues.perm) for queues in route.queue_datas] == [("access-refused", 6)]


def test_nothing_of_the_request_is_in_the_answer() -> None:
    def body(**fields: str) -> bytes:
        return refusal_route(Came(("10.0.0.1", 9876)), Command(LOOKUP, fields=SIGNED | fields)).body

    assert body() == body(topic="other") == body(topic="") == body(topic="TBW102") == body(AccessKey="nobody")
    assert b"plant" not in body()


@pytest.mark.parametrize(
    ("code", "fields"),
    [
        (RequestCode.GET_BROKER_CLUSTER_INFO, SIGNED),
        (LOOKUP, {"topic": "plant"}),
        (LOOKUP, SIGNED | {"AccessKey": ""}),
        (LOOKUP, SIGNED | {"Signature": "2:abc="}),
    ],
    ids=["another-request", "no-key", "empty-key", "our-own-client"],
)
def test_others_hear_the_refusal(code: int, fields: dict[str, str]) -> None:
    assert refusal_route(Came(("10.0.0.1", 9876)), Command(code, fields=fields)) is None


def test_so_does_who_came_without_a_port() -> None:
    assert refusal_route(Came(None), Command(LOOKUP, fields=dict(SIGNED))) is None
    assert refusal_route(object(), Command(LOOKUP, fields=dict(SIGNED))) is None
