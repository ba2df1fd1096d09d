"""TOPIC_TREE (9115): the children of one level of the MQTT topics, for operators.

Fields: `parent` (a topic or the beginning of topics; empty or missing: the first levels), `contains` (part of the
whole name below the parent), `after` (the `next` of the page before), `limit`.

    {"children": [{"level", "topic", "exists", "messages", "last_ms", "retained", "children", "below"}],
     "next", "topics"}

Without `contains` the children are the next level. With it they are the highest levels at any depth whose name, from
the parent on, has the text in it; `level` is that name, and every topic with the text in its name is one of them or
below one. `exists`: there were messages with exactly this topic, `messages` of which are kept, the newest stored at
`last_ms`. A first level has the messages of all topics that begin with it. `below` counts the topics further down.

`SortedNames` has the topics of all exact light queues in order, as keys in which a zero byte stands for the slash, so
that all topics below a level stand together. A page costs a few searches per child, whatever the number of topics; a
search looks at names in steps, at most `LOOKED_MAX` for a page: the page is then short, or empty, and has a `next`
all the same, where the search goes on. The first page does not wait for the order: `SmallestLevels` keeps its children
out of one look at each topic. What is created or deleted meanwhile may be missing in it.
Invariant: the index follows the log. Reads only. Loop thread only.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from broker.requests import RequestTools, limit_of
from broker.store.errors import StoreError, UnreadableOffsets
from broker.store.state import state_kinds
from broker.topics.sorted_names import SortedNames
from remoting.access.rights import MONITOR
from remoting.protocol.errors import LocalMisuse, Refused
from remoting.protocol.frames.codes import RequestCode, ResponseCode
from remoting.protocol.frames.commands import Command
from remoting.protocol.records import names
from remoting.protocol.records.record import RecordView
from remoting.protocol.records.topics import is_wildcard
from remoting.server.router import later
from remoting.transport.contracts import Handler, Peer

if TYPE_CHECKING:
    from broker.retained.feature import Retained
    from broker.store.log_store import LogStore
    from broker.topics.topics import Topics

LIMIT_MAX = 200
"""Most children in one page."""
STEP = 2_048
"""Queue names, or children of a search, looked at in one turn of the loop: about a millisecond."""
LOOKED_MAX = 1_000_000
"""Names a search looks at for one page of sorted names: about half a second of work, in turns of a millisecond."""
ROWS_STEP = 20
"""Rows made in one turn of the loop: each reads one record."""
_BETWEEN = b"\x00"
_BEHIND = b"\x01"


def _topics(store: LogStore) -> Iterator[list[bytes]]:
    """The keys of all exact light queues, step by step."""
    queues = store.state.queues
    for begin in queues.parts(STEP):
        yield queues.topic_keys(begin, begin + STEP)


class TopicTreeRequests:
    """Shows operators the topics level by level."""

    def __init__(self, tools: RequestTools, topics: Topics, retained: Retained) -> None:
        self._tools = tools
        self._topics = topics
        self._retained = retained
        self.index = SortedNames(lambda: _topics(tools.store))
        tools.store.state.subscribe(state_kinds.QUEUE, self._changed)

    def handlers(self) -> dict[int, Handler]:
        """Request code -> handler."""
        return {RequestCode.TOPIC_TREE: self.topic_tree}

    def maintain(self, now_ms: int) -> None:
        """Drop the index when nobody looks any more."""
        self.index.maintain(now_ms)

    def topic_tree(self, peer: Peer, command: Command) -> None:
        """9115: a page of the children of a level."""
        self._tools.authorizer.authorize(peer, command, MONITOR, "topics")
        fields = command.fields
        parent = fields.get("parent", "").encode()
        if _BETWEEN in parent or is_wildcard(parent):
            raise Refused(ResponseCode.INVALID_PARAMETER, "the parent is the beginning of topics, not a filter")
        asked = (parent, _key(fields.get("after", "")), _key(fields.get("contains", "")))
        later(peer, command, self._page(command, *asked, limit_of(command, LIMIT_MAX)))

    def _changed(self, name: bytes, value: bytes | None, _position: int) -> None:
        key = names.topic_key(name)
        if key is not None:
            self.index.changed(key, exists=value is not None)

    async def _page(self, command: Command, parent: bytes, after: bytes, contains: bytes, limit: int) -> Command:
        prefix = parent.replace(b"/", _BETWEEN) + _BETWEEN if parent else b""
        asked = LevelQuestion(prefix, after or None, contains, limit + 1)
        keys = self.index.ready(self._tools.clock.now_ms())
        found, topics, mark = await (self._looked_at(asked) if keys is None else _searched(keys, asked))
        if len(found) > limit:
            mark = found[limit - 1][0]
        following = "" if mark is None else _name(mark)
        children = []
        for number, (level, count) in enumerate(found[:limit], 1):
            children.append(self._row(prefix, level, count))
            if not number % ROWS_STEP:
                await asyncio.sleep(0)
        answer = {"children": children, "next": following, "topics": topics}
        return command.reply(body=msgspec.json.encode(answer))

    async def _looked_at(self, asked: LevelQuestion) -> Searched:
        """What `_searched` answers, without an order; later questions find one."""
        smallest, topics = SmallestLevels(asked), 0
        for step in _topics(self._tools.store):
            smallest.add(step)
            topics += len(step)
            await asyncio.sleep(0)
        self.index.begin()
        return Searched(smallest.found(), topics, None)

    def _row(self, prefix: bytes, level: bytes, topics: int) -> dict[str, Any]:
        topic = _name(prefix + level).encode()
        queue = self._tools.store.queues.find(names.light_queue_name(topic))
        below = max(0, topics - (queue is not None))
        messages, last_ms = (0, None) if queue is None else self._kept(queue)
        if not prefix and _BETWEEN not in level:
            ids = self._topics.queue_ids(names.parent_topic(topic).decode())
            counts = [self._kept(one) for one in ids]
            messages = sum(count for count, _last in counts)
            last_ms = max((last for _count, last in counts if last is not None), default=None)
        return {
            "level": _name(level),
            "topic": topic.decode(),
            "exists": queue is not None,
            "messages": messages,
            "last_ms": last_ms,
            "retained": topic in self._retained,
            "children": below > 0,
            "below": below,
        }

    def _kept(self, queue: int) -> tuple[int, int | None]:
        """(messages kept in a queue, when the newest of them was stored)."""
        try:
            low, high = self._tools.store.reading.bounds(queue)
            if low >= high:
                return 0, None
            records = self._tools.store.reading.read(queue, high - 1, 1, 1).records
        except LocalMisuse:  # deleted meanwhile
            return 0, None
        except (StoreError, UnreadableOffsets):  # damaged there; it is counted all the same
            return high - low, None
        return high - low, RecordView(records[0]).store_ms if records else None


class LevelQuestion(NamedTuple):
    """Which levels: below this beginning of keys, behind one of them, with this text in their names; and how many."""

    prefix: bytes
    after: bytes | None
    contains: bytes
    wanted: int


class Searched(NamedTuple):
    """The levels that a question asks for, and whether there may be more."""

    levels: list[tuple[bytes, int]]
    """(level, topics that are or begin with it), in order."""
    topics: int
    """All that there are."""
    mark: bytes | None
    """Behind which name the search goes on; None where it has come to the end, or has as many as were wanted."""


class SmallestLevels:
    """The first levels that a question asks for, and how many topics begin with each, out of keys in any order.

    Invariant: a level that was left out because enough smaller ones are known is never taken in again, so the counts
    of those that are kept are complete. Pure.
    """

    def __init__(self, asked: LevelQuestion) -> None:
        self._asked = asked
        self._kept: dict[bytes, int] = {}
        self._bound: bytes | None = None
        """The largest level that may still be among the first ones."""

    def add(self, keys: list[bytes]) -> None:
        """Take these keys into account."""
        prefix, after, contains, wanted = self._asked
        kept, bound, begin = self._kept, self._bound, len(prefix)
        if prefix:
            keys = [key[begin:] for key in keys if key.startswith(prefix)]
        levels = [_matching(key, contains) for key in keys if contains in key]
        for level, topics in Counter(levels).items():
            if level in kept:
                kept[level] += topics
            elif (bound is None or level < bound) and (after is None or level > after):
                kept[level] = topics
        if len(kept) > wanted:
            self._kept = dict(self.found())
            self._bound = max(self._kept)

    def found(self) -> list[tuple[bytes, int]]:
        """(level, topics that are or begin with it), in order."""
        return sorted(self._kept.items())[: self._asked.wanted]


async def _searched(keys: list[bytes], asked: LevelQuestion) -> Searched:
    """The first levels asked for out of sorted keys."""
    prefix, level, contains, wanted = asked
    levels: list[bytes] = []
    looked = 0
    while True:
        step, level = _levels_after(keys, prefix, level, contains, wanted - len(levels))
        levels += step
        looked += STEP
        if level is None or len(levels) >= wanted or looked >= LOOKED_MAX:
            break
        await asyncio.sleep(0)
    found = []
    for each in levels:
        begin = bisect_left(keys, prefix + each)
        found.append((each, bisect_left(keys, prefix + each + _BEHIND, begin) - begin))
    return Searched(found, len(keys), level if len(levels) < wanted else None)


def _levels_after(
    keys: list[bytes], prefix: bytes, after: bytes | None, contains: bytes, wanted: int
) -> tuple[list[bytes], bytes | None]:
    """The next levels below `prefix` with this text, behind `after`; and where to go on, None at the end.

    Looks at `STEP` names at most; what stands below a level that was found costs one search.
    """
    if after is None:
        at = bisect_left(keys, prefix)
    elif contains in after and _matching(after, contains) == after:
        at = bisect_left(keys, prefix + after + _BEHIND)
    else:
        at = bisect_right(keys, prefix + after)
    found: list[bytes] = []
    for _ in range(STEP):
        if at >= len(keys) or not keys[at].startswith(prefix):
            return found, None
        name = keys[at][len(prefix) :]
        at += 1
        if contains not in name:
            after = name
            continue
        level = _matching(name, contains)
        if after is None or level > after:
            found.append(level)
        after = level
        if at < len(keys) and keys[at].startswith(prefix + level + _BETWEEN):
            at = bisect_left(keys, prefix + level + _BEHIND, at)
        if len(found) >= wanted:
            break
    return found, after


def _matching(name: bytes, contains: bytes) -> bytes:
    """The beginning of a name, in whole levels, that has the text in it; without a text its first level."""
    end = name.find(_BETWEEN, name.find(contains) + len(contains))
    return name if end < 0 else name[:end]


def _key(text: str) -> bytes:
    return text.encode().replace(b"/", _BETWEEN)


def _name(key: bytes) -> str:
    return key.replace(_BETWEEN, b"/").decode()
