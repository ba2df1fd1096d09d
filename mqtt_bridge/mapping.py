"""Which topic a message has at the other side, by the rules of one connection.

Out: a message goes once to each topic that a rule gives it, with the highest QoS those rules allow. In: the rules do
not overlap, so at most one applies. Invariant: a mapped topic differs from the original in its prefix alone. Pure.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from mqtt_bridge.config import RuleConfig
from remoting.protocol.records.names import parent_topic
from remoting.protocol.records.topics import FilterTrie, validate_topic_name


class Target(msgspec.Struct, frozen=True, gc=False):
    """Where one copy of a message goes."""

    topic: bytes
    qos: int
    retain: bool


class OutMapping:
    """The `out` rules of a connection."""

    def __init__(self, rules: Sequence[RuleConfig]) -> None:
        self.rules = [rule for rule in rules if rule.goes_out]
        self._trie: FilterTrie[RuleConfig] = FilterTrie()
        for rule in self.rules:
            self._trie.add(rule.local_filter, rule)

    def parents(self) -> list[str]:
        """Parent topics that the rules name by their first level."""
        return sorted({parent for rule in self.rules if (parent := parent_of(rule)) is not None})

    @property
    def covers_all(self) -> bool:
        """Whether a rule begins with a wildcard, so that any parent topic may hold its messages."""
        return any(parent_of(rule) is None for rule in self.rules)

    def covering(self, parent: str) -> list[RuleConfig]:
        """The rules whose messages a parent topic may hold."""
        return [rule for rule in self.rules if parent_of(rule) in (None, parent)]

    def targets(self, topic: bytes, qos: int, *, retain: bool) -> list[Target]:
        """Where a message goes, one target per topic at the peer."""
        found: dict[bytes, Target] = {}
        for rule in self._trie.match(topic):
            remote = _moved(topic, rule.local_prefix, rule.remote_prefix)
            if remote is None:
                continue
            target = Target(remote, min(qos, rule.qos), retain and rule.retain)
            known = found.get(remote)
            if known is None or known.qos < target.qos:
                found[remote] = target
        return list(found.values())


class InMapping:
    """The `in` rules of a connection."""

    def __init__(self, rules: Sequence[RuleConfig]) -> None:
        self.rules = [rule for rule in rules if rule.comes_in]
        self._trie: FilterTrie[RuleConfig] = FilterTrie()
        for rule in self.rules:
            self._trie.add(rule.remote_filter, rule)

    def target(self, topic: bytes, qos: int, *, retain: bool) -> Target | None:
        """Where a message of the peer goes; None when no rule wants it (one that was configured earlier may have)."""
        for rule in self._trie.match(topic):
            local = _moved(topic, rule.remote_prefix, rule.local_prefix)
            if local is not None:
                return Target(local, min(qos, rule.qos), retain and rule.retain)
        return None


def _moved(topic: bytes, old: str, new: str) -> bytes | None:
    """The topic with another prefix; None for `plant`, which `plant/#` matches but which does not begin with it."""
    before = old.encode()
    return new.encode() + topic[len(before) :] if topic.startswith(before) and topic != before else None


def parent_of(rule: RuleConfig) -> str | None:
    """The parent topic of everything a rule sends; None when it begins with a wildcard."""
    first = rule.local_filter.partition("/")[0]
    return None if first in ("+", "#") else parent_topic(first.encode()).decode()


def wrong_topic(topic: bytes) -> str:
    """What keeps a mapped topic from being one; empty if nothing does."""
    if topic.startswith(b"$"):
        return "a topic that begins with $ is the broker's own"
    return validate_topic_name(topic) or ""
