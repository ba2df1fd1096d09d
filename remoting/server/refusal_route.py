"""The route that leads a RocketMQ client with a wrong key, or with a key that has no right to a topic, to its refusal.

RocketMQ's clients look a route up before they send, and turn its refusal into "No route info of this topic": the reason
ends in their log. So whoever signs the lookup as they do, and is refused, gets a route with one broker that is no
broker: the port it asked, which refuses what comes next with the reason, and that answer reaches the user.
Invariant: the answer depends on nothing but the address at which this server is reached. It names no broker and no
topic, and is the same for topics that exist and that do not, for unknown keys, wrong secrets and missing rights. Pure.
"""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from remoting.protocol.bodies.route_body import (
    MASTER_ID,
    PERM_READ,
    PERM_WRITE,
    BrokerData,
    QueueData,
    TopicRoute,
    encode_body,
)
from remoting.protocol.frames.codes import RequestCode
from remoting.protocol.frames.commands import Command
from remoting.transport.contracts import Peer
from remoting.transport.failures import join_address
from remoting.transport.signature import ACCESS_KEY_FIELD, BOUND_PREFIX, SIGNATURE_FIELD

BROKER_NAME = "access-refused"
"""Cluster and broker of the route; clients name them in their errors."""


@runtime_checkable
class Reached(Protocol):
    """A peer that came to an address of ours."""

    reached_at: tuple[str, int] | None
    """Our host and port of the connection."""


def refusal_route(peer: Peer, command: Command, advertised_host: str = "") -> Command | None:
    """The answer to a request that was refused; None when the refusal itself is the answer.

    `advertised_host`: what clients call this machine, where it is not the address of the connection. LightMQ's own
    clients, whose signatures are bound, show the refusal as it is.
    """
    if command.code != RequestCode.GET_ROUTEINFO_BY_TOPIC or not command.fields.get(ACCESS_KEY_FIELD):
        return None
    if command.fields.get(SIGNATURE_FIELD, "").startswith(BOUND_PREFIX):
        return None
    place = peer.reached_at if isinstance(peer, Reached) else None
    if place is None:
        return None
    address = join_address(advertised_host or place[0], place[1])
    route = TopicRoute(
        queue_datas=[QueueData(BROKER_NAME, 1, 1, PERM_READ | PERM_WRITE)],
        broker_datas=[BrokerData(BROKER_NAME, BROKER_NAME, {MASTER_ID: address})],
    )
    return command.reply(body=encode_body(route))
