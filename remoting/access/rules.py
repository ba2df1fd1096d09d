"""What one identity may do: compiled rules of the access list, and the sets of topics that filters describe.

A rule allows or denies reading (subscribing, deliveries, retained messages, history) or writing (publishing, wills)
under one filter. A deny wins over every allow, in any order; what no rule allows is denied. A topic name must be
covered by an allowing rule. A filter entirely inside one and without a topic in common with a deny is allowed outright;
for any other that overlaps an allowing rule each message is judged by its own topic (`partly`), or the filter is
refused.

    pattern readwrite devices/%c/#      client id "press-7"  -> devices/press-7/#
                                        client id "#", "a/b" -> the rule allows nothing

Placeholders are filled with literal text, once: with a value that is empty, contains `+`, `#`, `/` or U+0000, or would
begin the topic with `$`, an allowing rule allows nothing, and a deny applies as broadly as it could. So no name can
widen a rule.

A filter stands for the set of topic names it matches: `+` any one level, `#` any number of further levels and none,
a wildcard in the first level nothing that begins with `$`. `contains` and `intersects` are exact for single filters:
they agree with matching every topic one by one (tests/property/test_access_filters.py).
Invariant: for any identity the verdict depends on its name, groups and client id only as literal text. Pure; filters
are valid and split into levels by `split`.

An `Identity` is the subject of a connection: its name is proved unless it is `anonymous`. A client id is chosen by the
client, never proved.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from remoting.protocol.records.names import parent_topic


class Action:
    """The actions checked by `authorize`."""

    PUBLISH = "publish"
    WILL = "will"
    SUBSCRIBE = "subscribe"
    HISTORY = "history"
    DELIVER = "deliver"


@dataclass(slots=True, frozen=True)
class Identity:
    """The subject of a connection; `name` is empty for clients without one."""

    name: str
    anonymous: bool
    client_id: str = ""
    groups: tuple[str, ...] = ()
    """Groups named by a token or hook."""
    rules: tuple[Rule, ...] = ()
    """Rules given by a token or hook, besides those of the access list."""
    until_ms: int | None = None
    """When its proof expires, in ms since 1970; None: never."""
    bridge: bool = False
    """Whether its CONNECT declared it to be another broker's bridge."""
    address: str = ""
    """The peer's host if rules of this identity depend on it, else empty."""


def always() -> bool:
    """Return true: the check of a client that never disconnects."""
    return True


@dataclass(slots=True, frozen=True, kw_only=True)
class Shown:
    """The credentials in a CONNECT."""

    client_id: str = ""
    username: str | None = None
    password: bytes | None = field(default=None, repr=False)
    loopback: bool = False
    address: str = ""
    """The peer's."""
    certificate: str | None = None
    """The name in the client certificate verified by the listener."""
    size_bytes: int = 0
    """What is kept of the CONNECT while it waits: all of it, with user properties and will."""
    wanted: Callable[[], bool] = always
    """Called before work begins; false means that the client has disconnected."""


class Unproven(StrEnum):
    """Why a CONNECT has no identity."""

    DENIED = "denied"
    BUSY = "busy"
    """Too many checks are waiting: the password was not checked, the client may retry."""
    UNAVAILABLE = "unavailable"
    """The service that decides gave no usable answer; the client may retry."""
    LEFT = "left"
    """The client disconnected before its turn."""


ANONYMOUS = Identity("", anonymous=True)


Levels = tuple[bytes, ...]
"""A filter or topic name, split at its slashes."""

PLUS = b"+"
HASH = b"#"
WILDCARDS = (PLUS, HASH)


class Prefix(bytes):
    """A level that matches every level with this prefix; equal to no other bytes.

    `of_topics`: a prefix of RocketMQ topic names, so the topic that stores a level counts as well.
    """

    of_topics = False

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Prefix) and bytes.__eq__(self, other)

    def __hash__(self) -> int:
        return hash((Prefix, bytes(self)))

    def begins(self, level: bytes) -> bool:
        """Whether the level, or every level of a longer prefix, begins with this."""
        own = bytes(self)
        return level.startswith(own) or (self.of_topics and parent_topic(level).startswith(own))


def topic_prefix(beginning: bytes) -> Prefix:
    """Return the level for topics with this prefix."""
    made = Prefix(beginning)
    made.of_topics = True
    return made


def split(text: str | bytes) -> Levels:
    """Return the levels of a filter or topic name."""
    raw = text.encode("utf-8", "surrogatepass") if isinstance(text, str) else text
    levels = tuple(raw.split(b"/"))
    # `#` alone and `+/#` match the same topics: a topic has a first level. One spelling for both.
    return (PLUS, HASH) if levels == (HASH,) else levels


