"""Request code -> handler, the only dispatch of a server; and the route that leads refused clients to the reason.

RocketMQ's clients look a route up before they send, and turn its refusal into "No route info of this topic": the reason
ends in their log. So a client that signs the lookup with a wrong key, or with a key that has no right to the topic,
gets a route with one broker that is not a broker: the port it asked, which refuses the next request with the reason.
That route depends on nothing but the address at which this server is reached. It names no broker and no topic, and is
the same for topics that exist or not, for unknown keys, wrong secrets and missing rights.
Invariant: every request that is not one-way is answered exactly once: by its handler, by `later`, or with the failure.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Protocol, cast, runtime_checkable

from remoting.protocol.bodies.route_body import (
    MASTER_ID,
    PERM_READ,
    PERM_WRITE,
    BrokerData,
    QueueData,
    TopicRoute,
    encode_body,
)
from remoting.protocol.errors import Refused
from remoting.protocol.frames.codes import RequestCode, ResponseCode
from remoting.protocol.frames.codes import RequestCode as Code
from remoting.protocol.frames.commands import Command
from remoting.server.access import Access
from remoting.transport.answering import failure_reply, note_refusal
from remoting.transport.contracts import Handler, Peer
from remoting.transport.failures import join_address
from remoting.transport.signature import ACCESS_KEY_FIELD, BOUND_PREFIX, SIGNATURE_FIELD

BROKER_NAME = "access-refused"
"""Cluster and broker of the route; clients name them in their errors."""


@runtime_checkable
class Reached(Protocol):
    """A peer that connected to an address of this server."""

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


PENDING_ATTRIBUTE = "pending replies"
"""Where a peer keeps the tasks of requests that are answered later, so that its end can end them."""


FEATURES: tuple[tuple[str, frozenset[int]], ...] = (
    ("new questions about an expired transaction", frozenset({Code.RESUME_CHECK_HALF_MESSAGE})),
    ("recalling a delayed message", frozenset({Code.RECALL_MESSAGE})),
    ("consumption by POP", frozenset({*range(Code.POP_MESSAGE, Code.POP_ROLLBACK + 1), Code.BATCH_ACK_MESSAGE})),
    ("consumption by POP", frozenset({Code.SET_MESSAGE_REQUEST_MODE, Code.GET_ALL_MESSAGE_REQUEST_MODE})),
    ("lite topics", frozenset(range(Code.POP_LITE_MESSAGE, Code.TRIGGER_LITE_DISPATCH + 1))),
    ("users and access lists by request", frozenset(range(Code.AUTH_CREATE_USER, Code.AUTH_LIST_ACL + 1))),
    ("static topics", frozenset({Code.UPDATE_AND_CREATE_STATIC_TOPIC})),
    ("requests relayed to a consumer", frozenset({Code.CONSUME_MESSAGE_DIRECTLY, Code.GET_CONSUMER_RUNNING_INFO})),
)
"""What the codes are for that RocketMQ has and we have not; for the remark of their refusal."""

Unsupported = Callable[[str, Command], object]
Judge = Callable[[Peer, Command], None]


def not_supported(code: int) -> str:
    """The remark for a request without a handler; RocketMQ's words, and what it would have been for."""
    remark = f" request type {code} not supported"
    return next((f"{remark}: LightMQ does not offer {feature}" for feature, codes in FEATURES if code in codes), remark)


class Router:
    """The handler of a whole server: checks access, then calls the table's entry for the request's code."""

    def __init__(
        self,
        handlers: Mapping[int, Handler],
        *,
        access: Access | None = None,
        unsupported: Unsupported | None = None,
        judge_unserved: Judge | None = None,
        advertised_host: str = "",
    ) -> None:
        """`unsupported(address, request)` is called for requests without a handler, unless `judge_unserved` raises why
        it would be refused where it has one; `advertised_host`: see `refusal_route`."""
        self._handlers = dict(handlers)
        self._advertised_host = advertised_host
        self._access = access
        self._unsupported = unsupported
        self._judge_unserved = judge_unserved

    def __call__(self, peer: Peer, command: Command) -> Command | None:
        """Answer one request; raises what the handler raises, `Refused` for an unknown code or missing access."""
        if self._access is not None:
            try:
                answered = self._access.admit(peer, command)
            except Refused:
                answered = self._instead_of_refusal(peer, command)
                if answered is None:
                    raise
                note_refusal(peer)
            if answered is not None:
                return answered
        handler = self._handlers.get(command.code)
        if handler is None:
            if self._judge_unserved is not None:
                self._judge_unserved(peer, command)
            if self._unsupported is not None:
                self._unsupported(peer.address, command)
            raise Refused(ResponseCode.REQUEST_CODE_NOT_SUPPORTED, not_supported(command.code))
        try:
            return handler(peer, command)
        except Refused as refused:
            answered = self._instead_of_refusal(peer, command) if refused.code == ResponseCode.NO_PERMISSION else None
            if answered is None:
                raise
            return answered

    def _instead_of_refusal(self, peer: Peer, command: Command) -> Command | None:
        """Where routes are served, what leads a client with a wrong key or without a right to its refusal's reason."""
        served = Code.GET_ROUTEINFO_BY_TOPIC in self._handlers
        return refusal_route(peer, command, self._advertised_host) if served else None


def later(peer: Peer, command: Command, awaitable: Awaitable[Command | None]) -> None:
    """Send the awaitable's result when it is there; a failure is answered as a handler's, the peer's end cancels it."""
    task = asyncio.ensure_future(_reply(peer, command, awaitable))
    tasks = peer.attributes.get(PENDING_ATTRIBUTE)
    if tasks is None:
        tasks = peer.attributes[PENDING_ATTRIBUTE] = set()
        pending = cast("set[asyncio.Task[None]]", tasks)
        peer.on_close(lambda _reason: _cancel(pending))
    pending = cast("set[asyncio.Task[None]]", tasks)
    pending.add(task)
    task.add_done_callback(pending.discard)


async def _reply(peer: Peer, command: Command, awaitable: Awaitable[Command | None]) -> None:
    try:
        reply = await awaitable
    except Exception as error:  # noqa: BLE001 - whatever failed, the peer gets an answer
        reply = failure_reply(peer, command, error)
    if reply is not None and not command.is_oneway:
        peer.send(reply)


def _cancel(tasks: set[asyncio.Task[None]]) -> None:
    for task in list(tasks):
        task.cancel()
