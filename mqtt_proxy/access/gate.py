"""Access control of one proxy: the identity of a CONNECT, what it may do, and changed files.

`Authority.authorize(identity, action, topic)` is the one place that decides what an identity may do:

    publish, will   topic name, QoS, retain    `$` topics are the server's own: never, except `connection_state`
    subscribe       filter                     `$share/group/filter` is judged as its filter
    history         filter                     the same, and the rule must give history
    deliver         topic name, retained       messages outside the run of a subscription that was just allowed

Without an access list every admitted client may do everything else; with one, what no rule allows is denied. The rules
in force are one object, replaced as a whole: no check uses partly old and partly new rules. Each identity's rules are
compiled once and cached; `write_mask` lets callers cache the result for a topic themselves.

Invariants: the access list in force is a whole, valid one. An unusable list denies everything at the start, until it is
corrected; later the previous one stays in force. Either is an error in the log that names the lines, and a counter.
Every denial is counted with action and reason, and logged within a budget, never with a payload or secret. A method
that is listed and not configured is an error, since clients it should refuse would be admitted by the others
(`make_methods`); libraries of unused methods are not loaded. With a client certificate the name that the listener has
verified is the user; a user name in the CONNECT must be the same. Loop rule: created anywhere, started and used on one
loop.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import OrderedDict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from mqtt_proxy.access.auth import Authenticator, Exchange, Exchanges, Method
from mqtt_proxy.access.broker_method import BrokerMethod
from mqtt_proxy.access.password_method import PasswordMethod
from mqtt_proxy.config import METHODS, ProxyConfig
from mqtt_proxy.link import Link
from mqtt_proxy.metrics import AccessCounters
from remoting import background
from remoting.access import acl_file
from remoting.access.rules import (
    ALLOWED,
    ANONYMOUS,
    RETAINED_MASK,
    WRITE_ALL_MASK,
    Action,
    Grants,
    Identity,
    RuleSet,
    Shown,
    Unproven,
    Verdict,
)
from remoting.protocol.errors import LightMQError, LocalMisuse
from remoting.protocol.records import topics
from runtime.clock import Clock
from runtime.files import WatchedFile
from runtime.logs import get_logger


class CertificateMethod:
    """Names in verified client certificates."""

    name = "certificate"

    async def check(self, shown: Shown) -> Identity | Unproven | None:
        """The answer of `at_hand`: checking a certificate needs no waiting."""
        return self.at_hand(shown)

    def at_hand(self, shown: Shown) -> Identity | Unproven | None:
        """The user of the certificate; without one another method decides."""
        if not shown.certificate:
            return None
        if shown.username and shown.username != shown.certificate:
            return Unproven.DENIED
        return Identity(shown.certificate, anonymous=False, client_id=shown.client_id)

    def files(self) -> Sequence[WatchedFile[Any]]:
        """None: the listener reads certificates."""
        return ()

    def refresh(self) -> None:
        """Does nothing: no file is read."""

    async def close(self) -> None:
        """Nothing to release."""


def make_methods(config: ProxyConfig, *, clock: Clock, counters: AccessCounters, link: Link) -> list[Method]:
    """The methods, in order. Raises LightMQError when one of their files cannot be used: do not start then."""
    access = config.access
    configured = configured_methods(config)
    for name in access.methods:
        if name not in configured:
            raise LocalMisuse(f"proxy.access.methods names {name}, which is not configured")
    chosen = access.methods or configured
    if access.broker_users and config.acl_file is None:
        raise LocalMisuse("proxy.access.broker_users needs proxy.acl_file: without it every client may do everything")
    made: dict[str, Callable[[], Method]] = {
        "certificate": CertificateMethod,
        "jwt": lambda: _jwt(config, counters),
        "password": lambda: _password(config, clock, counters, last=chosen[-1] == "password"),
        "broker": lambda: BrokerMethod(link, last=chosen[-1] == "broker"),
        "http": lambda: _http(config, clock),
    }
    return [made[name]() for name in chosen]


def configured_methods(config: ProxyConfig) -> tuple[str, ...]:
    """Names of the methods for which there is a file, a URL or an authority of certificates."""
    there = {
        "certificate": config.listen.tls_client_ca is not None,
        "jwt": config.access.jwt_keys_file is not None,
        "password": config.password_file is not None,
        "broker": config.access.broker_users,
        "http": bool(config.access.http_url),
    }
    return tuple(name for name in METHODS if there[name])


def _password(config: ProxyConfig, clock: Clock, counters: AccessCounters, *, last: bool) -> Method:
    assert config.password_file is not None
    return PasswordMethod(config.password_file, clock=clock, counters=counters, last=last, config=config.access)


def _jwt(config: ProxyConfig, counters: AccessCounters) -> Method:
    from mqtt_proxy.access.jwt_method import JwtMethod

    return JwtMethod(config.access, counters=counters)


def _http(config: ProxyConfig, clock: Clock) -> Method:
    from mqtt_proxy.access.http_method import HttpMethod

    return HttpMethod(config.access, clock=clock)


GRANTS_MAX = 10_000
"""Identities whose compiled rules are cached; the one unused for the longest is dropped first."""

DENIALS_LOGGED_PER_S_MAX = 20
"""Denials logged in one second; the others are counted, and their number is logged with the next one."""

SHARE = b"$share/"
HISTORY = b"$history/"
DOLLAR_TOPIC = Verdict(allowed=False, reason="dollar_topic")
NOT_A_FILTER = Verdict(allowed=False, reason="not_a_filter")


EVERYTHING = Grants(RuleSet(open=True), ANONYMOUS)
"""The rules of all clients while there is no access list."""


class Authority:
    """Decides what an identity may do."""

    def __init__(self, rules: RuleSet, *, clock: Clock, counters: AccessCounters, partly: bool = True) -> None:
        """`partly`: whether a filter is granted when only some of its topics may be read."""
        self.rules = rules
        self._partly = partly
        self._clock = clock
        self._counters = counters
        self._grants: OrderedDict[Identity, Grants] = OrderedDict()
        self._listeners: list[Callable[[], None]] = []
        self._log = get_logger("mqtt_proxy.access")
        self._second = 0
        self._logged = 0
        self._unlogged = 0

    def replace(self, rules: RuleSet) -> None:
        """Put these rules in force; listeners check again what was allowed before."""
        self.rules = rules
        self._grants.clear()
        for listener in list(self._listeners):
            listener()

    def on_change(self, listener: Callable[[], None]) -> None:
        """Call `listener` after each change of the rules."""
        self._listeners.append(listener)

    def authorize(
        self, identity: Identity, action: str, topic: bytes | str, *, qos: int = 0, retain: bool = False
    ) -> Verdict:
        """Whether the identity may do this with this topic name or filter; a refusal is counted and logged.

        `retain`: the message is to be retained, or, for `deliver`, is a retained one.
        """
        raw = topic.encode("utf-8", "surrogatepass") if isinstance(topic, str) else topic
        verdict = self.decide(identity, action, raw, qos=qos, retain=retain)
        if not verdict.allowed:
            self._counters.denials.child(action, verdict.reason).value += 1
            self._log_denial(identity, action, raw, verdict)
        return verdict

    def decide(self, identity: Identity, action: str, topic: bytes, *, qos: int = 0, retain: bool = False) -> Verdict:
        """The decision alone: nothing is counted."""
        if action in (Action.PUBLISH, Action.WILL):
            if topic.startswith(b"$"):
                return self._write_state(identity, topic, qos, retain=retain, will=action == Action.WILL)
            return self._grants_of(identity).write(topic, qos, retain=retain, will=action == Action.WILL)
        if action == Action.DELIVER:
            return self._grants_of(identity).deliver(topic, retained=retain)
        inner, of_history = inner_filter(topic)
        if not inner:
            return NOT_A_FILTER
        history = of_history or action == Action.HISTORY
        return self._grants_of(identity).read(inner, history=history, partly=self._partly)

    def write_mask(self, identity: Identity, topic: bytes) -> int:
        """Which messages the identity may publish to the topic, as bits of `rules.write_bit`; nothing is counted."""
        if not topic.startswith(b"$"):
            return self._grants_of(identity).write_mask(topic)
        verdict = self._write_state(identity, topic, 0, retain=True)
        if not verdict.allowed and verdict.reason != "qos_retain_or_will":
            return 0
        return RETAINED_MASK & (WRITE_ALL_MASK if verdict.rule is None else self._grants_of(identity).write_mask(topic))

    def read_mask(self, identity: Identity, topic: bytes) -> int:
        """How messages of the topic may be read, as bits of `rules.READ_LIVE` and so on; nothing is counted."""
        return self._grants_of(identity).read_mask(topic)

    def _write_state(self, identity: Identity, topic: bytes, qos: int, *, retain: bool, will: bool = False) -> Verdict:
        """Whether the identity may publish that a bridge is connected, retained as it must be.

        Without an access list any client may for its client id. With one a rule has to name the topic, as any other; an
        authenticated bridge needs none for its own client id.
        """
        owner = topics.owner_of(topic)
        if owner is None or not retain:
            return DOLLAR_TOPIC
        own = owner == identity.client_id.encode("utf-8", "surrogatepass")
        grants = self._grants_of(identity)
        if grants is EVERYTHING:
            return ALLOWED if own else DOLLAR_TOPIC
        verdict = grants.write(topic, qos, retain=retain, will=will)
        if verdict.reason == "no_rule" and own and identity.bridge and not identity.anonymous:
            return ALLOWED
        return verdict

    def _grants_of(self, identity: Identity) -> Grants:
        if self.rules.open and not identity.rules:
            return EVERYTHING
        grants = self._grants.get(identity)
        if grants is None:
            grants = self._grants[identity] = Grants(self.rules, identity)
            if len(self._grants) > GRANTS_MAX:
                self._grants.popitem(last=False)
        else:
            self._grants.move_to_end(identity)
        return grants

    def _log_denial(self, identity: Identity, action: str, topic: bytes, verdict: Verdict) -> None:
        second = self._clock.monotonic_ns() // 1_000_000_000
        if second != self._second:
            self._second, self._logged = second, 0
        if self._logged >= DENIALS_LOGGED_PER_S_MAX:
            self._unlogged += 1
            return
        self._logged += 1
        self._log.warning(
            "mqtt_denied",
            action=action,
            topic=topic.decode("utf-8", "replace"),
            user=identity.name,
            client_id=identity.client_id,
            reason=verdict.reason,
            rule=str(verdict.rule) if verdict.rule is not None else "",
            not_logged=self._unlogged,
        )
        self._unlogged = 0


def inner_filter(topic_filter: bytes) -> tuple[bytes, bool]:
    """(the filter that a shared or history subscription reads, whether it reads history); empty when there is none."""
    of_history = False
    if topic_filter.startswith(SHARE):
        topic_filter = topic_filter[len(SHARE) :].partition(b"/")[2]
    if topic_filter.startswith(HISTORY):
        of_history = True
        topic_filter = topic_filter[len(HISTORY) :].partition(b"/")[2]
    if topic_filter.startswith((SHARE, HISTORY)):
        return b"", of_history
    return topic_filter, of_history


LOOK_INTERVAL_S = 1.0
"""How often changed files are checked for; a change takes effect after two checks at most."""


class Gate:
    """What the proxy calls: `at_hand`, `authenticate` and `authorize`."""

    def __init__(
        self,
        methods: Sequence[Method],
        acl: Path | None,
        *,
        clock: Clock,
        counters: AccessCounters,
        partly: bool = True,
    ) -> None:
        """Reads the access list `acl`; `methods` determine identities; `partly` as in `Authority`."""
        self._log = get_logger("mqtt_proxy.access")
        self._counters = counters
        self._authenticator = Authenticator(methods, counters)
        users = next((one for one in methods if isinstance(one, PasswordMethod)), None)
        self._exchanges = (
            Exchanges(None, counters) if users is None else Exchanges(users.stored, counters, users.like_scram)
        )
        self._watched: list[WatchedFile[Any]] = self._authenticator.files()
        self.authority = Authority(RuleSet(open=True), clock=clock, counters=counters, partly=partly)
        self._listed: RuleSet | None = RuleSet(open=True)
        """The rules of the list; None while it was never usable."""
        self._of_broker = next((one for one in methods if isinstance(one, BrokerMethod)), None)
        if self._of_broker is not None:
            self._of_broker.on_change(lambda _table: self._combine())
        self._looking: asyncio.Task[None] | None = None
        self._reloads: set[asyncio.Task[None]] = set()
        if acl is not None:
            self._first_acl(acl)

    @property
    def rules(self) -> RuleSet:
        """The rules in force; none while the access list was never usable, and everything is denied."""
        return self.authority.rules

    def at_hand(self, shown: Shown) -> Identity | Unproven | None:
        """See `Authenticator.at_hand`."""
        return self._authenticator.at_hand(shown)

    async def authenticate(self, shown: Shown) -> Identity | Unproven:
        """The identity of a CONNECT, or the reason of its refusal."""
        return await self._authenticator.authenticate(shown)

    def begin_exchange(self, method: str, shown: Shown) -> Exchange | None:
        """An enhanced authentication by this method; None when it is not offered."""
        return self._exchanges.begin(method, shown)

    def authorize(
        self, identity: Identity, action: str, topic: bytes | str, *, qos: int = 0, retain: bool = False
    ) -> Verdict:
        """See `Authority.authorize`."""
        return self.authority.authorize(identity, action, topic, qos=qos, retain=retain)

    def decide(
        self, identity: Identity, action: str, topic: bytes | str, *, qos: int = 0, retain: bool = False
    ) -> Verdict:
        """The decision alone: nothing is counted."""
        raw = topic.encode() if isinstance(topic, str) else topic
        return self.authority.decide(identity, action, raw, qos=qos, retain=retain)

    def write_mask(self, identity: Identity, topic: bytes) -> int:
        """See `Authority.write_mask`."""
        return self.authority.write_mask(identity, topic)

    def read_mask(self, identity: Identity, topic: bytes) -> int:
        """See `Authority.read_mask`."""
        return self.authority.read_mask(identity, topic)

    def on_change(self, listener: Callable[[], None]) -> None:
        """Call `listener` after each change of the rules."""
        self.authority.on_change(listener)

    def start(self) -> None:
        """Check for changed files from now on."""
        if self._of_broker is not None:
            self._of_broker.start()
        if self._watched:
            self._looking = background.task(self._watch_files(), "watches password file and access list")

    def reload(self) -> None:
        """Read all files again now, changed or not: for SIGHUP."""
        task = asyncio.get_running_loop().create_task(self._reload())
        self._reloads.add(task)
        task.add_done_callback(self._reloads.discard)

    async def close(self) -> None:
        """Stop checking, and the threads that check passwords."""
        tasks = [*self._reloads, *([self._looking] if self._looking is not None else [])]
        for task in tasks:
            task.cancel()
        for task in tasks:
            with contextlib.suppress(asyncio.CancelledError):
                await task
        await self._authenticator.close()

    async def _watch_files(self) -> None:
        while True:
            await asyncio.sleep(LOOK_INTERVAL_S)
            for watched in self._watched:
                await watched.refresh()

    async def _reload(self) -> None:
        self._authenticator.refresh()
        for watched in self._watched:
            await watched.refresh(now=True)

    def _first_acl(self, path: Path) -> None:
        watched = WatchedFile(path, acl_file.load, applied=self._acl_read, failed=self._acl_failed)
        self._watched.append(watched)
        try:
            self._listed = self.authority.rules = watched.first()
        except LightMQError as error:
            self._listed, self.authority.rules = None, RuleSet()
            self._counters.reloads.child("acl", "unusable").value += 1
            self._log.error("mqtt_acl_unusable", problem=str(error), consequence="everything is denied")
        else:
            self._counters.reloads.child("acl", "read").value += 1
            self._log.info("mqtt_acl_read", path=str(path), rules=self.authority.rules.count)

    def _acl_read(self, rules: RuleSet) -> None:
        self._counters.reloads.child("acl", "read").value += 1
        self._log.info("mqtt_acl_read", rules=rules.count)
        self._listed = rules
        self._combine()

    def _combine(self) -> None:
        """Put the rules of the list and those of the broker's users in force; nothing while the list is unusable."""
        listed = self._listed
        if listed is not None and self._of_broker is not None:
            listed = listed.joined(self._of_broker.table.rules())
        self.authority.replace(listed or RuleSet())

    def _acl_failed(self, error: LightMQError) -> None:
        self._counters.reloads.child("acl", "kept").value += 1
        self._log.error("mqtt_acl_unusable", problem=str(error), consequence="the rules from before stay in force")
