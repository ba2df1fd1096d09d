"""MQTT topic names and filters: validation, matching, the trie of filters, the tree of topics, two special names.

Rules of MQTT 3.1.1 §4.7: `+` is a whole level, `#` the last whole level and also its parent; filters that start with
a wildcard do not match topics that start with `$`; empty levels are levels. Text may come as str or UTF-8 bytes;
inside everything is bytes. Nothing recurses, so depth cannot exhaust the stack.

    $share/<group>/<filter>                a shared subscription (5.0 §4.8.2; 3.1.1 clients may use it as well)
    $SYS/broker/connection/<id>/state      a bridge's state: b"1" connected, b"0" not (its will), b"" removes it

A group's name has at least one character and no `/`, `+` or `#`; the inner filter is what is authorized and matched. A
name that begins with `$share` without a slash behind it is an ordinary topic. The state of bridges is the one topic
below `$SYS` that clients write: Mosquitto's bridges publish there by default, with their client id as `<id>`, and end
the connection when refused; `authority` decides which client may.
Invariant: FilterTrie.match and TopicTree.match agree with `matches`; `share_of(name)` is None exactly for ordinary
filters. Thread rule: a trie or tree has one owner; the functions are pure.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from functools import lru_cache
from typing import Generic, NamedTuple, TypeVar

TOPIC_SIZE_BYTES_MAX = 16_384
"""Longest topic name or filter, so that its light queue's name fits 16 bits of length; longer ones are refused."""
TOPIC_LEVELS_MAX = 128
"""Most levels of a topic name or filter, each of which costs a step of every match; more are refused."""

VALIDATED_FILTERS_MAX = 256
"""Validation results cached: every filter of a SUBSCRIBE is checked by the session, the proxy and the broker."""

T = TypeVar("T", bound=Hashable)
V = TypeVar("V")

_PLUS = b"+"
_HASH = b"#"
_DOLLAR = b"$"


def _raw(text: str | bytes) -> bytes:
    return text if isinstance(text, bytes) else text.encode("utf-8", "surrogatepass")


def _validate(text: str | bytes, what: str) -> str | None:
    raw = _raw(text)
    if not raw:
        return f"a topic {what} has at least one character"
    if len(raw) > TOPIC_SIZE_BYTES_MAX:
        return f"topic {what} of {len(raw)} bytes, the limit is {TOPIC_SIZE_BYTES_MAX}"
    if raw.count(b"/") >= TOPIC_LEVELS_MAX:
        return f"topic {what} of {raw.count(b'/') + 1} levels, the limit is {TOPIC_LEVELS_MAX}"
    if b"\0" in raw:
        return f"a topic {what} has no U+0000"
    try:
        raw.decode()
    except UnicodeDecodeError:
        return f"the topic {what} is not valid UTF-8"
    return None


def validate_topic_name(topic: str | bytes) -> str | None:
    """Return what is wrong with a topic name, None if nothing."""
    error = _validate(topic, "name")
    if error is None and is_wildcard(topic):
        return "a topic name has no wildcard (+ or #)"
    return error


@lru_cache(maxsize=VALIDATED_FILTERS_MAX)
def validate_filter(topic_filter: str | bytes) -> str | None:
    """Return what is wrong with a topic filter, None if nothing."""
    error = _validate(topic_filter, "filter")
    if error is not None:
        return error
    levels = _raw(topic_filter).split(b"/")
    if any(_HASH in level for level in levels[:-1]) or (_HASH in levels[-1] and levels[-1] != _HASH):
        return "# must be the whole last level of a filter"
    if any(_PLUS in level and level != _PLUS for level in levels):
        return "+ must be a whole level of a filter"
    return None


def is_wildcard(topic_filter: str | bytes) -> bool:
    """True if the filter has a wildcard."""
    raw = _raw(topic_filter)
    return _PLUS in raw or _HASH in raw


def matches(topic_filter: str | bytes, topic: str | bytes) -> bool:
    """True if the valid filter matches the valid topic name."""
    wanted, levels = _raw(topic_filter).split(b"/"), _raw(topic).split(b"/")
    if levels[0].startswith(_DOLLAR) and wanted[0] in (_PLUS, _HASH):
        return False
    for index, level in enumerate(wanted):
        if level == _HASH:
            return True
        if index >= len(levels) or level not in (_PLUS, levels[index]):
            return False
    return len(wanted) == len(levels)