def covers(wanted: Levels, topic: Levels) -> bool:
    """Whether the filter matches the topic name."""
    if wanted[0] == PLUS and topic[0].startswith(b"$"):
        return False
    for index, level in enumerate(wanted):
        if level == HASH:
            return True
        if index >= len(topic) or not _level_contains(level, topic[index]):
            return False
    return len(wanted) == len(topic)


def _level_contains(level: bytes, other: bytes) -> bool:
    """Whether a level other than `#` matches everything that the other one does."""
    if level in (PLUS, other):
        return True
    return isinstance(level, Prefix) and other != PLUS and level.begins(other)


def contains(outer: Levels, inner: Levels) -> bool:
    """Whether every topic the inner filter matches is matched by the outer one too."""
    if outer[0] == PLUS and inner[0].startswith(b"$"):
        return False
    for index, level in enumerate(outer):
        if level == HASH:
            return True  # the rest of the inner one, or its end: `a/#` matches `a`
        if index >= len(inner):
            return False
        other = inner[index]
        # A `#` here also stands for the end, which a level of the outer one does not; and `+` for any word.
        if other == HASH or not _level_contains(level, other):
            return False
    return len(outer) == len(inner)


def intersects(one: Levels, other: Levels) -> bool:
    """Whether some topic is matched by both filters."""
    if (one[0] == PLUS and other[0].startswith(b"$")) or (other[0] == PLUS and one[0].startswith(b"$")):
        return False
    for left, right in zip(one, other, strict=False):
        if HASH in (left, right):
            return True
        if PLUS not in (left, right) and not _level_contains(left, right) and not _level_contains(right, left):
            return False
    longer, length = (one, len(other)) if len(one) > len(other) else (other, len(one))
    return len(longer) == length or longer[length] == HASH


def within(sources: Sequence[str], host: str, *, unknown: bool) -> bool:
    """Whether the address is in one of the networks; `unknown` where it is no address."""
    try:
        address = ipaddress.ip_address(host.strip("[]").partition("%")[0])
    except ValueError:
        return unknown
    plain = getattr(address, "ipv4_mapped", None) or address
    return any(plain in ipaddress.ip_network(source, strict=False) for source in sources)


PLACEHOLDER = re.compile(rb"%c|%u|\$\{clientid\}|\$\{username\}")
UNFIT = re.compile(rb"[+#/\x00]")
QOS_MAX = 2

EVERYTHING: Levels = ()
"""Levels of a deny that could not be filled in at its first level: it denies everything."""

WRITE_ALL_MASK = 0xFFF
"""All bits of `Grants.write_mask`: every QoS, retained or not, as message or as will."""

RETAINED_MASK = 0b111_000_111_000
"""Those of them that are for retained messages and wills."""

READ_LIVE, READ_RETAINED, READ_HISTORY = 1, 2, 4
"""Bits of `Grants.read_mask`: live messages, retained ones, as messages from before the subscription."""
READ_ALL_MASK = READ_LIVE | READ_RETAINED | READ_HISTORY


@dataclass(slots=True, frozen=True)
class Rule:
    """One line of the access list; `place` names it for people."""

    place: str
    text: str
    filter: bytes
    allow: bool
    read: bool
    write: bool
    pattern: bool = False
    """Whether the filter has placeholders."""
    qos_max: int = QOS_MAX
    retain: bool = True
    """Writing: messages may be retained."""
    will: bool = True
    retained: bool = True
    """Reading: retained messages are delivered."""
    history: bool = True
    levels: Levels | None = None
    """The filter as levels if its text does not suffice: with a `Prefix`."""
    sources: tuple[str, ...] = ()
    """Networks of the peers it applies to; empty: all peers."""

    def __str__(self) -> str:
        return f"{self.place}: {self.text}"


@dataclass(slots=True, frozen=True)
class Verdict:
    """A decision; `reason` is a metric label, empty when allowed; `rule` is the deciding rule, if any."""

    allowed: bool
    reason: str = ""
    rule: Rule | None = None
    qos_max: int = QOS_MAX
    retained: bool = True
    """Whether a subscription gets retained messages."""
    partial: bool = False
    """Whether some topics of the filter may not be read, so that each message is judged by its own topic."""

    def __bool__(self) -> bool:
        return self.allowed


ALLOWED = Verdict(allowed=True)


