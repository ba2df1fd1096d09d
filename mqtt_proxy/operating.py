"""What the broker asks this proxy for an operator: which clients are connected, and to disconnect one.

    PROXY_PRESENT  sent after every connection to the broker, once the ports are open
    PROXY_ASKED    answered by PROXY_ANSWERED, on the same connection and so behind the close of a client it ended

A page of clients is found in steps of `STEP` ids with other work between them, so that many clients do not delay
anything; only the lines of the page are made. `QUESTIONS_MAX` questions are answered at a time, more are refused.
Invariant: every question gets one answer while the connection lasts. Loop rule: on the loop's thread.
"""

from __future__ import annotations

import asyncio
import heapq
import os
import socket
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import asdict

from mqtt_proxy.link import Link, LinkDownError
from mqtt_proxy.mqtt.codec.limits import DelayLimit
from mqtt_proxy.mqtt.codec.packets import VERSIONS
from mqtt_proxy.sessions.services import Owner, Services
from mqtt_proxy.traffic import Flow
from remoting.access.rules import Action, Identity
from remoting.protocol.bodies.client_order import ClientOrder, Key
from remoting.protocol.bodies.operating_body import (
    ASK_ACCESS,
    ASK_CLIENTS,
    ASK_KICK,
    ASK_LIMITS,
    ASK_QUOTAS,
    ASK_RULES,
    PAGE_MAX,
    ClientLine,
    ClientPage,
    ClientQuery,
    LimitsNamed,
    ProxyAnswered,
    ProxyAsked,
    ProxyPresent,
    QuotaAnswer,
    RuleAnswer,
    RuleLinesAnswer,
    RuleLinesQuestion,
    RuleQuestion,
    decode,
    encode,
)
from remoting.protocol.errors import LightMQError, LocalMisuse
from remoting.protocol.frames.codes import RequestCode
from remoting.protocol.frames.commands import Command
from remoting.protocol.records.topics import validate_filter, validate_topic_name
from runtime.logs import get_logger

LOG = get_logger("proxy.operating")

STEP = 1_000
"""Client ids looked at in one turn of the loop, some 0.3 ms of work."""
QUESTIONS_MAX = 16
ASKED_ACTIONS = (Action.PUBLISH, Action.WILL, Action.SUBSCRIBE, Action.HISTORY, Action.DELIVER)
ASKED_WITH_FILTER = (Action.SUBSCRIBE, Action.HISTORY)
KICKED = "kicked: disconnected by an operator"