class _FilterNode(Generic[T]):
    __slots__ = ("children", "values")

    def __init__(self) -> None:
        self.children: dict[bytes, _FilterNode[T]] = {}
        # A dict keeps the order of adding and finds one value among many in one step.
        self.values: dict[T, None] = {}


class FilterTrie(Generic[T]):
    """Filters with values; `match` returns the values whose filters match. A (filter, value) pair is kept once."""

    __slots__ = ("_count", "_root")

    def __init__(self) -> None:
        self._root: _FilterNode[T] = _FilterNode()
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def add(self, topic_filter: str | bytes, value: T) -> bool:
        """Add `value` under the filter; False if it was already there."""
        node = self._root
        for level in _raw(topic_filter).split(b"/"):
            child = node.children.get(level)
            if child is None:
                child = node.children[level] = _FilterNode()
            node = child
        if value in node.values:
            return False
        node.values[value] = None
        self._count += 1
        return True

    def remove(self, topic_filter: str | bytes, value: T) -> bool:
        """Drop `value` from the filter and prune what became empty; False if it was not there."""
        levels = _raw(topic_filter).split(b"/")
        path = [self._root]
        for level in levels:
            child = path[-1].children.get(level)
            if child is None:
                return False
            path.append(child)
        if value not in path[-1].values:
            return False
        del path[-1].values[value]
        self._count -= 1
        for level in reversed(levels):
            node = path.pop()
            if node.values or node.children:
                break
            del path[-1].children[level]
        return True

    def match(self, topic: str | bytes) -> list[T]:
        """Return the values of every matching filter; a value under several matching filters occurs several times."""
        levels = _raw(topic).split(b"/")
        found: list[T] = []
        dollar = levels[0].startswith(_DOLLAR)
        nodes = [self._root]
        for depth, level in enumerate(levels):
            wildcards = depth > 0 or not dollar
            following: list[_FilterNode[T]] = []
            for node in nodes:
                children = node.children
                if not children:
                    continue
                if wildcards:
                    if (rest := children.get(_HASH)) is not None:
                        found.extend(rest.values)
                    if (child := children.get(_PLUS)) is not None:
                        following.append(child)
                if (child := children.get(level)) is not None and level not in (_PLUS, _HASH):
                    following.append(child)
            nodes = following
        for node in nodes:
            found.extend(node.values)
            if (rest := node.children.get(_HASH)) is not None:
                found.extend(rest.values)
        return found


class _Absent:
    __slots__ = ()


_ABSENT = _Absent()


class _TopicNode(Generic[V]):
    __slots__ = ("children", "value")

    def __init__(self) -> None:
        self.children: dict[bytes, _TopicNode[V]] = {}
        self.value: V | _Absent = _ABSENT


class TopicTree(Generic[V]):
    """Topics with one value each (retained messages); `match` yields those that a filter matches."""

    __slots__ = ("_count", "_root")

    def __init__(self) -> None:
        self._root: _TopicNode[V] = _TopicNode()
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def set(self, topic: str | bytes, value: V) -> None:
        """Set the topic's value, replacing any previous one."""
        node = self._root
        for level in _raw(topic).split(b"/"):
            child = node.children.get(level)
            if child is None:
                child = node.children[level] = _TopicNode()
            node = child
        if node.value is _ABSENT:
            self._count += 1
        node.value = value

    def get(self, topic: str | bytes) -> V | None:
        """Return the topic's value, None if it has none."""
        node = self._root
        for level in _raw(topic).split(b"/"):
            child = node.children.get(level)
            if child is None:
                return None
            node = child
        return None if isinstance(node.value, _Absent) else node.value

    def delete(self, topic: str | bytes) -> bool:
        """Drop the topic and prune what became empty; False if it was not there."""
        levels = _raw(topic).split(b"/")
        path = [self._root]
        for level in levels:
            child = path[-1].children.get(level)
            if child is None:
                return False
            path.append(child)
        if path[-1].value is _ABSENT:
            return False
        path[-1].value = _ABSENT
        self._count -= 1
        for level in reversed(levels):
            node = path.pop()
            if node.children or node.value is not _ABSENT:
                break
            del path[-1].children[level]
        return True

    def match(self, topic_filter: str | bytes) -> Iterator[tuple[bytes, V]]:
        """Yield (topic, value) of every topic the filter matches."""
        return (found for found in self.walk(topic_filter) if found is not None)

    def walk(self, topic_filter: str | bytes) -> Iterator[tuple[bytes, V] | None]:
        """As `match`, with a None for every node on the way, so that a caller can stop after so many.

        What is set or deleted meanwhile may be found or not; everything else is.
        """
        wanted = _raw(topic_filter).split(b"/")
        # (node, its children still to visit, levels above them, index of the next wanted level)
        stack: list[tuple[_TopicNode[V], Iterator[bytes], tuple[bytes, ...], int]]
        stack = [(self._root, _candidates(self._root, wanted[0]), (), 1 - (wanted[0] == _HASH))]
        while stack:
            parent, children, open_levels, index = stack[-1]
            level = next(children, None)
            if level is None:
                stack.pop()
                continue
            node = parent.children.get(level)
            if node is None:  # deleted meanwhile
                continue
            if not open_levels and level.startswith(_DOLLAR) and wanted[0] != level:
                continue
            last = index == len(wanted)
            rest = not last and wanted[index] == _HASH
            path = (*open_levels, level)
            is_there = (last or rest) and not isinstance(node.value, _Absent)
            yield (b"/".join(path), node.value) if is_there else None  # type: ignore[misc]  # it is not _Absent
            if not last and node.children:
                stack.append((node, _candidates(node, wanted[index]), path, index + (not rest)))


