"""MQTT_CLIENTS, MQTT_KICK, SESSION_END and PROXY_LIST (9110-9112, 9124): connected clients, for operators.

    MQTT_CLIENTS  fields `limit`, `after`, `sort`, `prefix`, `contains`, `user`, `address`, or `client` for one -> JSON:
                  `clients` in the order of `sort` (`client_order`), `next` (the `after` of the next page; empty on the
                  last), `total`, `matching`, `missing` (proxies that did not answer)
    MQTT_KICK     field `client`; `end` = true ends the session too -> JSON: `client`, `proxy`, `ended`
    SESSION_END   field `client` -> JSON: `client`, `was_connected`; also for a session whose client is away
    PROXY_LIST    -> JSON: `proxies`

The proxies know who is connected, and are asked (`proxies`); their pages are merged. A client of MQTT 5 that is
disconnected gets the reason code 0x98 (administrative action). Its will is published, as the connection did not end
with its DISCONNECT; when the session is ended, wills that wait are due too. A client that reconnects while its session
is being ended is disconnected again and begins a new session.
Invariant: the answer to SESSION_END is sent when the end of the session is confirmed. Loop thread only.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, cast

import msgspec

from broker.operating.proxies import Proxies, Proxy
from broker.requests import TRUE, RequestTools, limit_of, refusal_of, text
from broker.store.errors import StoreError
from remoting.access.rights import ADMIN, MONITOR, SESSION
from remoting.protocol.bodies.client_order import ClientOrder
from remoting.protocol.bodies.operating_body import (
    ASK_CLIENTS,
    ASK_KICK,
    ASK_LIMITS,
    PAGE_MAX,
    ClientLine,
    ClientPage,
    ClientQuery,
    LimitsNamed,
    ProxyAnswered,
    ProxyPresent,
    decode,
    encode,
)
from remoting.protocol.bodies.session_body import SessionFenced
from remoting.protocol.errors import Refused, RemoteViolation
from remoting.protocol.frames.codes import RequestCode as Code
from remoting.protocol.frames.codes import ResponseCode
from remoting.protocol.frames.commands import FLAG_ONEWAY, Command
from remoting.server.router import later
from remoting.transport.contracts import Handler, Peer

if TYPE_CHECKING:
    from broker.publishing.append import Appender
    from broker.sessions.sessions import Sessions
    from broker.shared.feature import SharedFeature
    from broker.wills.feature import WillVerdicts

_encode = msgspec.json.encode


class MqttClientRequests:
    """Connected clients and their proxies."""

    def __init__(
        self,
        tools: RequestTools,
        sessions: Sessions,
        *,
        shared: SharedFeature,
        verdicts: WillVerdicts,
        appender: Appender,
    ) -> None:
        self.proxies = Proxies()
        self._tools = tools
        self._sessions = sessions
        self._shared = shared
        self._verdicts = verdicts
        self._appender = appender

    def handlers(self) -> dict[int, Handler]:
        """Request code -> handler."""
        return {
            Code.PROXY_PRESENT: self.proxy_present,
            Code.PROXY_ANSWERED: self.proxy_answered,
            Code.PROXY_LIST: self.proxy_list,
            Code.MQTT_CLIENTS: self.mqtt_clients,
            Code.MQTT_KICK: self.mqtt_kick,
            Code.SESSION_END: self.session_end,
        }

    def proxy_present(self, peer: Peer, command: Command) -> Command:
        """9090: a proxy shows itself."""
        self._tools.authorizer.authorize(peer, command, SESSION, "proxies")
        self.proxies.present(peer, decode(ProxyPresent, command.body))
        self._name_limits([proxy for proxy in (self.proxies.at(peer),) if proxy is not None])
        return command.reply()

    def configure(self) -> None:
        """Let the proxies know the limits that they check."""
        self._name_limits(self.proxies.all())

    def _name_limits(self, proxies: Sequence[Proxy]) -> None:
        self.proxies.tell(proxies, ASK_LIMITS, encode(LimitsNamed(self._tools.config.delay_s_max)))

    def proxy_answered(self, peer: Peer, command: Command) -> None:
        """9092: a proxy answers a question."""
        self._tools.authorizer.authorize(peer, command, SESSION, "proxies")
        self.proxies.answered(peer, decode(ProxyAnswered, command.body))

    def proxy_list(self, peer: Peer, command: Command) -> Command:
        """9124: the connected proxies."""
        self._tools.authorizer.authorize(peer, command, MONITOR, "proxies")
        rows = [
            {
                "name": proxy.shown.name,
                "address": proxy.peer.address,
                "version": proxy.shown.version,
                "listeners": proxy.shown.listeners,
                "since_ms": proxy.shown.since_ms,
            }
            for proxy in self.proxies.all()
        ]
        return command.reply(body=_encode({"proxies": rows}))

    def mqtt_clients(self, peer: Peer, command: Command) -> None:
        """9110: one page of the connected clients, or one of them."""
        self._tools.authorizer.authorize(peer, command, MONITOR, "clients")
        fields = command.fields
        limit = limit_of(command, PAGE_MAX)
        words = ("after", "client", "prefix", "contains", "user", "address", "sort")
        query = ClientQuery(limit + 1, **{word: fields.get(word, "") for word in words})
        try:
            order = ClientOrder.parse(query.sort)
            order.behind(query.after)
        except ValueError as error:
            raise Refused(ResponseCode.INVALID_PARAMETER, str(error)) from error
        later(peer, command, self._page(command, query, order, limit))

    async def _page(self, command: Command, query: ClientQuery, order: ClientOrder, limit: int) -> Command:
        answers = await self.proxies.ask(self.proxies.all(), ASK_CLIENTS, encode(query))
        found: dict[str, dict[str, Any]] = {}
        total = matching = 0
        missing = []
        for answer in answers:
            page = _page_of(answer.body, answer.error)
            if page is None:
                missing.append(answer.proxy.shown.name)
                continue
            total += page.total
            matching += page.matching
            for line in page.clients:
                known = found.get(line.client)
                # A client that is moving may be named by two proxies; the one that knew it last counts.
                if known is None or known["since_ms"] < line.since_ms:
                    found[line.client] = _row(line, answer.proxy)
        first = heapq.nsmallest(limit + 1, found.values(), key=lambda row: order.key(order.value(row), row["client"]))
        last = first[limit - 1] if len(first) > limit else None
        shown = {
            "clients": first[:limit],
            "next": "" if last is None else order.mark(order.value(last), last["client"]),
            "total": total,
            "matching": matching,
            "missing": missing,
        }
        return command.reply(body=_encode(shown))

    def mqtt_kick(self, peer: Peer, command: Command) -> None:
        """9111: disconnect a client. Raises Refused when it is not connected."""
        client_id = text(command.fields, "client")
        self._tools.authorizer.authorize(peer, command, ADMIN, "clients")
        session = self._sessions.get(client_id)
        proxy = None if session is None else self.proxies.at(session.owner)
        if proxy is None:
            raise Refused(ResponseCode.QUERY_NOT_FOUND, f"no client with id {client_id!r} is connected")
        ends = command.fields.get("end", "") in TRUE
        later(peer, command, self._kick(peer, command, client_id, proxy, ends=ends))

    async def _kick(self, peer: Peer, command: Command, client_id: str, proxy: Proxy, *, ends: bool) -> Command | None:
        (answer,) = await self.proxies.ask([proxy], ASK_KICK, encode(ClientQuery(1, client=client_id)))
        page = _page_of(answer.body, answer.error)
        if page is None:
            raise Refused(ResponseCode.SYSTEM_ERROR, f"proxy {proxy.shown.name}: {answer.error}")
        if not page.clients and not ends:
            raise Refused(ResponseCode.QUERY_NOT_FOUND, f"no client with id {client_id!r} is connected any more")
        reply = command.reply()
        position = self._end(client_id) if ends else None
        reply.body = _encode({"client": client_id, "proxy": proxy.shown.name, "ended": position is not None})
        if position is None:
            return reply
        self._tools.answers.reply_at(position, peer, reply)
        return None

    def session_end(self, peer: Peer, command: Command) -> None:
        """9112: end a session, whether its client is connected or away. Raises Refused when there is none."""
        client_id = text(command.fields, "client")
        self._tools.authorizer.authorize(peer, command, ADMIN, "sessions")
        if self._sessions.get(client_id) is None:
            raise Refused(ResponseCode.QUERY_NOT_FOUND, f"there is no session of client id {client_id!r}")
        later(peer, command, self._ended(peer, command, client_id))

    async def _ended(self, peer: Peer, command: Command, client_id: str) -> None:
        session = self._sessions.get(client_id)
        proxy = None if session is None else self.proxies.at(session.owner)
        if proxy is not None:  # it tells the client why; if it does not answer, it is fenced
            await self.proxies.ask([proxy], ASK_KICK, encode(ClientQuery(1, client=client_id)))
        position = self._end(client_id)
        reply = command.reply(body=_encode({"client": client_id, "was_connected": proxy is not None}))
        if position is None:  # it ended with its connection
            position = self._tools.store.end_position
        self._tools.answers.reply_at(position, peer, reply)

    def _end(self, client_id: str) -> int | None:
        """End the session if it is still there; the position at which that holds."""
        self._appender.catch_up()
        try:
            ended = self._sessions.end(client_id, self._tools.clock.now_ms())
        except StoreError as error:
            raise refusal_of(self._tools.metrics, error) from error
        if ended is None:
            return None
        self._shared.away(client_id)
        if ended.fenced is not None:
            owner, epoch = ended.fenced
            body = encode(SessionFenced(client_id, epoch))
            cast("Peer", owner).send(Command(Code.SESSION_FENCED, flag=FLAG_ONEWAY, body=body))
        self._verdicts.run()
        return ended.position


def _page_of(body: bytes, error: str) -> ClientPage | None:
    """The page in an answer; None when there is none."""
    if error:
        return None
    try:
        return decode(ClientPage, body)
    except RemoteViolation:
        return None


def _row(line: ClientLine, proxy: Proxy) -> dict[str, Any]:
    return {name: getattr(line, name) for name in ClientLine.__struct_fields__} | {"proxy": proxy.shown.name}