class Operating:
    """Answers the broker's questions."""

    def __init__(
        self,
        services: Services,
        version: str,
        figures: Callable[[], Mapping[str, float]] = dict,
        delay: DelayLimit | None = None,
    ) -> None:
        """`figures`: every counter of this process by name and label. `delay` is set to what the broker names."""
        self._delay = DelayLimit() if delay is None else delay
        self._services = services
        self._link: Link = services.link
        self._version = version
        self._figures = figures
        self._since_ms = services.clock.now_ms()
        self._present: ProxyPresent | None = None
        self._pending = 0
        self._answers: dict[str, Callable[[bytes], Awaitable[bytes]]] = {
            ASK_CLIENTS: self._clients,
            ASK_KICK: self._kick,
            ASK_ACCESS: self._access,
            ASK_QUOTAS: self._quotas,
            ASK_RULES: self._rules,
            ASK_LIMITS: self._limits,
        }
        self._link.on_push(RequestCode.PROXY_ASKED, self._asked)
        self._link.on_up(self._show)

    def opened(self, listeners: Mapping[str, int]) -> None:
        """The ports are open: the broker may ask from now on."""
        name = f"{socket.gethostname()}:{listeners['tcp']}/{os.getpid()}"
        self._present = ProxyPresent(name, self._version, self._since_ms, dict(listeners))
        self._show()

    def _show(self) -> None:
        if self._present is not None and self._link.up:
            self._link.post(RequestCode.PROXY_PRESENT, encode(self._present)).add_done_callback(_shown)

    def _asked(self, command: Command) -> None:
        asked = decode(ProxyAsked, command.body)
        answer = self._answers.get(asked.question)
        if answer is None:
            self._say(ProxyAnswered(asked.number, error=f"this proxy does not know the question {asked.question!r}"))
        elif self._pending >= QUESTIONS_MAX:
            self._say(ProxyAnswered(asked.number, error=f"{QUESTIONS_MAX} questions are being answered: try later"))
        else:
            self._pending += 1
            self._services.spawn(self._answer(asked, answer))

    async def _answer(self, asked: ProxyAsked, answer: Callable[[bytes], Awaitable[bytes]]) -> None:
        try:
            answered = ProxyAnswered(asked.number, await answer(asked.body))
        except LightMQError as error:
            answered = ProxyAnswered(asked.number, error=str(error))
        finally:
            self._pending -= 1
        self._say(answered)

    def _say(self, answered: ProxyAnswered) -> None:
        try:
            self._link.oneway(RequestCode.PROXY_ANSWERED, encode(answered))
        except LinkDownError as error:
            LOG.info("question_unanswered", error=str(error))  # the broker lost this proxy and waits no longer

    async def _clients(self, body: bytes) -> bytes:
        """The first connected clients of a query, in its order."""
        query = decode(ClientQuery, body)
        try:
            order = ClientOrder.parse(query.sort)
            begin_key = order.behind(query.after)
        except ValueError as error:
            raise LocalMisuse(str(error)) from error
        figure = FIGURE_OF.get(order.figure, _none)
        now_ms = self._services.clock.now_ms()
        owners = self._services.owners
        limit = max(1, min(query.limit, PAGE_MAX + 1))
        ids = [query.client] if query.client else owners.ids()
        found: list[tuple[Key, str]] = []
        matching = 0
        for begin in range(0, len(ids), STEP):
            if begin:
                await asyncio.sleep(0)
            step = [one for one in ids[begin : begin + STEP] if self._matches(one, query)]
            matching += len(step)
            for one in step:
                owner = owners.get(one)
                key = order.key(0 if owner is None else figure(owner, now_ms), one)
                if begin_key is None or key > begin_key:
                    found.append((key, one))
            found = heapq.nsmallest(limit, found)
        now_ms = self._services.clock.now_ms()
        lines = [described(one, owner, now_ms) for _, one in found if (owner := owners.get(one)) is not None]
        return encode(ClientPage(lines, len(owners), matching))

    def _matches(self, client_id: str, query: ClientQuery) -> bool:
        owner = self._services.owners.get(client_id)
        if owner is None or not client_id.startswith(query.prefix) or query.contains not in client_id:
            return False
        if query.user and owner.user != query.user:
            return False
        return not query.address or owner.parts[0].peer.address.startswith(query.address)

    async def _kick(self, body: bytes) -> bytes:
        """Disconnect a client; the page of the answer has it, or nothing if it is not connected here."""
        query = decode(ClientQuery, body)
        owners = self._services.owners
        owner = owners.get(query.client)
        if owner is None:
            return encode(ClientPage([], len(owners), 0))
        line = described(query.client, owner, self._services.clock.now_ms())
        owner.evict(KICKED, fenced=False)
        return encode(ClientPage([line], len(owners), 1))

    async def _access(self, body: bytes) -> bytes:
        """What the rules in force say about a client, which need not be connected; nothing is counted."""
        asked = decode(RuleQuestion, body)
        wrong = f"there is no action {asked.action!r}" if asked.action not in ASKED_ACTIONS else ""
        if not wrong:
            validate = validate_filter if asked.action in ASKED_WITH_FILTER else validate_topic_name
            wrong = validate(asked.topic) or ""
        if wrong or asked.qos not in (0, 1, 2):
            raise LocalMisuse(wrong or f"QoS is 0, 1 or 2, not {asked.qos}")
        identity = Identity(asked.user, anonymous=not asked.user, client_id=asked.client)
        access = self._services.access
        verdict = access.decide(identity, asked.action, asked.topic.encode(), qos=asked.qos, retain=asked.retain)
        return encode(RuleAnswer(verdict.allowed, verdict.reason, "" if verdict.rule is None else str(verdict.rule)))

    async def _rules(self, body: bytes) -> bytes:
        """Some lines of the access list in force."""
        asked, rules = decode(RuleLinesQuestion, body), self._services.access.rules
        first, lines = max(0, asked.first), rules.lines()
        shown = lines[first : first + max(1, min(asked.limit, PAGE_MAX + 1))]
        return encode(RuleLinesAnswer(shown, len(lines), rules.open))

    async def _limits(self, body: bytes) -> bytes:
        """The broker names the limits that are checked here."""
        self._delay.s_max = decode(LimitsNamed, body).delay_s_max
        return b""

    async def _quotas(self, body: bytes) -> bytes:
        """The quotas in force, what is used, and how often something was refused, by reason."""
        del body
        config = self._services.config
        limits = {name: float(value) for name, value in asdict(config.quotas).items() if isinstance(value, int | float)}
        limits["connections_max"] = float(config.connections_max)
        limits["delay_s_max"] = float(self._delay.s_max)
        figures = self._figures()
        refusals = {name: value for name, value in figures.items() if "_mqtt_" in name and "refused" in name and value}
        used = {
            "connections_max": sum(n for name, n in figures.items() if name.startswith("rocketmq_mqtt_connections{")),
            "sessions": float(len(self._services.owners)),
        }
        return encode(QuotaAnswer(limits, used, refusals))