def _candidates(node: _TopicNode[V], wanted: bytes) -> Iterator[bytes]:
    """Return the levels below a node that match a wanted one.

    A copy of the names alone: pairs of 300,000 children take a tenth of a second, in which nobody else is served.
    """
    return iter(list(node.children) if wanted in (_PLUS, _HASH) else (wanted,))


SHARE_PREFIX = "$share/"
NEVER_SERVED = {
    "$delayed/": "a delayed message comes by its own topic, not by $delayed/",
    "$queue/": "$queue/ is not offered, use $share/<group>/<filter>",
    "$exclusive/": "exclusive subscriptions are not offered",
}
"""Prefixes of filters with a meaning at other brokers, or for publishers only; no MQTT client publishes there."""
SYS_PREFIX, STORED_SYS_PREFIX = "$SYS/", "$SYS/broker/connection/"
"""The status of proxies is not in the log, so it cannot be shared; the state of bridges can."""


class Share(NamedTuple):
    """The two parts of a shared subscription's name."""

    group: str
    filter: str


def share_of(topic_filter: str) -> Share | None:
    """Return group and inner filter of a shared subscription, unvalidated; None for an ordinary filter."""
    if not topic_filter.startswith(SHARE_PREFIX):
        return None
    group, _, inner = topic_filter[len(SHARE_PREFIX) :].partition("/")
    return Share(group, inner)


def inner_filter(topic_filter: str) -> str:
    """Return the filter that messages are matched with: the inner one of a shared subscription, else the filter."""
    share = share_of(topic_filter)
    return topic_filter if share is None else share.filter


def validate_subscription(topic_filter: str) -> str | None:
    """Return what is wrong with a filter, shared or not, as a client may subscribe to it; None if nothing.

    A filter that can never get a message is wrong too: its client would wait forever.
    """
    share = share_of(topic_filter)
    wanted = topic_filter if share is None else share.filter
    for beginning, problem in NEVER_SERVED.items():
        if wanted.startswith(beginning):
            return problem
    if share is None:
        return validate_filter(topic_filter)
    if not share.group:
        return "a share name has at least one character"
    if "+" in share.group or "#" in share.group:
        return "a share name has neither + nor #"
    if share.filter.startswith((SHARE_PREFIX, "$history/")):
        return "a shared subscription is not shared again and has no history"
    if share.filter.startswith(SYS_PREFIX) and not share.filter.startswith(STORED_SYS_PREFIX):
        return "$SYS values are not shared"
    return validate_filter(share.filter)


_PREFIX, _SUFFIX = b"$SYS/broker/connection/", b"/state"

STATES = frozenset({b"", b"0", b"1"})
"""Payloads of a bridge's state."""


def owner_of(topic: bytes) -> bytes | None:
    """Return the client id in a topic of a bridge's state; None for every other topic."""
    if not (topic.startswith(_PREFIX) and topic.endswith(_SUFFIX)):
        return None
    owner = topic[len(_PREFIX) : -len(_SUFFIX)]
    return owner if owner and b"/" not in owner else None


def says_something_else(topic: bytes, payload: bytes | memoryview) -> bool:
    """Whether this is the topic of a bridge's state with a payload that is not a state."""
    return topic.startswith(b"$") and bytes(payload[:2]) not in STATES
