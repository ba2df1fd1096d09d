"""Which clients asked for what is not offered, and CLIENT_LIST (9032), which shows them beside the connected clients.

A row is one kind of refused request of one client: the client (its id if it has sent a heartbeat, else its host), its
language and version, the request's code and the answer's. It counts such requests, and has the last remark and time.

Invariant: there are at most `ROWS_MAX` rows; a further one takes the place of the one that was refused longest ago,
which is counted. Rows live as long as this process. Loop thread only.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any

import msgspec

from broker.groups.feature import CLIENT_ATTRIBUTE
from remoting.access.rights import MONITOR
from remoting.protocol.frames.codes import RequestCode, request_name
from remoting.protocol.frames.commands import Command
from remoting.server.authorizer import host_of

if TYPE_CHECKING:
    from broker.groups.groups import Clients
    from broker.requests import RequestTools
    from remoting.protocol.errors import NotOffered
    from remoting.transport.contracts import Handler, Peer
    from runtime.metrics import Registry

ROWS_MAX = 1_000
"""Most kinds of refused requests that are kept."""
CLIENTS_LISTED_MAX = 1_000
"""Most clients in one answer; `more` has the number of those that are left out."""
GRPC_CLIENT_FIELD = "onBehalfClient"
"""Names the client that the gRPC proxy asks for; the connection is shared by all of its clients."""
TEXT_CHARS_MAX = 255
"""Longer client ids, names of languages and remarks are cut."""

RowKey = tuple[str, str, int, int, int]
"""(client, language, version, request code, answer code)."""


@dataclass(slots=True)
class RefusedRequests:
    """How often a kind of request was refused to a client, and the last time."""

    count: int = 0
    remark: str = ""
    last_ms: int = 0


class Refusals:
    """The requests for what is not offered, by client."""

    def __init__(self, registry: Registry) -> None:
        self._rows: dict[RowKey, RefusedRequests] = {}
        self._forgotten = registry.counter(
            "rocketmq_refusals_forgotten_total",
            "Rows about refused requests of one client that newer ones have replaced",
        )

    @property
    def forgotten(self) -> int:
        """How many rows newer ones have replaced."""
        return self._forgotten.value

    def note(self, peer: Peer, command: Command, refused: NotOffered, now_ms: int) -> None:
        """Count a refused request."""
        named = command.fields.get(GRPC_CLIENT_FIELD) or peer.attributes.get(CLIENT_ATTRIBUTE) or host_of(peer)
        client = str(named)[:TEXT_CHARS_MAX]
        key = client, command.language[:TEXT_CHARS_MAX], command.version, command.code, refused.code
        row = self._rows.pop(key, None) or RefusedRequests()
        if len(self._rows) >= ROWS_MAX:
            del self._rows[next(iter(self._rows))]
            self._forgotten.value += 1
        self._rows[key] = row
        row.count += 1
        row.remark, row.last_ms = refused.remark.strip()[:TEXT_CHARS_MAX], now_ms

    def shown(self) -> list[dict[str, Any]]:
        """The rows, the latest refusal first."""
        return [
            {
                "client": client,
                "language": language,
                "version": version,
                "code": code,
                "name": request_name(code),
                "answer": answer,
                "count": row.count,
                "remark": row.remark,
                "last_ms": row.last_ms,
            }
            for (client, language, version, code, answer), row in reversed(self._rows.items())
        ]


@dataclass(frozen=True, slots=True)
class ClientListRequests:
    """The connected clients of RocketMQ's protocol, and what was refused."""

    tools: RequestTools
    clients: Clients
    refusals: Refusals

    def handlers(self) -> dict[int, Handler]:
        """Request code -> handler."""
        return {RequestCode.CLIENT_LIST: self.client_list}

    def client_list(self, peer: Peer, command: Command) -> Command:
        """9032: clients that send heartbeats, with language and version, and the requests that were not offered."""
        self.tools.authorizer.authorize(peer, command, MONITOR, "clients")
        clients = [
            {
                "client": client.client_id,
                "address": client.peer.address,
                "language": client.language,
                "version": client.version,
                "grpc": client.grpc_release,
                "producer_groups": sorted(client.producer_groups),
                "consumer_groups": sorted(client.consumer_groups),
                "seen_ms": client.seen_ms,
            }
            for client in islice(self.clients, CLIENTS_LISTED_MAX)
        ]
        found = {
            "clients": clients,
            "more": len(self.clients) - len(clients),
            "refused": self.refusals.shown(),
            "forgotten": self.refusals.forgotten,
        }
        return command.reply(body=msgspec.json.encode(found))