@dataclass(slots=True)
class RuleSet:
    """All rules by section; immutable once in use."""

    users: dict[str, list[Rule]] = field(default_factory=dict)
    groups: dict[str, list[Rule]] = field(default_factory=dict)
    anonymous: list[Rule] = field(default_factory=list)
    everyone: list[Rule] = field(default_factory=list)
    roles: dict[str, set[str]] = field(default_factory=dict)
    """Name -> roles of a key at a broker or controller."""
    brokers: dict[str, set[str]] = field(default_factory=dict)
    """Name -> broker names that a key may register under."""
    role_places: dict[tuple[str, str], str] = field(default_factory=dict)
    """(name, role) -> where it is written."""
    open: bool = False
    """Every admitted client may do everything: the rules without an access list."""

    @property
    def count(self) -> int:
        """Number of rules of all sections."""
        return sum(map(len, (*self.users.values(), *self.groups.values(), self.anonymous, self.everyone)))

    def lines(self) -> list[tuple[str, str, str]]:
        """Return (for whom, place, text) of every rule and role, for people."""
        found = [
            (f"user {name}", self.role_places.get((name, role), ""), " ".join(["role", role, *brokers]))
            for name, roles in self.roles.items()
            for role in sorted(roles)
            for brokers in [sorted(self.brokers.get(name, ())) if role == "broker" else []]
        ]
        sections = [(f"user {name}", rules) for name, rules in self.users.items()]
        sections += [(f"group {name}", rules) for name, rules in self.groups.items()]
        sections += [("clients without a name", self.anonymous), ("everybody", self.everyone)]
        return found + [(who, rule.place, rule.text) for who, rules in sections for rule in rules]

    def of(self, identity: Identity) -> list[Rule]:
        """Return the rules for one identity; rules for a name only if that name is proved."""
        named: Sequence[Rule] = self.anonymous if identity.anonymous else self.users.get(identity.name, ())
        found = [*named, *self.everyone, *identity.rules]
        for group in identity.groups:
            found += self.groups.get(group, ())
        return [
            rule for rule in found if not rule.sources or within(rule.sources, identity.address, unknown=not rule.allow)
        ]

    def joined(self, other: RuleSet) -> RuleSet:
        """Return the union of both sets of rules."""
        made = RuleSet(
            {name: [*rules] for name, rules in self.users.items()}, self.groups, [*self.anonymous, *other.anonymous],
            [*self.everyone, *other.everyone], {name: set(roles) for name, roles in self.roles.items()}, self.brokers,
            {**self.role_places, **other.role_places},
        )  # fmt: skip
        for name, rules in other.users.items():
            made.users.setdefault(name, []).extend(rules)
        for name, roles in other.roles.items():
            made.roles.setdefault(name, set()).update(roles)
        return made


def write_bit(qos: int, *, retain: bool, will: bool = False) -> int:
    """Return the bit of `Grants.write_mask` for one kind of message."""
    return 1 << (qos + (3 if retain else 0) + (6 if will else 0))


class Grants:
    """The compiled rules of one identity."""

    __slots__ = ("_allow_read", "_allow_write", "_deny_read", "_deny_write", "_open")

    def __init__(self, rules: RuleSet, identity: Identity) -> None:
        self._open = rules.open and not identity.rules
        lists: dict[tuple[bool, bool], list[tuple[Levels, Rule]]] = {}
        for rule in rules.of(identity):
            levels = fill(rule, identity) if rule.pattern else rule.levels or split(rule.filter)
            if levels is None:
                continue
            for write in (False, True):
                if rule.write if write else rule.read:
                    lists.setdefault((rule.allow, write), []).append((levels, rule))
        self._allow_read = lists.get((True, False), [])
        self._allow_write = lists.get((True, True), [])
        self._deny_read = lists.get((False, False), [])
        self._deny_write = lists.get((False, True), [])

    @property
    def allows_something(self) -> bool:
        """Whether any rule allows anything."""
        return self._open or bool(self._allow_read or self._allow_write)

    def touches(self, topic_filter: str) -> bool:
        """Whether some rule allows reading or writing a topic that the filter matches; denies are not considered."""
        levels = split(topic_filter)
        return self._open or any(intersects(allowed, levels) for allowed, _ in (*self._allow_read, *self._allow_write))

    def write_mask(self, topic: bytes) -> int:
        """Return which messages may be written to this topic name, as bits of `write_bit`."""
        if self._open:
            return WRITE_ALL_MASK
        levels = tuple(topic.split(b"/"))
        if _denies(self._deny_write, levels) is not None:
            return 0
        mask = 0
        for wanted, rule in self._allow_write:
            if covers(wanted, levels):
                mask |= _mask_of(rule)
        return mask

    def write(self, topic: bytes, qos: int, *, retain: bool, will: bool = False) -> Verdict:
        """Return whether this message may be written, and the deciding rule."""
        if self._open:
            return ALLOWED
        levels = tuple(topic.split(b"/"))
        denying = _denies(self._deny_write, levels)
        if denying is not None:
            return Verdict(allowed=False, reason="deny_rule", rule=denying)
        short = None
        for wanted, rule in self._allow_write:
            if covers(wanted, levels):
                if _mask_of(rule) & write_bit(qos, retain=retain, will=will):
                    return Verdict(allowed=True, rule=rule)
                short = short or rule
        return _refused(short, "qos_retain_or_will" if short is not None else "no_rule")

    def read(self, topic_filter: str | bytes, *, history: bool = False, partly: bool = False) -> Verdict:
        """Return whether and how the filter may be subscribed to; several rules add up.

        `partly`: also allow a filter of which only some topics may be read; the verdict then is `partial`.
        """
        if self._open:
            return ALLOWED
        levels = split(topic_filter)
        denying = None
        for denied, rule in self._deny_read:
            if denied == EVERYTHING or intersects(denied, levels):
                if not partly or denied == EVERYTHING or contains(denied, levels):
                    return Verdict(allowed=False, reason="deny_rule", rule=rule)
                denying = denying or rule
        whole = _summed([rule for wanted, rule in self._allow_read if contains(wanted, levels)], history=history)
        if not partly or (whole.allowed and denying is None):
            return whole
        touching = [rule for wanted, rule in self._allow_read if intersects(wanted, levels)]
        found = _summed(touching, history=history)
        if not found.allowed:
            return found
        # It is unknown here which of these rules will apply to a message, so none of them may be exceeded.
        qos_max = min(rule.qos_max for rule in touching)
        return Verdict(allowed=True, rule=denying or found.rule, qos_max=qos_max, retained=found.retained, partial=True)

    def read_mask(self, topic: bytes) -> int:
        """Return how messages of this topic name may be read, as bits of `READ_LIVE` and so on; 0 when not at all."""
        if self._open:
            return READ_ALL_MASK
        levels = tuple(topic.split(b"/"))
        if _denies(self._deny_read, levels) is not None:
            return 0
        mask = 0
        for wanted, rule in self._allow_read:
            if covers(wanted, levels):
                mask |= READ_LIVE | READ_RETAINED * rule.retained | READ_HISTORY * rule.history
        return mask

    def deliver(self, topic: bytes, *, retained: bool) -> Verdict:
        """Return whether a message of this topic name may be delivered to the client."""
        if self._open:
            return ALLOWED
        levels = tuple(topic.split(b"/"))
        denying = _denies(self._deny_read, levels)
        if denying is not None:
            return Verdict(allowed=False, reason="deny_rule", rule=denying)
        verdict = _summed([rule for wanted, rule in self._allow_read if covers(wanted, levels)], history=False)
        if verdict and retained and not verdict.retained:
            return _refused(verdict.rule, "retained")
        return verdict


