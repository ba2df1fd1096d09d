"""The one place that decides what an identity may do: `authorize(identity, action, topic)`.

    publish, will   topic name, QoS, retain    `$` topics are the server's own: never, but for `connection_state`
    subscribe       filter                     `$share/group/filter` is judged as its filter
    history         filter                     the same, and the rule must give history
    deliver         topic name, retained       what a client gets outside the run of a subscription just allowed

Without an access list everybody who was let in may do everything else; with one, what no rule allows is denied. The
rules of the moment are one object, swapped as a whole: no question is answered half by old rules and half by new ones.
Each identity's rules are compiled once and remembered; `write_mask` lets callers remember a topic's answer themselves.

Invariant: every denial is counted with action and reason, and logged within a budget, never with a payload or secret.
Loop rule: on the loop's thread.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable

from mqtt_proxy.metrics import AccessCounters
from remoting.access.rules import (
    ALLOWED,
    ANONYMOUS,
    RETAINED_MASK,
    WRITE_ALL_MASK,
    Action,
    Grants,
    Identity,
    RuleSet,
    Verdict,
)
from remoting.protocol.records import topics
from runtime.clock import Clock
from runtime.logs import get_logger

GRANTS_MAX = 10_000
"""Identities whose compiled rules are remembered; the one not asked for the longest is forgotten first."""

DENIALS_LOGGED_PER_S_MAX = 20
"""Denials logged in one second; the others are counted, and their number is logged with the next one."""

SHARE = b"$share/"
HISTORY = b"$history/"
DOLLAR_TOPIC = Verdict(allowed=False, reason="dollar_topic")
NOT_A_FILTER = Verdict(allowed=False, reason="not_a_filter")


EVERYTHING = Grants(RuleSet(open=True), ANONYMOUS)
"""What holds for everybody while there is no access list."""


class Authority:
    """Answers what an identity may do."""

    def __init__(self, rules: RuleSet, *, clock: Clock, counters: AccessCounters, partly: bool = True) -> None:
        """`partly`: whether a filter is granted of which only some topics may be read."""
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
        """These rules hold from now on; whoever listens looks again at what was allowed before."""
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
        """The verdict alone: nothing is counted."""
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
        """Whether the identity may say that a bridge is connected, retained as it must be.

        Without an access list everybody may for its own client id. With one a rule has to name the topic, as any other;
        a bridge that has proved its name needs none for its own client id.
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
