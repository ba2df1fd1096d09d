"""Request code -> handler of this broker: what its features answer, put together; nothing else dispatches.

A handler answers with a command, or answers later and returns None. What the store refuses becomes the refusal a client
understands, here and for all handlers alike.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from broker.requests import refusal_of
from broker.store.errors import StoreError
from remoting.access.rights import ADMIN, LOCATE, SESSION, with_rights
from remoting.protocol.frames.codes import RequestCode as Code
from remoting.protocol.frames.commands import Command
from remoting.transport.contracts import Handler, Peer

if TYPE_CHECKING:
    from broker.broker import BrokerParts
    from broker.requests import RequestTools

SESSION_CODES = frozenset(
    {
        Code.APPEND_OFFSETS, Code.SESSION_CLOSE, Code.SUBSCRIBE, Code.UNSUBSCRIBE, Code.SESSION_FLOW, Code.WILL_WATCH,
        Code.WILL_VERDICT, Code.FOLLOW, Code.SHARED_TAKE, Code.SHARED_SETTLE, Code.HISTORY,
        Code.CREATED_USERS, Code.CHECK_USER, Code.PROXY_PRESENT, Code.PROXY_ANSWERED,
    }
)  # fmt: skip
"""What only proxies send, on behalf of sessions."""
ADMIN_CODES = frozenset(
    {
        Code.GET_ALL_TOPIC_CONFIG, Code.GET_BROKER_RUNTIME_INFO, Code.GET_TOPIC_STATS_INFO,
        Code.GET_ALL_SUBSCRIPTIONGROUP_CONFIG, Code.VIEW_BROKER_STATS_DATA,
    }
)  # fmt: skip
"""What tools ask about everything there is. The other handlers ask for themselves, resource by resource."""
SHARED_CODES = frozenset(
    {
        Code.UNREGISTER_CLIENT, Code.CHECK_CLIENT_CONFIG, Code.HEART_BEAT, Code.TOPIC_LIST, Code.QUEUE_BOUNDS,
        Code.GET_CONSUME_STATS, Code.GET_BROKER_CONSUME_STATS,
    }
)  # fmt: skip
"""Requests open to every identity with a right; the handler checks each object that they show or name."""


def handlers(broker: BrokerParts) -> dict[int, Handler]:
    """The table a router is made of; `lightmq up` merges it with the controller's."""
    table: dict[int, Handler] = {}
    for feature in (*broker.features, broker.status):
        found = feature.handlers()
        assert not table.keys() & found.keys(), "a request code has one handler"
        table |= found
    return with_rights(broker.audit.watching(checked(broker.tools, table)))


def checked(tools: RequestTools, table: dict[int, Handler]) -> dict[int, Handler]:
    """The table with the rights that handlers do not ask for themselves, and the store's refusals in clients' words."""
    table = {code: _guarded(tools, handler) for code, handler in table.items()}
    for action, codes in ((SESSION, SESSION_CODES), (ADMIN, ADMIN_CODES), (LOCATE, SHARED_CODES)):
        table |= {code: _asking(tools, action, table[code]) for code in codes & table.keys()}
    return table


def _asking(tools: RequestTools, action: str, handler: Handler) -> Handler:
    """The handler, for identities that have such a right at all."""
    authorizer = tools.authorizer

    def handle(peer: Peer, command: Command) -> Command | None:
        if not authorizer.trusts(peer, command):
            authorizer.authorize(peer, command, action, "" if action == LOCATE else f"request {command.code}")
        return handler(peer, command)

    return handle


def _guarded(tools: RequestTools, handler: Handler) -> Handler:
    metrics, current = tools.metrics, tools.current

    def handle(peer: Peer, command: Command) -> Command | None:
        current.asked = peer, command
        try:
            return handler(peer, command)
        except StoreError as error:
            raise refusal_of(metrics, error) from error
        finally:
            current.asked = None

    return handle