def fill(rule: Rule, identity: Identity) -> Levels | None:
    """Return the rule's filter for this identity; None for an allowing rule whose placeholders cannot be filled."""
    filled: list[bytes] = []
    client_id = identity.client_id.encode("utf-8", "surrogatepass")
    # The name of an anonymous client is only claimed.
    name = b"" if identity.anonymous else identity.name.encode("utf-8", "surrogatepass")
    for level in rule.filter.split(b"/"):
        if b"%" not in level and b"$" not in level:
            filled.append(level)
            continue
        text = PLACEHOLDER.sub(lambda found: client_id if found[0] in (b"%c", b"${clientid}") else name, level)
        if PLACEHOLDER.search(level):
            values = {client_id if one in (b"%c", b"${clientid}") else name for one in PLACEHOLDER.findall(level)}
            dollar = not filled and text.startswith(b"$") and not _literal_dollar(level)
            if dollar or not all(values) or any(UNFIT.search(value) for value in values):
                return None if rule.allow else ((*filled, HASH) if filled else EVERYTHING)
        filled.append(text)
    return split(b"/".join(filled))


def _literal_dollar(level: bytes) -> bool:
    return level.startswith(b"$") and PLACEHOLDER.match(level) is None


def _denies(denies: Sequence[tuple[Levels, Rule]], topic: Levels) -> Rule | None:
    for wanted, rule in denies:
        if wanted == EVERYTHING or covers(wanted, topic):
            return rule
    return None


def _mask_of(rule: Rule) -> int:
    mask = 0
    for qos in range(rule.qos_max + 1):
        for retain in (False, True) if rule.retain else (False,):
            for will in (False, True) if rule.will else (False,):
                mask |= write_bit(qos, retain=retain, will=will)
    return mask


def _summed(rules: Iterable[Rule], *, history: bool) -> Verdict:
    """Return what several allowing rules grant together: the highest QoS, and each option that any of them has."""
    best: Rule | None = None
    retained = False
    short = None
    for rule in rules:
        if history and not rule.history:
            short = short or rule
            continue
        retained = retained or rule.retained
        if best is None or rule.qos_max > best.qos_max:
            best = rule
    if best is None:
        return _refused(short, "history" if short is not None else "no_rule")
    return Verdict(allowed=True, rule=best, qos_max=best.qos_max, retained=retained)


def _refused(rule: Rule | None, reason: str) -> Verdict:
    return Verdict(allowed=False, reason=reason, rule=rule)