def _none(_owner: Owner, _now_ms: int) -> float:
    return 0


def _backlog(owner: Owner) -> int:
    """Messages that wait for it, those in flight not counted."""
    _wire, delivery = owner.parts
    if delivery is None:
        return 0
    return sum(max(0, source.feed.max_offset - source.cursor) for source in delivery.sources)


def _rates(flow: Flow, owner: Owner, now_ms: int) -> tuple[float, float]:
    """Messages and bytes per second, as they are shown."""
    messages, size_bytes = flow.rates(now_ms - owner.since_ms)
    return round(messages, 2), round(size_bytes, 2)


FIGURE_OF: dict[str, Callable[[Owner, int], float]] = {
    "messages_in_per_s": lambda owner, now_ms: _rates(owner.parts[0].flow_in, owner, now_ms)[0],
    "messages_out_per_s": lambda owner, now_ms: _rates(owner.parts[0].flow_out, owner, now_ms)[0],
    "bytes_in_per_s": lambda owner, now_ms: _rates(owner.parts[0].flow_in, owner, now_ms)[1],
    "bytes_out_per_s": lambda owner, now_ms: _rates(owner.parts[0].flow_out, owner, now_ms)[1],
    "messages_in": lambda owner, _now_ms: owner.parts[0].flow_in.messages,
    "messages_out": lambda owner, _now_ms: owner.parts[0].flow_out.messages,
    "bytes_in": lambda owner, _now_ms: owner.parts[0].flow_in.size_bytes,
    "bytes_out": lambda owner, _now_ms: owner.parts[0].flow_out.size_bytes,
    "backlog": lambda owner, _now_ms: _backlog(owner),
    "in_flight": lambda owner, _now_ms: len(owner.parts[0].session.state.outgoing.window),
    "since_ms": lambda owner, _now_ms: owner.since_ms,
}
"""What a list is sorted by -> its value; the same as in the lines."""


def described(client_id: str, owner: Owner, now_ms: int) -> ClientLine:
    """One connected client."""
    wire, delivery = owner.parts
    state = wire.session.state
    terms = state.terms
    subscriptions = 0
    if delivery is not None:
        subscriptions = len(delivery.sources)
        if delivery.memberships is not None:
            subscriptions += len(delivery.memberships.sources)
    messages_in_per_s, bytes_in_per_s = _rates(wire.flow_in, owner, now_ms)
    messages_out_per_s, bytes_out_per_s = _rates(wire.flow_out, owner, now_ms)
    return ClientLine(
        client=client_id,
        user=owner.user,
        address=wire.peer.address,
        version=VERSIONS[terms.level],
        protocol=wire.peer.listener,
        since_ms=owner.since_ms,
        keep_alive_s=terms.keep_alive_s,
        clean=terms.clean,
        in_flight=len(state.outgoing.window),
        backlog=_backlog(owner),
        subscriptions=subscriptions,
        messages_in=wire.flow_in.messages,
        messages_out=wire.flow_out.messages,
        bytes_in=wire.flow_in.size_bytes,
        bytes_out=wire.flow_out.size_bytes,
        messages_in_per_s=messages_in_per_s,
        messages_out_per_s=messages_out_per_s,
        bytes_in_per_s=bytes_in_per_s,
        bytes_out_per_s=bytes_out_per_s,
    )


def _shown(task: asyncio.Future[bytes]) -> None:
    if not task.cancelled() and task.exception() is not None:  # lost: shown again when the broker is back
        LOG.warning("proxy_not_shown", error=str(task.exception()))
