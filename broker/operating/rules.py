"""ACCESS_TEST, QUOTAS and ACCESS_RULES (9120, 9121, 9126): the rules and limits in force, for operators.

    ACCESS_TEST  fields `action`, `topic`, and `user`, `client`, `qos`, `retain`: what the proxies decide about an MQTT
                 client; or `key`, `request` (a code or its name), `on`: what this broker decides about an access key
                 -> {"allowed", "reason", "rule", "role", "by"}; `rule` has file and line, `by` is who decided
    QUOTAS       -> {"broker": {"limits", "used", "refusals"}, "proxies": [the same with "name"], "missing"}
    ACCESS_RULES fields `after`, `limit` -> {"rules": [{"on", "who", "place", "rule"}], "next", "missing"}: what this
                 broker applies to access keys (`on` is "keys"), then what the proxies apply to MQTT clients ("MQTT");
                 `place` is the file and line, or the user that a request made; nothing where there is no access list

The verdict is made by the code that decides, with the rules it has in force now; nothing is counted as refused. Of
several proxies the first by name that answers is asked: they read the same rules. Loop thread only.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import msgspec

from broker.requests import TRUE, RequestTools, limit_of, number, text
from remoting.access.rights import MONITOR, RIGHTS
from remoting.protocol.bodies.operating_body import (
    ASK_ACCESS,
    ASK_QUOTAS,
    ASK_RULES,
    PAGE_MAX,
    QuotaAnswer,
    RuleAnswer,
    RuleLinesAnswer,
    RuleLinesQuestion,
    RuleQuestion,
    decode,
    encode,
)
from remoting.protocol.errors import Refused
from remoting.protocol.frames.codes import RequestCode as Code
from remoting.protocol.frames.codes import ResponseCode, request_name
from remoting.protocol.frames.commands import Command
from remoting.server.authorizer import ANONYMOUS
from remoting.server.router import later
from remoting.transport.contracts import Handler, Peer

if TYPE_CHECKING:
    from broker.operating.proxies import Proxies

KEYS, CLIENTS = "keys", "MQTT"
BETWEEN = ":"
_encode = msgspec.json.encode


class RuleRequests:
    """What is permitted, and how much of it."""

    def __init__(
        self,
        tools: RequestTools,
        proxies: Proxies,
        *,
        figures: Callable[[], Mapping[str, float]],
        used: Callable[[], Mapping[str, int]],
    ) -> None:
        """`figures`: every counter of this process; `used`: how much there is of what has a limit, by its name."""
        self._tools = tools
        self._proxies = proxies
        self._figures = figures
        self._used = used

    def handlers(self) -> dict[int, Handler]:
        """Request code -> handler."""
        return {
            Code.ACCESS_TEST: self.access_test, Code.QUOTAS: self.quotas, Code.ACCESS_RULES: self.access_rules,
        }  # fmt: skip

    def access_test(self, peer: Peer, command: Command) -> Command | None:
        """9120: whether the rules in force permit something, and which of them decides."""
        self._tools.authorizer.authorize(peer, command, MONITOR, "rules")
        fields = command.fields
        if "request" in fields:
            return command.reply(body=_encode(self._of_key(fields)))
        question = RuleQuestion(
            text(fields, "action"), text(fields, "topic"), fields.get("user", ""), fields.get("client", ""),
            number(fields, "qos", 0), fields.get("retain", "") in TRUE,
        )  # fmt: skip
        later(peer, command, self._of_client(command, question))
        return None

    async def _of_client(self, command: Command, question: RuleQuestion) -> Command:
        body, why = encode(question), "no MQTT proxy is connected to this broker"
        for proxy in self._proxies.all():
            (answer,) = await self._proxies.ask([proxy], ASK_ACCESS, body)
            if not answer.error:
                found = decode(RuleAnswer, answer.body)
                shown = {"allowed": found.allowed, "reason": found.reason, "rule": found.rule, "role": ""}
                return command.reply(body=_encode(shown | {"by": proxy.shown.name}))
            why = answer.error
        raise Refused(ResponseCode.INVALID_PARAMETER, why)

    def _of_key(self, fields: Mapping[str, str]) -> dict[str, Any]:
        given, key, on = fields["request"], fields.get("key") or ANONYMOUS, fields.get("on", "")
        named = {request_name(code): code for code in RIGHTS}
        code = int(given) if given.isascii() and given.isdigit() and len(given) < 7 else named.get(given.upper())
        right = RIGHTS.get(code) if code is not None else None
        if right is None:
            raise Refused(ResponseCode.INVALID_PARAMETER, f"there is no request {given[:40]!r}")
        policy = self._tools.authorizer.policy
        if policy is None:
            return {"allowed": True, "reason": "no_access_list", "rule": "", "role": "", "by": "broker"}
        allowed = policy(key, right.action, on)
        role_for = getattr(policy, "role_for", None)
        role = "" if role_for is None else role_for(key, right.action, on)
        reason = "" if allowed else "no_rule"
        return {"allowed": allowed, "reason": reason, "rule": "", "role": role, "by": "broker"}

    def quotas(self, peer: Peer, command: Command) -> None:
        """9121: limits, use and refusals of this broker and its proxies."""
        self._tools.authorizer.authorize(peer, command, MONITOR, "quotas")
        later(peer, command, self._quotas(command))

    async def _quotas(self, command: Command) -> Command:
        proxies, missing = [], []
        for answer in await self._proxies.ask(self._proxies.all(), ASK_QUOTAS, b""):
            name = answer.proxy.shown.name
            if answer.error:
                missing.append(name)
                continue
            found = decode(QuotaAnswer, answer.body)
            proxies.append({"name": name, "limits": found.limits, "used": found.used, "refusals": found.refusals})
        limits = {
            name: value for name, value in asdict(self._tools.config.limits).items() if isinstance(value, int | float)
        }
        figures = self._figures()
        refusals = {name: value for name, value in figures.items() if _is_refusal(name) and value}
        broker = {"limits": limits, "used": dict(self._used()), "refusals": refusals}
        shown = {"broker": broker, "proxies": proxies, "missing": missing}
        return command.reply(body=_encode(shown))

    def access_rules(self, peer: Peer, command: Command) -> None:
        """9126: a page of the rules in force."""
        self._tools.authorizer.authorize(peer, command, MONITOR, "rules")
        part, _, first = command.fields.get("after", "").partition(BETWEEN)
        if part not in ("", KEYS, CLIENTS) or (part and not (first.isascii() and first.isdigit() and len(first) < 10)):
            raise Refused(ResponseCode.INVALID_PARAMETER, "after is no place in a list of rules")
        later(peer, command, self._lines(command, part or KEYS, int(first or 0), limit_of(command, PAGE_MAX)))

    async def _lines(self, command: Command, part: str, first: int, limit: int) -> Command:
        policy = self._tools.authorizer.policy
        lines_of = getattr(policy, "lines", None)
        of_keys = [] if lines_of is None else lines_of()
        rows: list[dict[str, str]] = []
        if part == KEYS:
            rows = [_line(KEYS, *line) for line in of_keys[first : first + limit]]
            if first + limit < len(of_keys):
                return _rule_page(command, rows, f"{KEYS}{BETWEEN}{first + limit}", [])
            first = 0
        answer, missing = await self._of_clients(first, limit - len(rows) or 1)
        if answer is None:
            return _rule_page(command, rows, "", missing)
        if answer.open and of_keys:
            answer.lines.append(("everybody", "", "no access list (proxy.acl_file): every client may do everything"))
        shown = answer.lines[: limit - len(rows)]
        rows += [_line(CLIENTS, *line) for line in shown]
        following = f"{CLIENTS}{BETWEEN}{first + len(shown)}" if first + len(shown) < answer.total else ""
        return _rule_page(command, rows, following, missing)

    async def _of_clients(self, first: int, limit: int) -> tuple[RuleLinesAnswer | None, list[str]]:
        """Lines of the first proxy that answers: they read the same rules; and the proxies that did not."""
        body, missing = encode(RuleLinesQuestion(first, limit)), []
        for proxy in self._proxies.all():
            (answer,) = await self._proxies.ask([proxy], ASK_RULES, body)
            if not answer.error:
                return decode(RuleLinesAnswer, answer.body), []
            missing.append(proxy.shown.name)
        return None, missing


def _line(part: str, who: str, place: str, rule: str) -> dict[str, str]:
    return {"on": part, "who": who, "place": place, "rule": rule}


def _rule_page(command: Command, rows: list[dict[str, str]], following: str, missing: list[str]) -> Command:
    return command.reply(body=_encode({"rules": rows, "next": following, "missing": missing}))


def _is_refusal(name: str) -> bool:
    """Whether a counter of this process counts refusals of the broker; in one process those of the proxy are beside."""
    return "_mqtt_" not in name and ("refused" in name or "rocketmq_dropped" in name)
